//! Compiling takes what the memory plan says, counted by the allocator. Alone in its process, for others allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use device::testing::{Sequences, limits, mini_transformer};
use device::{Device, Limits, Residence, fusion};
use formats::BlockType;
use ingle_device_cpu::{CpuDevice, Options};

/// The system's allocator, which counts.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn compiling_takes_what_the_memory_plan_says() {
    let device = CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap();
    // Threads allocate as they start, and the first step finds all of them running.
    let plan = mini_transformer(1, BlockType::Q8_0);
    let mut sequences = Sequences::new(1, &plan.kv, &limits(&plan.kv), 50);
    device
        .compile(std::slice::from_ref(&plan), &limits(&plan.kv))
        .unwrap()
        .run(&sequences.step(&[(0, 5)]).borrow())
        .unwrap();
    for max_rows in [1, 64, 512] {
        let plan = fusion::fuse(&mini_transformer(1, BlockType::Q8_0), device.fusion());
        let limits = Limits { max_rows, max_outputs: max_rows, ..limits(&plan.kv) };
        let memory = device.memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
        let weights: u64 = memory.items.iter().filter(|i| i.what.contains("weights")).map(|i| i.bytes).sum();
        let planned = (memory.total(Residence::Committed) - weights) as usize;
        let before = BYTES.load(Ordering::Relaxed);
        let program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
        let taken = BYTES.load(Ordering::Relaxed) - before;
        // Beside the buffers there are the two tables, a few hundred bytes a command, and names for profiles.
        let tables = (program.commands(0, 1).len() + program.commands(0, 2).len()) * 1024 + 4096;
        assert!(
            (planned..planned + tables).contains(&taken),
            "max_rows {max_rows}: planned {planned}, took {taken}, tables {tables}"
        );
    }
}
