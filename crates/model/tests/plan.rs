//! The plan's structure: Ops in the order of their places, weights as views of the file, one weight
//! for a tied head.
#![allow(clippy::unwrap_used)]

use crate::common;
use device::{Node, Op, OpKind, Plan};
use device_lower::fusion::{self, fuse};
use model::ModelSpec;

fn plan(name: &str) -> (ModelSpec, Plan) {
    let checkpoint = common::open(name);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let plan = spec.plan(&checkpoint).unwrap();
    plan.check().unwrap();
    (spec, plan)
}

/// Kinds of the Ops of one layer, or of those outside the layers.
fn kinds(plan: &Plan, layer: Option<u32>) -> Vec<OpKind> {
    plan.nodes.iter().filter(|n| n.layer == layer).map(|n| n.op.kind()).collect()
}

#[test]
fn a_plain_layer() {
    use OpKind::*;
    let (spec, plan) = plan("llama");
    let layer = [
        RmsNorm, Linear, Linear, Linear, Rope, Rope, KvWrite, Attention, Linear, Add, //
        RmsNorm, Linear, Linear, Gate, Linear, Add,
    ];
    let last = spec.n_layers() as u32 - 1;
    for l in 0..last {
        assert_eq!(kinds(&plan, Some(l)), layer);
    }
    assert_eq!(kinds(&plan, None), [Embed, RmsNorm, Linear, Argmax]);
    // After the last attention only output rows are computed.
    let of_outputs = [
        SelectRows, RmsNorm, Linear, Linear, Linear, Rope, Rope, KvWrite, Attention, SelectRows, Linear,
        Add, //
        RmsNorm, Linear, Linear, Gate, Linear, Add,
    ];
    assert_eq!(kinds(&plan, Some(last)), of_outputs);
    assert_eq!(plan.kv.groups.len(), 1);
}

#[test]
fn norms_around_branches_and_of_queries_and_keys() {
    use OpKind::*;
    let (_, plan) = plan("gemma3");
    let layer = [
        RmsNorm, Linear, Linear, Linear, RmsNorm, RmsNorm, Rope, Rope, KvWrite, Attention, Linear, RmsNorm,
        Add, //
        RmsNorm, Linear, Linear, Gate, Linear, RmsNorm, Add,
    ];
    assert_eq!(kinds(&plan, Some(0)), layer);
    let windows: Vec<Option<usize>> = plan.kv.groups.iter().map(|g| g.window).collect();
    assert_eq!(windows, [None, Some(16)]);
}

#[test]
fn a_layer_without_rotation_has_no_rope() {
    let (spec, plan) = plan("smollm3");
    for l in 0..4 {
        let n = kinds(&plan, Some(l)).iter().filter(|k| **k == OpKind::Rope).count();
        assert_eq!(n, if l == 3 { 0 } else { 2 }, "layer {l}");
    }
    assert!(spec.layers[3].rope.is_none());
}

#[test]
fn a_tied_head_is_the_embedding() {
    for (name, tied) in [("llama", true), ("mistral", false)] {
        let (spec, plan) = plan(name);
        assert_eq!(spec.tied_head, tied);
        let table = plan.nodes.iter().find_map(|n| match n.op {
            Op::Embed { table, .. } => Some(table),
            _ => None,
        });
        let head = plan.nodes.iter().find_map(|n| match n.op {
            Op::Linear { weight, out, .. } if out == plan.output => Some(weight),
            _ => None,
        });
        assert_eq!(table == head, tied, "{name}");
    }
}

#[test]
fn matrices_are_views_of_the_file_fused_ones_too() {
    let (_, plan) = plan("phi3");
    let find = |name: &str| plan.weights.iter().find(|w| w.name == name).unwrap();
    let k = find("model.layers.1.self_attn.qkv_proj.weight[64..96]");
    assert_eq!(k.shape, [32, 64]);
    let up = find("model.layers.1.mlp.gate_up_proj.weight[160..320]");
    assert_eq!(up.shape, [160, 64]);
    for weight in plan.weights.iter().filter(|w| w.shape.len() == 2) {
        assert!(weight.data.is_mapped(), "{} was copied", weight.name);
    }
}

#[test]
fn biases_are_found_where_the_file_has_them() {
    let (_, plan) = plan("qwen2");
    let biased = plan.nodes.iter().filter(|n| matches!(n.op, Op::Linear { bias: Some(_), .. })).count();
    assert_eq!(biased, 3 * 4);
}

#[test]
fn parameters_are_counted_once() {
    let checkpoint = common::open("llama");
    let all: usize = checkpoint.tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
    assert_eq!(ModelSpec::from_checkpoint(&checkpoint).unwrap().n_parameters, all as u64);
}

#[test]
fn values_have_names_that_say_where_they_are() {
    let (_, plan) = plan("qwen3");
    for name in ["embedding", "layer 3 q", "layer 3 q norm", "layer 0 gate", "logits", "best token"] {
        assert!(plan.values.iter().any(|v| v.name == name), "{name}");
    }
}

