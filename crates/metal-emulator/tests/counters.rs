//! Counters match what a dispatch did.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::*;
use metal_emulator::{Binding, Buffer, Dispatch, LaneOrder, Library, Options, RunOptions};

fn library(name: &str, source: &str) -> Library {
    compiler(Options { counting: true, ..options() })
        .compile(name, source, &[])
        .unwrap_or_else(|e| panic!("{e}"))
}

const SOURCE: &str = "
    #include <metal_stdlib>
    using namespace metal;
    struct Arguments { uint n; };
    kernel void sum(
            constant Arguments & a [[buffer(0)]],
            device const uchar * x [[buffer(1)]],
            device uint * y [[buffer(2)]],
            uint group [[threadgroup_position_in_grid]],
            ushort t [[thread_position_in_threadgroup]],
            ushort lane [[thread_index_in_simdgroup]],
            ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
        threadgroup uint part[2];
        const uint s = simd_sum(uint(x[group * a.n + t]));
        if (lane == 0) part[simdgroup] = s;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t == 0) y[group] = part[0] + part[1];
    }
    kernel void others(device float * x [[buffer(0)]], ushort t [[thread_position_in_threadgroup]]) {
        float v = simd_shuffle_xor(x[t], ushort(1));
        v = simd_any(v > 0) ? simd_broadcast(v, ushort(0)) : v;
        simdgroup_barrier(mem_flags::mem_none);
        simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(v);
        simdgroup_multiply(m, m, m);
        simdgroup_multiply_accumulate(m, m, m, m);
        simdgroup_store(m, x);
    }
    kernel void strided(device const float * x [[buffer(0)]], device float * y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
        y[i] = x[i * 16] + x[i * 16 + 1];
    }";

#[test]
fn bytes_and_instructions_of_a_reduction() {
    let p = library("counters.metal", SOURCE).pipeline("sum", &[]).unwrap();
    let (x, y) = (Buffer::new(5 * 64).unwrap(), Buffer::new(5 * 4).unwrap());
    let mut first = None;
    for (order, threads) in ORDERS.iter().map(|o| (*o, 1)).chain([(LaneOrder::Forward, 3)]) {
        let d = Dispatch {
            pipeline: &p,
            buffers: &[Binding::new(1, &x), Binding::new(2, &y)],
            bytes: &[(0, &64u32.to_le_bytes())],
            threadgroup_memory: &[],
            threadgroups: [5, 1, 1],
            resources: &[],
            threads_per_threadgroup: [64, 1, 1],
        };
        let c = d.run(&RunOptions { order, threads }).unwrap();
        assert_eq!((c.threadgroups, c.threads, c.threadgroup_barriers), (5, 320, 5));
        assert_eq!((c.simdgroup.reductions, c.simdgroup.shuffles), (10, 0));
        // Two partial sums of 4 bytes per threadgroup, each written and read once.
        assert_eq!((c.threadgroup_written, c.threadgroup_read), (40, 40));
        let [bx, by, ba] = c.buffers[..] else { panic!("{:?}", c.buffers) };
        assert_eq!(
            (bx.index, bx.by_value, bx.read, bx.written, bx.read_once, bx.written_once),
            (1, false, 320, 0, 320, 0)
        );
        // Five words are in one sector.
        assert_eq!((by.index, by.read, by.written, by.written_once), (2, 0, 20, 32));
        assert_eq!((ba.index, ba.by_value, ba.read_once), (0, true, 32));
        assert_eq!(ba.read, 4 * 320);
        assert_eq!(c.device_bytes(), (320, 32));
        assert_eq!(*first.get_or_insert_with(|| c.clone()), c, "{order:?}, {threads} threads");
    }
}

#[test]
fn instructions_of_each_kind() {
    let p = library("counters.metal", SOURCE).pipeline("others", &[]).unwrap();
    let x = Buffer::new(64 * 4).unwrap();
    let c = run(&p, &[&x], 3, 32, LaneOrder::Forward).unwrap();
    let s = c.simdgroup;
    assert_eq!((s.shuffles, s.votes, s.barriers, s.matrix_multiplies, s.reductions), (3, 3, 3, 6, 0));
}

#[test]
fn sectors_are_counted_once() {
    let p = library("counters.metal", SOURCE).pipeline("strided", &[]).unwrap();
    let (x, y) = (Buffer::new(64 * 64).unwrap(), Buffer::new(64 * 4).unwrap());
    let c = run(&p, &[&x, &y], 2, 32, LaneOrder::Forward).unwrap();
    let [bx, by] = c.buffers[..] else { panic!("{:?}", c.buffers) };
    // 8 bytes of every 64 are read, each as part of a 32-byte sector.
    assert_eq!((bx.read, bx.read_once), (64 * 8, 64 * 32));
    assert_eq!((by.written, by.written_once), (64 * 4, 64 * 4));
}

#[test]
fn a_matrix_is_read_once_by_a_matrix_vector_product() {
    let p = library("linear.metal", include_str!("kernels/linear.metal")).pipeline("gemv_q4_0", &[]).unwrap();
    let (cols, rows) = (256u32, 40u32);
    let (w, x, y) = (
        Buffer::new((cols / 32 * rows * 18) as usize).unwrap(),
        floats(&[1.0; 256]),
        Buffer::new(160).unwrap(),
    );
    let d = Dispatch {
        pipeline: &p,
        buffers: &[Binding::new(1, &w), Binding::new(2, &x), Binding::new(3, &y)],
        bytes: &[(0, &[cols.to_le_bytes(), rows.to_le_bytes()].concat())],
        threadgroup_memory: &[],
        threadgroups: [rows / 8, 1, 1],
        resources: &[],
        threads_per_threadgroup: [64, 1, 1],
    };
    let c = d.run(&RunOptions::default()).unwrap();
    assert_eq!(c.buffers[0].read_once, u64::from(cols / 32 * rows * 18));
    // The two lanes of a block read its scale.
    assert_eq!(c.buffers[0].read, u64::from(cols / 32 * rows * (18 + 2)));
    assert_eq!(c.buffers[2].written, u64::from(rows * 4));
    // Without counting there are no byte counts; everything else is the same.
    let plain =
        compile("linear.metal", include_str!("kernels/linear.metal")).pipeline("gemv_q4_0", &[]).unwrap();
    let p = Dispatch { pipeline: &plain, ..d }.run(&RunOptions::default()).unwrap();
    assert!(p.buffers.is_empty());
    assert_eq!((p.threads, p.simdgroup), (c.threads, c.simdgroup));
}
