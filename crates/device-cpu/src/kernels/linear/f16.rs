//! F16: little-endian IEEE 754 half precision, 2 bytes a weight.
//!
//! Loops, order of accumulation and bytes moved: `float*`. Measured on one thread of an AMD EPYC
//! (Zen 5), 2026-11-21, 2048 columns. AVX-512 GEMV 106 GB/s from the second-level cache and 31 from
//! memory, GEMM of 128 rows 167 Gop/s; AVX2 67, 36 and 83.

use super::float::FloatFormat;
use super::portable::f16_to_f32;
use weights::BlockType;

/// F16 weights.
pub(super) struct F16;

impl FloatFormat for F16 {
    const NAME: &'static str = "linear_f16";
    const BLOCK: BlockType = BlockType::F16;

    #[inline(always)]
    fn decode(bytes: &[u8]) -> f32 {
        f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller guarantees AVX2, F16C and eight numbers at `p`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        // SAFETY: the caller guarantees AVX-512 and `n` numbers at `p`; the mask excludes later
        // bytes.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(((1u32 << n) - 1) as u16, p.cast())) }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> [std::arch::aarch64::float32x4_t; 2] {
        use std::arch::aarch64::*;
        // SAFETY: the caller guarantees eight numbers at `p`; NEON is the baseline.
        unsafe {
            let halves = vreinterpretq_f16_u16(vld1q_u16(p.cast()));
            [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
        }
    }
}
