//! Reads an answer while it is written.

use super::calls::{self, End, Found, Tools};
use super::formats::{CallFormat, Reasoning, Syntax};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// The model thinks.
    Reasoning(String),
    /// It answers.
    Content(String),
    /// It calls a tool, whose arguments follow.
    CallBegin {
        /// Counted from 0 within the answer.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, JSON text.
    CallArguments {
        /// As in `CallBegin`.
        index: usize,
        /// More text.
        text: String,
    },
    /// A call's arguments are whole.
    CallEnd {
        /// As in `CallBegin`.
        index: usize,
    },
}

/// Splits one answer into its parts. What may be the beginning of a mark is held back until it is certain.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: &'static CallFormat,
    reasoning: Option<&'static Reasoning>,
    /// None: what looks like a call is content.
    tools: Tools,
    state: State,
    /// Text that has not been read for good.
    pending: String,
    /// Bytes of `pending` when calls were looked for last.
    n_looked: usize,
    /// Calls of bodies that have ended.
    n_before: usize,
    /// Bytes of arguments of each call of this body that were given, and whether its end was.
    given: Vec<(usize, bool)>,
    has_content: bool,
    /// White space that comes next says nothing.
    trims: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// After this mark.
    Calls(&'static str),
    /// Harmony: what comes before `<|message|>`.
    Header,
    /// Harmony: a message of a channel.
    Message(Channel),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Content,
    Call,
}

/// What a mark does where content may stand.
#[derive(Clone, Copy)]
enum Mark {
    Think,
    Call,
    Silent,
}

/// A call that has grown by less than one part in so many is not read again.
const LOOK_AGAIN: usize = 64;

const MESSAGE: &str = "<|message|>";
/// What ends a message of harmony.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

impl AnswerParser {
    pub(super) fn new(
        format: &'static CallFormat,
        reasoning: Option<&'static Reasoning>,
        tools: Tools,
        is_thinking: bool,
    ) -> AnswerParser {
        let state = match format.syntax {
            Syntax::Harmony => State::Header,
            _ if is_thinking => State::Reasoning,
            _ => State::Content,
        };
        AnswerParser {
            format,
            reasoning,
            tools,
            trims: state == State::Reasoning,
            state,
            pending: String::new(),
            n_looked: 0,
            n_before: 0,
            given: Vec::new(),
            has_content: false,
        }
    }

