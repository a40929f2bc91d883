//! Chunks of prompts in the background, which the device computes in parts between the steps of the answers.
//!
//! A chunk of whole rows cannot be made small enough for every answer to come in time: its first row alone reads all keys before it.
//! So where not even [`LEAST_PROMPT_ROWS`] rows of a prompt fit into a step, its next chunk stops within the model instead
//! ([`Program::begin_background`]): after each step the device goes on with it for as long as the answers' latency leaves. Weights
//! and keys are read once for all of its rows, which are more than such a step would have.
//!
//! One sequence at a time has such a chunk, and no rows in steps meanwhile; others whose rows do not fit wait for it. The last row of
//! a prompt is a step's, for it chooses a token. Whatever takes the sequence's pages away, or moves them, ends the chunk: it is begun
//! anew from the rows that were done.

use std::time::{Duration, Instant};

use device::{BackgroundProgress, Program, Span, Step};

use super::margin::Margin;
use super::{Flight, LEAST_PROMPT_ROWS, Scheduler, StepPlan};
use crate::{Event, Prefill, Result, SequenceId};

/// Rows of the first chunk.
const FIRST_ROWS: usize = 16;

/// How much of the time after a step the longest part of a chunk should take at most, so that little of it is left over.
const LONGEST_PART: f64 = 0.4;

/// The least time after a step, as a part of what it takes: a chunk goes on even where the answers have no time left.
const LEAST_TIME: f64 = 1.0 / 8.0;

/// How many times what it takes alone a step of answers takes after a part of a chunk, at most: what is more is not the chunk's doing.
const MOST_SLOWDOWN: f64 = 1.5;

/// How much one such step moves the mean.
const SLOWDOWN_WEIGHT: f64 = 0.1;

/// What is computed in the background, and how much of it at once.
#[derive(Debug)]
pub(super) struct Background {
    chunk: Option<Chunk>,
    /// Whose chunk was begun last.
    pub(super) last: Option<SequenceId>,
    /// Rows of the next chunk, so that its parts are short enough.
    n_rows: usize,
    /// Of the times between two tokens.
    margin: Margin,
    /// How many times what it takes alone a step of answers takes after a part of a chunk, whose weights and keys have taken the place
    /// of the answers' in the cache: a mean.
    slowdown: f64,
    /// Seconds after the last step, and that it and the next step may take together.
    seconds: f64,
    allowed: f64,
    /// When the last step was done, if the chunk went on after it.
    step_done: Option<Instant>,
    /// Prompts that wait for the chunk to end: found by the step that was filled last, and by the one that is being filled.
    n_waiting: usize,
    n_found: usize,
    /// Whatever a prompt costs, it goes into the background.
    #[cfg(test)]
    pub(super) always: bool,
}

/// Rows of a sequence.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: usize,
    n_rows: usize,
}

impl Background {
    /// Nothing yet.
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

    /// Whether the rows of a slot are computed.
    pub(super) fn has(&self, slot: usize) -> bool {
        self.chunk.is_some_and(|chunk| chunk.slot == slot)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.chunk.is_some()
    }

    /// The slot of the rows that are computed, and their number.
    pub(super) fn rows(&self) -> Option<(usize, usize)> {
        self.chunk.map(|chunk| (chunk.slot, chunk.n_rows))
    }

    /// Prompts that wait for the chunk to end.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// One prompt more waits for it.
    pub(super) fn note_waiting(&mut self) {
        self.n_found += 1;
    }

    /// A step begins to be filled.
    pub(super) fn begin_step(&mut self) {
        self.n_found = 0;
    }

    /// A step was filled.
    pub(super) fn end_step(&mut self) {
        self.n_waiting = self.n_found;
    }

    /// A step is done, at `now`; whether the chunk went on before it.
    pub(super) fn note_step(&mut self, now: Instant) -> bool {
        let Some(before) = self.step_done.take() else { return false };
        self.margin.note(now.saturating_duration_since(before).as_secs_f64() > self.allowed);
        true
    }

    /// A step of answers that takes `alone` seconds took `seconds` after a part of the chunk: what it would have taken without.
    pub(super) fn note_slowdown(&mut self, alone: f64, seconds: f64) -> f64 {
        if alone <= 0.0 {
            return seconds;
        }
        let slowdown = (seconds / alone).clamp(1.0, MOST_SLOWDOWN);
        self.slowdown += SLOWDOWN_WEIGHT * (slowdown - self.slowdown);
        seconds / slowdown
    }

    /// A chunk of `n_rows` rows, the longest of whose parts took so long, is done.
    fn fit_rows(&mut self, n_rows: usize, longest: Duration, most: usize) {
        // Of a few rows little can be told.
        if 2 * n_rows < self.n_rows || self.seconds <= 0.0 || longest.is_zero() {
            return;
        }
        let fitting = n_rows as f64 * LONGEST_PART * self.seconds / longest.as_secs_f64();
        let (least, most) = (LEAST_PROMPT_ROWS.min(most), (2 * self.n_rows).min(most));
        self.n_rows = (fitting as usize).max(self.n_rows / 2).clamp(least, most);
    }
}

