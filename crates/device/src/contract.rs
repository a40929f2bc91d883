//! The traits that every device implements, and the plain data that these traits exchange.

use std::ops::Range;
use std::time::{Duration, Instant};

use platform::SystemMemory;

use crate::{
    Chosen, CommittedPages, FusedKind, KvType, Plan, PlanError, Step, Ticket, ValueId, Want, Weight,
};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors that a caller cannot foresee.
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
        /// The unsupported feature or size.
        what: String,
        /// Advice for the user.
        hint: String,
    },
    /// The system refused memory.
    #[error("device {device}: {bytes} bytes for {what} were refused by the system")]
    OutOfMemory {
        /// The device's name.
        device: &'static str,
        /// Purpose of the memory.
        what: String,
        /// Bytes requested.
        bytes: u64,
    },
    /// KV pages could not be committed now. This is no failure: the caller frees pages and tries
    /// again.
    #[error(
        "device {device}: {bytes} bytes for {n_pages} pages of KV group {group} were refused; free pages and try again"
    )]
    Shortage {
        /// The device's name.
        device: &'static str,
        /// The KV group.
        group: usize,
        /// Number of requested pages.
        n_pages: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// [`Step::stop`] was set while the step ran.
    #[error("device {device}: the step was stopped")]
    Stopped {
        /// The device's name.
        device: &'static str,
    },
    /// The device failed while it ran.
    #[error("device {device} failed: {reason}")]
    Failed {
        /// The device's name.
        device: &'static str,
        /// The reason that the driver or system reported.
        reason: String,
    },
}

/// Kind of memory of an item of the memory plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// A mapped file: the system may drop its pages and read them again.
    Mapped,
    /// Allocated and touched at load.
    Committed,
    /// Address space that is committed as sequences grow; `bytes` is the maximum.
    Reserved,
}

/// One line of the memory plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name of the item: `weights`, `activations`, `KV pages (window 512)`.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Mapped, committed or reserved.
    pub residence: Residence,
}

/// The memory that a program will allocate, itemised before any is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The items.
    pub items: Vec<Item>,
    /// Features that the device lacks for these plans and limits, each with the reason; usually
    /// empty.
    pub notes: Vec<String>,
}

impl MemoryPlan {
    /// Sum of the items of one kind, in bytes.
    pub fn total(&self, residence: Residence) -> u64 {
        self.items.iter().filter(|i| i.residence == residence).map(|i| i.bytes).sum()
    }
}

/// The arithmetic that a program may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// The fastest kernel for each number of rows. Accumulation order may differ between one row
    /// and many.
    #[default]
    Fast,
    /// The accumulation order of each row is fixed. It depends neither on the other rows of its
    /// step nor on how its prompt was chunked.
    Deterministic,
}

/// The sizes for which a program is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of rows of a step: the prefill chunk.
    pub max_rows: usize,
    /// Maximum number of rows of a step whose logits are wanted.
    pub max_outputs: usize,
    /// Maximum number of spans (sequences) of a step.
    pub max_spans: usize,
    /// Maximum number of positions of one sequence. Plans without Embed are bounded by their own
    /// tables and encoder states instead.
    pub n_ctx: usize,
    /// Positions of one page; a power of two, at least 16.
    pub page_len: usize,
    /// Number of pages of each KV group.
    pub n_pages: Vec<usize>,
    /// Number of states of recurrent layers ([`Step::states`]); 0 if no plan has such layers.
    pub n_states: usize,
    /// Maximum number of rows of a background step ([`Program::begin_background`]), at most
    /// `max_rows`; 0 disables such steps.
    pub background_rows: usize,
    /// Storage type of keys and values.
    pub kv_type: KvType,
    /// Arithmetic of the program.
    pub numerics: Numerics,
}

/// Peak rates of the machine, measured by `ingle bench`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes a second that all workers together read from memory.
    pub read_bytes_per_second: f64,
    /// Operations a second of the fastest integer path of the kernels; a multiply and an add count
    /// as two.
    pub int8_ops_per_second: f64,
    /// Operations a second in BF16, or in f32 if BF16 is no faster.
    pub bf16_ops_per_second: f64,
    /// Operations a second in f32.
    pub f32_ops_per_second: f64,
}

/// The arithmetic in which a device multiplies a weight. It selects the peak that the speed is
/// compared with.
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
    /// Peak operations a second of an arithmetic.
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
    /// Name of the kernel: `linear_q4_1 (1 row)`.
    pub kernel: String,
    /// Index of the plan's node.
    pub node: usize,
    /// The layer, if it belongs to one.
    pub layer: Option<u32>,
    /// Bytes of weights that the command reads.
    pub weight_bytes: u64,
}

/// Time of one command of the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Index into [`Program::commands`].
    pub command: usize,
    /// Seconds from the start of the step.
    pub start: f64,
    /// Duration in seconds.
    pub duration: f64,
}

/// Progress of a background step ([`Program::advance_background`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundProgress {
    /// True once the step is done: its keys, values and states are written.
    pub is_done: bool,
    /// Duration of the longest part so far. The device cannot stop in shorter intervals.
    pub longest_part: Duration,
}

