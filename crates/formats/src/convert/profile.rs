//! Rules for single tensors.
//!
//! ```text
//! # the first line that matches a tensor's name decides
//! *norm*                = keep
//! model.embed_tokens.*  = q8          # a comment
//! *.down_proj.weight    = q6-g32
//! ```
//!
//! `*` matches any characters, dots included, and `?` matches one. A tensor that no line matches
//! gets the type of `--to`.

use std::path::{Path, PathBuf};

use super::{Error, Format, Result, Wanted};

/// Ordered rules.
#[derive(Clone, Debug)]
pub struct Profile {
    file: PathBuf,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// Line number, from 1.
    line: usize,
    pattern: String,
    wanted: Wanted,
}

impl Profile {
    /// Reads a file with types of `format`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a rule: the error names the line.
    pub fn read(file: &Path, format: Format) -> Result<Profile> {
        let text =
            std::fs::read_to_string(file).map_err(|source| Error::Io { file: file.to_owned(), source })?;
        Profile::parse(&text, file, format)
    }

    /// Like [`Self::read`], from text; `file` only names it in errors.
    ///
    /// # Errors
    /// A line is not a rule.
    pub fn parse(text: &str, file: &Path, format: Format) -> Result<Profile> {
        let mut rules: Vec<Rule> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line_of = |reason: String| Error::Profile { file: file.to_owned(), line: i + 1, reason };
            let rule = line.split('#').next().unwrap_or_default().trim();
            if rule.is_empty() {
                continue;
            }
            let parts = rule.split_once('=').map(|(pattern, name)| (pattern.trim(), name.trim()));
            let Some((pattern, name)) =
                parts.filter(|(pattern, name)| !pattern.is_empty() && !name.is_empty())
            else {
                return Err(line_of(format!("found {rule:?}, expected PATTERN = TYPE")));
            };
            if let Some(first) = rules.iter().find(|r| r.pattern == pattern) {
                return Err(line_of(format!("line {} has the pattern {pattern:?} already", first.line)));
            }
            let wanted = Wanted::parse(format, name).map_err(|e| line_of(e.to_string()))?;
            rules.push(Rule { line: i + 1, pattern: pattern.to_owned(), wanted });
        }
        Ok(Profile { file: file.to_owned(), rules })
    }

    /// The file's name without folders.
    pub fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Index and type of the first rule that matches.
    pub(super) fn find(&self, tensor: &str) -> Option<(usize, Wanted)> {
        let at = self.rules.iter().position(|r| matches(r.pattern.as_bytes(), tensor.as_bytes()))?;
        Some((at, self.rules[at].wanted))
    }

    pub(super) fn n_rules(&self) -> usize {
        self.rules.len()
    }

    /// Description of a rule for people: `line 3, "*.x"`.
    pub(super) fn describe(&self, rule: usize) -> String {
        self.rules.get(rule).map(|r| format!("line {}, {:?}", r.line, r.pattern)).unwrap_or_default()
    }
}

/// True if a pattern of `*` and `?` matches the whole name. Takes at most the product of the
/// lengths in steps.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Position after the last star, and the characters of the name that it covers.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "a.b", true),
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.?", "a.b", true),
            ("a.?", "a.", false),
            ("*.weight", "blk.0.weight", true),
            ("*.weight", "blk.0.weights", false),
            ("blk.*.ffn_*.weight", "blk.12.ffn_up.weight", true),
            ("blk.*.ffn_*.weight", "blk.12.attn_q.weight", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        // Many stars do not take exponential time.
        assert!(!matches("*a".repeat(50).as_bytes(), "a".repeat(49).as_bytes()));
    }

    #[test]
    fn errors_name_the_line() {
        let parse = |text: &str, format| Profile::parse(text, Path::new("p.txt"), format);
        for (text, part) in [
            ("# a\n\n*.weight\n", "p.txt, line 3: found \"*.weight\", expected PATTERN = TYPE"),
            ("= q4", "line 1"),
            ("a =", "line 1"),
            ("a = q4\nb = q9", "line 2: type \"q9\""),
            ("a = q4_k", "line 1: type \"q4_k\""),
            ("a = q4\n\na = q8", "line 3: line 1 has the pattern \"a\" already"),
        ] {
            let message = parse(text, Format::Base).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let profile = parse("a = q4_k # why\nb* = keep", Format::Gguf).unwrap();
        assert_eq!(profile.find("bc"), Some((1, Wanted::Keep)));
        assert_eq!(profile.find("c"), None);
        assert_eq!((profile.n_rules(), profile.describe(1).as_str()), (2, "line 2, \"b*\""));
    }
}
