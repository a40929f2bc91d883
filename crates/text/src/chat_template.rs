//! Chat templates: Jinja2 sources that turn a conversation into the text a model was trained on. They are rendered as
//! transformers renders them (`apply_chat_template`), to the byte, because a model notices every space.
//!
//! Of what Jinja2 can do, this is known to be missing: the `%` operator on text, a sign `+` before a number, `varargs`
//! and `kwargs` in macros. A loop over `none`, at which Jinja2 fails, is a loop over nothing.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use crate::{Error, Result, python};

/// The most bytes of a template's source: those in use have up to 20 KB.
const MAX_SOURCE: usize = 1 << 20;
/// The most bytes of a rendered conversation.
const MAX_OUTPUT: usize = 64 << 20;
/// Instructions that a template may take, and as many more for each message and tool. Those in use take about a
/// hundred for a message.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 20_000;
/// Macros within macros. Each takes kilobytes of the stack.
const MAX_RECURSION: usize = 100;
const NAME: &str = "chat";

/// A conversation and what else a template may ask for.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// Objects with `role` and `content`, and what a template knows besides (`tool_calls`, `name`, `reasoning_content`).
    pub messages: &'a [Json],
    /// JSON schemas of tools, usually a list of `{"type": "function", "function": {…}}`. `None` is the template's `none`.
    pub tools: Option<&'a Json>,
    /// Documents to answer from, each with `title` and `text`.
    pub documents: Option<&'a Json>,
    /// Whether the text ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The text of the BOS token; undefined in the template if `None`.
    pub bos_token: Option<&'a str>,
    /// The text of the EOS token; undefined in the template if `None`.
    pub eos_token: Option<&'a str>,
    /// Further variables, such as `enable_thinking`. They win over those above.
    pub extra: Option<&'a Map<String, Json>>,
    /// What `strftime_now` takes for now; the clock if `None`.
    pub now: Option<SystemTime>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compile a source.
    ///
    /// # Errors
    /// It is not a valid template, or longer than 1 MiB.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::TooLong { what: "the chat template", len: source.len(), limit: MAX_SOURCE });
        }
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?,
        );
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(|out, _, value| python::str(value, out));
        python::add_to(&mut environment);
        environment.add_function(
            "raise_exception",
            |message: &Value| -> std::result::Result<Value, minijinja::Error> {
                let mut text = String::new();
                python::str(message, &mut text)?;
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception")
                    .with_source(Refused(text)))
            },
        );
        environment.add_template_owned(NAME, prepare(source)).map_err(failed)?;
        Ok(ChatTemplate { environment })
    }

    /// Render a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation ([`Error::TemplateRefused`]), or fails: it does what Jinja2 does not allow
    /// either, takes too many steps, or writes more than 64 MiB.
    pub fn render(&self, chat: &Chat) -> Result<String> {
        let mut context = Map::new();
        context.insert("messages".into(), chat.messages.iter().map(with_reasoning).collect());
        context.insert("tools".into(), chat.tools.cloned().unwrap_or_default());
        context.insert("documents".into(), chat.documents.cloned().unwrap_or_default());
        context.insert("add_generation_prompt".into(), json!(chat.add_generation_prompt));
        for (name, token) in [("bos_token", chat.bos_token), ("eos_token", chat.eos_token)] {
            if let Some(token) = token {
                context.insert(name.into(), json!(token));
            }
        }
        for (name, value) in chat.extra.into_iter().flatten() {
            context.insert(name.clone(), value.clone());
        }
        let n_tools = chat.tools.and_then(Json::as_array).map_or(0, Vec::len);
        let fuel = FUEL + FUEL_PER_MESSAGE * (chat.messages.len() + n_tools) as u64;

        // Clones share the compiled template; what belongs to this conversation is set on the clone.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let now = OnceLock::new();
        let given = chat.now;
        environment.add_function("strftime_now", move |format: &str| {
            let now = now.get_or_init(|| match given {
                Some(time) => jiff::Timestamp::try_from(time)
                    .map(|time| time.to_zoned(jiff::tz::TimeZone::system()))
                    .unwrap_or_else(|_| jiff::Zoned::now()),
                None => jiff::Zoned::now(),
            });
            jiff::fmt::strtime::format(format, now)
                .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
        });
        let template = environment.get_template(NAME).map_err(failed)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(Value::from(Serde(&context)), &mut out).map_err(failed)?;
        String::from_utf8(out.0).map_err(|e| Error::Template(e.to_string()))
    }
}

/// A message as transformers hands it to a template: whatever name its reasoning came under, it is
/// `reasoning_content`, and also `thinking`.
fn with_reasoning(message: &Json) -> Json {
    let Some(fields) = message.as_object() else { return message.clone() };
    let found = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|&key| fields.get(key).filter(|v| !v.is_null()));
    let Some(reasoning) = found else { return message.clone() };
    let mut out = Map::new();
    out.insert("thinking".into(), reasoning.clone());
    out.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
    out.insert("reasoning_content".into(), reasoning.clone());
    Json::Object(out)
}

/// Jinja2 reads every end of line as `\n`. `{% generation %}` marks the assistant's part for training, which Jinja2
/// takes for a scope of its own: `{% with %}`, which trims the same spaces around it.
fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        rest = tag;
        let Some((inside, _)) = tag.split_once("%}") else { continue };
        let word = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&inside.replace(word, replacement));
        rest = tag.get(inside.len()..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// What `raise_exception` said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn failed(error: minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = cause {
        if let Some(Refused(message)) = e.downcast_ref() {
            return Error::TemplateRefused(message.clone());
        }
        cause = e.source();
    }
    Error::Template(error.to_string())
}

/// Takes so much output and no more.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!(
                "the conversation would have more than {MAX_OUTPUT} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
