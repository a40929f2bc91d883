//! Attention to keys and values that are converted to f32.
//!
//! Order of accumulation: every score is one chain over the columns, every output column one chain
//! over the positions of a block. The products are in [`product`](super::product).

use super::attend::Attend;
use super::constants::{FLOAT_BLOCK as BLOCK, padded};
use super::loops::Loops;
use super::pages::{HeadSize, KvBlock, LayerPages};
use super::product::{Product, load_keys, load_values};
use super::softmax::{scale_row, softmax_block};
use super::stored::StoredFloats;
use super::tile::{Partial, RowTile, Shape};
use crate::kernels::elementwise::{self, Times};
use crate::kernels::round_up;
use std::marker::PhantomData;

/// Maximum number of queries whose products are computed without scratch.
pub const MAX_DIRECT: usize = 5;

/// [`Attend`] to keys and values that are stored as `K`.
#[derive(Clone, Copy)]
pub struct Floats<K>(PhantomData<K>);

/// Scratch of a worker.
#[derive(Clone, Copy)]
pub struct FloatWork {
    /// `(n, head_dim)` scaled queries.
    q: *mut f32,
    /// `(head_dim, BLOCK)` keys, then `(BLOCK, padded head_dim)` values.
    kv: *mut f32,
    /// `(n, BLOCK)` scores, then probabilities.
    s: *mut f32,
}

fn sizes(n: usize, head_dim: usize) -> [usize; 3] {
    [n * head_dim, padded(head_dim) * BLOCK, n * BLOCK].map(|len| round_up(len * 4))
}

impl<K: StoredFloats> Attend for Floats<K> {
    const BLOCK: usize = BLOCK;
    type Work = FloatWork;

    fn work_bytes(n: usize, size: HeadSize) -> usize {
        sizes(n, size.head_dim).into_iter().sum()
    }

    #[inline(always)]
    unsafe fn work(start: *mut u8, n: usize, size: HeadSize) -> FloatWork {
        let [q, kv, _] = sizes(n, size.head_dim);
        // SAFETY: by the caller, `start` is valid for `work_bytes`, the sum of these sizes.
        unsafe { FloatWork { q: start.cast(), kv: start.add(q).cast(), s: start.add(q + kv).cast() } }
    }

    #[inline(always)]
    unsafe fn from_query(work: FloatWork, first: usize, head_dim: usize) -> FloatWork {
        // SAFETY: by the caller, the work is for at least `first` queries.
        FloatWork { q: unsafe { work.q.add(first * head_dim) }, ..work }
    }

    #[inline(always)]
    unsafe fn load_query<S: Loops>(
        work: FloatWork,
        i: usize,
        x: *const f32,
        pages: &LayerPages,
        _kv_head: usize,
        scale: f32,
    ) {
        let head_dim = pages.head_dim;
        // SAFETY: by the caller, `x` has `head_dim` columns, the work is for more than `i` queries,
        // and the instruction set is available.
        unsafe { elementwise::combine::<S>(x, x, work.q.add(i * head_dim), head_dim, Times(scale)) }
    }

    #[inline(always)]
    unsafe fn scores<S: Loops>(block: &KvBlock<'_>, n: usize, work: FloatWork) -> *const f32 {
        // SAFETY: by the caller, the positions have pages, and the work has the `n` queries. The
        // work's arrays have the sizes of `sizes`. The caller checked the instruction set.
        unsafe { scores::<S, K>(block, n, work.q, work.kv, work.s) };
        work.s
    }

    #[inline(always)]
    unsafe fn block<S: Loops>(
        shape: &Shape,
        tile: &RowTile<'_>,
        block: &KvBlock<'_>,
        work: FloatWork,
        out: Partial,
    ) {
        let (n, ld) = (tile.n_queries(shape), padded(shape.pages.head_dim));
        // SAFETY: by the caller, the positions have pages, the work has the tile's queries, and the
        // partial is for them. The caller checked the instruction set. A row of scores has `BLOCK`
        // values, and `ld` is a multiple of 16.
        unsafe {
            Self::scores::<S>(block, n, work);
            for query in 0..n {
                let seen = tile.seen_of(shape, query, block.first, BLOCK);
                let (m, l) = (out.m.add(query), out.l.add(query));
                let row = work.s.add(query * BLOCK);
                let factor = softmax_block::<S>(row, block.range.clone(), seen, shape.softcap, m, l);
                if factor != 1.0 {
                    scale_row::<S>(out.o.add(query * ld), ld, factor);
                }
            }
            add_values::<S, K>(block, n, work.s, work.kv, out.o);
        }
    }
}

/// Computes `S = Q K^T` for the positions of the range; other columns of S are undefined.
///
/// # Safety
/// The positions of the range have pages; Q is `(n, head_dim)`, S `(n, BLOCK)`, `kv` has room for
/// `padded(head_dim) * BLOCK` values; the instruction set is available.
#[inline(always)]
unsafe fn scores<S: Loops, K: StoredFloats>(
    block: &KvBlock<'_>,
    n: usize,
    q: *const f32,
    kv: *mut f32,
    s: *mut f32,
) {
    let head_dim = block.pages.head_dim;
    // SAFETY: by the caller, the positions have pages, and the matrices have their shapes. The
    // caller checked the instruction set. `vectors` divides `BLOCK`, so `first..end` is within a
    // row of S and of `kv`.
    unsafe {
        if n <= MAX_DIRECT {
            return match n {
                1 => S::direct_scores::<K, 1>(block, q, s),
                2 => S::direct_scores::<K, 2>(block, q, s),
                3 => S::direct_scores::<K, 3>(block, q, s),
                4 => S::direct_scores::<K, 4>(block, q, s),
                _ => S::direct_scores::<K, MAX_DIRECT>(block, q, s),
            };
        }
        load_keys::<S, K>(block, kv);
        let vectors = S::N * S::VECTORS;
        let (first, end) = (block.range.start / vectors * vectors, block.range.end.next_multiple_of(vectors));
        let shape =
            Product { n, k: head_dim, cols: end - first, lda: head_dim, ldb: BLOCK, ldc: BLOCK, add: false };
        S::product(shape, q, kv.add(first), s.add(first));
    }
}

/// Computes `O += P V` over the positions of the range.
///
/// # Safety
/// The positions of the range have pages; P is `(n, BLOCK)`, O `(n, padded head_dim)`, `kv` has
/// room for `padded(head_dim) * BLOCK` values; the instruction set is available.
#[inline(always)]
unsafe fn add_values<S: Loops, K: StoredFloats>(
    block: &KvBlock<'_>,
    n: usize,
    p: *const f32,
    kv: *mut f32,
    o: *mut f32,
) {
    let ld = padded(block.pages.head_dim);
    // SAFETY: by the caller, the positions have pages, and the matrices have their shapes. The
    // caller checked the instruction set. Only rows of `kv` that were loaded are read, those of the
    // range.
    unsafe {
        if n <= MAX_DIRECT {
            return match n {
                1 => S::direct_values::<K, 1>(block, p, o),
                2 => S::direct_values::<K, 2>(block, p, o),
                3 => S::direct_values::<K, 3>(block, p, o),
                4 => S::direct_values::<K, 4>(block, p, o),
                _ => S::direct_values::<K, MAX_DIRECT>(block, p, o),
            };
        }
        load_values::<S, K>(block, kv);
        let shape = Product { n, k: block.range.len(), cols: ld, lda: BLOCK, ldb: ld, ldc: ld, add: true };
        S::product(shape, p.add(block.range.start), kv.add(block.range.start * ld), o);
    }
}
