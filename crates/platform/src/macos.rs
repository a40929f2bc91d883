//! macOS: the kernel's page counts, the footprint of this process, and libdispatch's
//! memory-pressure source. The code is compiled for the target, but has never run.

use std::ffi::{c_ulong, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::SystemMemory;
use crate::source::{Bound, MemorySource, Pressure, Reading};

/// Peak resident memory: `ru_maxrss`, which is in bytes on macOS.
pub fn peak() -> Option<u64> {
    // SAFETY: `rusage` is made of integers, for which zeros are valid, and `usage` outlives the
    // call.
    let (status, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_SELF, &mut usage), usage)
    };
    if status == 0 { u64::try_from(usage.ru_maxrss).ok() } else { None }
}

/// The value of a name in the kernel's table.
fn sysctl<T: Copy + Default>(name: &std::ffi::CStr) -> Option<T> {
    let mut value = T::default();
    let mut size = size_of::<T>();
    // SAFETY: `name` ends in NUL, `value` and `size` outlive the call, and `size` is that of
    // `value`, an integer type.
    let status = unsafe {
        libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &mut size, std::ptr::null_mut(), 0)
    };
    (status == 0).then_some(value)
}

/// Total memory is `hw.memsize`. Free memory is the pages that are free (including speculative
/// ones), inactive or purgeable.
#[allow(deprecated)] // libc's Mach calls; another crate for four of them is not worth it.
pub fn memory() -> Option<SystemMemory> {
    let total: u64 = sysctl(c"hw.memsize")?;
    // SAFETY: `vm_statistics64` is made of integers, for which zeros are valid.
    let mut pages: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: `pages` has room for `count` integers, and both outlive the call.
    let status = unsafe {
        let info = (&raw mut pages).cast();
        libc::host_statistics64(libc::mach_host_self(), libc::HOST_VM_INFO64, info, &mut count)
    };
    // SAFETY: `sysconf` reads a constant and has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if status != libc::KERN_SUCCESS || page_bytes <= 0 {
        return Some(SystemMemory { total, free: 0 });
    }
    let reclaimable = [pages.free_count, pages.inactive_count, pages.purgeable_count];
    let n_pages: u64 = reclaimable.iter().map(|n| u64::from(*n)).sum();
    Some(SystemMemory { total, free: (n_pages * page_bytes as u64).min(total) })
}

/// The fields of `task_vm_info_data_t` up to `phys_footprint`, as declared in `<mach/task_info.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TaskVmInfo {
    virtual_size: u64,
    region_count: i32,
    page_size: i32,
    resident_size: u64,
    resident_size_peak: u64,
    device: u64,
    device_peak: u64,
    internal: u64,
    internal_peak: u64,
    external: u64,
    external_peak: u64,
    reusable: u64,
    reusable_peak: u64,
    purgeable_volatile_pmap: u64,
    purgeable_volatile_resident: u64,
    purgeable_volatile_virtual: u64,
    compressed: u64,
    compressed_peak: u64,
    compressed_lifetime: u64,
    phys_footprint: u64,
}

const TASK_VM_INFO: u32 = 22;

/// Memory that the system charges to this process: `phys_footprint`.
#[allow(deprecated)] // As above.
fn footprint() -> Option<u64> {
    // SAFETY: `TaskVmInfo` is made of integers, for which zeros are valid.
    let mut info: TaskVmInfo = unsafe { std::mem::zeroed() };
    let mut count = (size_of::<TaskVmInfo>() / size_of::<u32>()) as libc::mach_msg_type_number_t;
    // SAFETY: `info` has room for `count` integers, and both outlive the call.
    let status =
        unsafe { libc::task_info(libc::mach_task_self(), TASK_VM_INFO, (&raw mut info).cast(), &mut count) };
    (status == libc::KERN_SUCCESS).then_some(info.phys_footprint)
}

const LEVEL_WARN: c_ulong = 2;
const LEVEL_CRITICAL: c_ulong = 4;

