//! Address space that is reserved as a whole and committed in parts.

use std::ops::Range;
use std::ptr::NonNull;

/// Reserved address space. A part may be accessed once it is committed; the system then allocates
/// its pages at their first access. A part that is not committed, or is decommitted, uses no memory
/// and must not be accessed.
#[derive(Debug)]
pub struct AddressSpace {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value owns its address range, which is accessed through raw pointers only.
unsafe impl Send for AddressSpace {}
// SAFETY: shared methods only change the protection of pages; `start` returns a raw pointer, and
// its users synchronise accesses.
unsafe impl Sync for AddressSpace {}

impl AddressSpace {
    /// Reserves `bytes` bytes; `None` if the system refuses.
    pub fn reserve(bytes: usize) -> Option<AddressSpace> {
        Some(AddressSpace { start: system::reserve(bytes.max(1))?, bytes })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte, which is at the start of a page of the system.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Makes a range accessible, widened to the system's pages. Bytes that were never committed are
    /// zeros. Returns false, without any change, if the system refuses.
    ///
    /// # Panics
    /// The range exceeds the address space.
    #[must_use]
    pub fn commit(&self, range: Range<usize>) -> bool {
        self.check(&range);
        let unit = system::page_bytes();
        system::commit(self.start, range.start / unit * unit..range.end.next_multiple_of(unit))
    }

    /// Returns the memory of a range to the system: that of the pages that are wholly inside it.
    /// The range must not be accessed until it is committed again. If the system refuses, the
    /// memory stays.
    ///
    /// # Panics
    /// The range exceeds the address space.
    pub fn decommit(&mut self, range: Range<usize>) {
        self.check(&range);
        let unit = system::page_bytes();
        // No other range shares the last page of the system.
        let end =
            if range.end == self.bytes { range.end.next_multiple_of(unit) } else { range.end / unit * unit };
        let range = range.start.next_multiple_of(unit)..end;
        if range.start < range.end {
            system::decommit(self.start, range);
        }
    }

    /// Asks the system for large pages, which need fewer TLB entries.
    pub fn prefer_huge_pages(&self) {
        system::prefer_huge_pages(self.start, self.bytes.max(1));
    }

    fn check(&self, range: &Range<usize>) {
        let fits = range.start <= range.end && range.end <= self.bytes;
        assert!(fits, "bytes {} to {} of {}", range.start, range.end, self.bytes);
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        system::free(self.start, self.bytes.max(1));
    }
}

#[cfg(unix)]
mod system {
    use std::ops::Range;
    use std::ptr::NonNull;

    #[cfg(target_os = "linux")]
    const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

    pub fn page_bytes() -> usize {
        // SAFETY: `sysconf` reads a constant and has no preconditions.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    }

    pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new anonymous map at an address that the system chooses; no existing map
        // changes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, FLAGS, -1, 0) };
        if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
    }

    pub fn commit(start: NonNull<u8>, range: Range<usize>) -> bool {
        // SAFETY: `AddressSpace::commit` checked `range` against the length of the map at `start`;
        // rounding up to a page stays inside the map's last page.
        let status = unsafe {
            let start = start.as_ptr().add(range.start).cast();
            libc::mprotect(start, range.len(), libc::PROT_READ | libc::PROT_WRITE)
        };
        status == 0
    }

    pub fn decommit(start: NonNull<u8>, range: Range<usize>) {
        // SAFETY: `AddressSpace::decommit` checked `range` against the map at `start`, and takes
        // `&mut self`, so nobody accesses it. A new map releases the pages, so that the system no
        // longer counts them.
        unsafe {
            let start = start.as_ptr().add(range.start).cast();
            libc::mmap(start, range.len(), libc::PROT_NONE, FLAGS | libc::MAP_FIXED, -1, 0);
        }
    }

    pub fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: `reserve` made the map at `start` with `bytes` bytes. Advice changes no contents,
        // and a refusal nothing.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, bytes);
    }

