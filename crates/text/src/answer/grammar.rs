//! What holds an answer to calls that are valid, in llguidance's dialect of Lark.

use std::fmt::Write;

use serde_json::{Value, json};

use super::AnswerFormat;
use super::calls::Tools;
use super::formats::{Syntax, Tags};
use crate::{Error, Grammar, Result, Tokenizer};

/// Whether tools are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallChoice<'a> {
    /// The model decides; if it begins a call, the call is valid.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Function(&'a str),
}

/// White space that a model may write between marks.
const WHITE: &str = "/[ \\n]{0,4}/";
/// Any text, as long as what follows allows.
const ANYTHING: &str = "/(?s:.*)/";

impl AnswerFormat {
    /// What holds an answer to `prompt` to calls of `tools`, each as a request has them; more than one call if `parallel`. An
    /// answer that calls none is `content`, or any text.
    ///
    /// # Errors
    /// No such function; there is no grammar of this format's calls; or a schema asks to be followed only in part.
    pub fn grammar(
        &self,
        tools: &[Value],
        choice: CallChoice<'_>,
        parallel: bool,
        content: Option<&Grammar>,
        prompt: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Grammar> {
        let known = Tools::new(tools);
        let called: Vec<(&str, &Value)> = match choice {
            CallChoice::Function(wanted) => known.iter().filter(|(name, _)| *name == wanted).collect(),
            CallChoice::Auto | CallChoice::Required => known.iter().collect(),
        };
        if called.is_empty() {
            let what = match choice {
                CallChoice::Function(name) => format!("the function {name:?} is not among the tools"),
                CallChoice::Auto | CallChoice::Required => "there are no tools to call".into(),
            };
            return Err(Error::Grammar { what });
        }
        for (_, schema) in &called {
            crate::grammar::check_schema(schema)?;
        }
        let mut lark = Lark { rules: String::new(), n: 0, tokenizer };
        let (open, calls) = self.calls_rules(&called, parallel, &mut lark)?;
        let thought = self.thought_rule(prompt, &mut lark);
        let start = match (choice, content) {
            (CallChoice::Required | CallChoice::Function(_), _) => {
                format!("{thought} {WHITE} {open} {calls}")
            }
            (CallChoice::Auto, Some(content)) => {
                let content = content_rule(content, &mut lark)?;
                format!("{thought} {WHITE} ({content} | {open} {calls})")
            }
            (CallChoice::Auto, None) => {
                let free = self.free_text(&mut lark);
                format!("{free} | {} {free}?", self.until_calls(&open, &calls, &mut lark))
            }
        };
        Ok(Grammar::Lark(format!("start: {start}\n{}", lark.rules)))
    }

    /// `content` after reasoning, where the model thinks; the grammar itself where it does not.
    ///
    /// # Errors
    /// The schema asks to be followed only in part.
    pub fn after_reasoning(&self, content: Grammar, prompt: &str, tokenizer: &Tokenizer) -> Result<Grammar> {
        if !self.reasons() {
            return Ok(content);
        }
        let mut lark = Lark { rules: String::new(), n: 0, tokenizer };
        let thought = match self.calls.syntax {
            Syntax::Harmony => harmony_thought(&mut lark),
            _ => self.thought_rule(prompt, &mut lark),
        };
        // One that is whole already cannot stand within another.
        if matches!(content, Grammar::Lark(_) | Grammar::Gbnf(_)) {
            return Ok(content);
        }
        let content = content_rule(&content, &mut lark)?;
        let opening = match self.calls.syntax {
            Syntax::Harmony => lark.marks("<|channel|>final<|message|>"),
            _ => String::new(),
        };
        Ok(Grammar::Lark(format!("start: {thought} {WHITE} {opening} {content}\n{}", lark.rules)))
    }

    /// What a model may think before it answers; empty if it does not.
    fn thought_rule(&self, prompt: &str, lark: &mut Lark<'_>) -> String {
        let Some(reasoning) = self.reasoning else { return String::new() };
        let rest = lark.until(reasoning.close);
        match self.begins_thinking(prompt) {
            true => rest,
            false => {
                let open = lark.marks(reasoning.open);
                format!("({WHITE} {open} {rest})?")
            }
        }
    }

    /// Text in which no call begins.
    fn free_text(&self, lark: &mut Lark<'_>) -> String {
        let opens: Vec<&str> = self.calls.opens().filter(|open| !lark.begins_special(open)).collect();
        let mut text = ANYTHING.to_owned();
        for open in opens {
            match open {
                // A call may begin at once.
                "" => text = "/[^{\\[](?s:.*)/".into(),
                open => {
                    let _ = write!(text, " & ~/(?s:.*){}(?s:.*)/", escaped(open));
                }
            }
        }
        lark.terminal(&text)
    }

    /// Any text and then calls.
    fn until_calls(&self, open: &str, calls: &str, lark: &mut Lark<'_>) -> String {
        match self.open() {
            "" => format!("{open} {calls}"),
            // A text that ends with the mark: one before the mark would go on into it.
            mark => format!("{} {calls}", lark.until(mark)),
        }
    }

    /// The mark that a forced call begins with. Llama 3 writes calls without one, which is its last.
    fn open(&self) -> &'static str {
        match self.calls.syntax {
            Syntax::Harmony => "",
            _ => self.calls.opens().last().unwrap_or_default(),
        }
    }

