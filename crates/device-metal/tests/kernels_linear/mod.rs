//! The kernels that multiply with weights, through the emulator, against plain Rust in f64 over the
//! codecs' values. This file has the list of types, the reference and the launches.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

mod embed;
mod experts;
mod gemm;
mod gemv;
mod joined;
mod merged;
mod sanitizers;
mod signatures;
mod tails;

use crate::launch::{Launch, Sanitizer, step};
use device::{Activation, Weight};
use device_testing::{Rng, every, stored};
use weights::{Affine, BlockType, ScaleType};

// Function constants, as linear/constants.h numbers them.
const NORM: u16 = 0;
const BIAS: u16 = 1;
const RESIDUAL: u16 = 2;
const GATE: u16 = 3;
const ACTIVATION: u16 = 4;
const WEIGHTS: u16 = 5;
const SPLIT: u16 = 6;
const ARGMAX: u16 = 7;
const SOFTCAP: u16 = 8;
const SCALAR: u16 = 9;
const AFFINE_GROUP: u16 = 10;
const AFFINE_SCALE: u16 = 11;
const AFFINE_SYMMETRIC: u16 = 12;
const OWN_INPUT: u16 = 13;
const EXPERTS_SUM: u16 = 15;
const BESIDE: u16 = 16;
const UP: u16 = 17;
const ROW_GATE: u16 = 18;
const BOUNDED: u16 = 29;
const AFFINE_WIDE: u16 = 19;

// Function constants of join.h.
const JOIN_WEIGHT: u16 = 20;
const JOIN_PAIR: u16 = 21;
const JOIN_PARTS: u16 = 22;
const JOIN_NORMS: u16 = 23;
const JOIN_NORM: u16 = 24;

/// Every type that has a file, with a name and a few columns that it can have.
fn types() -> Vec<(&'static str, &'static str, BlockType, usize)> {
    use BlockType::*;
    let affine = |bits, group, scale, symmetric| {
        BlockType::Affine(weights::Affine::new(bits, group, scale, symmetric).unwrap())
    };
    vec![
        ("linear/f32.metal", "f32", F32, 140),
        ("linear/f32.metal", "f32", F32, 37),
        ("linear/f16.metal", "f16", F16, 532),
        ("linear/f16.metal", "f16", F16, 35),
        ("linear/bf16.metal", "bf16", BF16, 68),
        ("linear/bf16.metal", "bf16", BF16, 33),
        ("linear/q4_0.metal", "q4_0", Q4_0, 96),
        ("linear/q4_1.metal", "q4_1", Q4_1, 544),
        ("linear/q5_0.metal", "q5_0", Q5_0, 96),
        ("linear/q5_1.metal", "q5_1", Q5_1, 96),
        ("linear/q8_0.metal", "q8_0", Q8_0, 96),
        ("linear/q2_k.metal", "q2_k", Q2_K, 512),
        ("linear/q3_k.metal", "q3_k", Q3_K, 256),
        ("linear/q4_k.metal", "q4_k", Q4_K, 768),
        ("linear/q5_k.metal", "q5_k", Q5_K, 256),
        ("linear/q6_k.metal", "q6_k", Q6_K, 512),
        ("linear/iq4_nl.metal", "iq4_nl", IQ4_NL, 96),
        ("linear/iq4_xs.metal", "iq4_xs", IQ4_XS, 256),
        ("linear/mxfp4.metal", "mxfp4", MXFP4, 96),
        ("linear/nvfp4.metal", "nvfp4", NVFP4, 192),
        ("linear/iq1_s.metal", "iq1_s", IQ1_S, 256),
        ("linear/iq1_m.metal", "iq1_m", IQ1_M, 512),
        ("linear/iq2_xxs.metal", "iq2_xxs", IQ2_XXS, 256),
        ("linear/iq2_xs.metal", "iq2_xs", IQ2_XS, 512),
        ("linear/iq2_s.metal", "iq2_s", IQ2_S, 256),
        ("linear/iq3_xxs.metal", "iq3_xxs", IQ3_XXS, 512),
        ("linear/iq3_s.metal", "iq3_s", IQ3_S, 256),
        ("linear/tq1_0.metal", "tq1_0", TQ1_0, 512),
        ("linear/tq2_0.metal", "tq2_0", TQ2_0, 256),
        ("linear/q1_0.metal", "q1_0", Q1_0, 384),
        ("linear/affine_2.metal", "affine_2", affine(2, 64, ScaleType::F16, false), 128),
        ("linear/affine_3.metal", "affine_3", affine(3, 32, ScaleType::BF16, false), 96),
        ("linear/affine_4.metal", "affine_4", affine(4, 64, ScaleType::F32, false), 192),
        ("linear/affine_5.metal", "affine_5", affine(5, 128, ScaleType::E8M0, true), 128),
        ("linear/affine_6.metal", "affine_6", affine(6, 32, ScaleType::F16, true), 96),
        ("linear/affine_8.metal", "affine_8", affine(8, 128, ScaleType::BF16, false), 256),
        ("linear/i8_rows.metal", "i8_rows", I8_ROWS, 41),
        ("linear/i16_rows.metal", "i16_rows", I16_ROWS, 40),
    ]
}

