//! How long a step may take, from what steps of answers alone take, and how many rows of a prompt that leaves.

use std::time::Duration;

use super::cost::Load;
use super::{Flight, LEAST_PROMPT_ROWS, Scheduler};
use crate::Prefill;
use crate::sequence::Sequence;

/// Time of a step while the machine is short of memory.
const PRESSED_LATENCY: Duration = Duration::from_millis(100);

/// Steps of answers alone, of late: means.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerStep {
    seconds: f64,
    n_rows: f64,
    /// Bytes of weights, keys and values that such a step reads.
    bytes: f64,
}

/// How much one such step moves the mean; an interruption counts for little.
const ANSWER_STEP_WEIGHT: f64 = 0.1;

impl Scheduler {
    /// Seconds that a step of the answers that run would take alone; 0: none runs, or nothing is known.
    pub(super) fn alone(&self) -> f64 {
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        let load = answers.fold(Load::default(), |load, s| load.and(1, s.tokens.len()));
        // While a long prompt is computed no such step is seen, and answers grow.
        let seconds = |step: AnswerStep| match step.bytes {
            bytes if bytes > 0.0 => step.seconds * (self.bytes_read(load) / bytes),
            _ => step.seconds,
        };
        match self.answer_step {
            _ if load.n_rows == 0 => 0.0,
            Some(step) if load.n_rows as f64 <= step.n_rows + 0.5 => seconds(step),
            // Where prompts are always there, steps of answers alone are seldom seen, and were of fewer answers.
            step => step.map_or(0.0, seconds).max(self.cost.seconds(load).unwrap_or(0.0)),
        }
    }

    /// Bytes that a step of answers reads, whose time is that of reading them: weights, and the keys and values that the rows look
    /// at. Windows read about the same in each step, and are not counted. 0: not known.
    fn bytes_read(&self, load: Load) -> f64 {
        if self.weight_bytes == 0 {
            return 0.0;
        }
        self.weight_bytes as f64 + self.kv.bytes_per_token() as f64 * load.n_attended as f64
    }

    /// Seconds that the answers that run may wait for their next token; `None`: any time.
    pub(super) fn latency(&self) -> Option<f64> {
        let running = || self.slots.iter().flatten();
        let of_steps = || {
            // Each prompt may take as much as one alone: otherwise all of them wait while few answer.
            let seconds = self.alone() * (1.0 + (self.latency_steps? - 1.0) * self.n_prompts() as f64);
            // Until a step was seen, what everybody gets who asks for nothing.
            let seconds = if seconds > 0.0 { seconds } else { crate::DEFAULT_TOKEN_LATENCY.as_secs_f64() };
            Some(seconds.max(self.least_latency.as_secs_f64()))
        };
        let of_answer = |s: &Sequence| {
            let latency = s.token_latency.or(self.token_latency);
            latency.map(|latency| latency.as_secs_f64()).or_else(of_steps)
        };
        let answers = running().filter(|s| !s.in_prompt);
        answers.filter_map(of_answer).min_by(f64::total_cmp)
    }

    /// A step of answers alone took so long.
    pub(super) fn observe_answer_step(&mut self, load: Load, seconds: f64) {
        let (n_rows, bytes) = (load.n_rows as f64, self.bytes_read(load));
        self.answer_step = Some(match self.answer_step {
            None => AnswerStep { seconds, n_rows, bytes },
            Some(known) => {
                let growth = if known.bytes > 0.0 { bytes / known.bytes } else { 1.0 };
                let most = 2.0 * known.seconds * growth.max(1.0);
                let mean = |known: f64, now: f64| known + ANSWER_STEP_WEIGHT * (now - known);
                AnswerStep {
                    seconds: mean(known.seconds, seconds.min(most)),
                    n_rows: mean(known.n_rows, n_rows),
                    bytes: mean(known.bytes, bytes),
                }
            }
        });
    }

    /// Most rows of a slot's prompt that the step has room for, and the answers in it time.
    pub(super) fn prompt_rows(&self, slot: usize, flight: &mut Flight) -> usize {
        let Some(sequence) = &self.slots[slot] else { return 0 };
        let chunk = if sequence.prefill == Prefill::PerToken { 1 } else { usize::MAX };
        let most = self.buffers.rows_left().min(chunk).min(sequence.n_missing());
        // Where memory is short, the next look at it is never far.
        let pressed = self.kv.is_pressed().then_some(PRESSED_LATENCY.as_secs_f64());
        let latency =
            [self.prompt_latency(flight.alone), pressed].into_iter().flatten().min_by(f64::total_cmp);
        let Some(seconds) = latency else { return most };
        flight.is_limited = true;
        let (planned, n_before) = (flight.planned, flight.n_prompt_rows);
        let fits = self.chunks.rows_within(seconds, planned, n_before, sequence.n_submitted, most);
        let least = if n_before == 0 { self.least_prompt_rows(seconds, planned) } else { 0 };
        fits.max(least).min(most)
    }

    /// Rows of a prompt that a step has however long it then takes, where its answers are allowed `allowed` seconds and take `alone`
    /// without them: a single one where somebody named that time and the answers alone keep it.
    pub(super) fn least_prompt_rows(&self, allowed: f64, alone: f64) -> usize {
        let is_named = |s: &Sequence| s.token_latency.or(self.token_latency).is_some();
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        if alone < allowed && answers.into_iter().any(is_named) { 1 } else { LEAST_PROMPT_ROWS }
    }
}
