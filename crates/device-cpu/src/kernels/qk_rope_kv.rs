//! One pass over the heads of a layer's q, k and v: RmsNorm of q and k, Rope of q and k, KvWrite.
//!
//! Steps that the model does not have are absent. q `(n, n_heads * head_dim)` goes from one value to another, k and v
//! `(n, n_kv_heads * head_dim)` into the KV pages. All `(row, head)` triples of the three are one list that the workers
//! share. Norms accumulate as in [`rms_norm`](super::rms_norm). Bytes: 4 read a value, 4 written for q, the KV type's for
//! k and v.

use super::attention::pages::{Half, LayerPages};
use super::kv_write::store;
use super::rms_norm::norm_row;
use super::rope::{Turn, turn_head};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::RowCount;

/// What happens to the heads of q, or of k.
#[derive(Clone, Copy)]
pub struct Chain {
    /// `(n, n_heads * head_dim)`
    pub x: *const f32,
    /// Heads; 0: there is no such chain.
    pub n_heads: usize,
    /// Whether there is a norm.
    pub norm: bool,
    /// `(head_dim)`; null: no factor.
    pub weight: *const f32,
    /// Added to the mean square.
    pub eps: f32,
    /// How they rotate.
    pub turn: Turn,
    /// `(n, n_heads * head_dim)`; null: not wanted.
    pub out: *mut f32,
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// The query heads.
    pub q: Chain,
    /// The key heads.
    pub k: Chain,
    /// `(n, n_kv_heads * head_dim)`
    pub v: *const f32,
    /// Where keys and values go.
    pub pages: LayerPages,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let (pages, head_dim) = (&p.pages, p.pages.head_dim);
    let heads_of_row = p.q.n_heads + 2 * pages.n_kv_heads;
    let scratch: *mut f32 = worker.scratch.cast();
    for at in worker.share(worker.step.n_rows(RowCount::Tokens) * heads_of_row, 1) {
        let (row, head) = (at / heads_of_row, at % heads_of_row);
        // SAFETY: the heads lie within their values; the engine gave the row's position a page.
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
    qk_rope_kv, body, Params
);

/// Normalise and rotate one head.
///
/// # Safety
/// As [`turn_head`].
#[inline(always)]
unsafe fn process<S: Simd>(chain: &Chain, row: usize, x: *const f32, head_dim: usize, out: *mut f32) {
    // SAFETY: by the caller, `x` and the output are valid for `head_dim` values, the table for the row; the
    // instruction set is available.
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
