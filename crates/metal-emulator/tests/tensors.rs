//! Products of tensors, compared with plain Rust; what Apple's headers forbid is refused.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{Binding, Buffer, Compiler, Dispatch, Fault, FaultKind, Options, RunOptions};

const SOURCE: &str = include_str!("kernels/tensors.metal");

fn with_tensors() -> Compiler {
    compiler(Options { tensors: true, ..options() })
}

/// A shape of a product: rows of x, columns of y, terms of a sum, and elements from row to row of
/// x.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    columns: usize,
    k: usize,
    stride: usize,
}

/// An operand type: its name, its bytes, and the nearest value that it has.
type Element = (&'static str, fn(f32) -> (Vec<u8>, f64));

const FLOAT: Element = ("float", |v| (v.to_le_bytes().to_vec(), f64::from(v)));
const HALF: Element = ("half", |v| (to_half(v).to_le_bytes().to_vec(), f64::from(half(to_half(v)))));
const BYTE: Element = ("int8_t", |v| (vec![(v * 100.0) as i8 as u8], f64::from((v * 100.0) as i8)));
const BFLOAT: Element = ("bfloat", |v| {
    let bits = v.to_bits() >> 16;
    (bits.to_le_bytes()[..2].to_vec(), f64::from(f32::from_bits(bits << 16)))
});

fn elements(values: &[f32], (_, of): Element) -> (Buffer, Vec<f64>) {
    let (bytes, values): (Vec<_>, Vec<_>) = values.iter().map(|v| of(*v)).unzip();
    (Buffer::from_bytes(&bytes.concat()).unwrap(), values)
}

/// Runs a kernel in every order.
fn product(
    name: &str,
    threads: u32,
    s: Shape,
    x: &Buffer,
    w: &Buffer,
    first: &[f32],
) -> Result<Vec<f32>, Fault> {
    let pipeline = with_tensors().compile("tensors.metal", SOURCE, &[]).unwrap().pipeline(name, &[]).unwrap();
    let words = [s.rows, s.columns, s.k, s.stride].map(|n| (n as u32).to_le_bytes()).concat();
    let mut results = vec![];
    for order in ORDERS {
        let y = floats(first);
        let dispatch = Dispatch {
            pipeline: &pipeline,
            buffers: &[Binding::new(1, x), Binding::new(2, w), Binding::new(3, &y)],
            bytes: &[(0, &words)],
            threadgroup_memory: &[],
            threadgroups: [1; 3],
            resources: &[],
            threads_per_threadgroup: [threads, 1, 1],
        };
        let counters = dispatch.run(&RunOptions { order, threads: 1 })?;
        assert_eq!(counters.simdgroup.tensor_products, u64::from(threads / 32));
        results.push(to_floats(&y));
    }
    assert!(results.iter().all(|y| *y == results[0]), "{name}");
    Ok(results.swap_remove(0))
}

#[test]
fn products_of_every_layout() {
    let mut random = Random(7);
    // Kernel, threads, largest tile, transposed operands, types, bound of the error of an operand.
    for (name, threads, (m, n), (left, right), (l, r), error) in [
        ("floats", 128, (32, 32), (false, true), (FLOAT, FLOAT), 0.0),
        ("relaxed", 128, (32, 32), (false, true), (FLOAT, FLOAT), 2f64.powi(-10)),
        ("halves", 32, (16, 32), (false, false), (HALF, HALF), 0.0),
        ("mixed", 64, (32, 16), (true, true), (FLOAT, HALF), 2f64.powi(-11)),
        ("bytes", 32, (16, 16), (false, true), (HALF, BYTE), 0.0),
        ("bfloats", 32, (16, 16), (false, true), (BFLOAT, BFLOAT), 0.0),
    ] {
        for (rows, columns, k) in [(m, n, 64), (1, 1, 1), (m - 3, n - 1, 37), (5, 3, 130)] {
            let stride = if left { rows } else { k } + 3;
            let s = Shape { rows, columns, k, stride };
            let (x, xs) = elements(&random.floats(stride * if left { k } else { rows }), l);
            let (w, ws) = elements(&random.floats(columns * k), r);
            let first = random.floats(rows * columns);
            let y = product(name, threads, s, &x, &w, &first).unwrap();
            let mut largest = 0f64;
            for (i, y) in y.iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let terms = (0..k).map(|t| {
                    let x = xs[if left { t * stride + row } else { row * stride + t }];
                    x * ws[if right { column * k + t } else { t * columns + column }]
                });
                let terms: Vec<f64> = terms.collect();
                // The kernel doubles column 1.
                let factor = if column == 1 { 2.0 } else { 1.0 };
                let expected = factor * (f64::from(first[i]) + terms.iter().sum::<f64>());
                let size: f64 = 1.0 + terms.iter().map(|t| t.abs()).sum::<f64>();
                let difference = (f64::from(*y) - expected).abs() / size;
                assert!(difference <= 2.0 * (error + 1e-6), "{name} {s:?} {i}: {y} for {expected}");
                largest = largest.max(difference);
            }
            assert!(error == 0.0 || k == 1 || largest > 1e-6, "{name} is not relaxed: {largest}");
        }
    }
}

