//! The contract between plans and devices.
//!
//! # Design choices
//!
//! - **A plan is a flat list.** [`Plan`] is `Vec<Node>` of primitive [`Op`]s in order over
//!   [`Value`]s (activations) and [`Weight`]s. It names no model family and no device; it can be
//!   printed and read.
//! - **Single assignment.** An Op writes values that no other Op writes. Whether two values share
//!   memory is up to the device.
//! - **Rows are symbolic.** A value has rows for each token of a step ([`RowCount::Tokens`],
//!   [`RowCount::PerToken`]) or for each output; both are known only when a [`Step`] runs. Columns
//!   are fixed. So one plan serves one token, a chunk of a prompt, and a batch of sequences.
//! - **A program may have several plans** over one [`KvLayout`]: one writes the encoder states that
//!   others attend to. A step names its plan.
//! - **A fused Op is the list of primitives it replaces** ([`Op::Fused`]). The interpreter runs any
//!   plan, fused or not, and so every fused kernel has a reference.
//! - **Which kinds of Ops fuse is the device's data** ([`Device::fusion`]), not code in the model.
//! - **A program owns its memory.** [`Device::compile`] takes the arena and the scratch once, as
//!   [`Device::memory_plan`] itemised them; [`Program::run`] allocates nothing. KV pages are
//!   committed and decommitted while it runs, in granules that the device names; failing to commit
//!   is a shortage ([`Error::Shortage`]), not a failure.
//! - **KV pages belong to the program, page tables to the engine.** A device sees page numbers
//!   only. Layers with the same window share a table ([`KvGroup`]), so a window keeps only its
//!   window.
//! - **Errors are for what the caller cannot foresee** (memory, a lost device). Plans are checked
//!   once, by [`Plan::check`]; devices and the interpreter trust a checked plan.
#![deny(missing_docs)]

mod check;
mod committed;
mod contract;
mod cost;
mod fused;
mod kv;
mod masks;
mod needs;
mod op;
mod place;
mod plan;
mod print;
mod sampling;
mod step;
mod validate;

pub mod key_bias;
pub mod kv_bytes;
pub mod kv_fp8;
pub mod kv_words;

pub use check::check_plans;
pub use committed::CommittedPages;
pub use contract::{
    Arithmetic, BackgroundProgress, CommandInfo, Device, Error, Item, Limits, MemoryPlan, Numerics, Peaks,
    Program, Residence, Result, Timing, no_background, plans_stay,
};
pub use fused::FusedKind;
pub use kv::{KvGroup, KvLayer, KvLayerId, KvLayout, KvType, PAGE_NONE, STATE_NONE, StateId};
pub use masks::{MaskSource, Masks};
pub use needs::{GroupUse, Needs};
pub use op::{
    Activation, CollectiveKind, FromStep, KvAccess, Op, OpFacts, OpKind, Pooling, RopeStyle, RouterGroups,
    RouterScores,
};
pub use place::Place;
pub use plan::{
    DType, Node, OutputKind, Plan, PlanError, RowCount, Value, ValueId, Weight, WeightId, WeightPart,
};
pub use sampling::{Chain, Penalties, Sampling, Stage};
pub use step::{Choose, Chosen, Link, OutputRef, OwnedStep, Slice, Span, StateUse, Step, Ticket, Want};

/// Largest [`Want::n_best`].
pub const MAX_BEST: usize = 128;
