//! Chunks of prompts in the background, which the device computes in parts between the steps of the
//! answers.
//!
//! A chunk of whole rows cannot always be small enough: its first row alone reads all keys before
//! it. So if not even [`LEAST_PROMPT_ROWS`] rows of a prompt fit into a step, its next chunk stops
//! within the model ([`Program::begin_background`]). After each step the device computes a part of
//! it, for as long as the answers' latency allows. Weights and keys are read once for all rows of
//! the chunk.
//!
//! One sequence at a time has such a chunk, and no rows in steps meanwhile; other prompts that do
//! not fit wait for it. The last row of a prompt is computed in a step, since it chooses a token.
//! If the sequence's pages are freed or moved, the chunk ends, and begins anew after the rows that
//! were done.
//!
//! Without background steps, the 99th percentile between tokens was 1.3 times as long beside a
//! prompt of 7,000 tokens. The machine was three threads of a Xeon with eight streams of a 135M
//! model, two runs each.

use std::time::{Duration, Instant};

use device::{BackgroundProgress, Program, Span, Step};

use super::margin::Margin;
use super::{Flight, LEAST_PROMPT_ROWS, Scheduler, StepPlan};
use crate::{Event, Prefill, Result, SequenceId};

/// Number of rows of the first chunk.
const FIRST_ROWS: usize = 16;

/// Target for the longest part of a chunk, relative to the time after a step, so that little of
/// that time is wasted.
const LONGEST_PART: f64 = 0.4;

/// Least time after a step, relative to the step: a chunk goes on even if the answers leave no
/// time.
const LEAST_TIME: f64 = 1.0 / 8.0;

/// Largest slowdown of a step of answers that is attributed to the chunk.
const MOST_SLOWDOWN: f64 = 1.5;

/// Weight of one step in the mean slowdown.
const SLOWDOWN_WEIGHT: f64 = 0.1;

/// The chunk in the background, and the size of the next one.
#[derive(Debug)]
pub(super) struct Background {
    chunk: Option<Chunk>,
    /// Sequence of the last chunk.
    pub(super) last: Option<SequenceId>,
    /// Number of rows of the next chunk, chosen so that its parts are short enough.
    n_rows: usize,
    /// Margin on the time between two tokens.
    margin: Margin,
    /// Mean slowdown of a step of answers after a part of a chunk, which evicts the answers'
    /// weights and keys from the cache. A test simulates a slowdown of 1.3; on a Xeon with three
    /// threads it made no difference.
    slowdown: f64,
    /// Seconds for the chunk after the last step, and seconds allowed for both it and the next
    /// step.
    seconds: f64,
    allowed: f64,
    /// Time at which the last step was done, if the chunk went on after it.
    step_done: Option<Instant>,
    /// Number of prompts that wait for the chunk to end: counted by the last step, and by the one
    /// that is being filled.
    n_waiting: usize,
    n_found: usize,
    /// Compute every prompt in the background, whatever it costs.
    #[cfg(test)]
    pub(super) always: bool,
}

/// Rows of a sequence that are computed in the background.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: usize,
    n_rows: usize,
}

impl Background {
    /// A background without a chunk.
    pub(super) fn new() -> Background {
        Background {
            chunk: None,
            last: None,
            n_rows: FIRST_ROWS,
            margin: Margin::new(),
            slowdown: 1.0,
            seconds: 0.0,
            allowed: 0.0,
            step_done: None,
            n_waiting: 0,
            n_found: 0,
            #[cfg(test)]
            always: false,
        }
    }

    /// Returns true if rows of this slot are computed in the background.
    pub(super) fn has(&self, slot: usize) -> bool {
        self.chunk.is_some_and(|chunk| chunk.slot == slot)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.chunk.is_some()
    }

    /// Slot and number of the rows in the background.
    pub(super) fn rows(&self) -> Option<(usize, usize)> {
        self.chunk.map(|chunk| (chunk.slot, chunk.n_rows))
    }

    /// Number of prompts that wait for the chunk to end.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// Count a prompt that waits for the chunk to end.
    pub(super) fn note_waiting(&mut self) {
        self.n_found += 1;
    }

    /// Start counting waiting prompts for a new step.
    pub(super) fn begin_step(&mut self) {
        self.n_found = 0;
    }

