//! An answer on its way to the client: pieces as they become certain.

mod answering;

use engine::{Progress, Timings};

pub use self::answering::Answer;

/// What an answer, or one of several, says next.
#[derive(Clone, Debug)]
pub struct AnswerEvent {
    /// Which of `n` answers.
    pub choice: usize,
    /// What it says.
    pub kind: EventKind,
    /// How long it took up to the tokens of this event; all 0 before the first token.
    pub timings: Timings,
}

/// See [`AnswerEvent`].
#[derive(Clone, Debug)]
pub enum EventKind {
    /// More of the answer.
    Delta(Delta),
    /// It has ended; nothing of this choice follows.
    Done(Finish),
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// The model thinks.
    Reasoning(String),
    /// Text of the answer, with its tokens if log-probabilities were asked for.
    Content {
        /// More text; may be empty where only tokens are to be reported.
        text: String,
        /// Tokens chosen since the last piece.
        tokens: Vec<TokenInfo>,
    },
    /// A tool is called; its arguments follow.
    CallBegin {
        /// Counted from 0 within the answer.
        index: usize,
        /// Made by us: `call_…`.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, JSON text.
    CallArguments {
        /// As in `CallBegin`.
        index: usize,
        /// More text.
        text: String,
    },
    /// A call's arguments are whole.
    CallEnd {
        /// As in `CallBegin`.
        index: usize,
    },
    /// Tokens of the prompt but its first, with their log-probabilities, in order; before everything else.
    Prompt(Vec<TokenInfo>),
    /// How far the prompt is, if [`crate::request::GenerateOptions::progress`] asks; before the answer.
    Progress(Progress),
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// Token id.
    pub id: u32,
    /// Its bytes; those of a character may be spread over several tokens.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; `None` where there is none.
    pub logprob: Option<f32>,
    /// The best tokens in its place: ids, bytes, log-probabilities.
    pub top: Vec<(u32, Vec<u8>, f32)>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why.
    pub reason: StopReason,
    /// Tokens of prompt and answer.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
    /// The seed that was used.
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it.
    End,
    /// This text was about to appear.
    StopString(String),
    /// A token that the request names.
    StopToken(u32),
    /// As long as was asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// It calls tools.
    ToolCalls,
    /// The client hung up, or said so.
    Cancelled,
    /// The request's time is over.
    Timeout,
    /// It cannot go on as its grammar asks, in words: no token is fit, or the grammar takes more work than is allowed.
    Ungrammatical(String),
    /// It could not go on, in words.
    Failed(String),
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of these, those that were found computed.
    pub cached_tokens: usize,
    /// Of the answer, reasoning and calls included.
    pub completion_tokens: usize,
    /// Of these, reasoning.
    pub reasoning_tokens: usize,
}

/// One of `n` answers, collected.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Its reasoning; empty if there was none.
    pub reasoning: String,
    /// Its text.
    pub content: String,
    /// Its tool calls in order.
    pub calls: Vec<ToolCall>,
    /// Its tokens, if log-probabilities were asked for.
    pub tokens: Vec<TokenInfo>,
    /// The prompt's tokens but the first, if log-probabilities of these were asked for.
    pub prompt: Vec<TokenInfo>,
    /// How it ended; always there in what [`crate::Answer::collect`] gives.
    pub finish: Option<Finish>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// `call_…`
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

impl Collected {
    /// Add a piece.
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
