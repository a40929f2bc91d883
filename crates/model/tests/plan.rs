//! The plan's shape: Ops in the order that fusion looks for, weights as views of the file, one weight for a tied head.
#![allow(clippy::unwrap_used)]

mod common;

use device::{Op, OpKind, Plan};
use model::ModelSpec;

fn plan(name: &str) -> (ModelSpec, Plan) {
    let checkpoint = common::open(name);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let plan = spec.plan(&checkpoint).unwrap();
    plan.check().unwrap();
    (spec, plan)
}

/// Kinds of the Ops of one layer, or of none.
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
    for l in 0..spec.n_layers() as u32 {
        assert_eq!(kinds(&plan, Some(l)), layer);
    }
    assert_eq!(kinds(&plan, None), [Embed, SelectRows, RmsNorm, Linear, Argmax]);
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
            Op::Linear { weight, out, .. } if out == plan.logits => Some(weight),
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
