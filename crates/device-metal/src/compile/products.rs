//! Parameters that all products with weights share, and the constants of a type of weights.

use crate::gpu::Constant;
use crate::kernels::{self, linear};
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

/// Constants that say how a type of weights is stored. Kernels of other types mention them too.
pub(super) fn type_constants(block: BlockType, n_in: usize) -> Vec<(u16, Constant)> {
    let whole_rows = matches!(block, BlockType::I8_ROWS | BlockType::I16_ROWS);
    let scalar = (whole_rows || block.is_float()) && !n_in.is_multiple_of(4);
    let (group, scale, symmetric) = if let BlockType::Affine(affine) = block {
        (affine.group(), kernels::scale_kind(affine.scale()), affine.is_symmetric())
    } else {
        (32, 0, false)
    };
    vec![
        (linear::SCALAR, Constant::Bool(scalar)),
        (linear::AFFINE_GROUP, Constant::UInt(group as u32)),
        (linear::AFFINE_SCALE, Constant::UInt(scale)),
        (linear::AFFINE_SYMMETRIC, Constant::Bool(symmetric)),
    ]
}
