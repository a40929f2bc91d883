//! The structs of `cpp/runtime.h` that Rust and compiled libraries share.

use std::ffi::{c_char, c_void};

pub const OPERATIONS: usize = 6;
pub const BINDINGS: usize = 31;
pub const MAX_CONSTANTS: usize = 128;
/// The first bytes of the table of function constants in a library's file.
pub const CONSTANTS_MAGIC: &[u8; 32] = b"MSL function constants table 01\0";

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MslBuffer {
    pub address: *mut u8,
    pub length: u64,
    pub index: u32,
    pub writable: u16,
    pub noted: u16,
    pub read_sectors: *mut u64,
    pub written_sectors: *mut u64,
    pub writers: *mut u8,
    pub totals: *mut u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MslLength {
    pub index: u32,
    pub length: u32,
}

#[repr(C)]
pub struct MslDispatch {
    pub function: u32,
    pub threadgroups: [u32; 3],
    pub threads: [u32; 3],
    pub order: u32,
    pub seed: u64,
    pub buffers: *const MslBuffer,
    pub lengths: *const MslLength,
    pub n_buffers: u32,
    pub n_lengths: u32,
    pub resources: *const MslBuffer,
    pub n_resources: u32,
    pub flush: u32,
    pub ulp: u32,
    pub most_steps: u64,
    pub next: *mut u64,
    pub stop: *mut u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MslCounters {
    pub threadgroups: u64,
    pub threads: u64,
    pub operations: [u64; OPERATIONS],
    pub threadgroup_barriers: u64,
    pub threadgroup_read: u64,
    pub threadgroup_written: u64,
    pub read: [u64; BINDINGS],
    pub written: [u64; BINDINGS],
    pub switches: u64,
    pub steps: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MslFault {
    pub kind: u32,
    pub write: u32,
    pub address: u64,
    pub size: u64,
    pub code: u64,
    pub lanes: u32,
    pub count: u32,
    pub line: u32,
    pub column: u32,
    pub threadgroup: [u32; 3],
    pub thread: [u32; 3],
    pub file: [c_char; 256],
    pub name: [c_char; 64],
}

impl MslFault {
    pub fn none() -> Self {
        MslFault {
            kind: 0,
            write: 0,
            address: 0,
            size: 0,
            code: 0,
            lanes: 0,
            count: 0,
            line: 0,
            column: 0,
            threadgroup: [0; 3],
            thread: [0; 3],
            file: [0; 256],
            name: [0; 64],
        }
    }

    pub fn text(field: &[c_char]) -> String {
        let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// `msl_fault_kind`.
pub mod kind {
    pub const OUT_OF_BOUNDS: u32 = 1;
    pub const READ_ONLY: u32 = 2;
    pub const THREADGROUP_BOUNDS: u32 = 3;
    pub const UNINITIALISED: u32 = 4;
    pub const DIVERGENT_BARRIER: u32 = 5;
    pub const DIVERGENT_SIMDGROUP: u32 = 6;
    pub const INACTIVE_LANE: u32 = 7;
    pub const TOO_MUCH_THREADGROUP: u32 = 8;
    pub const MISALIGNED: u32 = 9;
    pub const ALIASED: u32 = 10;
    pub const UNORDERED: u32 = 11;
    pub const OVERDUE: u32 = 12;
}

pub type MemoryNew = unsafe extern "C" fn() -> *mut c_void;
pub type Run = unsafe extern "C" fn(*const MslDispatch, *mut c_void, *mut MslCounters, *mut MslFault) -> u32;
pub type Present = unsafe extern "C" fn(u32, u32) -> bool;
