//! The reference interpreter: every Op in plain f32, for readers and for comparisons.
//!
//! It runs any checked plan, fused or not (a fused Op is its parts). Each row is computed by itself
//! in a fixed order. So its result does not depend on other rows of the step, on the chunks of a
//! prompt, or on the number of threads: [`device::Numerics`] makes no difference. Weights are
//! decoded row by row at each use; nothing is cached.
//!
//! `forward.rs` is the way through: the inputs and outputs of each Op. Every value has a buffer of
//! its own (`activations.rs`), so that all can be read after a step. The arithmetic is in one file
//! for each kind of Op, as functions over slices with shapes in their comments. A page that runs a
//! model is `crates/engine/examples/forward.rs`.
//!
//!
//! | file | Ops |
//! |---|---|
//! | `embed.rs` | Embed, EmbedPositions |
//! | `norm.rs` | RmsNorm |
//! | `linear.rs` | Linear |
//! | `rope.rs` | Rope |
//! | `kv_pages.rs` | KvWrite, and loading keys and values |
//! | `attention.rs` | Attention |
//! | `element_wise.rs` | Activate, Gate, GateClamped, Add, Scale, Softcap, Clamp |
//! | `experts.rs` | Route, ExpertLinear, ExpertBias, ExpertSum |
//! | `select.rs` | Columns, Join, SelectRows, Argmax |
//! | `encoder.rs` | LayerNorm, SelfAttention, Pool |
//! | `input.rs` | Input, Unfold |
//! | `cross.rs` | CrossAttention, CrossScores |
//! | `recurrent.rs` | ShortConv, GatedDelta, SelectiveScan |
//! | `group.rs` | Collective |
//!
//! Unlike other devices the interpreter allocates while it runs: threads, and their scratch.

mod activations;
mod attention;
mod cross;
mod element_wise;
mod embed;
mod encoder;
mod experts;
mod forward;
mod group;
mod input;
mod kv_pages;
mod linear;
mod norm;
mod parallel;
mod program;
mod recurrent;
mod rope;
mod select;

pub use element_wise::{activate, erf};
pub use group::Rank;

use device::{
    Arithmetic, Device, FusedKind, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Result, Weight,
};

/// The device `reference`.
#[derive(Clone, Debug)]
pub struct Reference {
    n_threads: usize,
    /// Rank in a group, if any.
    rank: Option<Rank>,
}

impl Default for Reference {
    /// An interpreter with all threads that the process may use.
    fn default() -> Self {
        Reference::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Reference {
    /// An interpreter with `n_threads` threads, at least one.
    pub fn new(n_threads: usize) -> Reference {
        Reference { n_threads: n_threads.max(1), rank: None }
    }

    /// `n_ranks` ranks of a group; the caller drives each from its own thread.
    pub fn group(n_ranks: usize, n_threads: usize) -> Vec<Reference> {
        let of = |rank| Reference { rank: Some(rank), ..Reference::new(n_threads) };
        Rank::all(n_ranks).into_iter().map(of).collect()
    }
}

impl Device for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        format!("reference interpreter, plain f32, {} threads", self.n_threads)
    }

    fn n_threads(&self) -> usize {
        self.n_threads
    }

    fn memory(&self) -> platform::SystemMemory {
        platform::system_memory()
    }

    /// No rules: fused Ops would only run as their parts.
    fn fusion(&self) -> &[FusedKind] {
        &[]
    }

    fn kv_types(&self) -> &[KvType] {
        &[KvType::F32, KvType::F16, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8]
    }

    fn n_ranks(&self) -> usize {
        self.rank.as_ref().map_or(1, Rank::n_ranks)
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        program::memory_plan(self, plans, limits)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        program::ReferenceProgram::compile(self, plans, limits)
    }

    /// F32 for every type.
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }

    /// Rates of the interpreter's own dot product, the only one that its Linears use.
    fn peaks(&self) -> Peaks {
        let (read_bytes_per_second, f32_ops_per_second) = linear::peaks(self.n_threads);
        Peaks {
            read_bytes_per_second,
            int8_ops_per_second: f32_ops_per_second,
            bf16_ops_per_second: f32_ops_per_second,
            f32_ops_per_second,
        }
    }
}
