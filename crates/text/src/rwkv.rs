//! The tokenizer of RWKV's "World" models, which always uses the longest token. Files write tokens
//! as byte strings with backslash escapes, `\n` or `\xe2`.

use crate::Result;
use crate::prefixes::{By, Prefixes};
use crate::vocabulary::{Kind, Vocabulary};

/// The encoder of an RWKV vocabulary.
pub(crate) struct Rwkv {
    prefixes: Prefixes,
    /// Token of a byte that no token begins with; `None` drops the byte.
    unknown: Option<u32>,
}

impl Rwkv {
    /// Makes an encoder.
    ///
    /// # Errors
    /// A token is too long.
    pub(crate) fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<Rwkv> {
        let prefixes = Prefixes::new("tokenizer.ggml.tokens", vocabulary, By::Bytes, |kind| match kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused | Kind::Byte => true,
            Kind::Unknown | Kind::Control => false,
        })?;
        Ok(Rwkv { prefixes, unknown })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let mut longest = None;
            self.prefixes.of(vocabulary, rest, &mut |id, len| longest = Some((id, len)));
            out.extend(longest.map(|(id, _)| id).or(self.unknown));
            rest = rest.get(longest.map_or(1, |(_, len)| len)..).unwrap_or_default();
        }
    }
}
