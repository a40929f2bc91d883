//! Attention to keys and values that are met as f32, whichever way they are stored.
//!
//! Order of accumulation: every score is one chain over the columns, every output column one chain over the positions of a
//! block. The products are in [`attention_product`](super::attention_product).

use super::attention_loops::Loops;
use super::attention_product::{BLOCK, Place, add_values, padded, scores};
use super::attention_tile::{Attend, Partial, Shape, Tile, scale_row, softmax_block};
use super::elementwise::{self, Times};
use super::kv_write::Stored;
use super::round_up;
use std::marker::PhantomData;

/// [`Attend`] to what is stored as `K`.
#[derive(Clone, Copy)]
pub struct Floats<K>(PhantomData<K>);

/// A worker's memory.
#[derive(Clone, Copy)]
pub struct Work {
    /// `(n, head_dim)` the queries, scaled.
    q: *mut f32,
    /// `(head_dim, BLOCK)` keys, then `(BLOCK, padded head_dim)` values.
    kv: *mut f32,
    /// `(n, BLOCK)` scores, then probabilities.
    s: *mut f32,
}

fn sizes(n: usize, head_dim: usize) -> [usize; 3] {
    [n * head_dim, padded(head_dim) * BLOCK, n * BLOCK].map(|len| round_up(len * 4))
}

impl<K: Stored> Attend for Floats<K> {
    const BLOCK: usize = BLOCK;
    type Work = Work;

    fn work_bytes(n: usize, head_dim: usize) -> usize {
        sizes(n, head_dim).into_iter().sum()
    }

    #[inline(always)]
    unsafe fn work(start: *mut u8, n: usize, head_dim: usize) -> Work {
        let [q, kv, _] = sizes(n, head_dim);
        // SAFETY: the caller's promise.
        unsafe { Work { q: start.cast(), kv: start.add(q).cast(), s: start.add(q + kv).cast() } }
    }

    #[inline(always)]
    unsafe fn from_query(work: Work, first: usize, head_dim: usize) -> Work {
        // SAFETY: the caller's promise.
        Work { q: unsafe { work.q.add(first * head_dim) }, ..work }
    }

    #[inline(always)]
    unsafe fn load_query<S: Loops>(work: Work, i: usize, x: *const f32, head_dim: usize, scale: f32) {
        // SAFETY: the caller's promise.
        unsafe { elementwise::combine::<S>(x, x, work.q.add(i * head_dim), head_dim, Times(scale)) }
    }

    #[inline(always)]
    unsafe fn scores<S: Loops>(place: &Place<'_>, n: usize, work: Work) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { scores::<S, K>(place, n, work.q, work.kv, work.s) };
        work.s
    }

    #[inline(always)]
    unsafe fn block<S: Loops>(shape: &Shape, tile: &Tile<'_>, place: &Place<'_>, work: Work, out: Partial) {
        let (n, ld) = (tile.n_rows * shape.n_group, padded(shape.pages.head_dim));
        // SAFETY: the caller's promise.
        unsafe {
            Self::scores::<S>(place, n, work);
            for query in 0..n {
                let seen = tile.seen_of(shape, query, place.block, BLOCK);
                let (m, l) = (out.m.add(query), out.l.add(query));
                let row = work.s.add(query * BLOCK);
                let factor = softmax_block::<S>(row, place.range.clone(), seen, shape.softcap, m, l);
                if factor != 1.0 {
                    scale_row::<S>(out.o.add(query * ld), ld, factor);
                }
            }
            add_values::<S, K>(place, n, work.s, work.kv, out.o);
        }
    }
}
