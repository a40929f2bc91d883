//! The masks of a step, which may still be computed while the device computes its rows.

use std::fmt;

/// Masks that somebody else computes while a step runs.
pub trait MaskSource: Sync {
    /// How many words there will be.
    fn n_words(&self) -> usize;

    /// Wait until all words are there, and call `look` once with them. Allocates nothing.
    fn with(&self, look: &mut dyn FnMut(&[u32]));
}

/// The words of all masks of a step ([`crate::Want::mask`]). A device asks for them when it chooses tokens, not before: by then
/// they mostly are there. They are gone when [`crate::Program::submit`] returns.
#[derive(Clone, Copy)]
pub enum Masks<'a> {
    /// They are here.
    Ready(&'a [u32]),
    /// They are being computed.
    Later(&'a dyn MaskSource),
}

impl Masks<'_> {
    /// How many words there are, which takes no time.
    pub fn len(&self) -> usize {
        match self {
            Masks::Ready(words) => words.len(),
            Masks::Later(source) => source.n_words(),
        }
    }

    /// Whether the step has no masks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Call `look` once with all words, which may take until they are computed.
    pub fn with(&self, look: &mut dyn FnMut(&[u32])) {
        match self {
            Masks::Ready(words) => look(words),
            Masks::Later(source) => source.with(look),
        }
    }
}

impl Default for Masks<'_> {
    fn default() -> Self {
        Masks::Ready(&[])
    }
}

impl fmt::Debug for Masks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words", self.len())
    }
}
