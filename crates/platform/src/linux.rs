//! Linux: `/proc/meminfo` bounded by the control groups of this process (version 2 and 1), and
//! pressure stall information.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SystemMemory;
use crate::source::{Bound, MemorySource, Pressure, Reading};

/// Memory of `/proc/meminfo`, bounded by every control group of this process.
pub fn memory() -> Option<SystemMemory> {
    let groups = Groups::of_self();
    read(&groups).map(|(memory, _)| memory)
}

/// Like [`memory`], with the bound that applies.
fn read(groups: &[Group]) -> Option<(SystemMemory, Bound)> {
    let mut memory = machine(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let mut bound = Bound::Machine;
    for group in groups {
        let Some(of_group) = group.version.read(&group.folder) else { continue };
        memory.total = memory.total.min(of_group.total);
        if of_group.free < memory.free {
            (memory.free, bound) = (of_group.free, Bound::Group);
        }
    }
    Some((memory, bound))
}

/// Peak resident memory: `VmHWM` of `/proc/self/status`, which is in KiB.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib(&status, "VmHWM")
}

/// Parses `MemTotal` and `MemAvailable`, which are in KiB.
pub fn machine(meminfo: &str) -> Option<SystemMemory> {
    Some(SystemMemory { total: kib(meminfo, "MemTotal")?, free: kib(meminfo, "MemAvailable")? })
}