/// A launch with the constants of a type, and every flag off.
fn launch(file: &'static str, function: String, block: BlockType, n_in: usize) -> Launch {
    let mut launch = Launch::new(file, function);
    for flag in
        [NORM, BIAS, RESIDUAL, GATE, ARGMAX, SOFTCAP, OWN_INPUT, EXPERTS_SUM, BESIDE, UP, ROW_GATE, BOUNDED]
    {
        launch = launch.flag(flag, false);
    }
    let affine = match block {
        BlockType::Affine(affine) => affine,
        _ => Affine::new(4, 64, ScaleType::F16, false).unwrap(),
    };
    let scale = ScaleType::ALL.iter().position(|s| *s == affine.scale()).unwrap();
    launch
        .number(ACTIVATION, 0)
        .number(WEIGHTS, 1)
        .number(SPLIT, 1)
        .flag(SCALAR, !n_in.is_multiple_of(4))
        .number(AFFINE_GROUP, affine.group() as u32)
        .number(AFFINE_SCALE, scale as u32)
        .flag(AFFINE_SYMMETRIC, affine.is_symmetric())
        .flag(AFFINE_WIDE, false)
        .flag(14, false)
}

/// Alignment of the address of a type's codes: its decoder may rely on no more.
fn alignment(block: BlockType, n_in: usize) -> usize {
    use BlockType::*;
    match block {
        F32 if n_in.is_multiple_of(4) => 16,
        F16 | BF16 if n_in.is_multiple_of(4) => 8,
        Q4_K | Q5_K => 16,
        Q5_1 | IQ4_XS => 8,
        F32 | Q4_1 | Q2_K | NVFP4 => 4,
        MXFP4 | I8_ROWS => 1,
        _ => 2,
    }
}

/// Codes and planes of a weight, where they are aligned no better than they must be.
fn bind(launch: Launch, index: u32, weight: &Weight) -> Launch {
    bind_at(launch, [3, 6, 9].map(|first| first + index), weight)
}

/// Like `bind`, at any buffers.
fn bind_at(launch: Launch, [codes, scales, offsets]: [u32; 3], weight: &Weight) -> Launch {
    let planes = weight.planes.as_slices();
    let plane = |bytes: &[u8]| if bytes.is_empty() { vec![0; 16] } else { bytes.to_vec() };
    launch
        .bytes(codes, &weight.data)
        .bytes(scales, &plane(planes.scales))
        .bytes(offsets, &plane(planes.biases))
        .at(codes, alignment(weight.block, weight.n_cols()))
        .at(scales, 4)
        .at(offsets, 4)
}

