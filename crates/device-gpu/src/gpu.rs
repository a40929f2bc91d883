//! The seam: the only part of a GPU's driver that [`crate::replayer`] uses.
//!
//! Dispatches are in groups. The dispatches of a group may run at the same time and in any order,
//! and each group sees the writes of earlier groups. Submitted work runs after all work submitted
//! before it, and sees its writes.

use device::Result;
use device_lower::table::Operand;
use std::fmt::Debug;
use weights::Bytes;

/// Maximum number of bytes of arguments of a dispatch.
pub const MAX_ARGUMENT_BYTES: usize = 256;

/// The kind of a buffer, by the processors that access it. A GPU with its own memory has a place
/// for each kind. A GPU that shares the CPU's memory has a single place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Only kernels, except for uploads at load and reads by tests: activations, pages, weights.
    Device,
    /// The host writes and kernels read, for each step.
    Shared,
    /// Kernels write and the host reads, for each step.
    Readback,
}

/// Facts that every GPU reports; the facts of a driver dereference to these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Maximum number of bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Threads that execute together and exchange values by shuffles: 32 on Apple's GPUs.
    pub subgroup_width: u32,
    /// Maximum number of threads of a threadgroup.
    pub max_threads: u32,
}

/// Memory that the GPU reaches.
pub trait Buffer: Send + Sync {
    /// The buffer's length in bytes.
    fn len(&self) -> usize;

    /// The buffer's first byte, for the CPU. The memory lives as long as the buffer and is never
    /// moved.
    fn start(&self) -> *mut u8;

    /// The address by which kernels reach it through a pointer in memory.
    fn address(&self) -> u64;

    /// Returns true if the buffer has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Writes numbers into a buffer.
///
/// # Panics
/// They do not fit, which the layouts prevent.
pub fn write<T: bytemuck::Pod>(buffer: &impl Buffer, offset: usize, values: &[T]) {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    assert!(offset + bytes.len() <= buffer.len(), "{} bytes at {offset} of {}", bytes.len(), buffer.len());
    // SAFETY: the assertion holds `offset + bytes.len()` within `buffer`. Callers write regions,
    // chosen tokens and masks of a step that is not submitted yet, or a buffer before its first
    // step. They have waited for the previous step of the region, so the GPU does not touch these
    // bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start().add(offset), bytes.len()) }
}

/// A part of a buffer. Operands in that buffer are offsets from the start of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the buffer.
    pub buffer: u16,
    /// Offset of the range's first byte in the buffer.
    pub start: u64,
    /// The range's length in bytes.
    pub len: u64,
}

impl Window {
    /// The window of no buffer.
    pub const NONE: Window = Window { buffer: u16::MAX, start: 0, len: 0 };
}

/// A dispatch whose sizes are known.
pub struct Dispatch<'a, G: Gpu> {
    /// The compiled kernel.
    pub pipeline: &'a G::Pipeline,
    /// Buffers by their index among the kernel's parameters. Only an emulator looks at their
    /// lengths.
    pub operands: &'a [Operand],
    /// The part of a buffer from whose start operands in that buffer are counted.
    pub window: Window,
    /// Arguments by value; empty: none.
    pub arguments: &'a [u8],
    /// Bytes of memory that a threadgroup shares; 0: none. A multiple of 16.
    pub threadgroup_bytes: u32,
    /// Threadgroups; none of them 0.
    pub threadgroups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
}

impl<G: Gpu> Dispatch<'_, G> {
    /// An operand's first byte, from its buffer's start, and how many bytes from there the kernel
    /// may touch; 0: up to the buffer's end.
    pub fn bytes_of(&self, operand: &Operand) -> (u64, u64) {
        let offset = operand.location.offset;
        match (operand.location.buffer == self.window.buffer, operand.len) {
            (false, len) => (offset, len),
            (true, 0) => (self.window.start + offset, self.window.len - offset),
            (true, len) => (self.window.start + offset, len),
        }
    }
}

/// Buffers that are kept in memory until it is dropped.
pub trait Residency<G: Gpu>: Send {
    /// Makes one more buffer resident.
    fn add(&mut self, buffer: &G::Buffer);

    /// Removes a buffer before it is dropped.
    fn remove(&mut self, buffer: &G::Buffer);
}

/// A command buffer while dispatches are written into it.
pub trait Encoder<G: Gpu> {
    /// Declares a buffer that dispatches access through its address. Called before the first
    /// dispatch.
    fn reach(&mut self, buffer: &G::Buffer);

    /// Adds a dispatch to the current group.
    fn dispatch(&mut self, dispatch: &Dispatch<'_, G>, buffers: &[G::Buffer]);

    /// Ends the current group of dispatches. Later groups see its writes.
    fn barrier(&mut self);
}

/// A GPU's driver.
pub trait Gpu: Send + Sync + Sized + 'static {
    /// Facts that the GPU reports about itself.
    type Facts: std::ops::Deref<Target = Common>;
    /// Memory.
    type Buffer: Buffer;
    /// A kernel as tables name it: its file, its function, its constants, its most threads.
    type Kernel: Clone + Debug + Send + Sync;
    /// A compiled kernel, ready to run.
    type Pipeline: Clone + Send + Sync;
    /// A command buffer while it is written.
    type Encoder: Encoder<Self>;
    /// Submitted work; dropping it waits for it.
    type Ticket: Send;
    /// Keeps buffers in memory.
    type Residency: Residency<Self>;

    /// The device's name on the command line.
    const NAME: &'static str;

    /// Facts that the GPU reports about itself.
    fn facts(&self) -> &Self::Facts;

    /// Operations, by estimate, that a command buffer has at most ([`crate::step_cost`]).
    fn most_ops(&self) -> u64 {
        crate::step_cost::MOST_OPS
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// The system refused the memory.
    fn allocate(&self, memory: Memory, what: &str, bytes: usize) -> Result<Self::Buffer>;

    /// A buffer over bytes of a mapped file, without a copy. `None` if that is not possible: bytes
    /// must begin at a page, and the map must extend to the end of their last page.
    fn view(&self, bytes: &Bytes) -> Option<Self::Buffer>;

    /// Compiles the source files of these kernels, several at a time. A failure is an error of
    /// [`Self::pipeline`].
    fn prepare(&self, kernels: &[&Self::Kernel]);

    /// The pipeline of a kernel, which is compiled once. Several threads may call this at a time.
    ///
    /// # Errors
    /// The source does not compile (with the compiler's log), or the kernel has too many threads.
    fn pipeline(&self, kernel: &Self::Kernel) -> Result<Self::Pipeline>;

    /// Keeps these buffers resident while the result lives.
    fn reside(&self, buffers: &[Self::Buffer]) -> Self::Residency;

    /// Writes a command buffer by one call of `encode`, and submits it.
    ///
    /// # Errors
    /// The device refused.
    fn submit(&self, encode: &mut dyn FnMut(&mut Self::Encoder)) -> Result<Self::Ticket>;

    /// Waits until submitted work is done, and returns the seconds that it took on the GPU. A
    /// second call returns the same.
    ///
    /// # Errors
    /// The work failed, in the device's words, and what to do.
    fn wait(&self, ticket: &Self::Ticket) -> Result<f64>;
}
