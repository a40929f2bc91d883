//! What an answer must be: a rule that says after each token which tokens may follow, such as a grammar.
//!
//! The rule becomes a mask of each output ([`device::Want::mask`]). Where the device leaves a processor free, masks are computed on
//! a thread of their own from the moment a step is submitted; those that are not there when the device chooses tokens are computed
//! by its threads that choose ([`device::Masks`]).

mod worker;

use std::fmt;

pub(crate) use worker::{MaskJob, MaskWorker, panic_message};

/// What a constraint gives; its error ends the sequence, and only that, with [`crate::FinishReason::ConstraintFailed`].
pub type ConstraintResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Says which tokens may follow. It has the state after the tokens of the answer so far.
///
/// Calls after the first few should allocate nothing: they are made for every token.
pub trait Constraint: Send {
    /// Set the bits of the tokens that may come next in `words` `(n_vocab.div_ceil(32))`, which are 0: bit `t % 32` of word
    /// `t / 32`; those of end tokens too, where the text may end. False: every token may, and `words` are as they were.
    ///
    /// # Errors
    /// It cannot go on.
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool>;

    /// A token was chosen that [`Self::mask`] allowed; never one that ends the answer.
    ///
    /// # Errors
    /// It may not follow, or the constraint cannot go on.
    fn accept(&mut self, token: u32) -> ConstraintResult<()>;

    /// Go back to the state before the last `n_tokens` were accepted, which were guesses: at most [`crate::MAX_DRAFT`].
    ///
    /// # Errors
    /// It cannot go back.
    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()>;

    /// How many of these tokens may follow, one after the other; ends of the answer do not count. The state is the same
    /// afterwards.
    fn n_valid(&mut self, tokens: &[u32]) -> usize;

    /// Whether nothing but the end may follow.
    fn is_over(&self) -> bool;

    /// Another with the same state.
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
