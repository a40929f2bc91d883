//! Where the values of a plan are stored in the arena, and which of them are still there after a number of nodes.

use crate::layout::max_rows;
use device::{DType, Limits, Op, Plan, RowCount, ValueId};
use device_lower::arena::{Arena, NO_PLACE};

/// A value that some command writes.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Bytes from the arena's start.
    pub offset: usize,
    /// Its rows.
    pub rows: RowCount,
    /// Its columns.
    pub cols: usize,
    /// Its type.
    pub dtype: DType,
    /// Bytes with as many rows as the limits allow.
    n_bytes: usize,
    /// The node that writes it, and which of the node's values it is.
    written: (usize, usize),
    /// Whether rows that are no outputs may be left out, since nobody reads them.
    outputs_only: bool,
}

/// What a step has run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Rows of the step.
    pub n_rows: usize,
    /// Its outputs.
    pub n_outputs: usize,
    /// Nodes of its plan that have run, from the first.
    pub n_nodes: usize,
    /// Whether its best tokens were looked for.
    pub argmax: bool,
}

/// By value of a plan: where it is stored, if it is.
#[derive(Clone, Debug)]
pub struct StoredValues(Vec<Option<Stored>>);

impl StoredValues {
    /// Of a checked plan. `outputs_only` says of what an Attention writes that only rows of outputs are read.
    pub fn new(
        plan: &Plan,
        arena: &Arena,
        limits: &Limits,
        outputs_only: impl Fn(ValueId) -> bool,
    ) -> StoredValues {
        let mut stored = vec![None; plan.values.len()];
        for (node, n) in plan.nodes.iter().enumerate() {
            for (order, id) in n.op.writes().into_iter().enumerate() {
                let (value, offset) = (plan.value(id), arena.offset[id.0 as usize]);
                if offset == NO_PLACE {
                    continue;
                }
                let attends = |op: &Op| matches!(op, Op::Attention { out, .. } if *out == id);
                let may_skip = n.op.primitives().iter().any(attends);
                stored[id.0 as usize] = Some(Stored {
                    offset,
                    rows: value.rows,
                    cols: value.cols,
                    dtype: value.dtype,
                    n_bytes: max_rows(limits, value.rows) * value.cols * 4,
                    written: (node, order),
                    outputs_only: may_skip && outputs_only(id),
                });
            }
        }
        StoredValues(stored)
    }

    /// Where a value is stored.
    pub fn get(&self, id: ValueId) -> Option<&Stored> {
        self.0.get(id.0 as usize)?.as_ref()
    }

    /// The same, if it was written, every row of it, and none of its memory was written again.
    pub fn intact(&self, id: ValueId, ran: &Ran) -> Option<&Stored> {
        let stored = self.get(id)?;
        let was_written = |other: &Stored| other.written.0 < ran.n_nodes;
        let overwrites = |other: &Stored| {
            let apart = other.offset + other.n_bytes <= stored.offset
                || stored.offset + stored.n_bytes <= other.offset;
            other.written > stored.written && was_written(other) && !apart
        };
        let is_whole = !stored.outputs_only || ran.n_outputs == ran.n_rows;
        let intact = was_written(stored) && is_whole && !self.0.iter().flatten().any(overwrites);
        intact.then_some(stored)
    }
}
