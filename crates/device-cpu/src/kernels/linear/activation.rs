//! Activations as the matrix kernels read them: F32, rounded to BF16, or quantised to 8 bits in
//! groups of 32 (`Q8`).
//!
//! # The Q8 row
//!
//! For `K` columns, a multiple of 32, seven arrays one after another, each padded with zeros to 64
//! bytes:
//!
//! | array | type | meaning |
//! |---|---|---|
//! | `q` | `[i8; K]` | `round(x / scale)`, ties to even, in `-127..=127` |
//! | `scale` | `[f32; K/32]` | `max |x| / 127` of each 32 columns |
//! | `sum32` | `[f32; K/32]` | `scale * sum q` of each 32 columns |
//! | `sum16` | `[f32; K/16]` | `scale * sum q` of each 16 columns |
//! | `centre32` | `[i32; K/32]` | `-128 sum q` of each 32 columns, for codes around 128 |
//! | `centre16` | `[i32; K/16]` | `-128 sum q` of each 16 columns |
//! | `pairs` | `[[i16; 2]; K/16]` | `sum q` of columns 0 and 1 modulo 4, then 2 and 3 |
//!
//! The bits are the same on every instruction set. Groups whose largest magnitude is below 1e-30
//! become zeros, since the reciprocal of their scale would overflow.

use crate::isa::{Isa, Vectors};

/// Form of activations that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationKind {
    /// `[f32; K]`, any `K`.
    F32,
    /// The Q8 row of this module.
    Q8,
    /// `[bf16; K]`, rounded to nearest even, any `K`; zeros up to [`bf16_row_bytes`].
    Bf16,
}

impl ActivationKind {
    /// All forms; each is at the index of its number.
    pub const ALL: [ActivationKind; 3] = [ActivationKind::F32, ActivationKind::Q8, ActivationKind::Bf16];

    /// Bytes of a row of `n_cols` columns.
    pub const fn row_bytes(self, n_cols: usize) -> usize {
        match self {
            ActivationKind::F32 => n_cols * 4,
            ActivationKind::Q8 => q8_row_bytes(n_cols),
            ActivationKind::Bf16 => bf16_row_bytes(n_cols),
        }
    }

    /// Converts a row `[f32; n_cols]` to this form.
    ///
    /// # Safety
    /// `x` is valid for reads of `n_cols` values. `out` is valid for writes of [`Self::row_bytes`]
    /// and aligned as the form requires. The instruction set is available. For Q8, `n_cols` is a
    /// multiple of 32.
    pub unsafe fn write_row(self, isa: Isa, x: *const f32, n_cols: usize, out: *mut u8) {
        // SAFETY: the caller guarantees `n_cols` values at `x`, room and alignment of `out` for the
        // form, and `isa`; for Q8, `n_cols` is a multiple of 32.
        unsafe {
            match self {
                ActivationKind::F32 => out.cast::<f32>().copy_from_nonoverlapping(x, n_cols),
                ActivationKind::Q8 => quantize_row_q8(isa, x, n_cols, out),
                ActivationKind::Bf16 => round_row_bf16(isa, x, n_cols, out),
            }
        }
    }
}

/// Address of one activation row: f32 values (aligned to 4), or a Q8 or BF16 row (aligned to 64).
#[derive(Clone, Copy, Debug)]
pub struct ActRow(pub *const u8);

/// Activation rows at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct ActRows {
    /// Address of the first row; as [`ActRow`].
    pub base: *const u8,
    /// Bytes from one row to the next; a multiple of the row's alignment.
    pub stride: usize,
    /// Rows.
    pub n: usize,
}

impl ActRows {
    /// Row `i`.
    ///
    /// # Safety
    /// `i < n`.
    #[inline(always)]
    pub unsafe fn row(self, i: usize) -> ActRow {
        // SAFETY: the caller guarantees that there is a row `i`; rows are `stride` bytes apart.
        ActRow(unsafe { self.base.add(i * self.stride) })
    }
}

/// Groups below this magnitude become zeros.
const TINY: f32 = 1e-30;

const fn round_up(n: usize) -> usize {
    (n + 63) & !63
}

/// Byte offset of `scale` in a Q8 row.
pub const fn q8_scale_offset(n_cols: usize) -> usize {
    round_up(n_cols)
}

