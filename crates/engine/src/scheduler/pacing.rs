//! Pacing: the time limit of a step beside answers, and the number of prompt rows within it, from
//! measured times.

use std::time::Duration;

use super::background::Background;
use super::chunk::ChunkModel;
use super::flight::Load;
use super::{Flight, LEAST_PROMPT_ROWS, Scheduler};
use crate::sequence::Sequence;
use crate::{LoadOptions, Prefill};

/// Time of a step while the machine is short of memory.
const PRESSED_LATENCY: Duration = Duration::from_millis(100);

/// Weight of one step of answers alone in their mean time; an interruption counts for little.
const ANSWER_STEP_WEIGHT: f64 = 0.1;

/// Share of the earlier steps in the mean time of prompt rows that remains after each step.
const PROMPT_ROWS_DECAY: f64 = 15.0 / 16.0;

/// Limits on the time between two tokens of an answer, and the times of steps that were measured.
#[derive(Debug)]
pub(super) struct Pacing {
    /// Value of [`LoadOptions::token_latency`].
    token_latency: Option<Duration>,
    /// Value of [`LoadOptions::latency_steps`].
    latency_steps: Option<f64>,
    /// Value of [`LoadOptions::least_latency`].
    least_latency: Duration,
    /// Bytes of the model's weights; 0: not known.
    pub(super) weight_bytes: u64,
    /// Mean step of answers alone; `None` until one was seen.
    answer_step: Option<AnswerStep>,
    /// Decaying sums over steps with prompts: their seconds, and their prompt rows.
    prompt_steps: (f64, f64),
    pub(super) chunks: ChunkModel,
    pub(super) background: Background,
}

/// A step of answers alone: exponential means.
#[derive(Clone, Copy, Debug)]
struct AnswerStep {
    seconds: f64,
    /// Bytes of weights, keys and values that the step reads.
    bytes: f64,
}

impl Pacing {
    /// Pacing by these options, without measurements.
    pub(super) fn new(options: &LoadOptions) -> Pacing {
        Pacing {
            token_latency: options.token_latency,
            latency_steps: options.latency_steps,
            least_latency: options.least_latency,
            weight_bytes: 0,
            answer_step: None,
            prompt_steps: (0.0, 0.0),
            chunks: ChunkModel::new(),
            background: Background::new(),
        }
    }

    /// Forget the times of all steps so far: they were the first of their kind.
    pub(super) fn forget_times(&mut self) {
        (self.chunks, self.answer_step, self.prompt_steps) = (ChunkModel::new(), None, (0.0, 0.0));
    }

    /// Record the seconds of a step with `n_rows` prompt rows.
    pub(super) fn observe_prompt_rows(&mut self, n_rows: usize, seconds: f64) {
        let (sum, rows) = &mut self.prompt_steps;
        *sum = *sum * PROMPT_ROWS_DECAY + seconds;
        *rows = *rows * PROMPT_ROWS_DECAY + n_rows as f64;
    }

    /// Mean seconds that a prompt row takes, with the answers beside it; `None` until a step with
    /// prompts was seen.
    pub(super) fn prompt_row_seconds(&self) -> Option<f64> {
        let (seconds, rows) = self.prompt_steps;
        (rows > 0.0).then(|| seconds / rows)
    }
}

impl Scheduler {
    /// Expected seconds of a step of the running answers alone; 0 if none runs, or nothing is
    /// known.
    ///
    /// A mean is scaled by the bytes that the step reads: no such step is seen while a long prompt
    /// is computed, and answers grow. Without the scaling, eight streams of a small model held a
    /// prompt of 7,000 tokens up for 42 s instead of 29 s.
    pub(super) fn alone(&self) -> f64 {
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        let load = answers.fold(Load::default(), |load, s| load.and(1, s.tokens.len()));
        match self.pacing.answer_step {
            Some(step) if load.n_rows > 0 && step.bytes > 0.0 => {
                step.seconds * (self.bytes_read(load) / step.bytes)
            }
            Some(step) if load.n_rows > 0 => step.seconds,
            Some(_) | None => 0.0,
        }
    }

