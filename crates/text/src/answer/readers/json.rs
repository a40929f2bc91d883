//! Reader of `{"name": …, "arguments": {…}}`, one or more, alone or in a list.

use serde_json::Value;

use super::super::AnswerPart;
use super::super::calls::{Calls, MAX_NAME, Marks, Step, Tools};
use super::super::json::{JsonScan, Scan};
use super::super::values::{Dialect, Parsed, ValueScan};
use super::arguments::ArgumentsReader;

/// Keys of a call's name and of its arguments. Models mix up those of related models.
const NAMES: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "args"];

/// Keys with which a call without a mark may begin.
const BARE_KEYS: [&str; 7] = ["name", "tool_name", "function", "type", "id", "arguments", "parameters"];

#[derive(Clone, Debug)]
pub(in crate::answer) struct JsonReader {
    /// The name's key in the grammar's spelling.
    name_key: &'static str,
    close: &'static str,
    /// True if no mark opened the calls, so only the request's tools are called.
    is_bare: bool,
    in_list: bool,
    has_fence: bool,
    place: JsonPlace,
    closing: Marks,
    call: Call,
}

/// State of the call that is being read.
#[derive(Clone, Debug, Default)]
struct Call {
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    /// True if the call is an object in the value of `function`.
    is_nested: bool,
}

#[derive(Clone, Debug)]
enum JsonPlace {
    /// The text is before the first object.
    Start,
    /// The text is after one or more objects.
    Between,
    /// The text is before a key, or before the bracket that closes the object.
    Key,
    /// Within a key.
    InKey(JsonScan, String),
    /// After a key.
    Colon(String),
    /// The text is before a value, or within one.
    Value(MemberRole, JsonScan, String),
    /// After a value.
    AfterValue,
    /// The text is after a nested object.
    AfterNested,
    /// The text is within a dictionary in Python's notation.
    Python(ValueScan, String),
}

/// The role of a value in the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberRole {
    Name,
    Arguments,
    Other,
}

impl JsonReader {
    pub(super) fn new(name_key: &'static str, close: &'static str, is_bare: bool) -> JsonReader {
        JsonReader {
            name_key,
            close,
            is_bare,
            in_list: false,
            has_fence: false,
            place: JsonPlace::Start,
            closing: Marks::default(),
            call: Call::default(),
        }
    }

    /// A reader before the first object, perhaps within a list.
    pub(super) fn within(close: &'static str, is_bare: bool, in_list: bool) -> JsonReader {
        JsonReader { in_list, ..JsonReader::new("name", close, is_bare) }
    }

    /// A reader of Python's notation, if the first character of a list is that of a name.
    pub(super) fn python_instead(&self, c: char) -> Option<ArgumentsReader> {
        let is_start = matches!(self.place, JsonPlace::Start) && self.in_list && !self.has_fence;
        let is_name = c.is_alphabetic() || c == '_';
        (is_start && is_name).then(|| ArgumentsReader::within_list(self.close, self.is_bare))
    }

    pub(super) fn step(
        &mut self,
        c: char,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        if !self.closing.is_empty() {
            return self.close(c, calls, parts);
        }
        if calls.is_too_long() {
            return Step::Stop;
        }
        match std::mem::replace(&mut self.place, JsonPlace::Between) {
            JsonPlace::Start => self.start(c, calls),
            JsonPlace::Between => self.between(c, calls, parts),
            JsonPlace::Key => match c {
                c if c.is_whitespace() => self.stay(JsonPlace::Key),
                '"' => {
                    let mut scan = JsonScan::default();
                    scan.step(c);
                    self.stay(JsonPlace::InKey(scan, c.into()))
                }
                '\'' if self.call.name.is_none() && !self.is_bare => {
                    let mut scan = ValueScan::new(Dialect::Python);
                    scan.ends_before(c);
                    self.stay(JsonPlace::Python(scan, format!("{{{c}")))
                }
                '}' => self.end_object(calls, parts),
                c => self.wrong(c, calls, parts),
            },
            JsonPlace::InKey(mut scan, mut text) => {
                text.push(c);
                match scan.step(c) {
                    Scan::More => self.stay(JsonPlace::InKey(scan, text)),
                    Scan::Last => match serde_json::from_str::<String>(&text) {
                        Ok(key) if self.name_key.is_empty() && !self.call.is_nested => {
                            self.called_by_key(key, tools, calls, parts)
                        }
                        Ok(key) if self.is_bare && !BARE_KEYS.contains(&key.as_str()) => Step::Stop,
                        Ok(key) => self.stay(JsonPlace::Colon(key)),
                        Err(_) => Step::Stop,
                    },
                    Scan::Before | Scan::Wrong => Step::Stop,
                }
            }
            JsonPlace::Colon(key) => match c {
                c if c.is_whitespace() => self.stay(JsonPlace::Colon(key)),
                ':' => self.colon(&key, calls),
                c => self.wrong(c, calls, parts),
            },
            JsonPlace::Value(member, scan, text) => self.value(c, (member, scan, text), tools, calls, parts),
            JsonPlace::AfterValue => match c {
                c if c.is_whitespace() => self.stay(JsonPlace::AfterValue),
                ',' => self.stay(JsonPlace::Key),
                '}' => self.end_object(calls, parts),
                c => self.wrong(c, calls, parts),
            },
            JsonPlace::AfterNested => match c {
                c if c.is_whitespace() => self.stay(JsonPlace::AfterNested),
                ',' => self.stay(JsonPlace::Key),
                '}' => self.end_call(calls, parts),
                c => self.wrong(c, calls, parts),
            },
            JsonPlace::Python(mut scan, mut text) => {
                // The scan treats the first bracket as read, so the last one closes nothing open.
                let is_end = scan.ends_before(c);
                text.push(c);
                match is_end && c == '}' {
                    true => self.python(&text, tools, calls, parts),
                    false => self.stay(JsonPlace::Python(scan, text)),
                }
            }
        }
    }

