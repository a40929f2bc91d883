//! The cases that every device must pass, against the reference interpreter, on the emulated GPU:
//! the very shaders that Apple's GPUs run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::OpKind;
use device_testing::{Case, PlanBuilder, Sequences, check_cases, check_op_cases, every, limits};
use ingle_device_metal::gpu::Gpu as _;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::selftest::{SHORTEST_SPLIT, may_split, tolerance};
use ingle_device_metal::{MetalDevice, Profile};
use weights::BlockType;

fn device() -> MetalDevice<EmulatedGpu> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    MetalDevice::new(EmulatedGpu::new(&Options::new(cache)).unwrap())
}

/// Prompts on tensor units: a product with weights, one with experts, and attention. The kernels'
/// own tests have every type and odd sizes.
#[test]
fn tensor_units() {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    let gpu = EmulatedGpu::new(&Options { tensors: true, ..Options::new(cache) }).unwrap();
    let profile = Profile { tensor: true, ..Profile::new(gpu.facts()) };
    let device = MetalDevice::with_profile(gpu, profile);
    let wanted = [OpKind::Linear, OpKind::ExpertLinear, OpKind::SelfAttention];
    let cases = check_op_cases().into_iter().filter(|case| wanted.contains(&case.kind));
    let cases: Vec<Case> =
        cases.filter(|case| case.kind == OpKind::SelfAttention || case.block == BlockType::Q4_0).collect();
    device.gpu().start_trace();
    if let Err(failures) = check_cases(&device, cases, tolerance) {
        panic!("{failures}");
    }
    let trace = device.gpu().take_trace();
    for kernel in ["linear_q4_0_gemm", "expert_linear_q4_0_gemm", "self_attention"] {
        let mut of_kernel = trace.iter().filter(|traced| traced.function.contains(kernel));
        assert!(of_kernel.any(|traced| traced.counters.simdgroup.tensor_products > 0), "{kernel}");
    }
}

/// Checks every `quick`th of the cases that are wanted; runs of more cases check all of them.
fn check(quick: usize, wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<Case> = check_op_cases().into_iter().filter(wanted).step_by(every(quick)).collect();
    assert!(!cases.is_empty());
    match check_cases(&device(), cases, tolerance) {
        Ok(n) => println!("{n} cases"),
        Err(failures) => panic!("{failures}"),
    }
}

#[test]
fn products() {
    check(1, |case| case.kind == OpKind::Linear);
}

#[test]
fn experts() {
    check(1, |case| case.kind == OpKind::ExpertLinear);
}

#[test]
fn attentions() {
    use OpKind::*;
    // The kernels' own tests run every shape. Cases here use three KV types in rotation.
    check(4, |case| matches!(case.kind, Attention | SelfAttention | CrossAttention | CrossScores));
}

#[test]
fn blocks() {
    // Each type has several kernels, and `products` runs each of them alone.
    check(11, |case| case.kind == OpKind::Fused && !has_norms_behind(case));
}

/// Norms after attention and network, which what reads the residual stream next makes; of values;
/// of whole rows.
#[test]
fn norms_behind() {
    check(2, has_norms_behind);
}

fn has_norms_behind(case: &Case) -> bool {
    case.name.starts_with("norms ")
}

#[test]
fn embeddings_norms_and_elements() {
    use OpKind::*;
    check(1, |case| {
        !matches!(
            case.kind,
            Linear
                | ExpertLinear
                | Fused
                | Attention
                | SelfAttention
                | CrossAttention
                | CrossScores
                | GatedDelta
                | SelectiveScan
        )
    });
}

/// Spans of a row, of less than a chunk and of several, which begin and go on. No operand is a half
/// here.
#[test]
fn recurrences() {
    let is_scan = |case: &Case| matches!(case.kind, OpKind::GatedDelta | OpKind::SelectiveScan);
    let cases: Vec<Case> = check_op_cases().into_iter().filter(is_scan).collect();
    if let Err(failures) = check_cases(&device(), cases, |case| case.tolerance) {
        panic!("{failures}");
    }
}

