//! Kernels of the types that are plain numbers.

use super::LinearKernel;
use super::activation::ActivationKind;
use super::float::{self, FloatFormat};
use crate::isa::{Isa, Vectors};

/// Kernels of a type of plain numbers.
pub(super) fn kernel<F: FloatFormat>(isa: Isa) -> LinearKernel {
    let scalar = LinearKernel {
        name: F::NAME,
        activation: ActivationKind::F32,
        gemv: float::gemv::<F>,
        gemm_tile: float::gemm_tile::<F>,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes: float::gemm_scratch_bytes,
        gemm_adds_as_gemv: false,
        interleave: None,
        gemm_min_rows: 2,
    };
    match isa.vectors() {
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => LinearKernel {
            gemv: super::float_avx2::gemv::<F>,
            gemm_tile: super::float_avx2::gemm_tile::<F>,
            gemm_pass: super::float_avx2::PASS,
            few_rows: Some(super::float_avx2::few_rows::<F>),
            gemm_scratch_bytes: super::float_avx2::scratch_bytes,
            gemm_min_rows: 13,
            ..scalar
        },
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => LinearKernel {
            gemv: super::float_avx512::gemv::<F>,
            gemm_tile: super::float_avx512::gemm_tile::<F>,
            gemm_pass: super::float_avx512::PASS,
            gemm_scratch_bytes: super::float_avx512::scratch_bytes,
            gemm_min_rows: F::GEMM_MIN_ROWS,
            ..scalar
        },
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => LinearKernel {
            gemv: super::float_neon::gemv::<F>,
            gemm_tile: super::float_neon::gemm_tile::<F>,
            gemm_pass: super::float_neon::PASS,
            few_rows: Some(super::float_neon::few_rows::<F>),
            gemm_scratch_bytes: super::float_neon::scratch_bytes,
            gemm_min_rows: 13,
            ..scalar
        },
        Vectors::Portable => scalar,
    }
}
