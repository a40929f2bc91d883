//! Reader of names and parameters between marks.

use serde_json::Value;

use super::super::AnswerPart;
use super::super::calls::{Calls, MAX_NAME, Marks, Step, Tools};
use super::super::formats::Tags;
use super::super::kinds::Kinds;
use super::json::JsonReader;

#[derive(Clone, Debug)]
pub(in crate::answer) struct TaggedReader {
    tags: &'static Tags,
    close: &'static str,
    place: TaggedPlace,
    marks: Marks,
    /// Name of the function.
    name: String,
    /// True if the call has been emitted.
    is_begun: bool,
    /// True if the mark before the name is the only one so far; a further mark must confirm the
    /// call.
    is_bare: bool,
    /// Number of parameters that have begun.
    n_parameters: usize,
}

#[derive(Clone, Debug)]
enum TaggedPlace {
    /// The text is before a call, or before the closing mark.
    Between,
    /// The text is within the name.
    Name,
    /// The text is within the marks after the name.
    AfterName,
    /// The text is before a parameter, or before the call's end.
    Parameters,
    /// Within a key.
    Key(String),
    /// Between a key and its value, before the mark of this index.
    AfterKey(String, usize),
    /// Within a value.
    Value(Parameter),
}

/// A parameter whose value is being read.
#[derive(Clone, Debug)]
struct Parameter {
    key: String,
    kinds: Kinds,
    /// Text that has not been emitted.
    text: String,
    /// True if a part of the value has been emitted. Values that can only be strings are emitted as
    /// they arrive.
    is_given: bool,
}

/// The end of a value.
enum Ended {
    /// The value continues.
    Not,
    /// Ended by the mark after values.
    Marked,
    /// Ended by the next parameter, with this key.
    ByKey(String),
    /// Ended by the closing mark of all calls.
    ByClose,
}

impl TaggedReader {
    /// Makes a reader. `is_named` is true after the mark before the name.
    pub(super) fn new(tags: &'static Tags, close: &'static str, is_named: bool) -> TaggedReader {
        TaggedReader {
            tags,
            close,
            place: if is_named { TaggedPlace::Name } else { TaggedPlace::Between },
            marks: Marks::default(),
            name: String::new(),
            is_begun: false,
            is_bare: is_named,
            n_parameters: 0,
        }
    }

    /// A JSON reader, if this first character is that of JSON and not of a name.
    pub(super) fn json_instead(&self, c: char) -> Option<JsonReader> {
        let is_start =
            matches!(self.place, TaggedPlace::Between) && self.marks.is_empty() && self.name.is_empty();
        (is_start && c == '{' && !self.close.is_empty()).then(|| JsonReader::within(self.close, false, false))
    }

    pub(super) fn step(
        &mut self,
        c: char,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        match &mut self.place {
            TaggedPlace::Between => self.between(c, calls),
            TaggedPlace::Name => self.name(c, calls, parts),
            TaggedPlace::AfterName => match self.marks.step(c, &[self.tags.name_after]) {
                Ok(None) => Step::More,
                Ok(Some(_)) => self.named(true, calls, parts),
                Err(()) => Step::Stop,
            },
            TaggedPlace::Parameters => self.parameters(c, calls, parts),
            TaggedPlace::Key(key) => {
                key.push(c);
                if let Some(key) = self.tags.key_after[0].iter().find_map(|mark| key.strip_suffix(mark)) {
                    self.place = TaggedPlace::AfterKey(key.trim().to_owned(), 1);
                    return self.after_key(tools);
                }
                match key.len() > MAX_NAME {
                    true => Step::Stop,
                    false => Step::More,
                }
            }
            TaggedPlace::AfterKey(_, n) => {
                if self.marks.is_empty() && c.is_whitespace() {
                    return Step::More;
                }
                match self.marks.step(c, self.tags.key_after[*n]) {
                    Ok(None) => Step::More,
                    Ok(Some(_)) => {
                        *n += 1;
                        self.after_key(tools)
                    }
                    Err(()) => Step::Stop,
                }
            }
            TaggedPlace::Value(_) => {
                calls.commit();
                if let TaggedPlace::Value(mut parameter) =
                    std::mem::replace(&mut self.place, TaggedPlace::Parameters)
                {
                    parameter.text.push(c);
                    return match self.value(&mut parameter, tools, calls, parts) {
                        Ended::Not => {
                            self.place = TaggedPlace::Value(parameter);
                            Step::More
                        }
                        Ended::Marked => Step::More,
                        Ended::ByKey(key) => {
                            // The grammar requires the mark after a value.
                            calls.release();
                            self.place = TaggedPlace::AfterKey(key, 1);
                            self.after_key(tools)
                        }
                        Ended::ByClose => {
                            self.end_call(calls, parts);
                            Step::Done
                        }
                    };
                }
                Step::More
            }
        }
    }

