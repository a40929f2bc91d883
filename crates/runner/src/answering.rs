//! The client's side of an answer: output of the model's thread as events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::{FinishReason, Timings};

use crate::answer::{AnswerEvent, Collected, Delta, EventKind, Finish, StopReason, TokenInfo, Usage};
use crate::error::{RequestError, Result};
use crate::models::{Facts, Lease};
use crate::reading::Reader;
use crate::stream::{Channel, Piece};

/// One or several answers that are being computed. Dropping it cancels what is left.
pub struct Answer {
    /// The model's id.
    pub model: String,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// The prompt's tokens, then those of the first answer so far.
    context: Vec<u32>,
    channel: Arc<Channel>,
    n_left: usize,
    /// The piece read last; its memory is reused.
    piece: Piece,
    wants_tokens: bool,
    /// Least time between two pieces; pieces that arrive sooner are merged.
    interval: Duration,
    /// Time when the last awaited piece arrived.
    taken: Option<Instant>,
    /// Choices before this one were read already in this round.
    next_choice: usize,
    /// Readers of a chat, one for each choice; empty for a completion.
    readers: Vec<Reader>,
    /// Events that follow the last returned one.
    pending: VecDeque<AnswerEvent>,
    facts: Arc<Facts>,
    /// Keeps the model loaded until the answer has ended.
    _lease: Lease,
}

impl Answer {
    /// Reads `channel`, whose request has the prompt `context`. `reader` is copied for each choice;
    /// `None` returns plain text.
    pub(crate) fn new(
        lease: Lease,
        facts: Arc<Facts>,
        channel: Arc<Channel>,
        context: Vec<u32>,
        reader: Option<Reader>,
        wants_tokens: bool,
        interval: Duration,
    ) -> Answer {
        let n_choices = channel.n_choices();
        Answer {
            model: lease.id().to_owned(),
            n_prompt: channel.activity.n_prompt,
            context,
            channel,
            n_left: n_choices,
            piece: Piece::default(),
            wants_tokens,
            interval,
            taken: None,
            next_choice: 0,
            readers: reader.map_or_else(Vec::new, |reader| vec![reader; n_choices]),
            pending: VecDeque::new(),
            facts,
            _lease: lease,
        }
    }

    /// The prompt's tokens and those of the first answer read so far. A later request may pass them
    /// as its [`GenerateOptions::context`].
    pub fn context(&self) -> &[u32] {
        &self.context
    }

    /// Number of answers that have not ended.
    pub fn n_choices(&self) -> usize {
        self.n_left
    }

    /// Waits for the end of prefill and returns the number of cached prompt tokens.
    pub async fn n_cached(&mut self) -> usize {
        self.channel.wait().await;
        self.channel.activity.n_cached.load(Ordering::Relaxed)
    }

