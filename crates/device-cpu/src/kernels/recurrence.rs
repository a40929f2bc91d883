//! The gated delta rule and the selective scan: layers whose state of a sequence is a matrix `S
//! (rows, cols)` for each head.
//!
//! Both compute `S = D S + k u^T`, then `out = scale * S^T q + skip * v`, position by position. The
//! delta rule has `u = beta * (v - (D S)^T k)`, the scan `u = step * v`. `D` is the number `d =
//! exp(rate * step)`, or a diagonal of such numbers. q and k are `(n, n_shared * rows)`, v and out
//! `(n, n_heads * cols)`, states f32.
//!
//! A unit of work is (a span, a head). A few rows are computed position by position ([`walk`]): two
//! passes over a strip of columns read S from the old state and write the new one. The strip stays
//! in the first-level cache. Many rows are computed in chunks of up to [`CHUNK`] ([`chunk`]) as
//! matrix products. `L[t]` is the sum of `rate * step` up to `t` in the chunk, and `S` the state
//! before the chunk:
//!
//! - `A[t][s] = scale * exp(L[t] - L[s]) q[t].k[s]` for `s <= t`,
//!   `T[t][s] = -beta[t] exp(L[t] - L[s]) k[t].k[s]` for `s < t`;
//! - in the delta rule `U` solves `(1 - T) U = beta * (V - exp(L) K S)`, forwards, with blocks of
//!   [`SOLVED`] rows as products (the "WY" form: Yang et al., "Parallelizing Linear Transformers
//!   with the Delta Rule", 2024); in the scan it is `step * V`;
//! - `out = scale * exp(L) Q S + A U + skip * V`, and `S = exp(L[n-1]) S + K^T (exp(L[n-1] - L) U)`
//!   (Dao and Gu, 2024).
//!
//! No exponent is positive, so nothing overflows. Accumulation: rows of S or positions in ascending
//! order, in f32. Bytes: a state read and written once for each span and head; q, k and v read
//! once; 4 written for each output.

use super::attention::constants::{FLOAT_BLOCK as CHUNK, padded};
use super::attention::loops::Loops;
use super::attention::product::Product;
use super::attention::softmax::scale_row;
use super::round_up;
use super::self_attention::load_keys;
use crate::command::Worker;
use crate::simd::math::exp;
use crate::simd::{Simd, variants};
use device::{STATE_NONE, Span, StateUse};

/// Least rows of a span for which products cost less than a walk.
const MIN_CHUNK: usize = 12;

/// Rows of a block of the triangular system.
const SOLVED: usize = 16;

/// Vectors in a strip of columns.
const STRIP: usize = 4;

/// Parameters.
#[derive(Clone, Copy)]
pub struct RecurrenceParams {
    /// `(n, n_shared * rows)`
    pub q: *const f32,
    /// `(n, n_shared * rows)`
    pub k: *const f32,
    /// `(n, n_heads * cols)`
    pub v: *const f32,
    /// `(n, n_heads)`, or `(n, n_heads * rows)` with `per_row`.
    pub steps: *const f32,
    /// `(n, n_heads)`; null for a scan.
    pub beta: *const f32,
    /// `(n_heads)`
    pub rate: *const f32,
    /// `(n_heads)`; null: 0.
    pub skip: *const f32,
    /// `(n_states, state_len)`, from this layer's part of the first state on.
    pub states: *mut f32,
    /// Numbers of a state, over all layers.
    pub state_len: usize,
    /// Heads.
    pub n_heads: usize,
    /// Heads of q and k.
    pub n_shared: usize,
    /// True if head `h` uses q and k of head `h % n_shared`, instead of `h / (n_heads / n_shared)`.
    pub tiled: bool,
    /// True if each row of S has its own step.
    pub per_row: bool,
    /// Rows of S.
    pub rows: usize,
    /// Columns of S.
    pub cols: usize,
    /// Factor on the output.
    pub scale: f32,
    /// True if many rows are computed in chunks, which accumulate in another order than a walk.
    pub chunked: bool,
    /// `(n, n_heads * cols)`
    pub out: *mut f32,
}

