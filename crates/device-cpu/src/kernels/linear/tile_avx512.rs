//! The tile loop of AVX-512 for integer codes: 16 weight rows, one lane each, times up to
//! [`X_ROWS`] activation rows. Codes and scales come from a [`SourceAvx512`]: interleaved weights,
//! unpacked on the fly or in a panel (`interleaved_avx512`), or a panel of affine weights
//! (`affine_avx512`). `interleaved_amx` multiplies by other instructions and accumulates in the
//! same order.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes, adds four neighbours to 32 bits, and
//! broadcasts the activations itself. Codes of a source without offsets have their zero at 128. A
//! group's products start at `-128` times the sum of its activations, a word of the activation row.
//! So the zero point costs no instruction on the multiplying ports. Order of accumulation:
//! `interleaved`. Two groups of 16 are added at once, which saves one multiplication in twelve;
//! their first half takes registers from three activation rows.

use super::TILE_ROWS;
use super::activation::Q8Row;
use super::interleaved::prefetch_next_rows;
use std::arch::x86_64::*;

/// Activation rows whose sums fit the registers: 12 integer, 12 float, and the operands.
pub(super) const X_ROWS: usize = 12;

/// Activation rows whose sums fit the registers in groups of 16, two of which are in flight.
const X_ROWS_BY_16: usize = 9;

/// A source of the codes and scales of 16 rows.
pub(super) trait SourceAvx512: Copy {
    /// Columns of a scale: 16 or 32.
    const GROUP: usize;
    /// True if groups have an offset; otherwise the zero of codes is 128.
    const HAS_OFFSET: bool;
    /// True if [`keep_order`] is needed, since codes are plain loads.
    const KEEPS_ORDER: bool;

    /// Codes of a step, four columns, of block `b` of 32 columns: unsigned bytes, `[16 rows][4]`.
    ///
    /// # Safety
    /// AVX-512 is available; the source has the block.
    unsafe fn codes(self, b: usize, step: usize) -> __m512i;

    /// Scale of the codes of a group, and its offset, which is undefined for a source without
    /// offsets.
    ///
    /// # Safety
    /// AVX-512 is available; the source has the group.
    unsafe fn scale(self, group: usize) -> (__m512, __m512);

    /// Like [`Self::scale`] for `C` activation rows, with groups in order. Factors that several
    /// groups share may be kept in `common`.
    ///
    /// # Safety
    /// As [`SourceAvx512::scale`].
    #[inline(always)]
    unsafe fn scale_in_turn<const C: usize>(
        self,
        group: usize,
        _common: &mut (__m512, __m512),
    ) -> (__m512, __m512) {
        // SAFETY: the caller guarantees AVX-512 and the group.
        unsafe { self.scale(group) }
    }

    /// Prefetches the weights some KB after block `b`.
    #[inline(always)]
    fn prefetch(self, _b: usize) {}
}

/// Codes of a step of block `b` of 32 columns from a panel, `[columns / 4][16 rows][4]` bytes:
/// [`SourceAvx512::codes`] of sources with a panel.
///
/// # Safety
/// AVX-512 is available; the panel has the block and is aligned to 64 bytes.
#[inline(always)]
pub(super) unsafe fn panel_codes(panel: *const u8, b: usize, step: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512, and block `b` in `panel`, aligned to 64.
    unsafe { _mm512_load_si512(panel.add((b * 8 + step) * 64).cast()) }
}

/// Maximum number of activation rows of [`rows`].
pub(super) const fn most_rows<S: SourceAvx512>() -> usize {
    if S::GROUP == 16 { X_ROWS_BY_16 } else { X_ROWS }
}

/// Number of activation rows, of `n`, that are multiplied together. Chunks are of about equal size,
/// since a small last one would unpack codes, or read a panel, for few rows.
pub(super) fn chunk_of<S: SourceAvx512>(n: usize) -> usize {
    n.div_ceil(n.div_ceil(const { most_rows::<S>() }).max(1)).max(1)
}

/// Data that is prefetched while columns are multiplied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefetched {
    /// Nothing.
    Nothing,
    /// Every line of the weights, some KB ahead. A few rows are too slow a stream for the hardware
    /// prefetcher; so is one row on Intel's processors, but not on AMD's (measured, see
    /// `NOTES.md`).
    Weights,
    /// The following activation rows.
    Rows,
}

/// Activation rows that are multiplied together.
#[derive(Clone, Copy)]
pub(super) struct XRows {
    /// Arrays of the first row, from the first of the columns on.
    pub first: Q8Row,
    /// Bytes from a row to the next.
    pub stride: usize,
    /// Data that is prefetched meanwhile.
    pub prefetched: Prefetched,
}

/// Multiplies `n` columns with `n_rows` activation rows, at most [`most_rows`]: stores `(n_rows,
/// 16)` to `out`, or adds to it unless `first`.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
pub(super) unsafe fn some_rows<S: SourceAvx512>(
    source: S,
    n: usize,
    x: XRows,
    n_rows: usize,
    first: bool,
    out: *mut f32,
) {
    macro_rules! of {
        ($($c:literal)*, $most:ident) => {
            match n_rows {
                $($c => rows::<S, $c>(source, n, x, first, out),)*
                _ => rows::<S, $most>(source, n, x, first, out),
            }
        };
    }
    // SAFETY: the caller guarantees AVX-512 with VNNI, `n` columns of `source` and of `n_rows` rows
    // from `x.first` on, and room at `out`.
    unsafe {
        if S::GROUP == 16 { of!(1 2 3 4 5 6 7 8, X_ROWS_BY_16) } else { of!(1 2 3 4 5 6 7 8 9 10 11, X_ROWS) }
    }
}

