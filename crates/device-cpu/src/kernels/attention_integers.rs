//! Attention to keys and values that are stored as whole numbers with a scale, of 16 or of 8 bits ([`Numbers`]).
//!
//! # Layout
//!
//! `g` numbers, two of 16 bits or four of 8, are a lane of 32 bits. The keys of one head in a page lie in strips of 64 positions (of
//! all, in shorter pages), each `[padded / g][64][g]`; their scales follow, `[page_len]` in f32, then those of the values; then the
//! values, in strips of 64 columns (the last may have 32), each `[page_len / g][64][g]`. `padded` is the head's size as
//! [`kv_words::padded`] rounds it up; numbers of columns behind the head's size are undefined. So the numbers that one
//! instruction multiplies and adds are neighbours, of columns or of positions, and a vector of such lanes is what a lane of a
//! query's columns, or of its weights, meets: both products
//! ([`attention_integer_products`](super::attention_integer_products)) read their right side from the page as it is, and for one
//! query they are the loops that they are for sixty-four. With four vectors of 16 lanes a block of a page's length is read from its first
//! byte to its last, which the processor's own streams follow (`NOTES.md`).
//!
//! # Formula
//!
//! A query is brought into whole numbers as a key is. Of a block of [`BLOCK`] positions and a query: `s_p = scale scale_p
//! (q . k_p)`, `m = max s_p`, `e_p = e^(s_p - m)`, `w_p = e_p scale_p`; the weights become whole numbers, the largest
//! [`Numbers::MAX_WEIGHT`], and `o = step (sum w_p v_p)`. `l = sum e_p` is taken of whole numbers too, 2^23 for the largest. The
//! block's `(m, l, o)` is then combined with that of those before it.
//!
//! # Order of accumulation
//!
//! Sums of products, and the sum of a block's exponentials, are exact, and so have no order; everything else is done number
//! by number, or is a maximum. Blocks follow each other in ascending order.

// Indices, for the vectors of a block are an array that must become registers.
#![allow(clippy::needless_range_loop)]

use super::attention_loops::Loops;
use super::attention_numbers::Numbers;
use super::attention_product::{Place, padded};
use super::attention_tile::{Attend, LOWEST, Partial, Shape, Tile, among, join};
use super::kv_write::{Half, LayerPages};
use super::round_up;
use crate::prefetch::prefetch_far;
use crate::simd::{Simd, math};
use device::kv_words;
use std::marker::PhantomData;
use std::ops::Range;

/// Lanes of a strip: four of the longest vectors.
pub const STRIP: usize = 64;
/// Positions of a block.
pub const BLOCK: usize = kv_words::MAX_POSITIONS;
/// What an exponential of 1 is before it is rounded, as a power of two: [`BLOCK`] of them fit into 31 bits.
const ONE_LOG2: f32 = 23.0;
/// `2^-ONE_LOG2`
const ONE_STEP: f32 = 1.0 / (1 << 23) as f32;
/// Weights below it are of values that are nothing.
const LEAST_WEIGHT: f32 = 1e-30;

/// [`Attend`] to whole numbers.
#[derive(Clone, Copy)]
pub struct Integers<N>(PhantomData<N>);

/// A worker's memory.
#[derive(Clone, Copy)]
pub struct Work {
    /// `(n, padded / g)` lanes of the queries' columns.
    pub q: *mut i32,
    /// `(n)` what sums of their products with keys begin with.
    pub start: *mut i32,
    /// `(n)` their scales.
    q_scale: *mut f32,
    /// `(BLOCK)` scales of the block's keys, then of its values.
    scales: *mut f32,
    /// `(n, BLOCK)` sums of products; then lanes of whole weights in the first part of each row, or scores.
    pub s: *mut i32,
    /// `(padded n)` the largest score of the block.
    m: *mut f32,
    /// `(padded n)` the sum of its exponentials.
    l: *mut f32,
    /// `(padded n)` what a sum of weighted values is multiplied with.
    pub step: *mut f32,
    /// `(padded n)` what is kept of the blocks before.
    pub keep: *mut f32,
}

