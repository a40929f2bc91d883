//! The kernels that multiply with weights, through the emulator, against plain Rust in f64 over the codecs' values. One file: all
//! share the list of types, the reference and the launches.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::launch::{Launch, Sanitizer, compile_strict, step};
use device::testing::{Rng, stored};
use device::{Activation, Weight};
use formats::{Affine, BlockType, ScaleType};

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

/// Every type that has a file, with a name and a few columns that it can have.
fn types() -> Vec<(&'static str, &'static str, BlockType, usize)> {
    use BlockType::*;
    let affine = |bits, group, scale, symmetric| {
        BlockType::Affine(formats::Affine::new(bits, group, scale, symmetric).unwrap())
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
    for flag in [NORM, BIAS, RESIDUAL, GATE, ARGMAX, SOFTCAP, OWN_INPUT, EXPERTS_SUM] {
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
        .flag(14, false)
}

/// What the address of a type's codes is a multiple of: all that its decoder may rely on.
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
    let planes = weight.planes.as_slices();
    let plane = |bytes: &[u8]| if bytes.is_empty() { vec![0; 16] } else { bytes.to_vec() };
    launch
        .bytes(3 + index, &weight.data)
        .bytes(6 + index, &plane(planes.scales))
        .bytes(9 + index, &plane(planes.biases))
        .at(3 + index, alignment(weight.block, weight.n_cols()))
        .at(6 + index, 4)
        .at(9 + index, 4)
}

/// LinearArguments.
fn arguments(block: BlockType, n_in: usize, per_token: usize, n_out: &[usize]) -> [u32; 12] {
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
    ]
}

/// `x W^T` in f64, and for each product the size of what was added: the sum of magnitudes, and of the row's largest value times
/// x, as kernels that keep codes and offsets apart add terms of that size.
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

/// Each value within `bound` of the size of what was added.
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

#[test]
fn gemv_of_every_type_and_number_of_rows() {
    let mut rng = Rng::new(1);
    for (file, name, block, n_in) in types() {
        let n_out = 11;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let x = normal(&mut rng, 9 * n_in);
        let expected = products(&x, n_in, &w);
        let mut bits: Vec<f32> = vec![];
        // Nine rows: the last block of 2, 4 and 8 is not full.
        for n in [1, 2, 4, 8] {
            let out = gemv(file, name, n, 9, &x, &w).run().floats(16);
            check(&format!("{name} {n_in} gemv_{n}"), &out, &expected, F32_BOUND);
            if n == 1 {
                bits = out;
            } else {
                assert!(bits == out, "{name} gemv_{n}: a row has other bits than alone");
            }
        }
    }
}

fn gemm(file: &'static str, name: &str, bx: usize, n_rows: usize, x: &[f32], w: &Weight) -> Launch {
    let (n_in, n_out) = (w.n_cols(), w.n_rows());
    let launch = launch(file, format!("linear_{name}_gemm_{bx}"), w.block, n_in)
        .arguments(&arguments(w.block, n_in, 1, &[n_out]))
        .floats(1, x)
        .output(16, n_rows * n_out)
        .words(20, &step(n_rows, 0, 1, 0, 0))
        .grid([n_out.div_ceil(64), n_rows.div_ceil(bx), 1], 128);
    bind(launch, 0, w)
}

#[test]
fn gemm_of_every_type() {
    let mut rng = Rng::new(2);
    for (i, (file, name, block, n_in)) in types().into_iter().enumerate() {
        let (n_out, n_rows) = (70, 35);
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let x = normal(&mut rng, n_rows * n_in);
        let expected = products(&x, n_in, &w);
        let bx = [32, 64][i % 2];
        let out = gemm(file, name, bx, n_rows, &x, &w).run().floats(16);
        check(&format!("{name} {n_in} gemm_{bx}"), &out, &expected, gemm_bound(block));
    }
}

