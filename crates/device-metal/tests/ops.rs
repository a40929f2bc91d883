//! The cases that every device must pass, against the reference interpreter, on the emulated GPU: the very shaders that Apple's
//! GPUs run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::OpKind;
use device::testing::{Case, check_cases, check_op_cases};
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::{MetalDevice, kernels};

fn device() -> MetalDevice<EmulatedGpu> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    MetalDevice::new(EmulatedGpu::new(&Options::new(cache)).unwrap())
}

/// What this device's arithmetic needs of a case.
///
/// Sums in other orders, and exponentials and square roots good to a few units in the last place, stay within a few times what
/// f32 needs in any order. Tiles of matrices multiply in halves: a step is 2^-11 of a number, of which a product has two.
fn tolerance(case: &Case) -> f32 {
    let plans = case.plans.iter().flat_map(|plan| plan.primitives());
    let tiles = plans.filter(|op| TILES.contains(&op.kind())).count();
    4.0 * case.tolerance + 2e-3 * (tiles as f32).min(4.0)
}

/// Ops that multiply in tiles.
const TILES: [OpKind; 5] =
    [OpKind::Linear, OpKind::ExpertLinear, OpKind::Attention, OpKind::CrossAttention, OpKind::SelfAttention];

fn check(wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<Case> = check_op_cases()
        .into_iter()
        .filter(|case| kernels::linear_file(case.block).is_some() && wanted(case))
        .collect();
    assert!(!cases.is_empty());
    match check_cases(&device(), cases, tolerance) {
        Ok(n) => println!("{n} cases"),
        Err(failures) => panic!("{failures}"),
    }
}

#[test]
fn products() {
    check(|case| case.kind == OpKind::Linear);
}

#[test]
fn experts() {
    check(|case| case.kind == OpKind::ExpertLinear);
}

#[test]
fn attentions() {
    use OpKind::*;
    check(|case| matches!(case.kind, Attention | SelfAttention | CrossAttention | CrossScores));
}

#[test]
fn blocks() {
    check(|case| case.kind == OpKind::Fused);
}

#[test]
fn embeddings_norms_and_elements() {
    use OpKind::*;
    check(|case| {
        !matches!(
            case.kind,
            Linear | ExpertLinear | Fused | Attention | SelfAttention | CrossAttention | CrossScores
        )
    });
}
