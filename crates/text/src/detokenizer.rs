//! Streaming conversion of tokens to text. A token may end within a character; the returned text
//! never does.

use std::sync::Arc;

use crate::Tokenizer;

/// Selection of special tokens, such as `<|im_end|>`, that are written to the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShowSpecial {
    /// No special tokens.
    #[default]
    Nothing,
    /// All special tokens.
    All,
    /// Special tokens by id, in ascending order, that a parser of the text must see.
    Only(Arc<[u32]>),
}

impl ShowSpecial {
    /// Returns true if a special token is written.
    pub fn shows(&self, id: u32) -> bool {
        match self {
            ShowSpecial::Nothing => false,
            ShowSpecial::All => true,
            ShowSpecial::Only(ids) => ids.binary_search(&id).is_ok(),
        }
    }
}

/// Converts tokens to text one by one. It allocates only when it is made, so that the generation
/// loop allocates nothing.
///
/// The text is a continuation of another: a first word keeps the space before it.
#[derive(Clone)]
pub struct Detokenizer {
    show_special: ShowSpecial,
    /// Bytes of an incomplete character; at most 3 between calls.
    pending: Vec<u8>,
    /// Result of the last call.
    text: String,
}

impl Detokenizer {
    /// Makes a detokenizer for this tokenizer. `show_special` selects the special tokens to write.
    pub fn new(tokenizer: &Tokenizer, show_special: ShowSpecial) -> Detokenizer {
        let longest = tokenizer.longest_token() + 4;
        Detokenizer {
            show_special,
            pending: Vec::with_capacity(longest),
            // Every invalid byte may become U+FFFD, which has three bytes.
            text: String::with_capacity(3 * longest),
        }
    }

    /// Adds a token and returns the text that is now complete, which may be empty. The text is
    /// valid until the next call. `tokenizer` must be the one passed to [`Self::new`].
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.text.clear();
        if !tokenizer.is_special(id) || self.show_special.shows(id) {
            self.pending.extend_from_slice(tokenizer.token_bytes(id));
            self.take_complete();
        }
        &self.text
    }

    /// Ends the text: an incomplete character becomes U+FFFD. A new text may follow.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        self.pending.clear();
        &self.text
    }

    /// Drops the pending bytes and starts a new text.
    pub fn reset(&mut self) {
        self.pending.clear();
        self.text.clear();
    }

    /// Moves complete characters from `pending` to `text`. As in `String::from_utf8_lossy`, each
    /// longest start of a character that is not continued becomes one U+FFFD.
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
                    // The character may still be completed.
                    let Some(invalid) = error.error_len() else { break };
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
    fn only_selected_special_tokens_are_shown() {
        let only = ShowSpecial::Only([3, 7, 9].into());
        let shown = |show: &ShowSpecial| (0..10).filter(|id| show.shows(*id)).collect::<Vec<u32>>();
        assert_eq!(shown(&only), [3, 7, 9]);
        assert_eq!((shown(&ShowSpecial::Nothing).len(), shown(&ShowSpecial::All).len()), (0, 10));
    }
}
