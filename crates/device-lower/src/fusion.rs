//! Fusion of neighbouring Ops.
//!
//! [`fuse`] walks the plan once. At every node it tries the kinds of fused Ops that a device lists,
//! in order, and forms the first whose [`Fields`] the next Ops have. A longer kind thus precedes
//! the shorter one that it contains. Fusion joins neighbours without moving them, so it is always
//! valid. Values of a fused Op that other nodes read ([`Plan::escaping`]) must still be written.

use crate::fields::Fields;
use device::{FusedKind, Node, Op, Plan, RowCount};

/// All kinds, each before the kinds that it contains.
pub const ALL: &[FusedKind] = &[
    FusedKind::NormGateUp,
    FusedKind::NormLinear,
    FusedKind::GateUp,
    FusedKind::LinearAdd,
    FusedKind::NormAdd,
    FusedKind::QkNormRopeKvAttention,
    FusedKind::QkNormRopeKvWrite,
];

/// Most Ops of a window.
const LONGEST: usize = 6;

/// The plan with every window of Ops that is one of these kinds replaced by one fused Op.
///
/// The plan has passed its check. Nodes that are already fused stay unchanged.
pub fn fuse(plan: &Plan, kinds: &[FusedKind]) -> Plan {
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    let mut rest = plan.nodes.as_slice();
    while let [first, after @ ..] = rest {
        let found = kinds.iter().find_map(|kind| Some((*kind, window(plan, *kind, rest)?)));
        let Some((kind, len)) = found else {
            nodes.push(first.clone());
            rest = after;
            continue;
        };
        let (window, after) = rest.split_at(len);
        let parts = window.iter().map(|node| node.op.clone()).collect();
        nodes.push(Node { op: Op::Fused { kind, parts }, layer: first.layer, place: first.place });
        rest = after;
    }
    Plan { nodes, ..plan.clone() }
}

/// The plan with fused Ops replaced by their parts, which get their place: the inverse of [`fuse`].
pub fn flatten(plan: &Plan) -> Plan {
    let parts = |node: &Node| {
        node.op.primitives().iter().map(|op| Node { op: op.clone(), ..*node }).collect::<Vec<_>>()
    };
    Plan { nodes: plan.nodes.iter().flat_map(parts).collect(), ..plan.clone() }
}

/// The largest number of first nodes that are a fused Op of this kind.
fn window(plan: &Plan, kind: FusedKind, nodes: &[Node]) -> Option<usize> {
    let of_layer = nodes.iter().take(LONGEST).take_while(|node| node.layer == nodes[0].layer);
    let ops: Vec<&Op> = of_layer.map(|node| &node.op).collect();
    (2..=ops.len()).rev().find(|len| {
        let window = &ops[..*len];
        Fields::of(plan, kind, window, &[]).is_some() && same_rows(plan, window)
    })
}

