//! Names and parameters between marks.

use serde_json::Value;

use super::super::AnswerPart;
use super::super::calls::{Calls, MAX_NAME, Marks, Step, Tools};
use super::super::formats::Tags;
use super::super::kinds::Kinds;

#[derive(Clone, Debug)]
pub(in crate::answer) struct TaggedReader {
    tags: &'static Tags,
    close: &'static str,
    place: Place,
    marks: Marks,
    /// The function that is called.
    name: String,
    /// Whether the call has been told of.
    is_begun: bool,
    /// Parameters that have begun.
    n_parameters: usize,
}

#[derive(Clone, Debug)]
enum Place {
    /// Before a call, or before the mark that closes all.
    Between,
    /// Within the name.
    Name,
    /// Within the marks after the name.
    AfterName,
    /// Before a parameter, or before the call's end.
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
    /// The text that has not been given yet.
    text: String,
    /// Whether the value has begun to be given, which is done while it comes if it can only be a
    /// string.
    is_given: bool,
}

impl TaggedReader {
    /// `is_named`: the mark before the name has come already.
    pub(super) fn new(tags: &'static Tags, close: &'static str, is_named: bool) -> TaggedReader {
        TaggedReader {
            tags,
            close,
            place: if is_named { Place::Name } else { Place::Between },
            marks: Marks::default(),
            name: String::new(),
            is_begun: false,
            n_parameters: 0,
        }
    }

