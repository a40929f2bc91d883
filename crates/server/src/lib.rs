//! OpenAI's, Anthropic's and Ollama's APIs over the engine, and endpoints for operators.
//!
//! ```text
//! HTTP ─► an API's handler ─► ChatRequest, CompletionRequest, … ─► App ─► the model's thread ─►
//! Engine
//!                 ▲                                                               │
//!                 └── that API's events ◄── AnswerEvent, one stream a request ◄───┘
//! ```
//!
//! The APIs only translate. The engine runs on a thread of its own, never on tokio's. A stream
//! merges unread output to one piece, so a slow reader delays nobody.
#![deny(missing_docs)]

mod access;
mod answer;
mod answering;
pub mod api;
mod app;
mod blocking;
mod chat;
mod connections;
mod details;
mod effort;
mod embedder;
mod error;
mod handlers;
mod images;
mod lazy;
mod limits;
mod matchers;
mod models;
mod origins;
pub mod page;
mod paths;
mod preparing;
mod queue;
mod reading;
mod request;
mod roles;
mod serve;
mod starting;
mod stats;
mod stream;
mod thinking;
mod timed_body;
mod tls;
mod tool_calls;
mod transcriber;
mod transcription;
mod truncate;
mod warnings;
mod worker;

pub use access::Access;
pub use answer::{AnswerEvent, Collected, Delta, EventKind, Finish, StopReason, TokenInfo, ToolCall, Usage};
pub use answering::Answer;
pub use api::keep_alive::keep_alive;
pub use app::{App, EmbedRequest, Embedded, ModelActivity, Options, Ready, RequestActivity, TextProps};
pub use connections::ConnectionLimits;
pub use details::ModelDetails;
pub use effort::Effort;
pub use engine::SamplingChoice;
pub use error::{ApiError, ErrorKind, Result, reshape};
pub use models::{
    Kind, LoadError, Loaded, LoadedStatus, Loader, ModelStatus, PullProgress, ServedAdapter, TextStatus,
};
pub use origins::Origins;
pub use paths::without_folders;
pub use request::{Caller, ChatRequest, CompletionRequest, GenerateOptions, KeepAlive, Prompt, ToolChoice};
pub use serve::{Gate, router, serve};
pub use stats::{Gauge, Histogram, Pulse, Stats};
pub use tls::{Tls, TlsError};
pub use transcriber::{Heard, TranscribeRequest, TranscriptEvent};
pub use transcription::{Transcript, Transcription};
