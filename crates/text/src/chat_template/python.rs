//! Python's printing of values. Templates are written for Jinja2, so values must print byte for
//! byte as by `str()`, and filters must behave as Jinja2's. (Python language reference, `repr` of
//! str and float.)

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::budget::{self, Text};
use super::values::{is_tuple, text_len};

mod json;

/// Maximum number of nested levels of lists and objects.
pub(super) const MAX_DEPTH: usize = 200;

/// Appends `str(value)`: text as it is, other values as [`repr`].
pub(super) fn str(value: &Value, out: &mut impl Write) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None if value.is_undefined() => Ok(()),
        None => repr(value, out, 0),
    }
}

/// Appends `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut impl Write, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined")?,
        ValueKind::None => out.write_str("None")?,
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::Number => number(value, out)?,
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out)?,
        ValueKind::Map => {
            out.write_char('{')?;
            for (i, key) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                repr(&key, out, depth + 1)?;
                out.write_str(": ")?;
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.write_char('}')?;
        }
        ValueKind::Seq => {
            let tuple = is_tuple(value);
            out.write_char(if tuple { '(' } else { '[' })?;
            for (i, item) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                repr(&item, out, depth + 1)?;
            }
            out.write_str(match (tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                _ => "]",
            })?;
        }
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// A text in single quotes, or in double quotes if it contains single quotes but no double ones.
fn repr_text(text: &str, out: &mut impl Write) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32)?,
            c if (c as u32) < 0x1_0000 => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "\\U{:08x}", c as u32)?,
        }
    }
    out.write_char(quote)
}

/// `str.isprintable`, except for unassigned code points, which change with Unicode's versions. No
/// control, format, private or separator character but the space is printable.
fn is_printable(c: char) -> bool {
    let format = matches!(c,
        '\u{AD}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{6DD}' | '\u{70F}' | '\u{180E}' | '\u{200B}'..='\u{200F}'
        | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}'
        | '\u{E000}'..='\u{F8FF}' | '\u{E0001}'..='\u{E007F}' | '\u{F0000}'..='\u{10FFFF}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || format)
}

/// Prints an integer by its digits, and a float by the shortest digits that parse to it. Like
/// Python it writes an exponent below 1e-4 and from 1e16 on.
fn number(value: &Value, out: &mut impl Write) -> Result<(), Error> {
    if value.is_integer() {
        return Ok(write!(out, "{value}")?);
    }
    let x = f64::try_from(value.clone())?;
    Ok(float(x, out)?)
}

fn float(x: f64, out: &mut impl Write) -> std::fmt::Result {
    if !x.is_finite() {
        return out.write_str(if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        });
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        out.write_str(&plain)?;
        return out.write_str(if plain.contains('.') { "" } else { ".0" });
    }
    write!(out, "{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value nested deeper than {MAX_DEPTH}"),
        ));
    }
    Ok(())
}

/// Registers Python's filters and tests that differ from the engine's own.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", |value: &Value| {
        let mut out = Text::default();
        str(value, &mut out)?;
        out.finish()
    });
    environment.add_filter("indent", indent);
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| {
            budget::work(text_len(value))?;
            match value.len() {
                Some(len) => Ok(len),
                None if value.is_undefined() => Ok(0),
                None => Err(invalid(format!("{} has no length", value.kind()))),
            }
        });
    }
    for name in ["e", "escape"] {
        environment.add_filter(name, escape);
    }
    // Python's tests check for operations, so a text is a sequence too.
    environment.add_test("iterable", |value: &Value| {
        value.as_str().is_some() || (!value.is_none() && value.try_iter().is_ok())
    });
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
}

/// Jinja2's `indent`: the last line end is dropped, and every kind of line end becomes `\n`.
fn indent(
    text: &Value,
    width: Option<&Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = width.cloned().or(named.get("width")?);
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let spaces = match &width {
        None => " ".repeat(4),
        Some(width) => indentation(width)?,
    };
    let mut source = Text::default();
    str(text, &mut source)?;
    let source = source.finish()?;
    let mut out = Text::default();
    budget::create(16 * source.len() as u64 / 8)?;
    for (i, line) in lines(&source).into_iter().enumerate() {
        if i > 0 {
            out.write_char('\n')?;
        }
        if if i > 0 { blank || !line.is_empty() } else { first } {
            out.write_str(&spaces)?;
        }
        out.write_str(line)?;
    }
    out.finish()
}

/// Spaces of a width, or the given text.
fn indentation(width: &Value) -> Result<String, Error> {
    const MAX_WIDTH: i64 = 64;
    match width.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let n = i64::try_from(width.clone())?;
            if n > MAX_WIDTH {
                return Err(invalid(format!("an indentation of {n}; the limit is {MAX_WIDTH}")));
            }
            Ok(" ".repeat(usize::try_from(n).unwrap_or(0)))
        }
    }
}

/// `(text + "\n").splitlines()`. Python has more line ends than other languages.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let (mut from, mut chars) = (0, text.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if ends {
            lines.push(text.get(from..at).unwrap_or_default());
            from = at + c.len_utf8();
            if c == '\r' && chars.next_if(|&(_, next)| next == '\n').is_some() {
                from += 1;
            }
        }
    }
    lines.push(text.get(from..).unwrap_or_default());
    lines
}

/// MarkupSafe's `escape`.
fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut text = Text::default();
    str(value, &mut text)?;
    let mut out = Text::default();
    for c in text.finish()?.chars() {
        match c {
            '&' => out.write_str("&amp;")?,
            '<' => out.write_str("&lt;")?,
            '>' => out.write_str("&gt;")?,
            '\'' => out.write_str("&#39;")?,
            '"' => out.write_str("&#34;")?,
            c => out.write_char(c)?,
        }
    }
    out.finish().map(Value::from_safe_string)
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (1e-4, "0.0001"),
            (1.25e-5, "1.25e-05"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (123456789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ];
        for (x, expected) in cases {
            let mut out = String::new();
            float(x, &mut out).unwrap();
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn lines_end_where_pythons_do() {
        assert_eq!(lines("a\nb\r\nc\rd\u{85}e\u{2028}"), ["a", "b", "c", "d", "e", ""]);
        assert_eq!(lines(""), [""]);
    }

    #[test]
    fn texts_are_quoted_as_python_quotes_them() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("it's \"x\"", "'it\\'s \"x\"'"),
            ("\n\t\\\u{7f}\u{200b}", "'\\n\\t\\\\\\x7f\\u200b'"),
            ("é😀 \u{a0}", "'é😀 \\xa0'"),
        ];
        for (text, expected) in cases {
            let mut out = String::new();
            repr_text(text, &mut out).unwrap();
            assert_eq!(out, expected);
        }
    }
}
