//! What AVX-512 decoding has in common: two traits and the constants of permutations.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes and adds four products to a 32-bit lane, so codes are unsigned here:
//! a signed type adds its zero point, which the loops take out again. Nothing is read outside a block: where a whole
//! register would be, the load is masked, and masked-off bytes cannot fault.

use std::arch::x86_64::*;

/// A type with blocks of 32 columns, of which two fill a register of 64 codes.
pub(super) trait PairFormat: super::avx2::Avx2Format {
    /// Decode the block at `p`, and its neighbour unless `HALF`, whose codes and scales are then of no account but
    /// finite.
    ///
    /// # Safety
    /// AVX-512 is available; one block (`HALF`) or two are readable at `p`.
    unsafe fn pair<const HALF: bool>(p: *const u8) -> Pair;

    /// Whether [`Self::quad`] is faster than two pairs.
    const HAS_QUAD: bool = false;

    /// Decode four blocks.
    ///
    /// # Safety
    /// AVX-512 is available; four blocks are readable at `p`.
    #[inline(always)]
    unsafe fn quad(_p: *const u8) -> Quad {
        unreachable!("HAS_QUAD is false")
    }

    /// Scales and offsets of the blocks at byte `at` of 16 rows.
    ///
    /// # Safety
    /// AVX-512 is available; the blocks are readable.
    #[inline(always)]
    unsafe fn column(rows: &[*const u8; 16], at: usize) -> (__m512, __m512) {
        // SAFETY: types with an f16 scale begin with it, and with an offset, it follows.
        unsafe {
            let scale = gather_f16(rows, at);
            let offset = if Self::HAS_OFFSET {
                gather_f16(rows, at + 2)
            } else {
                _mm512_mul_ps(scale, _mm512_set1_ps(-f32::from(Self::ZERO)))
            };
            (scale, offset)
        }
    }
}

/// Two decoded blocks.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    /// 64 unsigned codes in the order of their columns.
    pub codes: __m512i,
    /// The first block's scale in lanes 0..8, the second's in 8..16.
    pub scale: __m512,
    /// The offsets likewise; undefined without.
    pub offset: __m512,
}

/// Four decoded blocks, their scales side by side: they are converted and multiplied once for four.
#[derive(Clone, Copy)]
pub(super) struct Quad {
    /// 128 unsigned codes in the order of their columns.
    pub codes: [__m512i; 2],
    /// Four scales, then four offsets (undefined without).
    pub scale: __m256,
}

/// Where things are in four blocks of [`QuadWords::block`] words, for `vpermw`.
pub(super) struct QuadWords {
    /// Words of a block; four blocks are within two registers that overlap.
    block: usize,
    /// The nibbles of blocks 0 and 1 in the first 64 bytes, of 2 and 3 in the last.
    nibbles: [[u16; 32]; 2],
    /// Words 0 of the blocks, then words 1.
    scales: [u16; 32],
}

impl QuadWords {
    /// Blocks of `block` words that begin with their scale (and offset) and have 16 bytes of nibbles from word `first` on.
    pub(super) const fn new(block: u16, first: u16) -> QuadWords {
        assert!(4 * block >= 32 && 4 * block <= 64);
        // The last 64 bytes begin here.
        let last = 4 * block - 32;
        let mut scales = [0; 32];
        let mut i = 0;
        while i < 8 {
            let word = (i as u16 % 4) * block + i as u16 / 4;
            // From 32 on, the index is one into the last 64 bytes.
            scales[i] = if word < 32 { word } else { 32 + word - last };
            i += 1;
        }
        let nibbles = [nibble_words(first, block), nibble_words(first + 2 * block - last, block)];
        QuadWords { block: block as usize, nibbles, scales }
    }

    /// Nibbles and scales of the four blocks at `p`.
    ///
    /// # Safety
    /// AVX-512 is available; four blocks are readable at `p`.
    #[inline(always)]
    pub(super) unsafe fn load(&'static self, p: *const u8) -> Quad {
        // SAFETY: the caller's promise; both loads are within the four blocks.
        unsafe {
            let first = _mm512_loadu_si512(p.cast());
            let last = _mm512_loadu_si512(p.add(8 * self.block - 64).cast());
            let index = load512(&self.scales);
            let scales = if self.block <= 10 {
                _mm512_permutexvar_epi16(index, first)
            } else {
                _mm512_permutex2var_epi16(first, index, last)
            };
            Quad {
                codes: [nibbles(first, &self.nibbles[0]), nibbles(last, &self.nibbles[1])],
                scale: _mm256_cvtph_ps(_mm512_castsi512_si128(scales)),
            }
        }
    }
}

/// A type with blocks of 256 columns.
pub(super) trait SuperFormat: super::avx2::Avx2Format {
    /// Decode the block at `p`.
    ///
    /// # Safety
    /// AVX-512 is available; a block is readable at `p`.
    unsafe fn block(p: *const u8) -> Super;
}

/// A decoded block of 256 columns.
#[derive(Clone, Copy)]
pub(super) struct Super {
    /// Unsigned codes in the order of their columns.
    pub codes: [__m512i; 4],
    /// `GROUP` 16: 16 scales. `GROUP` 32: 8 scales, then 8 offsets (zeros without).
    pub scale: __m512,
    /// `GROUP` 16 with an offset: 16 offsets; else undefined.
    pub offset: __m512,
}

