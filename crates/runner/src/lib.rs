//! Models on threads of their own, which answer requests: chats, completions, embeddings and
//! transcripts.
//!
//! ```text
//! ChatRequest, CompletionRequest, … ─► Runner ─► the model's thread ─► Engine
//!                                                       │
//! the caller ◄── AnswerEvent, one stream a request ◄────┘
//! ```
//!
//! A [`Runner`] loads a model when a request needs it, and unloads it when it has been idle or when
//! memory is short. It renders chats with the model's template, holds tool calls to their schemas,
//! and separates reasoning and calls from the text of an answer. The engine never runs on a thread
//! of the caller. A stream merges unread output to one piece, so a slow reader delays nobody.
//!
//! The crate speaks no protocol: the server translates HTTP to these requests, and the library
//! `ingle` wraps them for programs.
#![deny(missing_docs)]

mod answer;
mod answering;
mod blocking;
mod chat;
mod details;
mod effort;
mod embedder;
mod error;
pub mod images;
mod lazy;
mod matchers;
mod models;
mod paths;
pub mod preparing;
mod queue;
mod reading;
mod request;
mod roles;
mod runner;
mod starting;
mod stats;
mod stream;
pub mod tenant;
mod thinking;
mod tool_calls;
mod transcriber;
mod transcription;
mod truncate;
pub mod warnings;
mod worker;

pub use answer::{AnswerEvent, Collected, Delta, EventKind, Finish, StopReason, TokenInfo, ToolCall, Usage};
pub use answering::Answer;
pub use details::ModelDetails;
pub use effort::Effort;
pub use engine::SamplingChoice;
pub use error::{CUT, ErrorKind, RequestError, Result};
pub use models::{
    Kind, LoadError, Loaded, LoadedStatus, Loader, ModelStatus, PullProgress, ServedAdapter, TextStatus,
};
pub use paths::without_folders;
pub use request::{Caller, ChatRequest, CompletionRequest, GenerateOptions, KeepAlive, Prompt, ToolChoice};
pub use runner::{EmbedRequest, Embedded, ModelActivity, Options, Ready, RequestActivity, Runner, TextProps};
pub use stats::{Gauge, Histogram, Pulse, Stats};
pub use transcriber::{Heard, MAX_SECONDS_OF_SPEECH, TranscribeRequest, TranscriptEvent};
pub use transcription::{Transcript, Transcription};
pub use truncate::answer_truncated;
