//! Tests that a user can run to check this machine's GPU: every case of the device tests, compared
//! with the reference interpreter.

mod decoders;
mod one_launch;

pub use decoders::{Decoder, Experts, Mix, decoders, half_decoders};
pub use one_launch::{chains, check_chain, check_decoder, check_long};

use crate::CudaDevice;
use device::{Device, Numerics, OpKind};
use device_check::{Case, check_cases, check_op_cases, compare_chunks};
use weights::BlockType;

/// Tolerance of a case for this device's arithmetic.
///
/// Other orders of sums, and exponentials exact to a few units in the last place, stay within a few
/// times the tolerance of f32. With few rows, quantised weights are multiplied by activations that
/// are rounded to 1/127 of the largest of 32. This error is about 0.7 % of a product, five times
/// that in the worst of thousands of products, and each later layer adds as much. With many rows,
/// weights and activations are rounded to F16: 2^-11 of each factor.
pub fn tolerance(case: &Case) -> f32 {
    // Convolutions have matrices in F16.
    let is_convolution = case.kind == OpKind::Unfold;
    let is_decoded = case.block == BlockType::I16_ROWS || BlockType::GGUF_EXTRA.contains(&case.block);
    if case.block == BlockType::F32 && !is_convolution {
        4.0 * case.tolerance
    } else if is_convolution || case.block.is_float() || is_decoded {
        4.0 * case.tolerance + 5e-3
    } else if case.kind == OpKind::Fused {
        0.15 + case.tolerance
    } else {
        0.04 + case.tolerance
    }
}

/// A promise of programs: its name, and its check.
pub type Promise = (&'static str, fn(&CudaDevice) -> Result<(), String>);

/// The promises of programs, by name: steps (links, choices, refusals, readable values), commits,
/// replaced plans, and results that do not depend on other rows of a step.
pub const PROMISES: [Promise; 4] = [
    ("steps", |device| device_check::check_steps(device, 0.1).map(|_| ())),
    ("commits", |device| device_check::check_commits(device)),
    ("replaced plans", |device| device_check::check_replaced_plans(device)),
    ("deterministic rows", deterministic),
];

/// Checks that a row gives the same bits alone and in a chunk.
fn deterministic(device: &CudaDevice) -> Result<(), String> {
    let mut failures = Vec::new();
    for mut case in check_op_cases() {
        if !device.kv_types().contains(&case.limits.kv_type) || !case.runs_on(device) {
            continue;
        }
        case.limits.numerics = Numerics::Deterministic;
        failures.extend(compare_chunks(device, &case, 0.0).err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// The kinds of Ops that have test cases.
pub fn kinds() -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = Vec::new();
    for case in check_op_cases() {
        if !kinds.contains(&case.kind) {
            kinds.push(case.kind);
        }
    }
    kinds
}

/// Returns true if a kind of Op has kernels that split positions.
pub fn may_split(kind: OpKind) -> bool {
    matches!(kind, OpKind::Attention | OpKind::CrossAttention | OpKind::Fused)
}

/// Runs the cases of a kind of Op, and returns their number.
///
/// # Errors
/// Some cases failed; with a line for each.
pub fn check_kind(device: &CudaDevice, kind: OpKind) -> Result<usize, String> {
    let cases: Vec<Case> = check_op_cases().into_iter().filter(|case| case.kind == kind).collect();
    check_cases(device as &dyn Device, cases, tolerance)
}
