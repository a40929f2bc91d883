//! Memory shared by the host and kernels.

use crate::error::Error;
use std::ptr::NonNull;
use std::sync::Mutex;

/// Metal's alignment of allocations and of no-copy buffers.
const ALIGNMENT: usize = 16 << 10;
/// Unmapped address space around a buffer, so that an access past its end does not hit another
/// buffer.
const GAP: usize = 256 << 20;

/// Memory of a known length in bytes, like an `MTLBuffer` with shared storage.
///
/// Kernels write through a shared reference, as a GPU does. Do not read the contents while a
/// dispatch that writes them runs on another thread.
#[derive(Debug)]
pub struct Buffer {
    address: NonNull<u8>,
    length: usize,
    writable: bool,
    /// The mapping with the contents: its start (including the gap before it) and total length.
    /// None for borrowed memory.
    mapping: Option<(usize, usize)>,
    /// Additional mappings of the same memory, so that a buffer bound twice in a dispatch has two
    /// address ranges.
    views: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: The memory is plain bytes that no thread owns. The type's documentation forbids the host
// to read it while a kernel writes it.
unsafe impl Send for Buffer {}
// SAFETY: See `Send`: shared references only read pointers and lengths, and `views` is behind a
// mutex.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `length` bytes of zeros, at an address that is a multiple of 16 KiB.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the system has no memory.
    pub fn new(length: usize) -> Result<Self, Error> {
        let refused = || Error::Memory { bytes: length, source: std::io::Error::last_os_error() };
        let (start, whole) = reserve(length).ok_or_else(refused)?;
        let address = contents(start);
        // SAFETY: The range from `contents(start)` is within the reservation of `whole` bytes made
        // above, which nothing else uses.
        let p = unsafe {
            libc::mmap(
                address as *mut _,
                rounded(length),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        match NonNull::new(p.cast::<u8>()) {
            Some(address) if p != libc::MAP_FAILED => Ok(Buffer {
                address,
                length,
                writable: true,
                mapping: Some((start, whole)),
                views: Mutex::default(),
            }),
            _ => {
                let error = refused();
                // SAFETY: `start` and `whole` are the reservation made above, which nothing else
                // uses.
                unsafe { libc::munmap(start as *mut _, whole) };
                Err(error)
            }
        }
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut buffer = Self::new(bytes.len())?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        Ok(buffer)
    }

    /// A view of memory owned by the caller, like `newBufferWithBytesNoCopy`. Kernels that write to
    /// it fault unless `writable`.
    ///
    /// # Safety
    ///
    /// `length` bytes from `address` must stay readable, and writable if `writable`, as long as the
    /// buffer lives.
    pub unsafe fn borrowed(address: NonNull<u8>, length: usize, writable: bool) -> Self {
        Buffer { address, length, writable, mapping: None, views: Mutex::default() }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns true if kernels may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns true if the memory is the caller's, with one address for all of its bindings.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.mapping.is_none()
    }

    /// The address of the contents.
    pub fn contents(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The address at which kernels reach the contents through a pointer in memory, like
    /// `MTLBuffer.gpuAddress`: see [`crate::Resource`].
    pub fn gpu_address(&self) -> u64 {
        self.contents() as u64
    }

    /// The contents.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `address` has `length` initialised bytes, which live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }

    /// The contents, mutable.
    ///
    /// # Panics
    ///
    /// If the buffer borrows read-only memory.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.writable, "the buffer borrows read-only memory");
        // SAFETY: `address` has `length` initialised, writable bytes, which live as long as `self`;
        // `&mut self` is unique.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }

    /// An address of the contents that no other binding of the dispatch uses, for the `n`th binding
    /// of this buffer, from 0. Borrowed memory has a single address.
    pub(crate) fn view(&self, n: usize) -> Result<*mut u8, Error> {
        if n == 0 || self.mapping.is_none() {
            return Ok(self.contents());
        }
        let mut views = self.views.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while views.len() < n {
            let refused = || Error::Memory { bytes: self.length, source: std::io::Error::last_os_error() };
            let (start, whole) = reserve(self.length).ok_or_else(refused)?;
            let address = contents(start);
            // SAFETY: An old size of zero makes a second mapping of shared memory at a range that
            // was just reserved.
            let p = unsafe {
                libc::mremap(
                    self.address.as_ptr().cast(),
                    0,
                    rounded(self.length),
                    libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    address as *mut libc::c_void,
                )
            };
            if p == libc::MAP_FAILED {
                let error = refused();
                // SAFETY: `start` and `whole` are the range reserved above, which nothing else
                // uses.
                unsafe { libc::munmap(start as *mut _, whole) };
                return Err(error);
            }
            views.push((start, whole));
        }
        Ok(contents(views[n - 1].0) as *mut u8)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let views = self.views.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (start, whole) in self.mapping.iter().chain(views.iter()) {
            // SAFETY: `start` and `whole` are a mapping that this buffer made, gaps included, and
            // nothing refers to it any more.
            unsafe { libc::munmap(*start as *mut _, *whole) };
        }
    }
}

fn rounded(length: usize) -> usize {
    length.max(1).next_multiple_of(4096)
}

/// Reserves address space for `length` bytes with a gap on either side. Returns its start and total
/// length.
fn reserve(length: usize) -> Option<(usize, usize)> {
    let whole = rounded(length).checked_add(2 * GAP + ALIGNMENT)?;
    // SAFETY: A new anonymous mapping at an address of the system's choice, without access; it
    // replaces nothing.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            whole,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (p != libc::MAP_FAILED).then_some((p as usize, whole))
}

/// Address at which the contents of a reserved range start.
fn contents(start: usize) -> usize {
    (start + GAP).next_multiple_of(ALIGNMENT)
}
