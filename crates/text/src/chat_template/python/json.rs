//! `tojson`: Python's `json.dumps`, byte for byte. (Python's `json` module, `JSONEncoder`.)

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::super::budget::{self, Text};
use super::super::values::weight;
use super::{check_depth, float};

/// Python's `json.dumps` as transformers offers it to templates.
pub(super) fn to_json(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut positional = args.iter();
    let mut argument = |name: &str| -> Result<Value, Error> {
        match positional.next() {
            Some(value) => Ok(value.clone()),
            None => kwargs.get::<Option<Value>>(name).map(Option::unwrap_or_default),
        }
    };
    let ensure_ascii = argument("ensure_ascii")?.is_true();
    let indent = argument("indent")?;
    let separators = argument("separators")?;
    let sort_keys = argument("sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let indent =
        if indent.is_undefined() || indent.is_none() { None } else { Some(super::indentation(&indent)?) };
    let separators = if separators.is_undefined() || separators.is_none() {
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
    } else {
        let parts: Vec<Value> = separators.try_iter()?.collect();
        match parts.as_slice() {
            [item, key] if item.as_str().is_some() && key.as_str().is_some() => {
                (item.as_str().unwrap_or_default().to_owned(), key.as_str().unwrap_or_default().to_owned())
            }
            _ => return Err(super::invalid("tojson: separators must be two texts".into())),
        }
    };
    let mut out = Text::default();
    Dumps { ensure_ascii, indent, separators, sort_keys }.write(value, &mut out)?;
    out.finish()
}

/// Arguments of `json.dumps` that templates use.
struct Dumps {
    /// Writes characters outside of ASCII as `\u` escapes.
    ensure_ascii: bool,
    /// Indentation of each level, with each item on its own line; `None` for all on one line.
    indent: Option<String>,
    /// Separators of items, and of key and value.
    separators: (String, String),
    sort_keys: bool,
}

impl Dumps {
    /// Appends `json.dumps(value)`.
    fn write(&self, value: &Value, out: &mut Text) -> Result<(), Error> {
        self.write_at(value, out, 0)
    }

    fn write_at(&self, value: &Value, out: &mut Text, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.write_str("null")?,
            ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" })?,
            ValueKind::Number if value.is_integer() => write!(out, "{value}")?,
            ValueKind::Number => self.float(value, out)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', items.len(), out, depth, |i, out| match items.get(i) {
                    Some(item) => self.write_at(item, out, depth + 1),
                    None => Ok(()),
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    let all = keys.iter().fold(0, |sum: u64, key| sum.saturating_add(weight(key)));
                    budget::work(all.saturating_mul(u64::from(usize::BITS - keys.len().leading_zeros())))?;
                    keys.sort();
                }
                self.list('{', '}', keys.len(), out, depth, |i, out| {
                    let Some(key) = keys.get(i) else { return Ok(()) };
                    match key.as_str() {
                        Some(text) => self.text(text, out)?,
                        None => {
                            out.write_char('"')?;
                            self.write_at(key, out, depth + 1)?;
                            out.write_char('"')?;
                        }
                    }
                    out.write_str(&self.separators.1)?;
                    self.write_at(&value.get_item(key)?, out, depth + 1)
                })?;
            }
            kind => {
                return Err(super::invalid(format!("{kind} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn list(
        &self,
        open: char,
        close: char,
        n_items: usize,
        out: &mut Text,
        depth: usize,
        mut item: impl FnMut(usize, &mut Text) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.write_char(open)?;
        let line = |out: &mut Text, depth: usize| {
            if let Some(indent) = self.indent.as_ref().filter(|_| n_items > 0) {
                out.write_char('\n')?;
                (0..depth).try_for_each(|_| out.write_str(indent))?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        for i in 0..n_items {
            out.write_str(if i > 0 { &self.separators.0 } else { "" })?;
            line(out, depth + 1)?;
            item(i, out)?;
        }
        line(out, depth)?;
        out.write_char(close)?;
        Ok(())
    }

    fn float(&self, value: &Value, out: &mut Text) -> Result<(), Error> {
        let x = f64::try_from(value.clone())?;
        match x {
            _ if x.is_nan() => out.write_str("NaN")?,
            f64::INFINITY => out.write_str("Infinity")?,
            f64::NEG_INFINITY => out.write_str("-Infinity")?,
            _ => float(x, out)?,
        }
        Ok(())
    }

    fn text(&self, text: &str, out: &mut Text) -> std::fmt::Result {
        out.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\r' => out.write_str("\\r")?,
                '\t' => out.write_str("\\t")?,
                '\u{8}' => out.write_str("\\b")?,
                '\u{C}' => out.write_str("\\f")?,
                c if c < ' ' => write!(out, "\\u{:04x}", c as u32)?,
                // With `ensure_ascii`, Python escapes characters above DEL.
                c if self.ensure_ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}")?;
                    }
                }
                c => out.write_char(c)?,
            }
        }
        out.write_char('"')
    }
}