/// Compiled plans. All their memory but the KV pages is allocated, and their command tables are
/// written. Plans share KV pages, and may share the memory of activations: a step overwrites those
/// of the step before, whichever plan it runs.
///
/// Steps are submitted and waited for. A device runs steps and page operations in the order of
/// submission: a copied page holds what earlier steps wrote.
pub trait Program: Send {
    /// Maximum number of steps that may be submitted before the first is waited for, at least 1. A
    /// device with 1 may compute the step within [`Self::submit`].
    fn max_in_flight(&self) -> usize {
        1
    }

    /// Number of decode steps, a row for each of `n_sequences` sequences, that are worth having in
    /// flight: from 1 to [`Self::max_in_flight`]. Steps in flight are wasted when a sequence ends.
    fn steps_ahead(&self, _n_sequences: usize) -> usize {
        self.max_in_flight()
    }

    /// Returns true if later steps may link to an output with this want while its step is still in
    /// flight ([`crate::Link`]).
    fn chooses_in_flight(&self, _want: &Want) -> bool {
        false
    }

    /// Checks a step and starts it. The device copies what it needs of `step`; nothing is
    /// allocated.
    ///
    /// # Errors
    /// The step breaks a rule of [`Step::check`], too many steps are in flight, the device failed,
    /// or [`Error::Stopped`]. The step's KV positions are then undefined and must be written again.
    fn submit(&mut self, step: &Step) -> Result<Ticket>;

    /// Waits for the oldest step that was not waited for yet. The functions below return the
    /// results of the last step that was waited for.
    ///
    /// # Errors
    /// The device failed, or the ticket is not the oldest; steps submitted later fail too.
    fn wait(&mut self, ticket: Ticket) -> Result<()>;

    /// `(n_outputs)`: the choice of each output that wanted one.
    fn chosen(&self) -> &[Chosen];

    /// The best tokens of an output and their log-probabilities, best first. There are
    /// [`Want::n_best`], or fewer if fewer tokens have a probability; with [`Want::drawn`] only the
    /// remaining tokens have one.
    fn best(&self, output: usize) -> &[(u32, f32)];

    /// `(n_outputs, n_vocab)`, or `(n_outputs, hidden)` with [`crate::OutputKind::Hidden`]. Rows
    /// whose logits were not wanted are undefined. The next submitted step overwrites the logits.
    fn logits(&self) -> &[f32];

    /// The value [`Plan::kept`]`[index]` of the step's plan, `(rows, cols)`; empty if there is
    /// none. The next submitted step overwrites it.
    fn kept(&self, index: usize) -> &[f32];

    /// Submits a step and waits for it.
    ///
    /// # Errors
    /// As [`Self::submit`] and [`Self::wait`].
    fn run(&mut self, step: &Step) -> Result<()> {
        let ticket = self.submit(step)?;
        self.wait(ticket)
    }

    /// Begins a background step, which is computed in parts between submitted steps. It has one
    /// span of at most [`Limits::background_rows`] rows, and neither outputs nor links. The device
    /// copies what it needs of `step`. Until the step is done or abandoned, no other step may use a
    /// page or a state that it writes, and its pages stay committed.
    ///
    /// # Errors
    /// The step breaks a rule of [`Step::check_background`], another background step is not done,
    /// or the device has no such steps.
    fn begin_background(&mut self, _step: &Step) -> Result<()> {
        Err(no_background("in use"))
    }

    /// Computes the next part of the background step, and more parts while they are expected to end
    /// before `until`. `None` computes all remaining parts.
    ///
    /// # Errors
    /// The device failed, and the step is abandoned; or no step was begun.
    fn advance_background(&mut self, _until: Option<Instant>) -> Result<BackgroundProgress> {
        Err(no_background("in use"))
    }

    /// Abandons the background step, if there is one. The KV positions and the state that it writes
    /// are then undefined.
    fn abandon_background(&mut self) {}

    /// Runs a step's plan up to and including node `last`, chooses nothing, and waits. No step may
    /// be in flight.
    ///
    /// # Errors
    /// As [`Self::submit`], or there is no such node.
    fn run_until(&mut self, step: &Step, last: usize) -> Result<()>;

    /// Rows of a value after the last step or the last [`Self::run_until`]: `(rows, cols)`,
    /// integers as f32. `None` if the value has no memory here (inside a fused Op), was not
    /// written, or its memory now holds another value.
    fn read(&self, value: ValueId) -> Option<Vec<f32>>;

    /// The committed KV pages, at first none. Their granules are the units of [`Self::commit`] and
    /// [`Self::decommit`].
    fn committed(&self) -> &CommittedPages;