/// Byte offset of `sum32` in a Q8 row.
pub const fn q8_sum32_offset(n_cols: usize) -> usize {
    q8_scale_offset(n_cols) + round_up(n_cols / 32 * 4)
}

/// Byte offset of `sum16` in a Q8 row.
pub const fn q8_sum16_offset(n_cols: usize) -> usize {
    q8_sum32_offset(n_cols) + round_up(n_cols / 32 * 4)
}

/// Byte offset of `centre32` in a Q8 row.
pub const fn q8_centre32_offset(n_cols: usize) -> usize {
    q8_sum16_offset(n_cols) + round_up(n_cols / 16 * 4)
}

/// Byte offset of `centre16` in a Q8 row.
pub const fn q8_centre16_offset(n_cols: usize) -> usize {
    q8_centre32_offset(n_cols) + round_up(n_cols / 32 * 4)
}

/// Byte offset of `pairs` in a Q8 row.
pub const fn q8_pairs_offset(n_cols: usize) -> usize {
    q8_centre16_offset(n_cols) + round_up(n_cols / 16 * 4)
}

/// Bytes of a Q8 row of `n_cols` columns (a multiple of 32), about 2.1 a column. It is an odd
/// multiple of 64, so that the same column of neighbouring rows is in different sets of the
/// first-level cache.
pub const fn q8_row_bytes(n_cols: usize) -> usize {
    (q8_pairs_offset(n_cols) + round_up(n_cols / 16 * 4)) | 64
}

/// Bytes of a BF16 row: whole registers, and an odd multiple of 64, as [`q8_row_bytes`].
pub const fn bf16_row_bytes(n_cols: usize) -> usize {
    round_up(n_cols * 2) | 64
}

/// Rounds one row, `x` `[f32; n_cols]`, to the BF16 row `out`. The bits are the same on every
/// instruction set, except that AVX-512 treats subnormal numbers as zeros.
///
/// # Safety
/// As [`quantize_row_q8`], for any `n_cols` and [`bf16_row_bytes`].
unsafe fn round_row_bf16(isa: Isa, x: *const f32, n_cols: usize, out: *mut u8) {
    // SAFETY: the caller guarantees `n_cols` values at `x`, a BF16 row at `out`, and `isa`.
    unsafe {
        let whole = round_up(n_cols * 2);
        out.add(whole).write_bytes(0, bf16_row_bytes(n_cols) - whole);
        #[cfg(target_arch = "x86_64")]
        if isa.multiplies_bf16() {
            return super::avx512::round_row_bf16(x, n_cols, out);
        }
        let _ = isa;
        let out = std::slice::from_raw_parts_mut(out.cast::<u16>(), whole / 2);
        out.fill(0);
        for (k, out) in out.iter_mut().enumerate().take(n_cols) {
            *out = half::bf16::from_f32(*x.add(k)).to_bits();
        }
    }
}

/// Addresses of the arrays of a Q8 row.
#[derive(Clone, Copy, Debug)]
pub struct Q8Row {
    /// `[i8; K]`
    pub q: *const i8,
    /// `[f32; K/32]`
    pub scale: *const f32,
    /// `[f32; K/32]`
    pub sum32: *const f32,
    /// `[f32; K/16]`
    pub sum16: *const f32,
    /// `[i32; K/32]`
    pub centre32: *const i32,
    /// `[i32; K/16]`
    pub centre16: *const i32,
    /// `[[i16; 2]; K/16]`, each pair as one word of 32 bits.
    pub pairs: *const i32,
}

impl ActRow {
    /// The arrays of a Q8 row of `n_cols` columns.
    ///
    /// # Safety
    /// The address is valid for [`q8_row_bytes`] bytes.
    #[inline(always)]
    pub unsafe fn q8(self, n_cols: usize) -> Q8Row {
        // SAFETY: all offsets are below `q8_row_bytes`, which the caller guarantees at the address.
        unsafe {
            Q8Row {
                q: self.0.cast(),
                scale: self.0.add(q8_scale_offset(n_cols)).cast(),
                sum32: self.0.add(q8_sum32_offset(n_cols)).cast(),
                sum16: self.0.add(q8_sum16_offset(n_cols)).cast(),
                centre32: self.0.add(q8_centre32_offset(n_cols)).cast(),
                centre16: self.0.add(q8_centre16_offset(n_cols)).cast(),
                pairs: self.0.add(q8_pairs_offset(n_cols)).cast(),
            }
        }
    }
}

