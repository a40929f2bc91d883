//! Attention to keys and values that are stored as whole numbers of 16 bits with a scale ([`device::kv_words`]).
//!
//! # Layout
//!
//! The keys of one head in a page are `[padded / 2][page_len][2]`, its values `[page_len / 2][padded][2]`; the scales
//! `[page_len]` follow, in f32. `padded` is the head's size as [`kv_words::padded`] rounds it up; numbers of columns behind
//! the head's size are undefined. So two numbers that one instruction multiplies and adds are neighbours, of two columns or of
//! two positions, and a vector of such pairs is what a pair of a query's columns, or of its weights, meets: both products read
//! their right side from the page as it is, and for one query they are the loops that they are for sixty-four.
//!
//! # Formula
//!
//! A query is brought into whole numbers as a key is. Of a block of [`BLOCK`] positions and a query: `s_p = scale scale_p
//! (q . k_p)`, `m = max s_p`, `e_p = e^(s_p - m)`, `w_p = e_p scale_p`; the weights become whole numbers, the largest
//! [`MAX_WEIGHT`], and `o = step (sum w_p v_p)`. `l = sum e_p` is taken of whole numbers too, 2^23 for the largest. The block's
//! `(m, l, o)` is then combined with that of those before it.
//!
//! # Order of accumulation
//!
//! Sums of products, and the sum of a block's exponentials, are exact, and so have no order; everything else is done number
//! by number, or is a maximum. Blocks follow each other in ascending order.

use super::attention_loops::Loops;
use super::attention_product::{Place, padded};
use super::attention_tile::{Attend, LOWEST, Partial, Shape, Tile, among};
use super::kv_write::{Half, LayerPages};
use super::round_up;
use crate::prefetch::prefetch_far;
use crate::simd::{Simd, math};
use device::kv_words::{self, MAX_POSITIONS, MAX_WEIGHT};
use std::ops::Range;

/// Positions of a block.
pub const BLOCK: usize = MAX_POSITIONS;
/// What an exponential of 1 is before it is rounded, as a power of two: [`BLOCK`] of them fit into 31 bits.
const ONE_LOG2: f32 = 23.0;
/// `2^-ONE_LOG2`
const ONE_STEP: f32 = 1.0 / (1 << 23) as f32;
/// Weights below it are of values that are nothing.
const LEAST_WEIGHT: f32 = 1e-30;
/// Most runs of positions in a block: pages have at least 16.
const MAX_RUNS: usize = BLOCK / 16;

/// [`Attend`] to what is stored as [`device::KvType::I16`].
#[derive(Clone, Copy)]
pub struct Words;

/// A worker's memory.
#[derive(Clone, Copy)]
pub struct Work {
    /// `(n, padded / 2)` pairs of the queries' columns.
    q: *mut i32,
    /// `(n)` their scales.
    q_scale: *mut f32,
    /// `(BLOCK)` scales of the block's keys, then of its values.
    scales: *mut f32,
    /// `(n, BLOCK)` sums of products, scores, weights in f32; then pairs of whole weights in the first half of each row.
    s: *mut i32,
    /// `(padded n)` the largest score of the block.
    m: *mut f32,
    /// `(padded n)` the sum of its exponentials.
    l: *mut f32,
    /// `(padded n)` what a sum of weighted values is multiplied with.
    step: *mut f32,
    /// `(padded n)` what is kept of the blocks before.
    keep: *mut f32,
}

/// Store one head's vector of a position of the page whose part for the head is at `out`.
///
/// # Safety
/// It is of a pool of [`device::KvType::I16`].
#[inline(always)]
pub unsafe fn store(pages: &LayerPages, half: Half, out: *mut u8, at: usize, x: &[f32]) {
    let (page_len, padded) = (pages.page_len, kv_words::padded(pages.head_dim));
    let words: *mut i16 = out.cast();
    // SAFETY: the caller's promise; the page has this position.
    unsafe {
        let scale = match half {
            Half::Keys => kv_words::key_scale(x),
            Half::Values => kv_words::value_scale(x),
        };
        scales::<f32>(pages, out).add(at).write(scale);
        let factor = kv_words::factor(scale);
        for (d, x) in x.iter().enumerate() {
            let index = match half {
                Half::Keys => (d / 2 * page_len + at) * 2 + d % 2,
                Half::Values => (at / 2 * padded + d) * 2 + at % 2,
            };
            words.add(index).write(kv_words::to_word(*x, factor));
        }
    }
}

