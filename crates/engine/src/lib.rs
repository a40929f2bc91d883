//! The engine over any device: loading, memory plan, KV pages, steps, sampling.
//!
//! # The path of a request
//!
//! [`Model::from_opened`] reads a file. [`Engine::new`] plans memory, compares it with the free
//! memory, and compiles the plan on a device. [`Engine::add`] queues a [`Request`]. Each
//! [`Engine::step`] computes rows of one or more sequences and emits [`Event`]s.
//! [`Engine::generate`] and [`Engine::complete`] do all of that for one request. [`Conversation`]
//! keeps the messages of a chat. [`Engine::score`] and [`Engine::perplexity`] evaluate given texts.
//! [`Embedder`] turns texts into vectors, many in a step.
//!
//! # Invariants
//!
//! - The crate names no model family, no concrete device and no file format.
//! - A decode step allocates nothing, including sampling, detokenising and events. Memory is
//!   allocated when a sequence is added, admitted or parked, while its prompt is computed, when it
//!   slides and when it ends.
//! - Draft tokens change how many rows a step has, and never how a token is chosen ([`Proposer`]).
//! - A page with more than one reference is never written. Every reference is counted;
//!   [`KvCache::check`] counts anew.
//! - A running sequence is never ended to make room: cached prefixes are evicted first, then the
//!   youngest sequence of the lowest priority is parked, and resumes later.
#![deny(missing_docs)]

mod adapters;
mod add;
mod chat;
mod constraint;
mod diff;
mod embed;
mod engine;
mod error;
mod evaluate;
mod event;
mod figures;
mod generate;
mod governor;
mod kv;
mod load;
mod memory;
mod output;
mod prefill_check;
mod prompt_cache;
mod scheduler;
mod score;
mod sequence;
mod speculate;
mod turns;
mod vision;
mod weight_files;

pub mod sampling;

pub use adapters::{AdapterPlanner, PlannedAdapters};
pub use chat::Conversation;
pub use constraint::{Constraint, ConstraintResult};
/// Maximum number of tokens that are reported with each token.
pub use device::MAX_BEST as MAX_BEST_LOGPROBS;
pub use diff::{ValueDiff, diff};
pub use embed::{Embedder, Embeddings, TextEncoder};
pub use engine::{Engine, StepTimings};
pub use error::{Error, Result};
pub use event::{Event, Progress};
pub use figures::EngineLoad;
pub use generate::{Completion, Finished};
pub use governor::{Governor, MemoryCap, MemoryStatus, Reason, UnloadIdle, reserve};
pub use kv::{KvCache, PagePool, PrefixCache, bytes_of_sequence, pages_of_sequence, pool_sizes};
pub use load::{DEFAULT_DRAFT, DEFAULT_TOKEN_LATENCY, LoadOptions, MAX_N_CTX, Model, TokenizerSource};
pub use memory::{Alternative, MemoryItem, MemoryReport, PlannedBudget, kv_type_name, plan_memory};
pub use model::{Adapter, Picture, VisionSpec};
pub use prefill_check::{FAST_BOUND, PrefillCheck};
pub use prompt_cache::{PromptCache, Restored};
pub use sampling::{
    Dry, DryBreakers, MAX_DRY_BREAKER, MAX_DRY_BREAKERS, Mirostat, SamplerName, SamplingChoice,
    SamplingParams,
};
pub use score::{Perplexity, PositionScore, TokenScore};
pub use sequence::{CancelFlag, FinishReason, Overflow, Prefill, Request, SequenceId, Timings};
pub use speculate::{Computed, DraftModel, MAX_DRAFT, NgramLookup, Proposer, Speculate, Target};
pub use text::{Asides, ShowSpecial};
pub use turns::{Turn, Turns};
pub use weight_files::WeightFiles;
