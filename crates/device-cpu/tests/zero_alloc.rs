//! After compiling, a step allocates nothing, counted by the allocator. Alone in its process, for others allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use device::testing::{Sequences, check_op_cases, limits, mini_transformer};
use device::{Device, KvType, Limits, Numerics, fusion};
use formats::BlockType;
use ingle_device_cpu::{CpuDevice, Options};

/// The system's allocator, which counts.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing() {
    let device = CpuDevice::new(Options { threads: Some(3), isa: None }).unwrap();
    for numerics in [Numerics::Fast, Numerics::Deterministic] {
        for block in [BlockType::F32, BlockType::Q4_1, BlockType::Q6_K] {
            let plan = fusion::fuse(&mini_transformer(1, block), device.fusion());
            let limits = Limits { numerics, kv_type: KvType::I16, ..limits(&plan.kv) };
            let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
            let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
            let steps: Vec<_> = [&[(0, 40)][..], &[(0, 1)], &[(0, 1), (1, 17)], &[(1, 1)], &[(0, 1), (1, 1)]]
                .iter()
                .map(|spans| sequences.step(spans))
                .collect();
            // Threads allocate as they start, and the first step finds all of them running.
            program.run(&sequences.step(&[(2, 5)]).borrow()).unwrap();
            let before = CALLS.load(Ordering::Relaxed);
            for step in &steps {
                program.run(&step.borrow()).unwrap();
            }
            assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0, "{block} {numerics:?}");
        }
    }
    // Several plans, with memories that slots share.
    for case in check_op_cases().iter().filter(|case| case.name.contains("memory of 50")) {
        for numerics in [Numerics::Fast, Numerics::Deterministic] {
            let limits = Limits { numerics, ..case.limits.clone() };
            let mut program = device.compile(&case.plans, &limits).unwrap();
            program.run(&case.steps[0].borrow()).unwrap();
            let before = CALLS.load(Ordering::Relaxed);
            for step in &case.steps {
                program.run(&step.borrow()).unwrap();
            }
            assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0, "{}", case.name);
        }
    }
}
