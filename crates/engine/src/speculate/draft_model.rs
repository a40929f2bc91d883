//! Draft tokens by a smaller model of the same vocabulary.
//!
//! The draft model computes steps as any model does, with one sequence in each slot of the target.
//! Rows of rejected draft tokens are found by comparing tokens, and overwritten. If its layers are
//! recurrent, drafting starts from the state after the known tokens, which is kept. Accepted draft
//! tokens are then computed again with the tokens after them.

use std::sync::Arc;

use super::{Proposer, Speculate, Target};
use device::Want;

use crate::scheduler::{OutputRows, Scheduler};
use crate::{Engine, Error, LoadOptions, MemoryItem, Model, Result, memory};

/// Largest difference of the padded sizes of two equal vocabularies: heads are padded to round
/// numbers.
const MAX_PADDING: usize = 1024;

/// A draft model.
pub struct DraftModel {
    engine: Engine,
    slots: Vec<Slot>,
}

/// A sequence in the draft model.
struct Slot {
    /// Tokens whose keys and values are computed; capacity `n_ctx`.
    tokens: Vec<u32>,
    /// Number of these tokens that are certain to stay. Earlier ones cannot be undone: a window may
    /// have freed pages before them, and a state has no history.
    n_kept: usize,
    /// The best token after them.
    best: u32,
}

impl DraftModel {
    /// Load `model` beside `target`, for the same number of sequences of the same length. The
    /// options that the target determines are ignored.
    ///
    /// # Errors
    /// The vocabularies differ; both do not fit in memory together; or as [`Engine::new`].
    pub fn new(model: Arc<Model>, target: &Engine, options: &LoadOptions) -> Result<DraftModel> {
        same_vocabulary(&model, target.model())?;
        let limits = target.limits();
        let options = LoadOptions {
            n_ctx: Some(limits.n_ctx),
            n_sequences: limits.max_spans,
            n_outputs: None,
            speculate: Speculate::Off,
            latency_steps: None,
            ..options.clone()
        };
        let mut report = memory::plan_memory(&model, target.device().as_ref(), &options)?;
        // Free memory excludes what the target has committed, but includes its mapped file and its
        // later pages.
        let beside = target.memory().mapped + target.memory().reserved;
        report.items.push(MemoryItem {
            what: "the model that it drafts for".into(),
            bytes: beside,
            residence: "mapped",
        });
        report.total += beside;
        report.mapped += beside;
        if options.check_memory && report.installed > 0 && report.total > report.free {
            report.fits = false;
            return Err(Error::DoesNotFit(Box::new(report)));
        }
        let slot = || Slot { tokens: Vec::with_capacity(limits.n_ctx), n_kept: 0, best: 0 };
        Ok(DraftModel {
            slots: (0..limits.max_spans).map(|_| slot()).collect(),
            engine: Engine::new(model, target.device(), &options)?,
        })
    }

    /// Compute the tokens that a slot lacks of `tokens`. Returns the best token after them.
    fn follow(&mut self, slot: usize, tokens: &[u32]) -> Result<u32> {
        let Slot { tokens: computed, n_kept, best } = &mut self.slots[slot];
        let Engine { scheduler: Scheduler { kv, .. }, limits, .. } = &mut self.engine;
        kv.forget_in_flight(slot);
        let has_states = kv.has_states();
        if has_states {
            computed.truncate(*n_kept);
            if computed == tokens {
                return Ok(*best);
            }
        }
        // The last token is always computed, since its logits are needed.
        let n_last = tokens.len() - 1;
        let n_same = computed.iter().zip(&tokens[..n_last]).take_while(|(a, b)| a == b).count();
        if n_same < *n_kept {
            kv.end(slot);
            computed.clear();
            *n_kept = 0;
        }
        computed.truncate(n_same);
        let max_rows = limits.max_rows;
        while self.slots[slot].tokens.len() < tokens.len() {
            let first = self.slots[slot].tokens.len();
            let end = tokens.len().min(first + max_rows);
            self.compute(slot, &tokens[first..end], end == tokens.len())?;
            let kept = if has_states { end } else { end.min(n_last) };
            let kv = &mut self.engine.scheduler.kv;
            kv.note_rows_done(slot, kept);
            kv.advance(slot, kept);
            self.slots[slot].n_kept = kept;
        }
        self.slots[slot].best = self.best();
        Ok(self.best())
    }

    /// Compute these tokens after those of a slot.
    fn compute(&mut self, slot: usize, tokens: &[u32], is_last: bool) -> Result<()> {
        let first = self.slots[slot].tokens.len();
        let Engine { scheduler: Scheduler { kv, buffers, .. }, program, .. } = &mut self.engine;
        kv.reserve(slot, first, tokens.len(), program.as_mut())?;
        buffers.clear();
        let outputs = if is_last { OutputRows::Last(1) } else { OutputRows::None };
        buffers.push(slot, first, tokens, outputs, Want::BEST);
        buffers.push_state(kv.state_use(slot));
        self.engine.run()?;
        let kv = &mut self.engine.scheduler.kv;
        kv.note_rows_submitted(slot);
        kv.keep_last_in_flight(slot);
        self.slots[slot].tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn best(&self) -> u32 {
        self.engine.program.chosen().first().and_then(|chosen| chosen.token).unwrap_or_default()
    }
}

impl Proposer for DraftModel {
    fn propose(
        &mut self,
        slot: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> Result<()> {
        // Ids of one model's padding mean nothing to the other.
        let n_ours = self.engine.model().n_vocab();
        if n == 0 || tokens.iter().any(|id| *id as usize >= n_ours) {
            return Ok(());
        }
        draft.push(self.follow(slot, tokens)?);
        while let Some(&last) = draft.last()
            && draft.len() < n
        {
            self.compute(slot, &[last], true)?;
            draft.push(self.best());
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        false
    }
}

/// Check that the ids of two models mean the same.
fn same_vocabulary(draft: &Model, target: &Model) -> Result<()> {
    let differs = |what: String| Error::OtherVocabulary { file: draft.path().to_owned(), what };
    let (ours, theirs) = (draft.n_vocab(), target.n_vocab());
    if ours.abs_diff(theirs) > MAX_PADDING {
        return Err(differs(format!("it has {ours} tokens, and the model has {theirs}")));
    }
    let (Some(a), Some(b)) = (draft.tokenizer()?, target.tokenizer()?) else { return Ok(()) };
    let n = a.n_tokens().min(b.n_tokens()).min(ours).min(theirs) as u32;
    match (0..n).find(|&id| a.token_bytes(id) != b.token_bytes(id)) {
        Some(id) => {
            let (ours, theirs) = (a.token_text(id), b.token_text(id));
            Err(differs(format!("its token {id} is {ours:?}, and the model's is {theirs:?}")))
        }
        None => Ok(()),
    }
}
