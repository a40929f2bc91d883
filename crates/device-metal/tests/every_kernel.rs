//! Tests of every kernel file: its address spaces fit, no order of lanes or threadgroups changes a
//! bit, and sanitizers find nothing. Kernels of `linear/`, `sampling/` and attention have their own
//! tests for the last two, at more shapes and with all constants. The device runs all others here,
//! in small plans.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, HashMap};

use crate::launch::compile_strict;
use device::{Device, OpKind, Plan};
use device_lower::fusion;
use device_testing::{Case, check_op_cases, run};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, IsOf, Options};
use ingle_device_metal::kernels::{FILES, Kernel};
use metal_emulator::{LaneOrder, Sanitizer};

#[test]
fn address_spaces_fit() {
    for (file, _) in FILES {
        compile_strict(file, false);
    }
    // Files with kernels for tensor units; of weights, a type of each kind of operand and scale.
    for file in [
        "linear/q4_0.metal",
        "linear/affine_4.metal",
        "linear/iq4_nl.metal",
        "linear/f32.metal",
        "linear/bf16.metal",
        "attention.metal",
        "self_attention.metal",
        "cross_attention.metal",
        "tensor_probe.metal",
    ] {
        compile_strict(file, true);
    }
}

/// Returns true for files whose kernels have their own tests.
fn is_elsewhere(file: &str) -> bool {
    [
        "linear/",
        "sampling/",
        "attention.metal",
        "cross_attention.metal",
        "self_attention.metal",
        "tensor_probe.metal",
    ]
    .iter()
    .any(|start| file.starts_with(start))
}

fn is_sanitized(file: &str) -> bool {
    !is_elsewhere(file)
}

/// Returns true if threads of a threadgroup wait for each other, and so may race.
fn has_barriers(file: &str) -> bool {
    let kernel = FILES.iter().find(|(path, _)| *path == file).map(|(path, _)| Kernel::of(path));
    is_sanitized(file) && kernel.unwrap().source().unwrap().contains("threadgroup_barrier(")
}

/// A device in an order of lanes, or with kernels under a sanitizer.
fn device(order: LaneOrder, sanitized: Option<(Sanitizer, IsOf)>) -> MetalDevice<EmulatedGpu> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    MetalDevice::new(EmulatedGpu::new(&Options { order, sanitized, ..Options::new(cache) }).unwrap())
}

/// The last case of every kind of Op: most of them the largest. Of recurrences with a decay for
/// each row of a state, which are gone through position by position, another one.
fn cases() -> Vec<Case> {
    let device = device(LaneOrder::Forward, None);
    let mut last: HashMap<(OpKind, bool), (usize, Case)> = HashMap::new();
    for (index, case) in check_op_cases()
        .into_iter()
        .enumerate()
        .filter(|(_, case)| case.kind != OpKind::Linear && case.runs_on(&device))
    {
        last.insert((case.kind, case.name.ends_with("each row true")), (index, case));
    }
    let mut cases: Vec<_> = last.into_values().collect();
    cases.sort_by_key(|(index, _)| *index);
    cases.into_iter().map(|(_, case)| case).collect()
}

/// The bits of all results of the cases, with blocks of Ops fused and single Ops as they are, and
/// the files whose kernels ran. The kernels that measure the GPU run too.
fn outcome(device: &MetalDevice<EmulatedGpu>, cases: &[Case]) -> (Vec<Vec<u32>>, BTreeSet<&'static str>) {
    device.gpu().start_trace();
    let mut all = vec![];
    for case in cases {
        let fused: Vec<Plan> = case.plans.iter().map(|plan| fusion::fuse(plan, device.fusion())).collect();
        let plans = if case.kind == OpKind::Fused { &fused } else { &case.plans };
        let results = run(device, plans, &case.limits, &case.steps);
        let results = results.unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
        all.push(results.into_iter().flatten().flatten().map(f32::to_bits).collect());
    }
    assert!(device.peaks().read_bytes_per_second > 0.0);
    for probed in ingle_device_metal::selftest::probe(device.gpu()).unwrap() {
        assert!(probed.is_expected(), "{probed:?}");
    }
    (all, device.gpu().take_trace().into_iter().map(|traced| traced.file).collect())
}

#[test]
fn no_order_changes_a_bit() {
    let cases = cases();
    let (forward, files) = outcome(&device(LaneOrder::Forward, None), &cases);
    let wanted: BTreeSet<&str> =
        FILES.iter().map(|(path, _)| *path).filter(|file| is_sanitized(file)).collect();
    let missing: Vec<_> = wanted.difference(&files).collect();
    assert!(missing.is_empty(), "nothing ran {missing:?}");
    for order in [LaneOrder::Reverse, LaneOrder::Random(5)] {
        let (other, _) = outcome(&device(order, None), &cases);
        for (index, (forward, other)) in forward.iter().zip(&other).enumerate() {
            assert!(forward == other, "{order:?} changes outcome {index} of {:?}", names(&cases));
        }
    }
}

fn names(cases: &[Case]) -> Vec<&str> {
    cases.iter().map(|case| case.name.as_str()).collect()
}

/// The results equal those without a sanitizer, since its build has the same rounding.
#[test]
fn sanitizers_find_nothing() {
    let mut cases = cases();
    // Each dispatch is a process.
    for case in &mut cases {
        // The third step of a recurrence has a span of a chunk and spans of less.
        let is_scan = matches!(case.kind, OpKind::GatedDelta | OpKind::SelectiveScan);
        case.steps.truncate(if is_scan { 3 } else { 2 });
    }
    let (expected, _) = outcome(&device(LaneOrder::Reverse, None), &cases);
    for sanitized in [(Sanitizer::AddressUndefined, is_sanitized as IsOf), (Sanitizer::Thread, has_barriers)]
    {
        let (found, _) = outcome(&device(LaneOrder::Reverse, Some(sanitized)), &cases);
        assert!(found == expected, "{:?}", sanitized.0);
    }
    assert!(FILES.iter().filter(|(file, _)| has_barriers(file)).count() >= 4);
}
