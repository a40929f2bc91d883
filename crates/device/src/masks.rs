//! Masks of a step, which the host may still compute while the device computes the step's rows.

use std::fmt;

use crate::Slice;

/// Masks that are computed while a step runs, or on demand.
pub trait MaskSource: Sync {
    /// Number of words of all masks.
    fn n_words(&self) -> usize;

    /// Calls `look` once with the words of a mask ([`crate::Want::mask`]). Waits for another thread
    /// that computes them, or computes them on this thread. Allocates nothing.
    fn with(&self, mask: Slice, look: &mut dyn FnMut(&[u32]));
}

/// Words of all masks of a step ([`crate::Want::mask`]). A device reads a mask only when it chooses
/// the token. By then the mask is usually ready; if not, the choosing threads compute the masks of
/// their outputs in parallel. The masks are valid until [`crate::Program::submit`] returns.
#[derive(Clone, Copy)]
pub enum Masks<'a> {
    /// Computed words.
    Ready(&'a [u32]),
    /// Words that are being computed, or will be.
    Later(&'a dyn MaskSource),
}

impl Masks<'_> {
    /// Number of words, known at once.
    pub fn len(&self) -> usize {
        match self {
            Masks::Ready(words) => words.len(),
            Masks::Later(source) => source.n_words(),
        }
    }

    /// Returns true if the step has no masks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `look` once with the words of a mask. Waits until they are computed.
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
