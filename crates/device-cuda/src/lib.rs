//! The CUDA device: our own kernels, replayed from a flat table, on NVIDIA's GPUs.
//!
//! # From a plan to a step
//!
//! 1. `profile` holds the choices for the chip: fusion rules, passes, thresholds.
//! 2. `device_lower` lowers nodes to units by these passes, and plans the arena.
//! 3. `layout` sizes scratch. `weights` and `stored` repack matrices during the upload, into planes
//!    that kernels load 16 bytes at a time. `packs` adds copies in the fragment order of tensor
//!    cores. `products` splits their products into launches.
//! 4. `compile` chooses kernels and fills flat tables of commands, one for each class of rows. A
//!    command's arguments hold addresses, which never change: KV pools are address space whose
//!    chunks get memory when pages are committed.
//! 5. The program of `device_gpu` writes a step into pinned memory. `program` is its machine: it
//!    copies the step to the GPU and launches the table. From the second step of the same sizes on,
//!    the table is launched as a graph.
//!
//! Several GPUs of one host form a `group`. Each of them is a rank, and collectives in its table
//! exchange values with the other ranks.
//!
//! Only `driver` calls NVIDIA's driver, which is loaded at run time, so that the same binary runs
//! on machines without it. Each kernel is a file in `kernels/`, at the same path as its counterpart
//! in other devices. `kernels.rs` finds or compiles the machine code.
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
