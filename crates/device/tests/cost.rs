//! Bytes and operations of nodes.

use device_lower::fusion::{self, fuse};
use device_testing::{PlanBuilder, mini_transformer};
use ingle_device::OpKind;
use weights::BlockType;

#[test]
fn a_token_reads_the_chosen_experts() {
    let mut b = PlanBuilder::new(1, 100);
    let x = b.embed(8);
    let (ids, weights) = b.route(x, 3, true, 1.0, false);
    let y = b.expert_linear((x, false), ids, (8, 5), BlockType::F16);
    let y = b.expert_sum(y, weights);
    let plan = b.finish(y);
    assert_eq!(plan.weight_bytes_per_token(), 8 * 4 + 3 * 5 * 8 * 2);
    assert_eq!(plan.ops_per_token(), 2 * 3 * 5 * 8);
    assert_eq!(plan.weights.last().unwrap().n_bytes(), 8 * 5 * 8 * 2);
}

#[test]
fn attention_multiplies_each_query_with_a_key_and_a_value() {
    let plan = mini_transformer(1, BlockType::F32);
    let queries: u64 = plan
        .primitives()
        .filter(|op| op.kind() == OpKind::Attention)
        .map(|op| {
            let q = op.reads()[0];
            plan.value(q).cols as u64
        })
        .sum();
    assert!(queries > 0);
    assert_eq!(plan.ops_per_pair(), 4 * queries);
    assert_eq!(fuse(&plan, fusion::ALL).ops_per_pair(), 4 * queries);
}

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
