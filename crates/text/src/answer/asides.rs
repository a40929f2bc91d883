//! Asides of an answer: reasoning and calls.

use super::{AnswerParser, AnswerPart};

/// Follows an answer with its parser and finds the text in which stop strings do not count:
/// reasoning, calls, and headers of messages. A mark in prose opens no call, so it is not aside.
#[derive(Clone, Debug)]
pub struct Asides {
    /// The parser at the start of the answer.
    begun: AnswerParser,
    parser: AnswerParser,
    parts: Vec<AnswerPart>,
    /// Result for the next character, if the parser has read it already.
    known: Option<bool>,
}

impl Asides {
    pub(super) fn new(parser: AnswerParser) -> Asides {
        Asides { begun: parser.clone(), parser, parts: Vec::new(), known: None }
    }

    /// Starts over with another answer to the same prompt.
    pub(crate) fn reset(&mut self) {
        self.parser.clone_from(&self.begun);
        self.known = None;
    }

    /// Returns true if the text so far ends within an aside.
    pub fn is_within(&self) -> bool {
        self.parser.is_aside()
    }

    /// Returns the length in bytes of the first stretch of `text` that is aside or not, and which
    /// of the two. The mark that begins an aside is not part of it; the one that ends it is. The
    /// next call gets the rest of the text.
    pub fn next(&mut self, text: &str) -> (usize, bool) {
        let mut first = None;
        for (at, c) in text.char_indices() {
            let is_aside = match self.known.take() {
                Some(known) => known,
                None => self.read(c),
            };
            if *first.get_or_insert(is_aside) != is_aside {
                self.known = Some(is_aside);
                return (at, !is_aside);
            }
        }
        (text.len(), first.unwrap_or_default())
    }

    /// Reads one character and returns true if it is aside.
    fn read(&mut self, c: char) -> bool {
        let is_within = self.is_within();
        self.parts.clear();
        self.parser.push(c.encode_utf8(&mut [0; 4]), &mut self.parts);
        // A character that cannot continue the call ends the aside before it, and is text.
        let is_content = |part: &AnswerPart| matches!(part, AnswerPart::Content(_));
        let is_text = self.parser.has_pending() || self.parts.iter().any(is_content);
        is_within && (self.is_within() || !is_text)
    }
}
