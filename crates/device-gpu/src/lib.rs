//! The host code of GPUs that replay tables of commands, the same for every driver.
//!
//! # Parts
//!
//! - [`program::GpuProgram`] is the [`device::Program`]: it checks a step, writes it into its
//!   region, keeps steps in flight, and chooses tokens that no kernel chooses.
//! - A [`machine::Machine`] is the GPU below it: memory, compiled tables, and what launches them.
//! - [`replayer::Replayer`] is the machine of GPUs whose driver writes a table into a command
//!   buffer, with buffers bound to each dispatch. The driver is a [`gpu::Gpu`], with its own
//!   kernels.
//! - [`signature`] lists the operands of the kernels of simple Ops.
//! - [`layout`], [`arguments`] and [`inputs`] define a step's region in memory. [`ahead`] keeps the
//!   steps in flight, [`compiled`] finds the table for the rows of a step, [`pools`] holds pages,
//!   and [`step_cost`] cuts long steps into command buffers.
//!
//! A GPU keeps its kernels, the choice of a kernel for each unit, its profile, and its driver.
#![deny(missing_docs)]
#![allow(unsafe_code)]

pub mod ahead;
#[allow(missing_docs)]
pub mod arguments;
pub mod at_once;
pub mod compiled;
pub mod gpu;
pub mod inputs;
pub mod layout;
pub mod machine;
pub mod pools;
pub mod program;
pub mod replayer;
pub mod signature;
pub mod step_cost;
