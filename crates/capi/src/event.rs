//! Events of answers, as C has them.

use std::ffi::c_char;
use std::ptr;

use ingle::{Event, Piece, StopReason, TokenInfo};

use crate::boundary::CStruct;

/// More text of the answer; tokens if the options want them. `text` may be empty.
pub const INGLE_EVENT_TEXT: u32 = 1;
/// More text of the model's reasoning.
pub const INGLE_EVENT_REASONING: u32 = 2;
/// A call of a tool begins: `call`, `call_id` and `text`, the function's name.
pub const INGLE_EVENT_CALL_BEGIN: u32 = 3;
/// More of a call's arguments, which are the JSON text of an object.
pub const INGLE_EVENT_CALL_ARGUMENTS: u32 = 4;
/// The arguments of a call are complete.
pub const INGLE_EVENT_CALL_END: u32 = 5;
/// Progress of prefill: `prefilled_tokens` of `prompt_tokens`.
pub const INGLE_EVENT_PROGRESS: u32 = 6;
/// The end of an answer, with its reason and its figures.
pub const INGLE_EVENT_END: u32 = 7;
/// An event of a later version; ignore it.
pub const INGLE_EVENT_OTHER: u32 = 8;

/// The model ended the answer.
pub const INGLE_STOP_END: u32 = 1;
/// A text of `stop` was about to appear; it is the event's text.
pub const INGLE_STOP_TEXT: u32 = 2;
/// The model chose a token of `stop_tokens`.
pub const INGLE_STOP_TOKEN: u32 = 3;
/// The answer has `max_tokens` tokens.
pub const INGLE_STOP_MAX_TOKENS: u32 = 4;
/// The context is full.
pub const INGLE_STOP_CONTEXT_FULL: u32 = 5;
/// The answer calls tools.
pub const INGLE_STOP_TOOL_CALLS: u32 = 6;
/// The answer was cancelled.
pub const INGLE_STOP_CANCELLED: u32 = 7;
/// The time of `timeout_ms` passed.
pub const INGLE_STOP_TIMEOUT: u32 = 8;
/// The grammar allows no token, or takes too much work; the event's text says which.
pub const INGLE_STOP_UNGRAMMATICAL: u32 = 9;
/// A reason of a later version.
pub const INGLE_STOP_OTHER: u32 = 10;

/// A token of an answer. This struct will not change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleToken {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of the token's probability; NaN if it was not computed.
    pub logprob: f32,
    /// The token's bytes. A character may span several tokens.
    pub bytes: *const c_char,
    /// Number of `bytes`.
    pub n_bytes: usize,
    /// The likeliest tokens at this position, if the options want them.
    pub top: *const IngleToken,
    /// Number of `top`.
    pub n_top: usize,
}

/// A piece of an answer. Its pointers are valid until the answer's next event, or until the answer
/// is freed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleEvent {
    /// sizeof(ingle_event), which the caller sets.
    pub struct_size: usize,
    /// INGLE_EVENT_…
    pub kind: u32,
    /// Index among the `n` answers, from 0.
    pub choice: u32,
    /// UTF-8 with a zero byte after it; never null.
    pub text: *const c_char,
    /// Number of bytes of `text`.
    pub n_text: usize,
    /// Id of a call that begins; else null.
    pub call_id: *const c_char,
    /// Index of the call within the answer, from 0.
    pub call: u32,
    /// INGLE_STOP_…, at the end.
    pub stop_reason: u32,
    /// Tokens since the last event, if the options want them.
    pub tokens: *const IngleToken,
    /// Number of `tokens`.
    pub n_tokens: usize,
    /// Tokens of the prompt; at the end and with progress.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were in the cache; at the end and with progress.
    pub cached_tokens: u64,
    /// Tokens of the prompt that are available; with progress.
    pub prefilled_tokens: u64,
    /// Tokens of the answer, with reasoning and calls; at the end.
    pub completion_tokens: u64,
    /// Tokens of reasoning; at the end.
    pub reasoning_tokens: u64,
    /// The seed that was used; at the end.
    pub seed: u64,
    /// Seconds from the first step to the first token, as far as they are known.
    pub prefill_seconds: f64,
    /// Seconds from the first token to the last so far.
    pub decode_seconds: f64,
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleEvent {
    const NAME: &'static str = "ingle_event";
}

/// Memory to which the pointers of an event point.
#[derive(Default)]
pub(crate) struct Storage {
    /// A text with a zero byte after it.
    text: Vec<u8>,
    call_id: Vec<u8>,
    views: Vec<IngleToken>,
    /// Tokens whose bytes the views point to; nothing else reads them.
    _tokens: Vec<TokenInfo>,
    /// Likeliest tokens to which the views point.
    _tops: Vec<Vec<IngleToken>>,
}

