//! An allocator that counts, for tests of what a step allocates and of what a program holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts for all threads. A test that uses it is alone in its binary, for others allocate:
///
/// ```
/// use ingle_device_testing::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let before = CountingAllocator::calls();
/// drop(std::hint::black_box(Box::new(1)));
/// assert_eq!(CountingAllocator::calls() - before, 1);
/// ```
pub struct CountingAllocator;

impl CountingAllocator {
    /// Allocations so far; one that grows or shrinks in place counts too.
    pub fn calls() -> usize {
        CALLS.load(Ordering::Relaxed)
    }

    /// Bytes that are allocated now.
    pub fn bytes() -> usize {
        BYTES.load(Ordering::Relaxed)
    }
}

fn count(size: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator with what was given; counting touches no memory of its own.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, and `System` has the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
