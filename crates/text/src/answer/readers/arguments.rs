//! Reader of `name(key=value, …)` with Python literals, and of `name{key:value,…}` with its own
//! quote marks around strings.

use serde_json::Value;

use super::super::AnswerPart;
use super::super::calls::{Calls, MAX_NAME, Marks, Step, Tools};
use super::super::values::{Dialect, Parsed, ParsedMember, ValueScan};
use super::json::JsonReader;

#[derive(Clone, Debug)]
pub(in crate::answer) struct ArgumentsReader {
    dialect: Dialect,
    close: &'static str,
    /// True if no mark opened the calls, so only the request's tools are called.
    is_bare: bool,
    in_list: bool,
    place: ArgumentsPlace,
    closing: Marks,
    name: String,
    /// Number of arguments emitted.
    n_members: usize,
}

#[derive(Clone, Debug)]
enum ArgumentsPlace {
    /// The text is before a name, or before the closing mark.
    Between,
    Name,
    /// The text is before an argument, or within one.
    Member(ValueScan, String),
}

impl ArgumentsReader {
    pub(super) fn pythonic(close: &'static str, is_bare: bool) -> ArgumentsReader {
        ArgumentsReader::new(Dialect::Python, close, is_bare)
    }

    /// A reader before the first call of a list.
    pub(super) fn within_list(close: &'static str, is_bare: bool) -> ArgumentsReader {
        ArgumentsReader { in_list: true, ..ArgumentsReader::pythonic(close, is_bare) }
    }

    pub(super) fn braces(quote: &'static str, close: &'static str) -> ArgumentsReader {
        ArgumentsReader::new(Dialect::Quoted(quote), close, false)
    }

    fn new(dialect: Dialect, close: &'static str, is_bare: bool) -> ArgumentsReader {
        ArgumentsReader {
            dialect,
            close,
            is_bare,
            in_list: false,
            place: ArgumentsPlace::Between,
            closing: Marks::default(),
            name: String::new(),
            n_members: 0,
        }
    }

    /// A JSON reader, if this first character is that of JSON and not of a name.
    pub(super) fn json_instead(&self, c: char) -> Option<JsonReader> {
        let is_start =
            matches!(self.place, ArgumentsPlace::Between) && self.name.is_empty() && self.closing.is_empty();
        let is_json = c == '{' && self.dialect == Dialect::Python;
        (is_start && is_json).then(|| JsonReader::within(self.close, self.is_bare, self.in_list))
    }

    /// The brackets around a call's arguments, and the separator of key and value.
    fn marks(&self) -> (char, char, u8) {
        match self.dialect {
            Dialect::Python => ('(', ')', b'='),
            Dialect::Quoted(_) => ('{', '}', b':'),
        }
    }

    pub(super) fn step(
        &mut self,
        c: char,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        let (open, close, _) = self.marks();
        match &mut self.place {
            ArgumentsPlace::Between => self.between(c, calls),
            ArgumentsPlace::Name if c == open => {
                if self.is_bare && !tools.has(&self.name) {
                    return Step::Stop;
                }
                calls.begin(&self.name, parts);
                calls.hold(format!("{}{open}", self.name));
                self.place = ArgumentsPlace::Member(ValueScan::new(self.dialect), String::new());
                self.n_members = 0;
                Step::More
            }
            ArgumentsPlace::Name => {
                self.name.push(c);
                match is_part_of_name(c) && self.name.len() <= MAX_NAME {
                    true => Step::More,
                    false => Step::Stop,
                }
            }
            ArgumentsPlace::Member(scan, text) => {
                calls.commit();
                if !scan.ends_before(c) {
                    text.push(c);
                    return Step::More;
                }
                let text = std::mem::take(text);
                *scan = ValueScan::new(self.dialect);
                if !text.trim().is_empty() && !self.member(&text, tools, calls, parts) {
                    return Step::Stop;
                }
                if c == ',' {
                    return Step::More;
                }
                if c != close {
                    return Step::Stop;
                }
                calls.arguments(if self.n_members == 0 { "{}" } else { "}" }, parts);
                calls.end(parts);
                self.place = ArgumentsPlace::Between;
                Step::More
            }
        }
    }

    /// Reads a character before a name, or after a call.
    fn between(&mut self, c: char, calls: &mut Calls) -> Step {
        if self.closing.is_empty() {
            match c {
                c if c.is_whitespace() => return Step::More,
                '[' if !self.in_list && !calls.has_begun() => {
                    self.in_list = true;
                    return Step::More;
                }
                ']' if self.in_list => {
                    self.in_list = false;
                    if self.close.is_empty() {
                        return if calls.has_begun() { Step::Done } else { Step::Stop };
                    }
                    return Step::More;
                }
                ',' | ';' if calls.has_begun() => return Step::More,
                c if (c.is_alphabetic() || c == '_') && !self.close.starts_with(c) => {
                    self.name = c.into();
                    self.place = ArgumentsPlace::Name;
                    return Step::More;
                }
                _ => {}
            }
        }
        if self.close.is_empty() || !calls.has_begun() {
            return Step::Stop;
        }
        match self.closing.step(c, &[self.close]) {
            Ok(None) => Step::More,
            Ok(Some(_)) => Step::Done,
            Err(()) => Step::Stop,
        }
    }

    /// Emits an argument. Returns true if the text is one.
    fn member(&mut self, text: &str, tools: &Tools, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> bool {
        let text = text.trim();
        // A word ends only at another character.
        let spaced = format!("{text} ");
        let (_, _, separator) = self.marks();
        let member = match self.dialect.member(&spaced, 0, separator, 0) {
            ParsedMember::Is(key, value, end) if end == text.len() => Some((key, value)),
            ParsedMember::Is(..) | ParsedMember::Open | ParsedMember::Wrong => {
                self.positional(&spaced, text.len(), tools)
            }
        };
        let Some((key, value)) = member else { return false };
        let before = if self.n_members == 0 { "{" } else { ", " };
        calls.arguments(&format!("{before}{}: {value}", Value::from(key)), parts);
        self.n_members += 1;
        true
    }

    /// Key and value of an argument without a key, by its position.
    fn positional(&self, spaced: &str, len: usize, tools: &Tools) -> Option<(String, Value)> {
        if self.dialect != Dialect::Python {
            return None;
        }
        let key = tools.parameter(&self.name, self.n_members)?;
        match self.dialect.value(spaced, 0) {
            Parsed::Value(value, end) if end == len => Some((key.to_owned(), value)),
            Parsed::Value(..) | Parsed::Open | Parsed::Wrong => None,
        }
    }
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}
