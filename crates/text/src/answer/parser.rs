//! The parser of an answer while it is generated.

use super::calls::{Calls, Step, Tools};
use super::formats::{CallFormat, Reasoning};
use super::harmony::{self, Channel};
use super::json::{JsonScan, Scan};
use super::readers::CallReader;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text of reasoning.
    Reasoning(String),
    /// Text of the content.
    Content(String),
    /// A call begins; its arguments follow.
    CallBegin {
        /// Index within the answer, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// A further piece of a call's arguments, JSON text.
    CallArguments {
        /// Index of the call, as in `CallBegin`.
        index: usize,
        /// More text.
        text: String,
    },
    /// A call's arguments are complete.
    CallEnd {
        /// Index of the call, as in `CallBegin`.
        index: usize,
    },
}

/// Splits an answer into its parts. Text that may begin a mark is held back until that is certain.
/// The result does not depend on the pieces in which the answer arrives.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: &'static CallFormat,
    reasoning: Option<&'static Reasoning>,
    /// The tools; if empty, text that looks like a call is content.
    tools: Tools,
    state: State,
    /// Text that has not been parsed for good.
    pending: String,
    calls: Calls,
    has_content: bool,
    /// True if leading white space is dropped.
    trims: bool,
}

#[derive(Clone, Debug)]
enum State {
    Reasoning,
    Content,
    /// After a mark that opens calls, or within a call without a mark. The number is the bytes of
    /// text before the reader's.
    Calls(Box<CallReader>, usize),
    /// Harmony: the text before `<|message|>`.
    Header,
    /// Harmony: a message of a channel, with the scan of a call's arguments.
    Message(Channel, JsonScan),
}

/// The effect of a mark in content.
#[derive(Clone, Copy)]
enum Mark {
    Think,
    /// Opens a call of this format.
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
        let state = match (format.is_harmony(), is_thinking) {
            (true, _) => match harmony::channel_of_prompt(prompt) {
                Some(channel) => State::Message(channel, JsonScan::default()),
                None => State::Header,
            },
            (false, true) => State::Reasoning,
            (false, false) => State::Content,
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

    /// Returns true within reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning | State::Message(Channel::Reasoning, _))
    }

    /// Returns true within reasoning, within a possible call, or before a message.
    pub(super) fn is_aside(&self) -> bool {
        match self.state {
            State::Content | State::Message(Channel::Content, _) => false,
            State::Reasoning | State::Calls(..) | State::Header | State::Message(..) => true,
        }
    }

    /// Returns true if text is held back because it may begin a mark.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Number of calls so far.
    pub fn n_calls(&self) -> usize {
        self.calls.n()
    }

    /// Number of complete calls so far.
    pub(super) fn n_whole_calls(&self) -> usize {
        self.calls.n_whole()
    }

    /// Returns true within a part of a call that a grammar may enforce.
    pub(super) fn is_held(&self) -> bool {
        self.calls.is_held()
    }

    /// Text of a call whose enforced part has begun since the last call of this method, in the
    /// grammar's spelling.
    pub(super) fn take_held(&mut self) -> Option<String> {
        self.calls.take_held()
    }

    /// Parses more text and appends to `parts`.
    pub fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.pending.push_str(text);
        while self.step(parts) {}
    }

    /// Ends the answer: text held back gets its final meaning.
    pub fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        while self.step(parts) {}
        let rest = std::mem::take(&mut self.pending);
        match &self.state {
            // A further call that the end truncated is not text for users.
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
                // A first call without a complete name is text.
                let raw = self.calls.take_raw();
                if self.n_calls() == 0 {
                    self.content(&raw, parts);
                }
            }
        }
        self.calls.release();
    }

    /// Returns true if a text begins a call's mark. One character may be anything.
    fn is_cut_mark(&self, text: &str) -> bool {
        text.chars().nth(1).is_some() && self.format.opens().any(|(open, _)| open.starts_with(text))
    }

    /// Takes one step; returns false if it needs more text.
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

    /// Marks that may occur in content.
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
        // The longest of the marks at the first position.
        let first = found.min_by_key(|(at, text, _)| (*at, std::cmp::Reverse(text.len())));
        if let Some((at, text, mark)) = first {
            let before = self.pending[..at].to_owned();
            self.pending.drain(..at + text.len());
            match mark {
                Mark::Think => {
                    // With text before it, the mark is text itself.
                    if before.trim().is_empty() {
                        (self.state, self.trims) = (State::Reasoning, true);
                    } else {
                        self.content(&format!("{before}{text}"), parts);
                    }
                }
                Mark::Call(format) => {
                    // White space before a mark that opens no call is text.
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
        // White space before marks is dropped.
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
            // Some models repeat the opening mark of the prompt.
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

    /// Starts a reader of calls; `before` is the text that opens them.
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
                        // The mark was text. The text after it may be anything.
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
        // An incomplete mark may end the header.
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
            // All text of the message is the call's arguments.
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
            if let Some(AnswerPart::Content(last)) = parts.last_mut() {
                last.push_str(&text);
            } else {
                parts.push(AnswerPart::Content(text));
            }
        }
    }

    fn thought(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        if let Some(text) = self.trimmed(text) {
            if let Some(AnswerPart::Reasoning(last)) = parts.last_mut() {
                last.push_str(&text);
            } else {
                parts.push(AnswerPart::Reasoning(text));
            }
        }
    }

    /// Text without dropped white space; `None` if nothing is left.
    fn trimmed(&mut self, text: &str) -> Option<String> {
        let text = if self.trims { text.trim_start() } else { text };
        if text.is_empty() {
            return None;
        }
        self.trims = false;
        Some(text.to_owned())
    }
}

/// Number of bytes at the end of a text that may begin a mark, or, if `with_white`, that are white
/// space before one.
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