    /// Returns the next event; `None` after every choice has ended. Tokens since the last call come
    /// as one piece.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.n_left == 0 {
                return None;
            }
            // Read every choice before pausing.
            let choice = match self.channel.take(self.next_choice, &mut self.piece) {
                Some(choice) => choice,
                None => {
                    if let Some(taken) = self.taken.filter(|_| !self.interval.is_zero()) {
                        self.channel.pause(taken + self.interval).await;
                    }
                    let choice = self.channel.read(&mut self.piece).await;
                    self.taken = Some(Instant::now());
                    choice
                }
            };
            self.next_choice = choice + 1;
            if choice == 0 && self.piece.prompt.is_empty() {
                self.context.extend(self.piece.tokens.iter().map(|token| token.id));
            }
            if !self.piece.prompt.is_empty() {
                // The rest of the piece follows at the next call.
                let prompt = std::mem::take(&mut self.piece.prompt);
                let tokens = prompt.iter().map(|token| self.facts.token_info(token)).collect();
                self.channel.give_back(choice, &mut self.piece);
                let kind = EventKind::Delta(Delta::Prompt(tokens));
                return Some(AnswerEvent { choice, kind, timings: Timings::default() });
            }
            let timings = self.piece.ended.as_ref().map_or(self.piece.timings, |ended| ended.timings);
            let event = |kind| AnswerEvent { choice, kind, timings };
            let progress = self.piece.progress.drain(..).map(Delta::Progress);
            self.pending.extend(progress.map(|delta| event(EventKind::Delta(delta))));
            let done = self.piece.ended.take();
            let n_tokens = self.piece.tokens.len();
            let text = std::mem::take(&mut self.piece.text);
            let tokens: Vec<TokenInfo> = match self.wants_tokens {
                true => self.piece.tokens.drain(..).map(|token| self.facts.token_info(&token)).collect(),
                false => Vec::new(),
            };
            let deltas = match self.readers.get_mut(choice) {
                Some(reader) => {
                    let mut deltas = reader.push(&text, n_tokens, tokens);
                    if done.is_some() {
                        deltas.append(&mut reader.finish());
                    }
                    deltas
                }
                None if text.is_empty() && tokens.is_empty() => Vec::new(),
                None => vec![Delta::Content { text, tokens }],
            };
            self.pending.extend(deltas.into_iter().map(|delta| event(EventKind::Delta(delta))));
            if let Some(ended) = done {
                self.n_left -= 1;
                if let (0, FinishReason::EndToken(end)) = (choice, &ended.reason)
                    && self.context.last() != Some(end)
                {
                    self.context.push(*end);
                }
                let reader = self.readers.get(choice);
                let usage = Usage {
                    prompt_tokens: self.n_prompt,
                    cached_tokens: ended.timings.reused_tokens,
                    completion_tokens: ended.timings.generated_tokens,
                    reasoning_tokens: reader.map_or(0, Reader::n_reasoning),
                };
                let mut reason = stop_reason(ended.reason);
                if matches!(reason, StopReason::End | StopReason::StopToken(_))
                    && reader.is_some_and(Reader::has_calls)
                {
                    reason = StopReason::ToolCalls;
                }
                let finish = Finish { reason, usage, timings: ended.timings, seed: ended.seed };
                self.pending.push_back(event(EventKind::Done(finish)));
            }
        }
    }

    /// Collects every choice.
    ///
    /// # Errors
    /// A choice failed.
    pub async fn collect(mut self) -> Result<Vec<Collected>> {
        let mut choices = vec![Collected::default(); self.n_left];
        while let Some(AnswerEvent { choice, kind, .. }) = self.next().await {
            match kind {
                EventKind::Delta(delta) => choices[choice].push(delta),
                EventKind::Done(Finish { reason: StopReason::Failed(message), .. }) => {
                    return Err(RequestError::internal(message));
                }
                EventKind::Done(finish) => choices[choice].finish = Some(finish),
            }
        }
        Ok(choices)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.n_left > 0 {
            self.channel.cancel();
        }
    }
}

impl Facts {
    fn token_info(&self, token: &crate::stream::ChosenToken) -> TokenInfo {
        let bytes = self.tokenizer.token_bytes(token.id).to_vec();
        let best = |(id, logprob): &(u32, f32)| (*id, self.tokenizer.token_bytes(*id).to_vec(), *logprob);
        let top = token.top.iter().map(best).collect();
        TokenInfo { id: token.id, bytes, logprob: token.logprob, top }
    }
}

fn stop_reason(reason: FinishReason) -> StopReason {
    match reason {
        FinishReason::EndToken(_) | FinishReason::ConstraintMet => StopReason::End,
        FinishReason::ConstraintUnmet => StopReason::Ungrammatical(RequestError::unspellable().message),
        FinishReason::ConstraintFailed(words) => StopReason::Ungrammatical(words),
        FinishReason::StopToken(token) => StopReason::StopToken(token),
        FinishReason::StopString(stop) => StopReason::StopString(stop),
        FinishReason::MaxTokens => StopReason::MaxTokens,
        FinishReason::ContextFull => StopReason::ContextFull,
        FinishReason::Cancelled => StopReason::Cancelled,
        FinishReason::DeadlineExceeded => StopReason::Timeout,
        FinishReason::Failed(message) => StopReason::Failed(message),
    }
}
