//! The test body that every device shares.
//!
//! A device's own tests come down to this:
//!
//! ```no_run
//! # let device = device_reference::Reference::default();
//! // The bound that each case asks of f32 arithmetic in any order. A device that rounds activations to 8 bits multiplies
//! // it for the Linears where it does so, and says why.
//! ingle_device_testing::check_device(&device, |case| case.tolerance).unwrap();
//! // What a program promises of steps: links, choices, refusals, values that can be read.
//! ingle_device_testing::check_steps(&device, 2e-4).unwrap();
//! ```
//!
//! A [`Case`] is a small plan whose logits are what is tested, and steps to run through it. Inputs come from random
//! embedding tables, so a plan needs nothing but tokens. [`compare()`] runs a case on the interpreter and on the device: as it
//! is, fused by each rule of the device's profile alone (but for whole layers), and fused by all. [`compare_chunks`] runs it on the device as it is
//! and row by row. [`truncate`] ends any plan at any value, which finds the first Op of a real model that differs.

pub mod null;

mod allocations;
mod background;
mod builder;
mod cases;
mod commits;
mod compare;
mod emulated;
mod plans;
mod random;
mod replaced;
mod scarce;
mod sequences;
mod steps;
mod stored;

pub use allocations::CountingAllocator;
pub use background::check_background;
pub use builder::{AttentionOptions, PlanBuilder, RecurrentShape};
pub use cases::{Case, Norms, check_op_cases, layers_with_norms};
pub use commits::{check_commits, check_shortage};
pub use compare::{check_cases, check_device, compare, compare_chunks, run};
pub use emulated::EmulatedGpu;
pub use plans::{mini_transformer, truncate};
pub use random::{Rng, cases, quantized};
pub use replaced::check_replaced_plans;
pub use scarce::Scarce;
pub use sequences::{BEST_AND_LOGITS, Sequences, chosen_tokens, committed, limits, one_sequence};
pub use steps::{
    ReadValues, check_impossible_choices, check_links, check_reads, check_refusals, check_steps, check_stops,
    check_wants,
};
pub use stored::{blank, block_types, random_bytes, stored};
