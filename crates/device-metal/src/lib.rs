//! The Metal device: hand-written shaders, replayed from a flat table.
//!
//! # The way of a plan through this crate
//!
//! 1. `profile` holds the fusion rules of the chip, which `device::fusion::fuse` applies.
//! 2. `lower` recognises each node: what runs it, and which of its values anyone else reads.
//! 3. `layout` sizes every buffer once; `weights` finds which weights are used where the file is mapped, and which are copied.
//! 4. `compile` writes flat tables of dispatches, one for each class of rows: one, two, four, eight, many. `table` puts
//!    barriers where the bytes that dispatches read and write meet, and nowhere else.
//! 5. `program` patches the step buffer and encodes a table into one command buffer. Nothing is allocated or looked up.
//!
//! Everything up to there is one code for two GPUs behind the seam `gpu`: Apple's, and the emulated one that runs the same
//! shader sources on Linux (`metal-emulated`; slow, for tests, never a default). Shaders are in `kernels/`, one kernel one
//! file, at the path that the CPU device's kernel has.
#![deny(missing_docs)]
#![allow(unsafe_code)]

#[allow(missing_docs)]
mod arguments;
mod compile;
#[cfg(target_os = "macos")]
mod cores;
mod device_impl;
pub mod gpu;
pub mod kernels;
mod layout;
mod lower;
mod peaks;
mod profile;
mod program;
pub mod selftest;
mod table;
mod weights;

pub use device_impl::MetalDevice;
pub use profile::Profile;
