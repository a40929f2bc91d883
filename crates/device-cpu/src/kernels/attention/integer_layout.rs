//! Layout of 16-bit or 8-bit integers ([`Numbers`]) in a page, and in the scratch of attention to
//! them.
//!
//! # Layout
//!
//! A lane of 32 bits has `g` numbers, two of 16 bits or four of 8. The keys of a head in a page are
//! in strips of 64 positions (of all positions, in shorter pages), each `[padded / g][64][g]`. Then
//! follow the keys' scales, `[page_len]` in f32, and the values' scales. The values come last, in
//! strips of 64 columns (the last may have 32), each `[page_len / g][64][g]`. `padded` is the
//! head's size rounded up by [`kv_words::padded`]; padding columns are undefined.
//!
//! The numbers that one instruction multiplies and adds are thus neighbours, of columns or of
//! positions. A vector of such lanes is multiplied with a lane of a query's columns, or of its
//! weights. Both products ([`integer_products`](super::integer_products)) read their right operand
//! directly from the page, with the same loops for one query and for sixty-four. With four vectors
//! of 16 lanes a block of a page's length is read from its first byte to its last, which suits the
//! hardware prefetcher (`NOTES.md`).

use super::constants::STRIP;
use super::numbers::Numbers;
use super::pages::{Half, KvBlock, LayerPages};
use crate::simd::Simd;
use device::kv_words;
use std::ops::Range;

/// Scratch of a worker.
#[derive(Clone, Copy)]
pub struct IntegerWork {
    /// `(n, padded / g)` lanes of the queries' columns.
    pub q: *mut i32,
    /// `(n)` initial values of the queries' products with keys.
    pub start: *mut i32,
    /// `(n)` scales of the queries.
    pub q_scale: *mut f32,
    /// Constant terms that are not stored in keys ([`device::key_bias`]); with 0 of them scores are
    /// the products alone.
    pub n_terms: usize,
    /// `(n, n_terms)` terms of the queries.
    pub terms: *mut f32,
    /// `(n, n_terms)` terms of the queries, rotated to the block.
    pub turned: *mut f32,
    /// `(BLOCK)` scales of the block's keys, then of its values.
    pub scales: *mut f32,
    /// `(n, BLOCK)` sums of products. Later each row has scores, or the lanes of integer weights in
    /// its first part.
    pub s: *mut i32,
    /// `(padded n)` largest score of the block.
    pub m: *mut f32,
    /// `(padded n)` sum of the block's exponentials.
    pub l: *mut f32,
    /// `(padded n)` factor of a sum of weighted values.
    pub step: *mut f32,
    /// `(padded n)` factor of the earlier blocks.
    pub keep: *mut f32,
}

/// Stores one head's vector at position `at` of a page; `out` is the head's half of that page.
///
/// # Safety
/// `out` is a head's half of a page of a pool that stores such numbers; `at` is below the page's
/// length; `x` has `head_dim` columns; the instruction set is available.
#[inline(always)]
pub unsafe fn store<S: Simd, N: Numbers>(pages: &LayerPages, half: Half, out: *mut u8, at: usize, x: &[f32]) {
    let (g, numbers) = (N::IN_LANE, numbers::<N::Number>(pages, half, out));
    // SAFETY: by the caller, `out` is a head's half of a page of such numbers, the page has
    // position `at`, and `x` has the columns of a head. The caller checked the instruction set. So
    // all writes are within that half. Its parts begin at multiples of 4 bytes.
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

/// Positions of a strip of keys; it and the page's length are powers of two.
#[inline(always)]
fn keys_width(pages: &LayerPages) -> usize {
    pages.page_len.min(STRIP)
}

/// Lanes before the first lane of a position's keys, and lanes from one of its lanes to the next.
#[inline(always)]
pub fn keys_at(pages: &LayerPages, g: usize, within: usize) -> (usize, usize) {
    let width = keys_width(pages);
    let (strip, at) = (within & !(width - 1), within & (width - 1));
    (strip * (kv_words::padded(pages.head_dim) / g) + at, width)
}

/// Lanes before a position's values in the strip of column `d`, and lanes of that strip for `g`
/// positions.
#[inline(always)]
pub fn values_at(pages: &LayerPages, g: usize, within: usize, d: usize) -> (usize, usize) {
    let strip = d / STRIP * STRIP;
    let width = STRIP.min(kv_words::padded(pages.head_dim) - strip);
    (strip * (pages.page_len / g) + within / g * width, width)
}

/// Address of the numbers in a head's half of a page.
#[inline(always)]
pub fn numbers<T>(pages: &LayerPages, half: Half, start: *mut u8) -> *mut T {
    let before = if half == Half::Keys { 0 } else { pages.page_len * 4 };
    start.wrapping_add(before).cast()
}

/// Address of the scales in a head's half of a page: after the keys, before the values.
#[inline(always)]
pub fn scales(pages: &LayerPages, half: Half, start: *mut u8) -> *mut f32 {
    let before = if half == Half::Keys { pages.half_bytes() - pages.page_len * 4 } else { 0 };
    start.wrapping_add(before).cast()
}

/// The range widened to whole vectors.
#[inline(always)]
pub fn vectors<S: Simd>(range: &Range<usize>) -> (usize, usize) {
    (range.start / S::N * S::N, range.end.next_multiple_of(S::N))
}

/// Positions of a block in one strip of keys.
#[derive(Clone, Copy)]
pub struct Run {
    /// The head's half of the page.
    pub head: *mut u8,
    /// First position, counted in the block.
    pub at: usize,
    /// First position, counted in the page.
    pub within: usize,
    /// Number of positions.
    pub len: usize,
}

/// Runs of the positions `from..end` of a block, one for each strip of keys.
///
/// # Safety
/// The pages of these positions are in the block's table.
#[inline(always)]
pub unsafe fn runs(block: &KvBlock<'_>, half: Half, from: usize, end: usize) -> impl Iterator<Item = Run> {
    let mut next = from;
    std::iter::from_fn(move || {
        let (at, position) = (next, block.first + next);
        if at >= end {
            return None;
        }
        let within = block.pages.within(position);
        let width = keys_width(block.pages);
        let len = (width - (within & (width - 1))).min(end - at);
        next += len;
        // SAFETY: by the caller, the page of the position is in the table.
        let head = unsafe { block.pages.head(block.table, half, block.kv_head, position) };
        Some(Run { head, at, within, len })
    })
}
