//! A counting allocator, for tests of the allocations of a step and the memory of a program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with counts over all threads. A test that uses it must be alone in its
/// binary, since other tests allocate too:
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
    /// Number of allocations so far; growing or shrinking in place counts, too.
    pub fn calls() -> usize {
        CALLS.load(Ordering::Relaxed)
    }

    /// Bytes allocated now.
    pub fn bytes() -> usize {
        BYTES.load(Ordering::Relaxed)
    }
}

fn count(size: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting touches no
// other memory.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: `layout` comes from the caller, who keeps the contract of `GlobalAlloc`; `System`
        // has the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `System` with this `layout`, since every allocation above
        // goes there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: `layout` comes from the caller, who keeps the contract of `GlobalAlloc`; `System`
        // has the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `System` with this `layout`, and the caller keeps the
        // contract on `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
