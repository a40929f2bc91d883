//! What the scheduler has done, and when a new sequence would be answered.

use super::Scheduler;
use super::cost::Load;
use crate::Timings;

/// How much one answer moves the mean of their times.
const WEIGHT: f64 = 1.0 / 8.0;

/// Sums since the engine was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Rows of prompts.
    pub(crate) n_computed: u64,
    /// Tokens of prompts that were taken over.
    pub(crate) n_cached: u64,
    /// Tokens of answers.
    pub(crate) n_generated: u64,
    /// Mean seconds that a sequence has a slot; 0: none has ended.
    answer_seconds: f64,
}

impl Totals {
    /// A sequence has ended.
    pub(super) fn note_end(&mut self, timings: &Timings) {
        let seconds = timings.prefill_seconds + timings.decode_seconds;
        let weight = if self.answer_seconds > 0.0 { WEIGHT } else { 1.0 };
        self.answer_seconds += (seconds - self.answer_seconds) * weight;
    }
}

impl Scheduler {
    /// Seconds until a new sequence with a prompt of `n_tokens`, of which nothing is cached, would give its first token: the
    /// prompts before it and its own, at the rate at which steps compute them beside the answers; and, where no slot is free,
    /// the time until one is. `None` until steps were seen.
    pub(crate) fn predicted_first_token(&self, n_tokens: usize) -> Option<f64> {
        let running = || self.slots.iter().flatten();
        let answers = running().filter(|s| !s.in_prompt);
        let beside = answers.fold(Load::default(), |load, s| load.and(1, s.tokens.len()));
        let n_before: usize =
            running().chain(self.queue.iter()).filter(|s| s.in_prompt).map(|s| s.n_missing()).sum();
        let n_rows = n_before + n_tokens;
        // On average a row is in the middle of its prompt.
        let position = n_tokens / 2;
        let most = self.limits.max_rows.saturating_sub(beside.n_rows).max(1);
        let in_step = match self.latency() {
            Some(latency) => {
                let alone = self.alone();
                let fits = self.chunks.fitting(latency, alone, position, most).unwrap_or(most);
                fits.max(self.least_prompt_rows(latency, alone))
            }
            None => most,
        };
        let in_step = in_step.min(most).min(n_rows.max(1));
        let n_steps = n_rows as f64 / in_step as f64;
        let prompts = n_steps * self.cost.seconds(beside.and(in_step, position))?;
        let n_waiting = self.queue.len() + 1;
        let n_free = self.slots.len() - running().count();
        let turns = n_waiting.saturating_sub(n_free) as f64 / self.slots.len().max(1) as f64;
        Some(prompts + turns * self.totals.answer_seconds)
    }

    /// Sequences that wait and had a slot before.
    pub(crate) fn n_parked_now(&self) -> usize {
        self.queue.n_parked()
    }

    /// Forget what steps cost: those so far were the first of their kind.
    pub(crate) fn forget_costs(&mut self) {
        (self.cost, self.chunks) = (super::CostModel::new(), super::ChunkModel::new());
        self.answer_step = None;
    }
}
