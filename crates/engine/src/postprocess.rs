//! What follows the run of a step: positions are counted, pages let go of, tokens chosen, sequences ended.

use std::time::Instant;

use crate::engine::{begin, emit_done};
use crate::sampling::Choice;
use crate::sequence::slide;
use crate::{Engine, Event, FinishReason, Overflow, Result};

impl Engine {
    /// Rows are computed: note it, let go of pages, choose tokens where there are logits.
    pub(crate) fn postprocess(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        let mut output = 0;
        for i in 0..self.buffers.spans().len() {
            let span = self.buffers.spans()[i];
            let slot = span.slot as usize;
            let has_output = self.buffers.has_output(&span);
            let Some(sequence) = &mut self.slots[slot] else { continue };
            let before = sequence.n_computed;
            let n_draft = sequence.draft.len();
            sequence.n_computed += span.n_rows as usize - n_draft;
            if sequence.in_prompt {
                // When the prompt's last full page is done, others may use it, and this same prompt may come again.
                // Before `advance`, while what a row behind that page looks at is still here.
                let boundary = sequence.tokens.len() / self.limits.page_len * self.limits.page_len;
                if sequence.reuse && before <= boundary && sequence.n_computed >= boundary {
                    self.kv.remember(slot, &sequence.tokens[..boundary], false, self.program.as_mut());
                }
                sequence.in_prompt = !has_output;
            }
            self.kv.advance(slot, sequence.n_computed, self.program.as_mut());
            if has_output {
                self.choose_all(slot, output, on_event);
                output += 1 + n_draft;
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
        let n_vocab = self.model.n_vocab();
        let choice = if self.buffers.wants_argmax() && sequence.sampler.wants_argmax() {
            Ok(Choice { id: self.program.argmax()[output], logprob: None })
        } else {
            let logits = &mut self.program.logits_mut()[output * n_vocab..(output + 1) * n_vocab];
            sequence.sampler.sample(logits, &sequence.tokens, &mut self.scratch)
        };
        let Choice { id, logprob } = match choice {
            Ok(choice) => choice,
            Err(error) => return self.finish(slot, FinishReason::Failed(error.to_string()), on_event),
        };
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
        emit_done(&mut sequence, &reason, on_event);
        false
    }
}