    /// End counting waiting prompts for the step.
    pub(super) fn end_step(&mut self) {
        self.n_waiting = self.n_found;
    }

    /// Note that a step is done at `now`. Returns true if the chunk went on before it.
    pub(super) fn note_step(&mut self, now: Instant) -> bool {
        let Some(before) = self.step_done.take() else { return false };
        self.margin.note(now.saturating_duration_since(before).as_secs_f64() > self.allowed);
        true
    }

    /// Record that a step of answers, which takes `alone` seconds alone, took `seconds` after a
    /// part of the chunk. Returns the seconds without the chunk's effect.
    pub(super) fn note_slowdown(&mut self, alone: f64, seconds: f64) -> f64 {
        if alone <= 0.0 {
            return seconds;
        }
        let slowdown = (seconds / alone).clamp(1.0, MOST_SLOWDOWN);
        self.slowdown += SLOWDOWN_WEIGHT * (slowdown - self.slowdown);
        seconds / slowdown
    }

    /// Choose the rows of the next chunk, from a chunk of `n_rows` rows with this longest part.
    fn fit_rows(&mut self, n_rows: usize, longest: Duration, most: usize) {
        // A few rows say little.
        if 2 * n_rows < self.n_rows || self.seconds <= 0.0 || longest.is_zero() {
            return;
        }
        let fitting = n_rows as f64 * LONGEST_PART * self.seconds / longest.as_secs_f64();
        let (least, most) = (LEAST_PROMPT_ROWS.min(most), (2 * self.n_rows).min(most));
        self.n_rows = (fitting as usize).max(self.n_rows / 2).clamp(least, most);
    }
}

impl Scheduler {
    /// Returns true if the next rows of a slot's prompt should be computed in the background. That
    /// is so if too few of them fit into a step of the answers, although the answers alone are in
    /// time. Rows whose logits or states are needed are never computed there.
    pub(super) fn goes_into_background(&self, slot: usize, flight: &Flight) -> bool {
        let Some(sequence) = &self.slots[slot] else { return false };
        let reads_states = self.speculator.as_ref().is_some_and(|speculator| speculator.reads_states());
        let n_missing = sequence.n_missing();
        if self.limits.background_rows == 0
            || sequence.images.is_some()
            || sequence.prefill == Prefill::PerToken
            || !sequence.rows_to_score().is_empty()
            || sequence.n_submitted != sequence.n_computed
            || n_missing < 2
            || reads_states && sequence.speculate
        {
            return false;
        }
        #[cfg(test)]
        if self.pacing.background.always {
            return true;
        }
        let Some(allowed) = self.prompt_latency(flight.alone) else { return false };
        // A prompt returns to steps only if clearly more rows fit, since trying makes steps late.
        let factor = if self.pacing.background.last == Some(sequence.id) { 2 } else { 1 };
        let wanted = (factor * LEAST_PROMPT_ROWS).min(n_missing);
        let fits = self.pacing.chunks.fitting(allowed, flight.alone, sequence.n_submitted, wanted);
        // While a chunk is computed, other prompts may have no time left.
        // `alone` is 0 until a step of answers alone was seen.
        let answers_are_in_time = flight.alone > 0.0 && flight.alone < allowed;
        let are_in_time = answers_are_in_time || self.pacing.background.is_busy();
        are_in_time && fits.is_some_and(|fits| fits < wanted)
    }

    /// Maximum number of rows of a slot's next chunk.
    pub(super) fn background_rows(&self, slot: usize) -> usize {
        let most = self.pacing.background.n_rows.min(self.limits.background_rows);
        // The last row is computed in a step.
        self.slots[slot].as_ref().map_or(0, |s| s.n_missing().saturating_sub(1).min(most))
    }

    /// Seconds that a step of answers may take with prompt rows, if it takes `alone` without them.
    /// A chunk in the background uses up one prompt's share. `None`: no limit.
    pub(super) fn prompt_latency(&self, alone: f64) -> Option<f64> {
        let allowed = self.latency()?;
        let n = self.n_prompts() as f64;
        let part = if self.pacing.background.is_busy() { (n - 1.0) / n } else { 1.0 };
        Some(alone + (allowed - alone) * part)
    }

