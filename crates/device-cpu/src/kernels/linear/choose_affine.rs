//! Kernels of the types whose scales are stored apart from the values.

use super::activation::ActivationKind;
use super::affine::{self, Codes};
use super::{GemmTile, Gemv, LinearKernel, scalar};
use crate::isa::{Isa, Vectors};

/// Kernels of codes of one width.
pub(super) fn kernel<F: Codes>(isa: Isa) -> LinearKernel {
    let portable = |gemv: Gemv, gemm_tile: GemmTile| LinearKernel {
        name: F::NAME,
        activation: ActivationKind::Q8,
        gemv,
        gemm_tile,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes: affine::gemm_scratch_bytes,
        gemm_adds_as_gemv: false,
        interleave: None,
        gemm_min_rows: 2,
    };
    match isa.vectors() {
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => {
            use super::affine_neon::{gemm_tile, gemv, gemv_by_sdot};
            use super::{interleaved_i8mm::Smmla, interleaved_neon, neon};
            let kernel = if isa == Isa::I8mm {
                portable(gemv_by_sdot::<F>, gemm_tile::<F, Smmla>)
            } else if isa == Isa::Dotprod {
                portable(gemv_by_sdot::<F>, gemm_tile::<F, neon::Sdot>)
            } else {
                portable(gemv::<F>, gemm_tile::<F, neon::Mull>)
            };
            LinearKernel {
                gemm_pass: interleaved_neon::PASS,
                gemm_scratch_bytes: interleaved_neon::scratch_bytes,
                ..kernel
            }
        }
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => LinearKernel {
            gemm_scratch_bytes: super::panel_avx2::scratch_bytes,
            ..portable(super::affine_avx2::gemv::<F>, super::affine_avx2::gemm_tile::<F>)
        },
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => LinearKernel {
            gemm_scratch_bytes: super::affine_avx512::scratch_bytes,
            gemm_min_rows: 3,
            ..portable(super::affine_avx512::gemv::<F>, super::affine_avx512::gemm_tile::<F>)
        },
        Vectors::Portable => {
            portable(affine::gemv::<F, scalar::Scalar>, affine::gemm_tile::<F, scalar::Scalar>)
        }
    }
}
