//! Types without a kernel: decoded by their codec, multiplied with activations in f32.
//!
//! These are GGUF's types of 1 to 3 bits, rows of 16-bit integers, and rows of bytes whose length
//! is not a multiple of 32. Values of GGUF's types are points of a lattice and not affine maps of
//! codes. This kernel makes every file run. It is an order of magnitude slower than the others, and
//! the same on every instruction set.
//!
//! Order of accumulation: [`PART`] columns at a time as in `float`, the parts in order. `gemm_tile`
//! has the same bits.

use super::activation::{ActRow, ActRows, ActivationKind};
use super::float::dot;
use super::{LinearKernel, Part, TILE_ROWS, WeightRows};

/// Columns that are decoded at a time, whole blocks of every type.
const PART: usize = 512;

/// # Safety
/// As [`super::Gemv`].
unsafe fn gemv(w: WeightRows, n_cols: usize, r0: usize, r1: usize, x: ActRow, out: *mut f32) {
    let mut values = [0f32; PART];
    // SAFETY: the caller guarantees rows `r0..r1` of `w`, `n_cols` f32 activations at `x`, and room
    // at `out`; a part begins and ends with whole blocks.
    unsafe {
        let x = std::slice::from_raw_parts(x.0.cast::<f32>(), n_cols);
        for r in r0..r1 {
            let mut sum = 0.0;
            for (part, x) in x.chunks(PART).enumerate() {
                let (first, values) = (part * PART, &mut values[..x.len()]);
                w.decode(r, first..first + x.len(), values);
                sum += dot(values.iter().copied(), x);
            }
            out.add(r - r0).write(sum);
        }
    }
}

/// # Safety
/// As [`super::GemmTile`].
unsafe fn gemm_tile(w: WeightRows, n_cols: usize, part: Part, xs: ActRows, _scratch: *mut u8, out: *mut f32) {
    let mut values = [0f32; PART];
    let Part { r0, n_rows, .. } = part;
    // SAFETY: the caller guarantees `n_rows` rows of `w` from `r0` on, `xs.n` activation rows of
    // `n_cols`, and `xs.n * TILE_ROWS` values at `out`.
    unsafe {
        for r in 0..n_rows {
            for first in (0..n_cols).step_by(PART) {
                let n = PART.min(n_cols - first);
                let values = &mut values[..n];
                w.decode(r0 + r, first..first + n, values);
                for i in 0..xs.n {
                    let x = std::slice::from_raw_parts(xs.row(i).0.cast::<f32>().add(first), n);
                    let sum = dot(values.iter().copied(), x);
                    let out = out.add(i * TILE_ROWS + r);
                    out.write(if first == 0 { sum } else { out.read() + sum });
                }
            }
        }
    }
}

/// Kernels of all these types.
pub(super) fn kernel() -> LinearKernel {
    LinearKernel {
        name: "linear_decoded",
        activation: ActivationKind::F32,
        gemv,
        gemm_tile,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes: |_| 0,
        gemm_adds_as_gemv: false,
        interleave: None,
        gemm_min_rows: 2,
    }
}
