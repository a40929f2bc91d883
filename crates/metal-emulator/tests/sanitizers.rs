//! clang's sanitizers on the same sources: correct kernels pass, seeded bugs are reported with
//! their lines.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{
    Binding, Buffer, Constant, Dispatch, Fault, FaultKind, LaneOrder, Library, Options, RunOptions, Sanitizer,
};

const BUGS: &str = include_str!("kernels/bugs.metal");

fn library(sanitizer: Sanitizer, name: &str, source: &str, defines: &[&str]) -> Library {
    let defines = defines.iter().map(|d| ((*d).to_owned(), "1".to_owned())).collect();
    compiler(Options { sanitizer, defines, ..options() })
        .compile(name, source, &[])
        .unwrap_or_else(|e| panic!("{e}"))
}

fn line(text: &str) -> usize {
    1 + BUGS.lines().position(|l| l.contains(text)).unwrap()
}

fn report(f: &Fault) -> &str {
    match &f.kind {
        FaultKind::Sanitizer(text) => text,
        other => panic!("{other}"),
    }
}

/// rms_norm and the matrix product run without reports, with the same results as without a
/// sanitizer.
fn linear_is_clean(sanitizer: Sanitizer) {
    let source = include_str!("kernels/linear.metal");
    let plain = compile("linear.metal", source);
    let checked = library(sanitizer, "linear.metal", source, &[]);
    let mut random = Random(3);
    let (x, w) = (floats(&random.floats(2 * 132)), floats(&random.floats(132)));
    let norm: Vec<u8> = 132u32.to_le_bytes().into_iter().chain(1e-5f32.to_le_bytes()).collect();
    let halves: Vec<u8> = (0..32 * 64).flat_map(|_| to_half(random.float()).to_le_bytes()).collect();
    let (a, b) = (
        Buffer::from_bytes(&halves[..32 * 32 * 2]).unwrap(),
        Buffer::from_bytes(&halves[32 * 32 * 2..]).unwrap(),
    );
    let gemm: Vec<u8> = [32u32, 32, 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut results = Vec::new();
    for library in [&plain, &checked] {
        let p = library.pipeline("rms_norm", &[(0, Constant::Bool(true))]).unwrap();
        let y = Buffer::new(2 * 132 * 4).unwrap();
        let d = Dispatch {
            pipeline: &p,
            buffers: &[Binding::new(1, &x), Binding::new(2, &w), Binding::new(3, &y)],
            bytes: &[(0, &norm)],
            threadgroup_memory: &[],
            threadgroups: [2, 1, 1],
            resources: &[],
            threads_per_threadgroup: [96, 1, 1],
        };
        let counters = d.run(&RunOptions { order: LaneOrder::Reverse, threads: 1 }).unwrap();
        assert_eq!(
            (counters.threads, counters.threadgroup_barriers, counters.simdgroup.reductions),
            (192, 4, 12)
        );
        results.push(y.as_slice().to_vec());
        let p = library.pipeline("gemm_f16", &[]).unwrap();
        let c = Buffer::new(32 * 32 * 4).unwrap();
        let d = Dispatch {
            pipeline: &p,
            buffers: &[Binding::new(1, &a), Binding::new(2, &b), Binding::new(3, &c)],
            bytes: &[(0, &gemm)],
            threadgroup_memory: &[(0, 2048)],
            threadgroups: [1, 1, 1],
            resources: &[],
            threads_per_threadgroup: [128, 1, 1],
        };
        d.run(&RunOptions { order: LaneOrder::Random(5), threads: 1 }).unwrap();
        results.push(c.as_slice().to_vec());
    }
    assert_eq!(results[..2], results[2..]);
}

#[test]
fn correct_kernels_pass_the_address_sanitizer() {
    linear_is_clean(Sanitizer::AddressUndefined);
}

#[test]
fn correct_kernels_pass_the_thread_sanitizer() {
    linear_is_clean(Sanitizer::Thread);
}

#[test]
fn the_address_sanitizer_finds_seeded_bugs() {
    let library = library(Sanitizer::AddressUndefined, "bugs.metal", BUGS, &[]);
    let x = Buffer::new(32 * 4).unwrap();
    for (function, text, part) in [
        ("past_the_end", "x[t + 1] = t;", "heap-buffer-overflow"),
        ("threadgroup_overrun", "p[t + 1] = t;", "heap-buffer-overflow"),
        ("misaligned_word", "*(device uint *) (x + 6)", "misaligned address"),
        ("shift", "1 << (t + 1)", "shift exponent"),
        ("division", "7 / (int(t) - 3)", "division by zero"),
        ("index", "x[t] = table[t];", "out of bounds"),
    ] {
        let f = run(&library.pipeline(function, &[]).unwrap(), &[&x], 1, 32, LaneOrder::Forward).unwrap_err();
        let (report, place) = (report(&f), format!("bugs.metal:{}", line(text)));
        assert!(report.contains(part) && report.contains(&place), "{function}: {report}");
    }
    // Divergence is detected by the runtime, as without a sanitizer.
    let p = library.pipeline("divergent_barrier", &[]).unwrap();
    let f = run(&p, &[&x], 1, 32, LaneOrder::Forward).unwrap_err();
    assert_eq!(f.kind, FaultKind::DivergentBarrier { reached: 16, threads: 32 });
}

#[test]
fn the_thread_sanitizer_finds_missing_barriers() {
    let x = Buffer::new(64 * 4).unwrap();
    let without = library(Sanitizer::Thread, "bugs.metal", BUGS, &[]);
    let with = library(Sanitizer::Thread, "bugs.metal", BUGS, &["WITH_BARRIER"]);
    for (function, threads, text) in
        [("race", 64, "s[t ^ 1]"), ("race_in_simdgroup", 32, "x[t] = s[31 - t];")]
    {
        let f = run(&without.pipeline(function, &[]).unwrap(), &[&x], 1, threads, LaneOrder::Forward)
            .unwrap_err();
        let (report, place) = (report(&f), format!("bugs.metal:{}", line(text)));
        assert!(report.contains("data race") && report.contains(&place), "{function}: {report}");
        run(&with.pipeline(function, &[]).unwrap(), &[&x], 1, threads, LaneOrder::Forward).unwrap();
    }
    // The barrier between two rounds of a tiled product. Without it, results are still correct
    // while lanes run in order.
    let source = include_str!("kernels/linear.metal");
    let library = library(Sanitizer::Thread, "linear.metal", source, &["WITHOUT_BARRIER"]);
    let halves = Buffer::new(32 * 32 * 2).unwrap();
    let c = Buffer::new(32 * 32 * 4).unwrap();
    let gemm: Vec<u8> = [32u32, 32, 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let p = library.pipeline("gemm_f16", &[]).unwrap();
    let d = Dispatch {
        pipeline: &p,
        buffers: &[Binding::new(1, &halves), Binding::new(2, &halves), Binding::new(3, &c)],
        bytes: &[(0, &gemm)],
        threadgroup_memory: &[(0, 2048)],
        threadgroups: [1, 1, 1],
        resources: &[],
        threads_per_threadgroup: [128, 1, 1],
    };
    let f = d.run(&RunOptions::default()).unwrap_err();
    assert!(report(&f).contains("data race"), "{f}");
}