/// Quantises one row, `x` `[f32; n_cols]`, to the Q8 row `out`.
///
/// # Safety
/// - `n_cols` is a multiple of 32; `x` is valid for `n_cols` reads; `out` for [`q8_row_bytes`]
///   writes, aligned to 64.
/// - `isa` is available on this processor.
pub unsafe fn quantize_row_q8(isa: Isa, x: *const f32, n_cols: usize, out: *mut u8) {
    // SAFETY: the caller guarantees `n_cols` values at `x`, `q8_row_bytes` at `out`, aligned to 64,
    // and `isa`. The padding of each array ends where the next array begins.
    unsafe {
        for (start, end) in [
            (n_cols, q8_scale_offset(n_cols)),
            (q8_scale_offset(n_cols) + n_cols / 32 * 4, q8_sum32_offset(n_cols)),
            (q8_sum32_offset(n_cols) + n_cols / 32 * 4, q8_sum16_offset(n_cols)),
            (q8_sum16_offset(n_cols) + n_cols / 16 * 4, q8_centre32_offset(n_cols)),
            (q8_centre32_offset(n_cols) + n_cols / 32 * 4, q8_centre16_offset(n_cols)),
            (q8_centre16_offset(n_cols) + n_cols / 16 * 4, q8_pairs_offset(n_cols)),
            (q8_pairs_offset(n_cols) + n_cols / 16 * 4, q8_row_bytes(n_cols)),
        ] {
            out.add(start).write_bytes(0, end - start);
        }
        let row = ActRow(out).q8(n_cols);
        match isa.vectors() {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => quantize_avx512(x, n_cols, row),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => quantize_avx2(x, n_cols, row),
            #[cfg(target_arch = "aarch64")]
            Vectors::Neon => quantize_neon(x, n_cols, row),
            Vectors::Portable => quantize_portable(x, n_cols, row),
        }
    }
}

/// `(scale, 1 / scale)` of a group with this largest magnitude.
#[inline(always)]
fn scale_of(largest: f32) -> (f32, f32) {
    if largest >= TINY { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) }
}

/// Stores the scale and the sums of group `g`; `low` and `high` are the `pairs` of its halves.
///
/// # Safety
/// The row has more than `g` groups.
#[inline(always)]
unsafe fn store_group(row: Q8Row, g: usize, scale: f32, low: [i32; 2], high: [i32; 2]) {
    let word = |[a, b]: [i32; 2]| (a & 0xffff) | (b << 16);
    // SAFETY: by the caller, the row has more than `g` groups.
    unsafe {
        row.pairs.cast_mut().add(2 * g).write(word(low));
        row.pairs.cast_mut().add(2 * g + 1).write(word(high));
        let (low, high) = (low[0] + low[1], high[0] + high[1]);
        row.centre32.cast_mut().add(g).write(-128 * (low + high));
        row.centre16.cast_mut().add(2 * g).write(-128 * low);
        row.centre16.cast_mut().add(2 * g + 1).write(-128 * high);
        row.scale.cast_mut().add(g).write(scale);
        row.sum32.cast_mut().add(g).write(scale * (low + high) as f32);
        row.sum16.cast_mut().add(2 * g).write(scale * low as f32);
        row.sum16.cast_mut().add(2 * g + 1).write(scale * high as f32);
    }
}

#[inline(always)]
unsafe fn quantize_portable(x: *const f32, n_cols: usize, row: Q8Row) {
    for g in 0..n_cols / 32 {
        // SAFETY: `g` is below `n_cols / 32`, so `x` and `row.q` have the group's 32 columns.
        let (x, q) = unsafe {
            (
                std::slice::from_raw_parts(x.add(g * 32), 32),
                std::slice::from_raw_parts_mut(row.q.cast_mut().add(g * 32), 32),
            )
        };
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let (scale, inverse) = scale_of(largest);
        let mut sums = [[0i32; 2]; 2];
        for i in 0..32 {
            q[i] = (x[i] * inverse).round_ties_even() as i8;
            sums[i / 16][i % 4 / 2] += i32::from(q[i]);
        }
        // SAFETY: `g` is below `n_cols / 32`, the number of the row's groups.
        unsafe { store_group(row, g, scale, sums[0], sums[1]) };
    }
}