fn same_rows(plan: &Plan, window: &[&Op]) -> bool {
    let ids = window.iter().flat_map(|op| op.reads().into_iter().chain(op.writes()));
    let rows: Vec<RowCount> = ids.map(|id| plan.value(id).rows).collect();
    rows.iter().all(|r| *r == rows[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Activation, KvLayer, RopeStyle};
    use device_testing::{AttentionOptions, PlanBuilder, mini_transformer};
    use weights::BlockType;

    fn kinds(plan: &Plan) -> Vec<FusedKind> {
        let kind = |node: &Node| if let Op::Fused { kind, .. } = &node.op { Some(*kind) } else { None };
        plan.nodes.iter().filter_map(kind).collect()
    }

    /// Fuses a plan, and checks the invariants of every fused plan.
    fn fused(plan: &Plan, rules: &[FusedKind]) -> Plan {
        plan.check().unwrap();
        let fused = fuse(plan, rules);
        fused.check().unwrap();
        assert_eq!(flatten(&fused).nodes, plan.nodes);
        assert_eq!(fuse(&fused, rules).nodes, fused.nodes, "fusing twice changes nothing");
        fused
    }

    const F32: BlockType = BlockType::F32;
    const KV: KvLayer =
        KvLayer { n_kv_heads: 2, head_dim: 4, window: None, encoder_states: None, values_are_keys: false };

    #[test]
    fn a_transformer_fuses_into_its_blocks() {
        use FusedKind::*;
        let plan = mini_transformer(5, F32);
        let layer = [NormLinear, QkNormRopeKvAttention, LinearAdd, NormGateUp, LinearAdd];
        let head = [NormLinear];
        let expected: Vec<_> = layer.iter().chain(&layer).chain(&head).copied().collect();
        assert_eq!(kinds(&fused(&plan, ALL)), expected);
        for rule in ALL {
            assert!(kinds(&fused(&plan, &[*rule])).iter().all(|kind| kind == rule));
        }
        assert!(kinds(&fused(&plan, &[])).is_empty());
    }

    #[test]
    fn without_its_gate_rule_the_pair_is_a_norm_with_linears() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let norm = b.rms_norm(x, 8);
        let gate = b.linear(norm, 6, F32, false);
        let up = b.linear(norm, 6, F32, true);
        let y = b.gate(gate, up, Activation::Silu);
        let plan = b.finish(y);
        assert_eq!(kinds(&fused(&plan, ALL)), [FusedKind::NormGateUp]);
        assert_eq!(kinds(&fused(&plan, &[FusedKind::GateUp])), [FusedKind::GateUp]);
        assert_eq!(kinds(&fused(&plan, &[FusedKind::NormLinear])), [FusedKind::NormLinear]);
    }

    #[test]
    fn linears_of_another_input_are_left_out() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let norm = b.rms_norm(x, 8);
        let q = b.linear(norm, 8, F32, false);
        let k = b.linear(x, 8, F32, false);
        let y = b.add(q, k);
        let plan = fused(&b.finish(y), &[FusedKind::NormLinear]);
        assert_eq!(kinds(&plan), [FusedKind::NormLinear]);
        assert_eq!(plan.nodes[1].op.primitives().len(), 2);
    }

    #[test]
    fn windows_that_a_kernel_could_not_run_stay_apart() {
        // A gate of one Linear and something else.
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let a = b.linear(x, 8, F32, false);
        b.linear(x, 8, F32, false);
        let y = b.gate(a, x, Activation::Silu);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
        // Gate and up of different inputs.
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let a = b.linear(x, 8, F32, false);
        let c = b.linear(a, 8, F32, false);
        let y = b.gate(a, c, Activation::Silu);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
        // A linear added to itself.
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let a = b.linear(x, 8, F32, false);
        let y = b.add(a, a);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
        // A norm of heads before a linear.
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let a = b.rms_norm(x, 4);
        let y = b.linear(a, 8, F32, false);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
        // An Add that does not read the norm.
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        b.rms_norm(x, 8);
        let y = b.add(x, x);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
    }

    #[test]
    fn a_window_stays_within_its_layer() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        b.layer(Some(0));
        let norm = b.rms_norm(x, 8);
        b.layer(Some(1));
        let y = b.linear(norm, 8, F32, false);
        assert_eq!(kinds(&fused(&b.finish(y), ALL)), []);
    }

    #[test]
    fn norms_and_ropes_around_a_kv_write() {
        // All combinations of (norm q, norm k, rope q, rope k), and attention of the q chain.
        for bits in 0..16u32 {
            let has = |bit: u32| bits & (1 << bit) != 0;
            let mut b = PlanBuilder::new(1, 16);
            let layer = b.kv_layer(KV);
            let mut q = b.embed(16);
            let (mut k, v) = (b.embed(8), b.embed(8));
            if has(0) {
                q = b.rms_norm(q, 4);
            }
            if has(1) {
                k = b.rms_norm(k, 4);
            }
            if has(2) {
                q = b.rope(q, 4, 4, RopeStyle::Half);
            }
            if has(3) {
                k = b.rope(k, 4, 4, RopeStyle::Half);
            }
            b.kv_write(k, v, layer);
            let y = b.attention(q, layer, 4, AttentionOptions::default());
            let plan = b.finish(y);
            let n_ops = 2 + bits.count_ones() as usize;
            let attention = fused(&plan, &[FusedKind::QkNormRopeKvAttention]);
            assert_eq!(kinds(&attention), [FusedKind::QkNormRopeKvAttention], "{bits:04b}");
            assert_eq!(attention.nodes[3].op.primitives().len(), n_ops);
            let write = fused(&plan, &[FusedKind::QkNormRopeKvWrite]);
            // A single KvWrite is not fused.
            assert_eq!(kinds(&write).len(), usize::from(n_ops > 2), "{bits:04b}");
            if bits & 0b0101 != 0 && n_ops > 2 {
                assert_eq!(write.escaping()[3], [q], "attention reads q from outside the window");
            }
        }
    }

    #[test]
    fn a_norm_of_v_or_of_a_whole_row_stays_outside() {
        let mut b = PlanBuilder::new(1, 16);
        let layer = b.kv_layer(KV);
        let (q, k, v) = (b.embed(8), b.embed(8), b.embed(8));
        let q = b.rms_norm(q, 4);
        let k = b.rms_norm(k, 4);
        let v = b.rms_norm(v, 4);
        let q = b.rope(q, 4, 4, RopeStyle::Half);
        let k = b.rope(k, 4, 4, RopeStyle::Half);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 2, AttentionOptions::default());
        let plan = fused(&b.finish(y), ALL);
        assert_eq!(kinds(&plan), [FusedKind::QkNormRopeKvAttention]);
        assert_eq!(plan.nodes[6].op.primitives().len(), 4, "two ropes, kv write, attention");

        let mut b = PlanBuilder::new(1, 16);
        let layer = b.kv_layer(KV);
        let (q, k, v) = (b.embed(8), b.embed(8), b.embed(8));
        let k = b.rms_norm(k, 8);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 2, AttentionOptions::default());
        let plan = fused(&b.finish(y), &[FusedKind::QkNormRopeKvWrite]);
        assert_eq!(kinds(&plan), [], "a norm over all heads is not a norm of heads");
    }

    #[test]
    fn escaping_values_are_those_that_others_read() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let norm = b.rms_norm(x, 8);
        let a = b.linear(norm, 8, F32, false);
        let c = b.linear(norm, 8, F32, false);
        let y = b.add(a, norm);
        let y = b.add(y, c);
        let plan = fused(&b.finish(y), &[FusedKind::NormLinear]);
        assert_eq!(plan.escaping()[1], [norm, a, c]);
        assert_eq!(plan.escaping()[0], [x]);
        let last = plan.nodes.len() - 1;
        assert_eq!(plan.escaping()[last], [plan.argmax]);
        assert_eq!(plan.escaping()[last - 1], [plan.output]);
    }
}
