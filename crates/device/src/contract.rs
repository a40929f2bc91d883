//! What every device offers.

use crate::{KvType, Plan, PlanError, Rule, Sampling, Step, Weight};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller cannot foresee.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device cannot run this.
    #[error("device {device}: {what} is not supported; {hint}")]
    Unsupported {
        /// The device's name.
        device: &'static str,
        /// What was asked.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// Memory was refused.
    #[error("device {device}: {bytes} bytes for {what} were refused by the system")]
    OutOfMemory {
        /// The device's name.
        device: &'static str,
        /// What it was for.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// The device failed while it ran.
    #[error("device {device} failed: {reason}")]
    Failed {
        /// The device's name.
        device: &'static str,
        /// Its own words.
        reason: String,
    },
}

/// Memory of the machine that a device uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Installed, or what a container's limit allows.
    pub total: u64,
    /// Free now, page cache that can be dropped included.
    pub free: u64,
}

/// Whether an item of the memory plan is memory of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// A view of the file: the system may drop and re-read it.
    Mapped,
    /// Taken at load and touched.
    Committed,
    /// Reserved as address space, committed as sequences grow: `bytes` is the most it can become.
    Reserved,
}

/// One line of the memory plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is: `weights`, `activations`, `KV pages (window 512)`.
    pub what: String,
    /// How much.
    pub bytes: u64,
    /// Whose memory it is.
    pub residence: Residence,
}

/// What a program will take, itemised before any is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The lines.
    pub items: Vec<Item>,
}

impl MemoryPlan {
    /// Sum of the items of a kind.
    pub fn total(&self, residence: Residence) -> u64 {
        self.items.iter().filter(|i| i.residence == residence).map(|i| i.bytes).sum()
    }
}

/// Which arithmetic a program may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// The fastest kernel for each number of rows. Accumulation order may differ between one row and many.
    #[default]
    Fast,
    /// Each row's accumulation order is fixed, whatever shares its step and however its prompt was chunked.
    Deterministic,
}

/// The sizes a program is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of a step (the prefill chunk).
    pub max_rows: usize,
    /// Most rows of a step whose logits are wanted.
    pub max_outputs: usize,
    /// Most spans (sequences) of a step.
    pub max_spans: usize,
    /// Most positions of one sequence. (Plans without Embed are bounded by their own tables and memories instead.)
    pub n_ctx: usize,
    /// Positions of one page; a power of two, at least 16.
    pub page_len: usize,
    /// Pages of each KV group.
    pub n_pages: Vec<usize>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Which arithmetic.
    pub numerics: Numerics,
}

/// What the machine can do, measured on it now (`ingle bench`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes a second read from memory, all workers together.
    pub read_bytes_per_second: f64,
    /// Operations a second (a multiply and an add are two) of the fastest integer path that the kernels use.
    pub int8_ops_per_second: f64,
    /// The same of BF16 numbers; that in f32 where it is no faster.
    pub bf16_ops_per_second: f64,
    /// The same in f32.
    pub f32_ops_per_second: f64,
}

/// In what a device multiplies a weight: which of its peaks that is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Activations in 8 bits, sums in integers.
    Int8,
    /// Weights and activations in BF16, sums in f32.
    Bf16,
    /// Activations and sums in f32.
    F32,
}

impl Peaks {
    /// Operations a second of an arithmetic.
    pub fn ops_per_second(&self, arithmetic: Arithmetic) -> f64 {
        match arithmetic {
            Arithmetic::Int8 => self.int8_ops_per_second,
            Arithmetic::Bf16 => self.bf16_ops_per_second,
            Arithmetic::F32 => self.f32_ops_per_second,
        }
    }
}

/// One command of a program's table, for profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandInfo {
    /// The kernel: `linear_q4_1 (1 row)`.
    pub kernel: String,
    /// Index of the plan's node.
    pub node: usize,
    /// The layer, if it belongs to one.
    pub layer: Option<u32>,
    /// Bytes of weights that it reads.
    pub weight_bytes: u64,
}

/// How long one command of the last step took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Index into [`Program::commands`].
    pub command: usize,
    /// Seconds since the step began.
    pub start: f64,
    /// Seconds.
    pub duration: f64,
}

/// Plans made ready to run: their memory is taken, their tables are written. They share KV pages, and the memory of their
/// activations: what a step leaves of these is gone with the next step, whichever plan it runs.
pub trait Program: Send {
    /// Run one step of the plan that it names. Allocates nothing.
    ///
    /// # Errors
    /// The device failed; the step's KV positions are then undefined and must be written again.
    fn run(&mut self, step: &Step) -> Result<()>;

    /// `(n_outputs, n_vocab)` of the last step; with [`crate::Output::Hidden`] `(n_outputs, hidden)`.
    fn logits(&self) -> &[f32];