#[cfg(target_arch = "aarch64")]
unsafe fn quantize_neon(x: *const f32, n_cols: usize, row: Q8Row) {
    use std::arch::aarch64::*;
    for g in 0..n_cols / 32 {
        // SAFETY: `g` is below `n_cols / 32`, so `x` and `row.q` have the group's 32 columns; NEON
        // is the baseline.
        unsafe {
            let mut values = [vdupq_n_f32(0.0); 8];
            for (i, value) in values.iter_mut().enumerate() {
                *value = vld1q_f32(x.add(g * 32 + i * 4));
            }
            let mut largest = vabsq_f32(values[0]);
            for value in &values[1..] {
                largest = vmaxnmq_f32(largest, vabsq_f32(*value));
            }
            let (scale, inverse) = scale_of(vmaxnmvq_f32(largest));
            let mut q = [vdupq_n_s32(0); 8];
            for (q, value) in q.iter_mut().zip(values) {
                *q = vcvtnq_s32_f32(vmulq_n_f32(value, inverse));
            }
            let mut sums = [[0i32; 2]; 2];
            for half in 0..2 {
                let q = &q[4 * half..4 * half + 4];
                let low = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
                let high = vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]));
                let bytes = vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
                vst1q_s8(row.q.cast_mut().add(g * 32 + half * 16), bytes);
                // First columns 0 and 1 modulo 4, then columns 2 and 3.
                let fours = vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3]));
                let pairs = vpadd_s32(vget_low_s32(fours), vget_high_s32(fours));
                sums[half] = [vget_lane_s32::<0>(pairs), vget_lane_s32::<1>(pairs)];
            }
            store_group(row, g, scale, sums[0], sums[1]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_avx2(x: *const f32, n_cols: usize, row: Q8Row) {
    use std::arch::x86_64::*;
    let sign = _mm256_set1_ps(-0.0);
    for g in 0..n_cols / 32 {
        // SAFETY: `g` is below `n_cols / 32`, so `x` and `row.q` have the group's 32 columns.
        unsafe {
            let x = x.add(g * 32);
            let mut m = _mm256_setzero_ps();
            for i in 0..4 {
                m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x.add(i * 8))));
            }
            let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            let m = _mm_max_ss(m, _mm_movehdup_ps(m));
            let (scale, inverse) = scale_of(_mm_cvtss_f32(m));
            let inverse = _mm256_set1_ps(inverse);
            let mut q = [_mm256_setzero_si256(); 4];
            for (i, q) in q.iter_mut().enumerate() {
                *q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(i * 8)), inverse));
            }
            // Packing works within 128-bit halves; the permutation restores the order.
            let words = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(words, order);
            _mm256_storeu_si256(row.q.cast_mut().add(g * 32).cast(), bytes);
            let low = sums_of_pairs(_mm256_add_epi32(q[0], q[1]));
            let high = sums_of_pairs(_mm256_add_epi32(q[2], q[3]));
            store_group(row, g, scale, low, high);
        }
    }
}

/// Sums of lanes 0 and 1 modulo 4, and of lanes 2 and 3.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_pairs(v: std::arch::x86_64::__m256i) -> [i32; 2] {
    use std::arch::x86_64::*;
    let fours = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let sums = _mm_hadd_epi32(fours, fours);
    [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn quantize_avx512(x: *const f32, n_cols: usize, row: Q8Row) {
    use std::arch::x86_64::*;
    for g in 0..n_cols / 32 {
        // SAFETY: `g` is below `n_cols / 32`, so `x` and `row.q` have the group's 32 columns.
        unsafe {
            let low = _mm512_loadu_ps(x.add(g * 32));
            let high = _mm512_loadu_ps(x.add(g * 32 + 16));
            let (scale, inverse) =
                scale_of(_mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high))));
            let inverse = _mm512_set1_ps(inverse);
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
            let q = row.q.cast_mut().add(g * 32);
            _mm_storeu_si128(q.cast(), _mm512_cvtsepi32_epi8(low));
            _mm_storeu_si128(q.add(16).cast(), _mm512_cvtsepi32_epi8(high));
            let sums = |v: __m512i| {
                sums_of_pairs(_mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v)))
            };
            store_group(row, g, scale, sums(low), sums(high));
        }
    }
}
