//! Chat templates: Jinja2 sources that convert a conversation to the text form of a model's
//! training. They are rendered byte for byte as transformers renders them (`apply_chat_template`),
//! since every space affects a model.
//!
//! These features of Jinja2 are missing: the `%` operator on text, a sign `+` before a number,
//! `varargs` and `kwargs` in macros. A loop over `none`, which fails in Jinja2, has no iterations.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use self_cell::self_cell;
use serde_json::{Map, Value as Json, json};

use crate::{Error, Result};
use budget::{Charged, Limits, Text};
use values::{Dict, from_json, weight};

mod budget;
mod guards;
mod operators;
mod python;
mod rewrite;
mod values;

/// Maximum number of bytes of a template's source; those in use have up to 20 KB.
const MAX_SOURCE: usize = 1 << 20;
/// Maximum number of bytes of a rendered conversation.
const MAX_OUTPUT: usize = 64 << 20;
/// Maximum number of bytes of texts and lists that a rendering may make.
const MAX_CREATED: u64 = 64 << 20;
/// Additional bytes for a long conversation, since some templates copy their text with every
/// message.
const MAX_CREATED_MORE: u64 = 448 << 20;
/// Bytes that may be read for each byte that may be made.
const READS: u64 = 2;
/// Longest rendering. The longest conversations take some tens of milliseconds.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum number of instructions of a template, and as many more for each message and tool.
/// Templates in use need about a hundred for a message.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 20_000;
/// Maximum number of nested macros. Each uses kilobytes of the stack.
const MAX_RECURSION: usize = 100;
/// Stack for parsing and compiling, which recurse with the source. `rewrite::check_source` limits
/// the depth.
const COMPILE_STACK: usize = 32 << 20;
const NAME: &str = "chat";

/// A conversation and the other variables of a template.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// Messages: objects with `role` and `content`, and optional keys (`tool_calls`, `name`,
    /// `reasoning_content`).
    pub messages: &'a [Json],
    /// JSON schemas of tools, usually a list of `{"type": "function", "function": {…}}`. `None` is
    /// the template's `none`.
    pub tools: Option<&'a Json>,
    /// Documents to answer from, each with `title` and `text`.
    pub documents: Option<&'a Json>,
    /// True if the text ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The text of the BOS token; undefined in the template if `None`.
    pub bos_token: Option<&'a str>,
    /// The text of the EOS token; undefined in the template if `None`.
    pub eos_token: Option<&'a str>,
    /// Further variables, such as `enable_thinking`. They override those above.
    pub extra: Option<&'a Map<String, Json>>,
    /// The time of `strftime_now`; the clock if `None`.
    pub now: Option<SystemTime>,
}

/// A compiled source.
#[derive(Debug)]
struct Code<'source> {
    instructions: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell!(
    struct CompiledTemplate {
        owner: String,

        #[covariant]
        dependent: Code,
    }

    impl {Debug}
);

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    compiled: CompiledTemplate,
}

impl ChatTemplate {
    /// Compiles a source.
    ///
    /// # Errors
    /// It is not a valid template, is longer than 1 MiB, or has too long expressions.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::TooLong { what: "the chat template", len: source.len(), limit: MAX_SOURCE });
        }
        let compiled = CompiledTemplate::try_new(prepare(source), |source| {
            std::thread::scope(|scope| {
                std::thread::Builder::new()
                    .name("template".into())
                    .stack_size(COMPILE_STACK)
                    .spawn_scoped(scope, || compile(source))
                    .map_err(|e| Error::Template(format!("no thread to compile it on: {e}")))?
                    .join()
                    .unwrap_or_else(|_| Err(Error::Template("its compiler failed".into())))
            })
        })?;
        let mut environment = Environment::empty();
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_formatter(|out, _, value| python::str(value, &mut Charged(out)));
        operators::add_to(&mut environment);
        guards::add_to(&mut environment);
        python::add_to(&mut environment);
        environment.add_function(
            "raise_exception",
            |message: &Value| -> std::result::Result<Value, minijinja::Error> {
                let mut text = Text::default();
                python::str(message, &mut text)?;
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception")
                    .with_source(Refused(text.finish()?)))
            },
        );
        Ok(ChatTemplate { environment, compiled })
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation ([`Error::TemplateRefused`]), or fails. It fails if
    /// Jinja2 would, if it exceeds the limits of steps, time or memory, or if it writes more than
    /// 64 MiB.
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
        let pairs = context.iter().map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)));
        let context = pairs.collect::<std::result::Result<_, _>>().and_then(Dict::value).map_err(failed)?;
        let n_tools = chat.tools.and_then(Json::as_array).map_or(0, Vec::len);
        let n_messages = (chat.messages.len() + n_tools) as u64;

        // Clones share the compiled template; the variables of this conversation are set on the
        // clone.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * n_messages));
        let now = OnceLock::new();
        let given = chat.now;
        environment.add_function("strftime_now", move |format: &str| {
            if format.len() > guards::MAX_TIME_FORMAT {
                let limit = guards::MAX_TIME_FORMAT;
                return Err(python::invalid(format!("strftime_now: a format of more than {limit} bytes")));
            }
            let now = now.get_or_init(|| match given {
                Some(time) => jiff::Timestamp::try_from(time)
                    .map(|time| time.to_zoned(jiff::tz::TimeZone::system()))
                    .unwrap_or_else(|_| jiff::Zoned::now()),
                None => jiff::Zoned::now(),
            });
            jiff::fmt::strtime::format(format, now)
                .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
        });
        let created = weight(&context).saturating_mul(16 + n_messages).min(MAX_CREATED_MORE) + MAX_CREATED;
        let limits = Limits { created, work: READS * created, time: MAX_TIME };
        let mut out = String::new();
        let (result, exceeded) = budget::within(limits, || {
            let code = self.compiled.borrow_dependent();
            let mut output = make_string_output(&mut out);
            eval(&environment, &code.instructions, context, &code.blocks, &mut output, AutoEscape::None)
                .map(|_| ())
        });
        if let Some(exceeded) = exceeded {
            return Err(Error::Template(exceeded.to_string()));
        }
        result.map_err(failed)?;
        if out.len() > MAX_OUTPUT {
            return Err(Error::TooLong { what: "the conversation", len: out.len(), limit: MAX_OUTPUT });
        }
        Ok(out)
    }
}

/// Compiles a source to instructions.
fn compile(source: &str) -> Result<Code<'_>> {
    let syntax = || SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed);
    rewrite::check_source(source, syntax()?)?;
    let tree = rewrite::stmt(&parse(source, NAME, syntax()?).map_err(failed)?);
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    Ok(Code { instructions, blocks })
}

/// A message as transformers passes it to a template: its reasoning, whatever its key, is
/// `reasoning_content` and also `thinking`.
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

/// Normalises a source. Jinja2 reads every line end as `\n`. `{% generation %}` marks the
/// assistant's part for training; Jinja2 treats it as a scope, `{% with %}`, which trims the same
/// spaces.
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

/// The message of `raise_exception`.
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
