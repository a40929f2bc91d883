//! The tile loop of AVX-512 for integer codes: 16 weight rows, whose lanes they are, times up to [`X_ROWS`] activation rows. Codes and
//! scales come from a [`Source`]: interleaved weights as they are unpacked or from a panel (`interleaved_avx512`), or a panel of
//! affine ones (`affine_avx512`). `interleaved_amx` multiplies by other instructions and adds in the same order.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes and adds four neighbours to 32 bits; it broadcasts the activations itself. Codes of
//! a source without offsets have their zero at 128, and a group's products begin with `-128` times the sum of its activations, a word of
//! the activation row: taking the zero out costs no instruction of the ports that multiply. Order of accumulation: `interleaved`; two
//! groups of 16 add at once, which saves one multiplication in twelve, and their first half takes registers from three activation rows.

use super::TILE_ROWS;
use super::activation::Q8Row;
use super::interleaved::ask_next_rows;
use std::arch::x86_64::*;

/// Activation rows whose sums fit the registers: 12 integer, 12 float, and the operands.
pub(super) const X_ROWS: usize = 12;

/// The same with groups of 16, of which two are under way.
const X_ROWS_BY_16: usize = 9;

/// Where the codes and scales of 16 rows come from.
pub(super) trait Source: Copy {
    /// Columns of a scale: 16 or 32.
    const GROUP: usize;
    /// Whether there is an offset; without one the zero of codes is 128.
    const HAS_OFFSET: bool;
    /// Whether [`keep_order`] is called for: codes are but loads.
    const KEEPS_ORDER: bool;

    /// The codes of a step, four columns, of block `b` of 32 columns: unsigned bytes, `[16 rows][4]`.
    ///
    /// # Safety
    /// AVX-512 is available; the source has the block.
    unsafe fn codes(self, b: usize, step: usize) -> __m512i;

    /// Scale of the codes, and offset of a group; the offset is anything for a source without.
    ///
    /// # Safety
    /// AVX-512 is available; the source has the group.
    unsafe fn scale(self, group: usize) -> (__m512, __m512);

    /// The same for `C` activation rows, where groups come in order: what several have in common may be kept in `common`.
    ///
    /// # Safety
    /// As [`Source::scale`].
    #[inline(always)]
    unsafe fn scale_in_turn<const C: usize>(
        self,
        group: usize,
        _common: &mut (__m512, __m512),
    ) -> (__m512, __m512) {
        // SAFETY: by the caller, AVX-512 is available; the source has the group.
        unsafe { self.scale(group) }
    }

    /// Prefetch the weights some KB after block `b`.
    #[inline(always)]
    fn ask(self, _b: usize) {}
}

/// The codes of a step of block `b` of 32 columns from a panel, `[columns / 4][16 rows][4]` bytes: [`Source::codes`] of sources that have one.
///
/// # Safety
/// AVX-512 is available; the panel has the block and is aligned to 64 bytes.
#[inline(always)]
pub(super) unsafe fn panel_codes(panel: *const u8, b: usize, step: usize) -> __m512i {
    // SAFETY: by the caller, AVX-512 is available; the panel has the block and is aligned to 64 bytes.
    unsafe { _mm512_load_si512(panel.add((b * 8 + step) * 64).cast()) }
}

/// Most activation rows of [`rows`].
pub(super) const fn most_rows<S: Source>() -> usize {
    if S::GROUP == 16 { X_ROWS_BY_16 } else { X_ROWS }
}

/// How many of `n` activation rows pass together, so that chunks are of about equal size: a small last one would unpack, or read a panel,
/// for few.
pub(super) fn chunk_of<S: Source>(n: usize) -> usize {
    n.div_ceil(n.div_ceil(const { most_rows::<S>() }).max(1)).max(1)
}

/// What is prefetched while columns pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Nothing.
    Nothing,
    /// The weights that follow some KB later, every line. Few rows are too slow a stream for the hardware prefetcher; one row is such a
    /// stream for AMD's, but not for Intel's (measured, see `NOTES.md`).
    Weights,
    /// The activation rows that come next.
    Rows,
}

/// Activation rows that meet the weights together.
#[derive(Clone, Copy)]
pub(super) struct XRows {
    /// The first row, from the first of the columns on.
    pub first: Q8Row,
    /// Bytes from a row to the next.
    pub stride: usize,
    /// What is prefetched meanwhile.
    pub ask: Ask,
}