/// Store one head's vector of a position of the page whose part for the head is at `out`.
///
/// # Safety
/// It is of a pool that stores such numbers.
#[inline(always)]
pub unsafe fn store<S: Simd, N: Numbers>(pages: &LayerPages, half: Half, out: *mut u8, at: usize, x: &[f32]) {
    let (g, numbers) = (N::IN_LANE, numbers::<N::Number>(pages, half, out));
    // SAFETY: the caller's promise; the page has this position.
    unsafe {
        let scale = match half {
            Half::Keys => {
                let (first, width) = keys_at(pages, g, at);
                let first = numbers.add(first * g);
                N::key::<S>(x, |d, number| first.add(d / g * width * g + d % g).write(number))
            }
            Half::Values => N::value(x, |d, number| {
                let (first, _) = values_at(pages, g, at, d);
                numbers.add((first + d % STRIP) * g + at % g).write(number)
            }),
        };
        scales(pages, half, out).add(at).write(scale);
    }
}

/// Positions of a strip of keys; both they and a page are powers of two.
#[inline(always)]
fn keys_width(pages: &LayerPages) -> usize {
    pages.page_len.min(STRIP)
}

/// Lanes before the first of the keys of a page's position, and from one of its lanes to the next.
#[inline(always)]
pub fn keys_at(pages: &LayerPages, g: usize, within: usize) -> (usize, usize) {
    let width = keys_width(pages);
    let (strip, at) = (within & !(width - 1), within & (width - 1));
    (strip * (kv_words::padded(pages.head_dim) / g) + at, width)
}

/// Lanes before a position's values in the strip of column `d`, and how many that strip has for `g` positions.
#[inline(always)]
pub fn values_at(pages: &LayerPages, g: usize, within: usize, d: usize) -> (usize, usize) {
    let strip = d / STRIP * STRIP;
    let width = STRIP.min(kv_words::padded(pages.head_dim) - strip);
    (strip * (pages.page_len / g) + within / g * width, width)
}

/// The numbers of a head's half of a page.
#[inline(always)]
pub fn numbers<T>(pages: &LayerPages, half: Half, start: *mut u8) -> *mut T {
    let before = if half == Half::Keys { 0 } else { pages.page_len * 4 };
    start.wrapping_add(before).cast()
}

/// Their scales: behind those of keys, in front of those of values.
#[inline(always)]
fn scales(pages: &LayerPages, half: Half, start: *mut u8) -> *mut f32 {
    let before = if half == Half::Keys { pages.half_bytes() - pages.page_len * 4 } else { 0 };
    start.wrapping_add(before).cast()
}

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
            // What the columns behind the head's size meet is undefined.
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
        let n = tile.n_rows * shape.n_group;
        // SAFETY: the caller's promise; what is behind the last query, up to whole vectors, belongs to the work and the partial.
        unsafe {
            ask_for_scales(place);
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

/// The positions of a range in whole vectors.
#[inline(always)]
pub fn vectors<S: Simd>(range: &Range<usize>) -> (usize, usize) {
    (range.start / S::N * S::N, range.end.next_multiple_of(S::N))
}

/// Positions of a block that one strip of keys has.
#[derive(Clone, Copy)]
pub struct Run {
    /// The head's half of the page.
    pub head: *mut u8,
    /// Where in the block it begins.
    pub at: usize,
    /// Where in the page.
    pub within: usize,
    /// Positions.
    pub len: usize,
}

/// Those among `from..end`, strip by strip of keys.
#[inline(always)]
pub fn runs(place: &Place<'_>, half: Half, from: usize, end: usize) -> impl Iterator<Item = Run> {
    let mut next = from;
    std::iter::from_fn(move || {
        let (at, position) = (next, place.block + next);
        if at >= end {
            return None;
        }
        let within = place.pages.within(position);
        let width = keys_width(place.pages);
        let len = (width - (within & (width - 1))).min(end - at);
        next += len;
        // SAFETY: the positions have pages.
        let head = unsafe { place.pages.head(place.table, half, place.kv_head, position) };
        Some(Run { head, at, within, len })
    })
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

/// Ask for the scales of the block's range, which are needed between its keys and its values.
#[inline(always)]
fn ask_for_scales(place: &Place<'_>) {
    for half in [Half::Keys, Half::Values] {
        for run in runs(place, half, place.range.start, place.range.end) {
            let first = scales(place.pages, half, run.head).wrapping_add(run.within).cast::<u8>();
            (0..run.len * 4).step_by(64).for_each(|line| prefetch_far(first.wrapping_add(line)));
        }
    }
}

/// Scores of a vector of positions, but for the query's scale.
///
/// # Safety
/// The pointers are valid for vectors; the instruction set is available.
#[inline(always)]
unsafe fn score<S: Simd>(sums: *const i32, scales: *const f32) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::mul(S::to_f32(S::load_i(sums)), S::load(scales)) }
}

