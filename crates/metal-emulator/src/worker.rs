//! Memory in which threadgroups run: stacks of lanes, threadgroup memory. Made by a library's runtime, used by any, kept.

use crate::abi::MemoryNew;
use crate::{MAX_BINDINGS, MAX_BYTES};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Memory of one worker.
pub(crate) struct Worker {
    /// What `msl_memory_new` gave.
    pub memory: *mut c_void,
    /// Where the bytes passed by value lie during a dispatch, [`SLOT`] apart.
    pub bytes: Box<[Aligned]>,
}

// SAFETY: A worker is used by one thread at a time; nothing in it belongs to a thread.
unsafe impl Send for Worker {}

/// 16 bytes at a multiple of 16, as `setBytes` aligns.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Aligned([u8; 16]);

/// Bytes from one by-value argument to the next: as much again as one may have stays unused between them.
pub(crate) const SLOT: usize = 2 * MAX_BYTES;

static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

impl Worker {
    /// One that waits, or a new one; none where memory is refused.
    pub fn take(new: MemoryNew) -> Option<Self> {
        if let Some(worker) = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Some(worker);
        }
        // SAFETY: The function of a loaded library; it takes nothing.
        let memory = unsafe { new() };
        let bytes = vec![Aligned([0; 16]); SLOT / 16 * MAX_BINDINGS as usize].into_boxed_slice();
        (!memory.is_null()).then_some(Worker { memory, bytes })
    }

    /// Keeps it for the next dispatch.
    pub fn put_back(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    /// Copies `value`, at most [`MAX_BYTES`], into slot `n`; its address there.
    pub fn hold(&mut self, n: usize, value: &[u8]) -> *mut u8 {
        let to = self.bytes[n * SLOT / 16..(n + 1) * SLOT / 16].as_mut_ptr().cast::<u8>();
        // SAFETY: A slot has room for what a dispatch may pass by value, which was checked.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len().min(MAX_BYTES)) };
        to
    }
}
