//! The masks of a step, which may still be computed while the device computes its rows.

use std::fmt;

use crate::Slice;

/// Masks that are computed while a step runs, or when they are asked for.
pub trait MaskSource: Sync {
    /// How many words there will be.
    fn n_words(&self) -> usize;

    /// Call `look` once with the words of a mask ([`crate::Want::mask`]): waits for them, or computes them on this thread if
    /// nobody has begun. Allocates nothing.
    fn with(&self, mask: Slice, look: &mut dyn FnMut(&[u32]));
}

/// The words of all masks of a step ([`crate::Want::mask`]). A device asks for a mask when it chooses the token, not before: by
/// then it may be there, and otherwise the threads that choose compute the masks of their outputs side by side. They are gone when
/// [`crate::Program::submit`] returns.
#[derive(Clone, Copy)]
pub enum Masks<'a> {
    /// They are here.
    Ready(&'a [u32]),
    /// They are being computed, or will be.
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

    /// Call `look` once with the words of a mask, which may take until they are computed.
    pub fn with(&self, mask: Slice, look: &mut dyn FnMut(&[u32])) {
        match self {
            Masks::Ready(words) => look(mask.of(words)),
            Masks::Later(source) => source.with(mask, look),
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
