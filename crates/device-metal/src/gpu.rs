//! The seam: what this device asks of a GPU, and nothing else of Metal.
//!
//! Two things stand behind it: [`apple`] (objc2-metal, on macOS) and [`emulated`] (the crate `metal-emulator`, on Linux),
//! which runs the very same shader sources. Everything above it, tables, arguments, bindings, barriers, chains, is one code.
//!
//! Work is submitted in groups: the dispatches of a group may run at the same time and in any order, and each group sees what
//! those before it wrote. On Apple's GPUs that is a concurrent encoder with a barrier between groups. Within submitted work the
//! GPU may raise a *signal*, which tells the host that what stands before it is done while the rest goes on.

#[cfg(target_os = "macos")]
pub mod apple;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod emulated;

use crate::kernels::Kernel;
use device::{Memory, Result};
use formats::Bytes;

/// Most bytes of arguments of a dispatch.
pub const MAX_ARGUMENT_BYTES: usize = 256;

/// Value of a function constant.
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

/// What a GPU says of itself.
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

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A buffer of a table and a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index into the program's buffers.
    pub buffer: u16,
    /// Bytes from its start.
    pub offset: u64,
}

/// A buffer bound to a kernel's parameter.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The parameter's `[[buffer(index)]]`.
    pub index: u8,
    /// What is bound.
    pub place: Place,
    /// Bytes from there that the kernel may touch; 0: as many as there are. Only the emulator looks at it.
    pub len: u64,
}

/// A dispatch whose sizes are known.
pub struct Dispatch<'a, G: Gpu> {
    /// What runs.
    pub pipeline: &'a G::Pipeline,
    /// Buffers.
    pub bindings: &'a [Binding],
    /// Arguments at buffer 0; empty: none.
    pub arguments: &'a [u8],
    /// Bytes of `[[threadgroup(0)]]`; 0: none. A multiple of 16.
    pub threadgroup_bytes: u32,
    /// Threadgroups; none of them 0.
    pub threadgroups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
}

/// What dispatches are written into.
pub trait Encoder<G: Gpu> {
    /// Add a dispatch to the current group.
    fn dispatch(&mut self, dispatch: &Dispatch<'_, G>, buffers: &[G::Buffer]);

    /// End the current group: what follows sees what it wrote.
    fn barrier(&mut self);

    /// The same, and when everything before is done the signal gets this value, larger than it had.
    fn signal(&mut self, signal: &G::Signal, value: u64);
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
    /// A number that submitted work raises and the host waits for.
    type Signal: Send;
    /// Keeps buffers in memory until it is dropped.
    type Residency: Send;

    /// The device's name on the command line.
    const NAME: &'static str;

    /// What it says of itself.
    fn facts(&self) -> &Facts;

    /// Memory of the machine that the GPU may use, and what is free of it now.
    fn memory(&self) -> Memory;

    /// Take zeroed memory.
    ///
    /// # Errors
    /// It was refused.
    fn allocate(&self, what: &str, bytes: usize) -> Result<Self::Buffer>;

    /// Use bytes where they are, if that is possible: they begin at a page, and the memory up to the end of their last page
    /// belongs to the same map.
    fn view(&self, bytes: &Bytes) -> Option<Self::Buffer>;

    /// A kernel with its function constants. The same arguments give the same pipeline, compiled once.
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

    /// A signal of value 0.
    ///
    /// # Errors
    /// The device refused.
    fn new_signal(&self) -> Result<Self::Signal>;

    /// Write a command buffer and submit it; `encode` is called once.
    ///
    /// # Errors
    /// The device refused.
    fn submit(&self, encode: &mut dyn FnMut(&mut Self::Encoder)) -> Result<Self::Ticket>;

    /// Wait until submitted work is done. Gives the seconds that the GPU was busy with it.
    ///
    /// # Errors
    /// The work failed, in the device's words, and what to do.
    fn wait(&self, ticket: Self::Ticket) -> Result<f64>;

    /// Wait until a signal has at least this value, which the submitted work gives it. What the work wrote before can be read
    /// then; the rest goes on.
    ///
    /// # Errors
    /// The work failed before, as with [`Self::wait`].
    fn wait_for(&self, signal: &Self::Signal, value: u64, ticket: &mut Self::Ticket) -> Result<()>;
}
