//! Differences between Metal and a CPU, each as a second run that reveals a seeded bug:
//! contraction, flushing to zero, inexact functions. Other defects are found without a run: newer
//! C++, pointers without an address space, mixed widths, threadgroup memory in a branch.
//! Overlapping bindings, and barriers that do not order device memory, are faults.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{
    Binding, Buffer, Dispatch, Error, Fault, FaultKind, LaneOrder, Numerics, Options, RunOptions,
};

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

/// `y[i] = EXPRESSION` of x, as words.
fn of(numerics: Numerics, pragma: &str, expression: &str, x: &[f32]) -> Vec<f32> {
    let source = format!(
        "{pragma}\n{HEAD}kernel void f(device const float * x [[buffer(0)]], device float * y [[buffer(1)]], \
         uint i [[thread_position_in_grid]]) {{ const float v = x[i]; y[i] = {expression}; }}"
    );
    let library = compiler(Options { numerics, ..options() }).compile("f.metal", &source, &[]).unwrap();
    let (x, y) = (floats(x), Buffer::new(4 * x.len()).unwrap());
    let n = (x.len() / 4) as u32;
    run(&library.pipeline("f", &[]).unwrap(), &[&x, &y], 1, n, LaneOrder::Forward).unwrap();
    to_floats(&y)
}

#[test]
fn contraction_changes_a_sum_unless_the_source_forbids_it() {
    let contract = Numerics { contract: true, ..Numerics::default() };
    let x: Vec<f32> = (1..33).map(|i| 1.0 + i as f32 / 33.0).collect();
    let remainder = "v * v - x[(i + 1) % 8] * 0.7f";
    let (off, on) = (of(Numerics::default(), "", remainder, &x), of(contract, "", remainder, &x));
    assert_ne!(off, on);
    assert!(off.iter().zip(&on).all(|(a, b)| (a - b).abs() < 1e-6), "{off:?} {on:?}");
    assert_eq!(of(contract, "#pragma METAL fp contract(off)", remainder, &x), off);
    // An explicit `fma` stays one in both modes.
    let fused = "fma(v, v, -(v * v))";
    assert_eq!(
        of(contract, "#pragma METAL fp contract(off)", fused, &x),
        of(Numerics::default(), "", fused, &x)
    );
    let error =
        compiler(options()).compile("f.metal", "#pragma METAL fp contract(perhaps)\n", &[]).unwrap_err();
    assert!(error.to_string().contains("contract(perhaps)' is not known"), "{error}");
}

/// If nothing may be contracted, no instruction is. This is found without a run, even in a function
/// that another one includes.
#[test]
fn functions_that_may_be_contracted_are_named() {
    let source = |pragma: &str| {
        format!(
            "{HEAD}static float free(float a) {{ return a * a + a; }}\n{pragma}\n\
             static float bound(float a) {{ return a * a - a; }}\n\
             kernel void f(device float * y [[buffer(0)]], uint i [[thread_position_in_grid]]) {{\n\
             y[i] = bound(free(y[i])); }}"
        )
    };
    let found = |pragma: &str| compiler(options()).contractible("f.metal", &source(pragma), &[]).unwrap();
    let names = |functions: &[String]| -> Vec<bool> {
        ["free", "bound"].map(|name| functions.iter().any(|function| function.contains(name))).to_vec()
    };
    assert_eq!(names(&found("")), [true, true]);
    assert_eq!(names(&found("#pragma METAL fp contract(off)")), [true, false]);
}