/// Scratch of a worker.
#[derive(Clone, Copy)]
struct HeadScratch {
    /// `(rows, padded cols)`
    s: *mut f32,
    /// `(rows, CHUNK)` keys, one column for each position.
    keys: *mut f32,
    /// `(CHUNK, padded cols)`
    u: *mut f32,
    /// `(CHUNK, padded cols)`
    o: *mut f32,
    /// `(CHUNK, CHUNK)` matrix A, weights of U in the output.
    weights: *mut f32,
    /// `(CHUNK, CHUNK)` matrix T of the triangular system.
    system: *mut f32,
    /// `(CHUNK)` vector L.
    logs: *mut f32,
    /// `(rows)` decays of a walk; `decayed_keys` has keys times decays.
    decays: *mut f32,
    decayed_keys: *mut f32,
}

impl HeadScratch {
    fn sizes(rows: usize, cols: usize) -> [usize; 9] {
        let wide = padded(cols);
        [
            rows * wide,
            rows * CHUNK,
            CHUNK * wide,
            CHUNK * wide,
            CHUNK * CHUNK,
            CHUNK * CHUNK,
            CHUNK,
            rows,
            rows,
        ]
        .map(|len| round_up(len * 4))
    }

    /// # Safety
    /// `start` is valid for [`scratch_bytes`], aligned to 64.
    #[inline(always)]
    unsafe fn at(start: *mut u8, rows: usize, cols: usize) -> HeadScratch {
        let mut at = start;
        let [s, keys, u, o, weights, system, logs, decays, decayed_keys] =
            Self::sizes(rows, cols).map(|bytes| {
                let part = at.cast();
                at = at.wrapping_add(bytes);
                part
            });
        HeadScratch { s, keys, u, o, weights, system, logs, decays, decayed_keys }
    }
}

