//! Memory that detects forbidden accesses of a kernel.

/// Bytes that end with a page, before an unreadable page: a kernel that reads past its weights
/// crashes.
#[cfg(unix)]
pub(super) struct Guarded {
    base: *mut u8,
    mapped: usize,
    start: usize,
    len: usize,
}

#[cfg(unix)]
impl Guarded {
    pub(super) fn new(bytes: &[u8]) -> Guarded {
        const PAGE: usize = 65536;
        let body = bytes.len().next_multiple_of(PAGE);
        let mapped = body + PAGE;
        // SAFETY: the map is new, its last page becomes unreadable, and only its body is written.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            let base: *mut u8 = base.cast();
            assert_eq!(libc::mprotect(base.add(body).cast(), PAGE, libc::PROT_NONE), 0);
            let start = body - bytes.len();
            base.add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Guarded { base, mapped, start, len: bytes.len() }
        }
    }

    fn as_ptr(&self) -> *const u8 {
        self.base.wrapping_add(self.start)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `new` wrote these `len` bytes, and nothing changes them.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

#[cfg(unix)]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped` are the map of `new`, which nothing uses any more.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

/// Plain memory on other systems than Unix.
#[cfg(not(unix))]
pub(super) struct Guarded(Vec<u8>);

#[cfg(not(unix))]
impl Guarded {
    pub(super) fn new(bytes: &[u8]) -> Guarded {
        Guarded(bytes.to_vec())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Memory aligned to 64 bytes, filled with a byte that makes every f32 a NaN.
pub(super) struct Aligned(Vec<u8>);

impl Aligned {
    pub(super) fn new(len: usize) -> Aligned {
        Aligned(vec![0xff; len + 64])
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        let start = self.start();
        self.0[start..].as_mut_ptr()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0[self.start()..]
    }

    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(64)
    }
}
