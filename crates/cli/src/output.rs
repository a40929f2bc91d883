//! Output: numbers for people, tables, JSON.

use std::io::{self, Write};

pub use ingle::size_text as bytes;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::wrap;

/// True if the reader of stdout hung up (`ingle … | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// The message of an error, with each of its causes once. Many errors repeat the text of their
/// cause, or the file that an outer error has named.
pub fn message(error: &anyhow::Error) -> String {
    let mut said = String::new();
    // Errors of files name their file, but errors of stdout name nothing.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::StorageFull) {
        said.push_str("writing to stdout");
    }
    for cause in error.chain() {
        let text = cause.downcast_ref().map_or_else(|| cause.to_string(), with_flags);
        if said.contains(&text) {
            continue;
        }
        let ends = text.match_indices(": ").map(|(end, _)| end);
        let repeated = ends.filter(|&end| is_last_said(&said, &text[..end])).last();
        let new = repeated.map_or(text.as_str(), |end| &text[end + 2..]);
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(new);
    }
    said
}

/// The message of an error of the library, which names options where users know flags.
fn with_flags(error: &ingle::Error) -> String {
    match error {
        ingle::Error::GpusOfOtherDevice => "--gpus needs --device cuda, found another device".to_owned(),
        ingle::Error::GpuTwice { .. } | ingle::Error::Mmproj { .. } => format!("--{error}"),
        ingle::Error::NoExperts => error.to_string().replace("cpu_moe_layers", "--cpu-moe-layers"),
        ingle::Error::NoGpuToSplit { option } => format!(
            "--{} splits a model between a GPU and the CPU; name the GPU with --device",
            option.replace('_', "-")
        ),
        ingle::Error::WrongSystem { .. } => error.to_string().replace("device ", "--device "),
        // The library's enum is non-exhaustive, and all other errors name no option.
        other => other.to_string(),
    }
}

/// True if `said` ends with these words.
fn is_last_said(said: &str, words: &str) -> bool {
    said.strip_suffix(words).is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric()))
}

/// Prints a line of JSON on stdout.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints a line of text on stdout.
pub fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}

/// A number with its noun: `1 window`, `2 windows`.
pub fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A count in thousands, millions or billions: `134.52 M`.
pub fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.2} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Seconds in the unit that fits: `1.25 s`, `38 ms`, `12 µs`.
pub fn seconds(s: f64) -> String {
    if s >= 1.0 {
        format!("{s:.2} s")
    } else if s >= 1e-3 {
        format!("{:.1} ms", s * 1e3)
    } else {
        format!("{:.1} µs", s * 1e6)
    }
}

/// Formats of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns.
    Plain,
    /// A Markdown table.
    Markdown,
    /// Comma-separated values, quoted where needed.
    Csv,
}

