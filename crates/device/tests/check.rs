//! Every way in which a plan can contradict itself is found and described.

use device_testing::{PlanBuilder, mini_transformer};
use ingle_device::*;

use weights::{BlockType, Bytes};

fn good() -> Plan {
    mini_transformer(3, BlockType::F32)
}

/// Asserts that the edited plan fails its check, and that the message contains `part`.
fn rejects(edit: impl FnOnce(&mut Plan), part: &str) {
    let mut plan = good();
    edit(&mut plan);
    let error = plan.check().unwrap_err().to_string();
    assert!(error.contains(part), "{error}\nshould say: {part}");
}

/// The first Op of the plan for which `pick` returns something.
fn first<'a, T>(plan: &'a mut Plan, pick: impl Fn(&'a mut Op) -> Option<T>) -> T {
    plan.nodes.iter_mut().find_map(|n| pick(&mut n.op)).unwrap()
}

#[test]
fn a_consistent_plan_passes() {
    good().check().unwrap();
}

#[test]
fn order_and_single_assignment() {
    rejects(|p| p.nodes.swap(1, 2), "not written yet");
    rejects(|p| p.nodes.insert(1, p.nodes[0].clone()), "written before");
    rejects(
        |p| {
            let write = p.nodes.iter().position(|n| matches!(n.op, Op::KvWrite { .. })).unwrap();
            p.nodes.remove(write);
        },
        "a kv_write before",
    );
    rejects(|p| p.nodes.truncate(3), "output");
    rejects(|p| p.argmax = p.output, "(outputs, 1) U32");
    rejects(|p| p.output = ValueId(9999), "v9999");
}

#[test]
fn ids_out_of_range() {
    rejects(|p| p.values.truncate(2), "one of the plan's 2 values");
    rejects(|p| p.weights.truncate(2), "one of the plan's 2 weights");
    rejects(|p| p.kv = KvLayout::default(), "one of the cache's 0 layers");
    rejects(|p| p.kv.groups.clear(), "one group of window");
}

#[test]
fn shapes() {
    rejects(|p| p.values[1].cols += 1, "the output's (tokens, 65)");
    rejects(|p| p.values[1].rows = RowCount::Outputs, "the output's (outputs,");
    rejects(
        |p| {
            *first(p, |op| if let Op::RmsNorm { group, .. } = op { Some(group) } else { None }) = 5;
        },
        "a divisor of the",
    );
    rejects(
        |p| {
            *first(p, |op| if let Op::Rope { n_dims, .. } = op { Some(n_dims) } else { None }) = 3;
        },
        "an even number up to head_dim",
    );
    rejects(
        |p| {
            *first(p, |op| if let Op::Attention { n_heads, .. } = op { Some(n_heads) } else { None }) = 5;
        },
        "a multiple of the",
    );
    rejects(
        |p| {
            *first(p, |op| if let Op::Attention { window, .. } = op { Some(window) } else { None }) = Some(0);
        },
        "within the layer's window",
    );
    rejects(|p| p.values[p.argmax.0 as usize].dtype = DType::F32, "(outputs, 1) U32");
}

#[test]
fn weights_hold_the_bytes_of_their_shape() {
    let weight =
        |op: &mut Op| if let Op::Linear { weight, .. } = op { Some(weight.0 as usize) } else { None };
    let edit = |change: fn(&mut Weight)| {
        move |p: &mut Plan| {
            let index = first(p, weight);
            change(&mut p.weights[index]);
        }
    };
    rejects(edit(|w| w.data = Bytes::from_slice(&w.data[1..])), "bytes");
    rejects(edit(|w| w.shape = vec![usize::MAX, usize::MAX]), "more than fit");
    rejects(edit(|w| w.shape = vec![0, 8]), "dimensions of at least 1");
    rejects(edit(|w| w.shape = vec![]), "dimensions of at least 1");
    rejects(edit(|w| w.block = BlockType::Q4_K), "whole Q4_K blocks of 256");
    rejects(edit(|w| w.block = BlockType::F16), "bytes");
    rejects(edit(|w| w.planes.scales = Some(Bytes::from_slice(&[0; 4]))), "scales and offsets of 4 bytes");
    let norm = |op: &mut Op| {
        if let Op::RmsNorm { weight: Some(w), .. } = op { Some(w.0 as usize) } else { None }
    };
    rejects(
        |p| {
            let index = first(p, norm);
            p.weights[index] = Weight::vector("short", &[1.0; 3]);
        },
        "F32 [",
    );
}

