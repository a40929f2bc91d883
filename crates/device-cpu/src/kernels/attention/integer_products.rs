//! The two matrix products of attention to integers ([`integers`](super::integers)): sums of
//! products of queries with keys, and of weights with values. All sums are exact.

use super::constants::{INTEGER_BLOCK as BLOCK, STRIP, padded};
use super::integer_layout::{IntegerWork, keys_at, numbers, runs, values_at, vectors};
use super::numbers::Numbers;
use super::pages::{Half, KvBlock};
use crate::prefetch::prefetch_far;
use crate::simd::Simd;
use device::kv_words;
use std::marker::PhantomData;

/// Maximum number of runs of positions in a block: pages have at least 16.
const MAX_RUNS: usize = BLOCK / 16;

/// Bytes of a stream for each of which one cache line is prefetched. The hardware prefetcher
/// follows the stream, and more prefetches slow it (`NOTES.md`; measured on x86-64 only).
const PREFETCH_STEP: usize = if cfg!(target_arch = "x86_64") { 256 } else { 64 };

/// Right operand of a product: rows of lanes.
#[derive(Clone, Copy)]
struct Lanes {
    first: *const i32,
    /// Lanes from one row to the next.
    stride: usize,
    /// Number of rows.
    n: usize,
    /// Bytes from each number to one to prefetch; 0 for no prefetch.
    soon: usize,
}

/// Computes `sums += a b`: `M` rows of lanes times `V` vectors of columns. The operands are weights
/// and values, or queries and keys.
///
/// # Safety
/// `a` has `M` rows, `lda` apart, of `b.n` lanes; `b` has `b.n` rows of `V` vectors; the
/// instruction set is available.
#[inline(always)]
unsafe fn add_products<S: Simd, N: Numbers, const VALUES: bool, const M: usize, const V: usize>(
    sums: &mut [[S::I; V]; M],
    a: *const i32,
    lda: usize,
    b: Lanes,
) {
    // SAFETY: by the caller, `a` has `M` rows of `b.n` lanes, and each of the `b.n` rows of `b` has
    // `V` vectors. The caller checked the instruction set. A prefetch may be of any address.
    unsafe {
        for k in 0..b.n {
            let row = b.first.add(k * b.stride);
            let mut vectors = [S::splat_i(0); V];
            for (j, vector) in vectors.iter_mut().enumerate() {
                *vector = S::load_i(row.add(j * S::N));
            }
            if b.soon != 0 {
                for line in (0..V * S::N * 4).step_by(PREFETCH_STEP) {
                    prefetch_far(row.cast::<u8>().wrapping_add(line + b.soon));
                }
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = S::splat_i(*a.add(i * lda + k));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    let (a, b) = if VALUES { (x, vector) } else { (vector, x) };
                    *sum = N::dot::<S>(*sum, a, b);
                }
            }
        }
    }
}

/// A loop over rows of the left operand. `run::<M>(row)` computes `M` rows from `row` on, as many
/// as registers allow.
trait RowLoop {
    /// As for the fields of the implementation, which has rows `row..row + M`; the instruction set
    /// is available.
    /// The left side and the output have the rows `row..row + M`; the instruction set is available.
    unsafe fn run<const M: usize>(&mut self, row: usize);
}

/// Runs over `n` rows, in groups of 8 or 4.
///
/// # Safety
/// The left operand and the output have `n` rows; the instruction set is available.
#[inline(always)]
unsafe fn over_rows<const EIGHT: bool>(n: usize, rows: &mut impl RowLoop) {
    let mut row = 0;
    // SAFETY: by the caller, there are `n` rows, and `row` plus the rows of each call is at most
    // `n`.
    unsafe {
        while EIGHT && row + 8 <= n {
            rows.run::<8>(row);
            row += 8;
        }
        while row + 4 <= n {
            rows.run::<4>(row);
            row += 4;
        }
        match n - row {
            3 => rows.run::<3>(row),
            2 => rows.run::<2>(row),
            1 => rows.run::<1>(row),
            _ => {}
        }
    }
}

