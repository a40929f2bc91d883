//! Memory of a program: zeroed buffers, and lazily committed address space for KV pages and
//! interleaved weights.

use device::{Error, Result};
use platform::AddressSpace;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

fn refused(what: &str, bytes: usize) -> Error {
    Error::OutOfMemory { device: crate::NAME, what: what.to_string(), bytes: bytes as u64 }
}

/// Zeroed memory, aligned to a cache line. The system provides each page on first touch, so that
/// loading does not wait for memory that only long prompts need.
pub struct Buffer {
    allocation: NonNull<u8>,
    layout: Layout,
}

/// Alignment of a buffer's first byte.
const ALIGNMENT: usize = 64;

// SAFETY: the buffer owns its memory and gives out only a raw pointer; the program orders accesses
// by barriers.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` gives out only a raw pointer, as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes` of zeros; `what` names the buffer in errors.
    ///
    /// # Errors
    /// The system refuses the allocation.
    pub fn zeroed(what: &str, bytes: usize) -> Result<Buffer> {
        // The alignment is done here: an allocator that aligns zeroed memory clears it at once,
        // instead of on first touch.
        let layout = bytes.checked_add(ALIGNMENT).and_then(|bytes| Layout::from_size_align(bytes, 16).ok());
        let layout = layout.ok_or_else(|| refused(what, bytes))?;
        // SAFETY: the layout has at least `ALIGNMENT` bytes, so its size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| refused(what, bytes))?;
        Ok(Buffer { allocation, layout })
    }

    /// Address of the first byte.
    pub fn start(&self) -> *mut u8 {
        let start = self.allocation.as_ptr();
        start.wrapping_add(start.align_offset(ALIGNMENT))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `allocation` was allocated with this `layout` in `zeroed`.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Pages of a KV group in address space that is committed in granules. Interleaved weights are a
/// pool of one page.
pub struct PagePool {
    space: AddressSpace,
    page_bytes: usize,
}

/// Approximate bytes of a granule: few system calls, and room for one of the system's large pages.
const GRANULE_BYTES: usize = 2 << 20;

impl PagePool {
    /// Bytes that `n_pages` of `page_bytes` reserve.
    pub fn reserved_bytes(n_pages: usize, page_bytes: usize) -> usize {
        n_pages.saturating_mul(page_bytes)
    }

    /// Number of pages that are committed together.
    pub fn granule(page_bytes: usize) -> usize {
        (GRANULE_BYTES / page_bytes.max(1)).max(1)
    }

    /// Reserves `n_pages` without committing any.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn reserve(n_pages: usize, page_bytes: usize) -> Result<PagePool> {
        let bytes = Self::reserved_bytes(n_pages, page_bytes);
        let space = AddressSpace::reserve(bytes).ok_or_else(|| refused("KV pages", bytes))?;
        Ok(PagePool { space, page_bytes })
    }

    /// Reserves and commits `n_pages`, which are zero until written. The system provides memory on
    /// first touch.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn whole(n_pages: usize, page_bytes: usize) -> Result<PagePool> {
        let pool = Self::reserve(n_pages, page_bytes)?;
        match pool.space.commit(0..pool.space.len()) {
            true => Ok(pool),
            false => Err(refused("weights", pool.space.len())),
        }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Commits pages; false if the system refuses the memory.
    #[must_use]
    pub fn commit(&self, pages: Range<u32>) -> bool {
        self.space.commit(self.range(pages))
    }

    /// Returns the memory of pages to the system. Their contents are lost.
    pub fn decommit(&mut self, pages: Range<u32>) {
        self.space.decommit(self.range(pages));
    }

    /// Requests large pages from the system, which reduces TLB misses.
    pub fn prefer_huge_pages(&self) {
        self.space.prefer_huge_pages();
    }

    /// The first byte of page 0.
    pub fn start(&self) -> *mut u8 {
        self.space.start()
    }

    /// Byte range of pages within the pool.
    fn range(&self, pages: Range<u32>) -> Range<usize> {
        let (start, end) = (pages.start as usize * self.page_bytes, pages.end as usize * self.page_bytes);
        let n = self.space.len() / self.page_bytes.max(1);
        assert!(end <= self.space.len(), "KV pages {} to {} of {n}", pages.start, pages.end);
        start..end
    }

    /// Bytes of a committed page.
    pub fn bytes(&self, page: u32) -> &[u8] {
        let range = self.range(page..page + 1);
        // SAFETY: `range` checks that the page is within the pool, and `Hosted` checked that it is
        // committed. The system zeroed it, so every byte is initialised. Workers write pages only
        // during a step, which borrows the program mutably.
        unsafe { std::slice::from_raw_parts(self.start().add(range.start), range.len()) }
    }

    /// Bytes of a committed page, for writing.
    pub fn bytes_mut(&mut self, page: u32) -> &mut [u8] {
        let range = self.range(page..page + 1);
        // SAFETY: the page is within the pool and committed, as above; `&mut self` makes the slice
        // the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(range.start), range.len()) }
    }

    /// Copies one committed page to another.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.range(from..from + 1), self.range(to..to + 1));
        if from != to {
            // SAFETY: `range` checked that both pages are within the pool, and `Hosted` checked
            // that they are committed. They are different pages of `page_bytes`, so they do not
            // overlap.
            unsafe {
                let start = self.start();
                start.add(to.start).copy_from_nonoverlapping(start.add(from.start), self.page_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_copied_whole() {
        let mut pool = PagePool::reserve(3, 10_000).unwrap();
        assert!(pool.commit(0..3));
        // SAFETY: page 1 is within the pool and committed.
        unsafe {
            assert_eq!(pool.start().add(29_999).read(), 0);
            pool.start().add(10_000).write_bytes(7, 10_000);
            pool.copy(1, 2);
            assert_eq!((pool.start().add(19_999).read(), pool.start().add(20_000).read()), (7, 7));
            assert_eq!((pool.start().add(9_999).read(), pool.start().add(29_999).read()), (0, 7));
        }
    }

    #[test]
    fn granules_have_a_page_at_least() {
        assert_eq!([0, 1 << 14, 1 << 21, 1 << 25].map(PagePool::granule), [1 << 21, 1 << 7, 1, 1]);
    }

    /// A page shares system pages with its neighbours, which must keep their contents.
    #[test]
    fn decommitting_spares_the_neighbours() {
        let mut pool = PagePool::reserve(3, 10_000).unwrap();
        assert!(pool.commit(0..3));
        for page in 0..3 {
            pool.bytes_mut(page).fill(7);
        }
        pool.decommit(1..2);
        assert!(pool.bytes(0).iter().chain(pool.bytes(2)).all(|byte| *byte == 7));
        assert!(pool.commit(1..2));
        pool.bytes_mut(1).fill(8);
        assert!(pool.bytes(0).iter().chain(pool.bytes(2)).all(|byte| *byte == 7));
    }
}
