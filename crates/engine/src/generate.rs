//! One request from beginning to end, for callers that run nothing else.

use std::time::Instant;

use crate::{Engine, Error, Event, FinishReason, Request, Result, Timings};

/// End of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The reason.
    pub reason: FinishReason,
    /// Times of the sequence.
    pub timings: Timings,
    /// The seed that was used.
    pub seed: u64,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text; empty without a tokenizer.
    pub text: String,
    /// Tokens of the answer, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Log-probability of each token, if the request wants it; otherwise empty.
    pub logprobs: Vec<f32>,
    /// End of the request.
    pub finished: Finished,
}

impl Engine {
    /// Add a request and run steps until it is done. `on_event` receives its events (and those of
    /// other sequences that run too). Nothing is allocated from one token to the next.
    ///
    /// # Errors
    /// As [`Engine::add`] and [`Engine::step`]; the sequence is then cancelled.
    /// [`Error::SequenceFailed`] if it could not go on.
    pub fn generate(&mut self, request: Request, mut on_event: impl FnMut(&Event<'_>)) -> Result<Finished> {
        let id = self.add(request)?;
        let mut finished = None;
        while finished.is_none() {
            let stepped = self.step(&mut |event| {
                on_event(&event);
                if let Event::Done { sequence, reason, timings, seed, .. } = event
                    && sequence == id
                {
                    finished = Some(Finished { reason: reason.clone(), timings, seed });
                }
            });
            match stepped {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.cancel(id);
                    self.scheduler.end_unwanted(Instant::now(), &mut |event| on_event(&event));
                    return Err(error);
                }
            }
        }
        match finished {
            Some(Finished {
                reason: FinishReason::Failed(reason) | FinishReason::ConstraintFailed(reason),
                ..
            }) => Err(Error::SequenceFailed(reason)),
            Some(finished) => Ok(finished),
            None => Err(Error::Integrity { what: format!("sequence {} ended without saying so", id.0) }),
        }
    }

    /// Like [`Self::generate`], with the answer collected.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn complete(&mut self, request: Request) -> Result<Completion> {
        let id = crate::SequenceId(self.next_id);
        let (mut text, mut tokens, mut logprobs) = (String::new(), Vec::new(), Vec::new());
        let finished = self.generate(request, |event| {
            if event.sequence() != id {
                return;
            }
            text.push_str(event.text());
            if let Event::Token { id, logprob, .. } = event {
                tokens.push(*id);
                logprobs.extend(*logprob);
            }
        })?;
        Ok(Completion { text, tokens, logprobs, finished })
    }
}
