//! The seam: the only part of Metal that this device uses.
//!
//! It has two implementations: [`apple`] (objc2-metal, on macOS) and [`emulated`] (the crate
//! `metal-emulator`, on Linux), which runs the same shader sources. Tables, arguments, operands,
//! barriers and steps in flight are the same code for both.
//!
//! Work is submitted in groups: the dispatches of a group may run at the same time and in any
//! order, and each group sees what those before it wrote. On Apple's GPUs that is a concurrent
//! encoder with a barrier between groups. What is submitted runs after what was submitted before,
//! and sees what that wrote.

#[cfg(target_os = "macos")]
pub mod apple;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod emulated;

use crate::kernels::Kernel;
use device::Result;
use device_lower::table::Operand;
use weights::Bytes;

/// Most bytes of arguments of a dispatch.
pub const MAX_ARGUMENT_BYTES: usize = 256;

/// The value of a function constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    /// `bool`
    Bool(bool),
    /// `uint`
    UInt(u32),
    /// `int`
    Int(i32),
    /// `ushort`
    UShort(u16),
    /// `float`
    Float(f32),
}

/// What a GPU reports about itself.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `Apple M4 Pro`
    pub name: String,
    /// Apple's GPU family: 7 for M1, 8 for M2, 9 for M3 and M4, 10 for M5.
    pub family: u32,
    /// GPU cores; 0 if the system does not say.
    pub n_cores: usize,
    /// Most bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Alignment and unit of memory that can be used in place.
    pub page_bytes: usize,
    /// Most threads of a threadgroup.
    pub max_threads: u32,
    /// Most bytes of threadgroup memory.
    pub max_threadgroup_bytes: u32,
    /// Whether times mean nothing.
    pub is_emulated: bool,
}

/// Memory that the GPU and the CPU share.
pub trait Buffer: Send + Sync {
    /// How long it is.
    fn len(&self) -> usize;

    /// Its first byte, for the CPU. The memory lives as long as the buffer and is never moved.
    fn start(&self) -> *mut u8;

    /// The address by which kernels reach it through a pointer in memory.
    fn address(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A part of a buffer that stands for the whole: what a command binds of the buffer lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the buffer.
    pub buffer: u16,
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
}

impl Window {
    /// Of no buffer.
    pub const NONE: Window = Window { buffer: u16::MAX, start: 0, len: 0 };
}

/// A dispatch whose sizes are known.
pub struct Dispatch<'a, G: Gpu> {
    /// What runs.
    pub pipeline: &'a G::Pipeline,
    /// Buffers, by `[[buffer(index)]]`. Only the emulator looks at their lengths.
    pub operands: &'a [Operand],
    /// Where operands of one of the buffers begin.
    pub window: Window,
    /// Arguments at buffer 0; empty: none.
    pub arguments: &'a [u8],
    /// Bytes of `[[threadgroup(0)]]`; 0: none. A multiple of 16.
    pub threadgroup_bytes: u32,
    /// Threadgroups; none of them 0.
    pub threadgroups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
}

impl<G: Gpu> Dispatch<'_, G> {
    /// Where an operand points, in bytes from its buffer's start, and how many bytes from there the
    /// kernel may touch; 0: up to the buffer's end.
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
    /// Keep this one too.
    fn add(&mut self, buffer: &G::Buffer);

    /// Let go of one, before it is dropped.
    fn remove(&mut self, buffer: &G::Buffer);
}

/// What dispatches are written into.
pub trait Encoder<G: Gpu> {
    /// Dispatches from here on may read and write this buffer through its address. Called before the
    /// first dispatch.
    fn reach(&mut self, buffer: &G::Buffer);

    /// Add a dispatch to the current group.
    fn dispatch(&mut self, dispatch: &Dispatch<'_, G>, buffers: &[G::Buffer]);

    /// End the current group: what follows sees what it wrote.
    fn barrier(&mut self);
}

/// A GPU.
pub trait Gpu: Send + Sync + Sized + 'static {
    /// Shared memory.
    type Buffer: Buffer;
    /// A kernel with its constants, ready to run.
    type Pipeline: Clone + Send + Sync;
    /// What dispatches are written into.
    type Encoder: Encoder<Self>;
    /// Submitted work; dropping it waits for it.
    type Ticket: Send;
    /// Keeps buffers in memory.
    type Residency: Residency<Self>;

    /// The device's name on the command line.
    const NAME: &'static str;

    /// What it reports about itself.
    fn facts(&self) -> &Facts;

    /// Memory of the machine that the GPU may use, and what is free of it now.
    fn memory(&self) -> platform::SystemMemory;

    /// Take zeroed memory.
    ///
    /// # Errors
    /// It was refused.
    fn allocate(&self, what: &str, bytes: usize) -> Result<Self::Buffer>;

    /// Use bytes where they are, if that is possible: they begin at a page, and the memory up to
    /// the end of their last page belongs to the same map.
    fn view(&self, bytes: &Bytes) -> Option<Self::Buffer>;

    /// A kernel with its function constants. The same arguments give the same pipeline, compiled
    /// once.
    ///
    /// # Errors
    /// The source does not compile; in the compiler's words.
    fn pipeline(&self, kernel: &Kernel, constants: &[(u16, Constant)]) -> Result<Self::Pipeline>;

    /// Most threads of a threadgroup that runs a pipeline.
    fn max_threads(&self, pipeline: &Self::Pipeline) -> u32;

    /// Keep compiled pipelines for the next start.
    fn keep_pipelines(&self);

    /// Keep these buffers in memory while they are used.
    fn reside(&self, buffers: &[Self::Buffer]) -> Self::Residency;

    /// Write a command buffer and submit it; `encode` is called once.
    ///
    /// # Errors
    /// The device refused.
    fn submit(&self, encode: &mut dyn FnMut(&mut Self::Encoder)) -> Result<Self::Ticket>;

    /// Wait until submitted work is done; more than once gives the same. Gives the seconds that the
    /// GPU was busy with it.
    ///
    /// # Errors
    /// The work failed, in the device's words, and what to do.
    fn wait(&self, ticket: &Self::Ticket) -> Result<f64>;
}
