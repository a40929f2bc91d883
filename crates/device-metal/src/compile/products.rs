//! Parameters that all products with weights share, and the constants of a type of weights.

use super::draft::Draft;
use crate::gpu::{Constant, MetalGpu};
use crate::kernels::{self, linear};
use device::{Result, Weight};
use weights::BlockType;

/// The parameters that all products share (`kernels/linear/parameters.h`).
pub(super) const SHARED: std::ops::Range<u8> = 1..20;

/// Index of the step.
pub(super) const STEP_AT: u8 = 20;

/// Index of x among the shared parameters.
pub(super) const X_AT: u8 = 1;

/// Index of the norm's weight.
pub(super) const NORM_AT: u8 = 2;

/// Index of the codes of weight 0; those of weights 1 and 2 follow.
pub(super) const CODES_AT: u8 = 3;

/// Index of the scales of weight 0.
pub(super) const SCALES_AT: u8 = 6;

/// Index of the offsets of weight 0.
pub(super) const OFFSETS_AT: u8 = 9;

/// Index of the bias of weight 0.
pub(super) const BIASES_AT: u8 = 12;

/// Index of the residual, or of up.
pub(super) const OTHER_AT: u8 = 15;

/// Index of the output of weight 0.
pub(super) const OUTPUTS_AT: u8 = 16;

/// Index of the largest products of each threadgroup.
pub(super) const PARTIALS_AT: u8 = 19;

impl<G: MetalGpu> Draft<'_, G> {
    /// Constants that say how the weights of a dispatch are stored: how the first one is, whose
    /// type all have. Kernels of other types mention them too.
    pub(super) fn type_constants(&self, weights: &[&Weight]) -> Result<Vec<(u16, Constant)>> {
        let (mut scalar, mut wide, mut affine_of) = (false, false, (32, 0, false));
        if let Some(front) = weights.first() {
            let whole_rows = matches!(front.block, BlockType::I8_ROWS | BlockType::I16_ROWS);
            scalar = (whole_rows || front.block.is_float()) && !front.n_cols().is_multiple_of(4);
            if let BlockType::Affine(affine) = front.block {
                affine_of = (affine.group(), kernels::scale_kind(affine.scale()), affine.is_symmetric());
                wide =
                    matches!(affine.bits(), 4 | 8) && self.start_at_multiples(weights, 2 * affine.bits())?;
            }
        }
        let (group, scale, symmetric) = affine_of;
        Ok(vec![
            (linear::SCALAR, Constant::Bool(scalar)),
            (linear::AFFINE_GROUP, Constant::UInt(group as u32)),
            (linear::AFFINE_SCALE, Constant::UInt(scale)),
            (linear::AFFINE_SYMMETRIC, Constant::Bool(symmetric)),
            (linear::AFFINE_WIDE, Constant::Bool(wide)),
        ])
    }

    /// Returns true if the codes of all weights start at multiples of `bytes`.
    fn start_at_multiples(&self, weights: &[&Weight], bytes: usize) -> Result<bool> {
        let codes = weights.iter().flat_map(|w| w.parts.iter().map(|part| &part.data).chain([&w.data]));
        for codes in codes.filter(|codes| !codes.is_empty()) {
            if !self.compiler.bytes_of(codes)?.offset.is_multiple_of(bytes as u64) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
