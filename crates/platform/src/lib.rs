//! The machine's memory: what is there, asked of the system now, and address space that is committed in parts.
#![allow(unsafe_code)]
#![deny(missing_docs)]

mod address_space;

pub use address_space::AddressSpace;

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Installed, or what a container's limit allows.
    pub total: u64,
    /// Free now, page cache that can be dropped included.
    pub free: u64,
}

/// What the machine has and what is free, in bytes. On Linux a container's limit counts (cgroup v2 and v1). Zeros where
/// the system does not say.
pub fn system_memory() -> SystemMemory {
    system::memory().unwrap_or(SystemMemory { total: 0, free: 0 })
}

/// The most memory that this process has had resident so far, in bytes, views of files included. `None` where the system
/// does not say.
pub fn peak_resident_memory() -> Option<u64> {
    system::peak()
}

#[cfg(target_os = "linux")]
mod system {
    use std::path::Path;

    use crate::SystemMemory;

    /// `/proc/meminfo`, bounded by every control group that this process stands in.
    pub fn memory() -> Option<SystemMemory> {
        let mut memory = machine(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
        for line in std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default().lines() {
            // `hierarchy:controllers:path`; version 2 is hierarchy 0 without controllers.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (root, version) = match controllers {
                "" => ("/sys/fs/cgroup", &V2),
                list if list.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", &V1),
                _ => continue,
            };
            // A limit may stand at any level. Inside a container the path may not exist, and the root is our own group.
            for folder in Path::new(root).join(path.trim_start_matches('/')).ancestors() {
                if let Some(group) = version.read(folder) {
                    memory.total = memory.total.min(group.total);
                    memory.free = memory.free.min(group.free);
                }
                if folder == Path::new(root) {
                    break;
                }
            }
        }
        Some(memory)
    }

    /// `VmHWM` of `/proc/self/status`, which is in KiB.
    pub fn peak() -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    }

    /// `MemTotal` and `MemAvailable`, which are in KiB.
    pub fn machine(meminfo: &str) -> Option<SystemMemory> {
        let field = |name: &str| {
            let line = meminfo.lines().find(|line| line.split(':').next() == Some(name))?;
            Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
        };
        Some(SystemMemory { total: field("MemTotal")?, free: field("MemAvailable")? })
    }

    /// File names of a control group version.
    struct Version {
        limit: &'static str,
        used: &'static str,
        /// Page cache in `memory.stat`, which counts as used and can be dropped.
        cache: [&'static str; 2],
    }

    const V2: Version =
        Version { limit: "memory.max", used: "memory.current", cache: ["inactive_file", "active_file"] };
    const V1: Version = Version {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cache: ["total_inactive_file", "total_active_file"],
    };

    impl Version {
        /// The group's limit, if it has one (`max` is none).
        fn read(&self, folder: &Path) -> Option<SystemMemory> {
            let number =
                |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
            let (total, used) = (number(self.limit)?, number(self.used)?);
            let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let fields = stat.lines().filter_map(|line| line.split_once(' '));
            let cache: u64 = fields
                .filter(|(key, _)| self.cache.contains(key))
                .filter_map(|(_, n)| n.parse::<u64>().ok())
                .sum();
            Some(SystemMemory { total, free: total.saturating_sub(used.saturating_sub(cache)) })
        }
    }
}

#[cfg(target_os = "macos")]
mod system {
    use crate::SystemMemory;

    /// `ru_maxrss`, which is in bytes here.
    pub fn peak() -> Option<u64> {
        // SAFETY: a structure of integers, for which zeros are valid; it outlives the call.
        let (status, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::getrusage(libc::RUSAGE_SELF, &mut usage), usage)
        };
        if status == 0 { u64::try_from(usage.ru_maxrss).ok() } else { None }
    }

    /// `hw.memsize`, and the pages that are free (speculative ones are among them), inactive or purgeable.
    #[allow(deprecated)] // libc's Mach calls; another crate for four of them is not worth it.
    pub fn memory() -> Option<SystemMemory> {
        let mut total = 0u64;
        let mut size = size_of::<u64>();
        // SAFETY: the name ends in NUL, `total` and `size` outlive the call and `size` is that of `total`.
        let status = unsafe {
            libc::sysctlbyname(
                c"hw.memsize".as_ptr(),
                (&raw mut total).cast(),
                &mut size,
                std::ptr::null_mut(),
                0,
            )
        };
        if status != 0 {
            return None;
        }
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut pages: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
        let mut count = libc::HOST_VM_INFO64_COUNT;
        // SAFETY: `pages` holds `count` integers and both outlive the call.
        let status = unsafe {
            let info = (&raw mut pages).cast();
            libc::host_statistics64(libc::mach_host_self(), libc::HOST_VM_INFO64, info, &mut count)
        };
        // SAFETY: no arguments that could be wrong.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if status != libc::KERN_SUCCESS || page_bytes <= 0 {
            return Some(SystemMemory { total, free: 0 });
        }
        let reclaimable = [pages.free_count, pages.inactive_count, pages.purgeable_count];
        let n_pages: u64 = reclaimable.iter().map(|n| u64::from(*n)).sum();
        Some(SystemMemory { total, free: (n_pages * page_bytes as u64).min(total) })
    }
}

#[cfg(windows)]
mod system {
    use crate::SystemMemory;

    /// `MEMORYSTATUSEX` of the Windows API.
    #[repr(C)]
    struct MemoryStatus {
        length: u32,
        load_percent: u32,
        total_physical: u64,
        free_physical: u64,
        total_page_file: u64,
        free_page_file: u64,
        total_virtual: u64,
        free_virtual: u64,
        free_extended_virtual: u64,
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> i32;
    }

    /// Not asked for.
    pub fn peak() -> Option<u64> {
        None
    }

    /// Physical memory; of what is free, standby pages are part.
    pub fn memory() -> Option<SystemMemory> {
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut status: MemoryStatus = unsafe { std::mem::zeroed() };
        status.length = size_of::<MemoryStatus>() as u32;
        // SAFETY: `status` outlives the call and `length` is its size, as the call demands.
        let done = unsafe { GlobalMemoryStatusEx(&mut status) };
        (done != 0).then_some(SystemMemory { total: status.total_physical, free: status.free_physical })
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod system {
    use crate::SystemMemory;

    pub fn memory() -> Option<SystemMemory> {
        None
    }

    pub fn peak() -> Option<u64> {
        None
    }
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

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB\n";
        let expected = SystemMemory { total: 24_000_000 * 1024, free: 12_000_000 * 1024 };
        assert_eq!(system::machine(text), Some(expected));
        assert_eq!(system::machine("MemTotal: x kB"), None);
    }
}
