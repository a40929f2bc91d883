//! Executes recipes: gathers, reorders, decodes or repacks rows. Rows keep their type, so this
//! works for any block type, with scales inside or apart.

use std::ops::Range;
use weights::{BlockType, Bytes, Planes, Tensor, codec};

use super::recipe::TensorRecipe;
use super::recurrent::Change;
use crate::error::{Error, Result};
use crate::transpose::transposed_bytes;

/// Makes the tensor, as a view of the source if the bytes are equal.
pub(super) fn make(recipe: &TensorRecipe) -> Result<Tensor> {
    if recipe.transposed {
        let pieces = recipe.pieces.iter().map(|(tensor, rows)| Ok((transposed(tensor)?, rows.clone())));
        let pieces = pieces.collect::<Result<_>>()?;
        return make(&TensorRecipe { pieces, transposed: false, ..recipe.clone() });
    }
    let made = match (&recipe.pieces[..], &recipe.order) {
        ([(tensor, rows)], None) if rows.len() == all_rows(tensor) => {
            Tensor { name: recipe.name.clone(), shape: recipe.shape.clone(), ..tensor.clone() }
        }
        _ => gather(recipe)?,
    };
    check(&made)?;
    let made = match (recipe.plain, made.block) {
        (Some(offset), block) if block != BlockType::F32 || offset != 0.0 => plain(&made, offset),
        (None, BlockType::Affine(_)) if recipe.change == Change::None => repacked(made),
        _ => made,
    };
    Ok(recipe.change.of(made))
}

/// Transposes matrices whose shape `(…, n_out, n_in)` is already that of the result.
fn transposed(tensor: &Tensor) -> Result<Tensor> {
    let [.., n_out, n_in] = tensor.shape[..] else { return Ok(tensor.clone()) };
    let source = Tensor { shape: vec![tensor.n_rows() / n_out.max(1) * n_in, n_out], ..tensor.clone() };
    let matrix = |i: usize| transposed_bytes(&source, i * n_in, (0, 1), [n_out, n_in], true);
    let matrices = (0..tensor.n_rows() / n_out.max(1)).map(matrix).collect::<Result<Vec<Bytes>>>()?;
    let data = Bytes::from_parts(&matrices.iter().map(|matrix| &matrix[..]).collect::<Vec<_>>());
    Ok(Tensor { data, ..tensor.clone() })
}

fn all_rows(tensor: &Tensor) -> usize {
    if tensor.shape.len() == 1 { tensor.n_cols() } else { tensor.n_rows() }
}

/// Values in a row of the recipe; a row of a vector is one element.
fn row_len(tensor: &Tensor) -> usize {
    if tensor.shape.len() == 1 { 1 } else { tensor.n_cols() }
}

/// Copies the rows in their order.
fn gather(recipe: &TensorRecipe) -> Result<Tensor> {
    let bad = |found: String, expected: &str| Error::Export {
        what: format!("tensor {}", recipe.name),
        found,
        expected: expected.to_owned(),
    };
    let Some((first, _)) = recipe.pieces.first() else {
        return Err(bad("no rows".to_owned(), "at least one"));
    };
    let (block, n_cols) = (first.block, row_len(first));
    if !n_cols.is_multiple_of(block.block_len()) {
        return Err(bad(format!("elements of {block}"), "a type without blocks"));
    }
    let short = || bad("a number of rows that differs from the shape".to_owned(), "all of them");
    let data = rows_of(recipe, block.row_bytes(n_cols), |t| Some(t.data.clone())).ok_or_else(short)?;
    let plane = |row: usize, of: fn(&Tensor) -> Option<Bytes>| match row {
        0 => Ok(None),
        row => rows_of(recipe, row, of).map(Some).ok_or_else(short),
    };
    let scales = plane(block.row_scale_bytes(n_cols), |t| t.planes.scales.clone())?;
    let biases = plane(block.row_bias_bytes(n_cols), |t| t.planes.biases.clone())?;
    Ok(Tensor {
        name: recipe.name.clone(),
        shape: recipe.shape.clone(),
        block,
        data,
        planes: Planes { scales, biases },
    })
}

/// The recipe's rows of `row` bytes each, in one copy. `of` returns the bytes of a piece. `None` if
/// a piece is too short, or if the number of rows differs from the order's.
fn rows_of(recipe: &TensorRecipe, row: usize, of: impl Fn(&Tensor) -> Option<Bytes>) -> Option<Bytes> {
    let slice = |(tensor, rows): &(Tensor, Range<usize>)| of(tensor)?.slice(rows.start * row..rows.end * row);
    let pieces: Vec<Bytes> = recipe.pieces.iter().map(slice).collect::<Option<_>>()?;
    let Some(order) = &recipe.order else {
        return Some(Bytes::from_parts(&pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>()));
    };
    let rows: Vec<&[u8]> = pieces.iter().flat_map(|piece| piece.chunks_exact(row)).collect();
    let ordered: Vec<&[u8]> = order.iter().map(|&from| rows.get(from).copied()).collect::<Option<_>>()?;
    (ordered.len() == rows.len()).then(|| Bytes::from_parts(&ordered))
}

