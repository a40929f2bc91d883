//! The seam: the only part of Metal that this device uses.
//!
//! It has two implementations: [`apple`] (objc2-metal, on macOS) and [`emulated`] (the crate
//! `metal-emulator`, on Linux), which runs the same shader sources. Tables, arguments, operands,
//! barriers and steps in flight are the same code for both.
//!
//! Work is submitted in groups. The dispatches of a group may run at the same time and in any
//! order, and each group sees the writes of earlier groups. On Apple's GPUs that is a concurrent
//! encoder with a barrier between groups. What is submitted runs after what was submitted before,
//! and sees what that wrote.

#[cfg(target_os = "macos")]
pub mod apple;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod emulated;
mod fewer;
#[cfg_attr(not(target_os = "macos"), allow(dead_code))]
mod heartbeat;
pub mod null;
#[cfg_attr(not(target_os = "macos"), allow(dead_code))]
mod unsaved;

pub use device_gpu::gpu::{Buffer, Common, Dispatch, Encoder, Gpu, Memory, Residency, Window};
pub use fewer::{Fewer, Fitted};

use crate::kernels::Kernel;
use device::Result;

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

/// The order of Apple's dispatches and command buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncoderMode {
    /// A concurrent encoder with barriers between groups; Metal tracks hazards between command
    /// buffers.
    #[default]
    Concurrent,
    /// Like `Concurrent`, with untracked hazards and a fence between command buffers. Concurrent
    /// encoders with tracked hazards are reported to hang an M1 Pro on a recent macOS.
    Fenced,
    /// A serial encoder: one dispatch after the other.
    Serial,
}

/// Facts that a GPU reports about itself.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `Apple M4 Pro`
    pub name: String,
    /// Facts that every GPU reports.
    pub common: Common,
    /// Apple's GPU family: 7 for M1, 8 for M2, 9 for M3 and M4, 10 for M5.
    pub family: u32,
    /// GPU cores; 0 if the system does not say.
    pub n_cores: usize,
    /// Alignment and unit of memory that can be used in place.
    pub page_bytes: usize,
    /// Maximum number of bytes of threadgroup memory.
    pub max_threadgroup_bytes: u32,
    /// True if shaders are compiled for tensor units.
    pub has_tensors: bool,
    /// True if times mean nothing.
    pub is_emulated: bool,
}

impl std::ops::Deref for Facts {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// Length of threadgroup memory to set before a dispatch that needs `needed` bytes, if an encoder
/// has `now`. `None` leaves it.
///
/// The length outlives the pipeline, and a driver may count it for the next one, which may have no
/// such argument. So it falls to the least where a dispatch needs none.
pub fn threadgroup_length(now: u32, needed: u32) -> Option<u32> {
    const LEAST: u32 = 16;
    let length = needed.max(LEAST);
    (length != now).then_some(length)
}

/// Threads of a SIMD-group on every GPU of Apple's.
pub const SIMD_WIDTH: u32 = 32;

/// A kernel with its constants, for threadgroups of at most `threads` threads.
#[derive(Clone, Debug)]
pub struct Request {
    /// The function.
    pub kernel: Kernel,
    /// The pipeline's function constants.
    pub constants: Vec<(u16, Constant)>,
    /// Threads of its threadgroups, at most.
    pub threads: u32,
    /// The way in which it runs with fewer threads, if the GPU refuses so many.
    pub fewer: Fewer,
}

impl Request {
    /// A kernel without constants.
    pub fn plain(file: &'static str, function: &str, threads: u32) -> Request {
        let kernel = Kernel { file, function: function.to_owned() };
        Request { kernel, constants: Vec::new(), threads, fewer: Fewer::Never }
    }

    /// The function constants as a key: index, type and bits of each.
    pub fn constant_bits(&self) -> Vec<(u16, u8, u32)> {
        let bits = |(index, value): &(u16, Constant)| match *value {
            Constant::Bool(v) => (*index, 0, u32::from(v)),
            Constant::UInt(v) => (*index, 1, v),
            Constant::Int(v) => (*index, 2, v as u32),
            Constant::UShort(v) => (*index, 3, u32::from(v)),
            Constant::Float(v) => (*index, 4, v.to_bits()),
        };
        self.constants.iter().map(bits).collect()
    }
}

/// A GPU that runs these shaders.
pub trait MetalGpu: Gpu<Kernel = Request, Facts = Facts> {
    /// Memory of the machine that the GPU may use, and how much of it is free now.
    fn memory(&self) -> platform::SystemMemory;

    /// Compiles a file of kernels by itself, and returns the names of its functions.
    ///
    /// # Errors
    /// It does not compile, in the compiler's words.
    fn compile_file(&self, file: &'static str) -> std::result::Result<Vec<String>, String>;

    /// Warnings of the compiler about a file that it compiled; empty if there are none.
    fn warnings(&self, _file: &'static str) -> String {
        String::new()
    }

    /// Builds a pipeline without a limit of its threads, which shows how many registers its kernel
    /// needs. `None` if this GPU has no registers.
    ///
    /// # Errors
    /// As [`Gpu::pipeline`].
    fn unlimited(&self, request: &Request) -> Result<Option<Unlimited>>;

    /// Kernels that run with fewer threads than their tables name, in words.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns true if heat slows the GPU down now.
    fn is_slowed(&self) -> bool {
        false
    }

    /// Facts about the machine that no choice depends on, for the report.
    fn about(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Limits of a pipeline that was built without a limit of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlimited {
    /// Maximum number of threads of a threadgroup. It falls as the kernel needs more registers.
    pub max_threads: u32,
    /// Bytes of threadgroup memory that the kernel declares.
    pub threadgroup_bytes: u32,
}