    /// Number of prompts that are computed concurrently, at least 1; those that wait for the
    /// background are not counted.
    pub(super) fn n_prompts(&self) -> usize {
        let n = self.slots.iter().flatten().filter(|s| s.in_prompt).count();
        n.saturating_sub(self.pacing.background.n_waiting()).max(1)
    }

    /// Begin a chunk of rows of a slot's prompt. Its pages are reserved already.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn begin_background(
        &mut self,
        slot: usize,
        n_rows: usize,
        now: Instant,
        program: &mut dyn Program,
    ) -> Result<()> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let first = sequence.n_submitted;
        let span = Span { slot: 0, first_row: 0, n_rows: n_rows as u32, first_position: first as u32 };
        let adapters: &[u32] = &[sequence.adapter];
        let is_adapted = self.buffers.reads_adapters(adapters);
        let states = self.kv.state_use(slot);
        program.begin_background(&Step {
            plan: self.buffers.index_of(StepPlan::Text, adapters),
            tokens: &sequence.tokens[first..first + n_rows],
            spans: &[span],
            states: states.as_slice(),
            adapters: if is_adapted { adapters } else { &[] },
            page_tables: self.kv.tables_of(slot),
            pages_per_table: self.kv.pages_per_table(),
            ..Step::default()
        })?;
        sequence.started.get_or_insert(now);
        sequence.draft.clear();
        self.kv.begin_background(slot);
        (self.pacing.background.chunk, self.pacing.background.last) =
            (Some(Chunk { slot, n_rows }), Some(sequence.id));
        Ok(())
    }

    /// End a chunk whose pages have moved, or whose sequence no longer runs.
    pub(super) fn end_lost_background(&mut self, program: &mut dyn Program) {
        if self.kv.is_background_lost() {
            self.forget_background(program);
        }
    }

    /// End the chunk in the background, if there is one; its rows will be computed again.
    pub(super) fn forget_background(&mut self, program: &mut dyn Program) {
        if self.pacing.background.chunk.take().is_some() {
            program.abandon_background();
            self.kv.end_background();
        }
    }

    /// Time until which the device may go on with the chunk, after a step that was done at `now`.
    /// `Some(None)`: no limit, since no answer waits. `None`: there is no chunk.
    pub(crate) fn background_until(
        &mut self,
        now: Instant,
        program: &mut dyn Program,
    ) -> Option<Option<Instant>> {
        self.end_lost_background(program);
        self.pacing.background.chunk?;
        self.pacing.background.step_done = None;
        let Some(allowed) = self.latency() else {
            self.pacing.background.seconds = 0.0;
            return Some(None);
        };
        let alone = self.alone();
        let answers = alone * self.pacing.background.slowdown;
        let left = (allowed / self.pacing.background.margin.factor() - answers) / self.n_prompts() as f64;
        self.pacing.background.seconds = left.max(LEAST_TIME * alone);
        (self.pacing.background.allowed, self.pacing.background.step_done) = (allowed, Some(now));
        Some(Some(now + Duration::from_secs_f64(self.pacing.background.seconds)))
    }

    /// Note the progress of the chunk at `now`.
    pub(crate) fn note_background(
        &mut self,
        progress: BackgroundProgress,
        now: Instant,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(Chunk { slot, n_rows }) = self.pacing.background.chunk.filter(|_| progress.is_done) else {
            return;
        };
        self.pacing.background.chunk = None;
        self.kv.end_background();
        self.pacing.background.fit_rows(n_rows, progress.longest_part, self.limits.background_rows);
        let Some(position) = self.slots[slot].as_ref().map(|s| s.n_computed) else { return };
        self.pacing.chunks.doubt(position, n_rows / LEAST_PROMPT_ROWS);
        self.totals.n_computed += n_rows as u64;
        self.kv.note_rows_submitted(slot);
        self.note_computed(slot, n_rows, false, now, on_event);
        if let Some(sequence) = &mut self.slots[slot] {
            sequence.n_submitted = sequence.n_computed;
        }
    }

    /// End the chunk after the device failed, and remember its sequence.
    pub(crate) fn forget_failed_background(&mut self, program: &mut dyn Program) {
        self.failed.clear();
        let slot = self.pacing.background.rows().map(|(slot, _)| slot);
        self.failed.extend(slot.and_then(|slot| self.slots[slot].as_ref()).map(|s| s.id));
        self.forget_background(program);
    }
}
