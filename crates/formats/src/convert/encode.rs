//! One tensor's bytes in its new type.

use rayon::prelude::*;

use super::{Error, Result};
use weights::codec::{self, affine, repack};
use weights::{BlockType, PlaneSlices, Tensor};

/// Values that are decoded at a time, about: they stay in a core's cache.
const CHUNK: usize = 1 << 16;

/// Packed values, and what stands beside them; empty for what a type does not have.
pub(super) struct Parts {
    pub data: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

impl Parts {
    fn zeros(tensor: &Tensor, block: BlockType) -> Parts {
        let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
        Parts {
            data: vec![0; n_rows * block.row_bytes(n_cols)],
            scales: vec![0; n_rows * block.row_scale_bytes(n_cols)],
            biases: vec![0; n_rows * block.row_bias_bytes(n_cols)],
        }
    }

    pub fn planes(&self) -> PlaneSlices<'_> {
        PlaneSlices { scales: &self.scales, biases: &self.biases }
    }
}

/// Move integers and scales. `None` if `block` is not the tensor's twin.
pub(super) fn repack(tensor: &Tensor, block: BlockType) -> Option<Parts> {
    let mut parts = Parts::zeros(tensor, block);
    let planes = tensor.planes.as_slices();
    let moved = match tensor.block {
        BlockType::Affine(affine) if repack::block_twin(affine) == Some(block) => {
            repack::from_affine(affine, &tensor.data, planes.scales, planes.biases, &mut parts.data)
        }
        from if repack::affine_twin(from).map(BlockType::Affine) == Some(block) => {
            repack::to_affine(from, &tensor.data, &mut parts.data, &mut parts.scales, &mut parts.biases)
                .map(BlockType::Affine)
        }
        _ => None,
    };
    moved.is_some().then_some(parts)
}

/// Chunks that each thread encodes between two calls of `progress`: milliseconds each.
const CHUNKS_A_THREAD: usize = 4;

/// Decode, and encode as `block`, rows in parallel. The result does not depend on how many threads there are. `progress` hears of
/// bytes that were made.
///
/// # Errors
/// A value that is not finite, or that the type cannot hold; scales that are not there.
pub(super) fn encode(tensor: &Tensor, block: BlockType, progress: &mut dyn FnMut(u64)) -> Result<Parts> {
    let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
    if !tensor.planes.fit(tensor.block, n_rows, n_cols) {
        let of_row = tensor.block.row_scale_bytes(n_cols) + tensor.block.row_bias_bytes(n_cols);
        return Err(Error::Planes {
            tensor: tensor.name.clone(),
            block: tensor.block,
            found: tensor.planes.n_bytes(),
            expected: n_rows * of_row,
        });
    }
    let mut parts = Parts::zeros(tensor, block);
    let chunk_rows = (CHUNK / n_cols).max(1);
    let row = [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)];

    let mut chunks = Vec::with_capacity(n_rows.div_ceil(chunk_rows));
    let (mut data, mut scales, mut biases) =
        (&mut parts.data[..], &mut parts.scales[..], &mut parts.biases[..]);
    for first in (0..n_rows).step_by(chunk_rows) {
        let n = chunk_rows.min(n_rows - first);
        let out =
            [split(&mut data, n * row[0]), split(&mut scales, n * row[1]), split(&mut biases, n * row[2])];
        chunks.push((first..first + n, out));
    }
    for group in chunks.chunks_mut(CHUNKS_A_THREAD * rayon::current_num_threads()) {
        let n_rows: usize = group.iter().map(|(rows, _)| rows.len()).sum();
        group.par_iter_mut().try_for_each_init(Vec::new, |values: &mut Vec<f32>, (rows, out)| {
            values.resize(rows.len() * n_cols, 0.0);
            // The readers promise that a tensor has all its rows.
            let Some((data, planes)) = tensor.rows(rows.clone()) else { return Ok(()) };
            codec::dequantize_rows(tensor.block, n_cols, &data, planes.as_slices(), values);
            write(block, values, out).map_err(|value| Error::Range {
                tensor: tensor.name.clone(),
                value,
                block,
            })
        })?;
        progress((n_rows * row.iter().sum::<usize>()) as u64);
    }
    Ok(parts)
}

fn split<'a>(rest: &mut &'a mut [u8], n: usize) -> &'a mut [u8] {
    let (head, tail) = std::mem::take(rest).split_at_mut(n);
    *rest = tail;
    head
}

/// Encode whole rows; the first value that the type cannot hold.
fn write(
    block: BlockType,
    values: &[f32],
    [data, scales, biases]: &mut [&mut [u8]; 3],
) -> std::result::Result<(), f32> {
    // F32 takes what there is: it is a copy, not a rounding.
    let largest = match block {
        BlockType::F32 => f32::INFINITY,
        // What rounds to infinity: half a step above the largest number.
        BlockType::F16 => 65_520.0_f32.next_down(),
        BlockType::BF16 => f32::from_bits(0x7f7f_7fff),
        _ => f32::MAX,
    };
    let outside = |v: &&f32| block != BlockType::F32 && (v.is_nan() || v.abs() > largest);
    if let Some(value) = values.iter().find(outside) {
        return Err(*value);
    }
    match block {
        BlockType::Affine(affine) => affine::quantize(affine, values, data, scales, biases),
        _ => codec::try_quantize_row(block, values, data).map_err(|_| f32::NAN)?,
    }
    Ok(())
}
