//! Values in the notations of Python and Gemma.

use serde_json::{Map, Value};

/// Maximum number of nested values.
const MAX_DEPTH: usize = 64;

/// The result of parsing a value.
#[derive(Debug)]
pub(super) enum Parsed {
    /// A value and the position of its end.
    Value(Value, usize),
    /// The text ends within the value.
    Open,
    /// The text is not a value.
    Wrong,
}

/// The notation of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Python's literals.
    Python,
    /// Strings between these marks, keys without marks.
    Quoted(&'static str),
}

impl Dialect {
    /// Parses the value that begins at `at`.
    pub(super) fn value(self, text: &str, at: usize) -> Parsed {
        self.nested(text, at, 0)
    }

    /// Parses the value that begins at `at`, within `depth` others.
    fn nested(self, text: &str, at: usize, depth: usize) -> Parsed {
        if depth > MAX_DEPTH {
            return Parsed::Wrong;
        }
        let rest = &text[at..];
        if rest.is_empty() {
            return Parsed::Open;
        }
        if let Some(parsed) = self.string(text, at) {
            return parsed;
        }
        match rest.as_bytes()[0] {
            b'[' | b'(' => self.list(text, at, depth),
            b'{' => self.object(text, at, depth),
            _ => word(text, at),
        }
    }

    /// Parses a string; `None` if none begins here.
    fn string(self, text: &str, at: usize) -> Option<Parsed> {
        let rest = &text[at..];
        match self {
            Dialect::Quoted(mark) => {
                if mark.starts_with(rest) && rest.len() < mark.len() {
                    return Some(Parsed::Open);
                }
                let inside = rest.strip_prefix(mark)?;
                Some(match inside.find(mark) {
                    Some(len) => Parsed::Value(Value::from(&inside[..len]), at + len + 2 * mark.len()),
                    None => Parsed::Open,
                })
            }
            Dialect::Python => {
                let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
                Some(python_string(text, at + 1, quote))
            }
        }
    }

    fn list(self, text: &str, at: usize, depth: usize) -> Parsed {
        let close = if text.as_bytes()[at] == b'[' { b']' } else { b')' };
        let mut items = Vec::new();
        let mut i = at + 1;
        loop {
            i = skip_white(text, i);
            match text.as_bytes().get(i) {
                None => return Parsed::Open,
                Some(byte) if *byte == close => return Parsed::Value(Value::Array(items), i + 1),
                Some(b',') if !items.is_empty() => i += 1,
                Some(_) => match self.nested(text, i, depth + 1) {
                    Parsed::Value(value, end) => {
                        items.push(value);
                        i = end;
                    }
                    ended @ (Parsed::Open | Parsed::Wrong) => return ended,
                },
            }
        }
    }

    fn object(self, text: &str, at: usize, depth: usize) -> Parsed {
        let mut members = Map::new();
        let mut i = at + 1;
        loop {
            i = skip_white(text, i);
            match text.as_bytes().get(i) {
                None => return Parsed::Open,
                Some(b'}') => return Parsed::Value(Value::Object(members), i + 1),
                Some(b',') if !members.is_empty() => i += 1,
                Some(_) => match self.member(text, i, b':', depth) {
                    ParsedMember::Is(key, value, end) => {
                        members.insert(key, value);
                        i = end;
                    }
                    ParsedMember::Open => return Parsed::Open,
                    ParsedMember::Wrong => return Parsed::Wrong,
                },
            }
        }
    }

    /// Parses a key, a separator and a value that begin at `at`.
    pub(super) fn member(self, text: &str, at: usize, separator: u8, depth: usize) -> ParsedMember {
        let (key, end) = match self.string(text, at) {
            Some(Parsed::Value(Value::String(key), end)) => (key, end),
            Some(Parsed::Open) => return ParsedMember::Open,
            Some(_) => return ParsedMember::Wrong,
            None => {
                let rest = &text[at..];
                let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
                let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                if len == 0 {
                    return ParsedMember::Wrong;
                }
                (rest[..len].to_owned(), at + len)
            }
        };
        let i = skip_white(text, end);
        match text.as_bytes().get(i) {
            None => return ParsedMember::Open,
            Some(byte) if *byte == separator => {}
            Some(_) => return ParsedMember::Wrong,
        }
        match self.nested(text, skip_white(text, i + 1), depth + 1) {
            Parsed::Value(value, end) => ParsedMember::Is(key, value, end),
            Parsed::Open => ParsedMember::Open,
            Parsed::Wrong => ParsedMember::Wrong,
        }
    }
}

