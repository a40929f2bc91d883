//! Tokens to text as they come. A token may end within a character; the text that is returned never does.

use std::sync::Arc;

use crate::Tokenizer;

/// Which marks, such as `<|im_end|>`, are written out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShowSpecial {
    /// None.
    #[default]
    Nothing,
    /// All.
    All,
    /// These token ids, ascending: marks that a parser of the text must see.
    Only(Arc<[u32]>),
}

impl ShowSpecial {
    /// Whether a mark is written out.
    pub fn shows(&self, id: u32) -> bool {
        match self {
            ShowSpecial::Nothing => false,
            ShowSpecial::All => true,
            ShowSpecial::Only(ids) => ids.binary_search(&id).is_ok(),
        }
    }
}

/// Turns tokens into text one by one. Allocates when it is made and never again, so that the loop that generates
/// allocates nothing.
///
/// The text is taken as the continuation of another: a first word keeps the space before it.
#[derive(Clone)]
pub struct Detokenizer {
    show_special: ShowSpecial,
    /// Bytes of a character that is not complete yet; at most 3 between calls.
    pending: Vec<u8>,
    /// What the last call returned.
    text: String,
}

impl Detokenizer {
    /// For this tokenizer's tokens. Marks such as `<|im_end|>` are written out as `show_special` says.
    pub fn new(tokenizer: &Tokenizer, show_special: ShowSpecial) -> Detokenizer {
        let longest = tokenizer.longest_token() + 4;
        Detokenizer {
            show_special,
            pending: Vec::with_capacity(longest),
            // Every invalid byte may become U+FFFD, which has three.
            text: String::with_capacity(3 * longest),
        }
    }

    /// Add a token and get the text that is complete now, which may be none. It stays until the next call.
    /// `tokenizer` is the one this was made for.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.text.clear();
        if !tokenizer.is_special(id) || self.show_special.shows(id) {
            self.pending.extend_from_slice(tokenizer.token_bytes(id));
            self.take_complete();
        }
        &self.text
    }

    /// The end: an incomplete character becomes U+FFFD. A new text may begin afterwards.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        self.pending.clear();
        &self.text
    }

    /// Drop what is pending and begin a new text.
    pub fn reset(&mut self) {
        self.pending.clear();
        self.text.clear();
    }

    /// Move all that is complete from `pending` to `text`, by the rule of `String::from_utf8_lossy`: one U+FFFD
    /// for each longest beginning of a character that does not go on as one.
    fn take_complete(&mut self) {
        let mut done = 0;
        while let Some(rest) = self.pending.get(done..).filter(|rest| !rest.is_empty()) {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    done = self.pending.len();
                }
                Err(error) => {
                    let valid = rest.get(..error.valid_up_to()).unwrap_or_default();
                    self.text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    done += valid.len();
                    let Some(invalid) = error.error_len() else { break }; // The character may still be completed.
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    done += invalid;
                }
            }
        }
        self.pending.drain(..done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marks_that_are_named_are_shown() {
        let only = ShowSpecial::Only([3, 7, 9].into());
        let shown = |show: &ShowSpecial| (0..10).filter(|id| show.shows(*id)).collect::<Vec<u32>>();
        assert_eq!(shown(&only), [3, 7, 9]);
        assert_eq!((shown(&ShowSpecial::Nothing).len(), shown(&ShowSpecial::All).len()), (0, 10));
    }
}
