//! The processor: how many threads to use, where to pin them, what it is called.

use crate::isa::Isa;

/// Processors that this process may use: its affinity mask and its container's quota count.
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Threads used unless told otherwise: one for each core (not each hardware thread, whose second adds nothing to
/// kernels that already fill the vector units and the memory's bandwidth), at most [`available`]. Of Apple's chips only
/// the performance cores, since all workers would wait for the slowest.
pub fn default_threads() -> usize {
    let cores = n_performance_cores().or_else(|| n_cores(&allowed()));
    cores.map_or_else(available, |cores| cores.min(available())).max(1)
}

/// Processors of this thread's affinity mask, ascending; empty where the system has no such thing.
#[cfg(target_os = "linux")]
pub fn allowed() -> Vec<usize> {
    // SAFETY: the set is plain data and its size is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// See the Linux version.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Where to pin `n_threads` workers: one processor each, if the workers are to fill every processor that the process
/// has. With fewer, the scheduler knows better, for two processes that pin would choose the same ones.
pub fn pinning(n_threads: usize) -> Vec<usize> {
    let allowed = allowed();
    if n_threads > 1 && allowed.len() == n_threads && available() == n_threads { allowed } else { Vec::new() }
}

/// Keep the calling thread on a processor. Failure is ignored: it is a hint.
#[cfg(target_os = "linux")]
pub fn pin(cpu: usize) {
    // SAFETY: the set is plain data and its size is given; `cpu` came out of such a set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// See the Linux version.
#[cfg(not(target_os = "linux"))]
pub fn pin(_cpu: usize) {}

/// Performance cores, where the system tells them apart.
#[cfg(target_os = "macos")]
fn n_performance_cores() -> Option<usize> {
    let (mut n, mut len) = (0i32, size_of::<i32>());
    // SAFETY: the name ends in zero; the value is an i32 and its size is given.
    let rc = unsafe {
        let value = (&raw mut n).cast();
        libc::sysctlbyname(c"hw.perflevel0.physicalcpu".as_ptr(), value, &mut len, std::ptr::null_mut(), 0)
    };
    if rc == 0 { usize::try_from(n).ok().filter(|n| *n > 0) } else { None }
}

/// See the macOS version.
#[cfg(not(target_os = "macos"))]
fn n_performance_cores() -> Option<usize> {
    None
}

/// Distinct cores among these processors, if the system says.
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

/// The processor's name, as far as it says.
pub fn name() -> String {
    let from_system = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = text.lines().find(|l| l.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    from_system().unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// Bytes of the last-level cache, if the system says.
pub fn last_level_cache() -> Option<usize> {
    let base = "/sys/devices/system/cpu/cpu0/cache";
    let sizes = (0..8).filter_map(|i| std::fs::read_to_string(format!("{base}/index{i}/size")).ok());
    sizes.filter_map(|s| s.trim().strip_suffix('K')?.parse::<usize>().ok()).max().map(|kib| kib << 10)
}

/// For people: `AMD EPYC, avx512, 2 threads`.
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
