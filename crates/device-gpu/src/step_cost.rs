//! Estimates of the work of a step, by which it is cut into command buffers.

use device::{Plan, Step};

/// Operations that a command buffer has at most, by estimate. A GPU with 8 cores of 2020 needs
/// about 0.3 s for them. Systems end command buffers that keep the screen waiting for seconds.
pub const MOST_OPS: u64 = 400_000_000_000;

/// Operations of a plan's steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepCost {
    /// Operations of the products of a row.
    per_row: u64,
    /// Operations of the attentions of a row to one position.
    per_pair: u64,
}

impl StepCost {
    /// The cost of the steps of a plan.
    pub(crate) fn new(plan: &Plan) -> StepCost {
        StepCost { per_row: plan.ops_per_token(), per_pair: plan.ops_per_pair() }
    }

    /// Operations of a step.
    fn ops(&self, step: &Step) -> u64 {
        let pairs = step.spans.iter().map(|span| u64::from(span.n_rows) * span.end() as u64);
        self.per_row * step.tokens.len() as u64 + self.per_pair * pairs.sum::<u64>()
    }

    /// Number of command buffers of a step, so that none has more than `most` operations.
    pub(crate) fn n_parts(&self, step: &Step, most: u64) -> usize {
        usize::try_from(self.ops(step).div_ceil(most.max(1))).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Span;

    #[test]
    fn long_prompts_and_late_positions_have_more_parts() {
        // Eight billion weights, 32 layers of 4,096 columns of queries.
        let cost = StepCost { per_row: 16_000_000_000, per_pair: 4 * 32 * 4096 };
        let parts = |n_rows: u32, first_position: u32| {
            let tokens = vec![0; n_rows as usize];
            let spans = [Span { slot: 0, first_row: 0, n_rows, first_position }];
            cost.n_parts(&Step { tokens: &tokens, spans: &spans, ..Step::default() }, MOST_OPS)
        };
        assert_eq!([1, 16, 64, 512].map(|n| parts(n, 0)), [1, 1, 3, 21]);
        // Attention doubles the work of a chunk at some 30,000 positions.
        assert_eq!(parts(512, 32_768 - 512), 43);
        assert_eq!(parts(1, 100_000), 1);
        assert_eq!(parts(0, 0), 1);
    }
}
