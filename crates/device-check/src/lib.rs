//! Checks of a device against the reference interpreter.
//!
//! The program itself runs them: the choice of a device at start, and the self-tests of GPUs. So do
//! the tests of every device, which come down to this:
//!
//! ```no_run
//! # let device = device_reference::Reference::default();
//! // Each case's bound for f32 arithmetic in any order. A device that rounds activations to 8 bits
//! // allows its Linears more, and says why.
//! ingle_device_check::check_device(&device, |case| case.tolerance).unwrap();
//! // What a program promises of steps: links, choices, refusals, values that can be read.
//! ingle_device_check::check_steps(&device, 2e-4).unwrap();
//! ```
//!
//! A [`Case`] is a small plan whose logits are compared, and steps to run through it. Inputs come
//! from random embedding tables, so a plan needs nothing but tokens. [`compare()`] runs a case on
//! the interpreter and on the device. Plans are not fused, fused by each rule of the device's
//! profile alone (except whole layers), and fused by all rules. [`compare_chunks`] runs it on the
//! device step by step and row by row. [`truncate`] ends any plan at any value, which finds the
//! first Op of a real model that differs.

mod builder;
mod cases;
mod commits;
mod compare;
mod plans;
mod random;
mod replaced;
mod sequences;
mod steps;
mod stored;

pub use builder::{AttentionOptions, PlanBuilder, RecurrentShape};
pub use cases::{Case, Norms, check_op_cases, layers_with_norms};
pub use commits::check_commits;
pub use compare::{check_cases, check_device, compare, compare_chunks, run};
pub use plans::{mini_transformer, truncate};
pub use random::{Rng, cases, every, quantized};
pub use replaced::check_replaced_plans;
pub use sequences::{BEST_AND_LOGITS, Sequences, chosen_tokens, committed, limits, one_sequence};
pub use steps::{
    ReadValues, check_impossible_choices, check_links, check_reads, check_refusals, check_steps, check_stops,
    check_wants,
};
pub use stored::{blank, block_types, random_bytes, stored};