    /// The mark before the first call, and the rule of one call or more from after that mark on.
    fn calls_rules(
        &self,
        tools: &[(&str, &Value)],
        parallel: bool,
        lark: &mut Lark<'_>,
    ) -> Result<(String, String)> {
        let again = |one: &str, separator: &str| match parallel {
            true => format!("{one} ({separator} {one})*"),
            false => one.to_owned(),
        };
        let open = lark.marks(self.open());
        let between = format!("{WHITE} {open}");
        let body = match &self.calls.syntax {
            Syntax::Json { close, arguments, list, .. } => {
                let named = if self.calls.name == "command" { "tool_name" } else { "name" };
                let objects: Vec<Value> = tools
                    .iter()
                    .map(|(name, schema)| {
                        json!({
                            "type": "object", "properties": { named: { "const": name }, *arguments: schema },
                            "required": [named, arguments], "additionalProperties": false,
                        })
                    })
                    .collect();
                let schema = match objects.as_slice() {
                    [one] => one.clone(),
                    _ => json!({ "anyOf": objects }),
                };
                let object = lark.json(&schema);
                let object = lark.rule(&object);
                let close = lark.marks(close);
                match list {
                    true => {
                        let items = again(&object, &format!("\",\" {WHITE}"));
                        format!("{WHITE} \"[\" {WHITE} {items} {WHITE} \"]\" {close}")
                    }
                    false if close.is_empty() => object,
                    false => {
                        let one = lark.rule(&format!("{WHITE} {object} {WHITE} {close}"));
                        again(&one, &between)
                    }
                }
            }
            Syntax::Named { prefix, separator, close, .. } => {
                let mut calls = Vec::new();
                for (name, schema) in tools {
                    let number = if self.calls.name == "kimi" { "/:[0-9]{1,3}/" } else { "" };
                    let header = lark.marks(&format!("{prefix}{name}"));
                    let (separator, close) = (lark.marks(separator), lark.marks(close));
                    let schema = lark.json(schema);
                    calls.push(format!("{header} {number} {separator} {schema} {close}"));
                }
                let one = lark.rule(&calls.join(" | "));
                again(&one, &between)
            }
            Syntax::Tagged(tags) => {
                let mut calls = Vec::new();
                for (name, schema) in tools {
                    calls.push(tagged_call(name, schema, tags, lark));
                }
                let one = lark.rule(&calls.join(" | "));
                again(&one, &between)
            }
            Syntax::Pythonic { close, list, .. } => {
                let mut calls = Vec::new();
                for (name, schema) in tools {
                    let parts = parameters(schema).map(|(key, schema, is_required)| {
                        let value = lark.json(schema);
                        (format!("{} {value}", literal(&format!("{key}="))), is_required)
                    });
                    let parts = parts.collect::<Vec<_>>();
                    let arguments = lark.separated(&parts, &literal(", "));
                    calls.push(format!("{} {arguments} \")\"", literal(&format!("{name}("))));
                }
                let one = lark.rule(&calls.join(" | "));
                let close = lark.marks(close);
                match list {
                    true => format!("\"[\" {} \"]\" {close}", again(&one, &literal(", "))),
                    false => format!("{WHITE} {} {WHITE} {close}", again(&one, "\"\\n\"")),
                }
            }
            Syntax::Braces { quote, close, .. } => {
                let mut calls = Vec::new();
                for (name, schema) in tools {
                    let mut parts = Vec::new();
                    for (key, schema, is_required) in parameters(schema) {
                        let value = match schema["type"].as_str() {
                            Some("string") => format!("{} {}", lark.marks(quote), lark.until(quote)),
                            Some("number" | "integer" | "boolean" | "null") => lark.json(schema),
                            _ => {
                                let what = format!(
                                    "the parameter {key:?} of {name:?} is neither a text nor a number nor a boolean, and \
                                     calls in the format {} can be forced with these alone",
                                    self.name()
                                );
                                return Err(Error::Grammar { what });
                            }
                        };
                        parts.push((format!("{} {value}", literal(&format!("{key}:"))), is_required));
                    }
                    let arguments = lark.separated(&parts, "\",\"");
                    let header = lark.marks(&format!("{name}{{"));
                    let end = lark.marks(&format!("}}{close}"));
                    calls.push(format!("{header} {arguments} {end}"));
                }
                let one = lark.rule(&calls.join(" | "));
                again(&one, &between)
            }
            Syntax::Harmony => {
                let mut calls = Vec::new();
                for (name, schema) in tools {
                    let header =
                        format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
                    let (header, schema) = (lark.marks(&header), lark.json(schema));
                    calls.push(format!("{header} {schema}"));
                }
                let thought = harmony_thought(lark);
                format!("{thought} {}", lark.rule(&calls.join(" | ")))
            }
        };
        Ok((open, lark.rule(&body)))
    }
}

