//! Fusion of neighbouring Ops, by rules that are data.
//!
//! A rule is a pattern of [`PatternPart`]s. [`fuse`] walks the plan once. At every node it tries
//! the rules in order and applies the first that matches. So a longer pattern precedes the shorter
//! one that it contains ([`NORM_GATE_UP`] before [`NORM_LINEAR`]). Fusion joins neighbours without
//! moving them, so it is always valid. Values of a fused Op that other nodes read
//! ([`Plan::escaping`]) must still be written.
//!
//! A pattern alone would match windows that a kernel cannot run. [`FusedKind`] states what a kernel
//! may rely on, and [`fuse`] forms no window that breaks it.

use device::{FusedKind, Node, Op, OpKind, PatternPart, Plan, RowCount, Rule, ValueId};

/// See [`FusedKind::NormLinear`].
pub const NORM_LINEAR: Rule = Rule {
    kind: FusedKind::NormLinear,
    pattern: &[PatternPart::new(OpKind::RmsNorm, 1, 1), PatternPart::new(OpKind::Linear, 1, 3).reading(0)],
};

/// See [`FusedKind::NormGateUp`].
pub const NORM_GATE_UP: Rule = Rule {
    kind: FusedKind::NormGateUp,
    pattern: &[
        PatternPart::new(OpKind::RmsNorm, 1, 1),
        PatternPart::new(OpKind::Linear, 2, 2).reading(0),
        PatternPart::new(OpKind::Gate, 1, 1).reading(1),
    ],
};

/// See [`FusedKind::GateUp`].
pub const GATE_UP: Rule = Rule {
    kind: FusedKind::GateUp,
    pattern: &[PatternPart::new(OpKind::Linear, 2, 2), PatternPart::new(OpKind::Gate, 1, 1).reading(0)],
};

/// See [`FusedKind::LinearAdd`].
pub const LINEAR_ADD: Rule = Rule {
    kind: FusedKind::LinearAdd,
    pattern: &[PatternPart::new(OpKind::Linear, 1, 1), PatternPart::new(OpKind::Add, 1, 1).reading(0)],
};

/// See [`FusedKind::NormAdd`].
pub const NORM_ADD: Rule = Rule {
    kind: FusedKind::NormAdd,
    pattern: &[PatternPart::new(OpKind::RmsNorm, 1, 1), PatternPart::new(OpKind::Add, 1, 1).reading(0)],
};

/// See [`FusedKind::QkNormRopeKvWrite`].
pub const QK_NORM_ROPE_KV_WRITE: Rule = Rule {
    kind: FusedKind::QkNormRopeKvWrite,
    pattern: &[
        PatternPart::new(OpKind::RmsNorm, 0, 2),
        PatternPart::new(OpKind::Rope, 0, 2),
        PatternPart::new(OpKind::KvWrite, 1, 1),
    ],
};

/// See [`FusedKind::QkNormRopeKvAttention`].
pub const QK_NORM_ROPE_KV_ATTENTION: Rule = Rule {
    kind: FusedKind::QkNormRopeKvAttention,
    pattern: &[
        PatternPart::new(OpKind::RmsNorm, 0, 2),
        PatternPart::new(OpKind::Rope, 0, 2),
        PatternPart::new(OpKind::KvWrite, 1, 1),
        PatternPart::new(OpKind::Attention, 1, 1),
    ],
};

/// All rules, each before the rules that it contains.
pub const ALL: &[Rule] = &[
    NORM_GATE_UP,
    NORM_LINEAR,
    GATE_UP,
    LINEAR_ADD,
    NORM_ADD,
    QK_NORM_ROPE_KV_ATTENTION,
    QK_NORM_ROPE_KV_WRITE,
];

