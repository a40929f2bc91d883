//! Readers of calls, one for each syntax. They read character by character and keep little state,
//! so that they can be copied for draft tokens.

mod arguments;
mod json;
mod named;
mod tagged;

use super::AnswerPart;
use super::calls::{Calls, Step, Tools};
use super::formats::{CallFormat, Syntax};
use arguments::ArgumentsReader;
use json::JsonReader;
use named::NamedReader;
use tagged::TaggedReader;

/// Reads the calls after one opening mark.
#[derive(Clone, Debug)]
pub(super) enum CallReader {
    Json(JsonReader),
    Named(NamedReader),
    Tagged(TaggedReader),
    Arguments(ArgumentsReader),
}

impl CallReader {
    /// Makes a reader of the text after `open`; `None` if the format's calls have no such mark.
    pub(super) fn new(format: &'static CallFormat, open: &str, calls: &mut Calls) -> Option<CallReader> {
        let is_bare = open.is_empty();
        Some(match &format.syntax {
            Syntax::Json { name, .. } => CallReader::Json(JsonReader::new(name, format.close, is_bare)),
            Syntax::Named { prefix, separator, after } => {
                // A function's name follows, or text that cannot be a name.
                calls.hold(String::new());
                CallReader::Named(NamedReader::new(prefix, separator, after, format.close))
            }
            Syntax::Tagged(tags) => {
                let is_named = !tags.name_before.is_empty() && open == tags.name_before;
                CallReader::Tagged(TaggedReader::new(tags, format.close, is_named))
            }
            Syntax::Pythonic { .. } => {
                CallReader::Arguments(ArgumentsReader::pythonic(format.close, is_bare))
            }
            Syntax::Braces { quote } => CallReader::Arguments(ArgumentsReader::braces(quote, format.close)),
            Syntax::Harmony => return None,
        })
    }

    /// Reads one more character.
    pub(super) fn step(
        &mut self,
        c: char,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        // Some models write another format of their family after the mark.
        let other = match self {
            CallReader::Named(reader) => reader.json_instead(c).map(CallReader::Json),
            CallReader::Arguments(reader) => reader.json_instead(c).map(CallReader::Json),
            CallReader::Tagged(reader) => reader.json_instead(c).map(CallReader::Json),
            CallReader::Json(reader) => reader.python_instead(c).map(CallReader::Arguments),
        };
        if let Some(reader) = other {
            calls.release();
            *self = reader;
        }
        match self {
            CallReader::Json(reader) => reader.step(c, tools, calls, parts),
            CallReader::Named(reader) => reader.step(c, calls, parts),
            CallReader::Tagged(reader) => reader.step(c, tools, calls, parts),
            CallReader::Arguments(reader) => reader.step(c, tools, calls, parts),
        }
    }
}