/// Multiplies `n` columns of 16 weight rows with `C` activation rows: stores `(C, 16)` to `out`, or
/// adds to it unless `first`.
///
/// # Safety
/// AVX-512 with VNNI is available; the source and the activations have the columns.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn rows<S: SourceAvx512, const C: usize>(
    source: S,
    n: usize,
    XRows { first: x, stride, prefetched }: XRows,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: the caller guarantees AVX-512 with VNNI, `n` columns of `source` and of `C` rows from
    // `x` on, and `(C, 16)` values at `out`.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for c in 0..C {
                sums[c] = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let mut common = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for b in 0..n / 32 {
            match prefetched {
                Prefetched::Nothing => {}
                Prefetched::Rows => prefetch_next_rows::<C>(x, stride, b),
                Prefetched::Weights => source.prefetch(b),
            }
            let t = products::<S, C>(source, x, stride, b, 0);
            if S::GROUP == 32 {
                let scale = source.scale_in_turn::<C>(b, &mut common);
                for c in 0..C {
                    add_scaled::<S>(&mut sums[c], t[c], scale, x, c * stride, b);
                }
                continue;
            }
            let first = source.scale_in_turn::<C>(2 * b, &mut common);
            let mut halves = [_mm512_setzero_ps(); C];
            for c in 0..C {
                halves[c] = _mm512_mul_ps(first.0, _mm512_cvtepi32_ps(t[c]));
            }
            let t = products::<S, C>(source, x, stride, b, 4);
            let second = source.scale_in_turn::<C>(2 * b + 1, &mut common);
            for c in 0..C {
                add_pair::<S>(&mut sums[c], (halves[c], first.1), t[c], second, x, c * stride, b);
            }
        }
        for c in 0..C {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sums[c]);
        }
    }
}

/// Products of the group of block `b` that begins with step `s0`, for `C` activation rows.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn products<S: SourceAvx512, const C: usize>(
    source: S,
    x: Q8Row,
    stride: usize,
    b: usize,
    s0: usize,
) -> [__m512i; C] {
    // SAFETY: the caller guarantees AVX-512 with VNNI, and the group in `source` and in `C` rows
    // from `x` on.
    unsafe {
        let mut products = [_mm512_setzero_si512(); C];
        for c in 0..C {
            products[c] = centre::<S>(x, c * stride, (b * 32 + s0 * 4) / S::GROUP);
        }
        for step in s0..s0 + S::GROUP / 4 {
            let codes = source.codes(b, step);
            for c in 0..C {
                let p = x.q.byte_add(c * stride).add(b * 32 + step * 4);
                let q = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
                products[c] = _mm512_dpbusd_epi32(products[c], codes, q);
            }
            if S::KEEPS_ORDER {
                keep_order(&mut products);
            }
        }
        products
    }
}

/// Keeps the sums of rows in registers, and each step's before the next. Without it the compiler
/// moves all steps of one row together, since codes are plain loads. The result is chains of
/// dependent products, with sums in memory.
#[inline]
#[target_feature(enable = "avx512f")]
fn keep_order<const C: usize>(sums: &mut [__m512i; C]) {
    for sum in sums {
        // SAFETY: the assembly is a comment without instructions.
        unsafe {
            std::arch::asm!("/* {} */", inout(zmm_reg) * sum, options(nomem, nostack, preserves_flags));
        }
    }
}

/// Initial value of the products of a group with the activation row `row` bytes after `x`.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn centre<S: SourceAvx512>(x: Q8Row, row: usize, group: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512, and the group in the row `row` bytes after `x`.
    unsafe {
        match S::GROUP {
            _ if S::HAS_OFFSET => _mm512_setzero_si512(),
            32 => _mm512_set1_epi32(*x.centre32.byte_add(row).add(group)),
            _ => _mm512_set1_epi32(*x.centre16.byte_add(row).add(group)),
        }
    }
}

/// Adds the products `t` of a group of 32, which include their [`centre`]. They are multiplied with
/// the group's scale, and with the scale of the activation row `row` bytes after `x`. The offset is
/// multiplied with the row's sum.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn add_scaled<S: SourceAvx512>(
    sum: &mut __m512,
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    group: usize,
) {
    // SAFETY: the caller guarantees AVX-512, and the group in the row `row` bytes after `x`.
    unsafe {
        let x_scale = _mm512_set1_ps(*x.scale.byte_add(row).add(group));
        *sum = _mm512_fmadd_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(t), x_scale), *sum);
        if S::HAS_OFFSET {
            let x_sum = _mm512_set1_ps(*x.sum32.byte_add(row).add(group));
            *sum = _mm512_fmadd_ps(offset, x_sum, *sum);
        }
    }
}

/// Adds the products of two groups of 16 of block `b`. `half` has those of the first group times
/// its scale, `t` those of the second. [`centre`], offsets and activations are as in
/// [`add_scaled`].
///
/// # Safety
/// AVX-512 is available; the activations have the block.
#[inline(always)]
unsafe fn add_pair<S: SourceAvx512>(
    sum: &mut __m512,
    (half, first_offset): (__m512, __m512),
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    b: usize,
) {
    // SAFETY: the caller guarantees AVX-512, and block `b` in the row `row` bytes after `x`.
    unsafe {
        let both = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(t), half);
        *sum = _mm512_fmadd_ps(both, _mm512_set1_ps(*x.scale.byte_add(row).add(b)), *sum);
        if S::HAS_OFFSET {
            let x_sums = x.sum16.byte_add(row).add(2 * b);
            *sum = _mm512_fmadd_ps(first_offset, _mm512_set1_ps(*x_sums), *sum);
            *sum = _mm512_fmadd_ps(offset, _mm512_set1_ps(*x_sums.add(1)), *sum);
        }
    }
}
