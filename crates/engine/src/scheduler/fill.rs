//! Filling a step: rows of answers and their draft tokens, rows of prompts, and embeddings of
//! images.

use std::time::Instant;

use device::{Program, Want};

use super::flight::{Flight, FlightSpan};
use super::{History, OutputRows, Scheduler, StepPlan};
use crate::sequence::Sequence;
use crate::speculate::{Speculator, Target};
use crate::vision::{Images, Vision};
use crate::{Error, Result};

impl Scheduler {
    /// Fill the buffers and the last of [`Self::spare`]. Returns true if the step has a row.
    ///
    /// # Errors
    /// As [`Self::schedule`], and [`Error::PagesExhausted`].
    pub(super) fn fill(&mut self, is_ahead: bool, now: Instant, program: &mut dyn Program) -> Result<bool> {
        self.end_lost_background(program);
        self.pacing.background.begin_step();
        self.buffers.clear();
        self.order.clear();
        self.order.extend((0..self.slots.len()).filter(|&slot| self.slots[slot].is_some()));
        let (slots, queue) = (&self.slots, &self.queue);
        let rank = |slot: &usize| slots[*slot].as_ref().map(|s| (s.in_prompt, queue.rank(s)));
        self.order.sort_unstable_by_key(rank);
        let all_answer = slots.iter().flatten().all(|s| !s.in_prompt);
        if let Some(speculator) = self.speculator.as_mut().filter(|_| all_answer && !is_ahead) {
            let n_rows = slots.iter().flatten().map(|s| s.n_missing().max(1)).sum();
            speculator.begin_step(self.order.len(), n_rows);
        }
        self.buffers.plan = if self.is_given_next() { StepPlan::Given } else { StepPlan::Text };
        let Some(mut flight) = self.spare.pop() else { return Ok(false) };
        flight.clear();
        flight.all_answer = all_answer && !is_ahead;
        flight.alone = self.alone();
        flight.planned = flight.alone;
        let mut filled = Ok(());
        for i in 0..self.order.len() {
            let slot = self.order[i];
            if self.buffers.rows_left() == 0 {
                break;
            }
            let is_prompt = self.slots[slot].as_ref().is_some_and(|s| s.in_prompt);
            filled = match is_prompt {
                true => self.fill_prompt(slot, &mut flight, now, program),
                false => self.fill_answer(slot, &mut flight, program),
            };
            if filled.is_err() {
                break;
            }
        }
        self.spare.push(flight);
        filled?;
        self.pacing.background.end_step();
        self.fill_input();
        Ok(!self.buffers.is_empty())
    }

    /// Returns true if a prompt continues with rows of an image, so that the step must run the plan
    /// of given rows.
    fn is_given_next(&mut self) -> bool {
        for i in 0..self.order.len() {
            let slot = self.order[i];
            let sees = |s: &Sequence| s.in_prompt && s.images.is_some();
            if !self.slots[slot].as_ref().is_some_and(sees) {
                continue;
            }
            self.take_over(slot);
            let next = |s: &Sequence| s.images.as_ref().is_some_and(|images| images.is_given(s.n_submitted));
            if self.slots[slot].as_ref().is_some_and(next) {
                return true;
            }
        }
        false
    }

    /// Make the rows in the buffers, all of one sequence outside the slots, a step of the plan of
    /// given rows.
    pub(crate) fn give_input(&mut self, images: Option<&Images>) {
        let Some(vision) = &self.vision else { return };
        let mut input = std::mem::take(&mut self.buffers.input);
        self.buffers
            .rows()
            .for_each(|(_, position, token)| vision.push_row(images, position, token, &mut input));
        self.buffers.name_image_rows(vision.layer_input());
        (self.buffers.input, self.buffers.plan) = (input, StepPlan::Given);
    }

