//! Events that an engine emits for its sequences.

use crate::{FinishReason, SequenceId, Timings};

/// An event of a sequence. Its texts are borrowed for the time of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A token was chosen (not the one that ends the answer).
    Token {
        /// The sequence.
        sequence: SequenceId,
        /// Token id.
        id: u32,
        /// Text that is certain now; empty while a character or a stop string may still be
        /// incomplete.
        text: &'a str,
        /// Log-probability by the model itself, if the request wants it.
        logprob: Option<f32>,
        /// The likeliest tokens and their log-probabilities by the model itself, best first. Their
        /// number is [`crate::SamplingParams::n_best_logprobs`].
        best: &'a [(u32, f32)],
        /// Prompt tokens that were found in the prefix cache.
        n_reused: usize,
        /// Times so far.
        timings: Timings,
    },
    /// Progress of the prompt, if [`crate::Request::progress`] is set: once before the first part
    /// is computed, and after each step with rows of the prompt. It precedes the answer.
    Progress {
        /// The sequence.
        sequence: SequenceId,
        /// Progress of its prompt.
        progress: Progress,
    },
    /// A token of the prompt, if [`crate::Request::prompt_logprobs`] is set: one for each token but
    /// the first, in order, before the answer.
    PromptToken {
        /// The sequence.
        sequence: SequenceId,
        /// Position in the prompt, from 1 on.
        position: usize,
        /// Token id.
        id: u32,
        /// Log-probability by the model itself, given the tokens before it.
        logprob: f32,
        /// The likeliest tokens at its position and their log-probabilities, best first.
        best: &'a [(u32, f32)],
    },
    /// The sequence ended; this is its last event.
    Done {
        /// The sequence.
        sequence: SequenceId,
        /// Text that was held back and belongs to the answer after all.
        text: &'a str,
        /// The reason.
        reason: &'a FinishReason,
        /// Times of the whole sequence.
        timings: Timings,
        /// The seed that was used: with it, the same request gives the same answer.
        seed: u64,
    },
}

/// Progress of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Prompt tokens found in the prefix cache.
    pub n_reused: usize,
    /// Prompt tokens that are available: found or computed.
    pub n_done: usize,
    /// Seconds since the sequence's first step began.
    pub seconds: f64,
}

impl<'a> Event<'a> {
    /// The sequence of the event.
    pub fn sequence(&self) -> SequenceId {
        match self {
            Event::Token { sequence, .. }
            | Event::PromptToken { sequence, .. }
            | Event::Progress { sequence, .. }
            | Event::Done { sequence, .. } => *sequence,
        }
    }

    /// The text that the event adds to the answer.
    pub fn text(&self) -> &'a str {
        match self {
            Event::Token { text, .. } | Event::Done { text, .. } => text,
            Event::PromptToken { .. } | Event::Progress { .. } => "",
        }
    }
}
