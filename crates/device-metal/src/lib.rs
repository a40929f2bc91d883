//! The Metal device: hand-written shaders, replayed from a flat table.
//!
//! # The way of a plan through this crate
//!
//! 1. `profile` holds the choices for the chip: the fusion rules, which
//!    `device_lower::fusion::fuse` applies, and the passes.
//! 2. `device_lower` turns nodes into units by these passes, and plans the arena.
//! 3. `layout` sizes scratch; `weights` decides which weights are used in the
//!    mapped file and which are copied.
//! 4. `compile` chooses kernels and fills flat tables of commands, one for each class of rows: one,
//!    two, four, eight, a tile, many. `device_lower::table` derives the barriers from the bytes
//!    that commands read and write.
//! 5. `device_gpu` has the program: it patches the step buffer and encodes a table into one command
//!    buffer. Nothing is allocated or looked up.
//!
//! All code above it serves two GPUs behind the trait `gpu`. These are Apple's, and the emulated
//! one that runs the same shader sources on Linux (`metal-emulated`; slow, for tests, never a
//! default). Shaders are in `kernels/`, one kernel one file, at the same path as in the CPU device.
#![deny(missing_docs)]
#![allow(unsafe_code)]

#[allow(missing_docs)]
mod alone;
mod arguments;
mod compile;
#[cfg(target_os = "macos")]
mod cores;
mod device_impl;
mod geometry;
pub mod gpu;
pub mod kernels;
mod layout;
mod peaks;
mod profile;
pub mod selftest;
pub mod tensors;
mod turns;
mod weights;

pub use device_impl::MetalDevice;
pub use profile::Profile;
