//! The traits that every device implements, and the plain data that they exchange.

use std::ops::Range;
use std::time::{Duration, Instant};

use platform::SystemMemory;

use crate::{Chosen, CommittedPages, KvType, Plan, PlanError, Rule, Step, Ticket, ValueId, Want, Weight};

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
    /// KV pages could not be committed now. It is no failure: the caller makes room and asks again.
    #[error(
        "device {device}: {bytes} bytes for {n_pages} pages of KV group {group} were refused; free pages and try again"
    )]
    Shortage {
        /// The device's name.
        device: &'static str,
        /// The KV group.
        group: usize,
        /// Pages that were asked for.
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
        /// What it reported.
        reason: String,
    },
}

/// Whose memory an item of the memory plan is.
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
    /// Mapped, committed or reserved.
    pub residence: Residence,
}

/// The memory that a program will take, itemised before any is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The lines.
    pub items: Vec<Item>,
    /// What the device does not do for these plans and limits, and why, in words; empty for most.
    pub notes: Vec<String>,
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
    /// Most positions of one sequence. (Plans without Embed are bounded by their own tables and encoder states instead.)
    pub n_ctx: usize,
    /// Positions of one page; a power of two, at least 16.
    pub page_len: usize,
    /// Pages of each KV group.
    pub n_pages: Vec<usize>,
    /// States of recurrent layers ([`Step::states`]); 0 where no plan has any.
    pub n_states: usize,
    /// Most rows of a step in the background ([`Program::begin_background`]), at most `max_rows`; 0: there is none.
    pub background_rows: usize,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Which arithmetic.
    pub numerics: Numerics,
}

/// Peak rates of the machine, measured now (`ingle bench`).
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

/// The arithmetic in which a device multiplies a weight, and so the peak that its speed is compared with.
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

/// How far a step in the background is ([`Program::advance_background`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundProgress {
    /// It is done: its keys, values and states are written.
    pub is_done: bool,
    /// The longest of its parts so far: as finely as the device can stop.
    pub longest_part: Duration,
}

/// Compiled plans: their memory is taken but for KV pages, their tables are written. They share KV pages, and may share the memory of their
/// activations: a step overwrites those of the step before, whichever plan it runs.
///
/// Steps are submitted and waited for. A device runs them in the order of submission, and operations on pages in the same
/// order: a copied page has what earlier steps wrote.
pub trait Program: Send {
    /// Steps that may be submitted before the first of them is waited for, at least 1. A device with 1 may compute the step
    /// within [`Self::submit`].
    fn max_in_flight(&self) -> usize {
        1
    }

    /// Steps of a row of each of so many sequences that are worth having in flight, at least 1 and at most [`Self::max_in_flight`]. What is in flight
    /// when a sequence ends is computed for nothing.
    fn steps_ahead(&self, _n_sequences: usize) -> usize {
        self.max_in_flight()
    }

    /// Whether rows of steps submitted later may take their tokens from an output of which this is wanted while it is still
    /// in flight ([`crate::Link`]).
    fn chooses_in_flight(&self, _want: &Want) -> bool {
        false
    }

    /// Check a step and start it. What it needs of `step` is copied; nothing is allocated.
    ///
    /// # Errors
    /// The step breaks a rule of [`Step::check`], too many are in flight, the device failed, or [`Error::Stopped`]. The
    /// step's KV positions are then undefined and must be written again.
    fn submit(&mut self, step: &Step) -> Result<Ticket>;

    /// Wait until a step is done: the oldest that was not waited for. The functions below give the results of the last step that was
    /// waited for.
    ///
    /// # Errors
    /// The device failed, or the ticket is not the oldest; steps submitted later fail too.
    fn wait(&mut self, ticket: Ticket) -> Result<()>;

    /// `(n_outputs)` what each output chose, where that was wanted.
    fn chosen(&self) -> &[Chosen];

    /// The best tokens of an output and their log-probabilities, best first: [`Want::n_best`] of them, or as many as have
    /// one, which with [`Want::drawn`] are those that were left.
    fn best(&self, output: usize) -> &[(u32, f32)];

    /// `(n_outputs, n_vocab)`, with [`crate::OutputKind::Hidden`] `(n_outputs, hidden)`: rows of which logits were wanted;
    /// others may hold anything. Gone with the next step that is submitted.
    fn logits(&self) -> &[f32];

    /// The value [`Plan::kept`]`[index]` of the step's plan, `(rows, cols)`; empty if there is none. Gone with the next step
    /// that is submitted.
    fn kept(&self, index: usize) -> &[f32];

    /// Submit a step and wait for it.
    ///
    /// # Errors
    /// As both.
    fn run(&mut self, step: &Step) -> Result<()> {
        let ticket = self.submit(step)?;
        self.wait(ticket)
    }

    /// Begin a step that is computed in parts, between the steps that are submitted: of one span, of at most
    /// [`Limits::background_rows`] rows, without outputs and links. What it needs of `step` is copied. Until it is done or
    /// abandoned, no other step may use a page or a state that it writes, and the pages that it uses stay committed.
    ///
    /// # Errors
    /// The step breaks a rule of [`Step::check_background`], another one is not done, or the device has no such steps.
    fn begin_background(&mut self, _step: &Step) -> Result<()> {
        Err(no_background("in use"))
    }

