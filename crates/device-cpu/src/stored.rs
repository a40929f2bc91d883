//! Places of values in the arena, and which values are intact after some nodes have run.

use crate::layout::max_rows;
use device::{DType, Limits, Op, Plan, RowCount, ValueId};
use device_lower::arena::{Arena, NO_PLACE};

/// A value that some command writes.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Bytes from the arena's start.
    pub offset: usize,
    /// Rows of the value.
    pub rows: RowCount,
    /// Columns of the value.
    pub cols: usize,
    /// Type of the value.
    pub dtype: DType,
    /// Bytes at the largest number of rows.
    n_bytes: usize,
    /// The node that writes it, and its index among the node's values.
    written: (usize, usize),
    /// True if only output rows are computed, since no command reads the others.
    outputs_only: bool,
}

/// Progress of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Rows of the step.
    pub n_rows: usize,
    /// Output rows of the step.
    pub n_outputs: usize,
    /// Number of nodes of the plan that have run.
    pub n_nodes: usize,
    /// True if the token of the largest logit was computed.
    pub argmax: bool,
}

/// Place of each value of a plan, if it is stored.
#[derive(Clone, Debug)]
pub struct StoredValues(Vec<Option<Stored>>);

impl StoredValues {
    /// Places of a checked plan. `outputs_only` returns true for a value of which only output rows
    /// are read.
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

    /// Place of a value.
    pub fn get(&self, id: ValueId) -> Option<&Stored> {
        self.0.get(id.0 as usize)?.as_ref()
    }

    /// Place of a value whose rows were all written and not overwritten since.
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
