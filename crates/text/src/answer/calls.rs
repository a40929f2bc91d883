//! Calls while they are written: what the readers of all formats share.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::AnswerPart;
use super::kinds::Kinds;

/// The longest name of a function that is looked for, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// The longest text that is held back because it may become a call, in bytes.
pub(super) const MAX_RAW: usize = 64 << 10;

/// The tools of a request. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(Arc<Vec<(String, Value)>>);

impl Tools {
    /// From objects like `{"type":"function","function":{"name","parameters"}}`, or from the inner
    /// objects. A tool without parameters takes none.
    pub(super) fn new(tools: &[Value]) -> Tools {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let parameters = match function.get("parameters") {
                Some(Value::Object(keys)) if !keys.is_empty() => Value::Object(keys.clone()),
                _ => Value::Object(Map::from_iter([
                    ("type".to_owned(), Value::from("object")),
                    ("properties".to_owned(), Value::Object(Map::new())),
                    ("additionalProperties".to_owned(), Value::from(false)),
                ])),
            };
            Some((function["name"].as_str()?.to_owned(), parameters))
        };
        Tools(Arc::new(tools.iter().filter_map(tool).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and schemas.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, schema)| (name.as_str(), schema))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    fn schema(&self, function: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == function).map(|(_, schema)| schema)
    }

    /// The types that a parameter may have; any for a parameter that is not known.
    pub(super) fn kinds(&self, function: &str, key: &str) -> Kinds {
        let Some(schema) = self.schema(function) else { return Kinds::ANY };
        schema["properties"].get(key).map_or(Kinds::ANY, |parameter| Kinds::of(parameter, schema))
    }

    /// Whether a function has a parameter of this name.
    pub(super) fn has_parameter(&self, function: &str, key: &str) -> bool {
        self.schema(function).is_some_and(|schema| schema["properties"].get(key).is_some())
    }

    /// The name of a function's parameter by its place in the schema.
    pub(super) fn parameter(&self, function: &str, n: usize) -> Option<&str> {
        self.schema(function)?["properties"].as_object()?.keys().nth(n).map(String::as_str)
    }
}

/// What a reader makes of a further character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the calls.
    More,
    /// It is the last one of the calls.
    Done,
    /// It is no part of a call, and neither is the text since the last [`Calls::commit`].
    Stop,
}

/// The calls of an answer, as far as they have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// Calls that have begun.
    n: usize,
    /// Calls that are whole.
    n_whole: usize,
    /// Bytes of arguments of the last one.
    n_arguments: usize,
    /// Text that has been read and is no part of a call yet.
    raw: String,
    /// A call has begun since the last mark that opens calls.
    has_begun: bool,
    /// See [`Self::take_held`].
    held: Option<String>,
    /// Whether the answer is within a call that a grammar may hold to its schema.
    is_held: bool,
    /// The grammar of calls has no words for those after the last mark.
    is_foreign: bool,
}

impl Calls {
    /// Calls that have begun.
    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// Calls that are whole.
    pub(super) fn n_whole(&self) -> usize {
        self.n_whole
    }

    /// A mark that may open calls has come, as the last part of `raw`. `is_foreign`: they are of
    /// another format than the grammar's, which then holds none of them.
    pub(super) fn open(&mut self, raw: String, is_foreign: bool) {
        self.raw = raw;
        self.has_begun = false;
        self.is_foreign = is_foreign;
    }

    /// A character was read.
    pub(super) fn read(&mut self, c: char) {
        self.raw.push(c);
    }

    /// What has been read is certain to be part of a call.
    pub(super) fn commit(&mut self) {
        self.raw.clear();
    }

    /// Whether so much has been read without becoming a call that it counts as text.
    pub(super) fn is_too_long(&self) -> bool {
        self.raw.len() > MAX_RAW
    }

    /// The text that turned out to be no call.
    pub(super) fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    /// Whether a call has begun since the last mark that opens calls.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// A call of this function begins.
    pub(super) fn begin(&mut self, name: &str, parts: &mut Vec<AnswerPart>) {
        parts.push(AnswerPart::CallBegin { index: self.n, name: name.to_owned() });
        self.n += 1;
        self.n_arguments = 0;
        self.has_begun = true;
        self.commit();
    }

    /// More of the last call's arguments, as JSON text.
    pub(super) fn arguments(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        if text.is_empty() {
            return;
        }
        self.n_arguments += text.len();
        let last = self.n.saturating_sub(1);
        match parts.last_mut() {
            Some(AnswerPart::CallArguments { index, text: before }) if *index == last => {
                before.push_str(text);
            }
            _ => parts.push(AnswerPart::CallArguments { index: last, text: text.to_owned() }),
        }
    }

    /// The last call is whole.
    pub(super) fn end(&mut self, parts: &mut Vec<AnswerPart>) {
        if self.n_arguments == 0 {
            self.arguments("{}", parts);
        }
        parts.push(AnswerPart::CallEnd { index: self.n.saturating_sub(1) });
        self.n_whole += 1;
        self.release();
        self.commit();
    }

    /// From here on a grammar may hold the call to its schema. `text` is the call so far, spelled as
    /// the grammar of calls spells it.
    pub(super) fn hold(&mut self, text: String) {
        if self.is_foreign {
            return;
        }
        self.held = Some(text);
        self.is_held = true;
    }

    /// What comes next is free again.
    pub(super) fn release(&mut self) {
        self.held = None;
        self.is_held = false;
    }

    /// Whether the answer is within what [`Self::hold`] began.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// The text that was given to [`Self::hold`], once.
    pub(super) fn take_held(&mut self) -> Option<String> {
        self.held.take()
    }
}

/// Recognises one of some marks that may come next, character by character.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    text: String,
}

impl Marks {
    /// Adds a character: the mark that is whole now, `None` if one still may become so.
    ///
    /// # Errors
    /// None of the marks goes on with it.
    pub(super) fn step(&mut self, c: char, marks: &[&'static str]) -> Result<Option<&'static str>, ()> {
        self.text.push(c);
        if let Some(mark) = marks.iter().find(|mark| **mark == self.text) {
            self.text.clear();
            return Ok(Some(mark));
        }
        match marks.iter().any(|mark| mark.starts_with(self.text.as_str())) {
            true => Ok(None),
            false => Err(()),
        }
    }

    /// Whether no mark has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}
