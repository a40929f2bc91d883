//! The reference interpreter: every Op in plain f32, to be read, and to be compared with.
//!
//! It runs any checked plan, fused or not (a fused Op is its parts). Each row is computed on its own in a fixed order, so
//! what it gives for a row does not depend on what shares the step, on how a prompt was chunked, or on the number of
//! threads: [`device::Numerics`] makes no difference. Weights are decoded row by row as they are used; nothing is cached.
//!
//! One file an Op, each a function over slices with shapes in its comments:
//!
//! | file | Ops |
//! |---|---|
//! | `interpreter/embed.rs` | Embed |
//! | `interpreter/norm.rs` | RmsNorm |
//! | `interpreter/linear.rs` | Linear |
//! | `interpreter/rope.rs` | Rope |
//! | `interpreter/kv_pages.rs` | KvWrite, and reading back |
//! | `interpreter/attention.rs` | Attention |
//! | `interpreter/element_wise.rs` | Activate, Gate, Add, Scale, Softcap |
//! | `interpreter/select.rs` | SelectRows, Argmax |
//! | `interpreter/encoder.rs` | LayerNorm, EmbedPositions, SelfAttention, Pool |
//! | `interpreter/input.rs` | Input, Unfold |
//! | `interpreter/cross.rs` | CrossAttention, CrossScores |
//!
//! Unlike other devices it allocates while it runs: its threads, and their scratch.

mod attention;
mod cross;
mod element_wise;
mod embed;
mod encoder;
mod experts;
mod input;
mod kv_pages;
mod linear;
mod norm;
mod parallel;
mod program;
mod rope;
mod select;

pub use element_wise::{activate, erf};

use device::{Arithmetic, Device, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Result, Rule, Weight};

/// The device `reference`.
#[derive(Clone, Debug)]
pub struct Reference {
    n_threads: usize,
}

impl Default for Reference {
    /// As many threads as the process may use.
    fn default() -> Self {
        Reference::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Reference {
    /// With a number of threads; at least one is used.
    pub fn new(n_threads: usize) -> Reference {
        Reference { n_threads: n_threads.max(1) }
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

    /// None: its fused Ops would only be their parts.
    fn fusion(&self) -> &[Rule] {
        &[]
    }

    fn kv_types(&self) -> &[KvType] {
        &[KvType::F32, KvType::F16, KvType::I16, KvType::I8, KvType::Q8_0]
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        program::memory_plan(self, plans, limits)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        Ok(Box::new(program::ReferenceProgram::new(self, plans, limits)?))
    }

    /// In f32 whatever the type.
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }

    /// Of the interpreter's own dot product, which is all that its Linears use.
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