    fn between(&mut self, c: char, calls: &mut Calls) -> Step {
        if self.marks.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        if self.tags.name_before.is_empty() {
            // The name comes first, so this is the only call.
            self.name.push(c);
            self.place = TaggedPlace::Name;
            return if is_name(&self.name) { Step::More } else { Step::Stop };
        }
        match self.marks.step(c, &[self.tags.name_before, self.close, self.tags.skipped]) {
            Ok(None) => Step::More,
            Ok(Some(mark)) if mark == self.tags.skipped => Step::More,
            Ok(Some(mark)) if mark == self.tags.name_before => {
                self.place = TaggedPlace::Name;
                self.name.clear();
                Step::More
            }
            // The mark is empty, or calls follow.
            Ok(Some(_)) => {
                if calls.has_begun() {
                    Step::Done
                } else {
                    Step::Stop
                }
            }
            Err(()) => Step::Stop,
        }
    }

    fn name(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        // A name ends at its mark, at white space, or where the next mark begins.
        if self.tags.name_after.starts_with(c) {
            self.place = TaggedPlace::AfterName;
            return self.after_name(c, calls, parts);
        }
        if self.tags.name_before.is_empty() && (c == '<' || c.is_whitespace()) {
            let step = self.named(false, calls, parts);
            return if step == Step::More { self.parameters(c, calls, parts) } else { step };
        }
        self.name.push(c);
        if is_name(&self.name) { Step::More } else { Step::Stop }
    }

    fn after_name(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match self.marks.step(c, &[self.tags.name_after]) {
            Ok(None) => Step::More,
            Ok(Some(_)) => self.named(!self.tags.name_before.is_empty(), calls, parts),
            Err(()) => Step::Stop,
        }
    }

    /// Handles the end of the name. If only the mark of all calls came before it, a further mark
    /// must confirm the call.
    fn named(&mut self, is_certain: bool, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if self.name.is_empty() {
            return Step::Stop;
        }
        (self.place, self.is_begun, self.n_parameters) = (TaggedPlace::Parameters, false, 0);
        if is_certain && !self.is_bare {
            self.begin(calls, parts);
            calls.hold(self.grammar_header());
        }
        Step::More
    }

    /// The text before parameters in the spelling of the calls' grammar.
    fn grammar_header(&self) -> String {
        format!("{}{}{}", self.tags.name_before, self.name, self.tags.name_after)
    }

