//! The machine's memory: what is there, asked of the system now; what it says while a program runs; and address space that is
//! committed in parts; mapped files that shrink; and how many files a process may have open.
//!
//! The sources of macOS and Windows are checked by the compiler for their targets. They never ran.
#![allow(unsafe_code)]
#![deny(missing_docs)]

mod address_space;
mod files;
mod map_watch;
mod source;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "macos", windows)), path = "other.rs")]
mod system;

pub use address_space::AddressSpace;
pub use files::raise_open_files;
pub use map_watch::MapWatch;
pub use source::{Bound, MemorySource, Pressure, Reading, Script, system_source};

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Installed, or what a container's limit allows.
    pub total: u64,
    /// Free now, page cache that can be dropped included.
    pub free: u64,
}

/// What the machine has and what is free, in bytes. On Linux a container's limit counts (cgroup v2 and v1), on Windows a job's.
/// Zeros where the system does not say.
pub fn system_memory() -> SystemMemory {
    system::memory().unwrap_or(SystemMemory { total: 0, free: 0 })
}

/// The most memory that this process has had resident so far, in bytes, views of files included. `None` where the system
/// does not say.
pub fn peak_resident_memory() -> Option<u64> {
    system::peak()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = system_memory();
        assert!(memory.total > 1 << 26, "{memory:?}");
        assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    }
}
