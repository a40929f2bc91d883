//! Where a grammar that waits begins: at a text, at what a regular expression finds, or at a token.

use regex_automata::meta::Regex;

use crate::{Error, Result};

/// The longest text that regular expressions look at, in bytes: its end.
const MAX_TEXT: usize = 64 << 10;

/// One trigger, with the meaning that it has in llama.cpp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// This token; the grammar begins with it.
    Token(u32),
    /// This text; the grammar begins with it.
    Word(String),
    /// Where this matches, anywhere; the grammar begins at its first group, or at the match if it has none.
    Pattern(String),
    /// The same, and all of the text so far matches.
    WholePattern(String),
}

/// Triggers ready to be looked for.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    tokens: Vec<u32>,
    words: Vec<String>,
    patterns: Vec<Regex>,
}

impl Triggers {
    /// Of these.
    ///
    /// # Errors
    /// There is none, one is empty, or a regular expression is not valid.
    pub fn new(triggers: &[Trigger]) -> Result<Triggers> {
        let wrong = |what: String| Error::Grammar { what };
        if triggers.is_empty() {
            return Err(wrong("it waits for a trigger, expected at least one".into()));
        }
        let mut found = Triggers::default();
        for trigger in triggers {
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
                    let regex = Regex::new(&pattern);
                    found
                        .patterns
                        .push(regex.map_err(|error| wrong(format!("the trigger {pattern:?}: {error}")))?);
                }
            }
        }
        Ok(found)
    }

    /// Whether this token is one.
    pub fn has_token(&self, token: u32) -> bool {
        self.tokens.contains(&token)
    }

    /// Where in a text, whose last `n_new` bytes have not been looked at, the first trigger begins.
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
        // What has been looked at is looked at again only where a word may have begun.
        assert_eq!(Triggers::new(&[word("abc")]).unwrap().find("xxabc", 1), Some(2));
        assert!(Triggers::new(&[Trigger::Token(7)]).unwrap().has_token(7));
        assert!(Triggers::new(&[]).is_err() && Triggers::new(&[Trigger::Pattern("(".into())]).is_err());
    }
}
