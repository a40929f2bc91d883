//! The CUDA device: our own kernels, replayed from a flat table, on NVIDIA's GPUs.
//!
//! # The way of a plan through this crate
//!
//! 1. `profile` holds the choices for the chip: fusion rules, passes, thresholds.
//! 2. `device_lower` turns nodes into units by these passes, and plans the arena.
//! 3. `layout` sizes scratch; `weights` and `stored` repack matrices into planes that
//!    kernels load 16 bytes at a time, on the way to the GPU; `packs` adds copies in the order of
//!    tensor cores' fragments, which `products` cuts into launches.
//! 4. `compile` chooses kernels and fills flat tables of commands, one for each class of rows. A
//!    command's arguments hold addresses, which never change: KV pools are address space whose
//!    chunks get memory when pages are committed.
//! 5. `device_gpu` has the program, which writes a step into pinned memory; `program` is its
//!    machine, which launches a copy of that and the table: as a graph, from the second time that a
//!    step of the same sizes comes.
//!
//! Several GPUs of one host are the ranks of a `group`: a table's collectives exchange numbers with
//! theirs.
//!
//! `driver` is the only file that calls NVIDIA's driver, which is loaded at run time: a machine
//! without one runs the same binary. Kernels are in `kernels/`, one kernel one file, at the same
//! paths as in the other devices where they correspond; `kernels.rs` says where their machine code
//! comes from.
#![deny(missing_docs)]
#![allow(unsafe_code)]
#![cfg(any(target_os = "linux", target_os = "windows"))]

#[allow(missing_docs)]
mod arguments;
mod compile;
mod device_impl;
pub mod driver;
mod group;
pub mod kernels;
mod layout;
pub mod nvrtc;
mod packs;
mod peaks;
mod persistent;
pub mod products;
mod profile;
mod program;
pub mod selftest;
pub mod stored;
mod weights;

pub use device_impl::CudaDevice;
pub use group::Reach;
pub use profile::Profile;
