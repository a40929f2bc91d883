//! What a user can run to see whether this machine's GPU gives right answers: every case that
//! devices are tested with, against the reference interpreter.

mod decoders;
mod one_launch;

pub use decoders::{Decoder, Experts, Mix, decoders, half_decoders};
pub use one_launch::{chains, check_chain, check_decoder, check_long};

use crate::CudaDevice;
use device::{Device, Numerics, OpKind};
use device_check::{Case, check_cases, check_op_cases, compare_chunks};
use weights::BlockType;

/// What this device's arithmetic needs of a case.
///
/// Sums in other orders and exponentials good to a few units in the last place stay within a few
/// times what f32 needs in any order. With few rows, quantised weights meet activations rounded to
/// 1/127 of the largest of 32: an error of some 0.7 % of a product's size, five times that at the
/// worst of thousands of products, and as much again in each of the layers that follow. With many
/// rows, weights and activations are rounded to halves: 2^-11 of each factor.
pub fn tolerance(case: &Case) -> f32 {
    let decoded = case.block == BlockType::I16_ROWS || BlockType::GGUF_EXTRA.contains(&case.block);
    match case.kind {
        // Convolutions, whose matrices are halves.
        OpKind::Unfold => 4.0 * case.tolerance + 5e-3,
        _ if case.block == BlockType::F32 => 4.0 * case.tolerance,
        _ if case.block.is_float() || decoded => 4.0 * case.tolerance + 5e-3,
        OpKind::Fused => 0.15 + case.tolerance,
        _ => 0.04 + case.tolerance,
    }
}

/// A name, and a check of it.
pub type Promise = (&'static str, fn(&CudaDevice) -> Result<(), String>);

/// What programs promise of steps, by name: links, choices, refusals, values that can be read;
/// commits; bits that do not depend on company.
pub const PROMISES: [Promise; 4] = [
    ("steps", |device| device_check::check_steps(device, 0.1).map(|_| ())),
    ("commits", |device| device_check::check_commits(device)),
    ("replaced plans", |device| device_check::check_replaced_plans(device)),
    ("deterministic rows", deterministic),
];

/// A row is the same bits whether it comes alone or in a chunk.
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

/// The kinds of Ops that there are cases of.
pub fn kinds() -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = Vec::new();
    for case in check_op_cases() {
        if !kinds.contains(&case.kind) {
            kinds.push(case.kind);
        }
    }
    kinds
}

/// Whether a kind of Op has kernels that split positions.
pub fn may_split(kind: OpKind) -> bool {
    matches!(kind, OpKind::Attention | OpKind::CrossAttention | OpKind::Fused)
}

/// Run the cases of a kind of Op. Gives their number.
///
/// # Errors
/// Those that failed, a line each.
pub fn check_kind(device: &CudaDevice, kind: OpKind) -> Result<usize, String> {
    let cases: Vec<Case> = check_op_cases().into_iter().filter(|case| case.kind == kind).collect();
    check_cases(device as &dyn Device, cases, tolerance)
}