    fn begin(&mut self, calls: &mut Calls, parts: &mut Vec<AnswerPart>) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.is_bare = false;
            calls.begin(&self.name, parts);
        }
    }

    fn parameters(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if self.marks.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        let end = if self.tags.end.is_empty() { self.close } else { self.tags.end };
        match self.marks.step(c, &[self.tags.key_before, end, self.close]) {
            Ok(None) => Step::More,
            Ok(Some(mark)) if mark == self.tags.key_before => {
                if !self.is_begun {
                    self.begin(calls, parts);
                    calls.hold(format!("{}{}", self.grammar_header(), self.tags.key_before));
                }
                self.place = TaggedPlace::Key(String::new());
                Step::More
            }
            Ok(Some(mark)) => {
                self.end_call(calls, parts);
                // The mark of this call's end may be missing before that of all calls.
                if mark == self.close {
                    return Step::Done;
                }
                self.place = TaggedPlace::Between;
                Step::More
            }
            Err(()) => Step::Stop,
        }
    }

    fn end_call(&mut self, calls: &mut Calls, parts: &mut Vec<AnswerPart>) {
        self.begin(calls, parts);
        let close = if self.n_parameters == 0 { "{}" } else { "}" };
        calls.arguments(close, parts);
        calls.end(parts);
    }

    /// Handles a mark after a key; the last one is followed by the value.
    fn after_key(&mut self, tools: &Tools) -> Step {
        if let TaggedPlace::AfterKey(key, n) = &self.place
            && *n == self.tags.key_after.len()
        {
            let kinds = tools.kinds(&self.name, key);
            self.place = TaggedPlace::Value(Parameter {
                key: key.clone(),
                kinds,
                text: String::new(),
                is_given: false,
            });
        }
        Step::More
    }

    /// Emits the part of a value that is certain. Returns how the value ends, if it does.
    fn value(
        &mut self,
        parameter: &mut Parameter,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Ended {
        let (ended, n_value) = match parameter.text.strip_suffix(self.tags.value_after) {
            Some(text) => (Ended::Marked, text.len()),
            None => self.unmarked_end(&parameter.text, tools),
        };
        let is_whole = !matches!(ended, Ended::Not);
        if !parameter.kinds.is_string_alone() {
            if is_whole {
                let text = &parameter.text[..n_value];
                let text = text.strip_prefix('\n').unwrap_or(text);
                let text = text.strip_suffix('\n').unwrap_or(text);
                let json = parameter.kinds.json_of_text(text);
                let key = self.key(&parameter.key);
                calls.arguments(&format!("{key}{json}"), parts);
            }
            return ended;
        }
        // One line break after the mark before the value belongs to that mark, and one before the
        // mark after the value to that one.
        let mut n_value = n_value;
        if !parameter.is_given {
            if parameter.text == "\n" || is_beginning(&parameter.text, self.tags.value_after) {
                return ended;
            }
            if let Some(text) = parameter.text.strip_prefix('\n') {
                if is_beginning(text, self.tags.value_after) || (n_value == 0 && !is_whole) {
                    return ended;
                }
                parameter.text = text.to_owned();
                n_value = n_value.saturating_sub(1);
            }
            parameter.is_given = true;
            let key = self.key(&parameter.key);
            calls.arguments(&format!("{key}\""), parts);
        }
        let certain = match is_whole {
            true => {
                let text = &parameter.text[..n_value];
                text.strip_suffix('\n').unwrap_or(text).len()
            }
            false => n_value.min(parameter.text.len() - held_back(&parameter.text, self.tags.value_after)),
        };
        let text = Value::from(&parameter.text[..certain]).to_string();
        calls.arguments(&text[1..text.len() - 1], parts);
        parameter.text.drain(..certain);
        if is_whole {
            calls.arguments("\"", parts);
        }
        ended
    }

    /// Finds the end of a value without a closing mark: a line that begins another parameter, or
    /// the end of the call or of all calls. Returns it with the number of bytes of the value that
    /// are certain.
    fn unmarked_end(&self, text: &str, tools: &Tools) -> (Ended, usize) {
        let [after_key] = self.tags.key_after else { return (Ended::Not, text.len()) };
        if self.tags.end.is_empty() || self.close.is_empty() {
            return (Ended::Not, text.len());
        }
        for (at, _) in text.match_indices('\n') {
            let line = &text[at + 1..];
            if is_beginning(line, self.tags.key_before) || is_beginning(line, self.tags.end) {
                return (Ended::Not, at);
            }
            if let Some(key) = line.strip_prefix(self.tags.key_before) {
                match after_key.iter().find_map(|mark| key.strip_suffix(mark)) {
                    Some(key) if tools.has_parameter(&self.name, key) => {
                        return (Ended::ByKey(key.to_owned()), at);
                    }
                    None if key.len() <= MAX_NAME && !key.contains('\n') => return (Ended::Not, at),
                    Some(_) | None => {}
                }
            }
            if let Some(rest) = line.strip_prefix(self.tags.end) {
                let rest = rest.trim_start();
                if rest == self.close {
                    return (Ended::ByClose, at);
                }
                if self.close.starts_with(rest) {
                    return (Ended::Not, at);
                }
            }
        }
        (Ended::Not, text.len())
    }

    /// JSON text that continues the arguments with this key.
    fn key(&mut self, key: &str) -> String {
        self.n_parameters += 1;
        let separator = if self.n_parameters == 1 { "{" } else { ", " };
        format!("{separator}{}: ", Value::from(key))
    }
}

/// Returns true if a function may have this name.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    text.len() <= MAX_NAME && text.chars().all(is_part)
}

/// Returns true if a text begins a mark without completing it.
fn is_beginning(text: &str, mark: &str) -> bool {
    text.len() < mark.len() && mark.starts_with(text)
}

/// Number of bytes at the end of a value that may belong to the mark after it, with the line break
/// before it.
fn held_back(text: &str, mark: &str) -> usize {
    let longest = (mark.len() - 1).min(text.len());
    let begins =
        |n: &usize| text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..]);
    let n = (1..=longest).rev().find(begins).unwrap_or(0);
    n + usize::from(text[..text.len() - n].ends_with('\n'))
}
