//! Constraints on an answer, such as a grammar: a rule that says after each token which tokens may
//! follow.
//!
//! A constraint becomes a mask of each output ([`device::Want::mask`]). If the device leaves a
//! processor free, a thread of its own computes masks from the moment a step is submitted. Masks
//! that are missing when the device chooses tokens are computed by the device's threads
//! ([`device::Masks`]).

mod worker;

use std::fmt;

pub(crate) use worker::{MaskJob, MaskWorker, panic_message};

/// Result of a constraint. An error ends the sequence, and only that, with
/// [`crate::FinishReason::ConstraintFailed`].
pub type ConstraintResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A rule for the tokens of an answer. Its state is the one after the tokens so far.
///
/// Calls after the first few should allocate nothing: they happen for every token.
pub trait Constraint: Send {
    /// Set the bits of the tokens that may come next in `words` `(n_vocab.div_ceil(32))`, which are
    /// 0: bit `t % 32` of word `t / 32`. End tokens are included if the text may end. Returns
    /// false, with `words` unchanged, if every token may come next.
    ///
    /// # Errors
    /// The constraint cannot go on.
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool>;

    /// Advance by a chosen token, which [`Self::mask`] allowed and which is no end token.
    ///
    /// # Errors
    /// The token may not follow, or the constraint cannot go on.
    fn accept(&mut self, token: u32) -> ConstraintResult<()>;

    /// Return to the state before the last `n_tokens`, which were draft tokens: at most
    /// [`crate::MAX_DRAFT`].
    ///
    /// # Errors
    /// The constraint cannot go back.
    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()>;

    /// Number of these tokens that may follow, one after the other, without end tokens. The state
    /// does not change.
    fn n_valid(&mut self, tokens: &[u32]) -> usize;

    /// Returns true if nothing but the end may follow.
    fn is_over(&self) -> bool;

    /// A copy with the same state.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Constraint for text::Matcher {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        text::Matcher::mask(self, words)?;
        Ok(true)
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        Ok(text::Matcher::accept(self, token)?)
    }

    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
        Ok(text::Matcher::roll_back(self, n_tokens)?)
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        text::Matcher::n_valid(self, tokens)
    }

    fn is_over(&self) -> bool {
        text::Matcher::is_over(self)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for text::CallGuard {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        Ok(text::CallGuard::mask(self, words)?)
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        Ok(text::CallGuard::accept(self, token)?)
    }

    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
        Ok(text::CallGuard::roll_back(self, n_tokens)?)
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        text::CallGuard::n_valid(self, tokens)
    }

    fn is_over(&self) -> bool {
        text::CallGuard::is_over(self)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}
