//! Speculation: several tokens of an answer in one step.
//!
//! A [`Proposer`] drafts the next tokens of a sequence. Draft tokens become rows of the step after
//! the next token, and each row gives logits. The sequence's own sampler then chooses tokens from
//! the draft's rows in order, with the history that it would have had. It stops when the chosen
//! token differs from the draft token. The first that differs is kept too. Rows after it are
//! discarded: their positions are not counted and will be overwritten.
//!
//! A recurrent state has no positions, and a step writes it as a whole, including draft tokens. If
//! all were right it is the sequence's. Otherwise the sequence keeps the state before the step, and
//! the next step recomputes the accepted rows before the next token. Rows cost little if reading
//! weights takes the time, so no device needs to write a state for each row. While draft tokens
//! stay wrong these rows become more; if they exceed the length of a draft, a step has no draft.
//!
//! # Why the answer does not change
//!
//! Choosing from a row does not depend on the draft token. Greedy decoding chooses the row's best
//! token, as it would alone. Sampling draws one random number for each token of the answer, as it
//! would alone, so the same seed gives the same tokens. That is rejection sampling (Leviathan et
//! al. 2023, arXiv:2211.17192) for a draft token `t` with all of the proposer's probability. `t` is
//! accepted with the probability `p(t)` that all stages of the sampler leave it. Otherwise the
//! drawn token is distributed as `p` without `t`, normalised.
//!
//! Rounding may change. With [`device::Numerics::Fast`] a device may add in another order for many
//! rows than for one, as it does for a batch of sequences. If the best two tokens are that close,
//! another may be chosen. With [`device::Numerics::Deterministic`] nothing changes at all.

mod acceptance;
mod controller;
mod draft_model;
mod ngram;
mod own_layer;

use std::time::Instant;

use device::Program;

use crate::kv::KvCache;
use crate::sequence::Sequence;
use crate::{Result, SequenceId};
pub(crate) use acceptance::Acceptance;
use controller::Controller;
pub use draft_model::DraftModel;
pub use ngram::NgramLookup;
pub(crate) use own_layer::OwnLayer;

/// Policy for verifying draft tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Never draft: a step has one row of each sequence that is answering.
    #[default]
    Off,
    /// Verify every draft. The number of rows of a step depends on the tokens alone.
    Always,
    /// Verify as many draft tokens as give the most tokens a second, by the measured acceptance
    /// rate and times of steps. The number of rows of a step then depends on time. With
    /// [`device::Numerics::Fast`] a token may depend on it too, if its best two are as close as
    /// rounding.
    Auto,
}

/// Largest number of draft tokens of a sequence in a step.
pub const MAX_DRAFT: usize = 64;

/// Number of draft tokens of a probe, while drafting does not seem to pay and only verifying shows
/// their quality.
const PROBE: usize = 4;

/// The target model, between two of its steps.
pub struct Target<'a> {
    pub(crate) program: &'a mut dyn Program,
    pub(crate) kv: &'a mut KvCache,
    /// Index of the plan of the layer that predicts one token more, if the program has it.
    pub(crate) plan: usize,
}

/// A sequence and its number of restarts.
pub(crate) type Owner = (SequenceId, u32);

/// Rows of a sequence that a step has computed and that stay.
pub struct Computed<'a> {
    pub(crate) slot: usize,
    pub(crate) owner: Owner,
    /// Position of the first row.
    pub(crate) first: usize,
    /// All tokens of the sequence, at least one of them after the last row.
    pub(crate) tokens: &'a [u32],
    /// `(n, hidden)` states that the model's head reads, for each row.
    pub(crate) states: &'a [f32],
}

/// A source of draft tokens. Their quality determines the speed of an answer, never its tokens.
pub trait Proposer: Send {
    /// Append at most `n` draft tokens that may follow `tokens`, of the sequence in `slot`, to the
    /// empty `draft`, which has room for them. Allocates nothing from one token to the next.
    ///
    /// # Errors
    /// A device failed.
    fn propose(
        &mut self,
        slot: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        target: &mut Target<'_>,
    ) -> Result<()>;

    /// Returns true if drafting is so cheap that it may go on without verifying, to see when it
    /// would pay.
    fn is_cheap(&self) -> bool {
        true
    }

    /// Returns true if the proposer needs the states of computed rows ([`Self::observe`]).
    fn reads_states(&self) -> bool {
        false
    }

    /// Receive the computed rows of a step. Allocates nothing.
    ///
    /// # Errors
    /// A device failed.
    fn observe(&mut self, _rows: &Computed<'_>, _target: &mut Target<'_>) -> Result<()> {
        Ok(())
    }
}

