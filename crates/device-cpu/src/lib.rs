//! The CPU device: a pinned pool of workers that replays a dispatch table of SIMD kernels.
//!
//! # The way of a plan through this crate
//!
//! 1. `profile` holds the fusion rules, which `device_lower::fusion::fuse` applies.
//! 2. `lower` recognises each node: what runs it, and which of its values anyone else reads.
//! 3. `layout` sizes every buffer once; the memory plan prints it, compiling allocates it.
//! 4. `weights` brings matrices into the order that their kernels want, where they want another than the file's.
//! 5. `compile` writes two flat tables of fixed-size commands (`command`) with all pointers resolved: one for steps of a
//!    single row, one for all others.
//! 6. `program` replays a table: every worker of the `pool` runs every command on its share of the work, with a barrier
//!    between commands. Nothing is allocated or looked up. `background` replays one in parts, between the steps of others.
//!
//! Vector code is written once over `simd::Simd` and instantiated for each [`Isa`]; the choice is a function pointer in the
//! command, made when the table is written. The kernels are one file each in `kernels`.
#![deny(missing_docs)]
#![allow(unsafe_code)]

mod background;
mod command;
mod compile;
mod cpu;
mod device_impl;
mod isa;
mod kernels;
mod layout;
mod lower;
mod memory;
mod peaks;
mod pool;
mod prefetch;
mod profile;
mod program;
mod simd;
mod stored;
mod weights;

pub use cpu::default_threads;
pub use device_impl::{CpuDevice, Options};
pub use isa::Isa;

/// The device's name, for errors and the command line.
const NAME: &str = "cpu";
