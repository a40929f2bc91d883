//! Every builtin compared with plain Rust, at sizes that are not multiples of a simdgroup, in every
//! order of lanes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{Binding, Buffer, Dispatch, LaneOrder, Pipeline, RunOptions};

const SOURCE: &str = include_str!("kernels/builtins.metal");

fn pipeline(name: &str) -> Pipeline {
    compile("builtins.metal", SOURCE).pipeline(name, &[]).unwrap()
}

/// Runs with the buffers, and the number of elements as the last argument.
fn run_n(p: &Pipeline, buffers: &[&Buffer], n: usize) {
    let bindings: Vec<Binding> = buffers.iter().enumerate().map(|(i, b)| Binding::new(i as u32, b)).collect();
    let d = Dispatch {
        pipeline: p,
        buffers: &bindings,
        bytes: &[(buffers.len() as u32, &(n as u32).to_le_bytes())],
        threadgroup_memory: &[],
        threadgroups: [n.div_ceil(64) as u32, 1, 1],
        resources: &[],
        threads_per_threadgroup: [64, 1, 1],
    };
    d.run(&RunOptions { order: LaneOrder::Random(2), threads: 2 }).unwrap();
}

fn values(n: usize) -> Vec<f32> {
    let mut random = Random(11);
    (0..n).map(|_| random.float() * 2.0).collect()
}

#[test]
fn functions_of_floats() {
    let n = 133;
    let x = values(n);
    let y = Buffer::new(59 * n * 4).unwrap();
    run_n(&pipeline("unary"), &[&floats(&x), &y], n);
    let y = to_floats(&y);
    for (i, v) in x.iter().enumerate() {
        let v = f64::from(*v);
        let a = v.abs();
        let smooth = ((v + 1.0) / 2.0).clamp(0.0, 1.0);
        let exponent = if v == 0.0 { 0.0 } else { a.log2().floor() + 1.0 };
        let expected = [
            a.sqrt(),
            1.0 / (a + 0.5).sqrt(),
            v.exp(),
            v.exp2(),
            10f64.powf(v),
            (a + 0.1).ln(),
            (a + 0.1).log2(),
            (a + 0.1).log10(),
            v.sin(),
            v.cos(),
            v.tan(),
            (v / 4.0).asin(),
            (v / 4.0).acos(),
            v.atan(),
            v.sinh(),
            v.cosh(),
            v.tanh(),
            v.asinh(),
            (a + 1.0).acosh(),
            (v / 4.0).atanh(),
            v.floor(),
            v.ceil(),
            v.trunc(),
            v.round(),
            v.round_ties_even(),
            v - v.floor(),
            if v > 0.0 {
                1.0
            } else if v < 0.0 {
                -1.0
            } else {
                0.0
            },
            v.clamp(0.0, 1.0),
            v.exp(),
            1.0 / (a + 0.5).sqrt(),
            a,
            v.sin(),
            v.cos(),
            a.powf(1.5),
            2f64.powf(v),
            v % f64::from(0.7f32),
            v.atan2(2.0),
            v * v + 1.0,
            1.0 + 2.0 * v,
            if v < 0.5 { 0.0 } else { 1.0 },
            smooth * smooth * (3.0 - 2.0 * smooth),
            2f64.copysign(v),
            (v - 0.25).max(0.0),
            v * 8.0,
            v.max(f64::from(0.1f32)),
            v.min(f64::from(0.1f32)),
            v,
            v,
            v.clamp(-0.5, 0.5),
            v / 3.0,
            v.max(1.0),
            v.clamp(0.5, 1.0),
            0.0,
            1.0,
            if v < 0.0 { 1.0 } else { 0.0 },
            v / exponent.exp2(),
            exponent,
            v - v.trunc(),
            v.trunc(),
        ];
        for (row, e) in expected.iter().enumerate() {
            if row == 52 {
                // inf - inf and 0 / 0 are NaN.
                assert_eq!(y[row * n + i], 1.0);
                continue;
            }
            let got = f64::from(y[row * n + i]);
            // Single functions are accurate to a few units in the last place; near its poles tan
            // magnifies the rounding of its argument.
            let tolerance = 1e-6 * e.abs().max(1.0) * if row == 10 { 1.0 + e * e } else { 1.0 };
            assert!((got - e).abs() <= tolerance, "row {row} of {v}: {got} for {e}");
        }
    }
}