/// Vectors of a block, where they are shortest.
const MAX_VECTORS: usize = BLOCK / 4;
/// Vectors of a block where those of two queries fit the registers: AVX-512's.
const PAIRED_VECTORS: usize = 8;

/// What the sums of products of `M` queries become: whole weights in their place, and the block's `m`, `l` and step. Each step waits for
/// the one before, so with AVX-512 two queries go together, their whole block in registers meanwhile.
///
/// `shown`: of each, the positions of the block that were computed and that its row sees.
///
/// # Safety
/// The sums and scales are there; the instruction set is available.
#[inline(always)]
pub unsafe fn weights<S: Simd, N: Numbers, const M: usize>(
    work: Work,
    query: usize,
    shown: [Range<usize>; M],
    softcap: f32,
) {
    let n = BLOCK / S::N;
    let whole = shown.iter().all(|shown| *shown == (0..BLOCK));
    // SAFETY: the caller's promise. What is not shown may be anything, and is replaced.
    unsafe {
        let (rows, q_scales) = (work.s.add(query * BLOCK), work.q_scale.add(query));
        let mut x = [[S::splat(0.0); MAX_VECTORS]; M];
        for m in 0..M {
            for i in 0..n {
                x[m][i] = score::<S>(rows.add(m * BLOCK + i * S::N), work.scales.add(i * S::N));
            }
        }
        if softcap != 0.0 {
            let cap = S::splat(softcap);
            for m in 0..M {
                for i in 0..n {
                    let s = S::mul(x[m][i], S::splat(*q_scales.add(m)));
                    x[m][i] = S::mul(cap, math::tanh::<S>(S::div(s, cap)));
                }
            }
        }
        if !whole {
            for m in 0..M {
                for i in 0..n {
                    x[m][i] = among::<S>(&shown[m], i * S::N, x[m][i], f32::NEG_INFINITY);
                }
            }
        }
        let mut max = [S::splat(LOWEST); M];
        for i in 0..n {
            for m in 0..M {
                max[m] = S::max(x[m][i], max[m]);
            }
        }
        let (mut log2_e, mut shift) = ([0.0; M], [0.0; M]);
        for m in 0..M {
            // Scores that are capped are scaled, others are not yet.
            let scale = if softcap != 0.0 { 1.0 } else { *q_scales.add(m) };
            let max = if shown[m].is_empty() { LOWEST } else { S::max_lane(max[m]) * scale };
            work.m.add(query + m).write(max);
            // Not zero, which with what is hidden would be no number.
            log2_e[m] = (scale * std::f32::consts::LOG2_E).max(f32::MIN_POSITIVE);
            shift[m] = ONE_LOG2 - max * std::f32::consts::LOG2_E;
        }
        let mut l = [S::splat_i(0); M];
        for i in 0..n {
            let scales = S::load(work.scales.add(BLOCK + i * S::N));
            for m in 0..M {
                let e = S::exp2(S::fma(x[m][i], S::splat(log2_e[m]), S::splat(shift[m])));
                l[m] = S::add_i(l[m], S::round(e));
                x[m][i] = S::mul(e, scales);
            }
        }
        if !whole {
            for m in 0..M {
                for i in 0..n {
                    x[m][i] = among::<S>(&shown[m], i * S::N, x[m][i], 0.0);
                }
            }
        }
        let mut most = [S::splat(0.0); M];
        for i in 0..n {
            for m in 0..M {
                most[m] = S::max_bits(most[m], x[m][i]);
            }
        }
        let mut factor = [0.0; M];
        for m in 0..M {
            let most = S::max_bits_lane(most[m]);
            // Not so of what is no number, which then shows in the step.
            factor[m] = if most < LEAST_WEIGHT { 0.0 } else { N::MAX_WEIGHT / most };
            // A query that is no number has sums that are numbers.
            let l = S::sum_i(l[m]) as f32 * ONE_STEP + 0.0 * *q_scales.add(m);
            work.l.add(query + m).write(l);
            work.step.add(query + m).write(most * (ONE_STEP / N::MAX_WEIGHT));
        }
        for m in 0..M {
            for i in 0..n {
                N::store_weights::<S>(rows.add(m * BLOCK), i * S::N, x[m][i], S::splat(factor[m]));
            }
        }
    }
}
