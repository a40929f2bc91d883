//! One pass over the heads of a layer's q, k and v: RmsNorm and RoPE of q and k, then KvWrite.
//!
//! Models skip the parts that they lack. q `(n, n_heads * head_dim)` is copied from one value to
//! another; k and v `(n, n_kv_heads * head_dim)` are stored in the KV pages. All `(row, head)`
//! pairs of q, k and v are one list, which the workers share. Norms accumulate as in
//! [`rms_norm`](super::rms_norm). Bytes of a value: 4 read; 4 written for q, the KV type's for k
//! and v.

use super::attention::pages::{Half, LayerPages};
use super::kv_write::store;
use super::rms_norm::norm_row;
use super::rope::{Turn, turn_head};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// Norm and RoPE of the heads of q, or of k.
#[derive(Clone, Copy)]
pub struct Chain {
    /// `(n, n_heads * head_dim)`
    pub x: *const f32,
    /// Number of heads; 0 if there is no such chain.
    pub n_heads: usize,
    /// True if heads are normalised.
    pub norm: bool,
    /// Factors of the norm, `(head_dim)`; null for none.
    pub weight: *const f32,
    /// Constant added to the mean square.
    pub eps: f32,
    /// Rotation of the heads.
    pub turn: Turn,
    /// `(n, n_heads * head_dim)`; null if no value is written.
    pub out: *mut f32,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct QkRopeKvParams {
    /// The query heads.
    pub q: Chain,
    /// The key heads.
    pub k: Chain,
    /// `(n, n_kv_heads * head_dim)`
    pub v: *const f32,
    /// Destination of keys and values.
    pub pages: LayerPages,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &QkRopeKvParams, worker: &Worker<'_>) {
    let (pages, head_dim) = (&p.pages, p.pages.head_dim);
    let heads_of_row = p.q.n_heads + 2 * pages.n_kv_heads;
    let scratch: *mut f32 = worker.scratch.cast();
    for at in worker.share(worker.step.n_rows(RowCount::Tokens) * heads_of_row, 1) {
        let (row, head) = (at / heads_of_row, at % heads_of_row);
        // SAFETY: `at` is below rows times heads, so the heads are within their values. The step's
        // check ensured that the row's position has a page.
        unsafe {
            if head < p.q.n_heads {
                let at = (row * p.q.n_heads + head) * head_dim;
                process::<S>(&p.q, row, p.q.x.add(at), head_dim, p.q.out.add(at));
                continue;
            }
            let head = head - p.q.n_heads;
            if head < pages.n_kv_heads {
                let at = (row * pages.n_kv_heads + head) * head_dim;
                process::<S>(&p.k, row, p.k.x.add(at), head_dim, scratch);
                if !p.k.out.is_null() {
                    p.k.out.add(at).copy_from_nonoverlapping(scratch, head_dim);
                }
                store::<S>(pages, worker, row, Half::Keys, head, scratch);
            } else {
                let head = head - pages.n_kv_heads;
                let v = p.v.add((row * pages.n_kv_heads + head) * head_dim);
                store::<S>(pages, worker, row, Half::Values, head, v);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    qk_rope_kv, body, QkRopeKvParams
);

/// Normalises and rotates one head.
///
/// # Safety
/// As [`turn_head`].
#[inline(always)]
unsafe fn process<S: Simd>(chain: &Chain, row: usize, x: *const f32, head_dim: usize, out: *mut f32) {
    // SAFETY: the caller guarantees `head_dim` values at `x` and `out`, the row of the RoPE table,
    // and the instruction set.
    unsafe {
        let mut x = x;
        if chain.norm {
            norm_row::<S>(x, chain.weight, head_dim, chain.eps, out);
            x = out;
        }
        if !chain.turn.table.is_null() {
            turn_head::<S>(&chain.turn, row, x, head_dim, out);
        } else if !chain.norm {
            out.copy_from_nonoverlapping(x, head_dim);
        }
    }
}
