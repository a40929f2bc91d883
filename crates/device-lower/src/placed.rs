//! A lowered plan with places in an arena, and how its values are read after a step.

use device::{DType, Limits, Op, Plan, RowCount};

use crate::arena::Arena;
use crate::lifetimes::value_bytes;
use crate::table::StepSizes;
use crate::units::LoweredUnit;

/// A lowered plan before compilation.
pub struct LoweredPlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: &'a [LoweredUnit],
    /// Places of its values.
    pub arena: &'a Arena,
}

impl LoweredPlan<'_> {
    /// Places of its values, by id.
    pub fn values(&self, limits: &Limits) -> Vec<PlacedValue> {
        let values = self.plan.values.iter().zip(&self.arena.offset);
        let placed = values.map(|(value, offset)| PlacedValue {
            offset: *offset,
            bytes: value_bytes(value, limits),
            rows: value.rows,
            cols: value.cols,
            dtype: value.dtype,
        });
        placed.collect()
    }

    /// Returns true if the plan chooses tokens.
    pub fn chooses(&self) -> bool {
        self.plan.primitives().any(|op| matches!(op, Op::Argmax { .. }))
    }
}

/// Place of a value of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlacedValue {
    /// Offset in the arena; [`NO_PLACE`](crate::arena::NO_PLACE) for a value inside a unit.
    pub offset: usize,
    /// Bytes with the largest number of rows.
    pub bytes: usize,
    /// Kind of its rows.
    pub rows: RowCount,
    /// Columns.
    pub cols: usize,
    /// Type of its 32-bit words.
    pub dtype: DType,
}

impl PlacedValue {
    /// Number of its words in a step.
    pub fn n_words(&self, sizes: &StepSizes) -> usize {
        self.rows.count(sizes.n_rows, sizes.n_outputs) * self.cols
    }

    /// The value's numbers, decoded from words.
    pub fn numbers(&self, words: &[u32]) -> Vec<f32> {
        match self.dtype {
            DType::F32 => words.iter().map(|word| f32::from_bits(*word)).collect(),
            DType::U32 => words.iter().map(|word| *word as f32).collect(),
        }
    }
}
