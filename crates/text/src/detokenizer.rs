//! Tokens to text as they come. A token may end within a character; the text that is returned never does.

use crate::Tokenizer;

/// Turns tokens into text one by one. Allocates when it is made and never again, so that the loop that generates
/// allocates nothing.
///
/// The text is taken as the continuation of another: a first word keeps the space before it.
#[derive(Clone)]
pub struct Detokenizer {
    skip_special: bool,
    /// Bytes of a character that is not complete yet; at most 3 between calls.
    pending: Vec<u8>,
    /// What the last call returned.
    text: String,
}

impl Detokenizer {
    /// For this tokenizer's tokens. With `skip_special`, marks such as `<|im_end|>` are not written out.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Detokenizer {
        let longest = tokenizer.longest_token() + 4;
        Detokenizer {
            skip_special,
            pending: Vec::with_capacity(longest),
            // Every invalid byte may become U+FFFD, which has three.
            text: String::with_capacity(3 * longest),
        }
    }

    /// Add a token and get the text that is complete now, which may be none. It stays until the next call.
    /// `tokenizer` is the one this was made for.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.text.clear();
        if !(self.skip_special && tokenizer.is_special(id)) {
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