impl Scheduler {
    /// Whether the next rows of a slot's prompt are for the background: where so few of them fit into a step of the answers that these
    /// would wait, although they alone are in time. Rows of which more is wanted than keys and values are not.
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
        if self.background.always {
            return true;
        }
        let Some(allowed) = self.prompt_latency(flight.alone) else { return false };
        // A prompt returns to steps only where clearly more fit: to try costs steps that are late.
        let factor = if self.background.last == Some(sequence.id) { 2 } else { 1 };
        let wanted = (factor * LEAST_PROMPT_ROWS).min(n_missing);
        let fits = self.chunks.fitting(allowed, flight.alone, sequence.n_submitted, wanted);
        // While a chunk is computed, others may have no time at all.
        let are_in_time = flight.alone < allowed || self.background.is_busy();
        are_in_time && fits.is_some_and(|fits| fits < wanted)
    }

    /// Most rows of a slot's next chunk.
    pub(super) fn background_rows(&self, slot: usize) -> usize {
        let most = self.background.n_rows.min(self.limits.background_rows);
        // The last row is a step's.
        self.slots[slot].as_ref().map_or(0, |s| s.n_missing().saturating_sub(1).min(most))
    }

    /// Seconds that a step of answers may take with rows of prompts, where it takes `alone` without them: what is computed in the
    /// background has the share of a prompt. `None`: any time.
    pub(super) fn prompt_latency(&self, alone: f64) -> Option<f64> {
        let allowed = self.latency()?;
        let n = self.n_prompts() as f64;
        let part = if self.background.is_busy() { (n - 1.0) / n } else { 1.0 };
        Some(alone + (allowed - alone) * part)
    }

    /// Prompts that are computed beside each other, at least 1: without those that wait for the background.
    pub(super) fn n_prompts(&self) -> usize {
        let n = self.slots.iter().flatten().filter(|s| s.in_prompt).count();
        n.saturating_sub(self.background.n_waiting()).max(1)
    }

    /// Begin a chunk of rows of a slot's prompt whose pages are reserved.
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
        (self.background.chunk, self.background.last) = (Some(Chunk { slot, n_rows }), Some(sequence.id));
        Ok(())
    }

    /// End a chunk whose pages have moved, or whose sequence does not run any more.
    pub(super) fn end_lost_background(&mut self, program: &mut dyn Program) {
        if self.kv.is_background_lost() {
            self.forget_background(program);
        }
    }

    /// End the chunk in the background, if there is one; its rows will be computed again.
    pub(super) fn forget_background(&mut self, program: &mut dyn Program) {
        if self.background.chunk.take().is_some() {
            program.abandon_background();
            self.kv.end_background();
        }
    }

    /// Until when the device may go on with the chunk in the background, after a step that was done at `now`: `Some(None)`: to its end,
    /// for nobody is answering. `None`: there is none.
    pub(crate) fn background_until(
        &mut self,
        now: Instant,
        program: &mut dyn Program,
    ) -> Option<Option<Instant>> {
        self.end_lost_background(program);
        self.background.chunk?;
        self.background.step_done = None;
        let Some(allowed) = self.latency() else {
            self.background.seconds = 0.0;
            return Some(None);
        };
        let alone = self.alone();
        let answers = alone * self.background.slowdown;
        let left = (allowed / self.background.margin.factor() - answers) / self.n_prompts() as f64;
        self.background.seconds = left.max(LEAST_TIME * alone);
        (self.background.allowed, self.background.step_done) = (allowed, Some(now));
        Some(Some(now + Duration::from_secs_f64(self.background.seconds)))
    }

    /// The device went on with the chunk, until `now`.
    pub(crate) fn note_background(
        &mut self,
        progress: BackgroundProgress,
        now: Instant,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(Chunk { slot, n_rows }) = self.background.chunk.filter(|_| progress.is_done) else { return };
        self.background.chunk = None;
        self.kv.end_background();
        self.background.fit_rows(n_rows, progress.longest_part, self.limits.background_rows);
        let Some(position) = self.slots[slot].as_ref().map(|s| s.n_computed) else { return };
        self.chunks.doubt(position, n_rows / LEAST_PROMPT_ROWS);
        self.totals.n_computed += n_rows as u64;
        self.kv.note_rows_submitted(slot);
        self.note_computed(slot, n_rows, false, now, on_event);
        if let Some(sequence) = &mut self.slots[slot] {
            sequence.n_submitted = sequence.n_computed;
        }
    }

    /// The device failed with the chunk: forget it, and remember whose it was.
    pub(crate) fn forget_failed_background(&mut self, program: &mut dyn Program) {
        self.failed.clear();
        let slot = self.background.rows().map(|(slot, _)| slot);
        self.failed.extend(slot.and_then(|slot| self.slots[slot].as_ref()).map(|s| s.id));
        self.forget_background(program);
    }
}
