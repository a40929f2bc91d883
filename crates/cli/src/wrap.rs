//! Line breaks between words, at the width of the terminal.
//!
//! A word is text between blanks. Characters of two columns, such as Chinese and Japanese ones, may
//! be separated from each other, but not from closing punctuation. Fenced and indented code, rows
//! of tables and words wider than the terminal are unchanged.

use std::io::{self, Write};

use terminal_size::{Width, terminal_size_of};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Least width at which lines are broken.
const LEAST_WIDTH: usize = 16;

/// Columns of the terminal on stdout; `None` if stdout is not a terminal.
pub fn stdout_width() -> Option<usize> {
    terminal_size_of(io::stdout()).map(columns)
}

/// Columns of the terminal on stderr; `None` if stderr is not a terminal.
pub fn stderr_width() -> Option<usize> {
    terminal_size_of(io::stderr()).map(columns)
}

fn columns((Width(width), _): (Width, terminal_size::Height)) -> usize {
    width.into()
}

/// The text with its lines broken at `width`. Lines after a break begin with `indent` blanks.
pub fn lines(text: &str, width: usize, indent: usize) -> String {
    let mut out = Vec::with_capacity(text.len() + text.len() / 16);
    let mut wrapper = Wrapper::new(&mut out, Box::new(move || Some(width)), indent);
    // Writing to memory cannot fail.
    _ = wrapper.write_all(text.as_bytes());
    _ = wrapper.finish();
    String::from_utf8_lossy(&out).into_owned()
}

/// A writer that breaks lines between words. Text may arrive in any pieces; a word is written when
/// it is complete.
pub struct Wrapper<'a> {
    out: &'a mut dyn Write,
    /// Current columns of the terminal, which may be resized. `None`: lines are not broken.
    width: Box<dyn Fn() -> Option<usize> + 'a>,
    /// Blanks at the start of a line after a break.
    indent: usize,
    /// The first bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Columns used in the current line.
    column: usize,
    /// Blanks before the current word, if it stays in this line.
    blanks: String,
    /// The incomplete word, with colour codes.
    word: String,
    /// Columns of the word.
    word_width: usize,
    /// True if the word is wider than the terminal and its start is already written.
    is_long: bool,
    /// True inside a colour code.
    in_escape: bool,
    line: Line,
}

/// State of the current line, which decides whether it is code or a table.
#[derive(Default)]
struct Line {
    /// The start of the line, with its blanks, as far as needed.
    head: String,
    /// True between fences.
    is_code: bool,
    /// True after an empty line or in indented code: an indented line is then code.
    after_blank: bool,
    /// True if the last line was indented code.
    after_indented: bool,
}

impl Line {
    const HEAD: usize = 8;

    /// True if the line must stay as it is, judged by its start.
    fn is_verbatim(&self) -> bool {
        self.is_code || self.is_fence() || self.head.trim_start().starts_with('|') || self.is_indented()
    }

    fn is_fence(&self) -> bool {
        let head = self.head.trim_start();
        head.starts_with("```") || head.starts_with("~~~")
    }

    /// True if the line is indented code. It must follow an empty line, because a nested list item
    /// looks the same.
    fn is_indented(&self) -> bool {
        let text = self.head.trim_start();
        let is_item =
            text.starts_with(['-', '*', '+', '•']) || text.starts_with(|c: char| c.is_ascii_digit());
        let is_deep = self.head.starts_with("    ") || self.head.starts_with('\t');
        is_deep && !is_item && (self.after_blank || self.after_indented)
    }

    fn push(&mut self, c: char) {
        if self.head.len() < Line::HEAD {
            self.head.push(c);
        }
    }

    fn end(&mut self) {
        if self.is_fence() {
            self.is_code = !self.is_code;
        }
        self.after_indented = self.is_indented();
        self.after_blank = self.head.trim().is_empty();
        self.head.clear();
    }
}