/// The scales of a head's part of a page.
///
/// # Safety
/// It is of a pool of [`device::KvType::I16`].
#[inline(always)]
unsafe fn scales<T>(pages: &LayerPages, head: *mut u8) -> *mut T {
    // SAFETY: the caller's promise.
    unsafe { head.add(kv_words::padded(pages.head_dim) * 2 * pages.page_len).cast() }
}

fn sizes(n: usize, head_dim: usize) -> [usize; 8] {
    let queries = round_up(padded(n) * 4);
    let q = round_up(n * kv_words::padded(head_dim) * 2);
    [q, queries, 2 * BLOCK * 4, n * BLOCK * 4, queries, queries, queries, queries]
}

impl Attend for Words {
    const BLOCK: usize = BLOCK;
    type Work = Work;

    fn work_bytes(n: usize, head_dim: usize) -> usize {
        sizes(n, head_dim).into_iter().sum()
    }

    #[inline(always)]
    unsafe fn work(start: *mut u8, n: usize, head_dim: usize) -> Work {
        let mut next = start;
        let [q, q_scale, scales, s, m, l, step, keep] = sizes(n, head_dim).map(|bytes| {
            let at = next;
            // SAFETY: the caller's promise.
            next = unsafe { next.add(bytes) };
            at
        });
        Work {
            q: q.cast(),
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
    unsafe fn load_query<S: Loops>(work: Work, i: usize, x: *const f32, head_dim: usize, scale: f32) {
        let padded = kv_words::padded(head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            let x = std::slice::from_raw_parts(x, head_dim);
            let q_scale = kv_words::key_scale(x);
            let factor = kv_words::factor(q_scale);
            let q = std::slice::from_raw_parts_mut(work.q.cast::<i16>().add(i * padded), padded);
            q.iter_mut().zip(x).for_each(|(q, x)| *q = kv_words::to_word(*x, factor));
            // What they meet is undefined.
            q[head_dim..].fill(0);
            work.q_scale.add(i).write(q_scale * scale);
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Loops>(place: &Place<'_>, n: usize, work: Work) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe {
            load_scales::<S>(place, Half::Keys, work.scales);
            S::word_scores(place, n, work.q, work.s);
            let (first, end) = vectors::<S>(&place.range);
            for query in 0..n {
                let (row, q_scale) = (work.s.add(query * BLOCK), S::splat(*work.q_scale.add(query)));
                for at in (first..end).step_by(S::N) {
                    S::store(row.add(at).cast(), score::<S>(row.add(at), work.scales.add(at), q_scale));
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
            load_scales::<S>(place, Half::Keys, work.scales);
            load_scales::<S>(place, Half::Values, work.scales.add(BLOCK));
            ask_for_scales(place);
            S::word_scores(place, n, work.q, work.s);
            for query in 0..n {
                let seen = tile.seen_of(shape, query, place.block, BLOCK);
                S::word_weights(work, query, place.range.clone(), seen, shape.softcap);
            }
            for at in (0..n).step_by(S::N) {
                let (old, new) = (S::load(out.m.add(at)), S::load(work.m.add(at)));
                let max = S::max(old, new);
                let (a, b) = (math::exp::<S>(S::sub(old, max)), math::exp::<S>(S::sub(new, max)));
                let l = S::fma(S::load(work.l.add(at)), b, S::mul(S::load(out.l.add(at)), a));
                S::store(out.m.add(at), max);
                S::store(out.l.add(at), l);
                S::store(work.keep.add(at), a);
                S::store(work.step.add(at), S::mul(S::load(work.step.add(at)), b));
            }
            S::word_values(place, n, work, out.o);
        }
    }
}

/// The positions of a range in whole vectors.
#[inline(always)]
fn vectors<S: Simd>(range: &Range<usize>) -> (usize, usize) {
    (range.start / S::N * S::N, range.end.next_multiple_of(S::N))
}

/// Positions of a block that one page has.
#[derive(Clone, Copy)]
struct Run {
    /// The head's part of the page.
    head: *mut u8,
    /// Where in the block it begins.
    at: usize,
    /// Where in the page.
    within: usize,
    len: usize,
}

/// Those among `from..end`, which is of one page each 16 positions.
#[inline(always)]
fn runs(place: &Place<'_>, half: Half, from: usize, end: usize) -> impl Iterator<Item = Run> {
    let mut next = from;
    std::iter::from_fn(move || {
        let (at, position) = (next, place.block + next);
        if at >= end {
            return None;
        }
        let within = place.pages.within(position);
        let len = (place.pages.page_len - within).min(end - at);
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
            let from = scales::<f32>(place.pages, run.head).add(run.within);
            for at in (0..run.len).step_by(S::N) {
                S::store(out.add(run.at + at), S::load(from.add(at)));
            }
        }
    }
}

/// Ask for the scales of the block behind this one.
///
/// # Safety
/// As [`Attend::scores`].
#[inline(always)]
unsafe fn ask_for_scales(place: &Place<'_>) {
    let next = Place { block: place.block + BLOCK, range: 0..0, ..*place };
    let end = place.soon.saturating_sub(BLOCK).min(BLOCK);
    for half in [Half::Keys, Half::Values] {
        for run in runs(&next, half, 0, end) {
            // SAFETY: the caller's promise.
            let first = unsafe { scales::<u8>(place.pages, run.head).add(run.within * 4) };
            (0..run.len * 4).step_by(64).for_each(|line| prefetch_far(first.wrapping_add(line)));
        }
    }
}

/// Scores of a vector of positions.
///
/// # Safety
/// The pointers are valid for vectors; the instruction set is available.
#[inline(always)]
unsafe fn score<S: Simd>(sums: *const i32, scales: *const f32, q_scale: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::mul(S::mul(S::to_f32(S::load_i(sums)), S::load(scales)), q_scale) }
}

/// What a query's sums of products become: whole weights in their place, and the block's `m`, `l` and step.
///
/// `range`: positions of the block that were computed. `seen`: those that the row sees.
///
/// # Safety
/// The sums and scales are there; the instruction set is available.
#[inline(always)]
pub unsafe fn weights<S: Simd>(
    work: Work,
    query: usize,
    range: Range<usize>,
    seen: Range<usize>,
    softcap: f32,
) {
    let (first, end) = vectors::<S>(&range);
    let (from, to) = (seen.start.max(range.start), seen.end.min(range.end));
    // SAFETY: the caller's promise.
    unsafe {
        let row = work.s.add(query * BLOCK);
        let floats: *mut f32 = row.cast();
        let words: *mut i16 = row.cast();
        if from >= to {
            words.add(first).write_bytes(0, end - first);
            work.m.add(query).write(LOWEST);
            work.l.add(query).write(0.0);
            work.step.add(query).write(0.0);
            return;
        }
        let whole = from == first && to == end;
        let shown = from..to;
        let q_scale = *work.q_scale.add(query);
        let mut max = S::splat(LOWEST);
        for at in (first..end).step_by(S::N) {
            let mut s = score::<S>(row.add(at), work.scales.add(at), S::splat(q_scale));
            if softcap != 0.0 {
                let cap = S::splat(softcap);
                s = S::mul(cap, math::tanh::<S>(S::div(s, cap)));
            }
            if !whole {
                s = among::<S>(&shown, at, s, f32::NEG_INFINITY);
            }
            S::store(floats.add(at), s);
            max = S::max(s, max);
        }
        let max = S::max_lane(max);
        let (log2_e, shift) = (std::f32::consts::LOG2_E, ONE_LOG2 - max * std::f32::consts::LOG2_E);
        let (mut l, mut most) = (S::splat_i(0), S::splat(0.0));
        for at in (first..end).step_by(S::N) {
            let e = S::exp2(S::fma(S::load(floats.add(at)), S::splat(log2_e), S::splat(shift)));
            l = S::add_i(l, S::round(e));
            let mut w = S::mul(e, S::load(work.scales.add(BLOCK + at)));
            if !whole {
                w = among::<S>(&shown, at, w, 0.0);
            }
            S::store(floats.add(at), w);
            most = S::max_bits(most, w);
        }
        let most = S::max_bits_lane(most);
        // Not so of what is no number, which then shows in the step.
        let factor = if most < LEAST_WEIGHT { 0.0 } else { MAX_WEIGHT / most };
        for at in (first..end).step_by(S::N) {
            let w = S::round(S::mul(S::load(floats.add(at)), S::splat(factor)));
            S::store_words(words.add(at), w);
        }
        work.m.add(query).write(max);
        // A query that is no number has sums that are numbers.
        work.l.add(query).write(S::sum_i(l) as f32 * ONE_STEP + 0.0 * q_scale);
        work.step.add(query).write(most * (ONE_STEP / MAX_WEIGHT));
    }
}

/// The right side of a product: rows of pairs.
#[derive(Clone, Copy)]
struct Pairs {
    first: *const i32,
    /// From one row to the next.
    stride: usize,
    /// Rows.
    n: usize,
    /// Bytes from each number to one that will be read soon; 0: to none.
    soon: usize,
}

/// `sums += a b`: `M` rows of pairs times `V` vectors of columns.
///
/// # Safety
/// `a` is valid for `M` rows, `lda` apart, of `b.n` pairs; `b` for its rows; the instruction set is available.
#[inline(always)]
unsafe fn add_products<S: Simd, const M: usize, const V: usize>(
    sums: &mut [[S::I; V]; M],
    a: *const i32,
    lda: usize,
    b: Pairs,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for k in 0..b.n {
            let row = b.first.add(k * b.stride);
            let mut vectors = [S::splat_i(0); V];
            for (j, vector) in vectors.iter_mut().enumerate() {
                *vector = S::load_i(row.add(j * S::N));
            }
            if b.soon != 0 {
                for line in (0..V * S::N * 4).step_by(64) {
                    prefetch_far(row.cast::<u8>().wrapping_add(line + b.soon));
                }
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = S::splat_i(*a.add(i * lda + k));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = S::dot_words(*sum, vector, x);
                }
            }
        }
    }
}

/// A loop over rows of the left side: `run::<M>(row)` for `M` rows from `row` on, as many together as registers allow.
trait Rows {
    /// # Safety
    /// There are such rows.
    unsafe fn run<const M: usize>(&mut self, row: usize);
}

/// Run over `n` rows, 8 or 4 together.
///
/// # Safety
/// There are such rows.
#[inline(always)]
unsafe fn over_rows<const EIGHT: bool>(n: usize, rows: &mut impl Rows) {
    let mut row = 0;
    // SAFETY: the caller's promise.
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
struct ScoreRows<S, const V: usize> {
    q: *const i32,
    ldq: usize,
    keys: Pairs,
    out: *mut i32,
    simd: std::marker::PhantomData<S>,
}

impl<S: Simd, const V: usize> Rows for ScoreRows<S, V> {
    #[inline(always)]
    unsafe fn run<const M: usize>(&mut self, row: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat_i(0); V]; M];
            add_products::<S, M, V>(&mut sums, self.q.add(row * self.ldq), self.ldq, self.keys);
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    S::store_i(self.out.add((row + i) * BLOCK + j * S::N), *sum);
                }
            }
        }
        // Asked for once.
        self.keys.soon = 0;
    }
}