/// The value of a line of `/proc/meminfo` or `/proc/self/status`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// File names of a version of control groups.
struct Version {
    limit: &'static str,
    /// A limit above which the group is throttled rather than killed.
    soft_limit: Option<&'static str>,
    used: &'static str,
    /// Lines of `memory.stat` with page cache, which counts as used but can be dropped.
    cache: [&'static str; 2],
    /// Counter of reached limits: a file, and the names of its lines. Without names, the file is
    /// one number.
    events: (&'static str, &'static [&'static str]),
}

static V2: Version = Version {
    limit: "memory.max",
    soft_limit: Some("memory.high"),
    used: "memory.current",
    cache: ["inactive_file", "active_file"],
    events: ("memory.events", &["high", "max", "oom"]),
};

static V1: Version = Version {
    limit: "memory.limit_in_bytes",
    soft_limit: None,
    used: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
    events: ("memory.failcnt", &[]),
};

fn number(folder: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

impl Version {
    /// The group's memory, if it has a limit (`max` is none).
    fn read(&self, folder: &Path) -> Option<SystemMemory> {
        let soft = self.soft_limit.and_then(|file| number(folder, file));
        let total = [number(folder, self.limit), soft].into_iter().flatten().min()?;
        let used = number(folder, self.used)?;
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = sum_of_lines(&stat, &self.cache);
        Some(SystemMemory { total, free: total.saturating_sub(used.saturating_sub(cache)) })
    }

    /// Number of times that the group has reached a limit.
    fn n_events(&self, folder: &Path) -> u64 {
        let (file, names) = self.events;
        match names {
            [] => number(folder, file).unwrap_or(0),
            names => sum_of_lines(&std::fs::read_to_string(folder.join(file)).unwrap_or_default(), names),
        }
    }
}

/// Sum of the lines `name number` with these names.
fn sum_of_lines(text: &str, names: &[&str]) -> u64 {
    let fields = text.lines().filter_map(|line| line.split_once(' '));
    fields.filter(|(name, _)| names.contains(name)).filter_map(|(_, n)| n.parse::<u64>().ok()).sum()
}

/// A control group whose limit applies to this process.
struct Group {
    version: &'static Version,
    folder: PathBuf,
}

struct Groups;

impl Groups {
    /// The control groups of this process, and their parents, because a limit may be set at any
    /// level.
    fn of_self() -> Vec<Group> {
        let mut groups = Vec::new();
        for line in std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default().lines() {
            // A line is `hierarchy:controllers:path`. Version 2 is hierarchy 0 without controllers.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (root, version) = match controllers {
                "" => ("/sys/fs/cgroup", &V2),
                list if list.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", &V1),
                _ => continue,
            };
            // Inside a container the path may not exist, and the root is the process' own group.
            for folder in Path::new(root).join(path.trim_start_matches('/')).ancestors() {
                if folder.join(version.used).exists() {
                    groups.push(Group { version, folder: folder.to_owned() });
                }
                if folder == Path::new(root) {
                    break;
                }
            }
        }
        groups
    }
}

/// Threshold of memory stalls that wakes `wait`: 100 ms within 2 s, the shortest window that needs
/// no privilege.
const TRIGGER: &[u8] = b"some 100000 2000000\0";

/// The source of this machine.
pub fn source() -> Box<dyn MemorySource> {
    Box::new(LinuxSource::new())
}

/// Memory of this machine.
struct LinuxSource {
    groups: Vec<Group>,
    /// Pressure stall information of the own group or of the system, with a trigger, and its path.
    stalls: Option<(File, PathBuf)>,
    /// Reached limits of all groups, at the last reading.
    n_events: u64,
    /// Swap in use, at the last reading.
    swap_used: u64,
    is_stalled: bool,
}

impl LinuxSource {
    fn new() -> LinuxSource {
        let groups = Groups::of_self();
        let own = groups.iter().find(|group| std::ptr::eq(group.version, &V2));
        let own = own.map(|group| group.folder.join("memory.pressure"));
        let open = |path: PathBuf| {
            let mut file = File::options().read(true).write(true).open(&path).ok()?;
            file.write_all(TRIGGER).ok()?;
            Some((file, path))
        };
        let stalls = own.and_then(open).or_else(|| open("/proc/pressure/memory".into()));
        let mut source = LinuxSource { groups, stalls, n_events: 0, swap_used: 0, is_stalled: false };
        // Events before the start are not reported.
        source.read();
        source
    }
}

impl MemorySource for LinuxSource {
    fn name(&self) -> String {
        let limited = self.groups.iter().find(|group| group.version.read(&group.folder).is_some());
        let group = match limited {
            None => "no control group limit".to_owned(),
            Some(group) => format!("control group {}", group.folder.display()),
        };
        match &self.stalls {
            Some((_, path)) => format!("linux, {group}, stalls from {}", path.display()),
            None => format!("linux, {group}, no pressure stall information"),
        }
    }

    fn read(&mut self) -> Reading {
        let Some((memory, bound)) = read(&self.groups) else { return Reading::default() };
        let swap_used = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| Some(kib(&text, "SwapTotal")?.saturating_sub(kib(&text, "SwapFree")?)));
        let n_events = self.groups.iter().map(|group| group.version.n_events(&group.folder)).sum();
        let swaps = swap_used.is_some_and(|used| used > self.swap_used + (1 << 20));
        let has_waited = std::mem::take(&mut self.is_stalled) || n_events > self.n_events;
        let is_short = swaps || has_waited && is_tight(&memory);
        (self.n_events, self.swap_used) = (n_events, swap_used.unwrap_or(0));
        Reading {
            total: memory.total,
            free: memory.free,
            bound,
            pressure: if is_short { Pressure::Some } else { Pressure::None },
            swap_used,
            resident: resident(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        let Some((file, _)) = &self.stalls else {
            std::thread::sleep(timeout);
            return false;
        };
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: `poll` is one valid entry that outlives the call, and `file` keeps its descriptor
        // open.
        let n = unsafe { libc::poll(&raw mut poll, 1, millis) };
        if n < 0 || poll.revents & libc::POLLERR != 0 {
            // The group was removed, or a signal arrived: wait for the timeout anyway.
            std::thread::sleep(timeout);
            return false;
        }
        self.is_stalled |= poll.revents & libc::POLLPRI != 0;
        self.is_stalled
    }
}

/// True if waiting processes mean that memory is short. They may not: a group full of page cache
/// often reaches its limit, and a build waits for pages even if most of the memory is free.
fn is_tight(memory: &SystemMemory) -> bool {
    memory.free < memory.total / 8
}

/// Resident pages of this process that no file backs, in bytes.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()?, fields.next()?);
    // SAFETY: `sysconf` reads a constant and has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(resident.saturating_sub(shared) * u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB\n";
        let expected = SystemMemory { total: 24_000_000 * 1024, free: 12_000_000 * 1024 };
        assert_eq!(machine(text), Some(expected));
        assert_eq!(machine("MemTotal: x kB"), None);
    }

    /// Both versions of control groups, in the kernel's format: page cache counts as free, and the
    /// lower of two limits applies.
    #[test]
    fn groups_of_both_versions() {
        let folder = std::env::temp_dir().join(format!("ingle-groups-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write(
            "memory.stat",
            "anon 5\ninactive_file 30\nactive_file 10\ntotal_inactive_file 7\ntotal_active_file 1\n",
        );
        write("memory.current", "100\n");
        write("memory.max", "max\n");
        assert_eq!(V2.read(&folder), None, "no limit");
        write("memory.high", "500\n");
        assert_eq!(V2.read(&folder), Some(SystemMemory { total: 500, free: 440 }));
        write("memory.max", "400\n");
        assert_eq!(V2.read(&folder), Some(SystemMemory { total: 400, free: 340 }));
        write("memory.events", "low 9\nhigh 2\nmax 3\noom 1\noom_kill 1\n");
        assert_eq!(V2.n_events(&folder), 6);
        write("memory.limit_in_bytes", "50\n");
        write("memory.usage_in_bytes", "20\n");
        write("memory.failcnt", "12\n");
        assert_eq!(V1.read(&folder), Some(SystemMemory { total: 50, free: 38 }));
        assert_eq!(V1.n_events(&folder), 12);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn who_waits_where_plenty_is_free_is_not_short() {
        assert!(!is_tight(&SystemMemory { total: 800, free: 100 }));
        assert!(is_tight(&SystemMemory { total: 800, free: 99 }));
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident().unwrap() > 1 << 16);
        assert!(peak().unwrap() >= resident().unwrap() / 2);
    }
}