    /// As [`Self::logits`], for a sampler that works in place.
    fn logits_mut(&mut self) -> &mut [f32];

    /// `(n_outputs)` of the last step, if it wanted [`crate::Want::Argmax`].
    fn argmax(&self) -> &[u32];

    /// The value [`Plan::kept`]`[index]` of the last step's plan, `(rows, cols)`; empty if there is none.
    fn kept(&self, index: usize) -> &[f32];

    /// Most tokens of a chain ([`Self::start_chain`]) whose tokens are chosen so (`None`: the best); 0: this program has no
    /// such chains.
    fn most_chained(&self, _sampling: Option<&Sampling>) -> usize {
        0
    }

    /// Begin `n` steps of one row, each with the token that was chosen in the one before, which the device does by itself: the
    /// first is `step`, of one row whose logits are wanted. `None` chooses the best token ([`crate::Want::Argmax`]). Page
    /// tables cover the positions of all of them.
    ///
    /// # Errors
    /// The step cannot begin a chain, or the device failed.
    fn start_chain(&mut self, _step: &Step, _n: usize, _sampling: Option<&Sampling>) -> Result<()> {
        Err(Error::Unsupported {
            device: "in use",
            what: "a chain of tokens".to_owned(),
            hint: "run step by step".to_owned(),
        })
    }

    /// Wait for the next token of the chain. `None`: none is left, or nothing could be chosen (no logit is a number, or one
    /// is infinite), which the step run by itself will show.
    ///
    /// # Errors
    /// The device failed; the chain is over, and KV positions behind the last token are undefined.
    fn next_chained(&mut self) -> Result<Option<u32>> {
        Ok(None)
    }

    /// End the chain. What it did behind the last token that was taken is nobody's: KV positions there are undefined. Any
    /// other step ends it too.
    ///
    /// # Errors
    /// The device failed.
    fn stop_chain(&mut self) -> Result<()> {
        Ok(())
    }

    /// Copy a page of a KV group, all its layers (copy on write of a shared prefix).
    ///
    /// # Errors
    /// The device failed.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()>;

    /// The bytes of a page of a KV group, all its layers, as this device lays them out, for [`Self::write_page`] of a
    /// program of the same plan, limits and device. `bytes` is [`crate::KvLayout::page_bytes`] long.
    ///
    /// # Errors
    /// There is no such page, the length is another, or the device does not give its pages out.
    fn read_page(&self, _group: usize, _page: u32, _bytes: &mut [u8]) -> Result<()> {
        Err(pages_stay())
    }

    /// Fill a page with what [`Self::read_page`] gave.
    ///
    /// # Errors
    /// As there.
    fn write_page(&mut self, _group: usize, _page: u32, _bytes: &[u8]) -> Result<()> {
        Err(pages_stay())
    }

    /// A page is unused: its memory may go back to the system until it is written again.
    fn release_page(&mut self, group: usize, page: u32);

    /// The command table of a plan for a step of `n_rows` rows; empty if there is no such plan.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo>;

    /// As [`Self::run`], and the time of each command appended to `timings`, which belong to
    /// `commands(step.plan, n_rows)`.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()>;
}

/// What a program says whose pages cannot be read or written from outside.
fn pages_stay() -> Error {
    Error::Unsupported {
        device: "in use",
        what: "reading and writing KV pages".to_owned(),
        hint: "leave prompt caches on disk out".to_owned(),
    }
}

/// A machine that runs programs.
pub trait Device: Send + Sync {
    /// Its name on the command line: `cpu`.
    fn name(&self) -> &'static str;

    /// For people: the chip, what of it is used, how many threads.
    fn describe(&self) -> String;

    /// Worker threads, where that means something.
    fn n_threads(&self) -> usize;

    /// Its memory.
    fn memory(&self) -> Memory;

    /// The fusion rules of its profile, tried in this order at every node.
    fn fusion(&self) -> &[Rule];

    /// KV types that it runs, the default first.
    fn kv_types(&self) -> &[KvType];

    /// Positions of a KV page that suit it best, a power of two.
    fn page_len(&self) -> usize {
        32
    }

    /// What [`Self::compile`] will take.
    ///
    /// # Errors
    /// A plan cannot run on this device.
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan>;

    /// Take the memory and write the tables. All plans have one KV layout; they share its pages, and the memory of their
    /// activations, as much as the largest needs.
    ///
    /// # Errors
    /// A plan cannot run on this device, the plans do not fit each other, or memory was refused.
    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>>;

    /// In what this device multiplies the weight.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic;

    /// Measure what the machine can do, in a second or so.
    fn peaks(&self) -> Peaks;
}
