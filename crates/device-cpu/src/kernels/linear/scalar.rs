//! The inner product in plain Rust: the reference, and the fallback for any processor.

use super::activation::Q8Row;
use super::portable::{Dot, Groups};

/// Products without explicit vectors.
pub(super) struct Scalar;

impl Dot for Scalar {
    /// Sums of the products of codes, and of the products of offsets.
    type Sum = (f32, f32);

    #[inline(always)]
    unsafe fn zero() -> Self::Sum {
        (0.0, 0.0)
    }

    #[inline(always)]
    unsafe fn add<F: Groups>(
        sum: Self::Sum,
        codes: &[i8],
        scale: &[f32],
        offset: &[f32],
        x: Q8Row,
    ) -> Self::Sum {
        let (mut dot, mut offsets) = sum;
        // SAFETY: the caller guarantees that `x` has the columns of `codes` and their groups.
        unsafe {
            let q = std::slice::from_raw_parts(x.q, codes.len());
            for (g, (codes, q)) in codes.chunks_exact(F::GROUP).zip(q.chunks_exact(F::GROUP)).enumerate() {
                let products: i32 = codes.iter().zip(q).map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
                dot += scale[g] * *x.scale.add(g * F::GROUP / 32) * products as f32;
                if F::HAS_OFFSET {
                    let sums = if F::GROUP == 32 { x.sum32 } else { x.sum16 };
                    offsets += offset[g] * *sums.add(g);
                }
            }
        }
        (dot, offsets)
    }

    #[inline(always)]
    unsafe fn finish(sum: Self::Sum) -> f32 {
        sum.0 + sum.1
    }
}