#[test]
fn scales_and_offsets_fit_the_shape() {
    let affine = weights::Affine::new(4, 64, weights::ScaleType::BF16, false).unwrap();
    let plan = |edit: &dyn Fn(&mut Weight)| {
        let mut b = PlanBuilder::new(1, 10);
        let x = b.embed(128);
        let y = b.linear(x, 10, BlockType::Affine(affine), false);
        let mut plan = b.finish(y);
        edit(&mut plan.weights[1]);
        plan.check().map_err(|e| e.to_string())
    };
    plan(&|_| {}).unwrap();
    let short = |plane: &Option<Bytes>| plane.as_ref().and_then(|p| p.slice(0..39));
    let edits: [&dyn Fn(&mut Weight); 3] = [
        &|w| w.planes.scales = short(&w.planes.scales),
        &|w| w.planes.biases = short(&w.planes.biases),
        &|w| w.planes.biases = None,
    ];
    for edit in edits {
        let error = plan(edit).unwrap_err();
        assert!(error.contains("for each of 10 rows 4 of scales and 4 of offsets"), "{error}");
    }
}

#[test]
fn a_table_smaller_than_the_logits_is_rejected() {
    let mut b = PlanBuilder::new(1, 10);
    let x = b.embed(4);
    let y = b.linear(x, 11, BlockType::F32, false);
    let mut plan = b.finish(y);
    plan.weights[0] =
        Weight { shape: vec![10, 4], data: Bytes::from_slice(&[0; 160]), ..plan.weights[0].clone() };
    let error = plan.check().unwrap_err().to_string();
    assert!(error.contains("a table of 10 rows") && error.contains("11 logits"), "{error}");
}

#[test]
fn experts_fit_their_router() {
    let plan = |edit: &dyn Fn(&mut Plan)| {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let (ids, weights) = b.route(x, 3, true, 1.0, false);
        let y = b.expert_linear((x, false), ids, (8, 5), BlockType::F32);
        let y = b.expert_sum(y, weights);
        let mut plan = b.finish(y);
        edit(&mut plan);
        plan.check().map_err(|e| e.to_string())
    };
    plan(&|_| {}).unwrap();
    let rejects = |edit: &dyn Fn(&mut Plan), part: &str| {
        let error = plan(edit).unwrap_err();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    };
    rejects(&|p| drop(p.weights[1].parts.pop()), "bytes in 7 parts");
    rejects(&|p| p.weights[1].parts[3].data = Bytes::from_slice(&[0; 4]), "parts");
    rejects(
        &|p| p.weights[1].parts[3].planes.biases = Some(Bytes::from_slice(&[0; 4])),
        "scales and offsets of 4 bytes",
    );
    rejects(
        &|p| {
            p.weights[1].parts.pop();
            p.weights[1].shape[0] = 7;
        },
        "the number of experts of the router",
    );
    rejects(&|p| p.weights[1].shape = vec![8, 8, 5], "8 columns");
    rejects(&|p| p.values[1].dtype = DType::F32, "U32");
    rejects(&|p| p.values[1].cols = 9, "columns");
}

#[test]
fn fused_ops_hold_primitives() {
    rejects(|p| p.nodes[0].op = Op::Fused { kind: FusedKind::NormAdd, parts: vec![] }, "at least 2");
    rejects(
        |p| {
            let fused = Op::Fused { kind: FusedKind::NormAdd, parts: vec![] };
            p.nodes[0].op = Op::Fused { kind: FusedKind::NormAdd, parts: vec![p.nodes[0].op.clone(), fused] };
        },
        "primitives",
    );
}
