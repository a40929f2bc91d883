//! Encoding of one tensor in its new type.

use rayon::prelude::*;

use super::{Error, Result};
use weights::codec::{self, affine, repack};
use weights::{BlockType, PlaneSlices, Tensor};

/// Values decoded at a time, approximately: they stay in a core's cache.
const CHUNK: usize = 1 << 16;

/// Packed values, scales and offsets; parts that a type lacks are empty.
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

/// Moves integers and scales. `None` if `block` does not store the same ones.
pub(super) fn repack(tensor: &Tensor, block: BlockType) -> Option<Parts> {
    let mut parts = Parts::zeros(tensor, block);
    let planes = tensor.planes.as_slices();
    let from = tensor.block;
    if let BlockType::Affine(affine) = from
        && repack::block_twin(affine) == Some(block)
    {
        repack::from_affine(affine, &tensor.data, planes.scales, planes.biases, &mut parts.data)?;
    } else if repack::affine_twin(from).map(BlockType::Affine) == Some(block) {
        repack::to_affine(from, &tensor.data, &mut parts.data, &mut parts.scales, &mut parts.biases)?;
    } else {
        return None;
    }
    Some(parts)
}

/// Chunks that each thread encodes between two calls of `progress`; a chunk takes milliseconds.
const CHUNKS_A_THREAD: usize = 4;

/// Decodes the tensor and encodes it as `block`, with rows in parallel. The result does not depend
/// on the number of threads. `progress` is called with the number of bytes made.
///
/// # Errors
/// A value is not finite or does not fit the type, or scales are missing.
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
            // Readers guarantee that a tensor has all its rows.
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

/// Encodes whole rows. Returns the first value that does not fit the type.
fn write(
    block: BlockType,
    values: &[f32],
    [data, scales, biases]: &mut [&mut [u8]; 3],
) -> std::result::Result<(), f32> {
    // F32 stores every value exactly.
    let bounds = [
        (BlockType::F32, f32::INFINITY),
        // Larger values round to infinity: the bound is half a step above the largest number.
        (BlockType::F16, 65_520.0_f32.next_down()),
        (BlockType::BF16, f32::from_bits(0x7f7f_7fff)),
    ];
    let largest = bounds.into_iter().find(|(of, _)| *of == block).map_or(f32::MAX, |(_, bound)| bound);
    let outside = |v: &&f32| block != BlockType::F32 && (v.is_nan() || v.abs() > largest);
    if let Some(value) = values.iter().find(outside) {
        return Err(*value);
    }
    if let BlockType::Affine(affine) = block {
        affine::quantize(affine, values, data, scales, biases);
        return Ok(());
    }
    codec::try_quantize_row(block, values, data).map_err(|_| f32::NAN)
}
