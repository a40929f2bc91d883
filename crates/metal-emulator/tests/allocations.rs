//! A dispatch on one thread allocates nothing, so that hosts can count their own allocations over
//! it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

mod common;
use common::*;
use metal_emulator::{Binding, Buffer, Dispatch, LaneOrder, RunOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;
static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: Every call is forwarded to the system's allocator with unchanged arguments; counting
// touches no other memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: The caller upholds `alloc`'s contract, and the arguments are unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: The caller upholds `dealloc`'s contract, and `p` came from `System`.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_dispatch_allocates_nothing() {
    let p = compile("bugs.metal", include_str!("kernels/bugs.metal"))
        .pipeline("into_the_neighbour", &[])
        .unwrap();
    let arena = Buffer::new(1024).unwrap();
    let d = Dispatch {
        pipeline: &p,
        buffers: &[Binding::new(0, &arena).limit(256), Binding::new(1, &arena).at(256)],
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [1, 1, 1],
        resources: &[],
        threads_per_threadgroup: [32, 1, 1],
    };
    let run = || d.run(&RunOptions { order: LaneOrder::Random(3), threads: 1 }).unwrap();
    // The first run allocates the worker and the buffer's second mapping.
    run();
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..10 {
        run();
    }
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0);
}