/// Sums of products of queries with `V` vectors of positions.
struct ScoreRows<S, N, const V: usize> {
    work: IntegerWork,
    /// Lanes of a query.
    ldq: usize,
    /// `(ldq, V vectors)`
    keys: Lanes,
    /// `V` vectors in each of the rows, `BLOCK` apart.
    out: *mut i32,
    types: PhantomData<(S, N)>,
}

impl<S: Simd, N: Numbers, const V: usize> RowLoop for ScoreRows<S, N, V> {
    #[inline(always)]
    unsafe fn run<const M: usize>(&mut self, row: usize) {
        // SAFETY: by the caller, the work and the output have the rows `row..row + M`. The caller
        // checked the instruction set. As the fields say, `keys` has a row of `V` vectors for each
        // of the `ldq` lanes of a query, and a row of the output has room for `V` vectors.
        unsafe {
            let mut sums = [[S::splat_i(0); V]; M];
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = [S::splat_i(*self.work.start.add(row + i)); V];
            }
            let q = self.work.q.add(row * self.ldq);
            add_products::<S, N, false, M, V>(&mut sums, q, self.ldq, self.keys);
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    S::store_i(self.out.add((row + i) * BLOCK + j * S::N), *sum);
                }
            }
        }
        // Later rows read the same keys, so they need no prefetch.
        self.keys.soon = 0;
    }
}

/// Computes integers `S = Q K^T` for the positions of the range; other columns of S are undefined.
///
/// # Safety
/// As [`Attend::scores`](super::attend::Attend::scores).
#[inline(always)]
pub unsafe fn scores<S: Simd, N: Numbers>(block: &KvBlock<'_>, n: usize, work: IntegerWork) {
    let (pages, ldq) = (block.pages, kv_words::padded(block.pages.head_dim) / N::IN_LANE);
    // Distance from keys to the values of the same positions, after the scales of both.
    let soon = pages.half_bytes() + pages.page_len * 4;
    let (first, end) = vectors::<S>(&block.range);
    // SAFETY: by the caller, the positions have pages, and the work has the `n` queries. The caller
    // checked the instruction set. The lengths of a page and of a strip are multiples of `S::N`, so
    // the whole vectors of a run are within its strip of keys.
    unsafe {
        for run in runs(block, Half::Keys, first, end) {
            let (first, stride) = keys_at(pages, N::IN_LANE, run.within);
            let keys = numbers::<i32>(pages, Half::Keys, run.head).add(first);
            let rows = |at: usize| {
                let keys = Lanes { first: keys.add(at), stride, n: ldq, soon };
                (keys, work.s.add(run.at + at))
            };
            let (mut at, types) = (0, PhantomData);
            while S::VECTORS == 4 && at + 4 * S::N <= run.len {
                let (keys, out) = rows(at);
                over_rows::<false>(n, &mut ScoreRows::<S, N, 4> { work, ldq, keys, out, types });
                at += 4 * S::N;
            }
            while at + 2 * S::N <= run.len {
                let (keys, out) = rows(at);
                let mut rows = ScoreRows::<S, N, 2> { work, ldq, keys, out, types };
                if S::VECTORS == 4 {
                    over_rows::<true>(n, &mut rows)
                } else {
                    over_rows::<false>(n, &mut rows)
                }
                at += 2 * S::N;
            }
            while at < run.len {
                let (keys, out) = rows(at);
                over_rows::<true>(n, &mut ScoreRows::<S, N, 1> { work, ldq, keys, out, types });
                at += S::N;
            }
        }
    }
}

/// Weighted values in `V` vectors of columns.
struct ValueRows<'a, S, N, const V: usize> {
    /// Runs of lanes of positions: the run's first lane in the block, and its values.
    runs: &'a mut [(usize, Lanes)],
    work: IntegerWork,
    /// `V` vectors in each of the rows, `ld` apart.
    out: *mut f32,
    ld: usize,
    types: PhantomData<(S, N)>,
}

