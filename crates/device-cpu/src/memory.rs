//! Memory of a program: zeroed buffers, and lazily committed address space for KV pages and interleaved weights.

use device::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

fn refused(what: &str, bytes: usize) -> Error {
    Error::OutOfMemory { device: crate::NAME, what: what.to_string(), bytes: bytes as u64 }
}

/// Zeroed memory, aligned to a cache line. The system gives it page by page when it is first touched, so that loading does
/// not wait for the room of long prompts.
pub struct Buffer {
    allocation: NonNull<u8>,
    layout: Layout,
}

/// Of a buffer's first byte.
const ALIGNMENT: usize = 64;

// SAFETY: it owns its memory; who may touch it when is the program's business.
unsafe impl Send for Buffer {}
// SAFETY: as above: it hands out a pointer only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` of zeros for `what`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn zeroed(what: &str, bytes: usize) -> Result<Buffer> {
        // Aligned here: memory that the allocator has to align is cleared by it at once, rather than by the system when touched.
        let layout = bytes.checked_add(ALIGNMENT).and_then(|bytes| Layout::from_size_align(bytes, 16).ok());
        let layout = layout.ok_or_else(|| refused(what, bytes))?;
        // SAFETY: the layout's size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| refused(what, bytes))?;
        Ok(Buffer { allocation, layout })
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        let start = self.allocation.as_ptr();
        start.wrapping_add(start.align_offset(ALIGNMENT))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Pages of a KV group: address space that the system backs with memory where it is written.
pub struct PagePool {
    start: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: as `Buffer`.
unsafe impl Send for PagePool {}
// SAFETY: as `Buffer`.
unsafe impl Sync for PagePool {}

impl PagePool {
    /// Bytes that `n_pages` of `page_bytes` reserve.
    pub fn reserved_bytes(n_pages: usize, page_bytes: usize) -> usize {
        n_pages.saturating_mul(page_bytes)
    }

    /// Reserve `n_pages`, zeros until written.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn reserve(n_pages: usize, page_bytes: usize) -> Result<PagePool> {
        let bytes = Self::reserved_bytes(n_pages, page_bytes);
        let start = system::reserve(bytes.max(1)).ok_or_else(|| refused("KV pages", bytes))?;
        Ok(PagePool { start, bytes, page_bytes })
    }

    /// Ask the system for few large pages of its own instead of many small ones, which costs fewer look-ups of addresses.
    pub fn prefer_huge_pages(&self) {
        system::prefer_huge_pages(self.start, self.bytes);
    }

    /// The first byte of page 0.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes of a page within the pool.
    fn page(&self, page: u32) -> std::ops::Range<usize> {
        let start = page as usize * self.page_bytes;
        let end = start + self.page_bytes;
        assert!(end <= self.bytes, "KV page {page} of {}", self.bytes / self.page_bytes.max(1));
        start..end
    }

    /// The bytes of a page.
    pub fn bytes(&self, page: u32) -> &[u8] {
        let range = self.page(page);
        // SAFETY: within the pool, whose every byte is initialised: the system gives zeros. Nobody writes between steps.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// The bytes of a page, to be written.
    pub fn bytes_mut(&mut self, page: u32) -> &mut [u8] {
        let range = self.page(page);
        // SAFETY: as above, and the pool is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Copy a page.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.page(from), self.page(to));
        if from != to {
            // SAFETY: both are within the pool, and different pages do not overlap.
            unsafe {
                let start = self.start.as_ptr();
                start.add(to.start).copy_from_nonoverlapping(start.add(from.start), self.page_bytes);
            }
        }
    }

    /// Give a page's memory back: the system's pages that lie within it wholly. Its content is undefined then.
    pub fn release(&mut self, page: u32) {
        let range = self.page(page);
        system::release(self.start, range);
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        system::free(self.start, self.bytes.max(1));
    }
}

#[cfg(unix)]
mod system {
    use std::ops::Range;
    use std::ptr::NonNull;

    /// macOS commits lazily without being asked.
    #[cfg(target_os = "linux")]
    const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

    pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: an anonymous map at an address of the system's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, FLAGS, -1, 0)
        };
        if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
    }

    pub fn release(start: NonNull<u8>, range: Range<usize>) {
        // SAFETY: a query.
        let unit = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let (first, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
        if first < end {
            // SAFETY: the range lies within the map. On Linux it reads as zeros afterwards; elsewhere its content may
            // stay, which is allowed too.
            unsafe { libc::madvise(start.as_ptr().add(first).cast(), end - first, libc::MADV_DONTNEED) };
        }
    }

    pub fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the map has this length. A refusal changes nothing.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, bytes);
    }

    pub fn free(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the map was made with this length.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ops::Range;
    use std::ptr::NonNull;

    pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: `bytes` is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub fn release(_start: NonNull<u8>, _range: Range<usize>) {}

    pub fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    pub fn free(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, 64) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_copied_whole() {
        let mut pool = PagePool::reserve(3, 10_000).unwrap();
        // SAFETY: page 1 is within the pool.
        unsafe {
            assert_eq!(pool.start().add(29_999).read(), 0);
            pool.start().add(10_000).write_bytes(7, 10_000);
            pool.copy(1, 2);
            assert_eq!((pool.start().add(19_999).read(), pool.start().add(20_000).read()), (7, 7));
            assert_eq!((pool.start().add(9_999).read(), pool.start().add(29_999).read()), (0, 7));
        }
    }

    /// A page's neighbours share system pages with it and must stay.
    #[test]
    #[cfg(target_os = "linux")]
    fn releasing_gives_memory_back_and_spares_the_neighbours() {
        let mut pool = PagePool::reserve(3, 10_000).unwrap();
        // SAFETY: within the pool.
        unsafe {
            pool.start().write_bytes(7, 30_000);
            pool.release(1);
            assert_eq!((pool.start().add(9_999).read(), pool.start().add(20_000).read()), (7, 7));
            assert_eq!(pool.start().add(12_288).read(), 0, "the system page within page 1");
        }
    }

    #[test]
    fn more_address_space_than_memory_can_be_reserved() {
        let pool = PagePool::reserve(1 << 20, 1 << 18).unwrap(); // 256 GiB
        // SAFETY: within the pool.
        unsafe { pool.start().add((1 << 37) + 5).write(1) };
    }
}