/// Bytes of scratch.
pub fn scratch_bytes(rows: usize, cols: usize) -> usize {
    HeadScratch::sizes(rows, cols).into_iter().sum()
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Loops>(p: &RecurrenceParams, worker: &Worker<'_>) {
    // SAFETY: the scratch has the layout of `scratch_bytes`, and heads and rows are within the
    // values. The step's check ensured that its states exist and that spans write different ones.
    unsafe {
        let scratch = HeadScratch::at(worker.scratch, p.rows, p.cols);
        while let Some(unit) = worker.take(worker.step.spans.len() * p.n_heads) {
            let (index, head) = (unit / p.n_heads, unit % p.n_heads);
            let (span, state) = (&worker.step.spans[index], &worker.step.states[index]);
            let many = p.chunked && !p.per_row && span.n_rows as usize >= MIN_CHUNK;
            if many {
                chunks::<S>(p, span, state, head, &scratch);
            } else {
                walk::<S>(p, span, state, head, &scratch);
            }
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    recurrence, body, RecurrenceParams
);

impl RecurrenceParams {
    fn shared(&self, head: usize) -> usize {
        if self.tiled { head % self.n_shared } else { head / (self.n_heads / self.n_shared) }
    }

    /// A head's part of a state; null for no state.
    fn state(&self, state: u32, head: usize) -> *mut f32 {
        match state {
            STATE_NONE => std::ptr::null_mut(),
            state => self.states.wrapping_add(state as usize * self.state_len + head * self.rows * self.cols),
        }
    }
}

/// Computes the rows of a span one after another, for one head.
///
/// # Safety
/// The span's rows are rows of the values; its states exist; the instruction set is available.
#[inline(always)]
unsafe fn walk<S: Simd>(
    p: &RecurrenceParams,
    span: &Span,
    state: &StateUse,
    head: usize,
    scratch: &HeadScratch,
) {
    let (rows, cols) = (p.rows, p.cols);
    let to = p.state(state.to, head);
    let mut from = p.state(state.from, head);
    // SAFETY: the caller guarantees the rows, the states and the instruction set; strips are within
    // the columns.
    unsafe {
        if from.is_null() {
            to.write_bytes(0, rows * cols);
            from = to;
        }
        for t in span.first_row as usize..(span.first_row + span.n_rows) as usize {
            let at = (t * p.n_shared + p.shared(head)) * rows;
            let (q, k, row) = (p.q.add(at), p.k.add(at), t * p.n_heads + head);
            let rate = *p.rate.add(head);
            for i in 0..rows {
                let step = *p.steps.add(if p.per_row { row * rows + i } else { row });
                // Without `per_row` all rows have the same decay.
                let decay = if p.per_row || i == 0 { (rate * step).exp() } else { *scratch.decays };
                *scratch.decays.add(i) = decay;
                *scratch.decayed_keys.add(i) = *k.add(i) * decay;
            }
            let beta = if p.beta.is_null() { *p.steps.add(row) } else { *p.beta.add(row) };
            let skip = if p.skip.is_null() { 0.0 } else { *p.skip.add(head) };
            let strip = Strip {
                rows,
                cols,
                q,
                k,
                decays: scratch.decays,
                decayed_keys: scratch.decayed_keys,
                is_delta: !p.beta.is_null(),
                beta,
                scale: p.scale,
                skip,
            };
            let (v, out) = (p.v.add(row * cols), p.out.add(row * cols));
            let mut c = 0;
            while c + STRIP * S::N <= cols {
                strip.vectors::<S, STRIP>(from.add(c), to.add(c), v.add(c), out.add(c));
                c += STRIP * S::N;
            }
            while c + S::N <= cols {
                strip.vectors::<S, 1>(from.add(c), to.add(c), v.add(c), out.add(c));
                c += S::N;
            }
            for c in c..cols {
                strip.column::<S>(from.add(c), to.add(c), *v.add(c), out.add(c));
            }
            from = to;
        }
    }
}

/// Inputs of one position of one head that its columns share.
struct Strip {
    rows: usize,
    cols: usize,
    q: *const f32,
    k: *const f32,
    decays: *const f32,
    decayed_keys: *const f32,
    is_delta: bool,
    beta: f32,
    scale: f32,
    skip: f32,
}

impl Strip {
    /// Computes `V` vectors of columns.
    ///
    /// # Safety
    /// The states have these columns in each row, and so do `v` and `out`; the instruction set is
    /// available.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // Accumulators are arrays that must become registers.
    unsafe fn vectors<S: Simd, const V: usize>(
        &self,
        from: *const f32,
        to: *mut f32,
        v: *const f32,
        out: *mut f32,
    ) {
        // SAFETY: the caller guarantees the columns in each row of `from` and `to`, in `v` and in
        // `out`, and the instruction set.
        unsafe {
            let mut u = [S::splat(0.0); V];
            for j in 0..V {
                u[j] = S::load(v.add(j * S::N));
            }
            if self.is_delta {
                let mut known = [S::splat(0.0); V];
                for i in 0..self.rows {
                    let k = S::splat(*self.decayed_keys.add(i));
                    for j in 0..V {
                        known[j] = S::fma(k, S::load(from.add(i * self.cols + j * S::N)), known[j]);
                    }
                }
                for j in 0..V {
                    u[j] = S::sub(u[j], known[j]);
                }
            }
            let beta = S::splat(self.beta);
            for j in 0..V {
                u[j] = S::mul(beta, u[j]);
            }
            let mut sums = [S::splat(0.0); V];
            for i in 0..self.rows {
                let (d, k) = (S::splat(*self.decays.add(i)), S::splat(*self.k.add(i)));
                let q = S::splat(*self.q.add(i));
                for j in 0..V {
                    let at = i * self.cols + j * S::N;
                    let s = S::fma(k, u[j], S::mul(d, S::load(from.add(at))));
                    S::store(to.add(at), s);
                    sums[j] = S::fma(q, s, sums[j]);
                }
            }
            for j in 0..V {
                let skipped = S::mul(S::splat(self.skip), S::load(v.add(j * S::N)));
                S::store(out.add(j * S::N), S::fma(S::splat(self.scale), sums[j], skipped));
            }
        }
    }

    /// Computes one column.
    ///
    /// # Safety
    /// As [`Self::vectors`].
    #[inline(always)]
    unsafe fn column<S: Simd>(&self, from: *const f32, to: *mut f32, v: f32, out: *mut f32) {
        // SAFETY: the caller guarantees the column in each row of `from` and `to`, and one value at
        // `out`.
        unsafe {
            let mut known = 0.0;
            if self.is_delta {
                for i in 0..self.rows {
                    known = S::fma_one(*self.decayed_keys.add(i), *from.add(i * self.cols), known);
                }
            }
            let (u, mut sum) = (self.beta * (v - known), 0.0);
            for i in 0..self.rows {
                let s = S::fma_one(*self.k.add(i), u, *self.decays.add(i) * *from.add(i * self.cols));
                *to.add(i * self.cols) = s;
                sum = S::fma_one(*self.q.add(i), s, sum);
            }
            *out = S::fma_one(self.scale, sum, self.skip * v);
        }
    }
}

/// Computes the rows of a span in chunks, for one head.
///
/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn chunks<S: Loops>(
    p: &RecurrenceParams,
    span: &Span,
    state: &StateUse,
    head: usize,
    scratch: &HeadScratch,
) {
    let (from, to) = (p.state(state.from, head), p.state(state.to, head));
    let (n, wide) = (span.n_rows as usize, padded(p.cols));
    // SAFETY: the caller guarantees the rows, the states and the instruction set.
    unsafe {
        scratch.s.write_bytes(0, p.rows * wide);
        if !from.is_null() {
            for i in 0..p.rows {
                scratch.s.add(i * wide).copy_from_nonoverlapping(from.add(i * p.cols), p.cols);
            }
        }
        // Chunks have equal sizes, so that the last one is not a small rest.
        let len = n.div_ceil(n.div_ceil(CHUNK));
        for first in (0..n).step_by(len) {
            chunk::<S>(p, span.first_row as usize + first, len.min(n - first), head, scratch);
        }
        for i in 0..p.rows {
            to.add(i * p.cols).copy_from_nonoverlapping(scratch.s.add(i * wide), p.cols);
        }
    }
}

/// Computes `n` rows from `first` on, for one head, whose state is in the scratch.
///
/// # Safety
/// The values have these rows; the instruction set is available.
#[inline(always)]
unsafe fn chunk<S: Loops>(p: &RecurrenceParams, first: usize, n: usize, head: usize, scratch: &HeadScratch) {
    let (rows, cols, wide) = (p.rows, p.cols, padded(p.cols));
    let HeadScratch { s, keys, u, o, weights, system, logs, .. } = *scratch;
    let stride = p.n_shared * rows;
    let shared = first * stride + p.shared(head) * rows;
    let at = |t: usize| (first + t) * p.n_heads + head;
    // SAFETY: the caller guarantees the rows and the instruction set. Matrices in the scratch have
    // the shapes that its fields document.
    unsafe {
        let (q, k) = (p.q.add(shared), p.k.add(shared));
        let is_delta = !p.beta.is_null();
        let rate = *p.rate.add(head);
        let mut log = 0.0;
        for t in 0..CHUNK {
            if t < n {
                log += rate * *p.steps.add(at(t));
            }
            *logs.add(t) = log;
        }
        load_keys::<S>(k, stride, rows, n, keys);
        let columns = n.next_multiple_of(S::N);
        let dots = Product { n, k: rows, cols: columns, lda: stride, ldb: CHUNK, ldc: CHUNK, add: false };
        S::product(dots, q, keys, weights);
        if is_delta {
            S::product(dots, k, keys, system);
        }
        for t in 0..n {
            let (row, other, log) = (weights.add(t * CHUNK), system.add(t * CHUNK), *logs.add(t));
            let mut decays = [0f32; CHUNK];
            for s in (0..t + 1).step_by(S::N) {
                let decay = exp::<S>(S::sub(S::splat(log), S::load(logs.add(s))));
                S::store(decays.as_mut_ptr().add(s), decay);
            }
            let beta = if is_delta { *p.beta.add(at(t)) } else { 0.0 };
            for (s, decay) in decays.iter().enumerate().take(columns) {
                *row.add(s) = if s <= t { *row.add(s) * decay * p.scale } else { 0.0 };
                if is_delta {
                    *other.add(s) = if s < t { *other.add(s) * -beta * decay } else { 0.0 };
                }
            }
        }

        // Contribution of the state before the chunk, then that of the chunk.
        let with_state = Product { n, k: rows, cols: wide, lda: stride, ldb: wide, ldc: wide, add: false };
        S::product(with_state, q, s, o);
        if is_delta {
            S::product(with_state, k, s, u);
        }
        for t in 0..n {
            let (v, u, o) = (p.v.add(at(t) * cols), u.add(t * wide), o.add(t * wide));
            let decay = (*logs.add(t)).exp();
            scale_row::<S>(o, wide, decay * p.scale);
            if is_delta {
                let beta = *p.beta.add(at(t));
                for c in 0..cols {
                    *u.add(c) = beta * (*v.add(c) - decay * *u.add(c));
                }
            } else {
                let step = *p.steps.add(at(t));
                for c in 0..cols {
                    *u.add(c) = step * *v.add(c);
                }
                for c in cols..wide {
                    *u.add(c) = 0.0;
                }
            }
        }
        if is_delta {
            solve::<S>(n, wide, system, u);
        }
        let own = Product { n, k: n, cols: wide, lda: CHUNK, ldb: wide, ldc: wide, add: true };
        S::product(own, weights, u, o);
        let skip = if p.skip.is_null() { 0.0 } else { *p.skip.add(head) };
        for t in 0..n {
            let (v, out, o) = (p.v.add(at(t) * cols), p.out.add(at(t) * cols), o.add(t * wide));
            for c in 0..cols {
                *out.add(c) = if p.skip.is_null() { *o.add(c) } else { skip * *v.add(c) + *o.add(c) };
            }
        }

        // State after the chunk.
        let last = *logs.add(n - 1);
        for t in 0..n {
            scale_row::<S>(u.add(t * wide), wide, (last - *logs.add(t)).exp());
        }
        scale_row::<S>(s, rows * wide, last.exp());
        let into = Product { n: rows, k: n, cols: wide, lda: CHUNK, ldb: wide, ldc: wide, add: true };
        S::product(into, keys, u, s);
    }
}

/// Computes `U = (1 - T)^-1 U` in place, with T strictly lower triangular.
///
/// # Safety
/// T is `(n, CHUNK)`, U `(n, wide)`; the instruction set is available.
#[inline(always)]
unsafe fn solve<S: Loops>(n: usize, wide: usize, system: *const f32, u: *mut f32) {
    // SAFETY: the caller guarantees the shapes and the instruction set. A product reads rows before
    // `block` and writes the rows of the block.
    unsafe {
        for block in (0..n).step_by(SOLVED) {
            let len = SOLVED.min(n - block);
            let before =
                Product { n: len, k: block, cols: wide, lda: CHUNK, ldb: wide, ldc: wide, add: true };
            S::product(before, system.add(block * CHUNK), u, u.add(block * wide));
            for t in block + 1..block + len {
                let row = Product { n: 1, k: t - block, ..before };
                S::product(row, system.add(t * CHUNK + block), u.add(block * wide), u.add(t * wide));
            }
        }
    }
}
