//! Facts about the processor: usable threads, where to pin them, its name.

use crate::isa::Isa;

/// Number of processors that this process may use, by its affinity mask and its container's quota.
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Default number of threads: one for each core, at most [`available`]. A core's second hardware
/// thread adds nothing, since one already fills the vector units and the memory bandwidth. On
/// Apple's chips only performance cores count, since all workers would wait for the slowest.
pub fn default_threads() -> usize {
    let cores = n_performance_cores().or_else(|| n_cores(&allowed()));
    cores.map_or_else(available, |cores| cores.min(available())).max(1)
}

/// Processors of this thread's affinity mask, ascending; empty if the system has no such mask.
#[cfg(target_os = "linux")]
pub fn allowed() -> Vec<usize> {
    // SAFETY: `set` is plain data, for which zeros are valid, and the size passed is its own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Always empty: only Linux has an affinity mask.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Processors to pin `n_threads` workers to: one each if the workers fill every processor of the
/// process. With fewer workers none is pinned, since two processes would choose the same
/// processors.
pub fn pinning(n_threads: usize) -> Vec<usize> {
    let allowed = allowed();
    if n_threads > 1 && allowed.len() == n_threads && available() == n_threads { allowed } else { Vec::new() }
}

/// Pins the calling thread to a processor. Failure is ignored, since this is only a hint.
#[cfg(target_os = "linux")]
pub fn pin(cpu: usize) {
    // SAFETY: `set` is plain data and the size passed is its own; `cpu` was read from such a set,
    // so it is in range.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// No effect: only Linux pins threads.
#[cfg(not(target_os = "linux"))]
pub fn pin(_cpu: usize) {}

/// Number of performance cores, if the system distinguishes them.
#[cfg(target_os = "macos")]
fn n_performance_cores() -> Option<usize> {
    let (mut n, mut len) = (0i32, size_of::<i32>());
    // SAFETY: the name ends with a zero byte; `value` points to an i32, and `len` is its size.
    let rc = unsafe {
        let value = (&raw mut n).cast();
        libc::sysctlbyname(c"hw.perflevel0.physicalcpu".as_ptr(), value, &mut len, std::ptr::null_mut(), 0)
    };
    if rc == 0 { usize::try_from(n).ok().filter(|n| *n > 0) } else { None }
}

/// Always `None`: only macOS distinguishes cores.
#[cfg(not(target_os = "macos"))]
fn n_performance_cores() -> Option<usize> {
    None
}

/// Number of distinct cores among these processors, if the system reports them.
fn n_cores(cpus: &[usize]) -> Option<usize> {
    let mut cores = Vec::new();
    for cpu in cpus {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(path).ok()?;
        if !cores.contains(&siblings) {
            cores.push(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Name of the processor, as far as the system reports it.
pub fn name() -> String {
    let from_system = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = text.lines().find(|l| l.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    from_system().unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// Bytes of the last-level cache, if the system reports them.
pub fn last_level_cache() -> Option<usize> {
    let base = "/sys/devices/system/cpu/cpu0/cache";
    let sizes = (0..8).filter_map(|i| std::fs::read_to_string(format!("{base}/index{i}/size")).ok());
    sizes.filter_map(|s| s.trim().strip_suffix('K')?.parse::<usize>().ok()).max().map(|kib| kib << 10)
}

/// Description for users: `AMD EPYC, avx512, 2 threads`.
pub fn describe(isa: Isa, n_threads: usize) -> String {
    let plural = if n_threads == 1 { "" } else { "s" };
    format!("{}, {isa}, {n_threads} thread{plural}", name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_what_the_process_may_use() {
        assert!((1..=available()).contains(&default_threads()));
        assert!(pinning(available() + 1).is_empty());
        assert!(!describe(Isa::Scalar, 1).contains("threads"));
    }
}
