//! Cost of a plan, in bytes and operations, for rooflines and the memory plan.

use std::collections::HashSet;

use crate::{Item, Limits, MemoryPlan, Op, Plan, Residence, Weight, WeightId, WeightPart, key_bias};
use weights::Bytes;

impl Plan {
    /// Bytes of weights that one decoded token reads, the least that any device must read beside
    /// the KV cache. An embedding counts one row, a stack of experts the chosen ones, and every
    /// other weight counts once, even if several Ops read it.
    pub fn weight_bytes_per_token(&self) -> u64 {
        let mut whole = HashSet::new();
        let mut bytes = 0;
        for op in self.primitives() {
            if matches!(op, Op::Embed { .. } | Op::EmbedPositions { .. } | Op::ExpertLinear { .. }) {
                bytes += self.weight_bytes_of(op);
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

    /// Operations of the Linears for one token whose logits are wanted; a multiply and an add count
    /// as two. Attention, which grows with the position, and the small element-wise Ops are not
    /// counted.
    pub fn ops_per_token(&self) -> u64 {
        self.primitives().map(|op| self.ops_of(op)).sum()
    }

    /// Operations of one primitive Op, counted like [`Self::ops_per_token`].
    pub fn ops_of(&self, op: &Op) -> u64 {
        let facts = op.facts();
        let Some(weight) = facts.product else { return 0 };
        let out = facts.written().map(|id| self.value(id));
        let n_products: usize = out.map(|out| out.rows.count(1, 1) * out.cols).sum();
        2 * n_products as u64 * self.weight(weight).n_cols() as u64
    }

    /// Operations of the attentions of one row for each position that it attends to, counted like
    /// [`Self::ops_per_token`]: a product with a key, and one with a value.
    pub fn ops_per_pair(&self) -> u64 {
        let mut ops = 0;
        for op in self.primitives() {
            if let Op::Attention { q, .. } | Op::SelfAttention { q, .. } | Op::CrossAttention { q, .. } = op {
                ops += 4 * self.value(*q).cols as u64;
            }
        }
        ops
    }

    /// Bytes of a weight.
    pub fn weight_bytes(&self, id: WeightId) -> u64 {
        self.weight(id).n_bytes()
    }

    /// Bytes of weights that an Op reads for one step of one token.
    pub fn weight_bytes_of(&self, op: &Op) -> u64 {
        if let Op::Embed { table, .. } | Op::EmbedPositions { table, .. } = op {
            self.weight(*table).n_bytes_of_row() as u64
        } else if let Op::ExpertLinear { weight, ids, .. } = op {
            let n_chosen = self.value(*ids).cols;
            self.weight(*weight).parts.iter().take(n_chosen).map(WeightPart::n_bytes).sum()
        } else if let Op::Fused { parts, .. } = op {
            parts.iter().map(|part| self.weight_bytes_of(part)).sum()
        } else {
            op.weights().into_iter().map(|id| self.weight_bytes(id)).sum()
        }
    }
}

impl MemoryPlan {
    /// The items that every device has: weights in their files (mapped), weights made at load
    /// (committed), and KV pages of each group (reserved). A device adds its activations and its
    /// repacked weights. Weights that the device does not read `in_place` are left out.
    ///
    /// The plans have one KV layout, and the limits one number of pages for each of its groups:
    /// [`Limits::check`] ensures both.
    pub fn of_weights_and_kv(
        plans: &[Plan],
        limits: &Limits,
        in_place: impl Fn(&Bytes) -> bool,
    ) -> MemoryPlan {
        let mut items = Vec::new();
        for (mapped, what, residence) in
            [(true, "weights", Residence::Mapped), (false, "weights in memory", Residence::Committed)]
        {
            // Two weights may be views of the same bytes (a tied head, a weight of two plans).
            let mut views = HashSet::new();
            let weights = plans.iter().flat_map(|plan| &plan.weights);
            let views_of_kind = weights.flat_map(Weight::views).filter(|view| view.is_mapped() == mapped);
            let of_kind = views_of_kind.filter(|view| in_place(view));
            let distinct = of_kind.filter(|view| views.insert((view.as_ptr(), view.len())));
            let bytes = distinct.map(|view| view.len() as u64).sum();
            if bytes > 0 {
                items.push(Item { what: what.to_owned(), bytes, residence });
            }
        }
        if let Some(Plan { kv, .. }) = plans.first() {
            for (index, (group, n_pages)) in kv.groups.iter().zip(&limits.n_pages).enumerate() {
                let what = match (group.encoder_states, group.window) {
                    (Some(n), _) => format!("KV pages ({n} encoder states)"),
                    (None, Some(n)) => format!("KV pages (window {n})"),
                    (None, None) => "KV pages".to_owned(),
                };
                let bytes = *n_pages as u64 * kv.page_bytes(index, limits.kv_type, limits.page_len) as u64;
                items.push(Item { what, bytes, residence: Residence::Reserved });
            }
            if limits.n_states > 0 {
                let bytes = 4 * (limits.n_states * kv.state_len()) as u64;
                let what = "states of recurrent layers".to_owned();
                items.push(Item { what, bytes, residence: Residence::Committed });
            }
        }
        let bytes = key_bias::n_bytes(plans, limits);
        if bytes > 0 {
            items.push(Item { what: "biases of keys".to_owned(), bytes, residence: Residence::Committed });
        }
        MemoryPlan { items, notes: Vec::new() }
    }
}