/// A scale below the smallest normal number is lost, and so are its products; a subnormal half is
/// not.
#[test]
fn subnormal_floats_are_zero_where_they_are_flushed() {
    let flush = Numerics { flush: true, ..Numerics::default() };
    let x = vec![f32::MIN_POSITIVE; 32];
    let kept = of(Numerics::default(), "", "v * 0.25f * 8.0f", &x);
    assert_eq!(kept, [2.0 * f32::MIN_POSITIVE; 32]);
    assert_eq!(of(flush, "", "v * 0.25f * 8.0f", &x), [0.0; 32]);
    assert_eq!(of(flush, "", "v * 1e30f", &[f32::from_bits(0x0020_0000); 32]), [0.0; 32]);
    let half = "float(as_type<half>(ushort(1))) * 16777216.0f + 0.0f * v";
    assert_eq!(of(flush, "", half, &x), [1.0; 32]);
    // The mode ends with the dispatch.
    assert!(std::hint::black_box(f32::MIN_POSITIVE) / 2.0 > 0.0);
}

#[test]
fn functions_are_moved_within_their_bounds() {
    let inexact = Numerics { ulp: 2, ..Numerics::default() };
    let x: Vec<f32> = (1..129).map(|i| i as f32 / 9.0).collect();
    for function in ["exp(v)", "rsqrt(v)", "sin(v)", "cos(v)", "precise::exp(v)", "fast::sin(v)"] {
        let (exact, moved) = (of(Numerics::default(), "", function, &x), of(inexact, "", function, &x));
        let ulps = |(a, b): (&f32, &f32)| i64::from(b.to_bits()) - i64::from(a.to_bits());
        let ulps: Vec<i64> = exact.iter().zip(&moved).map(ulps).collect();
        assert!(ulps.contains(&2) && ulps.contains(&-2), "{function}: {ulps:?}");
        assert!(ulps.iter().all(|n| n.abs() == 2), "{function}: {ulps:?}");
        assert_eq!(moved, of(inexact, "", function, &x), "the same argument gives the same result");
    }
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -200.0];
    let found = of(inexact, "", "exp(v)", &special.repeat(8));
    assert!(found[0] == 0.0 && found[1] == f32::INFINITY && found[2].is_nan() && found[3] == 0.0);
    // A bug: comparison with a number that a function returns only if it is exact.
    let bug = "exp(v * 0.0f) == 1.0f ? 1.0f : 0.0f";
    assert_ne!(of(inexact, "", bug, &x), of(Numerics::default(), "", bug, &x));
}

#[test]
fn newer_language_than_metal_has_is_an_error() {
    let body = |body: &str| format!("{HEAD}kernel void k(device float * x [[buffer(0)]]) {{ {body} }}");
    let structured = "struct S { float a, b; }; S s = { 1, 2 }; auto [a, b] = s; x[0] = a + b;";
    for source in [body("if constexpr (sizeof(float) == 4) x[0] = 1.0f;"), body(structured)] {
        let error = compiler(options()).compile("new.metal", &source, &[]).unwrap_err();
        assert!(matches!(&error, Error::Compile { messages, .. } if messages.contains("C++17")), "{error}");
    }
    let fold = format!(
        "{HEAD}template<class... T> float sum(T... v) {{ return (v + ...); }}\n\
         kernel void k(device float * x [[buffer(0)]]) {{ x[0] = sum(1.0f, 2.0f); }}"
    );
    assert!(compiler(options()).compile("new.metal", &fold, &[]).is_err());
    compile("old.metal", &body("constexpr auto f = sizeof(float); if (f == 4) x[0] = 1.0f;"));
}

/// Metal has no generic pointers.
#[test]
fn pointers_have_an_address_space() {
    let call = |parameter: &str| {
        format!(
            "{HEAD}struct S {{ float v; }};\nfloat f({parameter}) {{ return 1.0f; }}\n\
             kernel void k(device S * s [[buffer(0)]]) {{ s[0].v = f(s); }}"
        )
    };
    let compiler = compiler(options());
    compiler.check_strict("p.metal", &call("device S * s"), &[]).unwrap_or_else(|e| panic!("{e}"));
    for bad in ["S * s", "const S * s"] {
        let error = compiler.compile("p.metal", &call(bad), &[]).unwrap_err().to_string();
        assert!(error.starts_with("p.metal:4:") && error.contains("'S' without an address space"), "{error}");
    }
    for bad in
        ["float * p = 0;", "const float4 * p = 0;", "half h = 0; half & r = h;", "x[0] = *(float *) x;"]
    {
        let source = format!("{HEAD}kernel void k(device float * x [[buffer(0)]]) {{\n {bad} }}");
        let error = compiler.compile("p.metal", &source, &[]).unwrap_err().to_string();
        assert!(error.starts_with("p.metal:4:") && error.contains("without an address space"), "{error}");
    }
    let good = "device const float4 * p = 0; const device float * q = x; float h = 0; thread float & r = h; x[0] = r * 2;";
    compile("q.metal", &format!("{HEAD}kernel void k(device float * x [[buffer(0)]]) {{ {good} }}"));
}

