//! State of the calls in an answer, shared by the readers of all formats.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::AnswerPart;
use super::kinds::Kinds;

/// Longest name of a function, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// Longest text held back as a possible call, in bytes.
pub(super) const MAX_RAW: usize = 64 << 10;

/// The tools of a request. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(Arc<Vec<(String, Value)>>);

impl Tools {
    /// Reads tools from objects such as `{"type":"function","function":{"name","parameters"}}`, or
    /// from the inner objects. A tool without parameters accepts none.
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

    /// Types of a parameter; all types if the parameter is unknown.
    pub(super) fn kinds(&self, function: &str, key: &str) -> Kinds {
        let Some(schema) = self.schema(function) else { return Kinds::ANY };
        schema["properties"].get(key).map_or(Kinds::ANY, |parameter| Kinds::of(parameter, schema))
    }

    /// Returns true if a function has a parameter of this name.
    pub(super) fn has_parameter(&self, function: &str, key: &str) -> bool {
        self.schema(function).is_some_and(|schema| schema["properties"].get(key).is_some())
    }

    /// Name of a function's parameter by its position in the schema.
    pub(super) fn parameter(&self, function: &str, n: usize) -> Option<&str> {
        self.schema(function)?["properties"].as_object()?.keys().nth(n).map(String::as_str)
    }
}

/// A reader's verdict on the next character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The character belongs to the calls.
    More,
    /// The character is the last one of the calls.
    Done,
    /// The character is not part of a call, and neither is the text since the last
    /// [`Calls::commit`].
    Stop,
}

/// The calls of an answer so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// Number of calls that have begun.
    n: usize,
    /// Number of complete calls.
    n_whole: usize,
    /// Bytes of the last call's arguments.
    n_arguments: usize,
    /// Text read since the last commit, which may not be a call.
    raw: String,
    /// True if a call has begun since the last mark that opens calls.
    has_begun: bool,
    /// Text for [`Self::take_held`].
    held: Option<String>,
    /// True within a part of a call that a grammar may enforce.
    is_held: bool,
    /// True if the grammar cannot express the calls after the last mark.
    is_foreign: bool,
}

impl Calls {
    /// Number of calls that have begun.
    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// Number of complete calls.
    pub(super) fn n_whole(&self) -> usize {
        self.n_whole
    }

    /// Handles a mark that may open calls, at the end of `raw`. `is_foreign` marks calls in another
    /// format than the grammar's, which it cannot enforce.
    pub(super) fn open(&mut self, raw: String, is_foreign: bool) {
        self.raw = raw;
        self.has_begun = false;
        self.is_foreign = is_foreign;
    }

    /// Adds a character.
    pub(super) fn read(&mut self, c: char) {
        self.raw.push(c);
    }

    /// Marks the text read so far as part of a call.
    pub(super) fn commit(&mut self) {
        self.raw.clear();
    }

    /// Returns true if the text without a commit is so long that it counts as text.
    pub(super) fn is_too_long(&self) -> bool {
        self.raw.len() > MAX_RAW
    }

    /// Returns the text that is not a call.
    pub(super) fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    /// Returns true if a call has begun since the last mark that opens calls.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Begins a call of this function.
    pub(super) fn begin(&mut self, name: &str, parts: &mut Vec<AnswerPart>) {
        parts.push(AnswerPart::CallBegin { index: self.n, name: name.to_owned() });
        self.n += 1;
        self.n_arguments = 0;
        self.has_begun = true;
        self.commit();
    }

    /// Adds JSON text to the last call's arguments.
    pub(super) fn arguments(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        if text.is_empty() {
            return;
        }
        self.n_arguments += text.len();
        let last = self.n.saturating_sub(1);
        if let Some(AnswerPart::CallArguments { index, text: before }) = parts.last_mut()
            && *index == last
        {
            before.push_str(text);
        } else {
            parts.push(AnswerPart::CallArguments { index: last, text: text.to_owned() });
        }
    }

    /// Completes the last call.
    pub(super) fn end(&mut self, parts: &mut Vec<AnswerPart>) {
        if self.n_arguments == 0 {
            self.arguments("{}", parts);
        }
        parts.push(AnswerPart::CallEnd { index: self.n.saturating_sub(1) });
        self.n_whole += 1;
        self.release();
        self.commit();
    }

    /// Starts the part of a call that a grammar may enforce. `text` is the call so far, in the
    /// grammar's spelling.
    pub(super) fn hold(&mut self, text: String) {
        if self.is_foreign {
            return;
        }
        self.held = Some(text);
        self.is_held = true;
    }

    /// Ends the part that a grammar may enforce.
    pub(super) fn release(&mut self) {
        self.held = None;
        self.is_held = false;
    }

    /// Returns true within the part that [`Self::hold`] began.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns the text passed to [`Self::hold`], once.
    pub(super) fn take_held(&mut self) -> Option<String> {
        self.held.take()
    }
}

/// Matches one of several marks, character by character.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    text: String,
}

impl Marks {
    /// Adds a character. Returns the complete mark, or `None` if a mark may still be completed.
    ///
    /// # Errors
    /// No mark continues with this character.
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

    /// Returns true if no mark has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}
