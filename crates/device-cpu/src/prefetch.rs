//! The processor's hints that memory will be read or written.

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

/// Ask for a cache line that will be written soon, so that a store does not wait until others have given it up. Any address
/// will do.
#[inline(always)]
pub fn prefetch_to_write(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults; processors of this architecture that do not know it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which never faults, and part of the architecture.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
