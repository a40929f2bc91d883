//! Buffers: alignment, lengths, mappings, borrowed memory.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use crate::common::*;
use metal_emulator::{Binding, Dispatch};
use metal_emulator::{Buffer, FaultKind, LaneOrder, RunOptions};
use std::ptr::NonNull;

const SOURCE: &str = "
    #include <metal_stdlib>
    using namespace metal;
    kernel void add(device const float * a [[buffer(0)]], device const float * b [[buffer(1)]], device float * c [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
        c[i] = a[i] + b[i];
    }";

#[test]
fn buffers_are_aligned_zeroed_and_of_the_requested_length() {
    for length in [0, 1, 4096, 16385, 1 << 20] {
        let mut b = Buffer::new(length).unwrap();
        assert_eq!((b.len(), b.is_empty(), b.contents() as usize % 16384), (length, length == 0, 0));
        assert!(b.as_slice().iter().all(|v| *v == 0));
        b.as_mut_slice().fill(7);
        assert!(b.as_slice().iter().all(|v| *v == 7));
    }
    assert!(Buffer::new(usize::MAX / 2).unwrap_err().to_string().contains("cannot allocate"));
}

#[test]
fn one_buffer_may_be_bound_several_times() {
    let p = compile("add.metal", SOURCE).pipeline("add", &[]).unwrap();
    let arena = floats(&(0..96).map(|i| i as f32).collect::<Vec<_>>());
    for _ in 0..2 {
        let bindings = [
            Binding::new(0, &arena),
            Binding::new(1, &arena).at(128),
            Binding::new(2, &arena).at(256).limit(128),
        ];
        let d = Dispatch {
            pipeline: &p,
            buffers: &bindings,
            bytes: &[],
            threadgroup_memory: &[],
            threadgroups: [4, 1, 1],
            resources: &[],
            threads_per_threadgroup: [8, 1, 1],
        };
        d.run(&RunOptions { order: LaneOrder::Reverse, threads: 2 }).unwrap();
    }
    let got = to_floats(&arena);
    assert!((0..32).all(|i| got[64 + i] == got[i] + got[32 + i]));
    // In place: the same range bound twice.
    let d = [
        Binding::new(0, &arena).limit(128),
        Binding::new(1, &arena).at(128),
        Binding::new(2, &arena).limit(128),
    ];
    let before = to_floats(&arena);
    let d = Dispatch {
        pipeline: &p,
        buffers: &d,
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [1, 1, 1],
        resources: &[],
        threads_per_threadgroup: [32, 1, 1],
    };
    d.run(&RunOptions::default()).unwrap();
    assert!((0..32).all(|i| to_floats(&arena)[i] == before[i] + before[32 + i]));
}

#[test]
fn borrowed_memory_is_used_in_place() {
    let p = compile("add.metal", SOURCE).pipeline("add", &[]).unwrap();
    let a: Vec<f32> = (0..33).map(|i| i as f32).collect();
    let mut c = [0f32; 33];
    // SAFETY: Both outlive the buffers.
    let (ab, cb) = unsafe {
        (
            Buffer::borrowed(NonNull::from(&a[1..]).cast(), 32 * 4, false),
            Buffer::borrowed(NonNull::from(&mut c).cast(), 32 * 4, true),
        )
    };
    run(&p, &[&ab, &ab, &cb], 1, 32, LaneOrder::Forward).unwrap();
    assert_eq!(c[..32], a[1..].iter().map(|v| v * 2.0).collect::<Vec<_>>()[..]);
    let f = run(&p, &[&ab, &ab, &cb], 1, 33, LaneOrder::Forward).unwrap_err();
    assert!(
        matches!(f.kind, FaultKind::OutOfBounds { write: false, buffer: Some((0, 128, 128)), .. }),
        "{f}"
    );
    assert_eq!(c[32], 0.0);
}