    /// Handles a key that is a function's name, whose value is the arguments.
    fn called_by_key(
        &mut self,
        key: String,
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        match self.name(key, tools, calls, parts) {
            // The colon precedes the arguments, and nothing else follows it.
            Step::More => self.stay(JsonPlace::Colon(ARGUMENTS[0].to_owned())),
            step @ (Step::Done | Step::Stop) => step,
        }
    }

    fn stay(&mut self, place: JsonPlace) -> Step {
        self.place = place;
        Step::More
    }

    /// Reads a character before the first object.
    fn start(&mut self, c: char, calls: &mut Calls) -> Step {
        match c {
            c if c.is_whitespace() => self.stay(JsonPlace::Start),
            '[' if !self.in_list => {
                self.in_list = true;
                self.stay(JsonPlace::Start)
            }
            '{' => {
                // The next key is a name.
                if self.name_key.is_empty() {
                    calls.hold("{".to_owned());
                }
                self.begin_object()
            }
            '`' if !self.is_bare => {
                self.has_fence = true;
                self.stay(JsonPlace::Start)
            }
            // The language after a code fence.
            'j' | 's' | 'o' | 'n' if self.has_fence && !self.in_list => self.stay(JsonPlace::Start),
            _ => Step::Stop,
        }
    }

    fn begin_object(&mut self) -> Step {
        self.call = Call::default();
        self.stay(JsonPlace::Key)
    }

    /// Reads a character after an object.
    fn between(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match c {
            c if c.is_whitespace() => self.stay(JsonPlace::Between),
            ',' | ';' => self.stay(JsonPlace::Between),
            '{' => self.start(c, calls),
            ']' if self.in_list => {
                self.in_list = false;
                calls.commit();
                match self.close.is_empty() && !self.has_fence {
                    true => Step::Done,
                    false => self.stay(JsonPlace::Between),
                }
            }
            // An extra bracket before the closing mark is common, and so is the end of a code
            // fence.
            '}' | ']' | '`' if !self.close.is_empty() => self.stay(JsonPlace::Between),
            '`' if self.has_fence => self.stay(JsonPlace::Between),
            c => self.close(c, calls, parts),
        }
    }

    /// Reads a character of the closing mark, or of none.
    fn close(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if self.close.is_empty() {
            return Step::Stop;
        }
        match self.closing.step(c, &[self.close]) {
            Ok(None) => Step::More,
            Ok(Some(_)) => {
                if self.call.name.is_some() {
                    calls.end(parts);
                }
                Step::Done
            }
            Err(()) => Step::Stop,
        }
    }

    /// Handles a character that cannot continue the call. It may begin the closing mark, since
    /// models forget a bracket before it.
    fn wrong(&mut self, c: char, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match self.call.name.is_some() {
            true => self.close(c, calls, parts),
            false => Step::Stop,
        }
    }

    fn colon(&mut self, key: &str, calls: &mut Calls) -> Step {
        let is_one_of = |keys: &[&str]| keys.contains(&key);
        let member = match () {
            () if is_one_of(&NAMES) && self.call.name.is_none() => MemberRole::Name,
            () if is_one_of(&ARGUMENTS) && !self.call.has_arguments => MemberRole::Arguments,
            () => MemberRole::Other,
        };
        // `function` may be an object instead of a name.
        if member == MemberRole::Name && key != "function" && !self.is_bare && !self.call.has_arguments {
            calls.hold(format!("{{\"{}\":", self.name_key));
        }
        self.stay(JsonPlace::Value(member, JsonScan::default(), String::new()))
    }

