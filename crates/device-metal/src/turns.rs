//! The tables of cosines and sines that the RoPE of a plan reads. The step's first embedding writes
//! them (`kernels/turns.h`).

use crate::arguments::TurnPair;
use device::{Limits, Op, Plan, WeightId};

/// Bytes of a cosine and a sine.
const TURN_BYTES: usize = 8;

/// A table, `(max_rows, n_pairs)` of a cosine and a sine.
struct Table {
    /// `(n_pairs)`
    frequencies: WeightId,
    /// Factor on cosine and sine.
    scale: f32,
    n_pairs: usize,
    /// Offset and length in bytes.
    place: (usize, usize),
}

/// The distinct tables of a plan.
#[derive(Default)]
pub struct Turns {
    tables: Vec<Table>,
    /// Bytes of all tables.
    n_bytes: usize,
}

impl Turns {
    /// The tables of a plan. Ropes with equal frequencies and factors share one.
    pub fn new(plan: &Plan, limits: &Limits) -> Turns {
        let mut turns = Turns::default();
        for op in plan.primitives() {
            let Op::Rope { frequencies, n_dims, scale, .. } = op else { continue };
            if turns.table(plan, *frequencies, *scale).is_none() {
                let n_pairs = n_dims / 2;
                let place = (turns.n_bytes, limits.max_rows * n_pairs * TURN_BYTES);
                turns.tables.push(Table { frequencies: *frequencies, scale: *scale, n_pairs, place });
                turns.n_bytes += place.1;
            }
        }
        turns
    }

    fn table(&self, plan: &Plan, frequencies: WeightId, scale: f32) -> Option<&Table> {
        let data = |id: WeightId| &plan.weight(id).data[..];
        let same = |table: &&Table| {
            table.scale.to_bits() == scale.to_bits() && data(table.frequencies) == data(frequencies)
        };
        self.tables.iter().find(same)
    }

    /// Offset and length of the table of a Rope, in bytes.
    pub fn place(&self, plan: &Plan, frequencies: WeightId, scale: f32) -> Option<(usize, usize)> {
        self.table(plan, frequencies, scale).map(|table| table.place)
    }

    /// Bytes of all tables.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Pairs of all tables.
    pub fn n_pairs(&self) -> usize {
        self.tables.iter().map(|table| table.n_pairs).sum()
    }

    /// The pairs of all tables, as kernels read them.
    pub fn pairs(&self, plan: &Plan) -> Vec<TurnPair> {
        let mut pairs = Vec::with_capacity(self.n_pairs());
        for table in &self.tables {
            let frequencies = plan.weight(table.frequencies).data.as_chunks::<4>().0;
            let first = table.place.0 / TURN_BYTES;
            pairs.extend(frequencies.iter().enumerate().map(|(pair, frequency)| TurnPair {
                frequency: f32::from_le_bytes(*frequency),
                scale: table.scale,
                first: (first + pair) as u32,
                stride: table.n_pairs as u32,
            }));
        }
        pairs
    }
}
