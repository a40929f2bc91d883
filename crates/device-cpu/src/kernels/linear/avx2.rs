//! What AVX2 decoding has in common: a trait that gives 32 codes in a register, and small helpers.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds two neighbours in 16 bits, saturating. Unsigned codes up
//! to 63 stay far within (2 * 63 * 127 = 16,002), and leave room to take out the zero point, or to add several products,
//! before widening. Types whose unsigned codes exceed 127 keep signed codes and give their sign to the activations:
//! `|c| * (sign(c) q)`, at most 2 * 128 * 127 = 32,512, which 16 bits hold too.

use super::GemmTile;
use super::portable::Format;
use std::arch::x86_64::*;

/// Decoding for AVX2.
pub(super) trait Avx2Format: Format {
    /// A kernel for a few activation rows, where there is one.
    const FEW_ROWS: Option<GemmTile> = None;

    /// Codes `32 i..32 (i + 1)` of a block in the order of their columns: unsigned, or signed if [`is_signed`].
    ///
    /// # Safety
    /// AVX2 is available; a block is readable at `block` and has these columns.
    unsafe fn codes32(block: *const u8, i: usize) -> __m256i;

    /// As [`Format::scales`].
    ///
    /// # Safety
    /// AVX2 and F16C are available; a block is readable at `block`.
    #[inline(always)]
    unsafe fn scales_avx2(block: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
        let n_groups = Self::BLOCK.block_len() / Self::GROUP;
        // SAFETY: the caller's promise.
        let block = unsafe { std::slice::from_raw_parts(block, Self::BLOCK.block_bytes()) };
        Self::scales(block, &mut scale[..n_groups], &mut offset[..n_groups]);
    }
}

/// Whether a type's codes are signed in AVX2's registers.
pub(super) const fn is_signed<F: Format>() -> bool {
    F::MAX_CODE > 127
}

/// The scale of a block that begins with it in f16, and the offset after it if there is one.
///
/// # Safety
/// F16C is available; 4 bytes are readable.
#[inline(always)]
pub(super) unsafe fn f16_scales<F: Format>(block: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
    // SAFETY: the caller's promise.
    unsafe {
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(block.cast::<i32>().read_unaligned()));
        scale[0] = _mm_cvtss_f32(both);
        if F::HAS_OFFSET {
            offset[0] = _mm_cvtss_f32(_mm_movehdup_ps(both));
        }
    }
}

/// 32 nibbles of 16 bytes: the low ones, then the high ones.
///
/// # Safety
/// AVX2 is available; 16 bytes are readable.
#[inline(always)]
pub(super) unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm_loadu_si128(p.cast());
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes), _mm256_set1_epi8(15))
    }
}

/// 32 bytes, each shifted right by `shift` and cut to the bits of `mask`.
///
/// # Safety
/// AVX2 is available; 32 bytes are readable.
#[inline(always)]
pub(super) unsafe fn bits(p: *const u8, shift: usize, mask: i8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm256_loadu_si256(p.cast());
        let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask))
    }
}

/// 16 in each byte whose bit is set in the 32 bits at `p`.
///
/// # Safety
/// AVX2 is available; 4 bytes are readable.
#[inline(always)]
pub(super) unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let all = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        let spread = _mm256_shuffle_epi8(
            all,
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303),
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

/// Nibbles to the values of a table.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn look_up(table: &'static [i8; 16], nibbles: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

/// Lanes added in a fixed order: 4 apart, 2 apart, neighbours.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
    }
}