/// Half of a tile's simdgroups have the first half of its rows of x.
#[test]
fn simdgroups_without_rows_multiply_nothing() {
    let mut rng = Rng::new(14);
    let (n_in, n_out, block) = (96, 70, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    for (bx, n_rows, halves) in [(32, 16, 1), (32, 17, 2), (64, 9, 1), (64, 33, 2), (64, 96, 3)] {
        let x = normal(&mut rng, n_rows * n_in);
        let outcome = gemm("linear/q4_0.metal", "q4_0", bx, n_rows, &x, &w).run();
        check(&format!("{n_rows} rows by {bx}"), &outcome.floats(16), &products(&x, n_in, &w), HALF_BOUND);
        // Two tiles of the weight, each of 64 rows by bx / 2 of x.
        let products = halves * 2 * (64 / 8) * (bx / 16) * (n_in / 8);
        assert_eq!(outcome.counters.simdgroup.matrix_multiplies, products as u64, "{n_rows} rows by {bx}");
    }
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

#[test]
fn gemv_of_three_weights_after_a_norm_however_its_columns_are_split() {
    let mut rng = Rng::new(3);
    for (file, name, block, n_in) in sample() {
        let n_out = [9, 4, 6];
        let weights = n_out.map(|n_out| stored(&mut rng, "w", n_out, n_in, block, 0.3));
        let biases = n_out.map(|n_out| normal(&mut rng, n_out));
        let (x, norm) = (normal(&mut rng, 3 * n_in), normal(&mut rng, n_in));
        for split in [1, 2, 4] {
            let mut launch = launch(file, format!("linear_{name}_gemv_4"), block, n_in)
                .flag(NORM, true)
                .flag(BIAS, true)
                .number(WEIGHTS, 3)
                .number(SPLIT, split as u32)
                .arguments(&arguments(block, n_in, 1, &n_out))
                .floats(1, &x)
                .floats(2, &norm)
                .words(20, &step(3, 0, 1, 0, 0))
                .grid([(3usize + 1 + 2).div_ceil(4 / split), 1, 1], 128);
            for i in 0..3 {
                launch = bind(launch, i as u32, &weights[i])
                    .floats(12 + i as u32, &biases[i])
                    .output(16 + i as u32, 3 * n_out[i]);
            }
            let outcome = launch.run();
            for i in 0..3 {
                let expected = products(&normalised(&x, &norm), n_in, &weights[i]);
                let expected = with_bias(&expected, &biases[i]);
                check(
                    &format!("{name} split {split} weight {i}"),
                    &outcome.floats(16 + i as u32),
                    &expected,
                    F32_BOUND,
                );
            }
        }
    }
}

/// The activation in f64, as device::Activation defines it.
fn activate(kind: usize, x: f64) -> f64 {
    let kinds =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::Sigmoid];
    match kinds[kind] {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::GeluErf => {
            0.5 * x * (1.0 + device::interpreter::erf(x * std::f64::consts::FRAC_1_SQRT_2))
        }
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
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

#[test]
fn gate_and_up_with_every_activation() {
    let mut rng = Rng::new(4);
    for (file, name, block, n_in) in sample() {
        for kind in 0..5 {
            let n_out = 35;
            let [gate, up] = [0, 1].map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1));
            let biases = [0, 1].map(|_| normal(&mut rng, n_out));
            let x = normal(&mut rng, 2 * n_in);
            let [g, u] = [(&gate, &biases[0]), (&up, &biases[1])]
                .map(|(w, bias)| with_bias(&products(&x, n_in, w), bias));
            let expected = gated(kind, &g, &u);
            for (function, grid, threads, bound) in [
                ("gemv_1", [18, 2, 1], 32, F32_BOUND),
                ("gemv_2", [9, 1, 1], 64, F32_BOUND),
                ("gemm_32", [2, 1, 1], 128, HALF_BOUND),
            ] {
                let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                    .flag(GATE, true)
                    .flag(BIAS, true)
                    .number(ACTIVATION, kind as u32)
                    .number(WEIGHTS, 2)
                    .arguments(&arguments(block, n_in, 1, &[n_out, n_out]))
                    .floats(1, &x)
                    .floats(12, &biases[0])
                    .floats(13, &biases[1])
                    .output(16, 2 * n_out)
                    .words(20, &step(2, 0, 1, 0, 0))
                    .grid(grid, threads);
                let out = bind(bind(launch, 0, &gate), 1, &up).run().floats(16);
                check(&format!("{name} {function} activation {kind}"), &out, &expected, bound);
            }
        }
    }
}

#[test]
fn residual_softcap_and_the_largest_output() {
    let mut rng = Rng::new(5);
    for (file, name, block, n_in) in sample() {
        let n_out = 67;
        let mut w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        // Two equal rows: the first of them is the largest where they are.
        let row = block.row_bytes(n_in);
        let mut data = w.data.to_vec();
        data.copy_within(5 * row..6 * row, 60 * row);
        if name == "affine_4" {
            let scale = block.row_scale_bytes(n_in);
            let mut planes = [w.planes.as_slices().scales.to_vec(), w.planes.as_slices().biases.to_vec()];
            planes.iter_mut().for_each(|p| p.copy_within(5 * scale..6 * scale, 60 * scale));
            w.planes.scales = Some(formats::Bytes::from_slice(&planes[0]));
            w.planes.biases = Some(formats::Bytes::from_slice(&planes[1]));
        }
        w.data = formats::Bytes::from_slice(&data);
        let mut decoded = vec![0.0; n_in];
        w.decode_rows(5..6, &mut decoded);
        let mut x = normal(&mut rng, 3 * n_in);
        x[n_in..2 * n_in].copy_from_slice(&decoded.iter().map(|v| v * 10.0).collect::<Vec<_>>());
        let residual = normal(&mut rng, 3 * n_out);

        // Softcap and argmax of the rows of outputs: three, whatever the tokens.
        for (n, split) in [(1, 1), (4, 1), (4, 2)] {
            let groups = n_out.div_ceil(4).div_ceil(4 / split);
            let launch = launch(file, format!("linear_{name}_gemv_{n}"), block, n_in)
                .flag(SOFTCAP, true)
                .flag(ARGMAX, true)
                .number(SPLIT, split as u32)
                .arguments(&arguments(block, n_in, 0, &[n_out]))
                .floats(1, &x)
                .output(16, 3 * n_out)
                .output(19, 3 * groups * 2)
                .words(20, &step(77, 3, 1, 0, 0))
                .grid([groups, 3usize.div_ceil(n), 1], 128);
            let outcome = bind(launch, 0, &w).run();
            let out = outcome.floats(16);
            let capped = |(v, s): &(f64, f64)| (3.0 * (v / 3.0).tanh(), s + 3.0);
            let expected: Vec<_> = products(&x, n_in, &w).iter().map(capped).collect();
            check(name, &out, &expected, F32_BOUND);
            let partials = outcome.words(19);
            for (row, out) in out.chunks_exact(n_out).enumerate() {
                let best = |best: usize, i: usize| if out[i] > out[best] { i } else { best };
                let expected = (0..n_out).fold(0, best);
                let partials = &partials[row * groups * 2..(row + 1) * groups * 2];
                let found = partials.chunks_exact(2).map(|p| (f32::from_bits(p[0]), p[1] as usize));
                let found = found.reduce(|a, b| if b.0 > a.0 { b } else { a }).unwrap();
                assert_eq!(found, (out[expected], expected), "{name} row {row}");
            }
            assert_eq!(out[n_out + 5], out[n_out + 60]);
        }

        let expected: Vec<_> = products(&x, n_in, &w)
            .iter()
            .zip(&residual)
            .map(|((v, s), r)| (v + f64::from(*r), s + f64::from(r.abs())))
            .collect();
        for (function, grid, threads, bound) in
            [("gemv_2", [9, 2, 1], 64, F32_BOUND), ("gemm_64", [2, 1, 1], 128, HALF_BOUND)]
        {
            let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(RESIDUAL, true)
                .arguments(&arguments(block, n_in, 1, &[n_out]))
                .floats(1, &x)
                .floats(15, &residual)
                .output(16, 3 * n_out)
                .words(20, &step(3, 0, 1, 0, 0))
                .grid(grid, threads);
            check(&format!("{name} {function}"), &bind(launch, 0, &w).run().floats(16), &expected, bound);
        }
    }
}

#[test]
fn gemm_of_three_weights() {
    let mut rng = Rng::new(6);
    let (n_in, n_out, n_rows) = (96, [70, 64, 3], 33);
    let block = BlockType::Q4_0;
    let weights = n_out.map(|n_out| stored(&mut rng, "w", n_out, n_in, block, 0.3));
    let biases = n_out.map(|n_out| normal(&mut rng, n_out));
    let x = normal(&mut rng, n_rows * n_in);
    let mut launch = launch("linear/q4_0.metal", "linear_q4_0_gemm_32".to_owned(), block, n_in)
        .flag(BIAS, true)
        .number(WEIGHTS, 3)
        .arguments(&arguments(block, n_in, 1, &n_out))
        .floats(1, &x)
        .words(20, &step(n_rows, 0, 1, 0, 0))
        .grid([2 + 1 + 1, 2, 1], 128);
    for i in 0..3 {
        launch = bind(launch, i as u32, &weights[i])
            .floats(12 + i as u32, &biases[i])
            .output(16 + i as u32, n_rows * n_out[i]);
    }
    let outcome = launch.run();
    for i in 0..3 {
        let expected = with_bias(&products(&x, n_in, &weights[i]), &biases[i]);
        check(&format!("weight {i}"), &outcome.floats(16 + i as u32), &expected, HALF_BOUND);
    }
}

#[test]
fn halves_saturate() {
    // 1e6 is 65504 as a half: the product of a GEMM is large and finite.
    let w = stored(&mut Rng::new(7), "w", 64, 32, BlockType::Q8_0, 0.3);
    let out = gemm("linear/q8_0.metal", "q8_0", 32, 1, &[1e6; 32], &w).run().floats(16);
    assert!(out.iter().all(|v| v.is_finite()));
}

#[test]
fn embed_decodes_rows_of_every_type() {
    let mut rng = Rng::new(8);
    for (file, name, block, n_in) in types() {
        let w = stored(&mut rng, "w", 5, n_in, block, 0.3);
        let tokens = [4, 0, 2];
        let mut values = vec![0.0; 5 * n_in];
        w.decode_rows(0..5, &mut values);
        let (row, scale) = (block.row_bytes(n_in) as u32, block.row_scale_bytes(n_in) as u32);
        let launch = launch(file, format!("embed_{name}"), block, n_in)
            .arguments(&[n_in as u32, row, scale, 2.5f32.to_bits()])
            .words(1, &tokens)
            .output(16, 3 * n_in)
            .words(20, &step(3, 0, 1, 0, 0))
            .grid([1, 3, 1], 32);
        let out = bind(launch, 0, &w).run().floats(16);
        for (token, out) in tokens.iter().zip(out.chunks_exact(n_in)) {
            let row = &values[*token as usize * n_in..][..n_in];
            let most = row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (i, (out, value)) in out.iter().zip(row).enumerate() {
                // The factors of a value are multiplied in another order, and perhaps fused with the offset.
                assert!(
                    (out - 2.5 * value).abs() <= 1e-6 * most,
                    "{name} column {i}: {out}, expected {}",
                    2.5 * value
                );
            }
        }
    }
}

/// A stack of experts in one buffer, in an order of its own: the buffer, and bytes to codes, scales and offsets of each.
fn stack(experts: &[Weight]) -> (Vec<u8>, Vec<u8>) {
    let (mut bytes, mut places) = (vec![0; 64], vec![[0u64; 3]; experts.len()]);
    let mut put = |data: &[u8]| {
        let at = bytes.len() as u64;
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        at
    };
    for (expert, w) in experts.iter().enumerate().rev() {
        let planes = w.planes.as_slices();
        places[expert] = [put(&w.data), put(planes.scales), put(planes.biases)];
    }
    let places =
        (0..3).flat_map(|plane| places.iter().map(move |p| p[plane])).flat_map(u64::to_le_bytes).collect();
    (bytes, places)
}

/// LinearArguments of experts.
fn expert_arguments(block: BlockType, n_in: usize, n_out: usize, n_experts: usize, k: usize) -> [u32; 12] {
    let mut words = arguments(block, n_in, 1, &[n_out]);
    (words[10], words[11]) = (n_experts as u32, k as u32);
    words
}

#[test]
fn experts_one_row_at_a_time() {
    let mut rng = Rng::new(9);
    for (file, name, block, n_in) in sample() {
        let (n_experts, k, n_out, n) = (5, 3, 7, 2);
        let [gates, ups] = [0, 1]
            .map(|_| Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1))));
        let ids = [4u32, 0, 2, 1, 4, 3];
        let chosen = [0.5f32, 0.3, 0.2, 0.1, 0.7, 0.2];
        let ((gate_bytes, gate_places), (up_bytes, up_places)) = (stack(&gates), stack(&ups));
        let (x, norm) = (normal(&mut rng, n * n_in), normal(&mut rng, n_in));
        let own = normal(&mut rng, n * k * n_in);
        let residual = normal(&mut rng, n * n_out);
        let base = || {
            launch(file, format!("expert_linear_{name}_gemv"), block, n_in)
                .arguments(&expert_arguments(block, n_in, n_out, n_experts, k))
                .bytes(3, &gate_bytes)
                .bytes(5, &gate_places)
                .words(20, &step(n, 0, 1, 0, 0))
                .words(21, &ids)
        };
        let of = |weights: &[Weight], x: &[f32], own: bool| -> Vec<(f64, f64)> {
            let x_of = |pair: usize| &x[if own { pair } else { pair / k } * n_in..][..n_in];
            (0..n * k).flat_map(|pair| products(x_of(pair), n_in, &weights[ids[pair] as usize])).collect()
        };

        // One product, each with its own input.
        let out =
            base().flag(OWN_INPUT, true).floats(1, &own).output(16, n * k * n_out).grid([1, n * k, 1], 64);
        check(name, &out.run().floats(16), &of(&gates, &own, true), F32_BOUND);

        // Norm, gate, up, activation.
        let gate_up = base()
            .flag(NORM, true)
            .flag(GATE, true)
            .floats(1, &x)
            .floats(2, &norm)
            .bytes(4, &up_bytes)
            .bytes(6, &up_places)
            .output(16, n * k * n_out)
            .grid([2, n * k, 1], 64);
        let x_norm = normalised(&x, &norm);
        let expected = gated(0, &of(&gates, &x_norm, false), &of(&ups, &x_norm, false));
        check(name, &gate_up.run().floats(16), &expected, F32_BOUND);

        // Down, weighted sum, residual.
        let down = base()
            .flag(OWN_INPUT, true)
            .flag(EXPERTS_SUM, true)
            .flag(RESIDUAL, true)
            .floats(1, &own)
            .floats(15, &residual)
            .floats(22, &chosen)
            .output(16, n * n_out)
            .grid([2, n, 1], 32);
        let each = of(&gates, &own, true);
        let sum = |at: usize| {
            let terms = (0..k).map(|j| (at / n_out * k + j, at % n_out));
            let terms = terms.map(|(pair, c)| (f64::from(chosen[pair]), each[pair * n_out + c]));
            let r = f64::from(residual[at]);
            terms.fold((r, r.abs()), |(v, s), (w, (tv, ts))| (v + w * tv, s + w * ts))
        };
        let expected: Vec<_> = (0..n * n_out).map(sum).collect();
        check(name, &down.run().floats(16), &expected, F32_BOUND);
    }
}