/// Checks that the bytes match the shape.
fn check(tensor: &Tensor) -> Result<()> {
    let fits = tensor.n_cols().is_multiple_of(tensor.block.block_len())
        && tensor.data.len() == tensor.n_rows() * tensor.row_bytes()
        && tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols());
    if fits {
        return Ok(());
    }
    Err(Error::BadTensor {
        name: tensor.name.clone(),
        found: format!("{} bytes of {}", tensor.n_bytes(), tensor.block),
        expected: format!("those of the shape {:?}", tensor.shape),
    })
}

/// The tensor in F32, with `offset` added.
fn plain(tensor: &Tensor, offset: f32) -> Tensor {
    let bytes: Vec<u8> = tensor.to_f32().into_iter().flat_map(|v| (v + offset).to_le_bytes()).collect();
    Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        block: BlockType::F32,
        data: Bytes::from_slice(&bytes),
        planes: Planes::default(),
    }
}

/// The tensor in GGUF's block type with the same integers and scales, if there is one.
fn repacked(tensor: Tensor) -> Tensor {
    let BlockType::Affine(affine) = tensor.block else { return tensor };
    let Some(block) = codec::repack::block_twin(affine) else { return tensor };
    let mut data = vec![0; tensor.n_rows() * block.row_bytes(tensor.n_cols())];
    let planes = tensor.planes.as_slices();
    codec::repack::from_affine(affine, &tensor.data, planes.scales, planes.biases, &mut data);
    Tensor { block, data: Bytes::from_slice(&data), planes: Planes::default(), ..tensor }
}

#[cfg(test)]
mod tests {
    use weights::{Affine, ScaleType};

    use super::*;

    /// Four rows of 64 pseudorandom values of an affine type with groups of 32.
    fn affine(scale: ScaleType, symmetric: bool) -> Tensor {
        let affine = Affine::new(4, 32, scale, symmetric).unwrap();
        let block = BlockType::Affine(affine);
        let numbers: Vec<u8> = match scale {
            ScaleType::BF16 => {
                [0x3f00u16, 0x3f80, 0x4000, 0x4040].iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            _ => [0x3800u16, 0x3c00, 0x4000, 0x4200].iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        let plane = Bytes::from_slice(&[numbers.clone(), numbers].concat());
        let data: Vec<u8> = (0..128u32).map(|i| (i * 73 + 5) as u8).collect();
        Tensor {
            name: "source".to_owned(),
            shape: vec![4, 64],
            block,
            data: Bytes::from_slice(&data),
            planes: Planes { scales: Some(plane.clone()), biases: (!symmetric).then_some(plane) },
        }
    }

    fn reversed(tensor: &Tensor) -> TensorRecipe {
        TensorRecipe {
            name: "result".to_owned(),
            shape: tensor.shape.clone(),
            pieces: vec![(tensor.clone(), 0..4)],
            order: Some(vec![3, 2, 1, 0]),
            plain: None,
            transposed: false,
            change: Change::None,
        }
    }

    #[test]
    fn rows_move_with_their_scales() {
        for (scale, symmetric, block) in [
            (ScaleType::F16, true, Some(BlockType::Q4_0)),
            (ScaleType::F16, false, Some(BlockType::Q4_1)),
            (ScaleType::BF16, false, None),
        ] {
            let source = affine(scale, symmetric);
            let recipe = reversed(&source);
            let made = make(&recipe).unwrap();
            assert_eq!(made.block, block.unwrap_or(source.block));
            assert_eq!(made.block, recipe.block());
            let (before, after) = (source.to_f32(), made.to_f32());
            for r in 0..4 {
                assert_eq!(before[r * 64..(r + 1) * 64], after[(3 - r) * 64..(4 - r) * 64]);
            }
        }
    }

    #[test]
    fn plain_values_have_the_offset_added_and_vectors_their_elements_moved() {
        let source = affine(ScaleType::F16, true);
        let made = make(&TensorRecipe { order: None, plain: Some(1.0), ..reversed(&source) }).unwrap();
        let plus_one: Vec<f32> = source.to_f32().iter().map(|v| v + 1.0).collect();
        assert_eq!((made.block, made.to_f32()), (BlockType::F32, plus_one));
        let bytes: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let vector = Tensor {
            shape: vec![4],
            block: BlockType::F32,
            data: Bytes::from_slice(&bytes),
            planes: Planes::default(),
            ..source
        };
        let made = make(&TensorRecipe { plain: Some(0.0), ..reversed(&vector) }).unwrap();
        assert_eq!(made.to_f32(), [4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn bytes_that_do_not_fit_are_refused() {
        let whole = affine(ScaleType::F16, true);
        let short = Tensor { data: whole.data.slice(0..100).unwrap(), ..whole.clone() };
        assert!(make(&reversed(&short)).unwrap_err().to_string().contains("result: found a number of rows"));
        assert!(
            make(&TensorRecipe { order: None, ..reversed(&short) })
                .unwrap_err()
                .to_string()
                .contains("116 bytes")
        );
        let bare = Tensor { planes: Planes::default(), ..whole.clone() };
        assert!(make(&reversed(&bare)).is_err());
        let order = Some(vec![0, 1, 2]);
        assert!(
            make(&TensorRecipe { order, ..reversed(&whole) }).unwrap_err().to_string().contains("result")
        );
        assert!(make(&TensorRecipe { pieces: vec![], ..reversed(&whole) }).is_err());
    }
}
