//! Plans as text.

use device_lower::fusion::fuse;
use device_testing::PlanBuilder;
use ingle_device::{FusedKind, Op, ValueId, WeightId};
use weights::BlockType;

#[test]
fn a_plan_prints_one_op_a_line_with_fused_parts_below() {
    let mut b = PlanBuilder::new(1, 16);
    let x = b.embed(8);
    b.layer(Some(0));
    let norm = b.rms_norm(x, 8);
    let y = b.linear(norm, 3, BlockType::F32, true);
    b.layer(None);
    let plan = fuse(&b.finish(y), &[FusedKind::NormLinear]);
    let expected = "\
plan: 4 ops, 5 values, 4 weights (0.0 MB)
    0  v0 value 0 (tokens, 8) = embed(table 0 F32 [16, 8], scale 1)
layer 0
    1  fused norm_linear
        v1 value 1 (tokens, 8) = rms_norm(v0 value 0, weight norm 1 F32 [8], eps 1e-6, group 8)
        v2 value 2 (tokens, 3) = linear(v1 value 1, matrix 2 F32 [3, 8], bias bias 3 F32 [3])
after the layers
    2  v3 value 3 (outputs, 3) = select_rows(v2 value 2)
    3  v4 value 4 (outputs, 1) = argmax(v3 value 3)
logits v3, argmax v4
";
    assert_eq!(plan.to_string(), expected);
}

#[test]
fn ids_out_of_range_print() {
    let mut b = PlanBuilder::new(1, 16);
    let x = b.embed(8);
    let plan = b.finish(x);
    let op = Op::Linear { x: ValueId(99), weight: WeightId(98), bias: None, out: ValueId(97) };
    assert_eq!(plan.show(&op).to_string(), "v97 = linear(v99, w98)");
    assert_eq!(op.to_string(), "v97 = linear(v99, w98)");
}
