//! Memory for running threadgroups: stacks of lanes, and threadgroup memory. One library's runtime
//! allocates it, and all libraries reuse it.

use crate::abi::MemoryNew;
use crate::{MAX_BINDINGS, MAX_BYTES};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Memory of one worker.
pub(crate) struct Worker {
    /// The result of `msl_memory_new`.
    pub memory: *mut c_void,
    /// Storage of by-value arguments during a dispatch, [`SLOT`] bytes apart.
    pub bytes: Box<[Aligned]>,
}

// SAFETY: Only one thread at a time uses a worker, and its memory is not tied to a thread.
unsafe impl Send for Worker {}

/// 16 bytes, aligned to 16 as `setBytes` does.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Aligned([u8; 16]);

/// Bytes from one by-value argument to the next, twice the maximum length, so that there is a gap
/// between them.
pub(crate) const SLOT: usize = 2 * MAX_BYTES;

static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

impl Worker {
    /// An idle worker, or a new one; `None` if the system has no memory.
    pub fn take(new: MemoryNew) -> Option<Self> {
        if let Some(worker) = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Some(worker);
        }
        // SAFETY: `new` is a function of a loaded library, and has no arguments.
        let memory = unsafe { new() };
        let bytes = vec![Aligned([0; 16]); SLOT / 16 * MAX_BINDINGS as usize].into_boxed_slice();
        (!memory.is_null()).then_some(Worker { memory, bytes })
    }

    /// Returns the worker for reuse by the next dispatch.
    pub fn put_back(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    /// Copies `value`, at most [`MAX_BYTES`], into slot `n`. Returns its address there.
    pub fn hold(&mut self, n: usize, value: &[u8]) -> *mut u8 {
        let to = self.bytes[n * SLOT / 16..(n + 1) * SLOT / 16].as_mut_ptr().cast::<u8>();
        // SAFETY: The slot at `to` has `SLOT` bytes, and at most `MAX_BYTES < SLOT` are written;
        // `value` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len().min(MAX_BYTES)) };
        to
    }
}
