//! The operating system's view of memory: free memory, memory pressure, address space that is
//! committed in parts, mapped files that shrink, and the limit of open files.
//!
//! The sources of macOS and Windows are compiled for their targets, but have never run.
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
pub use files::{check_replaceable, raise_open_files};
pub use map_watch::MapWatch;
pub use source::{Bound, MemorySource, Pressure, Reading, Script, system_source};

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Installed memory, or the limit of a container.
    pub total: u64,
    /// Free memory, including page cache that can be dropped.
    pub free: u64,
}

/// Total and free memory in bytes. On Linux a container's limit counts (cgroup v2 and v1), on
/// Windows a job's limit. Zeros if the system does not report them.
pub fn system_memory() -> SystemMemory {
    system::memory().unwrap_or(SystemMemory { total: 0, free: 0 })
}

/// Peak resident memory of this process so far, in bytes, including mapped files. `None` if the
/// system does not report it.
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
