//! The start of a lazy grammar: at a text, at a match of a regular expression, or at a token.

use regex_automata::meta::{Config, Regex};

use crate::{Error, Result};

/// Bytes at the end of the text that regular expressions search.
const MAX_TEXT: usize = 16 << 10;

/// Maximum number of triggers of a grammar.
pub const MAX_TRIGGERS: usize = 32;

/// Longest trigger, in bytes.
pub const MAX_TRIGGER: usize = 1 << 10;

/// Maximum number of bytes of a trigger's compiled regular expression. `\w{50}` needs more, as `\w`
/// is all letters of Unicode; `<tool_call>[\s\S]*` needs a hundredth.
const MAX_COMPILED: usize = 256 << 10;

/// Maximum number of bytes of a regular expression's cached states during a search.
const SEARCH_CACHE: usize = 512 << 10;

/// A trigger, with llama.cpp's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// This token, with which the grammar begins.
    Token(u32),
    /// This text, with which the grammar begins.
    Word(String),
    /// A match of this expression anywhere. The grammar begins at its first group, or at the match
    /// if there is none.
    Pattern(String),
    /// Like `Pattern`, but the expression must match the whole text so far.
    WholePattern(String),
}

/// Compiled triggers.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    tokens: Vec<u32>,
    words: Vec<String>,
    patterns: Vec<Regex>,
}

impl Triggers {
    /// Compiles triggers.
    ///
    /// # Errors
    /// There is none or more than [`MAX_TRIGGERS`], one is empty or longer than [`MAX_TRIGGER`]
    /// bytes, or a regular expression is not valid or too large.
    pub fn new(triggers: &[Trigger]) -> Result<Triggers> {
        let wrong = |what: String| Error::Grammar { what };
        if triggers.is_empty() {
            return Err(wrong("it waits for a trigger, expected at least one".into()));
        }
        if triggers.len() > MAX_TRIGGERS {
            let n = triggers.len();
            return Err(wrong(format!("it waits for {n} triggers, expected at most {MAX_TRIGGERS}")));
        }
        let config = Config::new()
            .nfa_size_limit(Some(MAX_COMPILED))
            .onepass_size_limit(Some(MAX_COMPILED))
            .dfa_size_limit(Some(MAX_COMPILED))
            .hybrid_cache_capacity(SEARCH_CACHE);
        let mut found = Triggers::default();
        for trigger in triggers {
            if let Trigger::Word(text) | Trigger::Pattern(text) | Trigger::WholePattern(text) = trigger
                && text.len() > MAX_TRIGGER
            {
                let n = text.len();
                return Err(wrong(format!("a trigger has {n} bytes, expected at most {MAX_TRIGGER}")));
            }
            match trigger {
                Trigger::Token(token) => found.tokens.push(*token),
                Trigger::Word(text) if text.is_empty() => {
                    return Err(wrong("a trigger is an empty text, expected at least one character".into()));
                }
                Trigger::Word(text) => found.words.push(text.clone()),
                Trigger::Pattern(pattern) | Trigger::WholePattern(pattern) => {
                    let pattern = match trigger {
                        Trigger::WholePattern(_) => format!("^(?:{pattern})$"),
                        Trigger::Token(_) | Trigger::Word(_) | Trigger::Pattern(_) => pattern.clone(),
                    };
                    let regex = Regex::builder().configure(config.clone()).build(&pattern);
                    found.patterns.push(regex.map_err(|error| match error.size_limit() {
                        Some(limit) => wrong(format!(
                            "the trigger {pattern:?} takes more than {limit} bytes when it is compiled, expected a smaller one"
                        )),
                        None => wrong(format!("the trigger {pattern:?}: {error}")),
                    })?);
                }
            }
        }
        Ok(found)
    }

    /// Returns true if this token is a trigger.
    pub fn has_token(&self, token: u32) -> bool {
        self.tokens.contains(&token)
    }

    /// Position of the first trigger in a text whose last `n_new` bytes are new.
    pub fn find(&self, text: &str, n_new: usize) -> Option<usize> {
        let word = |word: &String| {
            let mut from = text.len().saturating_sub(n_new + word.len());
            while !text.is_char_boundary(from) {
                from += 1;
            }
            Some(from + text[from..].find(word.as_str())?)
        };
        let pattern = |regex: &Regex| {
            let mut from = text.len().saturating_sub(MAX_TEXT);
            while !text.is_char_boundary(from) {
                from += 1;
            }
            let mut groups = regex.create_captures();
            regex.captures(&text[from..], &mut groups);
            let span = groups.get_group(1).or_else(|| groups.get_group(0))?;
            Some(from + span.start)
        };
        let words = self.words.iter().filter_map(word);
        words.chain(self.patterns.iter().filter_map(pattern)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_trigger_is_found_at_its_beginning() {
        let find = |triggers: &[Trigger], text: &str| Triggers::new(triggers).unwrap().find(text, text.len());
        let word = |text: &str| Trigger::Word(text.into());
        assert_eq!(find(&[word("<b"), word("<a")], "é<a<b"), Some(2));
        assert_eq!(find(&[word("<c")], "é<a<b"), None);
        assert_eq!(find(&[Trigger::Pattern("x(y+)".into())], "..xyy"), Some(3));
        assert_eq!(find(&[Trigger::Pattern("y+".into())], "..xyy"), Some(3));
        assert_eq!(find(&[Trigger::WholePattern("[^x]*(x)".into())], "..x"), Some(2));
        assert_eq!(find(&[Trigger::WholePattern("x".into())], "..x"), None);
        // Old text is searched again only if a word may have begun in it.
        assert_eq!(Triggers::new(&[word("abc")]).unwrap().find("xxabc", 1), Some(2));
        assert!(Triggers::new(&[Trigger::Token(7)]).unwrap().has_token(7));
        assert!(Triggers::new(&[]).is_err() && Triggers::new(&[Trigger::Pattern("(".into())]).is_err());
    }

    #[test]
    fn expensive_triggers_are_refused() {
        let refused = |triggers: &[Trigger]| Triggers::new(triggers).unwrap_err().to_string();
        let word = Trigger::Word("a".into());
        assert!(Triggers::new(&vec![word.clone(); MAX_TRIGGERS]).is_ok());
        assert!(refused(&vec![word; MAX_TRIGGERS + 1]).contains("33 triggers, expected at most 32"));
        assert!(refused(&[Trigger::Pattern("a".repeat(MAX_TRIGGER + 1))]).contains("1025 bytes"));
        for pattern in [r"\w{50}", "((a{100}){100}){100}"] {
            let error = refused(&[Trigger::Pattern(pattern.into())]);
            assert!(error.contains("bytes when it is compiled"), "{error}");
        }
        // Patterns of clients of llama.cpp.
        for pattern in ["[\\s\\S]*?(<tool_call>[\\s\\S]*)", r"\s+", "(?:^|\n)```(?:json|xml)?\\s*\\{"] {
            assert!(Triggers::new(&[Trigger::WholePattern(pattern.into())]).is_ok(), "{pattern}");
        }
    }
}
