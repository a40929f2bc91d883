//! Attention to keys and values that are stored as scaled integers of 16 or 8 bits ([`Numbers`]).
//! Their layout in a page is in [`integer_layout`](super::integer_layout).
//!
//! # Formula
//!
//! A query is quantised like a key. For a block of [`BLOCK`] positions and a query: `s_p = scale
//! scale_p (q . k_p)`, `m = max s_p`, `e_p = e^(s_p - m)`, `w_p = e_p scale_p`. The weights become
//! integers, the largest of which is [`Numbers::MAX_WEIGHT`], and `o = step (sum w_p v_p)`. `l =
//! sum e_p` is a sum of integers too, with 2^23 for the largest. The block's `(m, l, o)` is then
//! combined with that of the earlier blocks. If keys are stored without their constant terms
//! ([`device::key_bias`]), these are added to `s_p` in f32, as a product of the queries' terms with
//! the block's table.
//!
//! # Order of accumulation
//!
//! Sums of products, and the sum of a block's exponentials, are exact, so their order does not
//! matter. All other operations are element-wise or maxima. Blocks are accumulated in ascending
//! order.

use super::attend::Attend;
use super::constants::{INTEGER_BLOCK as BLOCK, padded};
use super::integer_layout::{IntegerWork, runs, scales, vectors};
use super::integer_weights::{PAIRED_VECTORS, score};
use super::loops::Loops;
use super::numbers::Numbers;
use super::pages::{Half, HeadSize, KvBlock, LayerPages};
use super::product::Product;
use super::softmax::join;
use super::tile::{Partial, RowTile, Shape};
use crate::kernels::round_up;
use crate::prefetch::prefetch_far;
use crate::simd::Simd;
use device::key_bias::{self, KnownKeys};
use device::kv_words;
use std::marker::PhantomData;

/// [`Attend`] to integers.
#[derive(Clone, Copy)]
pub struct Integers<N>(PhantomData<N>);

fn sizes<N: Numbers>(n: usize, size: HeadSize) -> [usize; 11] {
    let queries = round_up(padded(n) * 4);
    let q = round_up(n * kv_words::padded(size.head_dim) * size_of::<N::Number>());
    let terms = round_up(n * size.n_terms * 4);
    [q, queries, queries, 2 * BLOCK * 4, n * BLOCK * 4, queries, queries, queries, queries, terms, terms]
}

impl<N: Numbers> Attend for Integers<N> {
    const BLOCK: usize = BLOCK;
    type Work = IntegerWork;

    fn work_bytes(n: usize, size: HeadSize) -> usize {
        sizes::<N>(n, size).into_iter().sum()
    }

    #[inline(always)]
    unsafe fn work(start: *mut u8, n: usize, size: HeadSize) -> IntegerWork {
        let mut next = start;
        let [q, start, q_scale, scales, s, m, l, step, keep, terms, turned] =
            sizes::<N>(n, size).map(|bytes| {
                let at = next;
                // SAFETY: by the caller, `start` is valid for `work_bytes`, the sum of these sizes.
                next = unsafe { next.add(bytes) };
                at
            });
        IntegerWork {
            q: q.cast(),
            start: start.cast(),
            q_scale: q_scale.cast(),
            scales: scales.cast(),
            s: s.cast(),
            m: m.cast(),
            l: l.cast(),
            step: step.cast(),
            keep: keep.cast(),
            n_terms: size.n_terms,
            terms: terms.cast(),
            turned: turned.cast(),
        }
    }

    #[inline(always)]
    unsafe fn from_query(work: IntegerWork, first: usize, head_dim: usize) -> IntegerWork {
        let lanes = kv_words::padded(head_dim) / N::IN_LANE;
        // SAFETY: by the caller, the work is for at least `first` queries, so no pointer leaves its
        // array.
        unsafe {
            let (q, start) = (work.q.add(first * lanes), work.start.add(first));
            let (q_scale, terms) = (work.q_scale.add(first), work.terms.add(first * work.n_terms));
            IntegerWork { q, start, q_scale, terms, ..work }
        }
    }

