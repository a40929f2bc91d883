//! Totals of the scheduler, and prediction of the first token of a new sequence.

use super::Scheduler;
use crate::Timings;

/// Weight of one answer in the mean of their times.
const WEIGHT: f64 = 1.0 / 8.0;

/// Totals since the engine was created.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Prompt rows that were computed.
    pub(crate) n_computed: u64,
    /// Prompt tokens that were taken from the cache or from other sequences.
    pub(crate) n_cached: u64,
    /// Tokens of answers.
    pub(crate) n_generated: u64,
    /// Mean seconds for which a sequence has a slot; 0: none has ended.
    answer_seconds: f64,
}

impl Totals {
    /// Record the times of a sequence that has ended.
    pub(super) fn note_end(&mut self, timings: &Timings) {
        let seconds = timings.prefill_seconds + timings.decode_seconds;
        let weight = if self.answer_seconds > 0.0 { WEIGHT } else { 1.0 };
        self.answer_seconds += (seconds - self.answer_seconds) * weight;
    }
}

impl Scheduler {
    /// Expected seconds to the first token of a new sequence with a prompt of `n_tokens`, of which
    /// nothing is cached; `None` until a step with prompts was seen.
    ///
    /// That is the mean time of a prompt row, for the prompts before it and its own, and the time
    /// until a slot is free. The median error of 48 predictions of over 1 s was a factor of 1.2
    /// (eight clients with chats). Beside a prompt of 6,000 words it was 3.5 (77 predictions). A
    /// Kalman filter over rows and positions was off by 1.5 and 3.1.
    pub(crate) fn predicted_first_token(&self, n_tokens: usize) -> Option<f64> {
        let running = || self.slots.iter().flatten();
        let n_before: usize =
            running().chain(self.queue.iter()).filter(|s| s.in_prompt).map(|s| s.n_missing()).sum();
        let prompts = (n_before + n_tokens) as f64 * self.pacing.prompt_row_seconds()?;
        let n_waiting = self.queue.len() + 1;
        let n_free = self.slots.len() - running().count();
        let turns = n_waiting.saturating_sub(n_free) as f64 / self.slots.len().max(1) as f64;
        Some(prompts + turns * self.totals.answer_seconds)
    }

    /// Number of waiting sequences that had a slot before.
    pub(crate) fn n_parked_now(&self) -> usize {
        self.queue.n_parked()
    }

    /// Forget the times of all steps so far: they were the first of their kind.
    pub(crate) fn forget_times(&mut self) {
        self.pacing.forget_times();
    }
}
