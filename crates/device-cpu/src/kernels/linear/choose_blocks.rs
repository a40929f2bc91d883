//! Kernels of the block types: interleaved weights where the instruction set has vectors, otherwise
//! the loops of `portable`.

use super::activation::ActivationKind;
use super::interleaved::Interleaved;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::interleaved::{decode, tile_bytes};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::order::Order;
use super::{GemmTile, Gemv, LinearKernel, portable, scalar};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::{Interleave, MakeTile};
use crate::isa::{Isa, Vectors};

/// Interleaving of a type, with the function that makes a tile.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn tiles<F: Interleaved, O: Order>(tile: MakeTile) -> Interleave {
    Interleave { tile_bytes: tile_bytes::<F>, tile, decode: decode::<F, O> }
}

/// Kernels on Arm with the products of `M`.
#[cfg(target_arch = "aarch64")]
fn on_arm<F: Interleaved, M: super::neon::MultiplyNeon>(
    as_stored: impl Fn(Gemv, GemmTile) -> LinearKernel,
) -> LinearKernel {
    use super::interleaved_neon::{PASS, gemm_tile, gemv, scratch_bytes};
    LinearKernel {
        gemm_pass: PASS,
        gemm_scratch_bytes: scratch_bytes,
        interleave: Some(const { &tiles::<F, M::Order>(super::make_tile::interleave::<F, M::Order>) }),
        ..as_stored(gemv::<F, M>, gemm_tile::<F, M>)
    }
}

/// Kernels of a type: interleaved weights if there are vectors, otherwise the loops of `portable`.
pub(super) fn kernel<F: Interleaved>(isa: Isa) -> LinearKernel {
    let as_stored = |gemv: Gemv, gemm_tile: GemmTile| LinearKernel {
        name: F::NAME,
        activation: ActivationKind::Q8,
        gemv,
        gemm_tile,
        gemm_pass: usize::MAX,
        few_rows: None,
        gemm_scratch_bytes: portable::gemm_scratch_bytes::<F>,
        gemm_min_rows: 2,
        gemm_adds_as_gemv: true,
        interleave: None,
    };
    match isa.vectors() {
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => {
            use super::interleaved_avx2::interleave;
            use super::interleaved_avx512::{PASS, gemm_tile, gemv, scratch_bytes};
            use super::order::Fours;
            let vnni = LinearKernel {
                gemm_pass: PASS,
                gemm_scratch_bytes: scratch_bytes,
                interleave: Some(const { &tiles::<F, Fours>(interleave::<F>) }),
                ..as_stored(gemv::<F, false>, gemm_tile::<F>)
            };
            if isa != Isa::Amx {
                return vnni;
            }
            // Processors with AMX are Intel's, which read a single row's weights faster with
            // prefetches.
            let vnni = LinearKernel { gemv: gemv::<F, true>, ..vnni };
            // Groups of 16 need twice the products and sums for the same columns, and are slower by
            // AMX than by VNNI.
            if F::GROUP == 16 {
                return vnni;
            }
            use super::interleaved_amx as amx;
            LinearKernel { gemm_tile: amx::gemm_tile::<F>, gemm_scratch_bytes: amx::scratch_bytes, ..vnni }
        }
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => {
            use super::interleaved_avx2::{PASS, gemm_tile, gemv, interleave, scratch_bytes};
            use super::order::Fours;
            LinearKernel {
                gemm_pass: PASS,
                gemm_scratch_bytes: scratch_bytes,
                interleave: Some(const { &tiles::<F, Fours>(interleave::<F>) }),
                ..as_stored(gemv::<F>, gemm_tile::<F>)
            }
        }
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon if isa == Isa::I8mm => on_arm::<F, super::interleaved_i8mm::Smmla>(as_stored),
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon if isa == Isa::Dotprod => on_arm::<F, super::neon::Sdot>(as_stored),
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => on_arm::<F, super::neon::Mull>(as_stored),
        Vectors::Portable => {
            as_stored(portable::gemv::<F, scalar::Scalar>, portable::gemm_tile::<F, scalar::Scalar>)
        }
    }
}
