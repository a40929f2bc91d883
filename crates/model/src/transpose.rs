//! Matrices of unblocked types, which are transposed at load.

use weights::{BlockType, Bytes, Tensor};

use crate::error::{Error, Result};

/// Bytes of a value of a type without blocks; `None` for block types.
pub(crate) fn value_bytes(block: BlockType) -> Option<usize> {
    let types = [(BlockType::F32, 4), (BlockType::F16, 2), (BlockType::BF16, 2)];
    types.into_iter().find(|(plain, _)| *plain == block).map(|(_, bytes)| bytes)
}

/// Columns `first`, `first + step`, … of rows `above..above + n_in` of an unblocked tensor,
/// transposed to `(n_out, n_in)`.
pub(crate) fn transposed_bytes(
    tensor: &Tensor,
    above: usize,
    (first, step): (usize, usize),
    [n_out, n_in]: [usize; 2],
    decodes: bool,
) -> Result<Bytes> {
    let Some(size) = value_bytes(tensor.block) else {
        return Err(Error::BadTensor {
            name: tensor.name.clone(),
            found: format!("rows of {}", tensor.block),
            expected: "F32, F16 or BF16, because it is transposed at load".to_owned(),
        });
    };
    if !decodes {
        return tensor.data.slice(0..n_out * n_in * size).ok_or_else(|| short(tensor));
    }
    let n_cols = tensor.n_cols();
    let mut transposed = vec![0; n_out * n_in * size];
    for (c, row) in transposed.chunks_exact_mut(n_in * size).enumerate() {
        for (r, value) in row.chunks_exact_mut(size).enumerate() {
            let at = ((above + r) * n_cols + first + c * step) * size;
            value.copy_from_slice(tensor.data.get(at..at + size).ok_or_else(|| short(tensor))?);
        }
    }
    Ok(Bytes::from_slice(&transposed))
}

/// An error that a tensor has too few or too many bytes for its shape.
pub(crate) fn short(tensor: &Tensor) -> Error {
    let needed = tensor.n_rows() * tensor.row_bytes();
    Error::BadTensor {
        name: tensor.name.clone(),
        found: format!(
            "{} bytes in rows of {} values of type {}",
            tensor.data.len(),
            tensor.n_cols(),
            tensor.block
        ),
        expected: format!("{needed} bytes, in rows of whole blocks of {}", tensor.block.block_len()),
    }
}
