//! GPUs that allow kernels fewer threads than tables name, and steps whose work is cut into several
//! command buffers.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::{Device, KvType, Limits, OpKind, Want};
use device_lower::fusion;
use device_testing::{
    Case, PlanBuilder, Sequences, check_cases, check_op_cases, committed, limits, mini_transformer,
};
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::gpu::{Constant, MetalGpu, Request};
use ingle_device_metal::kernels::linear;
use ingle_device_metal::selftest::{SHORTEST_SPLIT, tolerance};
use ingle_device_metal::{MetalDevice, Profile};
use weights::BlockType;

fn device(change: impl FnOnce(&mut Options)) -> MetalDevice<EmulatedGpu> {
    let mut options = Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"));
    change(&mut options);
    MetalDevice::new(EmulatedGpu::new(&options).unwrap())
}

/// 64 threads for kernels that can run with fewer than their tables name. A head that leaves its
/// best columns cannot.
fn most_threads(request: &Request) -> u32 {
    let parts = ["decode", "joined", "merged", "gemv", "argmax", "sample", "norm", "join", "delta", "scan"];
    let leaves_best = request.constants.contains(&(linear::ARGMAX, Constant::Bool(true)));
    let can = parts.iter().any(|part| request.kernel.function.contains(part)) && !leaves_best;
    if can { 64 } else { 1024 }
}

/// The GPU of these tests. Its products have eight SIMD-groups in a threadgroup, none of which
/// share rows.
fn refusing() -> MetalDevice<EmulatedGpu> {
    let device = device(|options| options.most_threads = most_threads);
    let profile = Profile { gemv_simdgroups: 1, gemv_threadgroup: 8, ..device.profile().clone() };
    MetalDevice::sharing(device.shared_gpu().clone(), profile)
}

fn check(device: &MetalDevice<EmulatedGpu>, wanted: impl Fn(&Case) -> bool, nth: usize) {
    let cases: Vec<Case> = check_op_cases().into_iter().filter(wanted).step_by(nth).collect();
    assert!(!cases.is_empty());
    if let Err(failures) = check_cases(device, cases, tolerance) {
        panic!("{failures}");
    }
}

/// Every kernel that can runs with as few threads as the GPU allows, and computes the same.
#[test]
fn kernels_run_with_fewer_threads_than_their_tables_name() {
    use OpKind::*;
    let device = refusing();
    check(&device, |case| matches!(case.kind, Linear | ExpertLinear), 29);
    check(&device, |case| matches!(case.kind, Attention | CrossAttention), 15);
    check(&device, |case| matches!(case.kind, RmsNorm | Argmax | GatedDelta | SelectiveScan), 5);
    check(&device, |case| case.kind == Fused && case.name.starts_with("norms "), 5);
    check(&device.splitting(SHORTEST_SPLIT), |case| case.name == "two layers Q4_0 kv F16", 1);
    let notes = device.gpu().notes().join("\n");
    for kernel in [
        "attention_decode_",
        "_joined",
        "_merged",
        "_gemv_1x8 ",
        "_gemv_8 ",
        "argmax",
        "sample",
        "delta_",
        "scan_",
    ] {
        assert!(notes.contains(kernel), "{kernel} is not among\n{notes}");
    }
    assert!(
        notes.lines().all(|note| [" of 64 threads, not ", " of 32 threads, not "]
            .iter()
            .any(|words| note.contains(words))),
        "{notes}"
    );
}

/// A head whose best tokens have places cannot have more threadgroups.
#[test]
fn a_kernel_that_cannot_is_an_error_that_names_it() {
    let mut b = PlanBuilder::new(3, 4096);
    let x = b.embed(64);
    let x = b.select_rows(x);
    let y = b.linear(x, 4096, BlockType::Q8_0, false);
    let plan = b.finish(y);
    let limits = limits(&plan.kv);
    let device = device(|options| options.most_threads = |_| 64);
    let profile = Profile { gemv_threadgroup: 8, ..device.profile().clone() };
    let device = MetalDevice::sharing(device.shared_gpu().clone(), profile);
    let error = device.compile(&[plan], &limits).err().unwrap().to_string();
    assert!(error.contains("256 threads for linear_q8_0_gemv_1") && error.contains("at most 64"), "{error}");
}

/// Logits of a prompt and of the token after it, and the number of command buffers.
fn prompt(most_ops: u64) -> (Vec<u32>, usize) {
    let device = device(|options| options.most_ops = most_ops);
    let plan = fusion::fuse(&mini_transformer(3, BlockType::Q4_0), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    device.gpu().start_trace();
    let mut bits = vec![];
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    for n in [40, 1] {
        let step = sequences.step(&[(0, n)]).with_outputs(vec![n as u32 - 1], Want::LOGITS);
        program.run(&step.borrow()).unwrap();
        bits.extend(program.logits().iter().map(|logit| logit.to_bits()));
    }
    let n = device.gpu().take_trace().iter().filter(|traced| traced.is_first).count();
    (bits, n)
}

#[test]
fn a_step_of_much_work_has_several_command_buffers() {
    let (whole, n) = prompt(u64::MAX);
    assert_eq!(n, 2);
    let (parts, n_parts) = prompt(1_000_000);
    assert_eq!(whole, parts);
    assert!((6..30).contains(&n_parts), "{n_parts}");
    // Each command is a part by itself, and none is empty.
    let (commands, n_commands) = prompt(1);
    assert_eq!(whole, commands);
    assert!(n_commands > n_parts, "{n_commands} and {n_parts}");
}