#[test]
fn experts_in_groups_of_rows() {
    let mut rng = Rng::new(10);
    for (file, name, block, n_in) in sample() {
        let (n_experts, k, n_out, n) = (4, 2, 40, 41);
        let [gates, ups] = [0, 1]
            .map(|_| Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1))));
        // Expert 2 is never chosen, expert 0 by more rows than a tile has.
        let ids: Vec<u32> =
            (0..n).flat_map(|i| [if i < 36 { 0 } else { 3 }, if i % 5 == 0 { 3 } else { 1 }]).collect();
        let x = normal(&mut rng, n * n_in);
        let n_tiles = n_experts + n * k / 32;
        let words = expert_arguments(block, n_in, n_out, n_experts, k);
        let groups = Launch::new("expert_groups.metal", "expert_groups")
            .arguments(&words)
            .words(20, &step(n, 0, 1, 0, 0))
            .words(21, &ids)
            .output(23, n * k)
            .output(24, n_tiles * 4)
            .grid([1, 1, 1], 64)
            .run();
        let mut order: Vec<u32> = (0..(n * k) as u32).collect();
        order.sort_by_key(|pair| ids[*pair as usize]);
        assert_eq!(groups.words(23), order);
        let tiles = groups.words(24);
        let mut covered: Vec<u32> = vec![];
        for tile in tiles.chunks_exact(4) {
            for pair in &order[tile[1] as usize..][..tile[2] as usize] {
                assert_eq!(ids[*pair as usize], tile[0]);
                covered.push(*pair);
            }
        }
        assert_eq!(covered, order, "every pair is in one tile");

        let ((gate_bytes, gate_places), (up_bytes, up_places)) = (stack(&gates), stack(&ups));
        let of = |weights: &[Weight]| -> Vec<(f64, f64)> {
            (0..n * k)
                .flat_map(|p| products(&x[p / k * n_in..][..n_in], n_in, &weights[ids[p] as usize]))
                .collect()
        };
        for gate in [false, true] {
            let gemm = launch(file, format!("expert_linear_{name}_gemm"), block, n_in)
                .flag(GATE, gate)
                .arguments(&words)
                .floats(1, &x)
                .bytes(3, &gate_bytes)
                .bytes(4, &up_bytes)
                .bytes(5, &gate_places)
                .bytes(6, &up_places)
                .output(16, n * k * n_out)
                .words(23, &order)
                .words(24, &tiles)
                .grid([if gate { 2 } else { 1 }, n_tiles, 1], 128)
                .run();
            let expected = if gate { gated(0, &of(&gates), &of(&ups)) } else { of(&gates) };
            check(&format!("{name} gate {gate}"), &gemm.floats(16), &expected, HALF_BOUND);
        }

        // Each pair with its own input.
        let own = normal(&mut rng, n * k * n_in);
        let gemm = launch(file, format!("expert_linear_{name}_gemm"), block, n_in)
            .flag(OWN_INPUT, true)
            .arguments(&words)
            .floats(1, &own)
            .bytes(3, &gate_bytes)
            .bytes(5, &gate_places)
            .output(16, n * k * n_out)
            .words(23, &order)
            .words(24, &tiles)
            .grid([1, n_tiles, 1], 128)
            .run();
        let expected: Vec<_> = (0..n * k)
            .flat_map(|p| products(&own[p * n_in..][..n_in], n_in, &gates[ids[p] as usize]))
            .collect();
        check(&format!("{name} own input"), &gemm.floats(16), &expected, HALF_BOUND);
    }
}

