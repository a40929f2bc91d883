//! The 6-bit scales and minima of Q4_K and Q5_K: eight of each in 12 bytes.
//!
//! Layout (ggml): bytes 0..4 hold scales 0..4 in their low 6 bits, bytes 4..8 minima 0..4 likewise; bytes 8..12 hold the
//! low 4 bits of scales 4..8 (low nibbles) and of minima 4..8 (high nibbles), whose upper 2 bits are the upper 2 bits
//! of bytes 0..4 (scales) and 4..8 (minima).

/// Eight scales, then eight minima, as bytes of four words.
#[inline(always)]
pub(super) fn unpack(packed: [u32; 3]) -> [u32; 4] {
    let [s, m, rest] = packed;
    [
        s & 0x3f3f_3f3f,
        (rest & 0x0f0f_0f0f) | ((s >> 6) & 0x0303_0303) << 4,
        m & 0x3f3f_3f3f,
        ((rest >> 4) & 0x0f0f_0f0f) | ((m >> 6) & 0x0303_0303) << 4,
    ]
}

/// Three little-endian words.
#[inline(always)]
pub(super) fn words(bytes: &[u8]) -> [u32; 3] {
    std::array::from_fn(|i| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}

/// `scale = d s`, `offset = -dmin m` of the eight groups, from the head of a block: `d`, `dmin`, the 12 bytes.
#[inline(always)]
pub(super) fn decode(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
    let (d, dmin) = (super::portable::f16_at(block, 0), super::portable::f16_at(block, 2));
    let unpacked = unpack(words(&block[4..16]));
    for g in 0..8 {
        let byte = |word: usize| (unpacked[word + g / 4] >> (8 * (g % 4)) & 0xff) as f32;
        scale[g] = d * byte(0);
        offset[g] = -(dmin * byte(2));
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    /// As [`super::decode`].
    ///
    /// # Safety
    /// AVX2 and F16C are available; 16 bytes are readable at `p`.
    #[inline(always)]
    pub(in super::super) unsafe fn decode(p: *const u8, scale: &mut [f32; 16], offset: &mut [f32; 16]) {
        // SAFETY: the caller's promise; eight values each are written.
        unsafe {
            let word = |i: usize| p.add(4 * i).cast::<u32>().read_unaligned();
            let [s0, s1, m0, m1] = super::unpack([word(1), word(2), word(3)]);
            let s = _mm256_cvtepu8_epi32(_mm_set_epi32(0, 0, s1 as i32, s0 as i32));
            let m = _mm256_cvtepu8_epi32(_mm_set_epi32(0, 0, m1 as i32, m0 as i32));
            let factors = _mm_cvtph_ps(_mm_cvtsi32_si128(word(0) as i32));
            let d = _mm256_broadcastss_ps(factors);
            let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(factors));
            let minus = _mm256_set1_ps(-0.0);
            _mm256_storeu_ps(scale.as_mut_ptr(), _mm256_mul_ps(_mm256_cvtepi32_ps(s), d));
            let m = _mm256_mul_ps(_mm256_cvtepi32_ps(m), dmin);
            _mm256_storeu_ps(offset.as_mut_ptr(), _mm256_xor_ps(m, minus));
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::super::avx512::load512;
    use std::arch::x86_64::*;

    const EIGHT_EACH: [u32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

    /// As [`super::decode`]: eight scales, then eight offsets.
    ///
    /// # Safety
    /// AVX-512 is available; 16 bytes are readable at `p`.
    #[inline(always)]
    pub(in super::super) unsafe fn decode(p: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let word = |i: usize| p.add(4 * i).cast::<u32>().read_unaligned();
            let [s0, s1, m0, m1] = super::unpack([word(1), word(2), word(3)]);
            let bytes = _mm_set_epi32(m1 as i32, m0 as i32, s1 as i32, s0 as i32);
            let values = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
            let factors = _mm_cvtph_ps(_mm_cvtsi32_si128(word(0) as i32));
            let factors = _mm512_permutexvar_ps(load512(&EIGHT_EACH), _mm512_castps128_ps512(factors));
            let product = _mm512_mul_ps(values, factors);
            _mm512_mask_sub_ps(product, 0xff00, _mm512_setzero_ps(), product)
        }
    }
}