fn view(id: u32, bytes: &[u8], logprob: Option<f32>, top: &[IngleToken]) -> IngleToken {
    IngleToken {
        id,
        logprob: logprob.unwrap_or(f32::NAN),
        bytes: bytes.as_ptr().cast(),
        n_bytes: bytes.len(),
        top: top.as_ptr(),
        n_top: top.len(),
    }
}

fn terminated(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    bytes
}

impl Storage {
    fn of_tokens(tokens: Vec<TokenInfo>) -> Storage {
        let best = |(id, bytes, logprob): &(u32, Vec<u8>, f32)| view(*id, bytes, Some(*logprob), &[]);
        let tops: Vec<Vec<IngleToken>> =
            tokens.iter().map(|token| token.top.iter().map(best).collect()).collect();
        let views = tokens
            .iter()
            .zip(&tops)
            .map(|(token, top)| view(token.id, &token.bytes, token.logprob, top))
            .collect();
        Storage { views, _tokens: tokens, _tops: tops, ..Storage::default() }
    }

    /// Stores an event, and returns its view, which points into the storage.
    pub(crate) fn store(&mut self, Event { choice, piece, timings, .. }: Event) -> IngleEvent {
        let mut event = IngleEvent {
            struct_size: size_of::<IngleEvent>(),
            kind: INGLE_EVENT_OTHER,
            choice: choice as u32,
            text: ptr::null(),
            n_text: 0,
            call_id: ptr::null(),
            call: 0,
            stop_reason: 0,
            tokens: ptr::null(),
            n_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            prefilled_tokens: 0,
            completion_tokens: 0,
            reasoning_tokens: 0,
            seed: 0,
            prefill_seconds: timings.prefill_seconds,
            decode_seconds: timings.decode_seconds,
        };
        *self = Storage::default();
        let mut words = String::new();
        match piece {
            Piece::Text { text, tokens } => {
                event.kind = INGLE_EVENT_TEXT;
                *self = Storage::of_tokens(tokens);
                words = text;
            }
            Piece::Reasoning(text) => {
                event.kind = INGLE_EVENT_REASONING;
                words = text;
            }
            Piece::ToolCallBegin { index, id, name } => {
                (event.kind, event.call) = (INGLE_EVENT_CALL_BEGIN, index as u32);
                self.call_id = terminated(id);
                event.call_id = self.call_id.as_ptr().cast();
                words = name;
            }
            Piece::ToolCallArguments { index, text } => {
                (event.kind, event.call) = (INGLE_EVENT_CALL_ARGUMENTS, index as u32);
                words = text;
            }
            Piece::ToolCallEnd { index } => {
                (event.kind, event.call) = (INGLE_EVENT_CALL_END, index as u32);
            }
            Piece::Progress(progress) => {
                event.kind = INGLE_EVENT_PROGRESS;
                event.prompt_tokens = progress.n_prompt as u64;
                event.cached_tokens = progress.n_reused as u64;
                event.prefilled_tokens = progress.n_done as u64;
            }
            Piece::End(end) => {
                event.kind = INGLE_EVENT_END;
                (event.stop_reason, words) = reason(end.reason);
                event.prompt_tokens = end.usage.prompt_tokens as u64;
                event.cached_tokens = end.usage.cached_tokens as u64;
                event.completion_tokens = end.usage.completion_tokens as u64;
                event.reasoning_tokens = end.usage.reasoning_tokens as u64;
                event.seed = end.seed;
            }
            _ => {}
        }
        event.n_text = words.len();
        self.text = terminated(words);
        event.text = self.text.as_ptr().cast();
        (event.tokens, event.n_tokens) = (self.views.as_ptr(), self.views.len());
        event
    }
}

fn reason(reason: StopReason) -> (u32, String) {
    match reason {
        StopReason::End => (INGLE_STOP_END, String::new()),
        StopReason::StopText(text) => (INGLE_STOP_TEXT, text),
        StopReason::StopToken(_) => (INGLE_STOP_TOKEN, String::new()),
        StopReason::MaxTokens => (INGLE_STOP_MAX_TOKENS, String::new()),
        StopReason::ContextFull => (INGLE_STOP_CONTEXT_FULL, String::new()),
        StopReason::ToolCalls => (INGLE_STOP_TOOL_CALLS, String::new()),
        StopReason::Cancelled => (INGLE_STOP_CANCELLED, String::new()),
        StopReason::Timeout => (INGLE_STOP_TIMEOUT, String::new()),
        StopReason::Ungrammatical(words) => (INGLE_STOP_UNGRAMMATICAL, words),
        _ => (INGLE_STOP_OTHER, String::new()),
    }
}
