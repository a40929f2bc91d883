//! Windows: physical memory bounded by the limit of this process' job, and the system's low-memory
//! notification. The code is compiled for the target, but has never run.

use std::ffi::c_void;
use std::time::Duration;

use crate::SystemMemory;
use crate::source::{Bound, MemorySource, Pressure, Reading};

/// The `MEMORYSTATUSEX` of the Windows API.
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

/// The `PROCESS_MEMORY_COUNTERS_EX` of the Windows API.
#[repr(C)]
struct ProcessMemory {
    length: u32,
    page_faults: u32,
    peak_working_set: usize,
    working_set: usize,
    quota: [usize; 4],
    page_file: usize,
    peak_page_file: usize,
    private: usize,
}

/// The `JOBOBJECT_EXTENDED_LIMIT_INFORMATION` of the Windows API.
#[repr(C)]
struct JobLimits {
    process_user_time: i64,
    job_user_time: i64,
    flags: u32,
    least_working_set: usize,
    most_working_set: usize,
    active_processes: u32,
    affinity: usize,
    priority_class: u32,
    scheduling_class: u32,
    io: [u64; 6],
    process_memory: usize,
    job_memory: usize,
    peak_process_memory: usize,
    peak_job_memory: usize,
}

const EXTENDED_LIMITS: i32 = 9;
const LIMITS_PROCESS_MEMORY: u32 = 0x100;
const LIMITS_JOB_MEMORY: u32 = 0x200;
const LOW_MEMORY: i32 = 0;
const SIGNALLED: u32 = 0;

#[link(name = "kernel32")]
unsafe extern "system" {
    fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> i32;
    fn GetCurrentProcess() -> *mut c_void;
    fn K32GetProcessMemoryInfo(process: *mut c_void, counters: *mut ProcessMemory, length: u32) -> i32;
    fn QueryInformationJobObject(
        job: *mut c_void,
        class: i32,
        information: *mut JobLimits,
        length: u32,
        returned: *mut u32,
    ) -> i32;
    fn CreateMemoryResourceNotification(kind: i32) -> *mut c_void;
    fn WaitForSingleObject(handle: *mut c_void, millis: u32) -> u32;
    fn CloseHandle(handle: *mut c_void) -> i32;
}

fn of_process() -> Option<ProcessMemory> {
    // SAFETY: `ProcessMemory` is made of integers, for which zeros are valid.
    let mut counters: ProcessMemory = unsafe { std::mem::zeroed() };
    counters.length = size_of::<ProcessMemory>() as u32;
    // SAFETY: `counters` outlives the call, and `counters.length` is its size.
    let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &mut counters, counters.length) };
    (done != 0).then_some(counters)
}

pub fn peak() -> Option<u64> {
    of_process().map(|counters| counters.peak_working_set as u64)
}

/// Physical memory, bounded by the limit of a job. Free memory includes standby pages.
pub fn memory() -> Option<SystemMemory> {
    read().map(|(memory, _)| memory)
}

fn read() -> Option<(SystemMemory, Bound)> {
    // SAFETY: `MemoryStatus` is made of integers, for which zeros are valid.
    let mut status: MemoryStatus = unsafe { std::mem::zeroed() };
    status.length = size_of::<MemoryStatus>() as u32;
    // SAFETY: `status` outlives the call, and `status.length` is its size.
    if unsafe { GlobalMemoryStatusEx(&mut status) } == 0 {
        return None;
    }
    let mut memory = SystemMemory { total: status.total_physical, free: status.free_physical };
    let mut bound = Bound::Machine;
    if let Some(limit) = job_limit() {
        let used = of_process().map_or(0, |counters| counters.private as u64);
        memory.total = memory.total.min(limit);
        if limit.saturating_sub(used) < memory.free {
            (memory.free, bound) = (limit.saturating_sub(used), Bound::Group);
        }
    }
    Some((memory, bound))
}

/// Maximum memory that this process may commit, if its job has a limit.
fn job_limit() -> Option<u64> {
    // SAFETY: `JobLimits` is made of integers, for which zeros are valid.
    let mut limits: JobLimits = unsafe { std::mem::zeroed() };
    // SAFETY: a null job means this process' own job. `limits` outlives the call, and the length is
    // its size.
    let done = unsafe {
        QueryInformationJobObject(
            std::ptr::null_mut(),
            EXTENDED_LIMITS,
            &mut limits,
            size_of::<JobLimits>() as u32,
            std::ptr::null_mut(),
        )
    };
    let of_process = (limits.flags & LIMITS_PROCESS_MEMORY != 0).then_some(limits.process_memory as u64);
    let of_job = (limits.flags & LIMITS_JOB_MEMORY != 0).then_some(limits.job_memory as u64);
    [of_process, of_job].into_iter().flatten().min().filter(|_| done != 0)
}

/// The source of this machine.
pub fn source() -> Box<dyn MemorySource> {
    Box::new(WindowsSource::new())
}

/// Memory of this machine.
struct WindowsSource {
    /// Handle of the notification; null if the system has none.
    low_memory: *mut c_void,
}

// SAFETY: the handle is the system's, and any thread may wait for it.
unsafe impl Send for WindowsSource {}

impl WindowsSource {
    fn new() -> WindowsSource {
        // SAFETY: the call has no pointers. `drop` closes the handle.
        WindowsSource { low_memory: unsafe { CreateMemoryResourceNotification(LOW_MEMORY) } }
    }

    fn is_low(&self, millis: u32) -> bool {
        // SAFETY: the handle is not null, and `drop` alone closes it.
        !self.low_memory.is_null() && unsafe { WaitForSingleObject(self.low_memory, millis) } == SIGNALLED
    }
}

impl Drop for WindowsSource {
    fn drop(&mut self) {
        if !self.low_memory.is_null() {
            // SAFETY: `new` opened the handle, and it is closed once.
            unsafe { CloseHandle(self.low_memory) };
        }
    }
}

impl MemorySource for WindowsSource {
    fn name(&self) -> String {
        "windows, low-memory notification and job limits".to_owned()
    }

    fn read(&mut self) -> Reading {
        let Some((memory, bound)) = read() else { return Reading::default() };
        Reading {
            total: memory.total,
            free: memory.free,
            bound,
            pressure: if self.is_low(0) { Pressure::Some } else { Pressure::None },
            swap_used: None,
            resident: of_process().map(|counters| counters.private as u64),
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        // The notification stays signalled while memory is low, so the timeout prevents a busy
        // loop.
        if self.low_memory.is_null() || self.is_low(0) {
            std::thread::sleep(timeout);
            return !self.low_memory.is_null();
        }
        self.is_low(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX - 1))
    }
}
