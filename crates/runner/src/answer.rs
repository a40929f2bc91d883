//! An answer on its way to the client, in pieces that will not change.

use engine::{Progress, Timings};

/// The next event of one of a request's answers.
#[derive(Clone, Debug)]
pub struct AnswerEvent {
    /// Index among the `n` answers.
    pub choice: usize,
    /// The content of the event.
    pub kind: EventKind,
    /// Times up to the tokens of this event; all 0 before the first token.
    pub timings: Timings,
}

/// The content of an [`AnswerEvent`].
#[derive(Clone, Debug)]
pub enum EventKind {
    /// More of the answer.
    Delta(Delta),
    /// The answer has ended; nothing of this choice follows.
    Done(Finish),
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// Text of the model's reasoning.
    Reasoning(String),
    /// Text of the answer, with its tokens if the request wants log-probabilities.
    Content {
        /// More text; may be empty if only tokens are reported.
        text: String,
        /// Tokens chosen since the last piece.
        tokens: Vec<TokenInfo>,
    },
    /// A call of a tool begins; its arguments follow.
    CallBegin {
        /// Index within the answer, from 0.
        index: usize,
        /// Id of the call, `call_…`.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// A further piece of a call's arguments, JSON text.
    CallArguments {
        /// Index of the call, as in `CallBegin`.
        index: usize,
        /// More text.
        text: String,
    },
    /// A call's arguments are complete.
    CallEnd {
        /// Index of the call, as in `CallBegin`.
        index: usize,
    },
    /// Tokens of the prompt except its first, with log-probabilities, in order. Comes before
    /// everything else.
    Prompt(Vec<TokenInfo>),
    /// Progress of prefill, if [`crate::request::GenerateOptions::progress`] is set. Comes before
    /// the answer.
    Progress(Progress),
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// Token id.
    pub id: u32,
    /// The token's bytes. A character may span several tokens.
    pub bytes: Vec<u8>,
    /// Natural logarithm of the token's probability; `None` if it has none.
    pub logprob: Option<f32>,
    /// The most likely tokens at this position: ids, bytes, log-probabilities.
    pub top: Vec<(u32, Vec<u8>, f32)>,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Reason for the end.
    pub reason: StopReason,
    /// Tokens of prompt and answer.
    pub usage: Usage,
    /// Times of the whole answer.
    pub timings: Timings,
    /// The seed that the sampler used.
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended the answer.
    End,
    /// This stop string was about to appear.
    StopString(String),
    /// The model chose this stop token of the request.
    StopToken(u32),
    /// The answer reached the request's limit of tokens.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The answer calls tools.
    ToolCalls,
    /// The client closed the connection or cancelled.
    Cancelled,
    /// The request's time limit passed.
    Timeout,
    /// The grammar allows no token, or takes more work than allowed; the text says which.
    Ungrammatical(String),
    /// The answer failed; the text says why.
    Failed(String),
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens of the answer, with reasoning and calls.
    pub completion_tokens: usize,
    /// Tokens of reasoning, a part of `completion_tokens`.
    pub reasoning_tokens: usize,
}

/// One of `n` answers, collected.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// The answer's reasoning; empty if there was none.
    pub reasoning: String,
    /// Its text.
    pub content: String,
    /// The answer's tool calls in order.
    pub calls: Vec<ToolCall>,
    /// The answer's tokens, if the request wants log-probabilities.
    pub tokens: Vec<TokenInfo>,
    /// The prompt's tokens except the first, if the request wants their log-probabilities.
    pub prompt: Vec<TokenInfo>,
    /// The end of the answer; always set by [`crate::Answer::collect`].
    pub finish: Option<Finish>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, `call_…`.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as the JSON text of an object.
    pub arguments: String,
}

impl Collected {
    /// Adds a piece.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Content { text, tokens } => {
                self.content.push_str(&text);
                self.tokens.extend(tokens);
            }
            Delta::CallBegin { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Delta::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
            Delta::CallEnd { .. } | Delta::Progress(_) => {}
            Delta::Prompt(tokens) => self.prompt.extend(tokens),
        }
    }
}