/// A rule of what the content must be.
fn content_rule(content: &Grammar, lark: &mut Lark<'_>) -> Result<String> {
    let body = match content {
        Grammar::JsonSchema(schema) => {
            crate::grammar::check_schema(schema)?;
            lark.json(schema)
        }
        Grammar::AnyJson => lark.json(&json!({ "type": "object" })),
        Grammar::Regex(regex) => between_slashes(regex),
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            texts.join(" | ")
        }
        Grammar::Lark(_) | Grammar::Gbnf(_) => {
            let what =
                "a grammar in Lark or GBNF cannot be combined with calls of tools; expected one or the other"
                    .into();
            return Err(Error::Grammar { what });
        }
    };
    Ok(lark.rule(&body))
}

/// What gpt-oss may think before its answer.
fn harmony_thought(lark: &mut Lark<'_>) -> String {
    let begin = lark.marks("<|channel|>analysis<|message|>");
    let thought = lark.until("<|end|>");
    let again = lark.marks("<|start|>assistant");
    format!("({begin} {thought} {again})?")
}

fn tagged_call(name: &str, schema: &Value, tags: &Tags, lark: &mut Lark<'_>) -> String {
    let mut rule =
        format!("{WHITE} {} {WHITE}", lark.marks(&format!("{}{name}{}", tags.name_before, tags.name_after)));
    for (key, schema, is_required) in parameters(schema) {
        let header = lark.marks(&format!("{}{key}{}", tags.key_before, tags.key_after));
        let value = match (schema["type"].as_str(), schema.get("enum")) {
            (Some("string"), None) => lark.until(tags.value_after),
            (Some("string"), Some(Value::Array(texts))) => {
                let texts: Vec<String> = texts.iter().filter_map(Value::as_str).map(literal).collect();
                format!("\"\\n\"? ({}) \"\\n\"? {}", texts.join(" | "), lark.marks(tags.value_after))
            }
            _ => format!("\"\\n\"? {} \"\\n\"? {}", lark.json(schema), lark.marks(tags.value_after)),
        };
        let parameter = lark.rule(&format!("{header} {value} {WHITE}"));
        let _ = write!(rule, " {parameter}{}", if is_required { "" } else { "?" });
    }
    let _ = write!(rule, " {} {WHITE} {}", lark.marks(tags.end), lark.marks(tags.close));
    rule
}

