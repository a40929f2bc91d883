//! Prefetch hints.

/// Bytes that weights are prefetched ahead of their use, into the second-level cache, whose queue
/// for memory is longer than the first's. Distances were measured (`kernels/linear/NOTES.md`).
pub const AHEAD: usize = 16 << 10;

/// Bytes of a stream for each of which one line is prefetched. The hardware follows a stream by
/// itself, except across pages that are not adjacent in physical memory. More than one line in four
/// slows it (`kernels/linear/NOTES.md`).
#[cfg(target_arch = "x86_64")]
const STREAM_STEP: usize = 256;

/// [`AHEAD`] rounded up to whole groups of `group` bytes, for rows that are read side by side. The
/// hardware prefetcher is too slow for several streams at once.
#[inline(always)]
pub const fn groups_ahead(group: usize) -> usize {
    AHEAD.next_multiple_of(group)
}

/// Prefetches the part of a stream that is read [`AHEAD`] bytes later. The stream starts at `start`
/// and is read `step` bytes at a time; it has reached byte `at`, a multiple of `step`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch_stream(start: *const u8, at: usize, step: usize) {
    if at % STREAM_STEP < step {
        prefetch_far(start.wrapping_add(at + AHEAD));
    }
}

/// Prefetches a cache line into the first-level cache. Any address is allowed.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this prefetch never faults, whatever the address, and is part of the architecture.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Prefetches a cache line that will be read some KB later, into the second-level cache.
#[inline(always)]
pub fn prefetch_far(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this prefetch never faults, whatever the address, and is part of the architecture.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
