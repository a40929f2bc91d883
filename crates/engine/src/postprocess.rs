//! What follows the run of a step: positions are counted, pages let go of, tokens chosen, sequences ended.

use std::time::Instant;

use crate::engine::{begin, emit_done};
use crate::flight::Flight;
use crate::sequence::slide;
use crate::{Engine, Error, Event, FinishReason, Overflow, Result};

impl Engine {
    /// A step is done: note its rows, let go of pages, take the tokens that its outputs chose.
    pub(crate) fn postprocess(&mut self, flight: &Flight, on_event: &mut dyn FnMut(Event<'_>)) {
        for span in &flight.spans {
            let slot = span.slot;
            let Some(sequence) = &mut self.slots[slot] else { continue };
            if (sequence.id, sequence.n_restarts) != (span.id, span.n_restarts) {
                continue; // submitted before its answer ended, or began anew
            }
            let before = sequence.n_computed;
            sequence.n_computed += span.n_rows - span.n_draft;
            if sequence.in_prompt {
                // When the prompt's last full page is done, others may use it, and this same prompt may come again.
                // Before `advance`, while what a row behind that page looks at is still here.
                let boundary = sequence.tokens.len() / self.limits.page_len * self.limits.page_len;
                if sequence.reuse && before <= boundary && sequence.n_computed >= boundary {
                    self.kv.remember(slot, &sequence.tokens[..boundary], false, self.program.as_mut());
                }
                sequence.in_prompt = span.output.is_none();
            }
            self.kv.advance(slot, sequence.n_computed, self.program.as_mut());
            if let Some(output) = span.output {
                if !sequence.pending.is_empty() {
                    sequence.pending.remove(0);
                }
                self.choose_all(slot, output, on_event);
            }
            if let Some(sequence) = &mut self.slots[slot]
                && sequence.pending.is_empty()
            {
                // Guesses that were wrong are submitted no more.
                sequence.n_submitted = sequence.n_computed;
            }
        }
    }

    /// Choose the next tokens of a slot from the rows `output..` of the logits: one, and one more for each guess that was
    /// right.
    fn choose_all(&mut self, slot: usize, output: usize, on_event: &mut dyn FnMut(Event<'_>)) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let (n_draft, mut n_accepted) = (sequence.draft.len(), 0);
        let n_before = sequence.tokens.len();
        sequence.acceptance.n_drafted += n_draft;
        while self.choose(slot, output + n_accepted, on_event) {
            let Some(sequence) = &mut self.slots[slot] else { return };
            let guess = sequence.draft.get(n_accepted).filter(|_| !sequence.cancel.is_cancelled());
            if guess.is_none() || guess != sequence.tokens.last() {
                let first = sequence.tokens.get(n_before).copied().unwrap_or_default();
                sequence.acceptance.observe(n_draft, n_accepted, first);
                break;
            }
            // Its row was in the step: its keys and values are there.
            n_accepted += 1;
            sequence.n_computed += 1;
            sequence.acceptance.n_accepted += 1;
        }
        if n_accepted > 0
            && let Some(sequence) = &self.slots[slot]
        {
            self.kv.advance(slot, sequence.n_computed, self.program.as_mut());
        }
    }

    /// Choose the next token of a slot from row `output` of the logits. False if it was the last, or the context slid:
    /// no other row of the step has anything to say then.
    fn choose(&mut self, slot: usize, output: usize, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        let Some(sequence) = &mut self.slots[slot] else { return false };
        let now = Instant::now();
        sequence.first_token.get_or_insert(now);
        sequence.last_token = Some(now);
        if sequence.max_tokens == 0 {
            return self.finish(slot, FinishReason::MaxTokens, on_event);
        }
        let chosen = self.program.chosen().get(output).copied();
        match chosen.and_then(|chosen| Some((chosen.token?, chosen.logprob))) {
            Some((id, logprob)) => {
                sequence.sampler.took_one();
                let logprob = sequence.sampler.wants_logprobs().then_some(logprob);
                self.accept(slot, id, logprob, on_event)
            }
            None => {
                let error = Error::NoCandidate { n_vocab: self.model.n_vocab() };
                self.finish(slot, FinishReason::Failed(error.to_string()), on_event)
            }
        }
    }

    /// A token was chosen for a slot. False if it was the last, or the context slid.
    fn accept(
        &mut self,
        slot: usize,
        id: u32,
        logprob: Option<f32>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> bool {
        let Some(sequence) = &mut self.slots[slot] else { return false };
        sequence.n_generated += 1;
        if !sequence.ignore_end && sequence.text.is_end(id) {
            return self.finish(slot, FinishReason::EndToken(id), on_event);
        }
        sequence.tokens.push(id);
        let (text, stopped) = sequence.text.push(id);
        on_event(Event::Token { sequence: sequence.id, id, text, logprob });
        if let Some(stop) = stopped {
            let stop = stop.to_owned();
            return self.finish(slot, FinishReason::StopString(stop), on_event);
        }
        if sequence.n_generated >= sequence.max_tokens {
            return self.finish(slot, FinishReason::MaxTokens, on_event);
        }
        if sequence.tokens.len() < self.limits.n_ctx {
            return true;
        }
        match sequence.overflow {
            Overflow::Stop => self.finish(slot, FinishReason::ContextFull, on_event),
            Overflow::Slide { keep } => match self.slide(slot, keep) {
                Ok(()) => false,
                Err(error) => self.finish(slot, FinishReason::Failed(error.to_string()), on_event),
            },
        }
    }

    /// The context is full: cut the tokens and begin again with what is left, of which the kept start is in the prefix
    /// cache (and in window groups only if the window reaches back to it).
    fn slide(&mut self, slot: usize, keep: usize) -> Result<()> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        if sequence.reuse {
            self.kv.remember(slot, &sequence.tokens[..sequence.n_computed], true, self.program.as_mut());
        }
        self.kv.end(slot, self.program.as_mut());
        slide(&mut sequence.tokens, keep, self.limits.n_ctx);
        sequence.in_prompt = true;
        sequence.n_restarts += 1;
        begin(&mut self.kv, slot, sequence, self.program.as_mut())
    }

    /// End a sequence; false, for [`Self::choose`].
    pub(crate) fn finish(
        &mut self,
        slot: usize,
        reason: FinishReason,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> bool {
        let Some(mut sequence) = self.slots[slot].take() else { return false };
        if sequence.reuse {
            self.kv.remember(slot, &sequence.tokens[..sequence.n_computed], true, self.program.as_mut());
        }
        self.kv.end(slot, self.program.as_mut());
        self.note_end();
        emit_done(&mut sequence, &reason, on_event);
        false
    }
}