/// Position of the first byte from `at` on that is not white space.
fn skip_white(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    at + (rest.len() - rest.trim_start().len())
}

/// Position in an incomplete value, with only what is needed to find its end.
#[derive(Clone, Debug)]
pub(super) struct ValueScan {
    dialect: Dialect,
    /// Number of open brackets.
    depth: usize,
    /// The quote that ends the string; `None` outside of strings.
    quote: Option<char>,
    is_escaped: bool,
    /// Characters of [`Dialect::Quoted`]'s mark that have arrived.
    n_mark: usize,
}

impl ValueScan {
    pub(super) fn new(dialect: Dialect) -> ValueScan {
        ValueScan { dialect, depth: 0, quote: None, is_escaped: false, n_mark: 0 }
    }

    /// Returns true if the value ends before this character: a comma, or a closing bracket of its
    /// container.
    pub(super) fn ends_before(&mut self, c: char) -> bool {
        match self.dialect {
            Dialect::Quoted(mark) => {
                let expects = |n: usize| mark[n..].chars().next();
                self.n_mark = match (expects(self.n_mark) == Some(c), expects(0) == Some(c)) {
                    (true, _) => self.n_mark + c.len_utf8(),
                    (false, true) => c.len_utf8(),
                    (false, false) => 0,
                };
                if self.n_mark == mark.len() {
                    self.n_mark = 0;
                    self.quote = match self.quote {
                        Some(_) => None,
                        None => Some(c),
                    };
                    return false;
                }
                if self.quote.is_some() || self.n_mark > 0 {
                    return false;
                }
            }
            Dialect::Python => {
                if let Some(quote) = self.quote {
                    match c {
                        _ if self.is_escaped => self.is_escaped = false,
                        '\\' => self.is_escaped = true,
                        c if c == quote => self.quote = None,
                        _ => {}
                    }
                    return false;
                }
                if matches!(c, '"' | '\'') {
                    self.quote = Some(c);
                    return false;
                }
            }
        }
        match c {
            '{' | '[' | '(' => self.depth += 1,
            '}' | ']' | ')' if self.depth == 0 => return true,
            '}' | ']' | ')' => self.depth -= 1,
            ',' => return self.depth == 0,
            _ => {}
        }
        false
    }
}

/// The result of parsing a member.
pub(super) enum ParsedMember {
    /// Key, value, and the position of the value's end.
    Is(String, Value, usize),
    /// The text ends within the member.
    Open,
    /// The text is not a member.
    Wrong,
}

/// Parses the string that begins at `at`, after its quote.
fn python_string(text: &str, at: usize, quote: char) -> Parsed {
    let mut out = String::new();
    let mut chars = text[at..].char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            c if c == quote => return Parsed::Value(Value::String(out), at + i + 1),
            '\\' => match chars.next() {
                None => return Parsed::Open,
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, 'r')) => out.push('\r'),
                Some((_, '\n')) => {}
                Some((_, escape @ ('u' | 'x'))) => {
                    let n = if escape == 'u' { 4 } else { 2 };
                    let digits: String = chars.by_ref().take(n).map(|(_, c)| c).collect();
                    if digits.chars().count() < n {
                        return Parsed::Open;
                    }
                    match u32::from_str_radix(&digits, 16) {
                        Ok(code) => out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
                        Err(_) => return Parsed::Wrong,
                    }
                }
                Some((_, c @ ('\\' | '\'' | '"'))) => out.push(c),
                Some((_, c)) => {
                    out.push('\\');
                    out.push(c);
                }
            },
            c => out.push(c),
        }
    }
    Parsed::Open
}

/// Parses a number, or a word for true, false or null.
fn word(text: &str, at: usize) -> Parsed {
    let rest = &text[at..];
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
    let Some(len) = rest.find(|c| !is_part(c)) else {
        return if rest.len() < 64 { Parsed::Open } else { Parsed::Wrong };
    };
    let value = match &rest[..len] {
        "True" | "true" => Value::Bool(true),
        "False" | "false" => Value::Bool(false),
        "None" | "null" => Value::Null,
        number => match serde_json::from_str(number.trim_start_matches('+')) {
            Ok(number @ Value::Number(_)) => number,
            _ => return Parsed::Wrong,
        },
    };
    Parsed::Value(value, at + len)
}