#[test]
fn every_file_passes_the_check_of_address_spaces() {
    for (file, _) in ingle_device_metal::kernels::FILES {
        compile_strict(file);
    }
}

#[test]
fn a_gemv_reads_its_weight_once_and_its_row_s_bytes_only() {
    let mut rng = Rng::new(11);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_gemv_8"]);
    for (n, n_rows) in [(1, 1), (8, 8)] {
        let x = normal(&mut rng, n_rows * n_in);
        let counters = gemv("linear/q4_0.metal", "q4_0", n, n_rows, &x, &w).at(3, 0).count(&source);
        let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
        // Every byte of the blocks is loaded, none twice: but for d, which two lanes share.
        let bytes = w.data.len() as u64;
        assert_eq!(of(3).read, bytes + (n_out * n_in / 32 * 2) as u64);
        assert_eq!(of(3).read_once, bytes);
        assert_eq!(of(1).read_once, (n_rows * n_in * 4) as u64);
        assert_eq!(of(16).written, (n_rows * n_out * 4) as u64);
        assert_eq!(counters.threadgroup_barriers, 0);
    }
}

/// A source with a few kernels of some types: `linear_q4_0_gemv_1` and so on.
fn source_of(types: &[&str], kernels: &[&str]) -> String {
    let mut source =
        "#include <metal_stdlib>\nusing namespace metal;\n#include \"instantiate.h\"\n".to_owned();
    for (kernel, header) in [
        ("gemv", "linear/gemv.h"),
        ("merged", "linear/merged.h"),
        ("gemm", "linear/gemm.h"),
        ("embed", "embed.h"),
    ] {
        if kernels.iter().any(|k| k.contains(kernel)) {
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
            let (name, kernel) = (kernel.replace('*', name), kernel.replace("_*_", "_"));
            source += &match kernel.split_once(|c: char| c.is_ascii_digit()) {
                Some((head, _)) => {
                    let (n, head) = (&kernel[head.len()..], head.trim_end_matches('_'));
                    let decoders =
                        if head == "linear_gemv" { format!("{decoder}, {decoder}") } else { decoder.clone() };
                    format!("INSTANTIATE({name}, {head}<{decoders}, {n}>)\n")
                }
                None => format!("INSTANTIATE({name}, {}<{decoder}>)\n", kernel.trim_end_matches("_*")),
            };
        }
    }
    source
}