/// `n` columns times `n_rows` activation rows, at most [`most_rows`]: to `out`, `(n_rows, 16)`, or added to it unless `first`.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
pub(super) unsafe fn some_rows<S: Source>(
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
    // SAFETY: by the caller, AVX-512 with VNNI is available; the source and the activations have the columns.
    unsafe {
        if S::GROUP == 16 { of!(1 2 3 4 5 6 7 8, X_ROWS_BY_16) } else { of!(1 2 3 4 5 6 7 8 9 10 11, X_ROWS) }
    }
}

/// `n` columns of 16 weight rows times `C` activation rows: to `out`, `(C, 16)`, or added to it unless `first`.
///
/// # Safety
/// AVX-512 with VNNI is available; the source and the activations have the columns.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn rows<S: Source, const C: usize>(
    source: S,
    n: usize,
    XRows { first: x, stride, ask }: XRows,
    first: bool,
    out: *mut f32,
) {
    // SAFETY: by the caller, AVX-512 with VNNI is available; the source and the activations have the columns.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); C];
        if !first {
            for c in 0..C {
                sums[c] = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let mut common = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for b in 0..n / 32 {
            match ask {
                Ask::Nothing => {}
                Ask::Rows => ask_next_rows::<C>(x, stride, b),
                Ask::Weights => source.ask(b),
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

/// The products of the group of block `b` that begins with step `s0`, for `C` activation rows.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn products<S: Source, const C: usize>(
    source: S,
    x: Q8Row,
    stride: usize,
    b: usize,
    s0: usize,
) -> [__m512i; C] {
    // SAFETY: by the caller, AVX-512 with VNNI is available; the source and the activations have the columns.
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

/// Keep the sums of rows in registers, each step's before the next. Left to itself, the compiler brings all steps of one row
/// together, since codes are but loads: chains of products that wait for one another, and sums in memory.
#[inline]
#[target_feature(enable = "avx512f")]
fn keep_order<const C: usize>(sums: &mut [__m512i; C]) {
    for sum in sums {
        // SAFETY: a comment, no instruction.
        unsafe {
            std::arch::asm!("/* {} */", inout(zmm_reg) * sum, options(nomem, nostack, preserves_flags));
        }
    }
}

/// What the products of a group of an activation row begin with; the row begins `row` bytes after `x`.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn centre<S: Source>(x: Q8Row, row: usize, group: usize) -> __m512i {
    // SAFETY: by the caller, AVX-512 is available; the activations have the group.
    unsafe {
        match S::GROUP {
            _ if S::HAS_OFFSET => _mm512_setzero_si512(),
            32 => _mm512_set1_epi32(*x.centre32.byte_add(row).add(group)),
            _ => _mm512_set1_epi32(*x.centre16.byte_add(row).add(group)),
        }
    }
}

/// Add the products `t` of a group of 32, their [`centre`] among them, with its scale and offset, and with the scale and the sum of the
/// activations of the row that begins `row` bytes after `x`.
///
/// # Safety
/// AVX-512 is available; the activations have the group.
#[inline(always)]
pub(super) unsafe fn add_scaled<S: Source>(
    sum: &mut __m512,
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    group: usize,
) {
    // SAFETY: by the caller, AVX-512 is available; the activations have the group.
    unsafe {
        let x_scale = _mm512_set1_ps(*x.scale.byte_add(row).add(group));
        *sum = _mm512_fmadd_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(t), x_scale), *sum);
        if S::HAS_OFFSET {
            let x_sum = _mm512_set1_ps(*x.sum32.byte_add(row).add(group));
            *sum = _mm512_fmadd_ps(offset, x_sum, *sum);
        }
    }
}

/// Add the products of two groups of 16 of block `b`: `half` is those of the first with their scale, `t` those of the second; each with
/// its [`centre`], offset and activations as in [`add_scaled`].
///
/// # Safety
/// AVX-512 is available; the activations have the block.
#[inline(always)]
unsafe fn add_pair<S: Source>(
    sum: &mut __m512,
    (half, first_offset): (__m512, __m512),
    t: __m512i,
    (scale, offset): (__m512, __m512),
    x: Q8Row,
    row: usize,
    b: usize,
) {
    // SAFETY: by the caller, AVX-512 is available; the activations have the block.
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