    pub(super) fn step(
        &mut self,
        c: char,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        match &mut self.place {
            Place::Between => self.between(c, calls),
            Place::Name => self.name(c, calls, parts),
            Place::AfterName => match self.marks.step(c, &[self.tags.name_after]) {
                Ok(None) => Step::More,
                Ok(Some(_)) => self.named(true, calls, parts),
                Err(()) => Step::Stop,
            },
            Place::Parameters => self.parameters(c, calls, parts),
            Place::Key(key) => {
                key.push(c);
                if let Some(key) = key.strip_suffix(self.tags.key_after[0]) {
                    self.place = Place::AfterKey(key.trim().to_owned(), 1);
                    return self.after_key(tools);
                }
                match key.len() > MAX_NAME {
                    true => Step::Stop,
                    false => Step::More,
                }
            }
            Place::AfterKey(_, n) => {
                if self.marks.is_empty() && c.is_whitespace() {
                    return Step::More;
                }
                match self.marks.step(c, &[self.tags.key_after[*n]]) {
                    Ok(None) => Step::More,
                    Ok(Some(_)) => {
                        *n += 1;
                        self.after_key(tools)
                    }
                    Err(()) => Step::Stop,
                }
            }
            Place::Value(_) => {
                calls.commit();
                if let Place::Value(mut parameter) = std::mem::replace(&mut self.place, Place::Parameters) {
                    parameter.text.push(c);
                    if !self.value(&mut parameter, calls, parts) {
                        self.place = Place::Value(parameter);
                    }
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
            // The name comes first, and this is the only call.
            self.name.push(c);
            self.place = Place::Name;
            return if is_name(&self.name) { Step::More } else { Step::Stop };
        }
        match self.marks.step(c, &[self.tags.name_before, self.close]) {
            Ok(None) => Step::More,
            Ok(Some(mark)) if mark == self.tags.name_before => {
                self.place = Place::Name;
                self.name.clear();
                Step::More
            }
            // Nothing stands between the marks, or calls do.
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
        // A name ends with its mark, with white space, or where the next mark begins.
        if self.tags.name_after.starts_with(c) {
            self.place = Place::AfterName;
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

    /// The name is whole. If nothing but the mark of all calls came before it, it is not certain yet
    /// that it is one.
    fn named(&mut self, is_certain: bool, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if self.name.is_empty() {
            return Step::Stop;
        }
        (self.place, self.is_begun, self.n_parameters) = (Place::Parameters, false, 0);
        if is_certain {
            self.begin(calls, parts);
            calls.hold(self.grammar_header());
        }
        Step::More
    }

    /// How the grammar of calls spells what comes before parameters.
    fn grammar_header(&self) -> String {
        format!("{}{}{}", self.tags.name_before, self.name, self.tags.name_after)
    }

    fn begin(&mut self, calls: &mut Calls, parts: &mut Vec<AnswerPart>) {
        if !std::mem::replace(&mut self.is_begun, true) {
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
                self.place = Place::Key(String::new());
                Step::More
            }
            Ok(Some(mark)) => {
                self.begin(calls, parts);
                let close = if self.n_parameters == 0 { "{}" } else { "}" };
                calls.arguments(close, parts);
                calls.end(parts);
                // The mark that closes all calls may come without the one that ends this.
                if mark == self.close {
                    return Step::Done;
                }
                self.place = Place::Between;
                Step::More
            }
            Err(()) => Step::Stop,
        }
    }

    /// After a mark that follows a key: the value, if it was the last one.
    fn after_key(&mut self, tools: &Tools) -> Step {
        if let Place::AfterKey(key, n) = &self.place
            && *n == self.tags.key_after.len()
        {
            let kinds = tools.kinds(&self.name, key);
            self.place =
                Place::Value(Parameter { key: key.clone(), kinds, text: String::new(), is_given: false });
        }
        Step::More
    }

    /// Gives what is certain of a value. Whether it is whole.
    fn value(&mut self, parameter: &mut Parameter, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> bool {
        let whole = parameter.text.strip_suffix(self.tags.value_after);
        let is_whole = whole.is_some();
        if !parameter.kinds.is_string_alone() {
            if let Some(text) = whole {
                let text = text.strip_prefix('\n').unwrap_or(text);
                let text = text.strip_suffix('\n').unwrap_or(text);
                let json = parameter.kinds.json_of_text(text);
                let key = self.key(&parameter.key);
                calls.arguments(&format!("{key}{json}"), parts);
            }
            return is_whole;
        }
        // One line end after the mark before the value belongs to that mark, and one before the mark
        // after it.
        if !parameter.is_given {
            if parameter.text == "\n" || is_beginning(&parameter.text, self.tags.value_after) {
                return false;
            }
            if let Some(text) = parameter.text.strip_prefix('\n') {
                if is_beginning(text, self.tags.value_after) {
                    return false;
                }
                parameter.text = text.to_owned();
            }
            parameter.is_given = true;
            let key = self.key(&parameter.key);
            calls.arguments(&format!("{key}\""), parts);
        }
        let certain = match parameter.text.strip_suffix(self.tags.value_after) {
            Some(text) => text.strip_suffix('\n').unwrap_or(text).len(),
            None => parameter.text.len() - held_back(&parameter.text, self.tags.value_after),
        };
        let text = Value::from(&parameter.text[..certain]).to_string();
        calls.arguments(&text[1..text.len() - 1], parts);
        parameter.text.drain(..certain);
        if is_whole {
            calls.arguments("\"", parts);
        }
        is_whole
    }

    /// How the arguments go on with this key.
    fn key(&mut self, key: &str) -> String {
        self.n_parameters += 1;
        let separator = if self.n_parameters == 1 { "{" } else { ", " };
        format!("{separator}{}: ", Value::from(key))
    }
}

/// Whether a function may be called so.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    text.len() <= MAX_NAME && text.chars().all(is_part)
}

/// Whether a text is the beginning of a mark, but not all of it.
fn is_beginning(text: &str, mark: &str) -> bool {
    text.len() < mark.len() && mark.starts_with(text)
}

/// How many bytes at the end of a value may belong to the mark after it, with the line end before it.
fn held_back(text: &str, mark: &str) -> usize {
    let longest = (mark.len() - 1).min(text.len());
    let begins =
        |n: &usize| text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..]);
    let n = (1..=longest).rev().find(begins).unwrap_or(0);
    n + usize::from(text[..text.len() - n].ends_with('\n'))
}