#[test]
fn accesses_and_scopes_are_checked() {
    let s = Shape { rows: 32, columns: 32, k: 40, stride: 40 };
    let (x, w, y) = (floats(&[1.0; 32 * 40]), floats(&[1.0; 32 * 40]), [0.0; 32 * 32]);
    product("floats", 128, s, &x, &w, &y).unwrap();
    // A row of x too few, and an element.
    for n in [31 * 40, 32 * 40 - 1] {
        let f = product("floats", 128, s, &floats(&vec![1.0; n]), &w, &y).unwrap_err();
        assert!(matches!(f.kind, FaultKind::OutOfBounds { write: false, .. }), "{f}");
    }
    let f = product("floats", 64, s, &x, &w, &y).unwrap_err();
    assert!(f.to_string().contains("another number of SIMD-groups"), "{f}");
}

/// A kernel with one product, whose parts are replaced.
const ONE: &str = "
    #include <metal_stdlib>
    #include <metal_tensor>
    #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
    using namespace metal;
    using namespace mpp::tensor_ops;
    typedef tensor<device LEFT, dextents<int, 2>, tensor_inline> Left;
    typedef tensor<device RIGHT, dextents<int, 2>, tensor_inline> Right;
    kernel void one(device LEFT * x [[buffer(0)]], device RIGHT * w [[buffer(1)]], device float * y [[buffer(2)]],
                    ushort lane [[thread_index_in_simdgroup]]) {
        Left left(x, dextents<int, 2>(K, 16));
        Right right(w, dextents<int, 2>(16, 16));
        matmul2d<matmul2d_descriptor(TILE, 16, DEPTH, false, true), execution_simdgroup> product;
        auto sums = product.get_destination_cooperative_tensor<ORDER, OUT>();
        if (lane < LANES) product.run(left, right, sums);
        auto to = tensor(y, dextents<int, 2>(16, 16));
        sums.store(to);
    }";

#[test]
fn what_apple_refuses_is_refused() {
    let plain = [
        ("LEFT", "float"),
        ("RIGHT", "half"),
        ("TILE", "16"),
        ("DEPTH", "16"),
        ("ORDER", "Left, Right"),
        ("OUT", "float"),
        ("LANES", "32"),
        ("K", "16"),
    ];
    let with = |name: &str, value: &str| {
        let changed = plain.map(|(n, v)| (n, if n == name { value } else { v }));
        changed.iter().fold(ONE.to_owned(), |s, (n, v)| s.replace(n, v))
    };
    let compile = |source: &str| with_tensors().compile("one.metal", source, &[]);
    compile(&with("", "")).unwrap();
    with_tensors().check_strict("one.metal", &with("", ""), &[]).unwrap();
    with_tensors().check_strict("tensors.metal", SOURCE, &[]).unwrap();
    for (name, value, expected) in [
        ("LEFT", "const float", "no product of operands of these types"),
        ("RIGHT", "uint", "no product of operands of these types"),
        ("OUT", "half", "no product of operands of these types"),
        ("ORDER", "Right, Left", "Input types must match cooperative tensor types"),
        ("TILE", "8", "multiples of 16"),
    ] {
        let error = compile(&with(name, value)).unwrap_err().to_string();
        assert!(error.contains(expected), "{name} {value}: {error}");
    }
    let error = compiler(options()).compile("one.metal", &with("", ""), &[]).unwrap_err().to_string();
    assert!(error.contains("tensors need Metal 4.0"), "{error}");
    // Errors of a run.
    let (x, w, y) = (floats(&[1.0; 256]), floats(&[1.0; 256]), floats(&[0.0; 256]));
    for (name, value, expected) in [
        ("K", "15", "inner extents differ"),
        ("DEPTH", "32", "shorter than its k"),
        ("LANES", "31", "simdgroup"),
    ] {
        let pipeline = compile(&with(name, value)).unwrap().pipeline("one", &[]).unwrap();
        let f = run(&pipeline, &[&x, &w, &y], 1, 32, ORDERS[0]).unwrap_err();
        assert!(f.to_string().contains(expected), "{name} {value}: {f}");
    }
}
