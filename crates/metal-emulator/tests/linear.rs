//! Whole kernels compared with plain Rust, in every order of lanes, on one host thread and several.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{Binding, Buffer, Constant, Dispatch, Pipeline, RunOptions};

const SOURCE: &str = include_str!("kernels/linear.metal");

/// Runs in every order and on two threads; the results must be bit-identical.
fn in_all_orders(
    p: &Pipeline,
    arguments: &[u8],
    buffers: &[(u32, &Buffer)],
    memory: &[(u32, u32)],
    out: &mut Buffer,
    groups: [u32; 3],
    threads: u32,
) -> Vec<f32> {
    let mut first = None;
    for (order, host_threads) in ORDERS.iter().map(|o| (*o, 1)).chain([(ORDERS[0], 2), (ORDERS[3], 3)]) {
        out.as_mut_slice().fill(0xff);
        let mut bindings: Vec<Binding> = buffers.iter().map(|(i, b)| Binding::new(*i, b)).collect();
        bindings.push(Binding::new(3, out));
        let d = Dispatch {
            pipeline: p,
            buffers: &bindings,
            bytes: &[(0, arguments)],
            threadgroup_memory: memory,
            threadgroups: groups,
            resources: &[],
            threads_per_threadgroup: [threads, 1, 1],
        };
        d.run(&RunOptions { order, threads: host_threads }).unwrap();
        let bytes = out.as_slice().to_vec();
        assert_eq!(*first.get_or_insert_with(|| bytes.clone()), bytes, "{order:?}, {host_threads} threads");
    }
    to_floats(out)
}

fn close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*g) - e).abs() <= tolerance, "{i}: {g} for {e}");
    }
}

#[test]
fn rms_norm_with_and_without_weight() {
    let library = compile("linear.metal", SOURCE);
    let (rows, n, eps) = (5, 1004usize, 1e-5f32);
    let mut random = Random(12345);
    let (x, w) = (random.floats(rows * n), random.floats(n));
    let arguments: Vec<u8> = (n as u32).to_le_bytes().into_iter().chain(eps.to_le_bytes()).collect();
    let (xb, wb, mut y) = (floats(&x), floats(&w), Buffer::new(rows * n * 4).unwrap());
    for weighted in [false, true] {
        let p = library.pipeline("rms_norm", &[(0, Constant::Bool(weighted))]).unwrap();
        let mut buffers = vec![(1, &xb)];
        if weighted {
            buffers.push((2, &wb));
        }
        let got = in_all_orders(&p, &arguments, &buffers, &[], &mut y, [rows as u32, 1, 1], 128);
        let expected: Vec<f64> = (0..rows * n)
            .map(|i| {
                let row = &x[i / n * n..][..n];
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
                f64::from(x[i]) / (mean + f64::from(eps)).sqrt()
                    * if weighted { f64::from(w[i % n]) } else { 1.0 }
            })
            .collect();
        // A sum of 1004 squares in f32, and a few roundings.
        close(&got, &expected, 1e-5);
    }
}

#[test]
fn gemv_q4_0() {
    let library = compile("linear.metal", SOURCE);
    let (cols, rows) = (320usize, 67usize);
    let mut random = Random(7);
    let x = random.floats(cols);
    let mut blocks = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..rows {
        let mut sum = 0.0;
        for b in 0..cols / 32 {
            let d = to_half(random.float() * 0.1);
            blocks.extend(d.to_le_bytes());
            let q: Vec<u8> = (0..16).map(|_| random.bits() as u8).collect();
            for j in 0..32 {
                let code = if j < 16 { q[j] & 15 } else { q[j - 16] >> 4 };
                sum += f64::from(half(d)) * f64::from(i32::from(code) - 8) * f64::from(x[32 * b + j]);
            }
            blocks.extend(q);
        }
        expected.push(sum);
    }
    let arguments: Vec<u8> = [cols as u32, rows as u32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let (w, xb, mut y) = (Buffer::from_bytes(&blocks).unwrap(), floats(&x), Buffer::new(rows * 4).unwrap());
    let p = library.pipeline("gemv_q4_0", &[]).unwrap();
    let got =
        in_all_orders(&p, &arguments, &[(1, &w), (2, &xb)], &[], &mut y, [rows.div_ceil(8) as u32, 1, 1], 64);
    close(&got, &expected, 1e-4);
}

#[test]
fn gemm_on_simdgroup_matrices() {
    let library = compile("linear.metal", SOURCE);
    let (m, n, k) = (64usize, 96usize, 48usize);
    let mut random = Random(99);
    let a: Vec<u16> = (0..m * k).map(|_| to_half(random.float())).collect();
    let b: Vec<u16> = (0..k * n).map(|_| to_half(random.float())).collect();
    let bytes =
        |v: &[u16]| Buffer::from_bytes(&v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let (ab, bb, mut c) = (bytes(&a), bytes(&b), Buffer::new(m * n * 4).unwrap());
    let arguments: Vec<u8> = [m as u32, n as u32, k as u32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let p = library.pipeline("gemm_f16", &[]).unwrap();
    let got = in_all_orders(
        &p,
        &arguments,
        &[(1, &ab), (2, &bb)],
        &[(0, 2048)],
        &mut c,
        [(n / 32) as u32, (m / 32) as u32, 1],
        128,
    );
    let expected: Vec<f64> = (0..m * n)
        .map(|i| (0..k).map(|j| f64::from(half(a[i / n * k + j])) * f64::from(half(b[j * n + i % n]))).sum())
        .collect();
    close(&got, &expected, 1e-5);
}
