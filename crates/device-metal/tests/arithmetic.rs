//! Tests of the freedom that Apple's compiler and GPUs have in arithmetic: contraction, flushing
//! subnormals to zero, and functions that are two units off. Kernels forbid contraction; with the
//! other two, results stay within their bounds.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::OpKind;
use device_testing::{Case, check_op_cases, compare, every};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::kernels::{FILES, HEADERS, Kernel};
use ingle_device_metal::selftest::tolerance;
use metal_emulator::{Compiler, Numerics};
use std::collections::HashMap;

const SHADERS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");

fn device(numerics: Numerics) -> MetalDevice<EmulatedGpu> {
    MetalDevice::new(EmulatedGpu::new(&Options { numerics, ..Options::new(SHADERS) }).unwrap())
}

/// The last case of each kind, with its first steps. Of recurrences with a decay for each row of a
/// state, which are gone through position by position, another one.
fn last_cases(device: &MetalDevice<EmulatedGpu>) -> Vec<Case> {
    let mut last: HashMap<(OpKind, bool), (usize, Case)> = HashMap::new();
    for (index, mut case) in check_op_cases().into_iter().enumerate() {
        let is_wanted = case.runs_on(device) && case.kind != OpKind::Linear && case.kind != OpKind::ShortConv;
        if is_wanted {
            case.steps.truncate(3);
            last.insert((case.kind, case.name.ends_with("each row true")), (index, case));
        }
    }
    let mut cases: Vec<_> = last.into_values().collect();
    cases.sort_by_key(|(index, _)| *index);
    cases.into_iter().map(|(_, case)| case).collect()
}

/// No kernel lets Apple's compiler contract operations, so every bit is reproducible. Runs of more
/// cases compile all files; each begins with the pragma, as a test of the file list checks.
#[test]
fn contraction_changes_no_bit() {
    let compiler = Compiler::new(metal_emulator::Options::new(SHADERS)).unwrap();
    let contractible = |file: &str, source: &str| {
        compiler.contractible(file, source, HEADERS).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    for (file, _) in FILES.iter().step_by(every(5)) {
        let source = Kernel::of(file).text().unwrap();
        assert_eq!(contractible(file, source), [""; 0], "{file}");
    }
    let allowed = Kernel::of("softcap.metal").text().unwrap().replace("contract(off)", "contract(fast)");
    let found = contractible("softcap.metal", &allowed);
    assert!(found.iter().any(|function| function.contains("softcap")), "{found:?}");
}

#[test]
fn flushed_and_inexact_results_are_within_their_bounds() {
    let device = device(Numerics { flush: true, ulp: 2, ..Numerics::default() });
    // Kernels are compiled once more for this device. Runs of more cases check all of them.
    for case in last_cases(&device).into_iter().step_by(every(3)) {
        compare(&device, &case, tolerance(&case)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// 4-bit weights with their least scales: subnormal intermediate values are not lost.
#[test]
fn subnormal_halves_of_small_floats_are_not_lost() {
    let options = metal_emulator::Options {
        numerics: Numerics { flush: true, ..Numerics::default() },
        ..metal_emulator::Options::new(SHADERS)
    };
    let source = "#include <metal_stdlib>\nusing namespace metal;\n#include \"linear/parameters.h\"\n\
                  #include \"linear/nvfp4.h\"\nkernel void k(device float * y [[buffer(0)]]) {\n\
                  const float4 v = MXFP4::numbers(0x04030201);\n\
                  for (uint i = 0; i < 4; i++) y[i] = v[i];\n y[4] = NVFP4::e4m3_half(1); y[5] = e8m0_half(2); }\n";
    let library = Compiler::new(options).unwrap();
    let library = library.compile("k.metal", source, HEADERS);
    let library = library.unwrap_or_else(|error| panic!("{error}"));
    let constants: Vec<_> = vec![];
    let pipeline = library.pipeline("k", &constants).unwrap();
    let y = metal_emulator::Buffer::new(24).unwrap();
    let dispatch = metal_emulator::Dispatch {
        pipeline: &pipeline,
        buffers: &[metal_emulator::Binding::new(0, &y)],
        resources: &[],
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [1; 3],
        threads_per_threadgroup: [1; 3],
    };
    dispatch.run(&metal_emulator::RunOptions::default()).unwrap();
    let found: Vec<f32> =
        y.as_slice().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(found, [0.5, 1.0, 1.5, 2.0, 2f32.powi(-10), 2f32.powi(-126)]);
}
