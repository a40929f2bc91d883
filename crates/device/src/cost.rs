//! What a plan costs: bytes and operations, for rooflines and the memory plan.

use std::collections::HashSet;

use crate::{Item, Limits, MemoryPlan, Op, Plan, Residence, WeightId};

impl Plan {
    /// Bytes of weights that one decoded token reads: of the embedding one row, of everything else each weight once,
    /// however many Ops use it. The least that any device must read, without the KV cache.
    pub fn weight_bytes_per_token(&self) -> u64 {
        let mut whole = HashSet::new();
        let mut bytes = 0;
        for op in self.primitives() {
            if let Op::Embed { table, .. } | Op::EmbedPositions { table, .. } = op {
                bytes += self.weight(*table).row_bytes() as u64;
                continue;
            }
            bytes += op
                .weights()
                .into_iter()
                .filter(|id| whole.insert(*id))
                .map(|id| self.weight_bytes(id))
                .sum::<u64>();
        }
        bytes
    }

    /// Operations of the Linears for one token whose logits are wanted; a multiply and an add are two. Attention, which
    /// grows with the position, and the element-wise Ops, which are small, are left out.
    pub fn ops_per_token(&self) -> u64 {
        let linear = |op: &Op| match op {
            Op::Linear { weight, .. } => {
                let weight = self.weight(*weight);
                2 * weight.n_rows() as u64 * weight.n_cols() as u64
            }
            _ => 0,
        };
        self.primitives().map(linear).sum()
    }

    /// Bytes of a weight.
    pub fn weight_bytes(&self, id: WeightId) -> u64 {
        self.weight(id).data.len() as u64
    }

    /// Bytes of weights that an Op reads for one step of one token.
    pub fn weight_bytes_of(&self, op: &Op) -> u64 {
        match op {
            Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => {
                self.weight(*table).row_bytes() as u64
            }
            Op::Fused { parts, .. } => parts.iter().map(|part| self.weight_bytes_of(part)).sum(),
            op => op.weights().into_iter().map(|id| self.weight_bytes(id)).sum(),
        }
    }
}

impl MemoryPlan {
    /// The items that every device has: the weights as they lie in their files (mapped) and those made at load (committed),
    /// and the KV pages of each group (reserved). A device adds its activations and what it repacks.
    ///
    /// The limits have one number of pages for each group of the plan, which [`Limits::check`] ensures.
    pub fn of_weights_and_kv(plan: &Plan, limits: &Limits) -> MemoryPlan {
        let mut items = Vec::new();
        for (mapped, what, residence) in
            [(true, "weights", Residence::Mapped), (false, "weights in memory", Residence::Committed)]
        {
            // Two weights may be views of the same bytes (a tied head).
            let mut views = HashSet::new();
            let weights = plan.weights.iter().filter(|w| w.data.is_mapped() == mapped);
            let distinct = weights.filter(|w| views.insert((w.data.as_ptr(), w.data.len())));
            let bytes = distinct.map(|w| w.data.len() as u64).sum();
            if bytes > 0 {
                items.push(Item { what: what.to_owned(), bytes, residence });
            }
        }
        for (index, (group, n_pages)) in plan.kv.groups.iter().zip(&limits.n_pages).enumerate() {
            let what = group.window.map_or("KV pages".to_owned(), |n| format!("KV pages (window {n})"));
            let bytes = *n_pages as u64 * plan.kv.page_bytes(index, limits.kv_type, limits.page_len) as u64;
            items.push(Item { what, bytes, residence: Residence::Reserved });
        }
        MemoryPlan { items }
    }
}

#[cfg(test)]
mod tests {
    use crate::fusion::{self, fuse};
    use crate::testing::PlanBuilder;
    use formats::BlockType;

    #[test]
    fn a_token_reads_one_row_of_the_embedding_and_the_rest_once() {
        let mut b = PlanBuilder::new(1, 100);
        let x = b.embed(32);
        let norm = b.rms_norm(x, 32);
        let y = b.linear(norm, 7, BlockType::Q8_0, true);
        let plan = b.finish(y);
        let expected = 32 * 4 + 32 * 4 + 7 * 34 + 7 * 4;
        assert_eq!(plan.weight_bytes_per_token(), expected);
        assert_eq!(plan.ops_per_token(), 2 * 7 * 32);
        let fused = fuse(&plan, fusion::ALL);
        assert!(fused.nodes.len() < plan.nodes.len());
        assert_eq!(fused.weight_bytes_per_token(), expected);
        assert_eq!(fused.nodes.iter().map(|n| fused.weight_bytes_of(&n.op)).sum::<u64>(), expected);
    }
}