/// Names, schemas, and whether they are required.
fn parameters(schema: &Value) -> impl Iterator<Item = (&str, &Value, bool)> {
    let required = schema["required"].as_array();
    let is_required = move |key: &str| required.is_some_and(|keys| keys.iter().any(|k| k == key));
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(move |(key, schema)| (key.as_str(), schema, is_required(key)))
}

/// A grammar that is being written.
struct Lark<'a> {
    rules: String,
    n: usize,
    tokenizer: &'a Tokenizer,
}

impl Lark<'_> {
    fn is_special(&self, mark: &str) -> bool {
        self.tokenizer.token_id(mark).is_some_and(|id| self.tokenizer.is_special(id))
    }

    /// Whether a mark begins with a token that is no text.
    fn begins_special(&self, mark: &str) -> bool {
        self.marks(mark).starts_with("<[")
    }

    /// A rule of its own; its name.
    fn rule(&mut self, body: &str) -> String {
        self.n += 1;
        let name = format!("r{}", self.n);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    fn terminal(&mut self, body: &str) -> String {
        self.n += 1;
        let name = format!("T{}", self.n);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// A text with special tokens in it, which are tokens and no text.
    fn marks(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let (mut plain, mut at) = (String::new(), 0);
        while let Some(c) = text[at..].chars().next() {
            let close = match c {
                '<' => Some('>'),
                '[' => Some(']'),
                _ => None,
            };
            let end = close.and_then(|close| Some(at + text[at..].find(close)? + 1));
            match end.filter(|end| self.is_special(&text[at..*end])) {
                Some(end) => {
                    if !plain.is_empty() {
                        parts.push(literal(&std::mem::take(&mut plain)));
                    }
                    let id = self.tokenizer.token_id(&text[at..end]).unwrap_or_default();
                    parts.push(format!("<[{id}]>"));
                    at = end;
                }
                None => {
                    plain.push(c);
                    at += c.len_utf8();
                }
            }
        }
        if !plain.is_empty() {
            parts.push(literal(&plain));
        }
        parts.join(" ")
    }

    /// Any text up to and with a mark.
    fn until(&mut self, mark: &str) -> String {
        match self.begins_special(mark) {
            true => {
                let text = self.terminal(ANYTHING);
                format!("{text} {}", self.marks(mark))
            }
            false => {
                self.n += 1;
                let name = format!("r{}", self.n);
                let _ = writeln!(self.rules, "{name}[suffix={}]: {ANYTHING}", literal(mark));
                name
            }
        }
    }

    /// JSON of a schema.
    fn json(&self, schema: &Value) -> String {
        format!("%json {}", crate::grammar::with_white_space(schema.clone()))
    }

    /// Parts in this order, those that are not required perhaps, with separators between those that are there.
    fn separated(&mut self, parts: &[(String, bool)], separator: &str) -> String {
        // From the end: what may come where nothing, and where something, stands before.
        let (mut first, mut rest) = (String::new(), String::new());
        for (part, is_required) in parts.iter().rev() {
            let part = self.rule(part);
            let (new_first, new_rest) = match is_required {
                true => (format!("{part} {rest}"), format!("{separator} {part} {rest}")),
                false => (format!("{part} {rest} | {first}"), format!("({separator} {part})? {rest}")),
            };
            first = self.rule(&new_first);
            rest = self.rule(&new_rest);
        }
        first
    }
}

/// A regular expression between slashes.
fn between_slashes(regex: &str) -> String {
    let (mut out, mut is_escaped) = (String::from("/"), false);
    for c in regex.chars() {
        if c == '/' && !is_escaped {
            out.push('\\');
        }
        is_escaped = c == '\\' && !is_escaped;
        match c {
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('/');
    out
}

/// A text in quotes.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if ".*+?()[]{}|^$/\\".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