#[test]
fn sanitizers_find_nothing_in_any_decoder() {
    let mut rng = Rng::new(12);
    let mut names: Vec<_> = types().iter().map(|t| t.1).collect();
    names.dedup();
    let source = source_of(&names, &["linear_*_gemv_1", "embed_*"]);
    for (file, name, block, n_in) in types() {
        let w = stored(&mut rng, "w", 3, n_in, block, 0.3);
        let x = normal(&mut rng, n_in);
        let out = gemv(file, name, 1, 1, &x, &w).sanitize(Sanitizer::AddressUndefined, &source);
        check(name, &out.floats(16), &products(&x, n_in, &w), F32_BOUND);
        let (row, scale) = (block.row_bytes(n_in) as u32, block.row_scale_bytes(n_in) as u32);
        let embed = launch(file, format!("embed_{name}"), block, n_in)
            .arguments(&[n_in as u32, row, scale, 1f32.to_bits()])
            .words(1, &[2])
            .output(16, n_in)
            .words(20, &step(1, 0, 1, 0, 0))
            .grid([1, 1, 1], 32);
        let out = bind(embed, 0, &w).sanitize(Sanitizer::AddressUndefined, &source).floats(16);
        assert!(out.iter().all(|v| v.is_finite()), "{name}");
    }
}