#[test]
fn experts_are_views_of_the_file_wherever_they_lie() {
    use OpKind::*;
    for (name, weight) in [
        ("qwen3_moe", "model.layers.1.mlp.experts.*.gate_proj.weight"),
        ("gemma4_moe", "model.layers.1.experts.gate_up_proj (up projection of the experts)"),
    ] {
        let (_, plan) = plan(name);
        let found = plan.weights.iter().find(|w| w.name == weight).unwrap_or_else(|| panic!("{weight}"));
        assert_eq!((found.shape.as_slice(), found.parts.len()), (&[8, 48, 64][..], 8));
        assert!(found.parts.iter().all(|part| part.data.is_mapped() && part.data.len() == 48 * 64 * 2));
        // A token uses two of eight experts.
        let all: u64 = plan.weights.iter().map(device::Weight::n_bytes).sum();
        let experts: u64 = plan.weights.iter().flat_map(|w| &w.parts).map(device::WeightPart::n_bytes).sum();
        let n_vocab = plan.value(plan.output).cols as u64;
        let table = if name == "qwen3_moe" { (n_vocab - 1) * 64 * 2 } else { 0 };
        let rope_and_rest = all - experts * 3 / 4 - table;
        assert!(plan.weight_bytes_per_token() <= rope_and_rest + 64 * 2, "{name}");
        assert!(plan.weight_bytes_per_token() > experts / 4, "{name}");
    }
    let (_, plan) = plan("qwen3_moe");
    let layer = kinds(&plan, Some(2));
    let network = [RmsNorm, Linear, Route, ExpertLinear, ExpertLinear, Gate, ExpertLinear, ExpertSum, Add];
    assert_eq!(layer[layer.len() - network.len()..], network);
}

#[test]
fn layers_that_share_keys_write_none() {
    let (spec, plan) = plan("gemma4_e2b");
    // Five of ten layers have keys of their own. The others read those of layer 3 or, with full
    // attention, of layer 4.
    assert_eq!(plan.kv.layers.len(), 5);
    for l in 0..10u32 {
        let n = kinds(&plan, Some(l)).iter().filter(|k| **k == OpKind::KvWrite).count();
        assert_eq!(n, usize::from(l < 5), "layer {l}");
        let read = plan.nodes.iter().find_map(|n| match n.op {
            Op::Attention { layer, .. } if n.layer == Some(l) => Some(layer.0),
            _ => None,
        });
        assert_eq!(read, Some(if l == 9 { 4 } else { l.min(3).max(l * u32::from(l == 4)) }), "layer {l}");
        assert_eq!(spec.layers[l as usize].ffn, if l < 5 { 160 } else { 320 });
    }
    // The table of per-layer embeddings is not read whole: a token reads one row.
    let table = plan.weights.iter().find(|w| w.name.contains("embed_tokens_per_layer")).unwrap();
    let head = plan.weights.iter().find(|w| w.name == "model.embed_tokens.weight").unwrap();
    let all: u64 = plan.weights.iter().map(device::Weight::n_bytes).sum();
    let unread = table.n_bytes() - table.row_bytes() as u64;
    assert_eq!(plan.weight_bytes_per_token(), all - unread + head.row_bytes() as u64);
}

#[test]
fn a_layer_without_a_value_projection_makes_values_of_keys() {
    let (spec, plan) = plan("gemma4_moe");
    for (l, layer) in spec.layers.iter().enumerate() {
        assert_eq!(layer.keys_are_values, l % 3 == 2);
        assert_eq!((layer.head_dim, layer.n_kv_heads), if l % 3 == 2 { (64, 1) } else { (32, 2) });
        let v = plan.values.iter().any(|v| v.name == format!("layer {l} v"));
        assert_eq!(v, l % 3 != 2, "layer {l}");
    }
}

#[test]
fn a_spec_describes_itself() {
    let (spec, _) = plan("gemma3");
    let text = spec.to_string();
    for part in [
        "Gemma 3 (Hugging Face names)",
        "0-1, 3-4: 4 query",
        "a window of 16",
        "embedding scale    8",
        "2, 5: 4 query",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// Returns true if `b` must run after `a`.
fn depends(a: &Node, b: &Node) -> bool {
    let writes = a.op.writes();
    let reads_cache = matches!((&a.op, &b.op), (Op::KvWrite { .. }, Op::Attention { .. }));
    reads_cache || b.op.reads().iter().any(|id| writes.contains(id))
}

/// A builder may emit the Ops of a layer in any order that data flow allows. Here each Op comes as
/// late as its place is early.
#[test]
fn places_make_neighbours_of_ops_that_fuse() {
    let mut n_moved = 0;
    for name in common::all() {
        let (_, plan) = plan(name);
        let mut other = plan.clone();
        let may_swap = |a: &Node, b: &Node| a.layer == b.layer && b.place > a.place && !depends(a, b);
        let next =
            |nodes: &[Node]| nodes.windows(2).position(|w| w[0].place.is_some() && may_swap(&w[0], &w[1]));
        while let Some(at) = next(&other.nodes) {
            other.nodes.swap(at, at + 1);
        }
        other.check().unwrap();
        n_moved += usize::from(fuse(&other, fusion::ALL).nodes.len() > fuse(&plan, fusion::ALL).nodes.len());
        other.arrange();
        assert_eq!(fuse(&other, fusion::ALL).nodes, fuse(&plan, fusion::ALL).nodes, "{name}");
    }
    assert!(n_moved > 30, "only {n_moved} plans fuse worse if their Ops are in another order");
}