impl<S: Simd, N: Numbers, const V: usize> RowLoop for ValueRows<'_, S, N, V> {
    #[inline(always)]
    unsafe fn run<const M: usize>(&mut self, row: usize) {
        // SAFETY: by the caller, the work and the output have the rows `row..row + M`. The caller
        // checked the instruction set. As the fields say, the values of the runs and the rows of
        // the output have `V` vectors of columns.
        unsafe {
            let mut sums = [[S::splat_i(0); V]; M];
            let weights = self.work.s.add(row * BLOCK);
            for (lane, values) in self.runs.iter_mut() {
                add_products::<S, N, true, M, V>(&mut sums, weights.add(*lane), BLOCK, *values);
                // Later rows read the same values, so they need no prefetch.
                values.soon = 0;
            }
            for (i, sums) in sums.iter().enumerate() {
                let (keep, step) = (*self.work.keep.add(row + i), *self.work.step.add(row + i));
                for (j, sum) in sums.iter().enumerate() {
                    let o = self.out.add((row + i) * self.ld + j * S::N);
                    let kept = S::mul(S::load(o), S::splat(keep));
                    S::store(o, S::fma(S::to_f32(*sum), S::splat(step), kept));
                }
            }
        }
    }
}

/// Computes `O = keep O + step (W V)` over the positions of the range.
///
/// # Safety
/// As [`scores`]; the work has the queries' weights and their factors `keep` and `step`; O is
/// `(n, padded head_dim)`.
#[inline(always)]
pub unsafe fn add_values<S: Simd, N: Numbers>(block: &KvBlock<'_>, n: usize, work: IntegerWork, o: *mut f32) {
    let (pages, ld, g) = (block.pages, padded(block.pages.head_dim), N::IN_LANE);
    let (first, end) = (block.range.start / g * g, block.range.end.next_multiple_of(g));
    // SAFETY: by the caller, the positions have pages, the work has the weights and factors of the
    // `n` queries, and `o` is `(n, padded head_dim)`. The caller checked the instruction set. A
    // page's length is a multiple of `g`, so the lanes of a run are within it. Its strips have at
    // least `ld` columns, and `ld` is a multiple of `S::N`.
    unsafe {
        let none = (0, Lanes { first: std::ptr::null(), stride: 0, n: 0, soon: 0 });
        for strip in (0..ld).step_by(STRIP) {
            let (mut lanes, mut n_runs) = ([none; MAX_RUNS], 0);
            for (run, slot) in runs(block, Half::Values, first, end).zip(&mut lanes) {
                let values = numbers::<i32>(pages, Half::Values, run.head);
                // The keys of the next block are at the same offset in its pages, if pages are not
                // longer than blocks.
                let keys = block.next.and_then(|next| next.keys_of(run.at));
                let soon = keys.map_or(values as usize, |keys| keys as usize);
                let soon = soon.wrapping_sub(values as usize);
                let (first, stride) = values_at(pages, g, run.within, strip);
                let values = Lanes { first: values.add(first), stride, n: run.len / g, soon };
                *slot = (run.at / g, values);
                n_runs += 1;
            }
            let (mut d, last, types) = (strip, (strip + STRIP).min(ld), PhantomData);
            macro_rules! columns {
                ($v:literal, $eight:expr) => {{
                    let mut runs = lanes;
                    runs.iter_mut()
                        .for_each(|(_, values)| values.first = values.first.wrapping_add(d - strip));
                    let (runs, out) = (&mut runs[..n_runs], o.add(d));
                    over_rows::<$eight>(n, &mut ValueRows::<S, N, $v> { runs, work, out, ld, types });
                    d += $v * S::N;
                }};
            }
            while S::VECTORS == 4 && d + 4 * S::N <= last {
                columns!(4, false);
            }
            while d + 2 * S::N <= last {
                columns!(2, false);
            }
            while d < last {
                columns!(1, true);
            }
        }
    }
}