/// The plan with every window of Ops that a rule matches replaced by one fused Op.
///
/// The plan has passed its check. Nodes that are already fused stay unchanged.
pub fn fuse(plan: &Plan, rules: &[Rule]) -> Plan {
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    let mut rest = plan.nodes.as_slice();
    while let [first, after @ ..] = rest {
        let found = rules.iter().find_map(|rule| Some((rule.kind, window(plan, rule, rest)?)));
        let Some((kind, len)) = found else {
            nodes.push(first.clone());
            rest = after;
            continue;
        };
        let (window, after) = rest.split_at(len);
        let parts = window.iter().map(|node| node.op.clone()).collect();
        nodes.push(Node { op: Op::Fused { kind, parts }, layer: first.layer });
        rest = after;
    }
    Plan { nodes, ..plan.clone() }
}

/// The plan with every fused Op replaced by its parts: the inverse of [`fuse`].
pub fn flatten(plan: &Plan) -> Plan {
    let parts = |node: &Node| {
        let layer = node.layer;
        node.op.primitives().iter().map(move |op| Node { op: op.clone(), layer }).collect::<Vec<_>>()
    };
    Plan { nodes: plan.nodes.iter().flat_map(parts).collect(), ..plan.clone() }
}

/// Number of first nodes that the rule fuses, if it matches.
fn window(plan: &Plan, rule: &Rule, nodes: &[Node]) -> Option<usize> {
    let mut len = 0;
    // Values that the Ops of each place wrote.
    let mut written: Vec<Vec<ValueId>> = Vec::with_capacity(rule.pattern.len());
    for place in rule.pattern {
        let source = place.reads.and_then(|index| written.get(index as usize));
        let fits = |node: &&Node| {
            let reads = node.op.reads();
            node.op.kind() == place.kind
                && node.layer == nodes[0].layer
                && source.is_none_or(|source| reads.iter().any(|id| source.contains(id)))
        };
        let matched: Vec<&Node> = nodes[len..].iter().take(place.max as usize).take_while(fits).collect();
        if matched.len() < place.min as usize {
            return None;
        }
        len += matched.len();
        written.push(matched.iter().flat_map(|node| node.op.writes()).collect());
    }
    let window: Vec<&Op> = nodes[..len].iter().map(|node| &node.op).collect();
    (len > 1 && same_rows(plan, &window) && keeps_promise(plan, rule.kind, &window)).then_some(len)
}

fn same_rows(plan: &Plan, window: &[&Op]) -> bool {
    let rows: Vec<RowCount> = window
        .iter()
        .flat_map(|op| op.reads().into_iter().chain(op.writes()))
        .map(|id| plan.value(id).rows)
        .collect();
    rows.iter().all(|r| *r == rows[0])
}

/// Returns true if the window has the properties that [`FusedKind`] states for its kind, beyond the
/// pattern.
fn keeps_promise(plan: &Plan, kind: FusedKind, window: &[&Op]) -> bool {
    let whole_row = |op: &Op| {
        let Op::RmsNorm { x, group, .. } = op else { return true };
        plan.value(*x).cols == *group
    };
    match kind {
        FusedKind::NormLinear => window.iter().all(|op| whole_row(op)),
        FusedKind::NormGateUp | FusedKind::GateUp => {
            let [
                ..,
                Op::Linear { x: x1, out: y1, .. },
                Op::Linear { x: x2, out: y2, .. },
                Op::Gate { gate, up, .. },
            ] = window
            else {
                return false;
            };
            window.iter().all(|op| whole_row(op))
                && x1 == x2
                && ((gate, up) == (y1, y2) || (gate, up) == (y2, y1))
        }
        FusedKind::LinearAdd | FusedKind::NormAdd => {
            let doubled = |op: &&&Op| matches!(op, Op::Add { a, b, .. } if a == b);
            window.iter().all(|op| whole_row(op)) && !window.iter().any(|op| doubled(&op))
        }
        FusedKind::QkNormRopeKvWrite | FusedKind::QkNormRopeKvAttention => two_chains(plan, window),
    }
}

