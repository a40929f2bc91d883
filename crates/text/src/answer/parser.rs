//! Reads an answer while it is written.

use super::calls::{Calls, Step, Tools};
use super::formats::{CallFormat, Reasoning, Syntax};
use super::harmony::{self, Channel};
use super::json::{JsonScan, Scan};
use super::readers::CallReader;

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

/// Splits one answer into its parts. What may be the beginning of a mark is held back until it is
/// certain. What is read of an answer does not depend on the pieces in which it comes.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: &'static CallFormat,
    reasoning: Option<&'static Reasoning>,
    /// None: what looks like a call is content.
    tools: Tools,
    state: State,
    /// Text that has not been read for good.
    pending: String,
    calls: Calls,
    has_content: bool,
    /// White space that comes next says nothing.
    trims: bool,
}

#[derive(Clone, Debug)]
enum State {
    Reasoning,
    Content,
    /// After a mark that opens calls, or within a call that needs none; the bytes of the text before
    /// the reader's.
    Calls(Box<CallReader>, usize),
    /// Harmony: what comes before `<|message|>`.
    Header,
    /// Harmony: a message of a channel; where a call's arguments are.
    Message(Channel, JsonScan),
}

/// What a mark does where content may stand.
#[derive(Clone, Copy)]
enum Mark {
    Think,
    /// It opens a call of this format.
    Call(&'static CallFormat),
    Silent,
}

impl AnswerParser {
    pub(super) fn new(
        format: &'static CallFormat,
        reasoning: Option<&'static Reasoning>,
        tools: Tools,
        is_thinking: bool,
        prompt: &str,
    ) -> AnswerParser {
        let state = match format.syntax {
            Syntax::Harmony => match harmony::channel_of_prompt(prompt) {
                Some(channel) => State::Message(channel, JsonScan::default()),
                None => State::Header,
            },
            _ if is_thinking => State::Reasoning,
            _ => State::Content,
        };
        AnswerParser {
            format,
            reasoning,
            tools,
            trims: matches!(state, State::Reasoning),
            state,
            pending: String::new(),
            calls: Calls::default(),
            has_content: false,
        }
    }

    /// Whether the model is thinking.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning | State::Message(Channel::Reasoning, _))
    }

    /// Whether the answer is within reasoning, within what may be a call, or before a message.
    pub(super) fn is_aside(&self) -> bool {
        match self.state {
            State::Content | State::Message(Channel::Content, _) => false,
            State::Reasoning | State::Calls(..) | State::Header | State::Message(..) => true,
        }
    }

    /// Whether text is held back because it may begin a mark.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Calls so far.
    pub fn n_calls(&self) -> usize {
        self.calls.n()
    }

    /// Calls so far that are whole.
    pub(super) fn n_whole_calls(&self) -> usize {
        self.calls.n_whole()
    }

    /// Whether the answer is within a call that a grammar may hold to its schema.
    pub(super) fn is_held(&self) -> bool {
        self.calls.is_held()
    }

    /// The call whose inside has begun since this was asked last, as far as it has come, spelled as
    /// the grammar of calls spells it.
    pub(super) fn take_held(&mut self) -> Option<String> {
        self.calls.take_held()
    }

