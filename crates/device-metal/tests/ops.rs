//! The cases that every device must pass, against the reference interpreter, on the emulated GPU: the very shaders that Apple's
//! GPUs run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::OpKind;
use device::testing::{Case, check_cases, check_op_cases};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::selftest::{is_supported, tolerance};

fn device() -> MetalDevice<EmulatedGpu> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    MetalDevice::new(EmulatedGpu::new(&Options::new(cache)).unwrap())
}

fn check(wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<Case> =
        check_op_cases().into_iter().filter(|case| is_supported(case) && wanted(case)).collect();
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