impl<'a> Wrapper<'a> {
    /// `width` is called at each piece of text.
    pub fn new(
        out: &'a mut dyn Write,
        width: Box<dyn Fn() -> Option<usize> + 'a>,
        indent: usize,
    ) -> Wrapper<'a> {
        Wrapper {
            out,
            width,
            indent,
            bytes: Vec::new(),
            column: 0,
            blanks: String::new(),
            word: String::new(),
            word_width: 0,
            is_long: false,
            in_escape: false,
            line: Line { after_blank: true, ..Line::default() },
        }
    }

    /// Writes the rest of the last word.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<()> {
        let width = self.now();
        self.end_word(width)?;
        self.out.write_all(std::mem::take(&mut self.blanks).as_bytes())?;
        self.out.write_all(&std::mem::take(&mut self.bytes))?;
        self.out.flush()
    }

    fn now(&self) -> usize {
        (self.width)().filter(|width| *width >= LEAST_WIDTH).unwrap_or(usize::MAX)
    }

    fn push(&mut self, c: char, width: usize) -> io::Result<()> {
        if self.in_escape || c == '\x1b' {
            self.word.push(c);
            // A colour code is `ESC [`, numbers and a letter.
            self.in_escape = c == '\x1b' || !c.is_ascii_alphabetic();
            return Ok(());
        }
        match c {
            '\n' => {
                self.end_word(width)?;
                // Blanks at the end of a line are dropped.
                self.blanks.clear();
                self.column = 0;
                self.line.end();
                self.out.write_all(b"\n")
            }
            ' ' | '\t' => {
                self.end_word(width)?;
                self.line.push(c);
                self.blanks.push(c);
                Ok(())
            }
            _ => {
                if self.parts_before(c) {
                    self.end_word(width)?;
                }
                self.line.push(c);
                self.word.push(c);
                self.word_width = self.word.as_str().width_without_marks();
                if self.is_long || self.word_width > width.saturating_sub(self.indent) {
                    self.pass_on_long()?;
                }
                Ok(())
            }
        }
    }

    /// True if the line may be broken before this character.
    fn parts_before(&self, c: char) -> bool {
        let Some(last) = self.word.chars().next_back() else { return false };
        let is_joined = last == '\u{200d}' || c.width() == Some(0) || is_modifier(c);
        let is_wide = |c: char| c.width() == Some(2);
        // A colour code alone has no letter to stay with.
        let has_text = self.word_width > 0;
        has_text && !is_joined && (is_wide(last) || is_wide(c)) && !closes(c) && !opens(last)
    }

    fn end_word(&mut self, width: usize) -> io::Result<()> {
        let is_long = std::mem::take(&mut self.is_long);
        if self.word.is_empty() {
            return Ok(());
        }
        let blanks = self.blanks_width();
        let fits = self.column.saturating_add(blanks).saturating_add(self.word_width) <= width;
        let has_words = self.column > self.indent;
        if !fits && has_words && !is_long && !self.line.is_verbatim() {
            self.break_line()?;
        }
        self.put_word()
    }

    fn break_line(&mut self) -> io::Result<()> {
        self.blanks.clear();
        self.column = self.indent;
        write!(self.out, "\n{:indent$}", "", indent = self.indent)
    }

    /// Starts to write a word that is wider than the terminal; its rest is written as it arrives.
    fn pass_on_long(&mut self) -> io::Result<()> {
        if !self.is_long && self.column > self.indent && !self.line.is_verbatim() {
            self.break_line()?;
        }
        self.is_long = true;
        self.put_word()
    }

    fn put_word(&mut self) -> io::Result<()> {
        self.column += self.blanks_width() + self.word_width;
        self.out.write_all(std::mem::take(&mut self.blanks).as_bytes())?;
        self.out.write_all(std::mem::take(&mut self.word).as_bytes())?;
        self.word_width = 0;
        Ok(())
    }

    fn blanks_width(&self) -> usize {
        self.blanks
            .chars()
            .fold(0, |sum, c| if c == '\t' { sum + 8 - (self.column + sum) % 8 } else { sum + 1 })
    }
}