#[test]
fn sanitizers_find_nothing_where_threadgroup_memory_is_shared() {
    let mut rng = Rng::new(13);
    let (name, file, block, n_in) = ("iq4_nl", "linear/iq4_nl.metal", BlockType::IQ4_NL, 64);
    let source = source_of(&[name], &["linear_*_gemv_2", "linear_*_merged", "linear_*_gemm_32"]);
    let w = stored(&mut rng, "w", 67, n_in, block, 0.3);
    let x = normal(&mut rng, 5 * n_in);
    let (parts, residual) = (Parts::new(&mut rng, 4, 16, 3, true), normal(&mut rng, 67));
    let merged = with_bias(&products(&parts.merged(), n_in, &w), &residual);
    for sanitizer in [Sanitizer::Thread, Sanitizer::AddressUndefined] {
        let out = parts.launch(file, name, &w, &residual, None).sanitize(sanitizer, &source);
        check(name, &out.floats(16), &merged, F32_BOUND);
        let out = gemm(file, name, 32, 5, &x, &w).sanitize(sanitizer, &source);
        check(name, &out.floats(16), &products(&x, n_in, &w), HALF_BOUND);
        let out = gemv(file, name, 2, 2, &x, &w)
            .number(SPLIT, 2)
            .flag(NORM, true)
            .flag(ARGMAX, true)
            .floats(2, &[1.0; 64])
            .output(19, 2 * 2 * 17)
            .grid([17, 1, 1], 64)
            .sanitize(sanitizer, &source);
        let x = normalised(&x[..2 * n_in], &[1.0; 64]);
        check(name, &out.floats(16), &products(&x, n_in, &w), F32_BOUND);
        let groups = Launch::new("expert_groups.metal", "expert_groups")
            .arguments(&expert_arguments(block, n_in, 8, 3, 2))
            .words(20, &step(3, 0, 1, 0, 0))
            .words(21, &[2, 0, 0, 1, 2, 0])
            .output(23, 6)
            .output(24, 3 * 4)
            .grid([1, 1, 1], 64)
            .sanitize_file(sanitizer);
        assert_eq!(groups.words(23), [1, 2, 5, 3, 0, 4]);
    }
}