    /// Append the input of the plan of given rows, if the step runs it.
    fn fill_input(&mut self) {
        let Scheduler { buffers, slots, vision, .. } = self;
        let Some(vision) = vision.as_ref().filter(|_| buffers.plan == StepPlan::Given) else { return };
        let mut input = std::mem::take(&mut buffers.input);
        for (slot, position, token) in buffers.rows() {
            let images = slots.get(slot).and_then(Option::as_ref).and_then(|s| s.images.as_deref());
            vision.push_row(images, position, token, &mut input);
        }
        buffers.name_image_rows(vision.layer_input());
        buffers.input = input;
    }

    /// Append the row of a sequence that is answering, and its draft tokens. The rows that a wrong
    /// draft token has removed from the state of recurrent layers precede them.
    ///
    /// # Errors
    /// No page is free ([`Error::PagesExhausted`]), or a proposer failed; nothing was appended.
    fn fill_answer(&mut self, slot: usize, flight: &mut Flight, program: &mut dyn Program) -> Result<()> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let position = sequence.n_submitted;
        let n_ahead = sequence.pending.len();
        sequence.draft.clear();
        let n_missing = sequence.n_missing();
        let mut span = FlightSpan::new(slot, sequence, n_missing.max(1), Some(self.buffers.n_outputs()));
        if n_missing == 0 {
            // A step in flight chooses the next token.
            let Some(&from) = sequence.pending.last() else { return Ok(()) };
            if sequence.may_be_over(self.limits.n_ctx) {
                return Ok(());
            }
            self.kv.reserve(slot, position, 1, program)?;
            let history = History { tokens: &sequence.tokens, pending: &sequence.pending, draft: &[] };
            let want = self.buffers.want_of(sequence, &history, n_ahead);
            self.buffers.push_linked(slot, position, from, want);
            self.buffers.push_state(self.kv.state_use(slot));
            self.buffers.set_adapter(sequence.adapter);
            flight.add(span, position);
            return Ok(());
        }
        let may_guess = |speculator: &Speculator| n_missing <= 1 + speculator.max_draft();
        let speculates = flight.all_answer && sequence.speculate;
        if let Some(speculator) = self.speculator.as_mut().filter(|s| speculates && may_guess(s)) {
            let most = sequence.most_draft(self.limits.n_ctx);
            let plan = self.buffers.index_of(StepPlan::Next, &[]);
            let mut target = Target { program: &mut *program, kv: &mut self.kv, plan };
            speculator.guess(slot, sequence, most, self.n_vocab, &mut target)?;
        }
        if let Some(constraint) = &mut sequence.constraint
            && !sequence.draft.is_empty()
        {
            let n_valid = constraint.n_valid(&sequence.draft);
            sequence.draft.truncate(n_valid);
        }
        span.n_draft = sequence.draft.len();
        span.n_rows += span.n_draft;
        span.first_mask = sequence.constraint.is_some().then_some(self.buffers.n_masks());
        self.kv.reserve(slot, position, span.n_rows, program)?;
        let history = History { tokens: &sequence.tokens, ..History::default() };
        let want = self.buffers.want_of(sequence, &history, n_ahead);
        let rows = &sequence.tokens[position..];
        self.buffers.push(slot, position, rows, OutputRows::Last(1), want);
        for (index, guess) in sequence.draft.iter().enumerate() {
            let history = History { draft: &sequence.draft[..=index], ..history };
            let want = self.buffers.want_of(sequence, &history, n_ahead + index + 1);
            self.buffers.push_guess(*guess, want);
        }
        self.buffers.push_state(self.kv.state_use(slot));
        self.buffers.set_adapter(sequence.adapter);
        flight.add(span, position);
        Ok(())
    }

    /// Append rows of a prompt: all that are missing, or a chunk. Append none if another prompt's
    /// rows in this step are the ones that it needs. Or begin a chunk in the background.
    ///
    /// # Errors
    /// No page is free, or the device failed; nothing was appended.
    fn fill_prompt(
        &mut self,
        slot: usize,
        flight: &mut Flight,
        now: Instant,
        program: &mut dyn Program,
    ) -> Result<()> {
        if self.pacing.background.has(slot) {
            return Ok(());
        }
        self.take_over(slot);
        if self.is_computed_by_another(slot, flight) {
            return Ok(());
        }
        let in_background = self.goes_into_background(slot, flight);
        if in_background && self.pacing.background.is_busy() {
            self.pacing.background.note_waiting();
            return Ok(());
        }
        let mut most = match in_background {
            true => self.background_rows(slot),
            false => self.prompt_rows(slot, flight),
        };
        let whole = match self.rows_of_plan(slot) {
            None => return Ok(()),
            Some((n, true)) => {
                // An image whose rows attend to each other must be whole in a step, or wait for the
                // next one.
                if n > self.buffers.rows_left() {
                    return Ok(());
                }
                most = n;
                true
            }
            Some((n, false)) => {
                most = most.min(n);
                false
            }
        };
        let n_prompts = self.slots.iter().flatten().filter(|s| s.in_prompt).count();
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        let position = sequence.n_submitted;
        let missing = sequence.n_missing();
        let mut n_rows = missing.min(most);
        let scored = sequence.rows_to_score();
        if !scored.is_empty() {
            // Every other prompt may end in this step, and needs an output.
            let room = self.buffers.outputs_left().saturating_sub(n_prompts.saturating_sub(1)).max(1);
            n_rows = n_rows.min(scored.start.saturating_sub(position) + room);
        }
        if n_rows == 0 {
            return Ok(());
        }
        if self.kv.has_states() {
            // A state can be shared only where its page ends, so the step ends there.
            let page_len = self.limits.page_len;
            let last_full = (position + n_rows - usize::from(n_rows == missing)) / page_len * page_len;
            n_rows = if last_full > position { last_full - position } else { n_rows };
        }
        // On a shortage a smaller chunk may still have enough pages.
        while let Err(error) = self.kv.reserve(slot, position, n_rows, program) {
            if !matches!(error, Error::PagesExhausted { .. }) || whole || n_rows <= self.limits.page_len {
                return Err(error);
            }
            n_rows = n_rows.div_ceil(2);
        }
        if in_background {
            return self.begin_background(slot, n_rows, now, program);
        }
        sequence.draft.clear();
        let rows = &sequence.tokens[position..position + n_rows];
        let mut span = FlightSpan::new(slot, sequence, n_rows, None);
        self.buffers.push(slot, position, rows, OutputRows::None, Want::default());
        let scored = sequence.rows_to_score();
        let scored = scored.start.max(position)..scored.end.min(position + n_rows);
        if !scored.is_empty() {
            span.scored = (self.buffers.n_outputs(), scored.len());
            let n_best = sequence.prompt_logprobs.unwrap_or(0) as u32;
            let rows = scored.start - position..scored.end - position;
            self.buffers.push_outputs(rows, Want { n_best, ..Want::LOGITS });
        }
        if n_rows == missing {
            span.output = Some(self.buffers.n_outputs());
            span.first_mask = sequence.constraint.is_some().then_some(self.buffers.n_masks());
            let history = History { tokens: &sequence.tokens, ..History::default() };
            let want = self.buffers.want_of(sequence, &history, 0);
            self.buffers.push_last_output(want);
        }
        self.buffers.push_state(self.kv.state_use(slot));
        self.buffers.set_adapter(sequence.adapter);
        flight.planned += self.pacing.chunks.seconds(n_rows, position).unwrap_or(0.0);
        flight.add(span, position);
        Ok(())
    }

    /// Number of rows that a slot's prompt may have in the step's plan, and true if all of them
    /// must be in the step; `None`: the prompt waits for a step of the other plan.
    fn rows_of_plan(&self, slot: usize) -> Option<(usize, bool)> {
        let sequence = self.slots[slot].as_ref()?;
        let given = self.buffers.plan == StepPlan::Given;
        let both_ways = self.vision.as_ref().is_some_and(Vision::both_ways);
        let Some(images) = &sequence.images else {
            // Rows of a prompt without images would attend to later rows.
            return (!(given && both_ways)).then_some((usize::MAX, false));
        };
        let position = sequence.n_submitted;
        if both_ways && images.is_given(position) != given {
            return None;
        }
        let (end, whole) = images.end_of_step(position);
        Some((end.saturating_sub(position), whole))
    }
}