    #[inline(always)]
    unsafe fn load_query<S: Loops>(
        work: IntegerWork,
        i: usize,
        x: *const f32,
        pages: &LayerPages,
        kv_head: usize,
        scale: f32,
    ) {
        let (head_dim, padded) = (pages.head_dim, kv_words::padded(pages.head_dim));
        // SAFETY: by the caller, `x` has `head_dim` columns, and the work is for more than `i`
        // queries and belongs to this worker. The caller checked the instruction set. `N::query`
        // puts columns below `head_dim`. The program keeps what is known of keys, and the work was
        // laid out for its `n_terms`.
        unsafe {
            let q = work.q.cast::<N::Number>().add(i * padded);
            // Padding columns of keys are undefined, so those of queries must be zero.
            q.add(head_dim).write_bytes(0, padded - head_dim);
            let x = std::slice::from_raw_parts(x, head_dim);
            let (q_scale, start) = N::query::<S>(x, |d, number| q.add(d).write(number));
            work.q_scale.add(i).write(q_scale * scale);
            work.start.add(i).write(start);
            if let Some(known) = pages.known() {
                let terms = std::slice::from_raw_parts_mut(work.terms.add(i * work.n_terms), work.n_terms);
                known.terms(kv_head, x, scale, terms);
            }
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Loops>(block: &KvBlock<'_>, n: usize, work: IntegerWork) -> *const f32 {
        // SAFETY: by the caller, the positions have pages, and the work has the `n` queries. The
        // caller checked the instruction set. A block's length is a multiple of `S::N`, so vectors
        // of the range are within the rows and the scales.
        unsafe {
            S::integer_scores::<N>(block, n, work);
            load_scales::<S>(block, Half::Keys, work.scales);
            let (first, end) = vectors::<S>(&block.range);
            for query in 0..n {
                let (row, q_scale) = (work.s.add(query * BLOCK), S::splat(*work.q_scale.add(query)));
                for at in (first..end).step_by(S::N) {
                    let s = S::mul(score::<S>(row.add(at), work.scales.add(at)), q_scale);
                    S::store(row.add(at).cast(), s);
                }
            }
            if let Some(known) = block.pages.known() {
                add_known::<S>(known, block, n, work);
            }
        }
        work.s.cast()
    }

    #[inline(always)]
    unsafe fn block<S: Loops>(
        shape: &Shape,
        tile: &RowTile<'_>,
        block: &KvBlock<'_>,
        work: IntegerWork,
        out: Partial,
    ) {
        let n = tile.n_queries(shape);
        // SAFETY: by the caller, the positions have pages, the work has the tile's queries, the
        // partial is for them, and the instruction set is available. `m`, `l`, `step` and `keep`
        // have room for whole vectors, so what is after the last query belongs to the work and the
        // partial, too.
        unsafe {
            prefetch_scales(block);
            if work.n_terms > 0 {
                Self::scores::<S>(block, n, work);
                load_scales::<S>(block, Half::Values, work.scales.add(BLOCK));
                weights::<S, N, true>(shape, tile, block, work);
            } else {
                S::integer_scores::<N>(block, n, work);
                load_scales::<S>(block, Half::Keys, work.scales);
                load_scales::<S>(block, Half::Values, work.scales.add(BLOCK));
                weights::<S, N, false>(shape, tile, block, work);
            }
            for at in (0..n).step_by(S::N) {
                let (a, b) = join::<S>((out.m, out.l), (work.m, work.l), at);
                S::store(work.keep.add(at), a);
                S::store(work.step.add(at), S::mul(S::load(work.step.add(at)), b));
            }
            S::integer_values::<N>(block, n, work, out.o);
        }
    }
}

/// Computes the weights of a block, in place of its sums or, if `SCORED`, of its scores.
///
/// # Safety
/// As [`Attend::block`]; the work has the sums or scores, and the scales of keys and values.
#[inline(always)]
unsafe fn weights<S: Loops, N: Numbers, const SCORED: bool>(
    shape: &Shape,
    tile: &RowTile<'_>,
    block: &KvBlock<'_>,
    work: IntegerWork,
) {
    let n = tile.n_queries(shape);
    let shown = |query: usize| {
        let seen = tile.seen_of(shape, query, block.first, BLOCK);
        seen.start.max(block.range.start)..seen.end.min(block.range.end)
    };
    let n_paired = if S::N * PAIRED_VECTORS == BLOCK { n / 2 * 2 } else { 0 };
    // SAFETY: by the caller, the work has the sums or scores of `n` queries and the scales of keys
    // and values. The caller checked the instruction set. Pairs end at `n_paired`, which is at most
    // `n`.
    unsafe {
        for query in (0..n_paired).step_by(2) {
            let shown = [shown(query), shown(query + 1)];
            S::integer_weights::<N, 2, SCORED>(work, query, shown, shape.softcap);
        }
        for query in n_paired..n {
            S::integer_weights::<N, 1, SCORED>(work, query, [shown(query)], shape.softcap);
        }
    }
}

/// Adds the keys' constant terms to the scores: the queries' terms in this block times the table of
/// its positions.
///
/// # Safety
/// As [`Attend::scores`]; the work has the scores, and the queries' terms.
#[inline(always)]
unsafe fn add_known<S: Loops>(known: &KnownKeys, block: &KvBlock<'_>, n: usize, work: IntegerWork) {
    const { assert!(BLOCK == key_bias::BLOCK, "a block's positions have one table") };
    let (k, (first, end)) = (work.n_terms, vectors::<S>(&block.range));
    let shape = Product { n, k, cols: end - first, lda: k, ldb: BLOCK, ldc: BLOCK, add: true };
    // SAFETY: by the caller, the work has the scores and terms of `n` queries, and the instruction
    // set is available. `terms` and `turned` are arrays of their own with `n_terms` numbers for
    // each query; the table has `n_terms` rows of `BLOCK`, within which `first..end` are.
    unsafe {
        for query in 0..n {
            let terms = std::slice::from_raw_parts(work.terms.add(query * k), k);
            let turned = std::slice::from_raw_parts_mut(work.turned.add(query * k), k);
            known.turn(block.first, terms, turned);
        }
        let table = known.within.as_ptr();
        S::product(shape, work.turned, table.add(first), work.s.cast::<f32>().add(first));
    }
}

/// Loads the scales of a block's range, in whole vectors.
///
/// # Safety
/// The positions of the range have pages; `out` has [`BLOCK`] values; the instruction set is
/// available.
#[inline(always)]
unsafe fn load_scales<S: Simd>(block: &KvBlock<'_>, half: Half, out: *mut f32) {
    let (first, end) = vectors::<S>(&block.range);
    // SAFETY: by the caller, the positions have pages, and `out` has `BLOCK` values. The caller
    // checked the instruction set. The lengths of a page and of a strip are multiples of `S::N`, so
    // the whole vectors of a run are within the scales of its page.
    unsafe {
        for run in runs(block, half, first, end) {
            let from = scales(block.pages, half, run.head).add(run.within);
            for at in (0..run.len).step_by(S::N) {
                S::store(out.add(run.at + at), S::load(from.add(at)));
            }
        }
    }
}

/// Prefetches the scales of the block's range, which are read between its keys and its values.
///
/// # Safety
/// The positions of the range have pages.
#[inline(always)]
unsafe fn prefetch_scales(block: &KvBlock<'_>) {
    for half in [Half::Keys, Half::Values] {
        // SAFETY: by the caller, the positions of the range have pages.
        for run in unsafe { runs(block, half, block.range.start, block.range.end) } {
            let first = scales(block.pages, half, run.head).wrapping_add(run.within).cast::<u8>();
            (0..run.len * 4).step_by(64).for_each(|line| prefetch_far(first.wrapping_add(line)));
        }
    }
}
