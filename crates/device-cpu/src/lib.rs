//! The CPU device: a pinned pool of workers that replays a dispatch table of SIMD kernels.
//!
//! # How a plan passes through this crate
//!
//! 1. `profile` lists the fused Ops, which `device_lower::fusion::fuse` forms.
//! 2. `device_lower::fields` maps each node to the kernels that run it, and to the values that
//!    other nodes read. `units` finds the RoPE tables that they share.
//! 3. `layout` sizes every buffer once. The memory plan prints the sizes; compilation allocates the
//!    buffers.
//! 4. `weights` interleaves matrices for kernels that need another order than the file's.
//! 5. `compile` writes two tables of fixed-size commands (`command`) with resolved pointers: one
//!    for steps of a single row, one for all others.
//! 6. `tables` replays a table: every worker of the `pool` runs its share of every command, with
//!    barriers between commands. Nothing is allocated or looked up. `program` implements the
//!    device's contract around it. `background` replays a table in parts, between other steps.
//!
//! Vector code is written once over `simd::Simd` and instantiated for each [`Isa`]. The variant is
//! a function pointer in the command, chosen when the table is written. Each kernel is one file in
//! `kernels`.
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
mod memory;
mod peaks;
mod pool;
mod prefetch;
mod profile;
mod program;
mod rope_tables;
mod simd;
mod stored;
mod tables;
mod weights;

pub use cpu::default_threads;
pub use device_impl::{CpuDevice, Options};
pub use isa::Isa;

/// The device's name, for errors and the command line.
const NAME: &str = "cpu";
