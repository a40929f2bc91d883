//! A rank's part of a weight. Rows and matrices are views of the original bytes; columns are
//! copied.

use std::collections::HashMap;
use std::ops::Range;

use device::{Weight, WeightPart};
use weights::{BlockType, Bytes, Planes};

/// Kind of a rank's part of a weight, among equal parts for all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The whole weight.
    Whole,
    /// Rows of a matrix, or of each matrix of a stack.
    Rows,
    /// Columns of a matrix, or of each matrix of a stack; [`has_columns`].
    Columns,
    /// Matrices of a stack.
    Matrices,
    /// A part of each of this many equal groups of an F32 vector.
    Elements(usize),
}

/// Returns true if the columns of a weight can be divided among `n` ranks: in whole blocks, with
/// their scales and offsets.
pub fn has_columns(weight: &Weight, n: usize) -> bool {
    let (block, n_cols) = (weight.block, weight.n_cols());
    let divides = |bytes: fn(BlockType, usize) -> usize| {
        let (whole, part) = (bytes(block, n_cols), bytes(block, n_cols / n));
        // Every part has the one scale of a row.
        whole == part || whole == n * part
    };
    n_cols.is_multiple_of(n * block.block_len())
        && divides(BlockType::row_scale_bytes)
        && divides(BlockType::row_bias_bytes)
}

/// Identity of a part: address and length of the weight's bytes (of a stack, of its first matrix),
/// its matrices, its columns, and the cut.
type Key = (usize, usize, usize, usize, Cut);

/// Parts that exist, each with its weight.
#[derive(Default)]
pub struct Slices(HashMap<Key, (Weight, Weight)>);

impl Slices {
    /// The part of a weight for rank `rank` of `n`; each part is made once.
    pub fn of(&mut self, weight: &Weight, cut: Cut, rank: usize, n: usize) -> Weight {
        if cut == Cut::Whole {
            return weight.clone();
        }
        let first = weight.parts.first().map_or(&weight.data, |part| &part.data);
        let key = (first.as_ptr() as usize, first.len(), weight.parts.len(), weight.n_cols(), cut);
        // The entry holds the weight, too, so that no other weight can reuse its address.
        let entry = self.0.entry(key).or_insert_with(|| (weight.clone(), slice(weight, cut, rank, n)));
        Weight { name: weight.name.clone(), ..entry.1.clone() }
    }

    /// Bytes of copied parts.
    pub fn n_copied(&self) -> u64 {
        let copies = self.0.iter().filter(|((.., cut), _)| matches!(cut, Cut::Columns | Cut::Elements(_)));
        copies.map(|(_, (_, part))| part.n_bytes()).sum()
    }
}

fn slice(weight: &Weight, cut: Cut, rank: usize, n: usize) -> Weight {
    let (block, n_cols) = (weight.block, weight.n_cols());
    let mut shape = weight.shape.clone();
    let n_dims = shape.len();
    let n_rows = weight.n_rows() / weight.parts.len().max(1);
    let of_matrix = |data: &Bytes, planes: &Planes| match cut {
        Cut::Columns => columns(block, n_cols, data, planes, rank, n),
        Cut::Whole | Cut::Rows | Cut::Matrices | Cut::Elements(_) => {
            rows(block, n_cols, data, planes, part_of(n_rows, rank, n))
        }
    };
    match cut {
        Cut::Whole => return weight.clone(),
        Cut::Rows => shape[n_dims - 2] /= n,
        Cut::Columns => shape[n_dims - 1] /= n,
        Cut::Matrices => {
            shape[0] /= n;
            let parts = weight.parts[part_of(weight.parts.len(), rank, n)].to_vec();
            return Weight { shape, parts, ..weight.clone() };
        }
        Cut::Elements(groups) => {
            let group = weight.data.len() / groups;
            let range = part_of(group / 4, rank, n);
            let part = |g: usize| &weight.data[g * group..][4 * range.start..4 * range.end];
            let parts: Vec<&[u8]> = (0..groups).map(part).collect();
            shape[0] /= n;
            return Weight { shape, data: Bytes::from_parts(&parts), ..weight.clone() };
        }
    }
    let (data, planes) = match weight.parts.is_empty() {
        true => of_matrix(&weight.data, &weight.planes),
        false => (weight.data.clone(), weight.planes.clone()),
    };
    let parts = weight.parts.iter().map(|part| {
        let (data, planes) = of_matrix(&part.data, &part.planes);
        WeightPart { data, planes }
    });
    Weight { name: weight.name.clone(), shape, block, data, planes, parts: parts.collect() }
}