    /// Whether the model is thinking.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning | State::Message(Channel::Reasoning))
    }

    /// Calls so far.
    pub fn n_calls(&self) -> usize {
        self.n_before + self.given.len()
    }

    /// Read more text; appends to `parts`.
    pub fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.pending.push_str(text);
        while self.step(parts) {}
    }

    /// The answer has ended: what was held back is what it can only be now.
    pub fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        self.n_looked = 0;
        while self.step(parts) {}
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            // A further call that the end cut: its beginning is no text for people.
            State::Content if self.n_calls() > 0 && self.is_cut_mark(rest.trim()) => {}
            State::Content if self.n_calls() > 0 => self.content(rest.trim_end(), parts),
            State::Content => self.content(&rest, parts),
            State::Header => self.content(&rest, parts),
            State::Reasoning => self.thought(&rest, parts),
            State::Message(Channel::Reasoning) => self.thought(&rest, parts),
            State::Message(Channel::Content) => self.content(&rest, parts),
            State::Message(Channel::Call) => {
                self.arguments(&rest, parts);
                self.end_call(parts);
            }
            State::Calls(open) => {
                // Text that was to be the first call and did not get as far as a name.
                if self.n_calls() == 0 {
                    self.content(&format!("{open}{rest}"), parts);
                }
            }
        }
    }

    /// Whether a text is how a call's mark begins; one character may be anything.
    fn is_cut_mark(&self, text: &str) -> bool {
        text.chars().nth(1).is_some() && self.format.opens().any(|open| open.starts_with(text))
    }

    /// One step; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        match self.state {
            State::Content => self.step_content(parts),
            State::Reasoning => self.step_reasoning(parts),
            State::Calls(open) => self.step_calls(open, parts),
            State::Header => self.step_header(parts),
            State::Message(channel) => self.step_message(channel, parts),
        }
    }

    /// The marks that may come in content.
    fn marks(&self) -> Vec<(&'static str, Mark)> {
        let mut marks = Vec::new();
        if let Some(reasoning) = self.reasoning.filter(|_| !self.has_content && self.n_calls() == 0) {
            marks.push((reasoning.open, Mark::Think));
        }
        let silent = self.format.silent.iter().map(|mark| (*mark, Mark::Silent));
        marks.extend(silent);
        if !self.tools.is_empty() {
            marks.extend(self.format.opens().filter(|open| !open.is_empty()).map(|open| (open, Mark::Call)));
        }
        marks
    }

    fn step_content(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let may_be_bare = !self.tools.is_empty() && !self.has_content && self.n_calls() == 0;
        if may_be_bare && self.format.opens().any(str::is_empty) {
            let begins = match self.pending.trim_start().chars().next() {
                None => return false,
                Some(first) => first == '[' || (first == '{' && self.format.is_json()),
            };
            if begins {
                self.state = State::Calls("");
                return true;
            }
        }
        let marks = self.marks();
        let found = marks.iter().filter_map(|(text, mark)| Some((self.pending.find(text)?, *text, *mark)));
        // The longest of those that begin at one place.
        let first = found.min_by_key(|(at, text, _)| (*at, std::cmp::Reverse(text.len())));
        if let Some((at, text, mark)) = first {
            let before = self.pending[..at].to_owned();
            self.pending.drain(..at + text.len());
            match mark {
                Mark::Think => {
                    // Nothing but white space comes before it, or it is text.
                    if before.trim().is_empty() {
                        (self.state, self.trims) = (State::Reasoning, true);
                    } else {
                        self.content(&format!("{before}{text}"), parts);
                    }
                }
                Mark::Call => {
                    self.content(before.trim_end(), parts);
                    self.state = State::Calls(text);
                }
                Mark::Silent => {
                    self.content(before.trim_end(), parts);
                    self.trims = true;
                }
            }
            return true;
        }
        let held = held_back(&self.pending, marks.iter().map(|(text, _)| *text), !self.tools.is_empty());
        let text: String = self.pending.drain(..self.pending.len() - held).collect();
        self.content(&text, parts);
        false
    }

    fn step_reasoning(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(reasoning) = self.reasoning else {
            self.state = State::Content;
            return true;
        };
        if let Some(at) = self.pending.find(reasoning.close) {
            let text: String = self.pending.drain(..at).collect();
            self.pending.drain(..reasoning.close.len());
            self.thought(text.trim_end(), parts);
            (self.state, self.trims) = (State::Content, true);
            return true;
        }
        let held = held_back(&self.pending, [reasoning.close].into_iter(), true);
        let text: String = self.pending.drain(..self.pending.len() - held).collect();
        self.thought(&text, parts);
        false
    }

    fn step_calls(&mut self, open: &'static str, parts: &mut Vec<AnswerPart>) -> bool {
        // Calls are read from their beginning. So long ones are read again only when they have grown by a part of their length:
        // all readings together then look at no more than about `LOOK_AGAIN` times the text.
        if self.pending.len() - self.n_looked <= self.n_looked / LOOK_AGAIN {
            return false;
        }
        self.n_looked = self.pending.len();
        let reading = calls::read(&self.format.syntax, &self.pending, &self.tools, open.is_empty());
        for (i, call) in reading.calls.iter().enumerate() {
            self.give(i, call, parts);
        }
        match reading.end {
            End::Open => false,
            End::Closed(at) => {
                self.n_looked = 0;
                self.pending.drain(..at);
                self.end_body();
                true
            }
            End::Wrong(at) => {
                self.n_looked = 0;
                if self.given.is_empty() {
                    // It is text after all, and not looked at again.
                    self.content(open, parts);
                    self.has_content = true;
                } else {
                    self.pending.drain(..at);
                }
                self.end_body();
                true
            }
        }
    }

    fn end_body(&mut self) {
        self.n_before += self.given.len();
        self.trims = !self.given.is_empty();
        self.given.clear();
        self.state = State::Content;
    }

    /// What is new of a call of this body.
    fn give(&mut self, i: usize, call: &Found, parts: &mut Vec<AnswerPart>) {
        let index = self.n_before + i;
        if i == self.given.len() {
            parts.push(AnswerPart::CallBegin { index, name: call.name.clone() });
            self.given.push((0, false));
        }
        let Some((n_given, is_ended)) = self.given.get_mut(i) else { return };
        if let Some(text) = call.arguments.get(*n_given..).filter(|text| !text.is_empty()) {
            parts.push(AnswerPart::CallArguments { index, text: text.to_owned() });
            *n_given = call.arguments.len();
        }
        if call.is_whole && !*is_ended {
            parts.push(AnswerPart::CallEnd { index });
            *is_ended = true;
        }
    }

    fn step_header(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(at) = self.pending.find(MESSAGE) else { return false };
        let header: String = self.pending.drain(..at).collect();
        self.pending.drain(..MESSAGE.len());
        let recipient = header.split("to=").nth(1).map(|rest| {
            let name: &str = rest.split([' ', '<', '\n']).next().unwrap_or_default();
            name.strip_prefix("functions.").unwrap_or(name).to_owned()
        });
        let channel = match recipient {
            Some(name) if !self.tools.is_empty() && !name.is_empty() => {
                parts.push(AnswerPart::CallBegin { index: self.n_calls(), name });
                self.given.push((0, false));
                Channel::Call
            }
            _ if header.contains("analysis") => Channel::Reasoning,
            _ => Channel::Content,
        };
        self.state = State::Message(channel);
        true
    }

    fn step_message(&mut self, channel: Channel, parts: &mut Vec<AnswerPart>) -> bool {
        let ends = ENDS.iter().filter_map(|end| Some((self.pending.find(end)?, end.len())));
        if let Some((at, len)) = ends.min() {
            let text: String = self.pending.drain(..at).collect();
            self.pending.drain(..len);
            self.message(channel, &text, parts);
            if channel == Channel::Call {
                self.end_call(parts);
                self.end_body();
            }
            self.state = State::Header;
            return true;
        }
        let held = held_back(&self.pending, ENDS.into_iter(), false);
        let text: String = self.pending.drain(..self.pending.len() - held).collect();
        self.message(channel, &text, parts);
        false
    }

    fn message(&mut self, channel: Channel, text: &str, parts: &mut Vec<AnswerPart>) {
        match channel {
            Channel::Reasoning => self.thought(text, parts),
            Channel::Content => self.content(text, parts),
            Channel::Call => self.arguments(text, parts),
        }
    }

    /// Harmony's arguments are all of a message.
    fn arguments(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        let index = self.n_calls().saturating_sub(1);
        if let Some((n_given, _)) = self.given.last_mut().filter(|_| !text.is_empty()) {
            *n_given += text.len();
            parts.push(AnswerPart::CallArguments { index, text: text.to_owned() });
        }
    }

    fn end_call(&mut self, parts: &mut Vec<AnswerPart>) {
        if self.given.last().is_some_and(|(n_given, _)| *n_given == 0) {
            self.arguments("{}", parts);
        }
        parts.push(AnswerPart::CallEnd { index: self.n_calls().saturating_sub(1) });
    }

    fn content(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        if let Some(text) = self.trimmed(text) {
            self.has_content = true;
            match parts.last_mut() {
                Some(AnswerPart::Content(last)) => last.push_str(&text),
                _ => parts.push(AnswerPart::Content(text)),
            }
        }
    }

    fn thought(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        if let Some(text) = self.trimmed(text) {
            match parts.last_mut() {
                Some(AnswerPart::Reasoning(last)) => last.push_str(&text),
                _ => parts.push(AnswerPart::Reasoning(text)),
            }
        }
    }

    /// Without the white space that says nothing; `None`: nothing is left.
    fn trimmed(&mut self, text: &str) -> Option<String> {
        let text = if self.trims { text.trim_start() } else { text };
        if text.is_empty() {
            return None;
        }
        self.trims = false;
        Some(text.to_owned())
    }
}

/// How many bytes at the end of a text may be the beginning of a mark, or, if `with_white`, white space before one.
fn held_back<'a>(text: &str, marks: impl Iterator<Item = &'a str> + Clone, with_white: bool) -> usize {
    let longest = marks.clone().map(str::len).max().unwrap_or(0).min(text.len() + 1);
    let begins = |n: &usize| {
        let at = text.len() - n;
        text.is_char_boundary(at)
            && marks.clone().any(|mark| mark.len() > *n && mark.starts_with(&text[at..]))
    };
    let held = (1..longest).rev().find(begins).unwrap_or(0);
    let before = &text[..text.len() - held];
    if with_white { held + before.len() - before.trim_end().len() } else { held }
}
