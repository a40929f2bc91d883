//! OpenAI's, Anthropic's, Ollama's and llama.cpp's APIs over HTTP, and endpoints for operators.
//!
//! ```text
//! HTTP ─► an API's handler ─► ChatRequest, CompletionRequest, … ─► Runner
//!                 ▲                                                   │
//!                 └── that API's events ◄── AnswerEvent ◄─────────────┘
//! ```
//!
//! The APIs only translate. Models run on threads of the [`runner`], never on tokio's.
#![deny(missing_docs)]

mod access;
pub mod api;
mod connections;
mod error;
mod handlers;
mod limits;
mod origins;
pub mod page;
mod serve;
mod timed_body;
mod tls;
mod warnings;

pub use access::Access;
pub use api::keep_alive::keep_alive;
pub use connections::ConnectionLimits;
pub use error::{ApiError, HttpResult, reshape};
pub use origins::Origins;
pub use serve::{Gate, router, serve};
pub use tls::{Tls, TlsError};
