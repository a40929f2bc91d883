//! A grammar under construction, in llguidance's dialect of Lark.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;

use crate::{Grammar, Prepared, Tokenizer};

/// Optional white space between two marks.
pub(super) const WHITE: &str = "/[ \\t\\r\\n]{0,32}/";

/// Any text without special tokens, up to the next element.
pub(super) const ANYTHING: &str = "/(?s:.*)/";

/// Maximum number of members whose presence a rule counts; llguidance's parameters have 64 bits.
const MAX_COUNTED: usize = 60;

/// The rules so far.
pub(super) struct Lark<'a> {
    rules: String,
    n: usize,
    tokenizer: &'a Tokenizer,
    /// Names of rules by their bodies.
    known: HashMap<String, String>,
    /// Keys of schemas that the grammar does not enforce.
    unenforced: Vec<String>,
}

/// A grammar, and the keys that it does not enforce.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerGrammar {
    /// The grammar in Lark, or as the request gave it.
    pub grammar: Grammar,
    /// Keys of schemas with their paths: `uniqueItems at #/properties/tags`.
    pub unenforced: Vec<String>,
}

/// A part that occurs at most once, in any order with others.
pub(super) struct LarkMember {
    /// Name of its rule.
    pub(super) rule: String,
    pub(super) is_required: bool,
}

impl<'a> Lark<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Lark<'a> {
        // White space between two parts of JSON: a blank, or a line break with indentation.
        let rules = "ws: WS?\nWS: /[ ]|\\r?\\n[ \\t]{0,40}/\n".to_owned();
        Lark { rules, n: 0, tokenizer, known: HashMap::new(), unenforced: Vec::new() }
    }

    /// Returns the whole grammar.
    pub(super) fn finish(self, start: &str) -> AnswerGrammar {
        let grammar = Grammar::Lark(format!("start: {start}\n{}", self.rules));
        AnswerGrammar { grammar, unenforced: self.unenforced }
    }

    /// Adds a rule for a prepared schema.
    pub(super) fn prepared(&mut self, prepared: Prepared) -> String {
        let rule = self.rule(&prepared.expression());
        self.unenforced.extend(prepared.unenforced);
        self.unenforced.dedup();
        rule
    }

    fn name(&mut self, prefix: &str) -> String {
        self.n += 1;
        format!("{prefix}{}", self.n)
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = self.name("r");
        let _ = writeln!(self.rules, "{name}: {body}");
        self.known.insert(body.to_owned(), name.clone());
        name
    }

    /// Adds a rule whose body may refer to itself, and returns its name.
    pub(super) fn recursive_rule(
        &mut self,
        key: &str,
        body: impl FnOnce(&mut Self, &str) -> String,
    ) -> String {
        if let Some(name) = self.known.get(key) {
            return name.clone();
        }
        let name = self.name("r");
        self.known.insert(key.to_owned(), name.clone());
        let body = body(self, &name);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    pub(super) fn terminal(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = self.name("T");
        let _ = writeln!(self.rules, "{name}: {body}");
        self.known.insert(body.to_owned(), name.clone());
        name
    }

    /// Grammar of each of `members` at most once and the required ones exactly once, in any order.
    /// `separator` comes between two of them and `close` after the last; `extra` members may be
    /// among them.
    pub(super) fn members(
        &mut self,
        mut members: Vec<LarkMember>,
        extra: Option<&str>,
        separator: &str,
        close: &str,
    ) -> String {
        members.sort_by_key(|member| !member.is_required);
        let n_required = members.iter().filter(|member| member.is_required).count();
        let (first, rest, more) = (self.name("first"), self.name("rest"), self.name("more"));
        let mut firsts: Vec<String> = Vec::new();
        let mut mores: Vec<String> = Vec::new();
        if n_required == 0 {
            firsts.push(close.to_owned());
        }
        let is_counted = members.len() <= MAX_COUNTED;
        for (n, LarkMember { rule, .. }) in members.iter().enumerate() {
            if is_counted {
                firsts.push(format!("{rule} {rest}::{:#x}", 1u64 << n));
                mores.push(format!("{rule} {rest}::set_bit({n}) %if bit_clear({n})"));
            } else {
                firsts.push(format!("{rule} {rest}"));
                mores.push(format!("{rule} {rest}"));
            }
        }
        if let Some(extra) = extra {
            firsts.push(format!("{extra} {rest}{}", if is_counted { "::0x0" } else { "" }));
            mores.push(format!("{extra} {rest}{}", if is_counted { "::_" } else { "" }));
        }
        let alternatives = |alternatives: &[String]| alternatives.join("\n    | ");
        let _ = writeln!(self.rules, "{first}: {}", alternatives(&firsts));
        if mores.is_empty() {
            return first;
        }
        let rests = match is_counted {
            true => {
                let is_complete = match n_required {
                    0 => String::new(),
                    n => format!(" %if is_ones([0:{n}])"),
                };
                let has_more = match extra {
                    Some(_) => String::new(),
                    None => format!(" %if bit_count_lt(_, {})", members.len()),
                };
                [format!("{close}{is_complete}"), format!("{separator} {more}::_{has_more}")]
            }
            false => [close.to_owned(), format!("{separator} {more}")],
        };
        let parameter = if is_counted { "::_" } else { "" };
        let _ = writeln!(self.rules, "{rest}{parameter}: {}", alternatives(&rests));
        let _ = writeln!(self.rules, "{more}{parameter}: {}", alternatives(&mores));
        first
    }

    fn is_special(&self, mark: &str) -> bool {
        self.tokenizer.token_id(mark).is_some_and(|id| self.tokenizer.is_special(id))
    }

    /// Returns true if a mark begins with a special token.
    fn begins_special(&self, mark: &str) -> bool {
        self.marks(mark).starts_with("<[")
    }

    /// A text in which special tokens match tokens instead of text.
    pub(super) fn marks(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let (mut plain, mut at) = (String::new(), 0);
        while let Some(c) = text[at..].chars().next() {
            let close = match c {
                '<' => Some('>'),
                '[' => Some(']'),
                _ => None,
            };
            let end = close.and_then(|close| Some(at + text[at..].find(close)? + 1));
            match end.filter(|end| self.is_special(&text[at..*end])) {
                Some(end) => {
                    if !plain.is_empty() {
                        parts.push(literal(&std::mem::take(&mut plain)));
                    }
                    let id = self.tokenizer.token_id(&text[at..end]).unwrap_or_default();
                    parts.push(format!("<[{id}]>"));
                    at = end;
                }
                None => {
                    plain.push(c);
                    at += c.len_utf8();
                }
            }
        }
        if !plain.is_empty() {
            parts.push(literal(&plain));
        }
        parts.join(" ")
    }

    /// Grammar of any text up to and including a mark.
    pub(super) fn until(&mut self, mark: &str) -> String {
        match self.begins_special(mark) {
            true => {
                let text = self.terminal(ANYTHING);
                format!("{text} {}", self.marks(mark))
            }
            false => {
                let name = self.name("r");
                let _ = writeln!(self.rules, "{name}[suffix={}]: {ANYTHING}", literal(mark));
                name
            }
        }
    }
}

/// Quotes a text.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Encloses a regular expression in slashes.
pub(super) fn between_slashes(regex: &str) -> String {
    let (mut out, mut is_escaped) = (String::from("/"), false);
    for c in regex.chars() {
        if c == '/' && !is_escaped {
            out.push('\\');
        }
        is_escaped = c == '\\' && !is_escaped;
        match c {
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('/');
    out
}