    /// Compute the next part of the step in the background, and further ones while they are expected to end before `until`; `None`:
    /// all that are left.
    ///
    /// # Errors
    /// The device failed, and the step is abandoned; or none was begun.
    fn advance_background(&mut self, _until: Option<Instant>) -> Result<BackgroundProgress> {
        Err(no_background("in use"))
    }

    /// Forget the step in the background, if there is one: the KV positions and the state that it was to write are undefined.
    fn abandon_background(&mut self) {}

    /// Run a step's plan up to its node `last`, that one included, choose nothing, and wait. Nothing may be in flight.
    ///
    /// # Errors
    /// As [`Self::submit`], or there is no such node.
    fn run_until(&mut self, step: &Step, last: usize) -> Result<()>;

    /// The rows of a value as the last step, or the last [`Self::run_until`], left them: `(rows, cols)`, integers as f32.
    /// `None`: it has no memory here (inside a fused Op), was not written, or its memory holds another value by now.
    fn read(&self, value: ValueId) -> Option<Vec<f32>>;

    /// Which KV pages have memory: at first none. Its granules are what [`Self::commit`] and [`Self::decommit`] take.
    fn committed(&self) -> &CommittedPages;

    /// Take memory for pages of a KV group: whole granules, none of which is committed. What they hold is undefined.
    ///
    /// # Errors
    /// [`Error::Shortage`], and nothing has changed; or the range is not of such granules, or the device failed.
    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Give the memory of pages back to the system: whole granules, all of which are committed. What they held is gone. Steps
    /// that were submitted before are done with them first.
    ///
    /// # Errors
    /// The range is not of such granules, the step in the background uses one of them, or the device failed.
    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()>;

    /// Commit every page that is not committed.
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

    /// Copy a page of a KV group, all its layers (copy on write of a shared prefix).
    ///
    /// # Errors
    /// There is no such page, it is not committed, or the device failed.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()>;

    /// The bytes of a page of a KV group, all its layers, as this device lays them out, for [`Self::write_page`] of a
    /// program of the same plan, limits and device. `bytes` is [`crate::KvLayout::page_bytes`] long.
    ///
    /// # Errors
    /// There is no such page, it is not committed, the length is another, or the device does not give its pages out.
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

    /// Run these plans from now on instead of those that were compiled; there may be more or fewer of them. They have the same KV
    /// layout and keep the limits: pages and states stay as they are, and weights that both have are not taken again. What the last
    /// step chose may be gone.
    ///
    /// # Errors
    /// A step is in flight or in the background, memory was refused, or the device cannot do it; the plans are those from before then.
    fn replace_plans(&mut self, _plans: &[Plan]) -> Result<()> {
        Err(plans_stay("in use"))
    }

    /// The command table of a plan for a step of `n_rows` rows; empty if there is no such plan.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo>;

    /// As [`Self::run`], and the time of each command appended to `timings`, which belong to
    /// `commands(step.plan, n_rows)`.
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

/// The error of a program without steps in the background.
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
        hint: "leave prompt caches on disk out".to_owned(),
    }
}

/// A machine that runs programs.
pub trait Device: Send + Sync {
    /// Its name on the command line: `cpu`.
    fn name(&self) -> &'static str;

    /// A description for people: the chip, the instructions in use, the number of threads.
    fn describe(&self) -> String;

    /// Worker threads, where that means something.
    fn n_threads(&self) -> usize;

    /// Its memory.
    fn memory(&self) -> SystemMemory;

    /// What tells of its memory while programs run, where that is not the system's. Each call makes one anew.
    fn memory_source(&self) -> Option<Box<dyn platform::MemorySource>> {
        None
    }

    /// The fusion rules of its profile, tried in this order at every node.
    fn fusion(&self) -> &[Rule];

    /// KV types that it runs, the default first.
    fn kv_types(&self) -> &[KvType];

    /// Positions of a KV page that suit it best, a power of two.
    fn page_len(&self) -> usize {
        32
    }

    /// Rows of a prompt that it computes together best, where nothing else limits them.
    fn prompt_chunk(&self) -> usize {
        512
    }

    /// Rows of a step in the background ([`Limits::background_rows`]) that suit it best; 0: its programs have no such steps.
    fn background_rows(&self) -> usize {
        0
    }

    /// Ranks of the group that this device is one of, which run [`crate::Op::Collective`] together; 1: it is in none.
    fn n_ranks(&self) -> usize {
        1
    }

    /// What [`Self::compile`] will take.
    ///
    /// # Errors
    /// A plan cannot run on this device.
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan>;

    /// Take the memory, but for KV pages, and write the tables. All plans have one KV layout; they share its pages, and the memory of their
    /// activations, as much as the largest needs.
    ///
    /// # Errors
    /// A plan cannot run on this device, the plans do not fit each other, or memory was refused.
    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>>;

    /// The arithmetic in which this device multiplies the weight.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic;

    /// Measure the peak rates of the machine, which takes about a second.
    fn peaks(&self) -> Peaks;
}