/// Returns true if the norms and Ropes of a window form the chains of k and q that
/// [`FusedKind::QkNormRopeKvWrite`] describes.
fn two_chains(plan: &Plan, window: &[&Op]) -> bool {
    let written = |op: &&Op| if let Op::KvWrite { k, v, layer } = op { Some((*k, *v, *layer)) } else { None };
    let Some((k, v, layer)) = window.iter().find_map(written) else { return false };
    let head_dim = plan.kv.layer(layer).head_dim;
    let is_of_other_heads = |op: &Op| {
        matches!(op, Op::RmsNorm { group: dim, .. } | Op::Rope { head_dim: dim, .. } if *dim != head_dim)
            || matches!(op, Op::RmsNorm { weight: Some(weight), .. } if plan.weight(*weight).n_cols() != head_dim)
            || matches!(op, Op::Attention { layer: read, chunked, both_ways, .. } if *read != layer || *chunked || *both_ways)
    };
    let heads = |op: &&Op| !is_of_other_heads(op);
    // The Rope, norm, or both that produce a value, last first.
    let chain = |end: ValueId| -> Vec<ValueId> {
        let rope = window.iter().find_map(|op| {
            let Op::Rope { x, out, .. } = op else { return None };
            (*out == end).then_some(*x)
        });
        let before = rope.unwrap_or(end);
        let norm = window.iter().any(|op| matches!(op, Op::RmsNorm { out, .. } if *out == before));
        rope.map(|_| end).into_iter().chain(norm.then_some(before)).collect()
    };
    let steps: Vec<ValueId> = window
        .iter()
        .filter(|op| matches!(op, Op::RmsNorm { .. } | Op::Rope { .. }))
        .flat_map(|op| op.writes())
        .collect();
    let k_chain = chain(k);
    // The end of the q chain: the input of the attention, or, without attention, the last output
    // that is not k's.
    let q = window.iter().find_map(|op| if let Op::Attention { q, .. } = op { Some(*q) } else { None });
    let q = q.or_else(|| steps.iter().copied().rfind(|id| !k_chain.contains(id)));
    let q_chain = q.map(chain).unwrap_or_default();
    let disjoint = !q_chain.iter().any(|id| k_chain.contains(id));
    window.iter().all(heads)
        && !steps.contains(&v)
        && disjoint
        && steps.iter().all(|id| k_chain.contains(id) || q_chain.contains(id))
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
    fn fused(plan: &Plan, rules: &[Rule]) -> Plan {
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
            assert!(kinds(&fused(&plan, &[*rule])).iter().all(|kind| *kind == rule.kind));
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
        assert_eq!(kinds(&fused(&plan, &[GATE_UP])), [FusedKind::GateUp]);
        assert_eq!(kinds(&fused(&plan, &[NORM_LINEAR])), [FusedKind::NormLinear]);
    }

    #[test]
    fn linears_of_another_input_are_left_out() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let norm = b.rms_norm(x, 8);
        let q = b.linear(norm, 8, F32, false);
        let k = b.linear(x, 8, F32, false);
        let y = b.add(q, k);
        let plan = fused(&b.finish(y), &[NORM_LINEAR]);
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
            let attention = fused(&plan, &[QK_NORM_ROPE_KV_ATTENTION]);
            assert_eq!(kinds(&attention), [FusedKind::QkNormRopeKvAttention], "{bits:04b}");
            assert_eq!(attention.nodes[3].op.primitives().len(), n_ops);
            let write = fused(&plan, &[QK_NORM_ROPE_KV_WRITE]);
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
        let plan = fused(&b.finish(y), &[QK_NORM_ROPE_KV_WRITE]);
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
        let plan = fused(&b.finish(y), &[NORM_LINEAR]);
        assert_eq!(plan.escaping()[1], [norm, a, c]);
        assert_eq!(plan.escaping()[0], [x]);
        let last = plan.nodes.len() - 1;
        assert_eq!(plan.escaping()[last], [plan.argmax]);
        assert_eq!(plan.escaping()[last - 1], [plan.output]);
    }
}
