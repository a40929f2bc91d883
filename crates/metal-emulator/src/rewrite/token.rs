//! Tokens of preprocessed Metal source, with their locations.

use super::Refusal;

/// The kind of a token. Its text is a range of the source, so tokens are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Word,
    /// A number, suffix included.
    Number,
    /// A string or character literal.
    Quote,
    /// One punctuator character; only `::`, `->` and `...` are single tokens. `>>` is two, as
    /// template arguments need.
    Mark,
    /// A `#pragma` or other directive left by the preprocessor, to the end of its line.
    Directive,
}

/// A token: `text[start..end]`, on `line` of file number `file`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
    pub file: usize,
    pub line: u32,
}

/// Tokens of a text and the files named by its line markers.
pub(crate) struct Tokens<'a> {
    pub text: &'a str,
    pub list: Vec<Token>,
    pub files: Vec<String>,
}

impl<'a> Tokens<'a> {
    /// Splits `text`, the output of `clang -E`, whose line markers name the origin of each line.
    pub fn scan(text: &'a str) -> Result<Self, Refusal> {
        let mut tokens = Tokens { text, list: Vec::new(), files: vec![String::from("<source>")] };
        let bytes = text.as_bytes();
        let (mut at, mut line, mut file) = (0, 1u32, 0usize);
        let mut line_begins = true;
        while at < bytes.len() {
            let c = bytes[at];
            if c == b'\n' {
                line += 1;
                at += 1;
                line_begins = true;
                continue;
            }
            if c.is_ascii_whitespace() {
                at += 1;
                continue;
            }
            let start = at;
            if c == b'#' && line_begins {
                let end = text[at..].find('\n').map_or(bytes.len(), |n| at + n);
                if let Some((n, name)) = line_marker(&text[at..end]) {
                    file = match tokens.files.iter().position(|f| *f == name) {
                        Some(i) => i,
                        None => {
                            tokens.files.push(name);
                            tokens.files.len() - 1
                        }
                    };
                    // The marker describes the line after it.
                    line = n.wrapping_sub(1);
                } else {
                    tokens.list.push(Token { kind: Kind::Directive, start, end, file, line });
                }
                at = end;
                continue;
            }
            line_begins = false;
            let kind = if c == b'"' || c == b'\'' {
                at += 1;
                while at < bytes.len() && bytes[at] != c && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if at >= bytes.len() || bytes[at] != c {
                    let place = Token { kind: Kind::Quote, start, end: start + 1, file, line };
                    return Err(tokens.refuse(&place, "an unterminated literal"));
                }
                at += 1;
                Kind::Quote
            } else if c.is_ascii_digit() || (c == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)) {
                while at < bytes.len() && number_goes_on(bytes, at) {
                    at += 1;
                }
                Kind::Number
            } else if is_word(c) {
                while at < bytes.len() && (is_word(bytes[at]) || bytes[at].is_ascii_digit()) {
                    at += 1;
                }
                Kind::Word
            } else {
                let rest = &text[at..];
                at += if rest.starts_with("...") {
                    3
                } else if rest.starts_with("::") || rest.starts_with("->") {
                    2
                } else {
                    rest.chars().next().map_or(1, char::len_utf8)
                };
                Kind::Mark
            };
            tokens.list.push(Token { kind, start, end: at, file, line });
        }
        Ok(tokens)
    }

    /// The text of token `i`; empty past the end.
    pub fn word(&self, i: usize) -> &'a str {
        self.list.get(i).map_or("", |t| &self.text[t.start..t.end])
    }

    /// The text from token `from` up to, not including, token `to`, in one line.
    pub fn phrase(&self, from: usize, to: usize) -> String {
        let mut out = String::new();
        for i in from..to.min(self.list.len()) {
            if i > from && self.list[i].start > self.list[i - 1].end {
                out.push(' ');
            }
            out.push_str(self.word(i));
        }
        out
    }

    /// The index of the bracket that closes the one at `open`.
    pub fn closing(&self, open: usize) -> Result<usize, Refusal> {
        let (o, c) = match self.word(open) {
            "(" => ("(", ")"),
            "[" => ("[", "]"),
            "{" => ("{", "}"),
            _ => ("<", ">"),
        };
        let mut depth = 0i32;
        let mut i = open;
        while i < self.list.len() {
            let w = self.word(i);
            if w == o {
                depth += 1;
            } else if w == c {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            } else if o == "<" && (w == "(" || w == "[" || w == "{") {
                i = self.closing(i)?;
            }
            i += 1;
        }
        Err(self.refuse(&self.list[open], format!("'{o}' without '{c}'")))
    }

    /// An error at a token.
    pub fn refuse(&self, at: &Token, what: impl Into<String>) -> Refusal {
        Refusal { file: self.files[at.file].clone(), line: at.line, what: what.into() }
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || c == b'_' || c == b'$' || c >= 0x80
}

fn number_goes_on(bytes: &[u8], at: usize) -> bool {
    let c = bytes[at];
    is_word(c)
        || c.is_ascii_digit()
        || c == b'.'
        || (c == b'\'' && bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric))
        || ((c == b'+' || c == b'-') && at > 0 && exponent_before(bytes, at))
}

/// Returns true if the character before `at` is an exponent letter: `e` of a decimal, `p` of a
/// hexadecimal number.
fn exponent_before(bytes: &[u8], at: usize) -> bool {
    let mut start = at - 1;
    while start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'.') {
        start -= 1;
    }
    let hexadecimal =
        bytes[start..at].len() > 1 && bytes[start] == b'0' && matches!(bytes[start + 1], b'x' | b'X');
    match bytes[at - 1] {
        b'e' | b'E' => !hexadecimal,
        b'p' | b'P' => hexadecimal,
        _ => false,
    }
}

/// `# 12 "file" flags` as (12, file).
fn line_marker(directive: &str) -> Option<(u32, String)> {
    let rest = directive.strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("line").map_or(rest, str::trim_start);
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let line = rest[..digits].parse().ok()?;
    let name = rest[digits..].trim_start().strip_prefix('"')?;
    Some((line, name[..name.rfind('"')?].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let t = Tokens::scan(text).unwrap();
        (0..t.list.len()).map(|i| t.word(i).to_owned()).collect()
    }

    #[test]
    fn numbers_keep_exponents_and_suffixes() {
        assert_eq!(
            words("1e-3f+0x1p-2 1.5h 0xe+1 .5"),
            ["1e-3f", "+", "0x1p-2", "1.5h", "0xe", "+", "1", ".5"]
        );
    }

    #[test]
    fn brackets_of_templates_are_single() {
        assert_eq!(words("a<b<c>>::d->e"), ["a", "<", "b", "<", "c", ">", ">", "::", "d", "->", "e"]);
    }

    #[test]
    fn line_markers_place_tokens() {
        let t = Tokens::scan("# 7 \"k.metal\" 1\n\nkernel").unwrap();
        assert_eq!((t.files[t.list[0].file].as_str(), t.list[0].line), ("k.metal", 8));
    }

    #[test]
    fn a_literal_without_end_is_refused() {
        assert!(Tokens::scan("\"abc\n").is_err());
    }
}
