//! Attention of each row over all rows of its own span: `out = softmax(scale q k^T) v`, head by head, nothing cached.
//!
//! q, k, v and out `(n, n_heads * head_dim)`. A unit of work is (a span, a head), handed out one after another. A unit
//! first packs its keys as columns `(head_dim, n_padded)` and its values as rows of whole vectors; then four queries at a
//! time meet all keys, two vectors of keys at once in registers, and after the softmax all values, two vectors of columns
//! at once. So every inner loop is loads of packed memory and multiply-adds.
//!
//! Accumulation: a score over the columns of its head, ascending; the softmax's sum vector after vector, then the lanes; an
//! output over the keys, ascending; all f32. A query's order does not depend on which others share its tile.
//! Bytes: each value of q, k, v once from memory, and once to out; the packed head stays in the second cache.

use crate::command::Worker;
use crate::simd::{Simd, math, variants};
use device::Span;

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, n_heads * head_dim)`
    pub q: *const f32,
    /// `(n, n_heads * head_dim)`
    pub k: *const f32,
    /// `(n, n_heads * head_dim)`
    pub v: *const f32,
    /// `(n, n_heads * head_dim)`
    pub out: *mut f32,
    /// Heads.
    pub n_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
}

/// Queries of a tile.
const QUERIES: usize = 4;

/// What numbers of keys and of columns are padded to: two vectors of the widest kind.
const PADDING: usize = 32;

/// Bytes of scratch for spans of up to `max_rows` rows.
pub fn scratch_bytes(head_dim: usize, max_rows: usize) -> usize {
    let (n, dim) = (max_rows.next_multiple_of(PADDING), head_dim.next_multiple_of(PADDING));
    4 * (n * head_dim + n * dim + QUERIES * n + QUERIES * dim)
}

/// One head of one span, packed.
struct Packed {
    /// `(head_dim, n_padded)`, zeros behind the last key.
    keys: *mut f32,
    /// `(n, dim_padded)`, zeros behind the last column.
    values: *mut f32,
    /// `(QUERIES, n_padded)`
    scores: *mut f32,
    /// `(QUERIES, dim_padded)`
    out: *mut f32,
    n: usize,
    n_padded: usize,
    dim_padded: usize,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let n_units = worker.step.spans.len() * p.n_heads;
    while let Some(unit) = worker.take(n_units) {
        let span = &worker.step.spans[unit / p.n_heads];
        // SAFETY: the scratch is for the longest span; rows and columns lie within the values.
        unsafe {
            let packed = pack(p, span, unit % p.n_heads, worker.scratch.cast());
            for first in (0..packed.n).step_by(QUERIES) {
                tile::<S>(p, span, unit % p.n_heads, &packed, first);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    self_attention, body, Params
);

/// # Safety
/// `scratch` has [`scratch_bytes`] for the span; the span's rows are rows of the values.
#[inline(always)]
unsafe fn pack(p: &Params, span: &Span, head: usize, scratch: *mut f32) -> Packed {
    let (n, dim) = (span.n_rows as usize, p.head_dim);
    let (n_padded, dim_padded) = (n.next_multiple_of(PADDING), dim.next_multiple_of(PADDING));
    // SAFETY: the caller's promise.
    unsafe {
        let keys = scratch;
        let values = keys.add(n_padded * dim);
        let scores = values.add(n_padded * dim_padded);
        let out = scores.add(QUERIES * n_padded);
        for row in 0..n {
            let from = (span.first_row as usize + row) * p.n_heads * dim + head * dim;
            for column in 0..dim {
                *keys.add(column * n_padded + row) = *p.k.add(from + column);
            }
            let to = values.add(row * dim_padded);
            to.copy_from_nonoverlapping(p.v.add(from), dim);
            to.add(dim).write_bytes(0, dim_padded - dim);
        }
        for column in 0..dim {
            keys.add(column * n_padded + n).write_bytes(0, n_padded - n);
        }
        Packed { keys, values, scores, out, n, n_padded, dim_padded }
    }
}

/// Up to [`QUERIES`] rows of a span from `first` on.
///
/// # Safety
/// As [`pack`], which made `packed`.
#[inline(always)]
unsafe fn tile<S: Simd>(p: &Params, span: &Span, head: usize, packed: &Packed, first: usize) {
    let Packed { keys, values, scores, out, n, n_padded, dim_padded } = *packed;
    let (dim, cols) = (p.head_dim, p.n_heads * p.head_dim);
    let n_queries = (n - first).min(QUERIES);
    let at = |query: usize| (span.first_row as usize + first + query) * cols + head * dim;
    // SAFETY: the caller's promise; a tile of fewer queries repeats its last.
    unsafe {
        let q: [*const f32; QUERIES] = std::array::from_fn(|i| p.q.wrapping_add(at(i.min(n_queries - 1))));
        let scale = S::splat(p.scale);
        for key in (0..n_padded).step_by(2 * S::N) {
            let mut sums = [[S::splat(0.0); 2]; QUERIES];
            for column in 0..dim {
                let k = keys.add(column * n_padded + key);
                let (k0, k1) = (S::load(k), S::load(k.add(S::N)));
                for (sum, q) in sums.iter_mut().zip(q) {
                    let q = S::splat(*q.add(column));
                    sum[0] = S::fma(q, k0, sum[0]);
                    sum[1] = S::fma(q, k1, sum[1]);
                }
            }
            for (query, sum) in sums.iter().enumerate() {
                let to = scores.add(query * n_padded + key);
                S::store(to, S::mul(sum[0], scale));
                S::store(to.add(S::N), S::mul(sum[1], scale));
            }
        }
        let mut factors = [0f32; QUERIES];
        for (query, factor) in factors.iter_mut().enumerate().take(n_queries) {
            *factor = 1.0 / exponentials::<S>(scores.add(query * n_padded), n, n_padded);
        }
        for column in (0..dim_padded).step_by(2 * S::N) {
            let mut sums = [[S::splat(0.0); 2]; QUERIES];
            for key in 0..n {
                let v = values.add(key * dim_padded + column);
                let (v0, v1) = (S::load(v), S::load(v.add(S::N)));
                for (query, sum) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*scores.add(query * n_padded + key));
                    sum[0] = S::fma(weight, v0, sum[0]);
                    sum[1] = S::fma(weight, v1, sum[1]);
                }
            }
            for (query, sum) in sums.iter().enumerate() {
                let factor = S::splat(factors[query]);
                let to = out.add(query * dim_padded + column);
                S::store(to, S::mul(sum[0], factor));
                S::store(to.add(S::N), S::mul(sum[1], factor));
            }
        }
        for query in 0..n_queries {
            p.out.add(at(query)).copy_from_nonoverlapping(out.add(query * dim_padded), dim);
        }
    }
}

/// `exp(score - max)` in place for `n` scores, 0 behind them; their sum.
///
/// # Safety
/// `scores` is valid for `n_padded` values, a multiple of the vector; the instruction set is available.
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: *mut f32, n: usize, n_padded: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        for i in n..n_padded {
            *scores.add(i) = f32::NEG_INFINITY;
        }
        let mut most = f32::NEG_INFINITY;
        for i in 0..n {
            most = most.max(*scores.add(i));
        }
        let most = S::splat(most);
        let mut sum = S::splat(0.0);
        for i in (0..n_padded).step_by(S::N) {
            let e = math::exp::<S>(S::sub(S::load(scores.add(i)), most));
            S::store(scores.add(i), e);
            sum = S::add(sum, e);
        }
        S::sum(sum)
    }
}
