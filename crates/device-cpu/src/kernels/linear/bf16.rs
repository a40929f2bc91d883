//! BF16: the upper half of an IEEE 754 single, little-endian, 2 bytes a weight.
//!
//! Loops, order of accumulation and bytes moved: `float*`. Measured on one thread of an AMD EPYC
//! (Zen 5), 2026-11-21, 2048 columns. AVX-512 GEMV 107 GB/s from the second-level cache and 33 from
//! memory; GEMM of 128 rows 166 Gop/s; AVX2 68, 35 and 83.

use super::LinearKernel;
use super::choose_float;
use super::float::FloatFormat;
use crate::isa::Isa;
use weights::BlockType;

/// BF16 weights.
pub(super) struct BF16;

/// Least number of columns for which activations are rounded to BF16, if the processor multiplies
/// it. Each product is then off by up to 2^-9 of itself, and a sum by about 1e-3 of its usual size.
/// Shorter rows cost little time, and stay exact.
const ROUNDED_FROM: usize = 512;

/// Kernels of rows of `n_cols`: those of plain numbers, or products of BF16 numbers.
pub(super) fn kernel(n_cols: usize, isa: Isa) -> LinearKernel {
    let plain = choose_float::kernel::<BF16>(isa);
    let rounded = isa.multiplies_bf16() && n_cols >= ROUNDED_FROM;
    #[cfg(target_arch = "x86_64")]
    if rounded {
        use super::ActivationKind;
        use super::bf16_avx512::{PASS, gemm_tile, gemv, scratch_bytes};
        return LinearKernel {
            activation: ActivationKind::Bf16,
            gemv,
            gemm_tile,
            gemm_pass: PASS,
            gemm_scratch_bytes: scratch_bytes,
            gemm_min_rows: 5,
            ..plain
        };
    }
    debug_assert!(!rounded, "only x86-64 multiplies BF16 here");
    plain
}

impl FloatFormat for BF16 {
    const NAME: &'static str = "linear_bf16";
    const BLOCK: BlockType = BlockType::BF16;

    #[inline(always)]
    fn decode(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: the caller guarantees AVX2, F16C and eight numbers at `p`.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        // SAFETY: the caller guarantees AVX-512 and `n` numbers at `p`; the mask excludes later
        // bytes.
        unsafe {
            let words = _mm256_maskz_loadu_epi16(((1u32 << n) - 1) as u16, p.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> [std::arch::aarch64::float32x4_t; 2] {
        use std::arch::aarch64::*;
        // SAFETY: the caller guarantees eight numbers at `p`; NEON is the baseline.
        unsafe {
            let words = vld1q_u16(p.cast());
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(words))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(words)),
            ]
        }
    }
}