#[test]
fn positions_of_different_widths_are_refused() {
    let source = |size: &str| {
        format!(
            "{HEAD}kernel void k(device float * x [[buffer(0)]], uint2 p [[threadgroup_position_in_grid]],\n\
             {size} n [[threads_per_threadgroup]], ushort lane [[thread_index_in_simdgroup]]) {{ x[p.x] = 1.0f; }}"
        )
    };
    compile("w.metal", &source("ushort2"));
    let error = compiler(options()).compile("w.metal", &source("uint"), &[]).unwrap_err().to_string();
    assert!(error.contains("uint2 p") && error.contains("one width"), "{error}");
}

/// A variable in a branch that no run reaches counts.
#[test]
fn declared_threadgroup_memory_is_summed() {
    let p = compile("bugs.metal", include_str!("kernels/bugs.metal"))
        .pipeline("too_much_in_a_branch", &[])
        .unwrap();
    let f = run(&p, &[&Buffer::new(128).unwrap()], 1, 32, LaneOrder::Forward).unwrap_err();
    assert_eq!(f.kind, FaultKind::TooMuchThreadgroupMemory { bytes: 2049 * 16, name: "b".to_owned() });
}

#[test]
fn overlapping_bindings_may_not_be_read_after_a_write() {
    let library = compile("bugs.metal", include_str!("kernels/bugs.metal"));
    let x = floats(&[1.0; 96]);
    let run = |function: &str, from: usize, to: usize| {
        let d = Dispatch {
            pipeline: &library.pipeline(function, &[]).unwrap(),
            buffers: &[Binding::new(0, &x).at(from).limit(128), Binding::new(1, &x).at(to).limit(128)],
            bytes: &[],
            resources: &[],
            threadgroup_memory: &[],
            threadgroups: [1, 1, 1],
            threads_per_threadgroup: [32, 1, 1],
        };
        d.run(&RunOptions::default())
    };
    run("aliased", 0, 128).unwrap();
    run("in_place", 0, 0).unwrap();
    let f: Fault = run("aliased", 0, 0).unwrap_err();
    assert_eq!(f.kind, FaultKind::Aliased { index: 0, offset: 0, size: 4, writer: 1 });
}

#[test]
fn barriers_order_the_memory_that_they_name() {
    let library = |ordered: bool| {
        let defines = if ordered { vec![("ORDERED".to_owned(), "1".to_owned())] } else { vec![] };
        let source = include_str!("kernels/bugs.metal");
        compiler(Options { defines, ..options() }).compile("bugs.metal", source, &[]).unwrap()
    };
    for (function, threads) in [("unordered", 64), ("unordered_in_simdgroup", 32)] {
        let (x, y) = (Buffer::new(256).unwrap(), Buffer::new(256).unwrap());
        let run = |ordered| {
            run(&library(ordered).pipeline(function, &[]).unwrap(), &[&x, &y], 2, threads, LaneOrder::Forward)
        };
        // Records of a dispatch do not affect the next.
        for _ in 0..2 {
            run(true).unwrap();
            let f = run(false).unwrap_err();
            assert!(matches!(f.kind, FaultKind::UnorderedDevice { index: 0, .. }), "{function}: {f}");
        }
    }
}
