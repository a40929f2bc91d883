//! A lowered plan whose values have places in an arena, and what of them is read after a step.

use device::{DType, Limits, Op, Plan, RowCount};

use crate::arena::Arena;
use crate::lifetimes::value_bytes;
use crate::table::StepSizes;
use crate::units::LoweredUnit;

/// A plan on its way into a program.
pub struct LoweredPlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: &'a [LoweredUnit],
    /// Where its values lie.
    pub arena: &'a Arena,
}

impl LoweredPlan<'_> {
    /// Its values, by id.
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

    /// Whether it chooses tokens.
    pub fn chooses(&self) -> bool {
        self.plan.primitives().any(|op| matches!(op, Op::Argmax { .. }))
    }
}

/// Where a value of a plan lies.
#[derive(Clone, Copy, Debug)]
pub struct PlacedValue {
    /// In the arena; [`NO_PLACE`](crate::arena::NO_PLACE): inside a unit.
    pub offset: usize,
    /// With as many rows as it can have.
    pub bytes: usize,
    /// Which rows.
    pub rows: RowCount,
    /// Columns.
    pub cols: usize,
    /// What its words of 32 bits are.
    pub dtype: DType,
}

impl PlacedValue {
    /// Words that it has in a step.
    pub fn n_words(&self, sizes: &StepSizes) -> usize {
        self.rows.count(sizes.n_rows, sizes.n_outputs) * self.cols
    }

    /// Its numbers, of its words.
    pub fn numbers(&self, words: &[u32]) -> Vec<f32> {
        match self.dtype {
            DType::F32 => words.iter().map(|word| f32::from_bits(*word)).collect(),
            DType::U32 => words.iter().map(|word| *word as f32).collect(),
        }
    }
}
