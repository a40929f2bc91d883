//! Float matrices requantised to 8 bits at load.
//!
//! F32, F16 and BF16 matrices cost 4 or 2 bytes a weight for each read, and are multiplied in f32.
//! As Q8_0 they cost 8.5 bits a weight, and are multiplied as integers with 8-bit activations. In
//! return the matrices occupy the process's own memory, the file is read once at load, and a weight
//! changes by at most half a step. A step is 1/127 of the largest of 32 weights.

use std::collections::HashMap;
use std::num::NonZero;

use device::{Op, Plan, Weight};
use weights::{BlockType, Bytes, codec};

/// The type to which matrices are requantised.
const TO: BlockType = BlockType::Q8_0;

/// Storage of float matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// Views of the file, in the file's type.
    #[default]
    AsStored,
    /// 8 bits with a scale for each 32 columns. Tables, vectors, quantised matrices, and matrices
    /// whose columns are not a multiple of 32 stay unchanged.
    Q8_0,
}

/// Place of a matrix's bytes, which weights of several plans may share.
type DataRange = (*const u8, usize);

fn data_range(weight: &Weight) -> DataRange {
    (weight.data.as_ptr(), weight.data.len())
}

fn is_plain(weight: &Weight) -> bool {
    let plain = [BlockType::F32, BlockType::F16, BlockType::BF16];
    weight.shape.len() == 2
        && plain.contains(&weight.block)
        && !weight.data.is_empty()
        && weight.n_cols().is_multiple_of(TO.block_len())
}

/// The float matrices of some plans, each once.
pub struct PlainMatrices(HashMap<DataRange, Weight>);

impl PlainMatrices {
    /// Finds all float matrices that are multiplied in any plan.
    pub fn of(plans: &[Plan]) -> PlainMatrices {
        let linear = plans.iter().flat_map(|plan| {
            plan.primitives().filter_map(|op| {
                let Op::Linear { weight, .. } = op else { return None };
                Some(plan.weight(*weight))
            })
        });
        PlainMatrices(linear.filter(|w| is_plain(w)).map(|w| (data_range(w), w.clone())).collect())
    }

    /// Bytes of the matrices in 8 bits.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|weight| (weight.n_rows() * TO.row_bytes(weight.n_cols())) as u64).sum()
    }

    /// Requantises the matrices. Replaces all weights that are views of the same bytes, such as a
    /// table that is also the head.
    pub fn quantize(&self, plans: &mut [Plan]) {
        let mut buffer = Vec::new();
        let new: HashMap<DataRange, Bytes> =
            self.0.iter().map(|(range, weight)| (*range, encode(weight, &mut buffer))).collect();
        for weight in plans.iter_mut().flat_map(|plan| &mut plan.weights).filter(|w| is_plain(w)) {
            if let Some(data) = new.get(&data_range(weight)) {
                (weight.block, weight.data) = (TO, data.clone());
            }
        }
    }
}

/// The rows of a matrix in the new type, computed on all processors. `buffer` is reused between
/// matrices.
fn encode(weight: &Weight, buffer: &mut Vec<u8>) -> Bytes {
    let (n_rows, n_cols) = (weight.n_rows(), weight.n_cols());
    let row_bytes = TO.row_bytes(n_cols);
    buffer.resize(n_rows * row_bytes, 0);
    let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let rows_each = n_rows.div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        for (part, out) in buffer.chunks_mut(rows_each * row_bytes).enumerate() {
            scope.spawn(move || {
                let mut values = vec![0f32; n_cols];
                for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
                    let row = part * rows_each + row;
                    weight.decode_rows(row..row + 1, &mut values);
                    codec::quantize_row(TO, &values, out);
                }
            });
        }
    });
    Bytes::from_slice(buffer)
}

#[cfg(test)]
mod tests {
    use device_testing::PlanBuilder;

    use super::*;

    /// `(name, block, values)` of all weights.
    fn weights(plan: &Plan) -> Vec<(String, BlockType, Vec<f32>)> {
        let decode = |weight: &Weight| {
            let mut values = vec![0f32; weight.n_rows() * weight.n_cols()];
            weight.decode_rows(0..weight.n_rows(), &mut values);
            (weight.name.clone(), weight.block, values)
        };
        plan.weights.iter().map(decode).collect()
    }

    #[test]
    fn matrices_become_bytes_and_all_else_stays() {
        let mut b = PlanBuilder::new(3, 33);
        let x = b.embed_from(64, BlockType::F16, 1.0);
        let x = b.layer_norm(x, true);
        let x = b.linear(x, 80, BlockType::F16, true);
        let y = b.linear(x, 32, BlockType::BF16, false);
        let y = b.linear(y, 96, BlockType::Q4_0, false);
        let logits = b.linear(y, 33, BlockType::F32, false);
        let first = b.finish(logits);
        // The second plan has the same head, and a table that is a view of it.
        let head = first.weights.last().cloned().unwrap_or_else(|| panic!("the head"));
        let mut b = PlanBuilder::new(4, 33);
        let x = b.embed(96);
        let logits = b.linear(x, 33, BlockType::F32, false);
        let mut second = b.finish(logits);
        second.weights.iter_mut().for_each(|w| *w = Weight { name: w.name.clone(), ..head.clone() });
        let before = [weights(&first), weights(&second)];
        let mut plans = [first, second];
        let matrices = PlainMatrices::of(&plans);
        // Matrices 64 to 80 and 96 to 33 qualify; 80 columns are not a multiple of 32.
        assert_eq!(matrices.bytes(), ((80 * 64 + 33 * 96) / 32 * 34) as u64);
        matrices.quantize(&mut plans);
        plans.iter().for_each(|plan| plan.check().unwrap_or_else(|error| panic!("{error}")));
        let mut n_changed = 0;
        for (plan, before) in plans.iter().zip(&before) {
            for ((name, block, values), (_, old_block, old)) in weights(plan).iter().zip(before) {
                if block == old_block {
                    assert_eq!(values, old, "{name}");
                    continue;
                }
                n_changed += 1;
                assert_eq!(*block, TO, "{name}");
                for (values, old) in values.chunks(32).zip(old.chunks(32)) {
                    let step = old.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                    for (value, old) in values.iter().zip(old) {
                        // The tolerance is half a step, and the rounding of the scale to f16 at 127
                        // steps.
                        assert!(
                            (value - old).abs() <= step * (0.5 + 127.0 / 2048.0),
                            "{name}: {value} for {old}"
                        );
                    }
                }
            }
        }
        assert_eq!(n_changed, 4);
        let [of_first, of_second] = [0, 1].map(|i| plans[i].weights.last().map(|w| w.data.as_ptr()));
        assert_eq!(of_first, of_second);
        // A second pass finds nothing to requantise.
        assert_eq!(PlainMatrices::of(&plans).bytes(), 0);
    }
}