/// The proposer of an engine, and the controller of its drafts.
pub(crate) struct Speculator {
    proposer: Box<dyn Proposer>,
    /// The controller; `None`: every draft is verified.
    controller: Option<Controller>,
    max_draft: usize,
}

/// Maximum number of rows of a sequence in a step with draft tokens. `goes_back`: after a wrong
/// draft token the rows of its step are computed again. The step that does so has draft tokens only
/// if these rows are no more than a draft ([`Scheduler::fill_answer`]).
///
/// [`Scheduler::fill_answer`]: crate::scheduler::Scheduler
pub(crate) fn most_rows(max_draft: usize, goes_back: bool) -> usize {
    1 + max_draft + if goes_back { max_draft } else { 0 }
}

impl Speculator {
    /// A speculator for `n_sequences` sequences, which looks into their own texts; `None` if the
    /// engine does not speculate. `goes_back`: see [`most_rows`].
    pub(crate) fn new(
        speculate: Speculate,
        max_draft: usize,
        n_sequences: usize,
        goes_back: bool,
    ) -> Option<Speculator> {
        let max_rows = n_sequences * most_rows(max_draft, goes_back);
        let controller = match speculate {
            Speculate::Off => return None,
            Speculate::Always => None,
            Speculate::Auto => Some(Controller::new(max_rows, goes_back)),
        };
        Some(Speculator { proposer: Box::new(NgramLookup), controller, max_draft })
    }

    /// Maximum number of draft tokens of a sequence in a step.
    pub(crate) fn max_draft(&self) -> usize {
        self.max_draft
    }

    /// Replace the proposer.
    pub(crate) fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        self.proposer = proposer;
    }

    /// Begin a step of `n_rows` rows of `n_sequences` sequences, without draft tokens.
    pub(crate) fn begin_step(&mut self, n_sequences: usize, n_rows: usize) {
        if let Some(controller) = &mut self.controller {
            controller.begin_step(n_sequences, n_rows);
        }
    }

    /// Draft at most `most` tokens, of a vocabulary of `n_vocab`, for the sequence in `slot`. They
    /// go into [`Sequence::draft`] to be verified, or into its [`Acceptance`] to be compared only.
    ///
    /// # Errors
    /// The proposer's device failed.
    pub(crate) fn guess(
        &mut self,
        slot: usize,
        sequence: &mut Sequence,
        most: usize,
        n_vocab: usize,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let most = most.min(self.max_draft);
        self.propose(slot, sequence, most, target)?;
        // Proposers are not trusted, and ids of another model's padding mean nothing here.
        let draft = &mut sequence.draft;
        let n_known = draft.iter().take(most).take_while(|id| (**id as usize) < n_vocab).count();
        draft.truncate(n_known);
        Ok(())
    }

    fn propose(
        &mut self,
        slot: usize,
        sequence: &mut Sequence,
        most: usize,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let n_certain = sequence.n_missing();
        let Sequence { tokens, draft, acceptance, .. } = sequence;
        let Some(controller) = &mut self.controller else {
            return self.proposer.propose(slot, tokens, most, draft, target);
        };
        let is_cheap = self.proposer.is_cheap();
        // A proposer that did not draft for the token before must catch up first, so its time is
        // not typical.
        let is_steady = acceptance.is_steady();
        let n = match controller.n_draft(acceptance, most, n_certain) {
            0 if !is_cheap && acceptance.is_probe_due() => most.min(PROBE),
            n => n,
        };
        if n > 0 {
            let begun = Instant::now();
            self.proposer.propose(slot, tokens, n, draft, target)?;
            let seconds = begun.elapsed().as_secs_f64();
            controller.add_draft(acceptance, draft.len(), seconds, is_steady);
        } else if is_cheap && most > 0 {
            self.proposer.propose(slot, tokens, 1, draft, target)?;
            acceptance.set_unverified(draft.pop());
        }
        Ok(())
    }

    /// Returns true if [`Self::observe_rows`] has an effect.
    pub(crate) fn reads_states(&self) -> bool {
        self.proposer.reads_states()
    }

    /// Pass the computed rows of a step to the proposer.
    ///
    /// # Errors
    /// As [`Proposer::observe`].
    pub(crate) fn observe_rows(&mut self, rows: &Computed<'_>, target: &mut Target<'_>) -> Result<()> {
        self.proposer.observe(rows, target)
    }

    /// Record the seconds of a step in which every sequence was answering.
    pub(crate) fn observe(&mut self, n_rows: usize, seconds: f64) {
        if let Some(controller) = &mut self.controller {
            controller.observe(n_rows, seconds);
        }
    }
}
