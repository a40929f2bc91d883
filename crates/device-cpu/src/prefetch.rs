//! The processor's hint that memory will be read.

/// Ask for a cache line that will be read soon. Any address will do.
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
