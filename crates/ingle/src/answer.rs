//! Answers: a stream of pieces, or all of them together.

use std::sync::Arc;

pub use engine::{Progress as PrefillProgress, Timings};
use runner::{AnswerEvent, Delta, EventKind};
pub use runner::{TokenInfo, ToolCall, Usage};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::model::Inner;

/// A piece of one of a request's answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// Index among the answers of [`Generation::n`](crate::Generation::n).
    pub choice: usize,
    /// The piece.
    pub piece: Piece,
    /// Times so far.
    pub timings: Timings,
}

/// A piece of an answer, which does not change any more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Piece {
    /// Text of the answer.
    Text {
        /// More text; may be empty if only tokens are reported.
        text: String,
        /// Tokens since the last piece, if the request wants them.
        tokens: Vec<TokenInfo>,
    },
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A call of a tool begins; its arguments follow.
    ToolCallBegin {
        /// Index of the call within the answer, from 0.
        index: usize,
        /// The call's id, `call_…`.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of a call's arguments, which are the JSON text of an object.
    ToolCallArguments {
        /// Index of the call.
        index: usize,
        /// More text.
        text: String,
    },
    /// A call's arguments are complete.
    ToolCallEnd {
        /// Index of the call.
        index: usize,
    },
    /// The prompt's tokens except the first, if the request wants their log-probabilities.
    Prompt(Vec<TokenInfo>),
    /// Progress of prefill, if the request wants it.
    Progress(PrefillProgress),
    /// The end; nothing of this answer follows.
    End(End),
}

/// The end of an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct End {
    /// Reason for the end.
    pub reason: StopReason,
    /// Numbers of tokens.
    pub usage: Usage,
    /// Times of the whole answer.
    pub timings: Timings,
    /// The seed that was used.
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model ended the answer.
    End,
    /// This stop text was about to appear.
    StopText(String),
    /// The model chose this stop token.
    StopToken(u32),
    /// The answer has as many tokens as the request allows.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The answer calls tools.
    ToolCalls,
    /// The answer was cancelled.
    Cancelled,
    /// The request's time passed.
    Timeout,
    /// The grammar allows no token, or takes more work than allowed; the text says which.
    Ungrammatical(String),
}

/// A complete answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply {
    /// The text.
    pub text: String,
    /// The model's reasoning; empty if there was none.
    pub reasoning: String,
    /// Calls of tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The answer's tokens, if the request wants them.
    pub tokens: Vec<TokenInfo>,
    /// The prompt's tokens except the first, if the request wants their log-probabilities.
    pub prompt: Vec<TokenInfo>,
    /// The end.
    pub end: End,
}

impl Reply {
    /// The answer as a message in OpenAI's form, for the next turn of a chat.
    pub fn to_message(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.text });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                json!({
                    "id": call.id, "type": "function",
                    "function": { "name": call.name, "arguments": call.arguments },
                })
            };
            message["tool_calls"] = self.tool_calls.iter().map(call).collect();
        }
        message
    }
}

/// Answers that are being computed. Dropping it cancels them.
///
/// It is an iterator that waits on the calling thread. [`Self::next_event`] is the same for async
/// code, of any runtime. Pieces that are not read are merged, so a slow reader delays nobody.
pub struct Answer {
    inner: runner::Answer,
    model: Arc<Inner>,
}

impl Answer {
    pub(crate) fn new(inner: runner::Answer, model: Arc<Inner>) -> Answer {
        Answer { inner, model }
    }

    /// Number of tokens of the prompt.
    pub fn n_prompt(&self) -> usize {
        self.inner.n_prompt
    }

    /// Number of answers that have not ended.
    pub fn n_open(&self) -> usize {
        self.inner.n_choices()
    }

    /// The next piece; `None` after the end of every answer.
    ///
    /// # Errors
    /// The device failed, or the model's file has changed.
    pub async fn next_event(&mut self) -> Option<Result<Event>> {
        let Answer { inner, model } = self;
        model.executor.within(inner.next()).await.map(event)
    }

    /// The text of the only or first answer, without its reasoning.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub fn text(self) -> Result<String> {
        Ok(self.reply()?.text)
    }

    /// The only or first answer.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub fn reply(self) -> Result<Reply> {
        first(self.replies()?)
    }

    /// All answers, `(n)`.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub fn replies(self) -> Result<Vec<Reply>> {
        let Answer { inner, model } = self;
        replies(model.executor.wait(inner.collect())?)
    }

    /// Like [`Self::reply`], for async code.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub async fn reply_async(self) -> Result<Reply> {
        first(self.replies_async().await?)
    }

    /// Like [`Self::replies`], for async code.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub async fn replies_async(self) -> Result<Vec<Reply>> {
        let Answer { inner, model } = self;
        replies(model.executor.within(inner.collect()).await?)
    }
}

/// Waits for the next piece.
impl Iterator for Answer {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        let Answer { inner, model } = self;
        model.executor.wait(inner.next()).map(event)
    }
}

fn event(AnswerEvent { choice, kind, timings }: AnswerEvent) -> Result<Event> {
    let piece = match kind {
        EventKind::Delta(Delta::Content { text, tokens }) => Piece::Text { text, tokens },
        EventKind::Delta(Delta::Reasoning(text)) => Piece::Reasoning(text),
        EventKind::Delta(Delta::CallBegin { index, id, name }) => Piece::ToolCallBegin { index, id, name },
        EventKind::Delta(Delta::CallArguments { index, text }) => Piece::ToolCallArguments { index, text },
        EventKind::Delta(Delta::CallEnd { index }) => Piece::ToolCallEnd { index },
        EventKind::Delta(Delta::Prompt(tokens)) => Piece::Prompt(tokens),
        EventKind::Delta(Delta::Progress(progress)) => Piece::Progress(progress),
        EventKind::Done(finish) => Piece::End(end(finish)?),
    };
    Ok(Event { choice, piece, timings })
}

fn end(runner::Finish { reason, usage, timings, seed }: runner::Finish) -> Result<End> {
    let reason = match reason {
        runner::StopReason::End => StopReason::End,
        runner::StopReason::StopString(text) => StopReason::StopText(text),
        runner::StopReason::StopToken(token) => StopReason::StopToken(token),
        runner::StopReason::MaxTokens => StopReason::MaxTokens,
        runner::StopReason::ContextFull => StopReason::ContextFull,
        runner::StopReason::ToolCalls => StopReason::ToolCalls,
        runner::StopReason::Cancelled => StopReason::Cancelled,
        runner::StopReason::Timeout => StopReason::Timeout,
        runner::StopReason::Ungrammatical(words) => StopReason::Ungrammatical(words),
        runner::StopReason::Failed(words) => return Err(Error::failed(words)),
    };
    Ok(End { reason, usage, timings, seed })
}

fn replies(collected: Vec<runner::Collected>) -> Result<Vec<Reply>> {
    let reply = |runner::Collected { reasoning, content, calls, tokens, prompt, finish }| {
        let finish = finish.ok_or_else(|| Error::failed("an answer has no end".to_owned()))?;
        Ok(Reply { text: content, reasoning, tool_calls: calls, tokens, prompt, end: end(finish)? })
    };
    collected.into_iter().map(reply).collect()
}

fn first(replies: Vec<Reply>) -> Result<Reply> {
    replies.into_iter().next().ok_or_else(|| Error::failed("a request for no answer".to_owned()))
}
