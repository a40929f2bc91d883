//! Reader of `name SEPARATOR {…}` between marks.

use super::super::AnswerPart;
use super::super::calls::{Calls, MAX_NAME, Marks, Step};
use super::super::json::{JsonScan, Scan};
use super::json::JsonReader;

/// Mark that Mistral writes between the name and an id of the call.
const CALL_ID: &str = "[CALL_ID]";

#[derive(Clone, Debug)]
pub(in crate::answer) struct NamedReader {
    prefix: &'static str,
    separator: &'static str,
    after: &'static str,
    close: &'static str,
    place: NamedPlace,
}

#[derive(Clone, Debug)]
enum NamedPlace {
    /// The text before the arguments.
    Header(String),
    /// The text is after the separator; the name is known.
    Before(String),
    Arguments(JsonScan),
    /// The text is before the optional closing mark.
    Close(Marks),
}

impl NamedReader {
    pub(super) fn new(
        prefix: &'static str,
        separator: &'static str,
        after: &'static str,
        close: &'static str,
    ) -> NamedReader {
        NamedReader { prefix, separator, after, close, place: NamedPlace::Header(String::new()) }
    }

    /// A JSON reader, if this first character is that of JSON and not of a name.
    pub(super) fn json_instead(&self, c: char) -> Option<JsonReader> {
        match &self.place {
            NamedPlace::Header(header) if header.trim().is_empty() && matches!(c, '[' | '{') => {
                Some(JsonReader::within(self.close, false, false))
            }
            NamedPlace::Header(_)
            | NamedPlace::Before(_)
            | NamedPlace::Arguments(_)
            | NamedPlace::Close(_) => None,
        }
    }

    pub(super) fn step(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match &mut self.place {
            NamedPlace::Header(header) => {
                header.push(c);
                let header = header.clone();
                self.header(&header, calls, parts)
            }
            NamedPlace::Before(name) => {
                let name = name.clone();
                self.before(c, &name, calls, parts)
            }
            NamedPlace::Arguments(scan) => {
                let step = scan.step(c);
                match step {
                    Scan::More | Scan::Last => {
                        calls.arguments(c.encode_utf8(&mut [0; 4]), parts);
                        calls.commit();
                    }
                    // The rest is content. Emitted arguments stay.
                    Scan::Before | Scan::Wrong => return Step::Stop,
                }
                if step == Scan::More {
                    return Step::More;
                }
                calls.end(parts);
                if self.close.is_empty() {
                    return Step::Done;
                }
                self.place = NamedPlace::Close(Marks::default());
                Step::More
            }
            NamedPlace::Close(marks) => {
                let is_between = c.is_whitespace() || self.after.contains(c);
                if marks.is_empty() && is_between {
                    return Step::More;
                }
                match marks.step(c, &[self.close]) {
                    Ok(None) => Step::More,
                    Ok(Some(_)) => Step::Done,
                    Err(()) => Step::Stop,
                }
            }
        }
    }

    fn header(&mut self, header: &str, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        // Text, or a call that the grammar cannot express, unless a separator follows.
        if !header.starts_with(is_part_of_name) {
            calls.release();
        }
        if header.len() > MAX_NAME + self.prefix.len() + self.separator.len() + CALL_ID.len() {
            return Step::Stop;
        }
        let separator = self.separator.trim();
        let before_arguments = header.strip_suffix('{');
        let end = header.strip_suffix(separator).filter(|_| !separator.is_empty()).or(before_arguments);
        let Some(header) = end else {
            return if self.may_be_header(header) { Step::More } else { Step::Stop };
        };
        let Some(name) = self.name(header) else { return Step::Stop };
        match self.is_certain() {
            true => calls.hold(format!("{}{name}{}", self.prefix, self.separator)),
            false => calls.release(),
        }
        self.place = NamedPlace::Before(name.clone());
        match before_arguments {
            Some(_) => self.before('{', &name, calls, parts),
            None => Step::More,
        }
    }

    /// Returns true if the separator is more than the arguments' bracket, and so proves a call.
    fn is_certain(&self) -> bool {
        self.separator.len() > 1
    }

    /// Returns true if a header may begin so: no text follows its name.
    fn may_be_header(&self, header: &str) -> bool {
        let header = header.trim_start();
        let header = header.strip_prefix(self.prefix).unwrap_or(header);
        let Some(at) = header.find(char::is_whitespace) else { return true };
        let after = header[at..].trim_start();
        let marks = [self.separator.trim(), CALL_ID, "```"];
        marks.iter().any(|mark| mark.starts_with(after) || (!mark.is_empty() && after.starts_with(mark)))
    }

    /// The name in a header.
    fn name(&self, header: &str) -> Option<String> {
        let header = header.trim();
        let header = header.strip_prefix(self.prefix.trim()).unwrap_or(header);
        let header = header.split(CALL_ID).next().unwrap_or(header);
        let header = header.trim_end_matches("```json").trim_end_matches("```").trim();
        let name = header.strip_prefix("functions.").unwrap_or(header);
        // Kimi's `:0` numbers the calls, which the parser numbers itself.
        let name = match name.rsplit_once(':') {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => name,
        };
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_part_of_name);
        is_name.then(|| name.to_owned())
    }

    /// Reads a character after the separator.
    fn before(&mut self, c: char, name: &str, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match c {
            c if c.is_whitespace() => Step::More,
            '{' => {
                if !self.is_certain() {
                    calls.hold(format!("{}{name}{}{{", self.prefix, self.separator));
                }
                calls.begin(name, parts);
                let mut scan = JsonScan::default();
                scan.step(c);
                calls.arguments("{", parts);
                self.place = NamedPlace::Arguments(scan);
                Step::More
            }
            _ => Step::Stop,
        }
    }
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}
