//! Logits at chosen positions of a token sequence, without generating. Scoring and the prefill
//! check use it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Want;
use model::Picture;

use crate::scheduler::OutputRows;
use crate::vision::Images;
use crate::{Engine, Error, Prefill, Result};

/// Longest time to wait for memory.
const MOST_WAIT: Duration = Duration::from_secs(10);

impl Engine {
    /// Run `tokens` from an empty cache in a slot of their own, and call `visit(position, logits)`
    /// for each of the last `n_wanted` positions, in order; logits are `(n_vocab)`. The prefix
    /// cache is neither read nor filled.
    ///
    /// Positions whose logits are wanted are computed `limits.max_outputs` at a time, the others
    /// `limits.max_rows`.
    ///
    /// # Errors
    /// No slot is free, the tokens do not fit in the context, the device failed, or `visit`
    /// returned an error.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        n_wanted: usize,
        prefill: Prefill,
        visit: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.evaluate_images(tokens, &[], n_wanted, prefill, visit)
    }

    /// Like [`Self::evaluate`], for tokens with a placeholder for each row of images.
    ///
    /// # Errors
    /// As [`Self::evaluate`]; the placeholders do not match the images, or the model sees none.
    pub fn evaluate_images(
        &mut self,
        tokens: &[u32],
        images: &[Arc<Picture>],
        n_wanted: usize,
        prefill: Prefill,
        visit: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        if tokens.len() > self.limits.n_ctx {
            return Err(Error::TooManyTokens { n_tokens: tokens.len(), n_ctx: self.limits.n_ctx });
        }
        let mut tokens = tokens.to_vec();
        let images = if images.is_empty() { None } else { Some(self.see(&mut tokens, images)?) };
        let slot = self.free_slot("evaluating")?;
        self.scheduler.kv.set_alone(Some(slot));
        let result = self.evaluate_in(slot, &tokens, images.as_ref(), (n_wanted, prefill), visit);
        self.scheduler.kv.set_alone(None);
        self.scheduler.kv.end(slot);
        result
    }

    /// Reserve pages for rows of the only sequence. If memory is short, wait for it as a running
    /// sequence does, but at most [`MOST_WAIT`].
    fn reserve_for_evaluation(&mut self, slot: usize, position: usize, n_rows: usize) -> Result<()> {
        let until = Instant::now() + MOST_WAIT;
        let (scheduler, program) = (&mut self.scheduler, self.program.as_mut());
        loop {
            match scheduler.kv.reserve(slot, position, n_rows, program) {
                Err(Error::PagesExhausted { .. }) if Instant::now() < until => {
                    scheduler.wait_for_memory(program)?;
                }
                reserved => return reserved,
            }
        }
    }

    /// Run the rows of the slot's span in the buffers, up to position `end`.
    fn run_rows(&mut self, slot: usize, end: usize) -> Result<()> {
        let state = self.scheduler.kv.state_use(slot);
        self.scheduler.buffers.push_state(state);
        self.run()?;
        self.scheduler.kv.note_rows_submitted(slot);
        self.scheduler.kv.note_rows_done(slot, end);
        Ok(())
    }

    fn evaluate_in(
        &mut self,
        slot: usize,
        tokens: &[u32],
        images: Option<&Images>,
        (n_wanted, prefill): (usize, Prefill),
        visit: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        let first_wanted = tokens.len() - n_wanted.min(tokens.len());
        let most_rows = if prefill == Prefill::PerToken { 1 } else { self.limits.max_rows };
        let mut position = 0;
        while position < tokens.len() {
            let is_given = images.is_some_and(|images| images.is_given(position));
            let (end_of_step, whole) = images.map_or((usize::MAX, false), |i| i.end_of_step(position));
            if whole {
                self.evaluate_image(slot, tokens, images, (position, end_of_step), first_wanted, visit)?;
                position = end_of_step;
                continue;
            }
            let end = tokens.len().min(position + most_rows).min(end_of_step);
            // A chunk must not hold more wanted rows than a step has outputs.
            let end = end.min(position.max(first_wanted) + self.limits.max_outputs);
            let outputs = match end.saturating_sub(position.max(first_wanted)) {
                0 => OutputRows::None,
                n => OutputRows::Last(n),
            };
            self.reserve_for_evaluation(slot, position, end - position)?;
            self.scheduler.buffers.clear();
            self.scheduler.buffers.push(slot, position, &tokens[position..end], outputs, Want::LOGITS);
            self.scheduler.buffers.set_adapter(self.scored_adapter);
            if is_given {
                self.scheduler.give_input(images);
            }
            self.run_rows(slot, end)?;
            for (row, logits) in self.program.logits().chunks_exact(n_vocab).enumerate() {
                if let OutputRows::Last(n) = outputs
                    && row < n
                {
                    visit(end - n + row, logits)?;
                }
            }
            self.scheduler.kv.advance(slot, end);
            position = end;
        }
        Ok(())
    }

    /// Run the rows of an image that attend to each other, in one step. Repeat the step if more of
    /// them are wanted than a step has outputs.
    fn evaluate_image(
        &mut self,
        slot: usize,
        tokens: &[u32],
        images: Option<&Images>,
        (first, end): (usize, usize),
        first_wanted: usize,
        visit: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        let mut wanted = first_wanted.clamp(first, end);
        self.reserve_for_evaluation(slot, first, end - first)?;
        loop {
            let until = end.min(wanted + self.limits.max_outputs);
            self.scheduler.buffers.clear();
            self.scheduler.buffers.push(slot, first, &tokens[first..end], OutputRows::None, Want::default());
            self.scheduler.buffers.push_outputs(wanted - first..until - first, Want::LOGITS);
            self.scheduler.give_input(images);
            self.run_rows(slot, end)?;
            let n = until - wanted;
            for (row, logits) in self.program.logits().chunks_exact(n_vocab).take(n).enumerate() {
                visit(wanted + row, logits)?;
            }
            wanted = until;
            if wanted == end {
                break;
            }
        }
        self.scheduler.kv.advance(slot, end);
        Ok(())
    }
}