impl Write for Wrapper<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let width = self.now();
        self.bytes.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.bytes.split_off(whole);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.bytes, rest)).into_owned();
        if width == usize::MAX {
            self.end_word(width)?;
            self.out.write_all(std::mem::take(&mut self.blanks).as_bytes())?;
            self.out.write_all(text.as_bytes())?;
            return Ok(bytes.len());
        }
        for c in text.chars() {
            self.push(c, width)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Columns of the visible part of a text.
trait WidthWithoutMarks {
    fn width_without_marks(&self) -> usize;
}

impl WidthWithoutMarks for str {
    fn width_without_marks(&self) -> usize {
        if !self.contains('\x1b') {
            return self.width();
        }
        let mut seen = String::with_capacity(self.len());
        let mut in_escape = false;
        for c in self.chars() {
            match c {
                '\x1b' => in_escape = true,
                _ if in_escape => in_escape = !c.is_ascii_alphabetic(),
                _ => seen.push(c),
            }
        }
        seen.width()
    }
}

/// True for a skin tone, which belongs to the character before it.
fn is_modifier(c: char) -> bool {
    matches!(c, '\u{1f3fb}'..='\u{1f3ff}')
}

/// True for punctuation that must not begin a line.
fn closes(c: char) -> bool {
    "、。，．・：；？！）」』】〉》〕］｝ーぁぃぅぇぉっゃゅょァィゥェォッャュョ,.:;?!)]}…”’".contains(c)
}

/// True for punctuation that must not end a line.
fn opens(c: char) -> bool {
    "（「『【〈《〔［｛([{“‘".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as printed on a terminal of `width` columns, written in pieces of `piece` bytes.
    fn through(text: &str, width: usize, piece: usize) -> String {
        let mut out = Vec::new();
        let mut wrapper = Wrapper::new(&mut out, Box::new(move || Some(width)), 0);
        for piece in text.as_bytes().chunks(piece) {
            wrapper.write_all(piece).unwrap();
        }
        wrapper.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        for piece in [1, 2, 3, 5, 1000] {
            assert_eq!(through(text, 20, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn lines_end_between_words() {
        check("The sky appears blue because of scattering.", "The sky appears blue\nbecause of\nscattering.");
        check("12345678901234567890 x", "12345678901234567890\nx");
        check("a  b\n\n  c d\n", "a  b\n\n  c d\n");
        check("one two three four   five", "one two three four\nfive");
    }

    #[test]
    fn words_wider_than_the_terminal_stay_whole() {
        let address = "https://example.org/a/long/path/of/a/page";
        check(&format!("See {address} for more."), &format!("See\n{address}\nfor more."));
    }

    #[test]
    fn wide_characters_take_two_columns_and_may_be_parted() {
        check("日本語の文章は単語の間に空白がありません。", "日本語の文章は単語の\n間に空白がありませ\nん。");
        check("ok 👍🏽 👩‍👩‍👧 twelve more", "ok 👍🏽 👩‍👩‍👧 twelve more");
        check("thirteen more 👩‍👩‍👧 👍🏽 twelve", "thirteen more 👩‍👩‍👧 👍🏽\ntwelve");
        // A letter and its combining accent take one column.
        check("e\u{301}e\u{301}e\u{301} 890 234 678 012", "e\u{301}e\u{301}e\u{301} 890 234 678 012");
    }

    #[test]
    fn code_and_tables_stay_as_they_are() {
        let code = "```rust\nfn main() { println!(\"hello\"); }\n```\n";
        check(code, code);
        check(&format!("{code}a word more than twenty"), &format!("{code}a word more than\ntwenty"));
        let table = "| one cell | another cell | a third |\n";
        check(table, table);
        let indented = "\n    let x = 1 + 2 + 3 + 4;\n    let y = 5 + 6 + 7 + 8;\n";
        check(indented, indented);
        // A nested list item is prose.
        check("- a\n    - twelve and some more", "- a\n    - twelve and\nsome more");
    }

    #[test]
    fn marks_of_colour_take_no_columns() {
        let dim = |text: &str| format!("\x1b[2m{text}\x1b[22m");
        let text = format!("{} {} five", dim("one two"), dim("three four"));
        check(&text, &format!("{} {}\nfive", dim("one two"), dim("three four")));
    }

    #[test]
    fn what_is_broken_off_is_indented() {
        assert_eq!(lines("/help    what there is to say", 20, 9), "/help    what there\n         is to say");
        assert_eq!(lines("as it is", usize::MAX, 0), "as it is");
    }

    #[test]
    fn the_width_is_asked_again() {
        let width = std::cell::Cell::new(20);
        let mut out = Vec::new();
        let mut wrapper = Wrapper::new(&mut out, Box::new(|| Some(width.get())), 0);
        wrapper.write_all(b"one two three four five six\n").unwrap();
        width.set(30);
        wrapper.write_all(b"one two three four five six").unwrap();
        wrapper.finish().unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "one two three four\nfive six\none two three four five six"
        );
    }
}
