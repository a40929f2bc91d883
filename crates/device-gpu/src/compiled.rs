//! Compiled plans: their tables by the rows of a step, and where their values are.

use device::{Limits, Result, ValueId};
use device_lower::placed::{LoweredPlan, PlacedValue};
use device_lower::table::{RowClass, StepSizes, Table};

/// A table, and a machine's own data for it.
pub trait HasTable {
    /// The table.
    fn table(&self) -> &Table;
}

/// A plan ready to run.
#[derive(Debug)]
pub struct CompiledPlan<T> {
    /// Tables by class of tokens, then by class of outputs. A step has no more outputs than tokens.
    tables: Vec<Vec<T>>,
    /// Placed values by id.
    pub values: Vec<PlacedValue>,
    /// The value that logits are read from.
    pub output: ValueId,
    /// Values that a step keeps for the caller.
    pub kept: Vec<ValueId>,
    /// True if its tables choose tokens.
    pub chooses: bool,
}

impl<T> CompiledPlan<T> {
    /// Makes the tables of a plan, one for each pair of classes of tokens and of outputs.
    ///
    /// # Errors
    /// As `table`.
    pub fn new(
        part: &LoweredPlan<'_>,
        limits: &Limits,
        mut table: impl FnMut(RowClass, RowClass) -> Result<T>,
    ) -> Result<CompiledPlan<T>> {
        let most = RowClass::of(limits.max_rows);
        let classes = RowClass::ALL.into_iter().filter(|class| *class <= most);
        let tables = classes
            .map(|tokens| {
                let outputs = RowClass::ALL.into_iter().filter(|class| *class <= tokens);
                outputs.map(|outputs| table(tokens, outputs)).collect()
            })
            .collect::<Result<Vec<Vec<T>>>>()?;
        Ok(CompiledPlan {
            tables,
            values: part.values(limits),
            output: part.plan.output,
            kept: part.plan.kept.clone(),
            chooses: part.chooses(),
        })
    }

    /// The table for a step of these sizes.
    pub fn table(&self, sizes: &StepSizes) -> &T {
        let tokens = RowClass::of(sizes.n_rows) as usize;
        let outputs = (RowClass::of(sizes.n_outputs) as usize).min(tokens);
        &self.tables[tokens][outputs]
    }

    /// Places of the output, then of the kept values.
    pub fn results(&self) -> impl Iterator<Item = PlacedValue> {
        std::iter::once(&self.output).chain(&self.kept).map(|id| self.values[id.0 as usize])
    }
}
