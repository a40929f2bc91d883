//! `general.file_type` of a GGUF file: llama.cpp's number for the type of most tensors, which
//! programs only display.

use super::{Plan, Wanted};
use weights::Declaration;
use weights::{BlockType, Metadata};

pub(super) const FILE_TYPE: &str = "general.file_type";

/// The number to write: that of the requested type, or else of the type with the most values.
/// `None` if the source's number stays right, or if there is no number.
pub(super) fn file_type(
    wanted: Wanted,
    metadata: &Metadata,
    plan: &Plan,
    declared: &[Declaration<'_>],
) -> Option<u32> {
    match wanted {
        Wanted::Type { block, .. } => of_block(block),
        Wanted::Keep if metadata.get(FILE_TYPE).is_some() => None,
        Wanted::Keep => {
            let mut sums: Vec<(BlockType, usize)> = Vec::new();
            for planned in &plan.tensors {
                let n_values = declared.get(planned.tensor).map_or(0, |t| t.n_rows() * t.n_cols());
                match sums.iter_mut().find(|(block, _)| *block == planned.block) {
                    Some((_, sum)) => *sum += n_values,
                    None => sums.push((planned.block, n_values)),
                }
            }
            of_block(sums.into_iter().max_by_key(|(_, sum)| *sum)?.0)
        }
    }
}

/// The number of a type; of several mixtures, the medium one, which is the default.
fn of_block(block: BlockType) -> Option<u32> {
    use BlockType::*;
    Some(match block {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q8_0 => 7,
        Q5_0 => 8,
        Q5_1 => 9,
        Q2_K => 10,
        Q3_K => 12,
        Q4_K => 15,
        Q5_K => 17,
        Q6_K => 18,
        IQ2_XXS => 19,
        IQ2_XS => 20,
        IQ3_XXS => 23,
        IQ1_S => 24,
        IQ4_NL => 25,
        IQ3_S => 26,
        IQ2_S => 28,
        IQ4_XS => 30,
        IQ1_M => 31,
        BF16 => 32,
        TQ1_0 => 36,
        TQ2_0 => 37,
        MXFP4 => 38,
        NVFP4 => 39,
        Q1_0 => 40,
        Affine(_) | I8_ROWS | I16_ROWS => return None,
    })
}