/// The range of part `rank` of `n` equal parts.
fn part_of(len: usize, rank: usize, n: usize) -> Range<usize> {
    rank * (len / n)..(rank + 1) * (len / n)
}

/// Rows of a checked matrix, as a view.
fn rows(
    block: BlockType,
    n_cols: usize,
    data: &Bytes,
    planes: &Planes,
    rows: Range<usize>,
) -> (Bytes, Planes) {
    let row = block.row_bytes(n_cols);
    // A checked matrix has these rows. Otherwise the part is refused when it is checked.
    let view = data.slice(rows.start * row..rows.end * row).unwrap_or_else(|| Bytes::from_slice(&[]));
    (view, planes.rows(block, n_cols, rows).unwrap_or_default())
}

fn columns(
    block: BlockType,
    n_cols: usize,
    data: &Bytes,
    planes: &Planes,
    rank: usize,
    n: usize,
) -> (Bytes, Planes) {
    let of = |bytes: &Bytes, whole: usize, part: usize| {
        if whole == part {
            return bytes.clone();
        }
        let parts: Vec<&[u8]> =
            bytes.chunks_exact(whole.max(1)).map(|row| &row[rank * part..][..part]).collect();
        Bytes::from_parts(&parts)
    };
    let plane = |bytes: &Option<Bytes>, of_row: fn(BlockType, usize) -> usize| {
        bytes.as_ref().map(|bytes| of(bytes, of_row(block, n_cols), of_row(block, n_cols / n)))
    };
    let data = of(data, block.row_bytes(n_cols), block.row_bytes(n_cols / n));
    let scales = plane(&planes.scales, BlockType::row_scale_bytes);
    let biases = plane(&planes.biases, BlockType::row_bias_bytes);
    (data, Planes { scales, biases })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(weight: &Weight) -> Vec<f32> {
        let mut out = vec![0.0; weight.n_rows() * weight.n_cols()];
        weight.decode_rows(0..weight.n_rows(), &mut out);
        out
    }

    /// The parts of all ranks together equal the weight, for every type.
    #[test]
    fn parts_make_the_whole() {
        for block in device_testing::block_types() {
            let (n_rows, n_cols) = (6, 4 * block.block_len().max(64));
            let mut rng = device_testing::Rng::new(1);
            let weight = device_testing::stored(&mut rng, "w", n_rows, n_cols, block, 1.0);
            let whole = decoded(&weight);
            for n in [2, 3] {
                let part = |rank: usize| decoded(&slice(&weight, Cut::Rows, rank, n));
                assert_eq!((0..n).flat_map(part).collect::<Vec<_>>(), whole, "{block}, rows of {n}");
            }
            for n in [2, 4] {
                assert!(has_columns(&weight, n), "{block}");
                let parts: Vec<Vec<f32>> =
                    (0..n).map(|rank| decoded(&slice(&weight, Cut::Columns, rank, n))).collect();
                let len = n_cols / n;
                let row = |i: usize| parts.iter().flat_map(move |part| part[i * len..][..len].to_vec());
                assert_eq!((0..n_rows).flat_map(row).collect::<Vec<_>>(), whole, "{block}, columns of {n}");
            }
            assert!(!has_columns(&weight, 3), "{block}: 4 blocks among 3");
        }
        let vector = Weight::vector("v", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(decoded(&slice(&vector, Cut::Elements(2), 1, 2)), [2.0, 3.0, 6.0, 7.0]);
        assert_eq!(decoded(&slice(&vector, Cut::Elements(1), 1, 2)), [4.0, 5.0, 6.0, 7.0]);
    }
}