/// `S = Q K^T` of whole numbers for the positions of the range; other columns of S are undefined.
///
/// # Safety
/// As [`Attend::scores`]; q `(n, padded / 2)`, s `(n, BLOCK)`.
#[inline(always)]
pub unsafe fn scores<S: Simd>(place: &Place<'_>, n: usize, q: *const i32, s: *mut i32) {
    let (page_len, half_dim) = (place.pages.page_len, kv_words::padded(place.pages.head_dim) / 2);
    let (first, end) = vectors::<S>(&place.range);
    // SAFETY: the caller's promise. Vectors of positions do not cross pages.
    unsafe {
        let values = runs(place, Half::Values, first, end);
        for (run, values) in runs(place, Half::Keys, first, end).zip(values) {
            let keys: *const i32 = run.head.cast();
            // A page's values have as many lines as its keys; which line is asked for when is all one.
            let soon = (values.head as usize).wrapping_sub(run.head as usize);
            let rows = |at: usize| {
                let keys = Pairs { first: keys.add(run.within + at), stride: page_len, n: half_dim, soon };
                (keys, s.add(run.at + at))
            };
            let (mut at, simd) = (0, std::marker::PhantomData::<S>);
            while S::VECTORS == 4 && at + 4 * S::N <= run.len {
                let (keys, out) = rows(at);
                over_rows::<false>(n, &mut ScoreRows::<S, 4> { q, ldq: half_dim, keys, out, simd });
                at += 4 * S::N;
            }
            while at + 2 * S::N <= run.len {
                let (keys, out) = rows(at);
                let mut rows = ScoreRows::<S, 2> { q, ldq: half_dim, keys, out, simd };
                if S::VECTORS == 4 {
                    over_rows::<true>(n, &mut rows)
                } else {
                    over_rows::<false>(n, &mut rows)
                }
                at += 2 * S::N;
            }
            while at < run.len {
                let (keys, out) = rows(at);
                over_rows::<true>(n, &mut ScoreRows::<S, 1> { q, ldq: half_dim, keys, out, simd });
                at += S::N;
            }
        }
    }
}