/// The target of `DISPATCH_SOURCE_TYPE_MEMORYPRESSURE`.
#[repr(C)]
struct SourceType {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    #[link_name = "_dispatch_source_type_memorypressure"]
    static MEMORY_PRESSURE: SourceType;
    fn dispatch_get_global_queue(identifier: isize, flags: usize) -> *mut c_void;
    fn dispatch_source_create(
        kind: *const SourceType,
        handle: usize,
        mask: usize,
        queue: *mut c_void,
    ) -> *mut c_void;
    fn dispatch_source_set_event_handler_f(source: *mut c_void, handler: extern "C" fn(*mut c_void));
    fn dispatch_set_context(object: *mut c_void, context: *mut c_void);
    fn dispatch_resume(object: *mut c_void);
    fn dispatch_source_get_data(source: *mut c_void) -> usize;
    fn dispatch_source_cancel(source: *mut c_void);
}

/// State that the event handler shares with `wait`.
struct Heard {
    source: Mutex<Option<usize>>,
    /// Pressure levels since the last reading.
    levels: Mutex<usize>,
    said: Condvar,
}

extern "C" fn on_event(context: *mut c_void) {
    // SAFETY: the context is the `Heard` of `MacSource::new`, whose reference count never
    // becomes 0.
    let heard = unsafe { &*context.cast::<Heard>() };
    let source = *heard.source.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(source) = source else { return };
    // SAFETY: this is the source's own handler, which libdispatch calls only while the source is
    // alive.
    let level = unsafe { dispatch_source_get_data(source as *mut c_void) };
    *heard.levels.lock().unwrap_or_else(PoisonError::into_inner) |= level;
    heard.said.notify_all();
}

/// The source of this machine.
pub fn source() -> Box<dyn MemorySource> {
    Box::new(MacSource::new())
}

/// Memory of this machine.
struct MacSource {
    heard: Arc<Heard>,
    dispatch_source: *mut c_void,
    swap_used: u64,
}

// SAFETY: dispatch objects may be used from any thread.
unsafe impl Send for MacSource {}

impl MacSource {
    fn new() -> MacSource {
        let heard = Arc::new(Heard { source: Mutex::new(None), levels: Mutex::new(0), said: Condvar::new() });
        let mask = (LEVEL_WARN | LEVEL_CRITICAL) as usize;
        // SAFETY: MEMORY_PRESSURE is libdispatch's own type, and queue 0 is the system's default
        // queue. The context is a leaked reference, so it outlives the source. A null source is not
        // used.
        let dispatch_source = unsafe {
            let source =
                dispatch_source_create(&raw const MEMORY_PRESSURE, 0, mask, dispatch_get_global_queue(0, 0));
            if !source.is_null() {
                *heard.source.lock().unwrap_or_else(PoisonError::into_inner) = Some(source as usize);
                dispatch_set_context(source, Arc::into_raw(heard.clone()).cast_mut().cast());
                dispatch_source_set_event_handler_f(source, on_event);
                dispatch_resume(source);
            }
            source
        };
        MacSource { heard, dispatch_source, swap_used: swap_used().unwrap_or(0) }
    }
}

impl Drop for MacSource {
    fn drop(&mut self) {
        if !self.dispatch_source.is_null() {
            // SAFETY: `new` created the source, and it is cancelled once. Its handler may run once
            // more, with a context that is never freed.
            unsafe { dispatch_source_cancel(self.dispatch_source) };
        }
    }
}

/// Swap in use, from `vm.swapusage`: total, available and used, in the order of `struct xsw_usage`.
fn swap_used() -> Option<u64> {
    let usage: [u64; 4] = sysctl(c"vm.swapusage")?;
    Some(usage[2])
}

impl MemorySource for MacSource {
    fn name(&self) -> String {
        "macOS, host statistics and memory pressure".to_owned()
    }

    fn read(&mut self) -> Reading {
        let Some(memory) = memory() else { return Reading::default() };
        let levels = std::mem::take(&mut *self.heard.levels.lock().unwrap_or_else(PoisonError::into_inner));
        let swap_used = swap_used();
        let swaps = swap_used.is_some_and(|used| used > self.swap_used + (1 << 20));
        self.swap_used = swap_used.unwrap_or(0);
        let pressure = match levels as c_ulong {
            levels if levels & LEVEL_CRITICAL != 0 => Pressure::Critical,
            levels if levels & LEVEL_WARN != 0 || swaps => Pressure::Some,
            _ => Pressure::None,
        };
        Reading {
            total: memory.total,
            free: memory.free,
            bound: Bound::Machine,
            pressure,
            swap_used,
            resident: footprint(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        let levels = self.heard.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.heard.said.wait_timeout_while(levels, timeout, |levels| *levels == 0);
        let (levels, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *levels != 0
    }
}
