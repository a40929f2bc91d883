//! Output of an answer while it streams: reasoning is separated from the answer itself.

use std::io::{self, IsTerminal, Write};

use text::{AnswerParser, AnswerPart};

use crate::tell;
use crate::wrap::{self, Wrapper};

/// Places and styles of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Dimmed, before the answer, on a terminal.
    Dimmed,
    /// The reasoning precedes the answer, on a terminal without colours.
    Plain,
    /// The reasoning goes to stderr, so that stdout has only the answer.
    Apart,
    /// Reasoning is not shown.
    Silent,
}

impl Voice {
    /// The voice of answers on stdout.
    pub fn of_stdout() -> Voice {
        match io::stdout().is_terminal() {
            true if tell::colours() => Voice::Dimmed,
            true => Voice::Plain,
            false => Voice::Apart,
        }
    }

    /// Columns of the terminal, if the answer is printed to one.
    fn width(self) -> Option<usize> {
        match self {
            Voice::Dimmed | Voice::Plain => wrap::stdout_width(),
            Voice::Apart | Voice::Silent => None,
        }
    }
}

/// Writes an answer's text as it arrives, and collects reasoning and answer.
pub struct Spoken<'a> {
    out: Wrapper<'a>,
    voice: Voice,
    /// `None`: all text is answer.
    parser: Option<AnswerParser>,
    parts: Vec<AnswerPart>,
    reasoning: String,
    answer: String,
}

impl<'a> Spoken<'a> {
    pub fn new(out: &'a mut dyn Write, voice: Voice, parser: Option<AnswerParser>) -> Spoken<'a> {
        let (parts, reasoning, answer) = Default::default();
        let out = Wrapper::new(out, Box::new(move || voice.width()), 0);
        Spoken { out, voice, parser, parts, reasoning, answer }
    }

    /// Writes a piece of reasoning.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn think(&mut self, text: &str) -> io::Result<()> {
        self.reasoning.push_str(text);
        match self.voice {
            // Each piece resets the style, so that an interrupted answer leaves the terminal clean.
            Voice::Dimmed => write!(self.out, "\x1b[2m{text}\x1b[22m"),
            Voice::Plain => self.out.write_all(text.as_bytes()),
            Voice::Apart => {
                tell::piece(text);
                Ok(())
            }
            Voice::Silent => Ok(()),
        }
    }

    /// Writes a piece of the answer.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        if self.answer.is_empty() && !self.reasoning.is_empty() {
            match self.voice {
                Voice::Dimmed | Voice::Plain => self.out.write_all(b"\n\n")?,
                Voice::Apart => tell::piece("\n"),
                Voice::Silent => {}
            }
        }
        self.answer.push_str(text);
        self.out.write_all(text.as_bytes())
    }

    fn tell(&mut self) -> io::Result<()> {
        for part in std::mem::take(&mut self.parts) {
            match part {
                AnswerPart::Reasoning(text) => self.think(&text)?,
                AnswerPart::Content(text) => self.say(&text)?,
                // The request has no tools, so there are no calls.
                AnswerPart::CallBegin { .. }
                | AnswerPart::CallArguments { .. }
                | AnswerPart::CallEnd { .. } => {}
            }
        }
        Ok(())
    }

    /// Ends the answer; returns its reasoning and its text.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<(String, String)> {
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut self.parts);
        }
        self.tell()?;
        self.out.finish()?;
        Ok((self.reasoning, self.answer))
    }
}

impl Write for Spoken<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The engine emits whole characters.
        let text =
            std::str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match &mut self.parser {
            Some(parser) => {
                parser.push(text, &mut self.parts);
                self.tell()?;
            }
            None => self.say(text)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::AnswerFormat;

    fn told(voice: Voice, answer: &str) -> (String, (String, String)) {
        let mut out = Vec::new();
        let parser = AnswerFormat::detect("<think></think>").parser("", &[]);
        let mut spoken = Spoken::new(&mut out, voice, Some(parser));
        for piece in answer.split_inclusive(' ') {
            spoken.write_all(piece.as_bytes()).unwrap();
        }
        let parts = spoken.finish().unwrap();
        (String::from_utf8(out).unwrap(), parts)
    }

    #[test]
    fn what_is_thought_is_dimmed_or_apart() {
        let answer = "<think>Hm, yes.</think>It is.";
        let parts = ("Hm, yes.".to_owned(), "It is.".to_owned());
        let (text, found) = told(Voice::Dimmed, answer);
        assert_eq!(found, parts);
        assert!(text.starts_with("\x1b[2mHm,") && text.ends_with("\x1b[22m\n\nIt is."), "{text:?}");
        assert_eq!(told(Voice::Silent, answer), ("It is.".to_owned(), parts));
        assert_eq!(told(Voice::Apart, "It is.").0, "It is.");
    }
}