/// `V` vectors of columns of weighted values.
struct ValueRows<'a, S, const V: usize> {
    /// Runs of pairs of positions: which pair of the block is first, and their values.
    runs: &'a mut [(usize, Pairs)],
    work: &'a Work,
    out: *mut f32,
    ld: usize,
    simd: std::marker::PhantomData<S>,
}

impl<S: Simd, const V: usize> Rows for ValueRows<'_, S, V> {
    #[inline(always)]
    unsafe fn run<const M: usize>(&mut self, row: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat_i(0); V]; M];
            let weights = self.work.s.add(row * BLOCK);
            for (pair, values) in self.runs.iter_mut() {
                add_products::<S, M, V>(&mut sums, weights.add(*pair), BLOCK, *values);
                // Asked for once.
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

/// `O = keep O + step (W V)` over the positions of the range.
///
/// # Safety
/// As [`Attend::scores`]; the weights and factors are there; o `(n, padded head_dim)`.
#[inline(always)]
pub unsafe fn add_values<S: Simd>(place: &Place<'_>, n: usize, work: Work, o: *mut f32) {
    let (ldv, ld) = (kv_words::padded(place.pages.head_dim), padded(place.pages.head_dim));
    let (first, end) = (place.range.start / 2 * 2, place.range.end.next_multiple_of(2));
    // SAFETY: the caller's promise. Pairs of positions do not cross pages.
    unsafe {
        let none = (0, Pairs { first: std::ptr::null(), stride: ldv, n: 0, soon: 0 });
        let (mut pairs, mut n_runs) = ([none; MAX_RUNS], 0);
        for (run, slot) in runs(place, Half::Values, first, end).zip(&mut pairs) {
            // The next block has its keys as far on in its pages, for a page and a block are both powers of two.
            let next = place.block + BLOCK + run.at;
            let soon = match run.at + BLOCK < place.soon {
                true => place.pages.head(place.table, Half::Keys, place.kv_head, next) as usize,
                false => run.head as usize,
            };
            let values = Pairs {
                first: run.head.cast::<i32>().add(run.within / 2 * ldv),
                stride: ldv,
                n: run.len / 2,
                soon: soon.wrapping_sub(run.head as usize),
            };
            *slot = (run.at / 2, values);
            n_runs += 1;
        }
        let (mut d, simd) = (0, std::marker::PhantomData::<S>);
        macro_rules! columns {
            ($v:literal, $eight:expr) => {{
                let mut runs = pairs;
                runs.iter_mut().for_each(|(_, values)| values.first = values.first.wrapping_add(d));
                let (runs, work, out) = (&mut runs[..n_runs], &work, o.add(d));
                over_rows::<$eight>(n, &mut ValueRows::<S, $v> { runs, work, out, ld, simd });
                d += $v * S::N;
            }};
        }
        while S::VECTORS == 4 && d + 4 * S::N <= ld {
            columns!(4, false);
        }
        while d + 2 * S::N <= ld {
            columns!(2, false);
        }
        while d < ld {
            columns!(1, true);
        }
    }
}