    /// Allocates memory for pages of a KV group. The pages are whole granules, none of them
    /// committed. Their content is undefined.
    ///
    /// # Errors
    /// [`Error::Shortage`], and nothing has changed; or the range is not such granules, or the
    /// device failed.
    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Returns the memory of pages to the system. The pages are whole granules, all committed, and
    /// lose their content. Steps submitted before finish first.
    ///
    /// # Errors
    /// The range is not such granules, the background step uses one of them, or the device failed.
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Commits every page that is not committed.
    ///
    /// # Errors
    /// As [`Self::commit`].
    fn commit_all(&mut self) -> Result<()> {
        for group in 0..self.committed().n_groups() {
            while let Some(granule) = self.committed().next_free(group, 0) {
                self.commit(group, granule)?;
            }
        }
        Ok(())
    }

    /// Copies a page of a KV group, all its layers: copy on write of a shared prefix.
    ///
    /// # Errors
    /// There is no such page, it is not committed, or the device failed.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()>;

    /// Copies the bytes of a page of a KV group, all its layers, to `bytes`, whose length is
    /// [`crate::KvLayout::page_bytes`]. The layout is the device's own: only [`Self::write_page`]
    /// of a program with the same plan, limits and device understands it.
    ///
    /// # Errors
    /// There is no such page, it is not committed, the length is wrong, or the device cannot export
    /// pages.
    fn read_page(&self, _group: usize, _page: u32, _bytes: &mut [u8]) -> Result<()> {
        Err(pages_stay())
    }

    /// Fills a page with bytes from [`Self::read_page`].
    ///
    /// # Errors
    /// As [`Self::read_page`].
    fn write_page(&mut self, _group: usize, _page: u32, _bytes: &[u8]) -> Result<()> {
        Err(pages_stay())
    }

    /// Replaces the compiled plans by `plans`; their number may differ. New plans have the same KV
    /// layout and fit the limits: pages and states stay as they are, and weights that both have are
    /// not loaded again. The choices of the last step may be lost.
    ///
    /// # Errors
    /// A step is in flight or in the background, memory was refused, or the device cannot replace
    /// plans; the old plans stay.
    fn replace_plans(&mut self, _plans: &[Plan]) -> Result<()> {
        Err(plans_stay("in use"))
    }

    /// The command table of a plan for a step of `n_rows` rows; empty if there is no such plan.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo>;

    /// Like [`Self::run`], and appends the time of each command to `timings`. The commands are
    /// those of `commands(step.plan, n_rows)`.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()>;
}

/// The error of a program whose plans cannot be replaced.
pub fn plans_stay(device: &'static str) -> Error {
    Error::Unsupported {
        device,
        what: "replacing the plans of a running model".to_owned(),
        hint: "load the model anew".to_owned(),
    }
}

/// The error of a program without background steps.
pub fn no_background(device: &'static str) -> Error {
    Error::Unsupported {
        device,
        what: "a step in the background".to_owned(),
        hint: "submit it, or compile for a limit of such rows".to_owned(),
    }
}

/// The error of a program whose pages cannot be read or written from outside.
fn pages_stay() -> Error {
    Error::Unsupported {
        device: "in use",
        what: "reading and writing KV pages".to_owned(),
        hint: "do not use prompt caches on disk".to_owned(),
    }
}

/// A machine that runs programs.
pub trait Device: Send + Sync {
    /// Name on the command line: `cpu`.
    fn name(&self) -> &'static str;

    /// A description for people: the chip, the instructions in use, the number of threads.
    fn describe(&self) -> String;

    /// Number of worker threads, if the device has any.
    fn n_threads(&self) -> usize;

    /// The memory that the device uses.
    fn memory(&self) -> SystemMemory;

    /// Source of memory readings while programs run; `None` if the system's readings apply. Each
    /// call makes a new source.
    fn memory_source(&self) -> Option<Box<dyn platform::MemorySource>> {
        None
    }

    /// The kinds of fused Ops of its profile, tried in this order at every node.
    fn fusion(&self) -> &[FusedKind];

    /// KV types that the device runs, the default first.
    fn kv_types(&self) -> &[KvType];

    /// The best number of positions of a KV page, a power of two.
    fn page_len(&self) -> usize {
        32
    }

    /// The best number of prompt rows of a step if nothing else limits it.
    fn prompt_chunk(&self) -> usize {
        512
    }

    /// The best number of rows of a background step ([`Limits::background_rows`]); 0 if its
    /// programs have no such steps.
    fn background_rows(&self) -> usize {
        0
    }

    /// Number of ranks in this device's group, which run [`crate::Op::Collective`] together; 1 if
    /// it is in no group.
    fn n_ranks(&self) -> usize {
        1
    }

    /// The memory that [`Self::compile`] will allocate.
    ///
    /// # Errors
    /// A plan cannot run on this device.
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan>;

    /// Allocates all memory but the KV pages, and writes the command tables. All plans have one KV
    /// layout. They share its pages, and the memory of their activations, which fits the largest
    /// plan.
    ///
    /// # Errors
    /// A plan cannot run on this device, the plans do not fit each other, or memory was refused.
    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>>;

    /// The arithmetic in which this device multiplies by the weight.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic;

    /// Measures the peak rates of the machine, which takes about a second.
    fn peaks(&self) -> Peaks;
}
