//! Attention to keys and values that are stored as integers with a scale, of 16 or of 8 bits ([`Numbers`]); how they lie in a
//! page is in [`integer_layout`](super::integer_layout).
//!
//! # Formula
//!
//! A query is quantised as a key is. Of a block of [`BLOCK`] positions and a query: `s_p = scale scale_p
//! (q . k_p)`, `m = max s_p`, `e_p = e^(s_p - m)`, `w_p = e_p scale_p`; the weights become integers, the largest
//! [`Numbers::MAX_WEIGHT`], and `o = step (sum w_p v_p)`. `l = sum e_p` is a sum of integers too, 2^23 for the largest. The
//! block's `(m, l, o)` is then combined with that of those before it.
//!
//! # Order of accumulation
//!
//! Sums of products, and the sum of a block's exponentials, are exact, and so have no order; everything else is done number
//! by number, or is a maximum. Blocks follow each other in ascending order.

use super::attend::Attend;
use super::constants::{INTEGER_BLOCK as BLOCK, padded};
use super::integer_layout::{Work, runs, scales, vectors};
use super::integer_weights::{PAIRED_VECTORS, score};
use super::loops::Loops;
use super::numbers::Numbers;
use super::pages::{Half, Place};
use super::softmax::join;
use super::tile::{Partial, Shape, Tile};
use crate::kernels::round_up;
use crate::prefetch::prefetch_far;
use crate::simd::Simd;
use device::kv_words;
use std::marker::PhantomData;

/// [`Attend`] to integers.
#[derive(Clone, Copy)]
pub struct Integers<N>(PhantomData<N>);

fn sizes<N: Numbers>(n: usize, head_dim: usize) -> [usize; 9] {
    let queries = round_up(padded(n) * 4);
    let q = round_up(n * kv_words::padded(head_dim) * size_of::<N::Number>());
    [q, queries, queries, 2 * BLOCK * 4, n * BLOCK * 4, queries, queries, queries, queries]
}

impl<N: Numbers> Attend for Integers<N> {
    const BLOCK: usize = BLOCK;
    type Work = Work;

    fn work_bytes(n: usize, head_dim: usize) -> usize {
        sizes::<N>(n, head_dim).into_iter().sum()
    }

    #[inline(always)]
    unsafe fn work(start: *mut u8, n: usize, head_dim: usize) -> Work {
        let mut next = start;
        let [q, start, q_scale, scales, s, m, l, step, keep] = sizes::<N>(n, head_dim).map(|bytes| {
            let at = next;
            // SAFETY: the caller's promise.
            next = unsafe { next.add(bytes) };
            at
        });
        Work {
            q: q.cast(),
            start: start.cast(),
            q_scale: q_scale.cast(),
            scales: scales.cast(),
            s: s.cast(),
            m: m.cast(),
            l: l.cast(),
            step: step.cast(),
            keep: keep.cast(),
        }
    }

    #[inline(always)]
    unsafe fn from_query(work: Work, first: usize, head_dim: usize) -> Work {
        let lanes = kv_words::padded(head_dim) / N::IN_LANE;
        // SAFETY: the caller's promise.
        unsafe {
            let (q, start) = (work.q.add(first * lanes), work.start.add(first));
            Work { q, start, q_scale: work.q_scale.add(first), ..work }
        }
    }

    #[inline(always)]
    unsafe fn load_query<S: Loops>(work: Work, i: usize, x: *const f32, head_dim: usize, scale: f32) {
        let padded = kv_words::padded(head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            let q = work.q.cast::<N::Number>().add(i * padded);
            // Padding columns of keys are undefined, so those of queries are zero.
            q.add(head_dim).write_bytes(0, padded - head_dim);
            let x = std::slice::from_raw_parts(x, head_dim);
            let (q_scale, start) = N::query::<S>(x, |d, number| q.add(d).write(number));
            work.q_scale.add(i).write(q_scale * scale);
            work.start.add(i).write(start);
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Loops>(place: &Place<'_>, n: usize, work: Work) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe {
            S::integer_scores::<N>(place, n, work);
            load_scales::<S>(place, Half::Keys, work.scales);
            let (first, end) = vectors::<S>(&place.range);
            for query in 0..n {
                let (row, q_scale) = (work.s.add(query * BLOCK), S::splat(*work.q_scale.add(query)));
                for at in (first..end).step_by(S::N) {
                    let s = S::mul(score::<S>(row.add(at), work.scales.add(at)), q_scale);
                    S::store(row.add(at).cast(), s);
                }
            }
        }
        work.s.cast()
    }

    #[inline(always)]
    unsafe fn block<S: Loops>(shape: &Shape, tile: &Tile<'_>, place: &Place<'_>, work: Work, out: Partial) {
        let n = tile.n_queries(shape);
        // SAFETY: the caller's promise; what lies after the last query, up to whole vectors, belongs to the work and the partial.
        unsafe {
            prefetch_scales(place);
            S::integer_scores::<N>(place, n, work);
            load_scales::<S>(place, Half::Keys, work.scales);
            load_scales::<S>(place, Half::Values, work.scales.add(BLOCK));
            let shown = |query: usize| {
                let seen = tile.seen_of(shape, query, place.block, BLOCK);
                seen.start.max(place.range.start)..seen.end.min(place.range.end)
            };
            let n_paired = if S::N * PAIRED_VECTORS == BLOCK { n / 2 * 2 } else { 0 };
            for query in (0..n_paired).step_by(2) {
                S::integer_weights::<N, 2>(work, query, [shown(query), shown(query + 1)], shape.softcap);
            }
            for query in n_paired..n {
                S::integer_weights::<N, 1>(work, query, [shown(query)], shape.softcap);
            }
            for at in (0..n).step_by(S::N) {
                let (a, b) = join::<S>((out.m, out.l), (work.m, work.l), at);
                S::store(work.keep.add(at), a);
                S::store(work.step.add(at), S::mul(S::load(work.step.add(at)), b));
            }
            S::integer_values::<N>(place, n, work, out.o);
        }
    }
}

/// The scales of a block's range, in whole vectors.
///
/// # Safety
/// As [`Attend::scores`].
#[inline(always)]
unsafe fn load_scales<S: Simd>(place: &Place<'_>, half: Half, out: *mut f32) {
    let (first, end) = vectors::<S>(&place.range);
    // SAFETY: the caller's promise. Vectors of positions do not cross pages.
    unsafe {
        for run in runs(place, half, first, end) {
            let from = scales(place.pages, half, run.head).add(run.within);
            for at in (0..run.len).step_by(S::N) {
                S::store(out.add(run.at + at), S::load(from.add(at)));
            }
        }
    }
}

/// Prefetch the scales of the block's range, which are needed between its keys and its values.
#[inline(always)]
fn prefetch_scales(place: &Place<'_>) {
    for half in [Half::Keys, Half::Values] {
        for run in runs(place, half, place.range.start, place.range.end) {
            let first = scales(place.pages, half, run.head).wrapping_add(run.within).cast::<u8>();
            (0..run.len * 4).step_by(64).for_each(|line| prefetch_far(first.wrapping_add(line)));
        }
    }
}
