//! The test body that every device shares.
//!
//! A device's own tests come down to this:
//!
//! ```no_run
//! # let device = ingle_device::interpreter::Reference::default();
//! // The bound that each case asks of f32 arithmetic in any order. A device that rounds activations to 8 bits multiplies
//! // it for the Linears where it does so, and says why.
//! ingle_device::testing::check_device(&device, |case| case.tolerance).unwrap();
//! ```
//!
//! A [`Case`] is a small plan whose logits are what is tested, and steps to run through it. Inputs come from random
//! embedding tables, so a plan needs nothing but tokens. [`compare()`] runs a case on the interpreter and on the device: as it
//! is, fused by each rule of the device's profile alone (but for whole layers), and fused by all. [`compare_chunks`] runs it on the device as it is
//! and row by row. [`truncate`] ends any plan at any value, which finds the first Op of a real model that differs.

mod builder;
mod cases;
mod compare;
mod random;
mod sequences;
mod stored;

pub use builder::{AttentionOptions, PlanBuilder, mini_transformer, truncate};
pub use cases::{Case, Norms, check_op_cases, layers_with_norms};
pub use compare::{check_cases, check_device, compare, compare_chunks, run};
pub use random::{Rng, quantized};
pub use sequences::{Sequences, limits, one_sequence};
pub use stored::{block_types, random_bytes, stored};