/// LinearArguments.
fn arguments(block: BlockType, n_in: usize, per_token: usize, n_out: &[usize]) -> [u32; 16] {
    let n = |i: usize| n_out.get(i).copied().unwrap_or(0) as u32;
    let (row, scale) = (block.row_bytes(n_in) as u32, block.row_scale_bytes(n_in) as u32);
    [
        n_in as u32,
        per_token as u32,
        n_in as u32,
        row,
        scale,
        n(0),
        n(1),
        n(2),
        1e-5f32.to_bits(),
        3f32.to_bits(),
        0,
        0,
        0,
        0,
        0,
        0,
    ]
}

/// `x W^T` in f64, and the size of the terms of each product: the sum of magnitudes, plus that of
/// the row's largest value times x. Kernels that accumulate codes and offsets apart add terms of
/// that size.
fn products(x: &[f32], n_in: usize, w: &Weight) -> Vec<(f64, f64)> {
    let n_out = w.n_rows();
    let mut values = vec![0.0; n_out * n_in];
    w.decode_rows(0..n_out, &mut values);
    let mut out = vec![];
    for x in x.chunks_exact(n_in) {
        for w in values.chunks_exact(n_in) {
            let pairs = || x.iter().zip(w).map(|(x, w)| (f64::from(*x), f64::from(*w)));
            let most = w.iter().fold(0.0f64, |m, w| m.max(f64::from(w.abs())));
            let size: f64 = pairs().map(|(x, w)| x.abs() * (w.abs() + 2.0 * most)).sum();
            out.push((pairs().map(|(x, w)| x * w).sum(), size));
        }
    }
    out
}

/// Checks that each error is at most `bound` times the summed magnitudes.
fn check(what: &str, found: &[f32], expected: &[(f64, f64)], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, (value, size))) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - value).abs();
        assert!(
            error <= bound * size + 1e-30,
            "{what}: output {i} is {found}, expected {value}, {:e} of its size",
            error / size
        );
    }
}

/// Sums in f32, of at most a few hundred terms a lane: 2^-24 each.
const F32_BOUND: f64 = 1e-6;
/// Operands rounded to half: 2^-11 each, a few of which add up; sums in f32.
const HALF_BOUND: f64 = 7e-4;

fn gemm_bound(block: BlockType) -> f64 {
    use BlockType::*;
    if matches!(block, F32 | BF16 | I8_ROWS | I16_ROWS) { F32_BOUND } else { HALF_BOUND }
}