    /// Read more text; appends to `parts`.
    pub fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.pending.push_str(text);
        while self.step(parts) {}
    }

    /// The answer has ended: what was held back is what it can only be now.
    pub fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        while self.step(parts) {}
        let rest = std::mem::take(&mut self.pending);
        match &self.state {
            // A further call that the end cut: its beginning is no text for people.
            State::Content if self.n_calls() > 0 && self.is_cut_mark(rest.trim()) => {}
            State::Content if self.n_calls() > 0 => self.content(rest.trim_end(), parts),
            State::Content => self.content(&rest, parts),
            State::Header if harmony::is_header(&rest) => {}
            State::Header => self.content(&rest, parts),
            State::Reasoning => self.thought(&rest, parts),
            State::Message(channel, _) => {
                let channel = *channel;
                self.message(channel, &rest, parts);
                if channel == Channel::Call {
                    self.calls.end(parts);
                }
            }
            State::Calls(..) => {
                // Text that was to be the first call and did not get as far as a name.
                let raw = self.calls.take_raw();
                if self.n_calls() == 0 {
                    self.content(&raw, parts);
                }
            }
        }
        self.calls.release();
    }

    /// Whether a text is how a call's mark begins; one character may be anything.
    fn is_cut_mark(&self, text: &str) -> bool {
        text.chars().nth(1).is_some() && self.format.opens().any(|(open, _)| open.starts_with(text))
    }

    /// One step; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        match self.state {
            State::Content => self.step_content(parts),
            State::Reasoning => self.step_reasoning(parts),
            State::Calls(..) => self.step_calls(parts),
            State::Header => self.step_header(parts),
            State::Message(channel, _) => self.step_message(channel, parts),
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
            let opens = self.format.opens().filter(|(open, _)| !open.is_empty());
            marks.extend(opens.map(|(open, format)| (open, Mark::Call(format))));
        }
        marks
    }

    fn step_content(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let may_be_bare = !self.tools.is_empty() && !self.has_content && self.n_calls() == 0;
        if may_be_bare && self.format.opens().any(|(open, _)| open.is_empty()) {
            let text = self.pending.trim_start();
            let begins = match text.chars().next() {
                None => return false,
                Some(first) => matches!(first, '[' | '{'),
            };
            let mut marks = self.marks().into_iter();
            // Some marks begin with the same bracket.
            if begins && marks.any(|(mark, _)| mark.len() > text.len() && mark.starts_with(text)) {
                return false;
            }
            if begins && !self.marks().iter().any(|(mark, _)| text.starts_with(mark)) {
                self.open_calls(self.format, "", String::new());
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
                Mark::Call(format) => {
                    // The white space before it is text if it opens no call.
                    let (before, white) = before.split_at(before.trim_end().len());
                    self.content(before, parts);
                    self.open_calls(format, text, format!("{white}{text}"));
                }
                Mark::Silent => {
                    self.content(before.trim_end(), parts);
                    self.trims = true;
                }
            }
            return true;
        }
        // White space before marks is no text.
        let with_white = !self.tools.is_empty() || !self.format.silent.is_empty();
        let held = held_back(&self.pending, marks.iter().map(|(text, _)| *text), with_white);
        let text: String = self.pending.drain(..self.pending.len() - held).collect();
        self.content(&text, parts);
        false
    }

    fn step_reasoning(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(reasoning) = self.reasoning else {
            self.state = State::Content;
            return true;
        };
        if self.trims {
            // Some models open what the prompt has opened already.
            let white = self.pending.len() - self.pending.trim_start().len();
            let begun = &self.pending[white..];
            if begun.starts_with(reasoning.open) {
                self.pending.drain(..white + reasoning.open.len());
                return true;
            }
            if reasoning.open.starts_with(begun) {
                return false;
            }
        }
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

    /// Calls may follow; `before` is the text that opens them.
    fn open_calls(&mut self, format: &'static CallFormat, open: &str, before: String) {
        let n_before = before.len();
        self.calls.open(before, !std::ptr::eq(format, self.format));
        if let Some(reader) = CallReader::new(format, open, &mut self.calls) {
            self.state = State::Calls(Box::new(reader), n_before);
        }
    }

    fn step_calls(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let State::Calls(reader, n_before) = &mut self.state else { return false };
        let pending = std::mem::take(&mut self.pending);
        for (at, c) in pending.char_indices() {
            self.calls.read(c);
            let step = reader.step(c, &self.tools, &mut self.calls, parts);
            let rest = &pending[at + c.len_utf8()..];
            match step {
                Step::More => continue,
                Step::Done => {
                    self.calls.commit();
                    self.trims = true;
                    rest.clone_into(&mut self.pending);
                }
                Step::Stop => {
                    self.calls.release();
                    let mut raw = self.calls.take_raw();
                    if self.calls.has_begun() {
                        self.trims = true;
                    } else {
                        // The mark is text after all. What follows it may be anything.
                        let open: String = raw.drain(..*n_before).collect();
                        self.content(&open, parts);
                        self.has_content = true;
                    }
                    self.pending = raw + rest;
                }
            }
            self.state = State::Content;
            return true;
        }
        false
    }

    fn step_header(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let end = self.pending.find(harmony::MESSAGE);
        // A mark that is still coming may end the header.
        let n_mark = held_back(&self.pending, [harmony::MESSAGE].into_iter(), false);
        let header = &self.pending[..end.unwrap_or(self.pending.len() - n_mark)];
        if !harmony::may_be_header(header) {
            self.calls.release();
            self.state = State::Message(Channel::Content, JsonScan::default());
            return true;
        }
        let Some(at) = end else {
            // The name of a function follows.
            if header.ends_with(harmony::RECIPIENT) && !self.tools.is_empty() {
                let role = header.trim_start();
                self.calls.hold(role.strip_prefix("assistant").unwrap_or(header).to_owned());
            }
            return false;
        };
        let header: String = self.pending.drain(..at).collect();
        self.pending.drain(..harmony::MESSAGE.len());
        let channel = match harmony::recipient(&header) {
            Some(name) if !self.tools.is_empty() => {
                self.calls.open(String::new(), false);
                self.calls.begin(name, parts);
                self.calls.hold(harmony::call_header(name));
                Channel::Call
            }
            Some(_) | None => {
                self.calls.release();
                harmony::channel(&header)
            }
        };
        self.state = State::Message(channel, JsonScan::default());
        true
    }

    fn step_message(&mut self, channel: Channel, parts: &mut Vec<AnswerPart>) -> bool {
        let ends = harmony::ENDS.iter().filter_map(|end| Some((self.pending.find(end)?, end.len())));
        if let Some((at, len)) = ends.min() {
            let text: String = self.pending.drain(..at).collect();
            self.pending.drain(..len);
            self.message(channel, &text, parts);
            if channel == Channel::Call {
                self.calls.end(parts);
            }
            self.state = State::Header;
            return true;
        }
        let held = held_back(&self.pending, harmony::ENDS.into_iter(), false);
        let text: String = self.pending.drain(..self.pending.len() - held).collect();
        self.message(channel, &text, parts);
        false
    }

    fn message(&mut self, channel: Channel, text: &str, parts: &mut Vec<AnswerPart>) {
        match channel {
            Channel::Reasoning => self.thought(text, parts),
            Channel::Content => self.content(text, parts),
            // A call's arguments are all of a message.
            Channel::Call => {
                self.calls.arguments(text, parts);
                if let State::Message(_, scan) = &mut self.state
                    && self.calls.is_held()
                    && text.chars().any(|c| !c.is_whitespace() && scan.step(c) == Scan::Last)
                {
                    self.calls.release();
                }
            }
        }
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
