//! Stores keys and values of the step's rows in the KV pages of a layer.
//!
//! k and v `(n, n_kv_heads * head_dim)`. A page of a group contains its layers in order. Each layer
//! has its heads in order, and each head has keys `[page_len][head_dim]`, then values of the same
//! shape. (I16 and I8 order the numbers of a head differently: [`integer_layout`].) Pairs `(row,
//! head)` are shared among the workers. A key's constant terms ([`device::key_bias`]) are
//! subtracted here. Bytes of a value: 4 read, the KV type's bytes written.

use super::attention::integer_layout;
use super::attention::numbers::{Bytes, Words};
use super::attention::pages::{Half, LayerPages};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::{KvType, RowCount};

/// Parameters.
#[derive(Clone, Copy)]
pub struct KvWriteParams {
    /// `(n, n_kv_heads * head_dim)`
    pub k: *const f32,
    /// `(n, n_kv_heads * head_dim)`
    pub v: *const f32,
    /// Destination of keys and values.
    pub pages: LayerPages,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &KvWriteParams, worker: &Worker<'_>) {
    let pages = &p.pages;
    for at in worker.share(worker.step.n_rows(RowCount::Tokens) * pages.n_kv_heads, 1) {
        let (row, head) = (at / pages.n_kv_heads, at % pages.n_kv_heads);
        // SAFETY: `at` is below rows times heads, so the vectors are within `k` and `v`. The step's
        // check ensured that the row's position has a page.
        unsafe {
            store::<S>(pages, worker, row, Half::Keys, head, p.k.add(at * pages.head_dim));
            if pages.n_halves == 1 {
                continue;
            }
            store::<S>(pages, worker, row, Half::Values, head, p.v.add(at * pages.head_dim));
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    kv_write, body, KvWriteParams
);

/// Bytes of scratch: one head.
pub fn scratch_bytes(head_dim: usize) -> usize {
    super::round_up(head_dim * 4)
}

/// Stores one head's vector of a row. Overwrites the worker's scratch; `x` may be the start of that
/// scratch.
///
/// # Safety
/// The worker's scratch has [`scratch_bytes`]. `x` is valid for `head_dim` values. The row's
/// position has a page. The instruction set is available.
#[inline(always)]
pub unsafe fn store<S: Simd>(
    pages: &LayerPages,
    worker: &Worker<'_>,
    row: usize,
    half: Half,
    head: usize,
    x: *const f32,
) {
    let table = worker.step.page_table(worker.step.slots[row], pages.group);
    let (n, mut x) = (pages.head_dim, x);
    // SAFETY: the caller guarantees `head_dim` values at `x`, a page for the row's position,
    // scratch for one head, and the instruction set.
    unsafe {
        let position = worker.step.positions[row] as usize;
        if let (Half::Keys, Some(known)) = (half, pages.known()) {
            let own: *mut f32 = worker.scratch.cast();
            own.copy_from(x, n);
            known.add(head, position, -1.0, std::slice::from_raw_parts_mut(own, n));
            x = own;
        }
        let (of_head, at) = (pages.head(table, half, head, position), pages.within(position));
        let out = of_head.add(at * pages.vector_bytes());
        let vector = std::slice::from_raw_parts(x, n);
        match pages.kind {
            KvType::I16 => integer_layout::store::<S, Words>(pages, half, of_head, at, vector),
            KvType::I8 => integer_layout::store::<S, Bytes>(pages, half, of_head, at, vector),
            KvType::F32 => out.copy_from_nonoverlapping(x.cast(), n * 4),
            KvType::F16 => {
                let out: *mut u16 = out.cast();
                let whole = n / S::N * S::N;
                for i in (0..whole).step_by(S::N) {
                    S::store_f16(out.add(i), S::load(x.add(i)));
                }
                for i in whole..n {
                    out.add(i).write_unaligned(half::f16::from_f32(*x.add(i)).to_bits());
                }
            }
            KvType::Q8_0 | KvType::Fp8 => unreachable!("not one of `profile::KV_TYPES`"),
        }
    }
}