#[test]
fn halves_and_bfloats_round_each_operation() {
    let n = 77;
    let mut random = Random(21);
    let x: Vec<u16> = (0..n).map(|_| to_half(random.float() * 3.0)).collect();
    let b: Vec<u16> = (0..n).map(|_| (random.float().to_bits() >> 16) as u16).collect();
    let bytes =
        |v: &[u16]| Buffer::from_bytes(&v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let (y, by) = (Buffer::new(12 * n * 2).unwrap(), Buffer::new(6 * n * 2).unwrap());
    run_n(&pipeline("small_floats"), &[&bytes(&x), &y, &bytes(&b), &by], n);
    let read = |b: &Buffer| {
        b.as_slice().chunks_exact(2).map(|c| u16::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>()
    };
    let (y, by) = (read(&y), read(&by));
    let bfloat = |x: f32| ((x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) >> 16) as u16;
    let wide = |b: u16| f32::from_bits(u32::from(b) << 16);
    for i in 0..n {
        let (v, w) = (half(x[i]), half(x[(i + 1) % n]));
        let expected = [
            v + w,
            v * w,
            v - w,
            v / w,
            v.max(w),
            v * 3.0,
            v.abs().sqrt(),
            half(to_half(v * w)) + 1.0,
            -v,
            v.min(w),
            v.mul_add(w, v),
            w,
        ];
        for (row, e) in expected.iter().enumerate() {
            assert_eq!(half(y[row * n + i]), half(to_half(*e)), "row {row} of {v}, {w}");
        }
        let (a, c) = (wide(b[i]), wide(b[(i + 1) % n]));
        let expected = [a + c, a * c, a * 3.0, a + 1.0, c * c, a.max(c)];
        for (row, e) in expected.iter().enumerate() {
            assert_eq!(by[row * n + i], bfloat(*e), "row {row} of {a}, {c}");
        }
    }
}

#[test]
fn functions_of_integers() {
    let n = 70;
    let mut random = Random(5);
    let mut x: Vec<u32> = (0..n - 6).map(|i| random.bits() << (i % 9) ^ random.bits()).collect();
    x.extend([0, 1, u32::MAX, 0x8000_0000, 0x7fff_ffff, 150]);
    let y = Buffer::new(34 * n * 4).unwrap();
    run_n(&pipeline("integers"), &[&uints(&x), &y], n);
    let y = to_uints(&y);
    for i in 0..n {
        let (v, w) = (x[i], x[(i + 1) % n]);
        let (sv, sw) = (v as i32, w as i32);
        let half_bits = |b: u32| u32::from(to_half((b & 255) as f32));
        let chars = v.to_le_bytes().map(|b| b.wrapping_add(1));
        let triple = |s: u32| s.wrapping_mul(3) & 0xffff;
        let expected = [
            v.count_ones(),
            v.leading_zeros(),
            v.trailing_zeros(),
            v.reverse_bits(),
            v.rotate_left(w & 31),
            (v >> 3) & 127,
            (v & !(511 << 5)) | ((w & 511) << 5),
            ((u64::from(v) * u64::from(w)) >> 32) as u32,
            ((i64::from(sv) * i64::from(sw)) >> 32) as u32,
            v.saturating_add(w),
            v.saturating_sub(w),
            sv.saturating_add(sw) as u32,
            sv.saturating_sub(sw) as u32,
            v.abs_diff(w),
            sv.abs_diff(sw),
            v.min(w),
            v.max(w),
            v.clamp(100, 200),
            (sv << 22 >> 25) as u32,
            (v as u8).count_ones(),
            (v as u16).leading_zeros(),
            (v & 0xff_ffff).wrapping_mul(w & 0xff_ffff),
            (v as f32).to_bits(),
            half_bits(v) | half_bits(v >> 8) << 16,
            u32::from_le_bytes(chars),
            triple(v & 0xffff) | triple(w >> 16) << 16,
            if v & 1 == 1 { w } else { v },
            v as u8 as i8 as u32,
            (i32::from(v as u16 as i16) >> 2) as u32,
            (sv / 2).unsigned_abs(),
            32767,
            f32::INFINITY.to_bits(),
            w,
            ((u64::from(v) * u64::from(w)) >> 32) as u32,
        ];
        for (row, e) in expected.iter().enumerate() {
            assert_eq!(y[row * n + i], *e, "row {row} of {v:#x}, {w:#x}");
        }
    }
}

#[test]
fn vectors_swizzles_and_matrices() {
    let n = 45;
    let mut random = Random(8);
    let x = random.floats(4 * n);
    let p = random.floats(3 * n);
    let (y, q) = (Buffer::new(40 * n * 4).unwrap(), Buffer::new(3 * n * 4).unwrap());
    run_n(&pipeline("vectors"), &[&floats(&x), &y, &floats(&p), &q], n);
    let y = to_floats(&y);
    assert_eq!(to_floats(&q), p.iter().map(|v| v * 2.0).collect::<Vec<_>>());
    for i in 0..n {
        let v: [f32; 4] = x[4 * i..][..4].try_into().unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).skip(1).fold(a[0] * b[0], |s, (x, y)| s + x * y);
        let w = [v[1], v[1] + 2.0, v[3] * 3.0, v[3] * 3.0];
        let h = v.map(|x| half(to_half(x)));
        // The first component was incremented before.
        let h0 = half(to_half(v[0] + 1.0));
        let hw = [half(to_half(h[1] + 1.0)), half(to_half(h0 + 1.0)), h[2], h[3]];
        let round = |x: f32| half(to_half(x));
        let hdot = hw.iter().skip(1).fold(round(hw[0] * hw[0]), |s, x| round(s + round(x * x)));
        let flag = |b: bool| f32::from(u8::from(b));
        let expected = [
            dot(&v, &[v[3], v[2], v[1], v[0]]),
            dot(&v[..2], &v[..2]).sqrt(),
            v[2],
            v[1],
            v[3],
            w[0],
            w[1],
            w[2],
            w[3],
            if v[0] < 0.0 { w[0] } else { v[0] },
            flag(v.iter().any(|x| *x > 0.5)),
            flag(v.iter().all(|x| *x > -0.5)),
            2.0 - v[1] / 4.0,
            v[2].max(0.25),
            h[0],
            (v[1].abs() * 100.0).trunc(),
            (v[2] * 10.0).trunc(),
            v[3].clamp(-0.1, 0.1),
            v[2] * w[0] - v[0] * w[2],
            v[0] * (1.0 / dot(&v, &v).sqrt()),
            v[1] + (w[1] - v[1]) * 0.5,
            v[2].mul_add(w[2], v[2]),
            v[3].exp(),
            5.0,
            v[1],
            -v[0],
            v[3],
            v[i % 4],
            p[3 * i + 1],
            p[3 * i + 2] * 3.0,
            v[0] * 1.0 + v[2] * 2.0,
            v[1] * v[2] + v[3] * v[3],
            v[2],
            v[0] + 1.0,
            12.0,
            128.0 / 255.0,
            u32::from_le_bytes([0, 128, 255, 255]) as f32,
            0.0,
            hw[0],
            hdot,
        ];
        for (row, e) in expected.iter().enumerate() {
            let got = y[row * n + i];
            // Everything except exp is the same arithmetic in the same order.
            let same = if row == 22 { (got - e).abs() <= 1e-6 * e } else { got == *e };
            assert!(same, "row {row} of {v:?}: {got} for {e}");
        }
    }
}

/// The sum in the emulator's documented order: a butterfly by halves over the active lanes.
fn butterfly(values: &[f32], n: usize, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut v: Vec<Option<f32>> = (0..n).map(|i| values.get(i).copied()).collect();
    let mut w = n / 2;
    while w > 0 {
        for i in 0..w {
            v[i] = match (v[i], v[i + w]) {
                (Some(a), Some(b)) => Some(f(a, b)),
                (a, b) => a.or(b),
            };
        }
        w /= 2;
    }
    v[0].unwrap()
}

/// Runs one threadgroup of `n` threads in every order; all results must be bit-identical.
fn in_all_orders(name: &str, x: &[f32], rows: usize) -> Vec<f32> {
    let p = pipeline(name);
    let xb = floats(x);
    let mut first: Option<Vec<u32>> = None;
    for order in ORDERS {
        let y = Buffer::new(rows * x.len() * 4).unwrap();
        run(&p, &[&xb, &y], 1, x.len() as u32, order).unwrap();
        assert_eq!(*first.get_or_insert_with(|| to_uints(&y)), to_uints(&y), "{name}, {order:?}");
    }
    first.unwrap().into_iter().map(f32::from_bits).collect()
}

#[test]
fn functions_of_simdgroups() {
    for n in [32, 1, 21, 77, 1024] {
        let x = Random(n as u32).floats(n);
        let y = in_all_orders("simdgroups", &x, 31);
        for t in 0..n {
            let first = t / 32 * 32;
            let group = &x[first..(first + 32).min(n)];
            let (lane, width, v) = (t - first, group.len(), x[t]);
            let ints: Vec<i32> = group.iter().map(|v| (v * 8.0) as i32).collect();
            let all = |f: fn(i32, i32) -> i32| ints[1..].iter().fold(ints[0], |a, b| f(a, *b)) as f32;
            let near: Vec<f32> = group.iter().map(|v| 1.0 + v / 8.0).collect();
            let sum = butterfly(group, 32, |a, b| a + b);
            let inclusive = group[..=lane].iter().fold(0.0, |a, b| a + b);
            let squares: Vec<f32> = group.iter().map(|v| v * v).collect();
            let doubles: Vec<f32> = group.iter().map(|v| v * 2.0).collect();
            let ballot =
                group.iter().enumerate().fold(0u32, |a, (i, v)| a | u32::from(*v > 0.0) << i) & 0xff_ffff;
            let flag = |b: bool| f32::from(u8::from(b));
            let mut expected = vec![
                sum,
                group.iter().copied().fold(-9.0, f32::max),
                group.iter().copied().fold(9.0, f32::min),
                butterfly(&near, 32, |a, b| a * b),
                all(|a, b| a & b),
                all(|a, b| a | b),
                all(|a, b| a ^ b),
                inclusive,
                group[..lane].iter().fold(0.0, |a, b| a + b),
                near[..=lane].iter().fold(1.0, |a, b| a * b),
                group[3.min(width - 1)],
                group[0],
                group[(lane * 7 + 3) % width],
                group[if lane + 1 == width && width % 2 == 1 { lane } else { lane ^ 1 }],
                if lane < 2 { v } else { group[lane - 2] },
                group[if lane + 2 < width { lane + 2 } else { lane }],
                group[lane.saturating_sub(1)],
                ballot as f32,
                flag(group.iter().any(|v| *v > 0.9)),
                flag(group.iter().all(|v| *v > -0.9)),
                flag(lane == 0),
                0.0,
                sum,
                butterfly(&doubles, 32, |a, b| a + b),
                width as f32,
                butterfly(&squares, 32, |a, b| a + b),
                group.iter().map(|v| half(to_half(*v))).fold(-9.0, f32::max),
                (0..width as u8).fold(0u8, u8::wrapping_add).into(),
                group[0],
                (0..=first / 32).fold(0.0, |s, _| s + sum),
            ];
            if lane < 16 {
                expected.push(butterfly(&group[..width.min(16)], 32, |a, b| a + b));
            }
            for (row, e) in expected.iter().enumerate() {
                assert_eq!(y[row * n + t], *e, "row {row}, thread {t} of {n}");
            }
        }
    }
}

#[test]
fn functions_of_quads() {
    for n in [32, 4, 76] {
        let x = Random(n as u32 + 1).floats(n);
        let y = in_all_orders("quads", &x, 15);
        for t in 0..n {
            let (quad, i) = (&x[t / 4 * 4..][..4], t % 4);
            let flag = |b: bool| f32::from(u8::from(b));
            let near: Vec<f32> = quad.iter().map(|v| 1.0 + v).collect();
            let expected = [
                butterfly(quad, 4, |a, b| a + b),
                quad.iter().copied().fold(-9.0, f32::max),
                quad.iter().copied().fold(9.0, f32::min),
                quad[2],
                quad[(i + 1) % 4],
                quad[3 - i],
                quad[i.saturating_sub(1)],
                quad[(i + 1).min(3)],
                quad[..=i].iter().fold(0.0, |a, b| a + b),
                flag(quad.iter().any(|v| *v > 0.5)),
                flag(quad.iter().all(|v| *v > -0.5)),
                quad[0],
                quad[(i + 1) % 4],
                butterfly(&near, 4, |a, b| a * b),
                quad[..i].iter().fold(0.0, |a, b| a + b),
            ];
            for (row, e) in expected.iter().enumerate() {
                assert_eq!(y[row * n + t], *e, "row {row}, thread {t} of {n}");
            }
        }
    }
}

#[test]
fn simdgroup_matrices_of_each_type() {
    type Decode = fn(u32) -> f32;
    type Encode = fn(f32) -> u32;
    let types: [(&str, usize, Decode, Encode); 3] = [
        ("matrices_float", 4, f32::from_bits, f32::to_bits),
        ("matrices_half", 2, |b| half(b as u16), |v| u32::from(to_half(v))),
        (
            "matrices_bfloat",
            2,
            |b| f32::from_bits(b << 16),
            |v| (v.to_bits() + 0x7fff + (v.to_bits() >> 16 & 1)) >> 16,
        ),
    ];
    for (name, size, decode, encode) in types {
        let stride = 11usize;
        let mut random = Random(31);
        let mut matrix = || (0..12 * stride).map(|_| decode(encode(random.float()))).collect::<Vec<f32>>();
        let (a, b) = (matrix(), matrix());
        let buffer = |v: &[f32]| {
            Buffer::from_bytes(
                &v.iter().flat_map(|x| encode(*x).to_le_bytes()[..size].to_vec()).collect::<Vec<u8>>(),
            )
            .unwrap()
        };
        let (ab, bb) = (buffer(&a), buffer(&b));
        let p = pipeline(name);
        let round = |x: f32| decode(encode(x));
        for order in ORDERS {
            let d = Buffer::new(256 * size).unwrap();
            let dispatch = Dispatch {
                pipeline: &p,
                buffers: &[Binding::new(0, &ab), Binding::new(1, &bb), Binding::new(2, &d)],
                bytes: &[(3, &(stride as u32).to_le_bytes())],
                threadgroup_memory: &[],
                threadgroups: [1, 1, 1],
                resources: &[],
                threads_per_threadgroup: [32, 1, 1],
            };
            dispatch.run(&RunOptions { order, threads: 1 }).unwrap();
            let got: Vec<f32> = d
                .as_slice()
                .chunks_exact(size)
                .map(|c| {
                    decode(u32::from_le_bytes([c[0], c[1], *c.get(2).unwrap_or(&0), *c.get(3).unwrap_or(&0)]))
                })
                .collect();
            let ma = |r: usize, c: usize| a[1 + r * stride + c];
            for r in 0..8 {
                for c in 0..8 {
                    let product = (0..8).fold(0.5, |s, k| s + ma(r, k) * b[2 + (1 + k) * stride + c]);
                    assert_eq!(got[8 * r + c], round(product), "{name} product");
                    assert_eq!(
                        got[64 + 8 * r + c],
                        round(ma(r, c) * 2.0),
                        "{name} through threadgroup memory"
                    );
                    // Stored transposed.
                    assert_eq!(got[128 + 8 * c + r], round(ma(r, c) * 3.0), "{name} times a diagonal");
                    let transposed = (0..8).fold(1.0, |s, k| s + ma(r, k) * b[c * stride + k]);
                    assert_eq!(got[192 + 8 * r + c], round(transposed), "{name} with a transpose");
                }
            }
        }
    }
}