/// Rows of text under a header. A column whose header ends in `>` is aligned to the right; the `>`
/// is not printed.
pub struct Table {
    header: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(header: &[&str]) -> Table {
        Table {
            header: header.iter().map(|h| h.trim_end_matches('>').to_owned()).collect(),
            right: header.iter().map(|h| h.ends_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// Writes the table. With aligned columns, long cells are cut so that a line has at most `most`
    /// columns.
    pub fn write(&self, out: &mut dyn Write, style: Style, most: usize) -> io::Result<()> {
        if style == Style::Csv {
            for row in std::iter::once(&self.header).chain(&self.rows) {
                let cells: Vec<_> = row.iter().map(|c| csv_cell(c)).collect();
                writeln!(out, "{}", cells.join(","))?;
            }
            return Ok(());
        }
        let widths = self.widths(if style == Style::Plain { most } else { usize::MAX });
        let line = |row: &[String]| {
            let cells: Vec<String> =
                row.iter().enumerate().map(|(i, c)| padded(c, widths[i], self.right[i])).collect();
            match style {
                Style::Markdown => format!("| {} |", cells.join(" | ")),
                Style::Plain | Style::Csv => cells.join("  ").trim_end().to_owned(),
            }
        };
        writeln!(out, "{}", line(&self.header))?;
        let rule = |i: usize| match style == Style::Markdown && self.right[i] {
            true => format!("{}:", "-".repeat(widths[i].saturating_sub(1).max(1))),
            false => "-".repeat(widths[i]),
        };
        let rules: Vec<String> = (0..self.header.len()).map(rule).collect();
        writeln!(
            out,
            "{}",
            if style == Style::Markdown { format!("| {} |", rules.join(" | ")) } else { rules.join("  ") }
        )?;
        for row in &self.rows {
            writeln!(out, "{}", line(row))?;
        }
        Ok(())
    }

    /// Width of each column: that of its widest cell, but less for the widest columns if a line
    /// would have more than `most`.
    fn widths(&self, most: usize) -> Vec<usize> {
        let rows = || std::iter::once(&self.header).chain(&self.rows);
        let mut widths: Vec<usize> =
            (0..self.header.len()).map(|i| rows().map(|row| row[i].width()).max().unwrap_or(0)).collect();
        let between = 2 * widths.len().saturating_sub(1);
        let excess = |widths: &[usize]| (widths.iter().sum::<usize>() + between).saturating_sub(most);
        while excess(&widths) > 0 {
            // Numbers are not cut.
            let texts =
                widths.iter_mut().zip(&self.right).filter(|(_, right)| !**right).map(|(width, _)| width);
            match texts.max() {
                Some(widest) if *widest > LEAST_COLUMN => *widest -= 1,
                _ => break,
            }
        }
        widths
    }

    /// Prints the table on stdout, cut to the terminal's width.
    pub fn print(&self, style: Style) -> anyhow::Result<()> {
        let most = wrap::stdout_width().unwrap_or(usize::MAX);
        Ok(self.write(&mut io::stdout().lock(), style, most)?)
    }
}

/// Least width of a column that is cut.
const LEAST_COLUMN: usize = 10;

/// The cell, padded or cut to this width.
fn padded(cell: &str, width: usize, right: bool) -> String {
    let mut shown = cell.to_owned();
    if cell.width() > width {
        while shown.width() + 1 > width && shown.pop().is_some() {}
        shown.push('…');
    }
    let blanks = " ".repeat(width.saturating_sub(shown.width()));
    if right { blanks + &shown } else { shown + &blanks }
}

fn csv_cell(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_once() {
        let chain = |causes: &[&str]| {
            let (last, around) = causes.split_last().unwrap();
            message(
                &around
                    .iter()
                    .rev()
                    .fold(anyhow::anyhow!("{last}"), |error, text| error.context(text.to_string())),
            )
        };
        assert_eq!(
            chain(&[
                "x.wav",
                "x.wav: cannot be opened: No such file (os error 2)",
                "No such file (os error 2)"
            ]),
            "x.wav: cannot be opened: No such file (os error 2)"
        );
        assert_eq!(chain(&["reading x.wav", "x.wav: denied"]), "reading x.wav: denied");
        assert_eq!(chain(&["a: b: c", "b: c", "c"]), "a: b: c");
        assert_eq!(chain(&["loading a", "a: b", "a: b: c"]), "loading a: b: c");
        assert_eq!(chain(&["one", "two", "three"]), "one: two: three");
        assert_eq!(chain(&["banana", "a: b"]), "banana: a: b");
        let full = message(&io::Error::from(io::ErrorKind::StorageFull).into());
        assert!(full.starts_with("writing to stdout: "), "{full}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(98_362_432), "93.8 MiB");
        assert_eq!(bytes(12), "12 B");
        assert_eq!(count(134_515_008), "134.52 M");
        assert_eq!(seconds(0.0381), "38.1 ms");
    }

    #[test]
    fn tables_fit_the_terminal() {
        let mut table = Table::new(&["name", "size>", "source"]);
        table.row(vec!["日本".into(), "1234567890".into(), "a source with a very long name".into()]);
        let mut out = Vec::new();
        table.write(&mut out, Style::Plain, 36).unwrap();
        let text = String::from_utf8(out).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!((last, last.width()), ("日本  1234567890  a source with a v…", 36));
        assert!(text.lines().all(|line| line.width() <= 36), "{text}");
    }

    #[test]
    fn tables_align_and_quote() {
        let mut table = Table::new(&["name", "n>"]);
        table.row(vec!["a, b".into(), "10".into()]);
        table.row(vec!["c".into(), "9".into()]);
        let mut out = Vec::new();
        table.write(&mut out, Style::Csv, 10).unwrap();
        table.write(&mut out, Style::Markdown, 10).unwrap();
        table.write(&mut out, Style::Plain, usize::MAX).unwrap();
        let want = "name,n\n\"a, b\",10\nc,9\n\
                    | name |  n |\n| ---- | -: |\n| a, b | 10 |\n| c    |  9 |\n\
                    name   n\n----  --\na, b  10\nc      9\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
