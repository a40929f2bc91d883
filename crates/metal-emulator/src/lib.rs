//! Executes Metal Shading Language compute kernels on Linux: unedited `.metal` sources, compiled by
//! clang, each thread of a threadgroup a fiber, every access to memory checked. README.md describes
//! its purpose, coverage and limits.
//!
//! ```no_run
//! use metal_emulator::{Binding, Buffer, Compiler, Dispatch, Options, RunOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = "
//!     #include <metal_stdlib>
//!     using namespace metal;
//!     kernel void twice(device float * x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2.0; }
//! ";
//! let compiler = Compiler::new(Options::new("/tmp/metal-cache"))?;
//! let pipeline = compiler.compile("twice.metal", source, &[])?.pipeline("twice", &[])?;
//! let x = Buffer::from_bytes(&1.5f32.to_le_bytes().repeat(32))?;
//! let dispatch = Dispatch {
//!     pipeline: &pipeline,
//!     buffers: &[Binding::new(0, &x)],
//!     resources: &[],
//!     bytes: &[],
//!     threadgroup_memory: &[],
//!     threadgroups: [1, 1, 1],
//!     threads_per_threadgroup: [32, 1, 1],
//! };
//! dispatch.run(&RunOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! The crate is empty except on Linux on x86-64, because its fibers are written in assembly for it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(missing_docs)]
// The crate loads machine code that clang compiled, and shares memory with it.
#![allow(unsafe_code)]

mod abi;
mod buffer;
mod cache;
mod clang;
mod compiler;
mod counters;
mod dispatch;
mod error;
mod flags;
mod library;
mod options;
mod pipeline;
mod registers;
mod rewrite;
mod runtime;
mod sanitized;
mod sources;
mod table;
mod validation;
mod worker;

pub use buffer::Buffer;
pub use compiler::Compiler;
pub use counters::{BufferTraffic, Counters, SimdgroupInstructions};
pub use dispatch::{Binding, Dispatch, LaneOrder, Resource, RunOptions};
pub use error::{Error, Fault, FaultKind, Location, Refusal, ThreadPosition};
pub use library::{Constant, ConstantDeclaration, Function, Library, Parameter, ParameterKind};
pub use options::{Numerics, Options, Sanitizer};
pub use pipeline::Pipeline;
pub use registers::Registers;

/// Threads per simdgroup.
pub const SIMD_WIDTH: u32 = 32;
/// The most threads that a threadgroup may have.
pub const MAX_THREADS_PER_THREADGROUP: u32 = 1024;
/// The most bytes of threadgroup memory that a threadgroup may use.
pub const MAX_THREADGROUP_MEMORY: u32 = 32 << 10;
/// The most bytes that a dispatch may pass by value at one index, as `setBytes` does.
pub const MAX_BYTES: usize = 4096;
/// The most buffers that a dispatch may reach through addresses.
pub const MAX_RESOURCES: usize = 1024;
/// Indices of buffers, and of threadgroup arguments.
pub const MAX_BINDINGS: u32 = 31;