    /// Bytes that a step of answers reads, to which its time is proportional: weights, and the keys
    /// and values that the rows attend to. Windows are about the same in each step and not counted.
    /// 0: not known.
    fn bytes_read(&self, load: Load) -> f64 {
        if self.pacing.weight_bytes == 0 {
            return 0.0;
        }
        self.pacing.weight_bytes as f64 + self.kv.bytes_per_token() as f64 * load.n_attended as f64
    }

    /// Seconds that the running answers may wait for their next tokens; `None`: no limit.
    pub(super) fn latency(&self) -> Option<f64> {
        let running = || self.slots.iter().flatten();
        let of_steps = || {
            // Each prompt may use as much time as one alone would; otherwise all of them would wait
            // while few sequences answer.
            let seconds = self.alone() * (1.0 + (self.pacing.latency_steps? - 1.0) * self.n_prompts() as f64);
            // Until a step was seen, the default latency applies.
            let seconds = if seconds > 0.0 { seconds } else { crate::DEFAULT_TOKEN_LATENCY.as_secs_f64() };
            Some(seconds.max(self.pacing.least_latency.as_secs_f64()))
        };
        let of_answer = |s: &Sequence| {
            let latency = s.token_latency.or(self.pacing.token_latency);
            latency.map(|latency| latency.as_secs_f64()).or_else(of_steps)
        };
        let answers = running().filter(|s| !s.in_prompt);
        answers.filter_map(of_answer).min_by(f64::total_cmp)
    }

    /// Record the seconds of a step of answers alone.
    pub(super) fn observe_answer_step(&mut self, load: Load, seconds: f64) {
        let bytes = self.bytes_read(load);
        self.pacing.answer_step = Some(match self.pacing.answer_step {
            None => AnswerStep { seconds, bytes },
            Some(known) => {
                let growth = if known.bytes > 0.0 { bytes / known.bytes } else { 1.0 };
                let most = 2.0 * known.seconds * growth.max(1.0);
                let mean = |known: f64, now: f64| known + ANSWER_STEP_WEIGHT * (now - known);
                AnswerStep {
                    seconds: mean(known.seconds, seconds.min(most)),
                    bytes: mean(known.bytes, bytes),
                }
            }
        });
    }

    /// Maximum number of rows of a slot's prompt that fit into the step, by its buffers and by the
    /// answers' latency.
    pub(super) fn prompt_rows(&self, slot: usize, flight: &mut Flight) -> usize {
        let Some(sequence) = &self.slots[slot] else { return 0 };
        let chunk = if sequence.prefill == Prefill::PerToken { 1 } else { usize::MAX };
        let most = self.buffers.rows_left().min(chunk).min(sequence.n_missing());
        // If memory is short, steps are brief, so that it is checked again soon.
        let pressed = self.kv.is_pressed().then_some(PRESSED_LATENCY.as_secs_f64());
        let latency =
            [self.prompt_latency(flight.alone), pressed].into_iter().flatten().min_by(f64::total_cmp);
        let Some(seconds) = latency else { return most };
        flight.is_limited = true;
        let (planned, n_before) = (flight.planned, flight.n_prompt_rows);
        let fits = self.pacing.chunks.rows_within(seconds, planned, n_before, sequence.n_submitted, most);
        let least = if n_before == 0 { self.least_prompt_rows(seconds, planned) } else { 0 };
        fits.max(least).min(most)
    }

    /// Prompt rows that a step has even if it then takes too long, where its answers may take
    /// `allowed` seconds and take `alone` without them. It is a single row if a latency was named
    /// and the answers alone keep it.
    pub(super) fn least_prompt_rows(&self, allowed: f64, alone: f64) -> usize {
        let is_named = |s: &Sequence| s.token_latency.or(self.pacing.token_latency).is_some();
        let answers = self.slots.iter().flatten().filter(|s| !s.in_prompt);
        if alone < allowed && answers.into_iter().any(is_named) { 1 } else { LEAST_PROMPT_ROWS }
    }
}
