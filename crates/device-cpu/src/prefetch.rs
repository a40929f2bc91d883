//! The processor's hint that memory will be read.

/// How far ahead of their use weights are asked for, into the second cache, whose queue for memory is longer than the first's.
/// Distances: `kernels/linear/NOTES.md`.
pub const AHEAD: usize = 16 << 10;

/// Bytes for each of which a stream asks for a line. The processor follows a stream by itself, but for the ends of pages that are
/// not neighbours in memory; more than a line in four would be in its way (`kernels/linear/NOTES.md`).
#[cfg(target_arch = "x86_64")]
const STREAM_STEP: usize = 256;

/// [`AHEAD`] for rows that are read side by side, in groups of so many bytes: whole groups. The processor's own streams are too slow to
/// follow several places at once.
#[inline(always)]
pub const fn groups_ahead(group: usize) -> usize {
    AHEAD.next_multiple_of(group)
}

/// Where a stream that began at `start` and is read `step` bytes at a time has come to byte `at`, a multiple of `step`: ask for what it
/// reads [`AHEAD`] bytes later.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ask_for_later(start: *const u8, at: usize, step: usize) {
    if at % STREAM_STEP < step {
        prefetch_far(start.wrapping_add(at + AHEAD));
    }
}

/// Ask for a cache line that will be read soon, in the first cache. Any address will do.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which never faults, and part of the architecture.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Ask for one that will be read some KB later, in the second cache.
#[inline(always)]
pub fn prefetch_far(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
