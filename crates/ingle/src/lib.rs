//! An inference engine for language models, as a library: the public face of Ingle.
//!
//! [`load`] fetches a model if needed, chooses a device, and makes an [`Engine`] that computes
//! answers. Each of its steps is a function, too: [`fetch`], [`open`], [`device_for`] and
//! [`engine`](fn@engine). [`LoadOptions`] has the options of all of them.
//!
//! ```
//! use ingle::{LoadOptions, Request, SamplingParams, Silent, device::DeviceKind};
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/llama");
//! // A folder with safetensors here; "smollm2:135m" or "hf:org/repo" are fetched.
//! let mut options = LoadOptions::default();
//! options.device.kind = DeviceKind::Cpu;
//! options.n_ctx = Some(64);
//! let mut engine = ingle::load(&model.into(), &options, &mut Silent)?.engine;
//!
//! // This tiny model has no tokenizer, so that the prompt is token ids.
//! let prompt = Request::new(vec![1, 20, 30]);
//! let request = Request { max_tokens: Some(4), sampling: SamplingParams::greedy(), ..prompt };
//! let answer = engine.complete(request)?;
//! assert!(!answer.tokens.is_empty() && answer.tokens.len() <= 4);
//! # Ok::<(), ingle::Error>(())
//! ```
//!
//! # Threads and output
//!
//! Calls block. An [`Engine`] is used by one thread at a time; a [`Model`] and a [`Device`] may be
//! shared. The library prints nothing. Facts that a user should know are returned as [`Note`]s,
//! progress of downloads goes to a [`Progress`], and details go to `tracing`.
//!
//! # Stability
//!
//! Before version 1.0 a minor version may change anything. This crate's structs and enums are
//! `#[non_exhaustive]`: begin with `default()`, set fields, and expect further variants. Types of
//! the inner crates, such as [`Request`], gain fields: build them with `..`. The modules
//! [`device::cuda`] and [`device::metal`] show types of single devices, for self-tests, and may
//! change with any version.
#![deny(missing_docs)]

pub mod device;

mod error;
mod fetch;
mod load;
mod mmproj;
mod note;
mod options;
mod source;

pub use error::{Error, Result};
pub use fetch::{HubOptions, fetch};
pub use load::{
    Loaded, Opened, default_kv_type, device_for, engine, load, open, open_adapter, open_fetched, open_gguf,
};
pub use note::{Note, size_text};
pub use options::LoadOptions;
pub use source::{AdapterSource, ModelSource};

pub use ::device::{Device, KvType, Numerics};
/// The engine's own options, to which [`LoadOptions::engine_options`] converts.
pub use ::engine::LoadOptions as EngineOptions;
pub use ::engine::{
    Adapter, CancelFlag, Completion, Engine, Event, FinishReason, Finished, MemoryCap, MemoryReport, Model,
    Request, SamplingChoice, SamplingParams, Speculate, Timings, plan_memory,
};
pub use ::formats::{Verify, base::PublicKey};
/// Errors of fetching.
pub use ::hub::Error as HubError;
/// Resolved options of fetching, which [`HubOptions::resolve`] returns.
pub use ::hub::Options as ResolvedHubOptions;
pub use ::hub::{Cache, Catalog, ModelRef, Progress, ProxyChoice, Silent, Token};
pub use ::text::{Specials, Tokenizer};
pub use ::weights::Access;
