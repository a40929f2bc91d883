//! Memory of the GPU, and host memory that the GPU reads and writes.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use device::Result;

use super::{Address, Context, check, check_memory};

/// Memory of the GPU.
#[derive(Debug)]
pub struct Buffer {
    start: Address,
    context: Arc<Context>,
}

impl Buffer {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(context: &Arc<Context>, what: &str, len: usize) -> Result<Buffer> {
        context.enter()?;
        let len = len.max(256);
        let mut start = 0;
        // SAFETY: the context is current; the driver writes the live address `start`.
        check_memory(unsafe { sys::cuMemAlloc_v2(&mut start, len) }, what, len as u64)?;
        let buffer = Buffer { start, context: context.clone() };
        context.clear(start, len)?;
        Ok(buffer)
    }

    /// Address of the first byte.
    pub fn start(&self) -> Address {
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `self` owns the memory; the driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(self.start) };
        }
    }
}

/// Memory of the host that the GPU reads and writes.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    len: usize,
    context: Arc<Context>,
}

// SAFETY: `Pinned` owns its memory, and the driver frees it from any thread. The owner orders
// accesses of the CPU and the GPU.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn new(context: &Arc<Context>, what: &str, len: usize) -> Result<Pinned> {
        context.enter()?;
        let len = len.max(256);
        let mut start = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the driver writes the live address `start`.
        check_memory(unsafe { sys::cuMemHostAlloc(&mut start, len, flags) }, what, len as u64)?;
        // SAFETY: the driver just allocated `len` bytes at `start`.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, len) };
        Ok(Pinned { start: start.cast(), len, context: context.clone() })
    }

    /// The address by which the GPU reaches the memory.
    ///
    /// # Errors
    /// The driver refused.
    pub fn address(&self) -> Result<Address> {
        let mut address = 0;
        // SAFETY: the memory was allocated as mapped; the driver writes the live integer `address`.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.start.cast(), 0) };
        check(code, "pinned memory")?;
        Ok(address)
    }

    /// Writes values at a byte offset.
    ///
    /// # Panics
    /// The values do not fit. The layouts of regions prevent this.
    pub fn write<T: bytemuck::Pod>(&mut self, offset: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(offset + bytes.len() <= self.len, "{} bytes at {offset} of {}", bytes.len(), self.len);
        // SAFETY: the assertion keeps the bytes within `len`. Meanwhile the GPU reads only the
        // regions of steps in flight, which callers do not write.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) }
    }

    /// The word at an index.
    ///
    /// # Panics
    /// The word is outside the memory. The layouts of regions prevent this.
    pub fn word(&self, index: usize) -> u32 {
        assert!(index * 4 + 4 <= self.len, "word {index} of {} bytes", self.len);
        // SAFETY: the assertion keeps the word within `len`, and `start` is aligned to a page. The
        // GPU writes the word before an event that callers have waited for.
        unsafe { self.start.cast::<u32>().add(index).read_volatile() }
    }

    /// A range of bytes. Callers must have waited for the steps that write it.
    ///
    /// # Panics
    /// The range is outside the memory.
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: the assertion keeps the range within `len`; callers have waited for its writers.
        unsafe { std::slice::from_raw_parts(self.start.add(offset), len) }
    }

    /// Like [`Self::bytes`], but mutable.
    ///
    /// # Panics
    /// The range is outside the memory.
    pub fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: the assertion keeps the range within `len`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `self` owns the memory; the driver waits for work that uses it.
            unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

/// A range of the GPU's address space, whose chunks are mapped to memory on demand.
#[derive(Debug)]
pub struct Pool {
    start: Address,
    /// Bytes of a chunk.
    chunk: usize,
    /// Memory of each chunk; `None`: not mapped.
    chunks: Vec<Option<sys::CUmemGenericAllocationHandle>>,
    context: Arc<Context>,
}

impl Pool {
    /// Reserves address space.
    ///
    /// # Errors
    /// The driver refused.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pool> {
        context.enter()?;
        let properties = properties(context.device);
        let mut chunk = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the driver reads `properties` and writes the live integer `chunk`.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&mut chunk, &properties, minimum) };
        check(code, "the unit of memory")?;
        let n = bytes.max(1).div_ceil(chunk.max(1));
        let mut start = 0;
        // SAFETY: the driver writes the live address `start`.
        let code = unsafe { sys::cuMemAddressReserve(&mut start, n * chunk, 0, 0, 0) };
        check_memory(code, "address space of KV pages", (n * chunk) as u64)?;
        Ok(Pool { start, chunk, chunks: vec![None; n], context: context.clone() })
    }

    /// Address of the first byte.
    pub fn start(&self) -> Address {
        self.start
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Returns true if a chunk is mapped.
    pub fn has(&self, chunk: usize) -> bool {
        self.chunks.get(chunk).is_some_and(Option::is_some)
    }

    /// Maps memory to a chunk. Returns false if the GPU has too little memory.
    ///
    /// # Errors
    /// The driver failed.
    pub fn map(&mut self, chunk: usize) -> Result<bool> {
        if self.has(chunk) || chunk >= self.chunks.len() {
            return Ok(true);
        }
        self.context.enter()?;
        let properties = properties(self.context.device);
        let mut handle = 0;
        // SAFETY: the driver reads `properties` and writes the live integer `handle`.
        match unsafe { sys::cuMemCreate(&mut handle, self.chunk, &properties, 0) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(false),
            code => check(code, "memory of KV pages")?,
        }
        let at = self.start + (chunk * self.chunk) as u64;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: `chunk` is below `chunks.len()`, so that the range is within the reserved space.
        // It is not mapped yet, and `handle` has `self.chunk` bytes.
        let mapped = unsafe { sys::cuMemMap(at, self.chunk, 0, handle, 0) };
        let result = check(mapped, "mapping KV pages").and_then(|()| {
            // SAFETY: `cuMemMap` just mapped this range.
            check(unsafe { sys::cuMemSetAccess(at, self.chunk, &access, 1) }, "mapping KV pages")
        });
        if let Err(error) = result {
            // SAFETY: `cuMemCreate` just returned `handle`. If the range is not mapped,
            // `cuMemUnmap` fails without effect.
            unsafe {
                sys::cuMemUnmap(at, self.chunk);
                sys::cuMemRelease(handle);
            }
            return Err(error);
        }
        self.chunks[chunk] = Some(handle);
        Ok(true)
    }

    /// Unmaps a chunk and frees its memory. No work in flight may use it.
    ///
    /// # Errors
    /// The driver failed.
    pub fn unmap(&mut self, chunk: usize) -> Result<()> {
        let Some(handle) = self.chunks.get_mut(chunk).and_then(Option::take) else { return Ok(()) };
        self.context.enter()?;
        let at = self.start + (chunk * self.chunk) as u64;
        // SAFETY: `handle` is mapped at this chunk, and callers have waited for the work that uses
        // it.
        unsafe {
            check(sys::cuMemUnmap(at, self.chunk), "unmapping KV pages")?;
            check(sys::cuMemRelease(handle), "memory of KV pages")
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.context.enter().is_err() || self.context.finish().is_err() {
            return;
        }
        for chunk in 0..self.chunks.len() {
            if self.unmap(chunk).is_err() {
                return;
            }
        }
        // SAFETY: `self` owns the address space, and the loop above has unmapped all chunks.
        unsafe { sys::cuMemAddressFree(self.start, self.chunks.len() * self.chunk) };
    }
}

fn properties(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    // SAFETY: zeros are valid in this plain struct: no flags and no handle type.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties
}
