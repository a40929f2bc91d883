//! An inference engine for language models, as a library: the public face of Ingle.
//!
//! ```no_run
//! use std::io::{self, BufRead, Write};
//!
//! use ingle::{Chat, Model, Piece};
//!
//! fn main() -> ingle::Result<()> {
//!     // A path, a name of the catalog, or hf:org/repo; it is fetched if needed.
//!     let model = Model::load("smollm2:135m")?;
//!     let mut chat = Chat::new().system("Answer briefly.");
//!     for line in io::stdin().lock().lines().map_while(Result::ok) {
//!         chat = chat.user(line);
//!         let mut text = String::new();
//!         for event in model.chat(chat.clone())? {
//!             if let Piece::Text { text: more, .. } = event?.piece {
//!                 print!("{more}");
//!                 let _ = io::stdout().flush();
//!                 text.push_str(&more);
//!             }
//!         }
//!         println!();
//!         chat = chat.assistant(text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A [`Model`] runs on a thread of its own. [`Chat`] and [`Completion`] are requests, with the
//! options of a [`Generation`]; an [`Answer`] is a stream of [`Event`]s, or a [`Reply`]. The same
//! model embeds, reranks or transcribes if it can. [`LoadOptions`] choose the device, the context
//! and adapters. [`direct`] has the parts: loading step by step, and an engine on the caller's own
//! thread.
//!
//! # Threads and async code
//!
//! A [`Model`] is [`Send`] and [`Sync`], and cheap to clone. Requests of several threads share the
//! model's steps, so that ten prompts at once take little longer than one. Calls wait on the
//! calling thread. Those that end in `_async`, and [`Answer::next_event`], are futures that run on
//! any executor. Dropping an [`Answer`] cancels it.
//!
//! # Output
//!
//! The library prints nothing. Facts that a user should know are returned as [`Note`]s, progress of
//! downloads goes to a [`Progress`], and details go to `tracing`.
//!
//! # Stability
//!
//! Before version 1.0 a minor version may change anything. This crate's structs and enums are
//! `#[non_exhaustive]`: begin with `default()`, set fields, and expect further variants. Types of
//! the inner crates, such as [`direct::Request`], gain fields: build them with `..`. Types of
//! single devices in [`device::cuda`] and [`device::metal`] are for self-tests, and may change with
//! any version.
#![deny(missing_docs)]

pub mod device;

mod answer;
mod chat;
mod completion;
mod error;
mod executor;
mod fetch;
mod generation;
mod load;
mod loaded;
mod mmproj;
mod model;
mod note;
mod options;
mod source;

pub use answer::{
    Answer, End, Event, Piece, PrefillProgress, Reply, StopReason, Timings, TokenInfo, ToolCall, Usage,
};
pub use chat::{Chat, Effort, ToolChoice};
pub use completion::Completion;
pub use error::{Error, RequestErrorKind, Result};
pub use fetch::HubOptions;
pub use generation::{Generation, Grammar};
pub use model::{
    Embeddings, Model, ModelInfo, ModelKind, Segment, Task, TranscribeOptions, Transcript, Word,
};
pub use note::{Note, size_text};
pub use options::LoadOptions;
pub use source::{AdapterSource, ModelSource};

pub use ::device::KvType;
pub use ::engine::{
    Dry, EngineLoad, MAX_BEST_LOGPROBS, MemoryCap, MemoryReport, Mirostat, SamplerName, Speculate,
};
pub use ::formats::{Verify, base::PublicKey};
pub use ::hub::{Progress, ProxyChoice, Silent, Token};
pub use ::text::{Specials, Tokenizer};
pub use ::weights::Access;

/// Loading step by step, and an engine on the caller's own thread.
///
/// [`load`](direct::load) fetches a model if needed, chooses a device, and makes an
/// [`Engine`](direct::Engine). Each of its steps is a function, too.
///
/// ```
/// use ingle::{LoadOptions, Silent, device::DeviceKind};
/// use ingle::direct::{self, Request, SamplingParams};
///
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/llama");
/// let mut options = LoadOptions::default();
/// options.device.kind = DeviceKind::Cpu;
/// options.n_ctx = Some(64);
/// let mut engine = direct::load(&model.into(), &options, &mut Silent)?.engine;
///
/// let prompt = Request::new(vec![1, 20, 30]);
/// let request = Request { max_tokens: Some(4), sampling: SamplingParams::greedy(), ..prompt };
/// let answer = engine.complete(request)?;
/// assert!(!answer.tokens.is_empty() && answer.tokens.len() <= 4);
/// # Ok::<(), ingle::Error>(())
/// ```
pub mod direct {
    pub use crate::fetch::fetch;
    pub use crate::load::{
        Loaded, Opened, default_kv_type, device_for, engine, load, open, open_adapter, open_fetched,
        open_gguf,
    };
    pub use ::device::{Device, Numerics};
    /// Errors of the engine.
    pub use ::engine::Error as EngineError;
    /// The engine's own options, to which
    /// [`LoadOptions::engine_options`](crate::LoadOptions::engine_options) converts.
    pub use ::engine::LoadOptions as EngineOptions;
    pub use ::engine::{
        Adapter, CancelFlag, Completion, Engine, Event, FinishReason, Finished, Model, Request,
        SamplingChoice, SamplingParams, plan_memory,
    };
    /// Errors of fetching.
    pub use ::hub::Error as HubError;
    /// Resolved options of fetching, which
    /// [`HubOptions::resolve`](crate::HubOptions::resolve) returns.
    pub use ::hub::Options as ResolvedHubOptions;
    pub use ::hub::{Cache, Catalog, ModelRef};
}