/// Sequences that are split over threadgroups from a few positions on: single rows, whose
/// projection joins the parts, and several.
#[test]
fn long_sequences() {
    let device = device().splitting(SHORTEST_SPLIT);
    // Two blocks and every ninth case of a single Op are checked: the kernels' own tests split
    // every shape.
    let fused =
        |case: &Case| ["two layers Q4_0 kv F16", "two layers F32 kv F32"].contains(&case.name.as_str());
    let (mut cases, others): (Vec<Case>, Vec<Case>) = check_op_cases().into_iter().partition(fused);
    assert_eq!(cases.len(), 2);
    cases.extend(others.into_iter().filter(|case| case.kind != OpKind::Fused && may_split(case)).step_by(9));
    if let Err(failures) = check_cases(&device, cases, tolerance) {
        panic!("{failures}");
    }
}

/// The bound is that of the product of one row, of a few rows or of tiles. The largest logit is
/// searched in the partial results of the head for one row.
#[test]
fn bounded_logits() {
    let mut b = PlanBuilder::new(5, 83);
    let x = b.embed_from(96, BlockType::F32, 4.0);
    let x = b.select_rows(x);
    let norm = b.rms_norm(x, 96);
    let y = b.linear(norm, 83, BlockType::Q4_0, false);
    let y = b.softcap(y, 3.0);
    let plan = b.finish(y);
    let limits = limits(&plan.kv);
    let mut sequences = Sequences::new(4, &plan.kv, &limits, 83);
    let steps = [1, 3, 40, 1].map(|n| sequences.step(&[(0, n)])).to_vec();
    let (kind, block, name) = (OpKind::Linear, BlockType::Q4_0, "bounded logits".to_owned());
    // Sums in f32, in any order; tanh is good to a few units in the last place.
    let case = Case { name, kind, block, plans: vec![plan], limits, steps, tolerance: 1e-5 };
    if let Err(failures) = check_cases(&device(), vec![case], tolerance) {
        panic!("{failures}");
    }
}

/// One row uses one kernel, more rows use two, as for the q, k and v of files with mixed types.
#[test]
fn three_products_of_which_the_last_has_another_type() {
    let mut b = PlanBuilder::new(3, 29);
    let x = b.embed(256);
    let norm = b.rms_norm(x, 256);
    let [q, k, v] =
        [BlockType::Q4_K, BlockType::Q4_K, BlockType::Q6_K].map(|block| b.linear(norm, 21, block, false));
    let y = b.add(q, k);
    let y = b.add(y, v);
    let y = b.linear(y, 29, BlockType::F32, false);
    let plan = b.finish(y);
    let limits = limits(&plan.kv);
    let mut sequences = Sequences::new(4, &plan.kv, &limits, 29);
    let steps = [1, 3, 7, 40].map(|n| sequences.step(&[(0, n)])).to_vec();
    let (kind, block, name) = (OpKind::Linear, BlockType::Q4_K, "q4_k, q4_k, q6_k".to_owned());
    // Sums in f32, in any order.
    let case = Case { name, kind, block, plans: vec![plan], limits, steps, tolerance: 1e-5 };
    let device = device();
    // Seven rows in two products of four, or in four of two.
    let default = device.profile();
    let mut profiles = [8, 4, 2].map(|product_rows| Profile { product_rows, ..default.clone() }).to_vec();
    // A GPU that these few rows fill takes eight rows of a weight at once.
    profiles.push(Profile { gemv_simdgroups: 1, ..default.clone() });
    for profile in profiles {
        let what = profile.to_text();
        let device = MetalDevice::sharing(device.shared_gpu().clone(), profile);
        if let Err(failures) = check_cases(&device, vec![case.clone()], tolerance) {
            panic!("with {what}: {failures}");
        }
    }
}
