//! The reader's side of an answer: what the model's thread gave, as events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::{FinishReason, Timings};

use super::{AnswerEvent, Collected, Delta, EventKind, Finish, StopReason, TokenInfo, Usage};
use crate::error::{ApiError, Result};
use crate::models::{Facts, Lease};
use crate::reading::Reader;
use crate::stream::{Channel, Piece};

/// One answer or several, on their way. Dropped, it cancels what is left.
pub struct Answer {
    /// The model's id.
    pub model: String,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// The prompt's tokens, then those of the first answer so far.
    context: Vec<u32>,
    channel: Arc<Channel>,
    n_left: usize,
    /// What was taken last; its memory is used again.
    piece: Piece,
    wants_tokens: bool,
    /// Least time between two pieces; what comes faster is given together.
    interval: Duration,
    /// When a piece was waited for last, and came.
    taken: Option<Instant>,
    /// Choices before this one have had their turn.
    next_choice: usize,
    /// One for each choice of a chat; none for a completion.
    readers: Vec<Reader>,
    /// What follows the text that was given last.
    pending: VecDeque<AnswerEvent>,
    facts: Arc<Facts>,
    /// The model is not unloaded before the answer has ended.
    _lease: Lease,
}

impl Answer {
    /// What comes through `channel`, which has asked for an answer to `context`; `reader` reads each of them, `None`: as text.
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

    /// The prompt's tokens and those of the first answer, as far as it has been read; what a later request may have as its
    /// [`GenerateOptions::context`].
    pub fn context(&self) -> &[u32] {
        &self.context
    }

    /// Answers that have not ended.
    pub fn n_choices(&self) -> usize {
        self.n_left
    }

    /// Wait until the prompt has been computed: of it, tokens that were found computed.
    pub async fn n_cached(&mut self) -> usize {
        self.channel.wait().await;
        self.channel.activity.n_cached.load(Ordering::Relaxed)
    }

    /// What comes next; `None` after every choice has ended. What came since the last call comes in one piece.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.n_left == 0 {
                return None;
            }
            // Of several choices, each has its turn before a pause.
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
                // What else has come follows at the next call.
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
                let reason = match stop_reason(ended.reason) {
                    StopReason::End | StopReason::StopToken(_) if reader.is_some_and(Reader::has_calls) => {
                        StopReason::ToolCalls
                    }
                    reason => reason,
                };
                let finish = Finish { reason, usage, timings: ended.timings, seed: ended.seed };
                self.pending.push_back(event(EventKind::Done(finish)));
            }
        }
    }

    /// Everything, one for each choice.
    ///
    /// # Errors
    /// A choice failed.
    pub async fn collect(mut self) -> Result<Vec<Collected>> {
        let mut choices = vec![Collected::default(); self.n_left];
        while let Some(AnswerEvent { choice, kind, .. }) = self.next().await {
            match kind {
                EventKind::Delta(delta) => choices[choice].push(delta),
                EventKind::Done(Finish { reason: StopReason::Failed(message), .. }) => {
                    return Err(ApiError::internal(message));
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
        FinishReason::ConstraintUnmet => StopReason::Ungrammatical(ApiError::unspellable().message),
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