#[test]
fn the_last_of_three_weights_may_have_another_type() {
    use BlockType::*;
    let mut rng = Rng::new(14);
    let (n_in, n_out) = (512, [9, 5, 6]);
    for (name, block, last) in [
        ("q2_k_q4_k", Q2_K, Q4_K),
        ("q3_k_q5_k", Q3_K, Q5_K),
        ("q4_k_q5_k", Q4_K, Q5_K),
        ("q4_k_q6_k", Q4_K, Q6_K),
        ("q5_0_q8_0", Q5_0, Q8_0),
        ("q5_k_q6_k", Q5_K, Q6_K),
    ] {
        let weights =
            [(block, 0), (block, 1), (last, 2)].map(|(b, i)| stored(&mut rng, "w", n_out[i], n_in, b, 0.3));
        let (x, norm) = (normal(&mut rng, n_in), normal(&mut rng, n_in));
        let mut launch = launch("linear/mixed.metal", format!("linear_{name}_gemv_1"), block, n_in)
            .flag(NORM, true)
            .number(WEIGHTS, 3)
            .number(SPLIT, 2)
            .arguments(&arguments(block, n_in, 1, &n_out))
            .floats(1, &x)
            .floats(2, &norm)
            .words(20, &step(1, 0, 1, 0, 0))
            .grid([(3usize + 2 + 2).div_ceil(2), 1, 1], 128);
        for i in 0..3 {
            launch = bind(launch, i as u32, &weights[i]).output(16 + i as u32, n_out[i]);
        }
        let outcome = launch.run();
        for (i, weight) in weights.iter().enumerate() {
            let expected = products(&normalised(&x, &norm), n_in, weight);
            check(&format!("{name} weight {i}"), &outcome.floats(16 + i as u32), &expected, F32_BOUND);
        }
    }
}

/// Parts of a row that an attention left, as attention/parts.h says.
struct Parts {
    head_dim: usize,
    n_splits: usize,
    partials: Vec<f32>,
    totals: Vec<f32>,
    sinks: Option<Vec<f32>>,
}

impl Parts {
    fn new(rng: &mut Rng, n_heads: usize, head_dim: usize, n_splits: usize, has_sinks: bool) -> Parts {
        let n = n_heads * n_splits;
        let mut totals = normal(rng, 2 * n);
        totals.iter_mut().skip(1).step_by(2).for_each(|total| *total = 1.0 + total.abs());
        // A split without positions.
        totals[2..4].copy_from_slice(&[-1e30, 0.0]);
        let partials = normal(rng, n * head_dim.next_multiple_of(4));
        Parts { head_dim, n_splits, partials, totals, sinks: has_sinks.then(|| normal(rng, n_heads)) }
    }

    fn n_heads(&self) -> usize {
        self.totals.len() / 2 / self.n_splits
    }

    fn bind(&self, launch: Launch, first: u32) -> Launch {
        let launch = launch.floats(first, &self.partials).floats(first + 1, &self.totals);
        match &self.sinks {
            Some(sinks) => launch.floats(if first == 10 { 8 } else { 21 }, sinks),
            None => launch,
        }
    }

    /// The row that attention_merge makes of them.
    fn merged(&self) -> Vec<f32> {
        let mut arguments = [0; 24];
        (arguments[8], arguments[11]) = (self.n_heads() as u32, self.n_splits as u32);
        let launch = Launch::new("attention.metal", "attention_merge")
            .number(32, self.head_dim as u32)
            .flag(35, self.sinks.is_some())
            .arguments(&arguments)
            .words(1, &step(1, 0, 1, 0, 0))
            .output(9, self.n_heads() * self.head_dim)
            .grid([self.n_heads(), 1, 1], 64);
        self.bind(launch, 10).run().floats(9)
    }