    pub fn free(start: NonNull<u8>, bytes: usize) {
        // SAFETY: `reserve` made the map at `start` with `bytes` bytes, and the `AddressSpace` that
        // owns it is being dropped.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(windows)]
mod system {
    use std::ffi::c_void;
    use std::ops::Range;
    use std::ptr::NonNull;

    const MEM_COMMIT: u32 = 0x1000;
    const MEM_RESERVE: u32 = 0x2000;
    const MEM_DECOMMIT: u32 = 0x4000;
    const MEM_RELEASE: u32 = 0x8000;
    const PAGE_NOACCESS: u32 = 0x01;
    const PAGE_READWRITE: u32 = 0x04;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn VirtualAlloc(address: *mut c_void, bytes: usize, kind: u32, protection: u32) -> *mut c_void;
        fn VirtualFree(address: *mut c_void, bytes: usize, kind: u32) -> i32;
    }

    /// Page size of every Windows that Rust supports.
    pub fn page_bytes() -> usize {
        4096
    }

    pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new reservation at an address that the system chooses.
        let start = unsafe { VirtualAlloc(std::ptr::null_mut(), bytes, MEM_RESERVE, PAGE_NOACCESS) };
        NonNull::new(start.cast())
    }

    pub fn commit(start: NonNull<u8>, range: Range<usize>) -> bool {
        // SAFETY: `AddressSpace::commit` checked `range` against the reservation at `start`.
        let start = unsafe {
            let start = start.as_ptr().add(range.start).cast();
            VirtualAlloc(start, range.len(), MEM_COMMIT, PAGE_READWRITE)
        };
        !start.is_null()
    }

    pub fn decommit(start: NonNull<u8>, range: Range<usize>) {
        // SAFETY: `AddressSpace::decommit` checked `range` against the reservation at `start`, and
        // takes `&mut self`, so nobody accesses it.
        unsafe { VirtualFree(start.as_ptr().add(range.start).cast(), range.len(), MEM_DECOMMIT) };
    }

    pub fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    pub fn free(start: NonNull<u8>, _bytes: usize) {
        // SAFETY: `start` is the whole reservation of `reserve`, which a length of 0 means, and its
        // owner is being dropped.
        unsafe { VirtualFree(start.as_ptr().cast(), 0, MEM_RELEASE) };
    }
}

#[cfg(not(any(unix, windows)))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ops::Range;
    use std::ptr::NonNull;

    pub fn page_bytes() -> usize {
        4096
    }

    pub fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes.checked_next_multiple_of(4096)?, 4096).ok()?;
        // SAFETY: `AddressSpace::reserve` asks for at least one byte, so the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub fn commit(_start: NonNull<u8>, _range: Range<usize>) -> bool {
        true
    }

    pub fn decommit(_start: NonNull<u8>, _range: Range<usize>) {}

    pub fn prefer_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

    pub fn free(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes.next_multiple_of(4096), 4096) {
            // SAFETY: `reserve` allocated `start` with this layout, and its owner is being dropped.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_address_space_than_memory_can_be_reserved() {
        let space = AddressSpace::reserve(1 << 38).unwrap();
        let at = 1 << 37;
        assert!(space.commit(at..at + 10));
        // SAFETY: the 10 bytes from `at` are committed.
        unsafe {
            assert_eq!(space.start().add(at + 9).read(), 0);
            space.start().add(at + 5).write(1);
        }
    }

    /// Pages become resident at their first access, and are released with their range. Pages at the
    /// ends of a range are shared with neighbours, and keep their contents.
    #[test]
    #[cfg(target_os = "linux")]
    fn memory_goes_with_its_range() {
        let (n, unit) = (64, system::page_bytes());
        let mut space = AddressSpace::reserve(n * unit + 100).unwrap();
        let resident = |space: &AddressSpace| {
            let mut pages = vec![0u8; n + 1];
            // SAFETY: `pages` has an entry for each page of the map.
            unsafe { libc::mincore(space.start().cast(), space.len(), pages.as_mut_ptr()) };
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        assert!(space.commit(0..space.len()));
        assert_eq!(resident(&space), 0);
        // SAFETY: the whole space is committed.
        unsafe { space.start().write_bytes(7, space.len()) };
        assert_eq!(resident(&space), n + 1);
        space.decommit(10 * unit - 50..20 * unit + 50);
        assert_eq!(resident(&space), n + 1 - 10);
        // SAFETY: both bytes are outside the decommitted range, so they are committed.
        let ends =
            unsafe { [space.start().add(10 * unit - 51).read(), space.start().add(20 * unit + 50).read()] };
        assert_eq!(ends, [7, 7]);
        space.decommit(60 * unit..space.len());
        assert_eq!(resident(&space), n - 10 - 4);
        assert!(space.commit(10 * unit..11 * unit));
        // SAFETY: the page is committed again.
        assert_eq!(unsafe { space.start().add(10 * unit).read() }, 0);
    }

    #[test]
    #[should_panic(expected = "bytes 5 to 11 of 10")]
    fn nothing_beyond_the_end() {
        let space = AddressSpace::reserve(10).unwrap();
        let _ = space.commit(5..11);
    }
}
