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

    /// Let the device choose tokens and take them over by itself, where the step is one row of the only sequence and the device
    /// can choose as the sequence's sampler would. Tokens come one by one. Returns whether it did; if not, nothing happened.
    ///
    /// # Errors
    /// The device failed. Tokens that were given are chosen.
    pub(crate) fn run_chained(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        let [span] = self.buffers.spans() else { return Ok(false) };
        let (slot, n_rows) = (span.slot as usize, span.n_rows);
        let alone = self.program.most_chained(None) > 1 && self.is_alone() && n_rows == 1;
        let Some(sequence) = self.slots[slot].as_ref().filter(|_| alone) else { return Ok(false) };
        let sampling = match self.buffers.wants_argmax() {
            true => None,
            false => match sequence.sampler.ahead(&sequence.tokens, &mut self.scratch) {
                None => return Ok(false),
                sampling => sampling,
            },
        };
        let most = self.program.most_chained(sampling.as_ref());
        let most = sampling.map_or(most, |sampling| most.min(sampling.randoms.len()));
        // Tokens that can be chosen before the context or the answer is full: each of the chain's steps but the last computes
        // one, and the last one's is not computed.
        let in_context = self.limits.n_ctx.saturating_sub(sequence.tokens.len());
        let n = most.min(in_context).min(sequence.max_tokens.saturating_sub(sequence.n_generated));
        let n_computed = sequence.n_computed;
        if n < 2 || self.kv.reserve(slot, n_computed, n, self.program.as_mut()).is_err() {
            return Ok(false);
        }
        self.program.start_chain(&self.buffers.step(&self.kv), n, sampling.as_ref())?;
        let sampled = sampling.is_some();
        let mut n_taken = 0;
        while let Some(id) = self.program.next_chained()? {
            let Some(sequence) = &mut self.slots[slot] else { break };
            n_taken += 1;
            if sampled {
                sequence.sampler.took_one();
            }
            sequence.n_computed += 1;
            let now = Instant::now();
            sequence.first_token.get_or_insert(now);
            sequence.last_token = Some(now);
            let cancelled = sequence.cancel.is_cancelled();
            self.kv.advance(slot, sequence.n_computed, self.program.as_mut());
            if cancelled || !self.accept(slot, Choice { id, logprob: None }, on_event) {
                break;
            }
        }
        self.program.stop_chain()?;
        // Where the device could choose nothing at once, the step by itself says why.
        Ok(n_taken > 0)
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
        match choice {
            Ok(choice) => self.accept(slot, choice, on_event),
            Err(error) => self.finish(slot, FinishReason::Failed(error.to_string()), on_event),
        }
    }

    /// A token was chosen for a slot. False if it was the last, or the context slid.
    fn accept(&mut self, slot: usize, choice: Choice, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        let Some(sequence) = &mut self.slots[slot] else { return false };
        let Choice { id, logprob } = choice;
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
