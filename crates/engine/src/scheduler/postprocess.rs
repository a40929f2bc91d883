//! Handling of a step that is done: positions are counted, pages freed, tokens chosen, sequences
//! ended.

use std::time::Instant;

use device::Program;

use super::flight::FlightSpan;
use super::{Flight, Scheduler, StepPlan, emit_done};
use crate::sequence::{Sequence, slide};
use crate::speculate::{Computed, Target};
use crate::{Error, Event, FinishReason, Overflow, Progress};

/// Weight of one step in the mean rate of rows.
const RATE_WEIGHT: f64 = 1.0 / 16.0;

impl Scheduler {
    /// Handle the oldest step in flight, which was done at `now`: count its rows, cache prompts,
    /// free pages, and accept the tokens that its outputs chose.
    pub(crate) fn postprocess(
        &mut self,
        now: Instant,
        program: &mut dyn Program,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(flight) = self.in_flight.pop_front() else { return };
        // A step that was submitted ahead begins when the one before it is done.
        let begun = self.last_done.map_or(flight.submitted, |done| done.max(flight.submitted));
        self.last_done = Some(now);
        let seconds = now.saturating_duration_since(begun).as_secs_f64();
        let is_after_background = self.pacing.background.note_step(now);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| flight.all_answer) {
            speculator.observe(flight.load.n_rows, seconds);
        }
        if flight.n_prompt_rows == 0 {
            let alone = match is_after_background {
                true => self.pacing.background.note_slowdown(flight.alone, seconds),
                false => seconds,
            };
            self.observe_answer_step(flight.load, alone);
        } else {
            self.pacing.observe_prompt_rows(flight.n_prompt_rows, seconds);
            if flight.is_limited {
                self.pacing.chunks.observe(flight.chunks(), flight.alone, seconds);
            }
        }
        self.totals.n_computed += flight.n_prompt_rows as u64;
        if seconds > 0.0 {
            let rate = flight.load.n_rows as f64 / seconds;
            self.rows_per_second += (rate - self.rows_per_second) * RATE_WEIGHT;
            self.kv.set_growth(self.rows_per_second * self.kv.bytes_per_token() as f64);
        }
        for span in &flight.spans {
            let slot = span.slot;
            let Some(sequence) = &mut self.slots[slot] else { continue };
            if (sequence.id, sequence.n_restarts) != (span.id, span.n_restarts) {
                continue; // submitted before its answer ended, or began anew
            }
            let (output, n_scored) = span.scored;
            for output in output..output + n_scored {
                let (row, best) = (sequence.n_scored, program.best(output));
                let logits = program.logits().get(output * self.n_vocab..(output + 1) * self.n_vocab);
                let (Some(logits), Some(&id)) = (logits, sequence.tokens.get(row + 1)) else { break };
                let logprob = device_lower::sampling::logprob(logits, id);
                on_event(Event::PromptToken { sequence: sequence.id, position: row + 1, id, logprob, best });
                sequence.n_scored += 1;
            }
            // The step's state includes the draft tokens; it is the sequence's only if all of them
            // were right.
            let is_open = span.n_draft > 0 && self.kv.has_states();
            self.note_computed(slot, span.n_rows - span.n_draft, is_open, now, on_event);
            let Some(sequence) = &mut self.slots[slot] else { continue };
            if let Some(output) = span.output {
                sequence.in_prompt = false;
                if !sequence.pending.is_empty() {
                    sequence.pending.remove(0);
                }
                self.choose_all(slot, output, now, program, on_event);
            }
            if span.n_draft > 0 {
                self.settle(span);
            }
            if let Some(sequence) = &mut self.slots[slot]
                && sequence.pending.is_empty()
            {
                // Wrong draft tokens are no longer submitted.
                sequence.n_submitted = sequence.n_computed;
            }
        }
        self.observe_states(&flight, program);
        self.spare.push(flight);
    }

    /// Count computed rows of a slot, cache its prompt, and free pages. `is_open`: its state is not
    /// known yet.
    pub(super) fn note_computed(
        &mut self,
        slot: usize,
        n_rows: usize,
        is_open: bool,
        now: Instant,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let page_len = self.limits.page_len;
        tell_progress(sequence, now, on_event);
        let n_full_before = sequence.n_computed / page_len;
        sequence.n_computed += n_rows;
        if !is_open {
            self.kv.note_rows_done(slot, sequence.n_computed);
        }
        if sequence.in_prompt {
            // Other sequences may share every page as soon as it is full. This precedes `advance`,
            // while all pages that a row after it attends to are still held.
            if sequence.reuse && sequence.n_computed / page_len > n_full_before {
                let computed = &sequence.tokens[..sequence.n_computed];
                self.kv.remember(slot, sequence.salt, computed, false);
            }
            tell_progress(sequence, now, on_event);
        }
        if !is_open {
            self.kv.advance(slot, sequence.n_computed);
        }
    }

    /// Settle the state after a span with draft tokens. Rows after a wrong one are not counted and
    /// will be overwritten. A state has no rows: with recurrent layers the sequence returns to the
    /// state before the span, and the next step recomputes the accepted rows first.
    fn settle(&mut self, span: &FlightSpan) {
        let Some(sequence) = &mut self.slots[span.slot] else { return };
        if (sequence.id, sequence.n_restarts) != (span.id, span.n_restarts) {
            return;
        }
        if self.kv.has_states() && sequence.n_computed < span.position + span.n_rows {
            self.kv.note_rows_undone(span.slot);
            sequence.n_computed = span.position;
        }
        self.kv.advance(span.slot, sequence.n_computed);
    }

    /// Pass the states of the rows that stay to the proposer, if it reads them.
    fn observe_states(&mut self, flight: &Flight, program: &mut dyn Program) {
        let Some(speculator) = self.speculator.as_mut().filter(|speculator| speculator.reads_states()) else {
            return;
        };
        if !self.in_flight.is_empty() {
            // Later steps have overwritten the states.
            return;
        }
        // The proposer's own steps overwrite them.
        let mut states = std::mem::take(&mut self.row_states);
        states.clear();
        states.extend_from_slice(program.kept(0));
        let n_rows = flight.spans.iter().map(|span| span.n_rows).sum::<usize>().max(1);
        let cols = states.len() / n_rows;
        let mut first_row = 0;
        for span in &flight.spans {
            let row = first_row;
            first_row += span.n_rows;
            let Some(sequence) = &self.slots[span.slot] else { continue };
            let owner = (sequence.id, sequence.n_restarts);
            let is_read = sequence.speculate && sequence.images.is_none();
            if !is_read || owner != (span.id, span.n_restarts) {
                continue;
            }
            // All rows that a known token follows are right, even those that will be computed
            // again.
            let n = sequence.tokens.len().saturating_sub(1 + span.position).min(span.n_rows);
            let Some(states) = states.get(row * cols..(row + n) * cols).filter(|s| !s.is_empty()) else {
                continue;
            };
            let (slot, first) = (span.slot, span.position);
            let rows = Computed { slot, owner, first, tokens: &sequence.tokens, states };
            let plan = self.buffers.index_of(StepPlan::Next, &[]);
            let mut target = Target { program: &mut *program, kv: &mut self.kv, plan };
            // A device that fails will fail in the next step too, and draft tokens are optional.
            let _ = speculator.observe_rows(&rows, &mut target);
        }
        self.row_states = states;
    }

    /// Choose the next tokens of a slot from the rows `output..` of the logits: one, and one more
    /// for each draft token that was right.
    fn choose_all(
        &mut self,
        slot: usize,
        output: usize,
        now: Instant,
        program: &mut dyn Program,
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let (n_draft, mut n_accepted) = (sequence.draft.len(), 0);
        let n_before = sequence.tokens.len();
        sequence.acceptance.n_drafted += n_draft;
        while self.choose(slot, output + n_accepted, now, program, on_event) {
            let Some(sequence) = &mut self.slots[slot] else { return };
            let guess = sequence.draft.get(n_accepted).filter(|_| !sequence.cancel.is_cancelled());
            if guess.is_none() || guess != sequence.tokens.last() {
                let first = sequence.tokens.get(n_before).copied().unwrap_or_default();
                sequence.acceptance.observe(n_draft, n_accepted, first);
                break;
            }
            // The draft token's row was in the step, so its keys and values are computed.
            n_accepted += 1;
            sequence.n_computed += 1;
            sequence.acceptance.n_accepted += 1;
            if n_accepted == n_draft {
                self.kv.note_rows_done(slot, sequence.n_computed);
            }
        }
    }

    /// Choose the next token of a slot from row `output` of the logits. Returns false if it was the
    /// last, or the context slid: then the other rows of the step are void.
    fn choose(
        &mut self,
        slot: usize,
        output: usize,
        now: Instant,
        program: &mut dyn Program,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> bool {
        let Some(sequence) = &mut self.slots[slot] else { return false };
        sequence.first_token.get_or_insert(now);
        sequence.last_token = Some(now);
        if sequence.max_tokens == 0 {
            return self.finish(slot, FinishReason::MaxTokens, on_event);
        }
        if let Some(reason) = sequence.failed.take() {
            return self.finish(slot, reason, on_event);
        }
        let chosen = program.chosen().get(output).copied();
        match chosen.and_then(|chosen| Some((chosen.token?, chosen.logprob, chosen.surprise))) {
            Some((id, logprob, surprise)) => {
                sequence.sampler.took_one(surprise);
                let logprob = sequence.sampler.wants_logprobs().then_some(logprob);
                let best = program.best(output);
                self.accept(slot, id, logprob, best, on_event)
            }
            None if sequence.constraint.is_some() => {
                self.finish(slot, FinishReason::ConstraintUnmet, on_event)
            }
            None => {
                let error = Error::NoCandidate { n_vocab: self.n_vocab };
                self.finish(slot, FinishReason::Failed(error.to_string()), on_event)
            }
        }
    }

    /// Accept a chosen token for a slot. Returns false if it was the last, or the context slid.
    fn accept(
        &mut self,
        slot: usize,
        id: u32,
        logprob: Option<f32>,
        best: &[(u32, f32)],
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> bool {
        let Some(sequence) = &mut self.slots[slot] else { return false };
        sequence.n_generated += 1;
        self.totals.n_generated += 1;
        self.queue.charge(sequence.tenant, 1);
        if let Some(reason) = sequence.end_by(id) {
            return self.finish(slot, reason, on_event);
        }
        let (mut is_over, mut accepted) = (false, Ok(()));
        if let Some(constraint) = &mut sequence.constraint {
            accepted = constraint.accept(id);
            is_over = accepted.is_ok() && constraint.is_over();
        }
        if let Err(error) = accepted {
            return self.finish(slot, FinishReason::ConstraintFailed(error.to_string()), on_event);
        }
        sequence.tokens.push(id);
        let timings = sequence.timings();
        let (text, stopped) = sequence.text.push(id);
        let n_reused = sequence.n_reused;
        on_event(Event::Token { sequence: sequence.id, id, text, logprob, best, n_reused, timings });
        if let Some(stop) = stopped {
            let stop = stop.to_owned();
            return self.finish(slot, FinishReason::StopString(stop), on_event);
        }
        if is_over {
            return self.finish(slot, FinishReason::ConstraintMet, on_event);
        }
        if sequence.n_generated >= sequence.max_tokens {
            return self.finish(slot, FinishReason::MaxTokens, on_event);
        }
        if sequence.tokens.len() < self.limits.n_ctx {
            return true;
        }
        match sequence.overflow {
            Overflow::Stop => self.finish(slot, FinishReason::ContextFull, on_event),
            Overflow::Slide { keep } => {
                self.slide(slot, keep);
                false
            }
        }
    }

    /// Cut the tokens of a full context, and begin again with the rest. Its start is in the prefix
    /// cache (in window groups only if the window reaches back to it).
    fn slide(&mut self, slot: usize, keep: usize) {
        let Some(mut sequence) = self.slots[slot].take() else { return };
        self.let_go(slot, &sequence);
        slide(&mut sequence.tokens, keep, self.limits.n_ctx);
        sequence.begin_anew();
        self.slots[slot] = Some(sequence);
    }

    /// End a sequence. Returns false, for [`Self::choose`].
    pub(super) fn finish(
        &mut self,
        slot: usize,
        reason: FinishReason,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> bool {
        let Some(mut sequence) = self.slots[slot].take() else { return false };
        self.let_go(slot, &sequence);
        self.queue.note_end(sequence.tenant);
        self.is_short = false;
        if self.n_running() == 0 {
            self.oldest = None;
            self.kv.forget_oldest();
            self.kv.set_growth(0.0);
        }
        self.totals.note_end(&sequence.timings());
        emit_done(&mut sequence, &reason, on_event);
        false
    }
}

/// Emit the progress of a sequence's prompt, if the request wants it and it is new.
fn tell_progress(sequence: &mut Sequence, now: Instant, on_event: &mut dyn FnMut(Event<'_>)) {
    // After a slide or a pause, tokens beyond the request's prompt do not count.
    let n_done = sequence.n_computed.min(sequence.n_prompt);
    if !sequence.in_prompt || sequence.n_generated > 0 || sequence.told.is_none_or(|told| n_done < told) {
        return;
    }
    // The first event is of the moment before anything was computed.
    let started = sequence.started.filter(|_| sequence.told != Some(0));
    let seconds = started.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
    // No progress is reported twice, even if pages were freed and computed again.
    sequence.told = Some(n_done + 1);
    let progress = Progress { n_prompt: sequence.n_prompt, n_reused: sequence.n_reused, n_done, seconds };
    on_event(Event::Progress { sequence: sequence.id, progress });
}