    fn value(
        &mut self,
        c: char,
        (member, mut scan, mut text): (MemberRole, JsonScan, String),
        tools: &Tools,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) -> Step {
        if text.is_empty() {
            if c.is_whitespace() {
                return self.stay(JsonPlace::Value(member, scan, text));
            }
            if member == MemberRole::Name && c == '{' && !self.call.is_nested {
                self.call.is_nested = true;
                return self.stay(JsonPlace::Key);
            }
            if member == MemberRole::Name && c != '"' {
                return Step::Stop;
            }
        }
        let step = scan.step(c);
        match step {
            Scan::More | Scan::Last => {}
            // A number or a word is neither a name nor arguments.
            Scan::Before => {
                self.place = JsonPlace::AfterValue;
                self.arguments_so_far(member, &text, None, calls, parts);
                return self.step(c, tools, calls, parts);
            }
            Scan::Wrong => return Step::Stop,
        }
        // Arguments that are an object are emitted as they arrive.
        let is_streamed = member == MemberRole::Arguments
            && self.call.name.is_some()
            && if text.is_empty() { c == '{' } else { text.starts_with('{') };
        if is_streamed {
            calls.arguments(c.encode_utf8(&mut [0; 4]), parts);
        }
        if !is_streamed || text.is_empty() {
            text.push(c);
        }
        if self.call.name.is_some() {
            calls.commit();
        }
        if member == MemberRole::Name && text.len() > MAX_NAME {
            return Step::Stop;
        }
        if step == Scan::More {
            return self.stay(JsonPlace::Value(member, scan, text));
        }
        self.place = JsonPlace::AfterValue;
        match member {
            MemberRole::Name => match serde_json::from_str::<String>(&text) {
                Ok(name) => self.name(name, tools, calls, parts),
                Err(_) => Step::Stop,
            },
            MemberRole::Arguments => {
                self.arguments_so_far(member, &text, Some(is_streamed), calls, parts);
                Step::More
            }
            MemberRole::Other => Step::More,
        }
    }

    /// Emits arguments whose value has ended, unless they were emitted as they arrived. Without a
    /// name they are kept until the name comes.
    fn arguments_so_far(
        &mut self,
        member: MemberRole,
        text: &str,
        is_streamed: Option<bool>,
        calls: &mut Calls,
        parts: &mut Vec<AnswerPart>,
    ) {
        if member != MemberRole::Arguments {
            return;
        }
        self.call.has_arguments = true;
        let given = match text.as_bytes().first() {
            // JSON in a string.
            Some(b'"') => serde_json::from_str::<String>(text).unwrap_or_default(),
            Some(b'{') if is_streamed == Some(true) => return,
            Some(b'{') => text.to_owned(),
            _ => return,
        };
        match self.call.name.is_some() {
            true => calls.arguments(given.trim(), parts),
            false => given.trim().clone_into(&mut self.call.early),
        }
    }

    fn name(&mut self, name: String, tools: &Tools, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if name.is_empty() || (self.is_bare && !tools.has(&name)) {
            return Step::Stop;
        }
        calls.begin(&name, parts);
        let early = std::mem::take(&mut self.call.early);
        calls.arguments(&early, parts);
        if self.is_bare && !self.call.has_arguments {
            calls.hold(format!("{{\"{}\": {}", self.name_key, Value::from(name.as_str())));
        }
        self.call.name = Some(name);
        Step::More
    }

    /// Handles the bracket that closes an object.
    fn end_object(&mut self, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        match std::mem::take(&mut self.call.is_nested) {
            true => self.stay(JsonPlace::AfterNested),
            false => self.end_call(calls, parts),
        }
    }

    fn end_call(&mut self, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        if self.call.name.take().is_none() {
            return Step::Stop;
        }
        calls.end(parts);
        self.stay(JsonPlace::Between)
    }

    /// Reads a dictionary in Python's notation.
    fn python(&mut self, text: &str, tools: &Tools, calls: &mut Calls, parts: &mut Vec<AnswerPart>) -> Step {
        let Parsed::Value(Value::Object(mut members), _) = Dialect::Python.value(text, 0) else {
            return Step::Stop;
        };
        if let Some(Value::Object(inner)) = members.get("function") {
            members = inner.clone();
        }
        let name = NAMES.iter().find_map(|key| members.get(*key)?.as_str());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Step::Stop };
        if self.is_bare && !tools.has(name) {
            return Step::Stop;
        }
        calls.begin(name, parts);
        if let Some(arguments @ Value::Object(_)) = ARGUMENTS.iter().find_map(|key| members.get(*key)) {
            calls.arguments(&arguments.to_string(), parts);
        }
        calls.end(parts);
        self.stay(JsonPlace::Between)
    }
}
