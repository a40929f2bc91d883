//! Memory of the GPU, and of the host where the GPU reads and writes it.

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
    /// Take zeroed memory.
    ///
    /// # Errors
    /// It was refused.
    pub fn new(context: &Arc<Context>, what: &str, len: usize) -> Result<Buffer> {
        context.enter()?;
        let len = len.max(256);
        let mut start = 0;
        // SAFETY: writes an address.
        check_memory(unsafe { sys::cuMemAlloc_v2(&mut start, len) }, what, len as u64)?;
        let buffer = Buffer { start, context: context.clone() };
        context.clear(start, len)?;
        Ok(buffer)
    }

    /// Its first byte.
    pub fn start(&self) -> Address {
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the memory is this buffer's; the driver waits for work that uses it.
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

// SAFETY: plain memory; who may touch which part when is its owner's to say.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Take zeroed memory.
    ///
    /// # Errors
    /// It was refused.
    pub fn new(context: &Arc<Context>, what: &str, len: usize) -> Result<Pinned> {
        context.enter()?;
        let len = len.max(256);
        let mut start = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes an address.
        check_memory(unsafe { sys::cuMemHostAlloc(&mut start, len, flags) }, what, len as u64)?;
        // SAFETY: the memory was just taken, with so many bytes.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, len) };
        Ok(Pinned { start: start.cast(), len, context: context.clone() })
    }

    /// Where the GPU finds it.
    ///
    /// # Errors
    /// The driver refused.
    pub fn address(&self) -> Result<Address> {
        let mut address = 0;
        // SAFETY: the memory is mapped; writes an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.start.cast(), 0) };
        check(code, "pinned memory")?;
        Ok(address)
    }

    /// Write numbers.
    ///
    /// # Panics
    /// They do not fit, which the layouts see to.
    pub fn write<T: bytemuck::Pod>(&mut self, offset: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(offset + bytes.len() <= self.len, "{} bytes at {offset} of {}", bytes.len(), self.len);
        // SAFETY: they fit, as was just checked. The GPU may read other parts meanwhile, of steps
        // in flight.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) }
    }

    /// A word.
    ///
    /// # Panics
    /// It is not within the memory, which the layouts see to.
    pub fn word(&self, index: usize) -> u32 {
        assert!(index * 4 + 4 <= self.len, "word {index} of {} bytes", self.len);
        // SAFETY: it lies within the memory, which is aligned to a page. The GPU writes it before
        // the event that its readers have waited for.
        unsafe { self.start.cast::<u32>().add(index).read_volatile() }
    }

    /// Some bytes. The GPU does not write them meanwhile: callers have waited for the steps that
    /// do.
    ///
    /// # Panics
    /// They are not within the memory.
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: within the memory, as was just checked.
        unsafe { std::slice::from_raw_parts(self.start.add(offset), len) }
    }

    /// As [`Self::bytes`], to write.
    ///
    /// # Panics
    /// As there.
    pub fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: as above; the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the memory is this one's; the driver waits for work that uses it.
            unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

/// Address space of the GPU, of which chunks have memory.
#[derive(Debug)]
pub struct Pool {
    start: Address,
    /// Bytes of a chunk.
    chunk: usize,
    /// By chunk: its memory.
    chunks: Vec<Option<sys::CUmemGenericAllocationHandle>>,
    context: Arc<Context>,
}

impl Pool {
    /// Reserve address space.
    ///
    /// # Errors
    /// The driver refused.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pool> {
        context.enter()?;
        let properties = properties(context.device);
        let mut chunk = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: reads a struct, writes an integer.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&mut chunk, &properties, minimum) };
        check(code, "the unit of memory")?;
        let n = bytes.max(1).div_ceil(chunk.max(1));
        let mut start = 0;
        // SAFETY: writes an address.
        let code = unsafe { sys::cuMemAddressReserve(&mut start, n * chunk, 0, 0, 0) };
        check_memory(code, "address space of KV pages", (n * chunk) as u64)?;
        Ok(Pool { start, chunk, chunks: vec![None; n], context: context.clone() })
    }

    /// Its first byte.
    pub fn start(&self) -> Address {
        self.start
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether a chunk has memory.
    pub fn has(&self, chunk: usize) -> bool {
        self.chunks.get(chunk).is_some_and(Option::is_some)
    }

    /// Give a chunk memory. False: it was refused.
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
        // SAFETY: reads a struct, writes a handle.
        match unsafe { sys::cuMemCreate(&mut handle, self.chunk, &properties, 0) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(false),
            code => check(code, "memory of KV pages")?,
        }
        let at = self.start + (chunk * self.chunk) as u64;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the chunk lies within the address space and has no memory yet; the handle is as
        // large.
        let mapped = unsafe { sys::cuMemMap(at, self.chunk, 0, handle, 0) };
        let result = check(mapped, "mapping KV pages").and_then(|()| {
            // SAFETY: the chunk was just mapped.
            check(unsafe { sys::cuMemSetAccess(at, self.chunk, &access, 1) }, "mapping KV pages")
        });
        if let Err(error) = result {
            // SAFETY: the handle was just made; unmapping what is not mapped fails and does
            // nothing.
            unsafe {
                sys::cuMemUnmap(at, self.chunk);
                sys::cuMemRelease(handle);
            }
            return Err(error);
        }
        self.chunks[chunk] = Some(handle);
        Ok(true)
    }

    /// Take a chunk's memory back. Nothing that uses it may be in flight.
    ///
    /// # Errors
    /// The driver failed.
    pub fn unmap(&mut self, chunk: usize) -> Result<()> {
        let Some(handle) = self.chunks.get_mut(chunk).and_then(Option::take) else { return Ok(()) };
        self.context.enter()?;
        let at = self.start + (chunk * self.chunk) as u64;
        // SAFETY: the chunk has this memory.
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
        // SAFETY: the address space is this pool's, and has no memory any more.
        unsafe { sys::cuMemAddressFree(self.start, self.chunks.len() * self.chunk) };
    }
}

fn properties(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    // SAFETY: a plain struct, of which zeros are valid: no flags, no handle type.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties
}