fn normal(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn gemv(file: &'static str, name: &str, n: usize, n_rows: usize, x: &[f32], w: &Weight) -> Launch {
    let (n_in, n_out) = (w.n_cols(), w.n_rows());
    let launch = launch(file, format!("linear_{name}_gemv_{n}"), w.block, n_in)
        .arguments(&arguments(w.block, n_in, 1, &[n_out]))
        .floats(1, x)
        .output(16, n_rows * n_out)
        .words(20, &step(n_rows, 0, 1, 0, 0))
        .grid([n_out.div_ceil(4).div_ceil(2), n_rows.div_ceil(n), 1], 64);
    bind(launch, 0, w)
}

/// A product by 8 rows of the weight at a time, of one row of x in each row of threadgroups.
fn gemv_wide(file: &'static str, name: &str, n_rows: usize, x: &[f32], w: &Weight) -> Launch {
    let mut launch = gemv(file, name, 1, n_rows, x, w);
    launch.function += "x8";
    launch.grid([w.n_rows().div_ceil(8).div_ceil(2), n_rows, 1], 64)
}

fn gemm(file: &'static str, name: &str, bx: usize, n_rows: usize, x: &[f32], w: &Weight) -> Launch {
    let (n_in, n_out) = (w.n_cols(), w.n_rows());
    let launch = launch(file, format!("linear_{name}_gemm_{bx}"), w.block, n_in)
        .arguments(&arguments(w.block, n_in, 1, &[n_out]))
        .floats(1, x)
        .output(16, n_rows * n_out)
        .words(20, &step(n_rows, 0, 1, 0, 0))
        .grid([n_rows.div_ceil(bx), n_out.div_ceil(64), 1], 128);
    bind(launch, 0, w)
}

/// Types with one plane less each: blocks, levels, planes.
fn sample() -> Vec<(&'static str, &'static str, BlockType, usize)> {
    types().into_iter().filter(|t| ["q4_0", "iq4_nl", "affine_4"].contains(&t.1)).collect()
}

/// x / sqrt(mean(x^2) + 1e-5) * norm, each row.
fn normalised(x: &[f32], norm: &[f32]) -> Vec<f32> {
    let row = |x: &[f32]| {
        let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
        x.iter().zip(norm).map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(norm.len()).flat_map(row).collect()
}

fn with_bias(products: &[(f64, f64)], bias: &[f32]) -> Vec<(f64, f64)> {
    let columns = bias.iter().cycle();
    products.iter().zip(columns).map(|((v, s), b)| (v + f64::from(*b), s + f64::from(b.abs()))).collect()
}

/// The activation in f64, as device::Activation defines it.
fn activate(kind: usize, x: f64) -> f64 {
    let kinds =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::Sigmoid];
    match kinds[kind] {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + device_reference::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Identity => x,
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// `activation(gate) * up`: its slope in the gate is at most 1.2, its size at most the gate's.
fn gated(kind: usize, gate: &[(f64, f64)], up: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let one = |((g, gs), (u, us)): (&(f64, f64), &(f64, f64))| {
        let a = activate(kind, *g);
        (a * u, 1.2 * gs * u.abs() + a.abs() * us + u.abs() + 1.0)
    };
    gate.iter().zip(up).map(one).collect()
}

/// A source with a few kernels of some types, by the names of their functions: `linear_*_gemv_1`
/// and so on.
fn source_of(types: &[&str], kernels: &[&str]) -> String {
    let mut source =
        "#include <metal_stdlib>\nusing namespace metal;\n#include \"instantiate.h\"\n".to_owned();
    // Every template of a header must be instantiated.
    for (what, header) in [
        ("gemv", "linear/gemv.h"),
        ("merged", "linear/merged.h"),
        ("joined", "linear/joined.h"),
        ("gemm", "linear/gemm.h"),
        ("expert", "expert_linear.h"),
        ("embed", "embed.h"),
    ] {
        if kernels.iter().any(|kernel| kernel.contains(what)) {
            source += &format!("#include \"{header}\"\n");
        }
    }
    for name in types {
        let (header, decoder) = match name.split_once('_') {
            Some(("affine", bits)) => ("affine".to_owned(), format!("Affine<{bits}>")),
            Some(("i8", _)) => ("affine".to_owned(), "IntegerRow<char>".to_owned()),
            Some(("i16", _)) => ("affine".to_owned(), "IntegerRow<short>".to_owned()),
            _ => ((*name).to_owned(), name.to_uppercase()),
        };
        source += &format!("#include \"linear/{header}.h\"\n");
        for kernel in kernels {
            let (head, n) = kernel.rsplit_once('_').unwrap();
            let template = match (head, n) {
                ("linear_*_gemv", n) => {
                    let (n, rows) = n.split_once('x').unwrap_or((n, "4"));
                    format!("linear_gemv<{decoder}, {decoder}, {n}, {rows}>")
                }
                ("linear_*_gemm", n) => format!("linear_gemm<{decoder}, {n}>"),
                ("linear_*", "merged") => format!("linear_merged<{decoder}>"),
                ("linear_*", "joined") => format!("linear_joined<{decoder}, {decoder}>"),
                ("expert_linear_*", "gemv") => format!("expert_gemv<{decoder}, 4>"),
                ("expert_linear_*", what) => format!("expert_{what}<{decoder}>"),
                ("embed", "*") => format!("embed<{decoder}>"),
                _ => panic!("{kernel}"),
            };
            source += &format!("INSTANTIATE({}, {template})\n", kernel.replace('*', name));
        }
    }
    source
}