/// For `vpermw`: a pair's 16 bytes of nibbles from word `first` of block 0, twice, then of block 1, twice.
pub(super) const fn nibble_words(first: u16, block_words: u16) -> [u16; 32] {
    let mut index = [0; 32];
    let mut i = 0;
    while i < 32 {
        index[i] = first + (i as u16 % 8) + if i < 16 { 0 } else { block_words };
        i += 1;
    }
    index
}

/// For `vpermw`: word `first` of block 0 eight times, then of block 1.
pub(super) const fn scale_words(first: u16, block_words: u16) -> [u16; 16] {
    let mut index = [first; 16];
    let mut i = 8;
    while i < 16 {
        index[i] = first + block_words;
        i += 1;
    }
    index
}

/// 16 words of 0, then 16 of `high`: shift counts for the two halves of a register.
pub(super) const fn halves(low: u16, high: u16) -> [u16; 32] {
    let mut shifts = [low; 32];
    let mut i = 16;
    while i < 32 {
        shifts[i] = high;
        i += 1;
    }
    shifts
}

/// Shift counts by 128-bit lanes: 0, 4, 0, 4.
pub(super) const NIBBLE_SHIFTS: [u16; 32] = {
    let mut shifts = [0; 32];
    let mut i = 0;
    while i < 32 {
        shifts[i] = if (i / 8) % 2 == 0 { 0 } else { 4 };
        i += 1;
    }
    shifts
};

/// A constant in a register.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn load512<T, const N: usize>(values: &'static [T; N]) -> __m512i {
    const { assert!(size_of::<T>() * N == 64) };
    // SAFETY: 64 bytes, by the assertion.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// As [`load512`], for half a register.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn load256<T, const N: usize>(values: &'static [T; N]) -> __m256i {
    const { assert!(size_of::<T>() * N == 32) };
    // SAFETY: 32 bytes, by the assertion.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// The bytes of a pair whose blocks have `WORDS` words, or of its first block.
///
/// # Safety
/// AVX-512 is available; one block (`HALF`) or two are readable at `p`.
#[inline(always)]
pub(super) unsafe fn load_pair<const WORDS: u32, const HALF: bool>(p: *const u8) -> __m512i {
    const { assert!(WORDS * 2 <= 32) };
    let words = if HALF { WORDS } else { WORDS * 2 };
    // SAFETY: the caller's promise; bytes outside the mask are not read.
    unsafe { _mm512_maskz_loadu_epi16(((1u64 << words) - 1) as u32, p.cast()) }
}

/// The nibbles of a pair in the order of their columns, from its bytes: low nibbles are columns 0..16 of a block, high
/// nibbles 16..32. `index` is [`nibble_words`].
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: __m512i, index: &'static [u16; 32]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let spread = _mm512_permutexvar_epi16(load512(index), bytes);
        _mm512_and_si512(_mm512_srlv_epi16(spread, load512(&NIBBLE_SHIFTS)), _mm512_set1_epi8(15))
    }
}

/// f16 words of the first 32 bytes of a pair in f32; `index` is [`scale_words`].
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn scales(bytes: __m512i, index: &'static [u16; 16]) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_permutexvar_epi16(load256(index), _mm512_castsi512_si256(bytes))) }
}

/// The fifth bits of a pair: 32 bits at `p` for the first block, 32 bits `distance` bytes further for the second.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(super) unsafe fn high_bits<const HALF: bool>(p: *const u8, distance: usize) -> __mmask64 {
    // SAFETY: the caller's promise.
    unsafe {
        let low = u64::from(p.cast::<u32>().read_unaligned());
        if HALF { low } else { low | u64::from(p.add(distance).cast::<u32>().read_unaligned()) << 32 }
    }
}

/// The f16 at `p` and the f16 `distance` bytes further, eight lanes each; zero for the second if `HALF`.
///
/// # Safety
/// AVX-512 is available and the numbers are readable.
#[inline(always)]
pub(super) unsafe fn two_scales<const HALF: bool>(p: *const u8, distance: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm_set1_epi16(p.cast::<i16>().read_unaligned());
        let second = if HALF {
            _mm_setzero_si128()
        } else {
            _mm_set1_epi16(p.add(distance).cast::<i16>().read_unaligned())
        };
        _mm512_cvtph_ps(_mm256_set_m128i(second, first))
    }
}

/// The f16 at byte `at` of each of 16 rows, in f32.
///
/// # Safety
/// AVX-512 is available and the numbers are readable.
#[inline(always)]
pub(super) unsafe fn gather_f16(rows: &[*const u8; 16], at: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let h = |i: usize| rows[i].add(at).cast::<i16>().read_unaligned();
        let low = _mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7));
        let high = _mm_setr_epi16(h(8), h(9), h(10), h(11), h(12), h(13), h(14), h(15));
        _mm512_cvtph_ps(_mm256_set_m128i(high, low))
    }
}

/// The sum of all lanes in a fixed order: 8 apart, 4, 2, neighbours.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m512) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        super::avx2::horizontal_sum(s)
    }
}

/// For `vpermps`: the lanes of 64 columns, register `z` of four, each showing the group its four columns are in.
pub(super) const fn group_lanes(group: usize) -> [[u32; 16]; 4] {
    let mut lanes = [[0; 16]; 4];
    let mut z = 0;
    while z < 4 {
        let mut i = 0;
        while i < 16 {
            lanes[z][i] = ((z * 64 + i * 4) / group) as u32;
            i += 1;
        }
        z += 1;
    }
    lanes
}