    /// One row of products of what they become.
    fn launch(
        &self,
        file: &'static str,
        name: &str,
        w: &Weight,
        residual: &[f32],
        bias: Option<&[f32]>,
    ) -> Launch {
        let (n_in, n_out) = (w.n_cols(), w.n_rows());
        let mut words = arguments(w.block, n_in, 1, &[n_out]).to_vec();
        let has_sinks = usize::from(self.sinks.is_some());
        words.extend([self.n_heads(), self.head_dim, self.n_splits, has_sinks].map(|n| n as u32));
        let launch = launch(file, format!("linear_{name}_merged"), w.block, n_in)
            .flag(RESIDUAL, true)
            .flag(BIAS, bias.is_some())
            .number(SPLIT, 2)
            .arguments(&words)
            .floats(12, bias.unwrap_or(&[]))
            .floats(15, residual)
            .output(16, n_out)
            .memory(n_in * 4)
            .grid([n_out.div_ceil(4).div_ceil(2), 1, 1], 128);
        bind(self.bind(launch, 22), 0, w)
    }
}

/// The bits of attention_merge and of a product, one after the other.
#[test]
fn a_product_joins_the_parts_of_the_attention_before_it() {
    let mut rng = Rng::new(16);
    for (name, n_heads, head_dim, n_splits) in [
        ("q4_0", 3, 32, 5),
        ("iq4_nl", 4, 24, 3),
        ("affine_4", 2, 96, 4),
        ("f32", 14, 10, 2),
        ("i8_rows", 41, 1, 7),
    ] {
        let (file, _, block, n_in) = types().into_iter().find(|t| t.1 == name).unwrap();
        assert_eq!(n_in, n_heads * head_dim);
        let n_out = 11;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let parts = Parts::new(&mut rng, n_heads, head_dim, n_splits, n_heads % 2 == 0);
        let (residual, bias) = (normal(&mut rng, n_out), normal(&mut rng, n_out));
        let bias = (n_splits != 3).then_some(&bias[..]);
        let found = parts.launch(file, name, &w, &residual, bias).run().floats(16);

        let x = parts.merged();
        let apart = launch(file, format!("linear_{name}_gemv_1"), block, n_in)
            .flag(RESIDUAL, true)
            .flag(BIAS, bias.is_some())
            .number(SPLIT, 2)
            .arguments(&arguments(block, n_in, 1, &[n_out]))
            .floats(1, &x)
            .floats(12, bias.unwrap_or(&[]))
            .floats(15, &residual)
            .output(16, n_out)
            .words(20, &step(1, 0, 1, 0, 0))
            .grid([2, 1, 1], 128);
        assert_eq!(found, bind(apart, 0, &w).run().floats(16), "{name}");
        let expected = with_bias(&products(&x, n_in, &w), &residual);
        let expected = with_bias(&expected, bias.unwrap_or(&[0.0; 11]));
        check(name, &found, &expected, F32_BOUND);
    }
}

/// What a perfect cache reads: the weight once, the parts once; nothing is written but the row.
#[test]
fn a_product_of_parts_reads_each_once() {
    let mut rng = Rng::new(17);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let parts = Parts::new(&mut rng, 8, 64, 5, false);
    let residual = normal(&mut rng, n_out);
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_merged"]);
    let launch = parts.launch("linear/q4_0.metal", "q4_0", &w, &residual, None).at(3, 0);
    let counters = launch.count(&source);
    let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
    assert_eq!(of(3).read_once, w.data.len() as u64);
    assert_eq!(of(22).read_once, parts.partials.len() as u64 * 4);
    assert_eq!(of(23).read_once, parts.totals.len() as u64 * 4);
    let (read, written) = counters.device_bytes();
    assert_eq!(written, n_out as u64 * 4);
    let least = w.data.len() + (parts.partials.len() + parts.totals.len() + n_out) * 4;
    assert_eq!(read, least as u64);
}

#[test]
fn steps_without_rows_write_nothing() {
    let mut rng = Rng::new(15);
    let w = stored(&mut rng, "w", 9, 64, BlockType::Q4_0, 0.3);
    let x = normal(&mut rng, 64);
    let file = "linear/q4_0.metal";
    // Outputs, of which there are none; the grid is that of one.
    let none = |launch: Launch| {
        let launch =
            launch.arguments(&arguments(BlockType::Q4_0, 64, 0, &[9])).words(20, &step(1, 0, 1, 0, 0));
        assert!(launch.output(16, 9).run().floats(16).iter().all(|v| v.is_nan()));
    };
    none(gemv(file, "q4_0", 1, 1, &x, &w));
    none(gemv(file, "q4_0", 4, 1, &x, &w).flag(ARGMAX, true));
    none(gemm(file, "q4_0", 32, 1, &x, &w));
}
