//! A small transformer, and truncated plans.

use device::{Activation, DType, KvLayer, Node, Op, Plan, RopeStyle, RowCount, Value, ValueId};
use weights::BlockType;

use crate::{AttentionOptions, PlanBuilder};

/// Two typical layers, the first with full attention, the second with a window of 20 positions, a
/// capped score and sinks. Both have norms of q and k, Rope and a gated feed-forward part; a norm
/// and a head follow. Heads have 16 columns.
pub fn mini_transformer(seed: u64, block: BlockType) -> Plan {
    mini_transformer_with(seed, block, 16)
}

/// Like [`mini_transformer`], with heads of `head_dim` columns.
pub(super) fn mini_transformer_with(seed: u64, block: BlockType, head_dim: usize) -> Plan {
    const N_HEADS: usize = 4;
    const N_KV_HEADS: usize = 2;
    let hidden = block.block_len().max(64);
    let (q_block, ffn) = if block.block_len() > 1 { (block, hidden * 2) } else { (block, 100) };
    // The output projection's input has N_HEADS * head_dim columns, which may not be whole blocks.
    let o_block = if (N_HEADS * head_dim).is_multiple_of(block.block_len()) { block } else { BlockType::F32 };
    let mut b = PlanBuilder::new(seed, 97);
    let mut x = b.embed_from(hidden, BlockType::F32, 1.0);
    for index in 0..2 {
        b.layer(Some(index));
        let window = (index == 1).then_some(20);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: N_KV_HEADS,
            head_dim,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let residual = b.select_rows_of_last(x, index == 1);
        let norm = b.rms_norm(x, hidden);
        let q = b.linear(norm, N_HEADS * head_dim, q_block, index == 1);
        let k = b.linear(norm, N_KV_HEADS * head_dim, q_block, index == 1);
        let v = b.linear(norm, N_KV_HEADS * head_dim, q_block, index == 1);
        let q = b.rms_norm(q, head_dim);
        let k = b.rms_norm(k, head_dim);
        let q = b.rope(q, head_dim, head_dim, RopeStyle::Half);
        let k = b.rope(k, head_dim, head_dim, RopeStyle::Half);
        b.kv_write(k, v, layer);
        let options = AttentionOptions {
            softcap: window.map(|_| 30.0),
            window,
            chunked: false,
            both_ways: false,
            sinks: window.is_some(),
        };
        let y = b.attention(q, layer, N_HEADS, options);
        let y = b.select_rows_of_last(y, index == 1);
        let y = b.linear(y, hidden, o_block, false);
        x = b.add(residual, y);
        let norm = b.rms_norm(x, hidden);
        let gate = b.linear(norm, ffn, block, false);
        let up = b.linear(norm, ffn, block, false);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.linear(y, hidden, block, false);
        x = b.add(x, y);
    }
    b.layer(None);
    let x = b.rms_norm(x, hidden);
    let logits = b.linear(x, 97, block, false);
    b.finish(logits)
}

/// The plan up to the node that writes `value`, which becomes the logits. `None` if no node writes
/// it, if it is not f32, or if it has several rows for each token.
///
/// A fused node that writes it is replaced by its parts up to the value. Comparing a device with
/// the interpreter on truncated plans finds the first Op that differs. The embedding table of a
/// checked plan has a row for each logit, so the result is also `None` if `value` is wider and
/// [`Plan::check`] fails.
pub fn truncate(plan: &Plan, value: ValueId) -> Option<Plan> {
    let index = plan.nodes.iter().position(|node| node.op.writes().contains(&value))?;
    let mut cut = plan.clone();
    cut.nodes.truncate(index);
    let last = &plan.nodes[index];
    for op in last.op.primitives() {
        cut.nodes.push(Node { op: op.clone(), ..*last });
        if op.writes().contains(&value) {
            break;
        }
    }
    let Value { rows, cols, .. } = *cut.value(value);
    let mut push = |x: ValueId, cols: usize, dtype: DType, op: fn(ValueId, ValueId) -> Op| {
        let out = ValueId(cut.values.len() as u32);
        cut.values.push(Value { name: format!("end {}", out.0), rows: RowCount::Outputs, cols, dtype });
        cut.nodes.push(Node { op: op(x, out), layer: None, place: None });
        out
    };
    let logits = match rows {
        RowCount::Outputs => value,
        RowCount::Tokens | RowCount::PerToken(1) => {
            push(value, cols, DType::F32, |x, out| Op::SelectRows { x, out })
        }
        RowCount::PerToken(_) => return None,
    };
    let argmax = push(logits, 1, DType::U32, |x, out| Op::Argmax { x, out });
    (cut.output, cut.argmax) = (logits, argmax);
    let written: Vec<ValueId> = cut.nodes.iter().flat_map(|node| node.op.writes()).collect();
    cut.kept.retain(|id| written.contains(id));
    cut.check().is_ok().then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_lower::fusion::{self, fuse};

    #[test]
    fn a_plan_can_end_at_any_value() {
        let plain = mini_transformer(1, BlockType::F32);
        for plan in [fuse(&plain, fusion::ALL), plain] {
            let ends = (0..plan.values.len() as u32).filter_map(|id| {
                let value = ValueId(id);
                let cut = truncate(&plan, value)?;
                assert!(cut.nodes.len() <= fusion::flatten(&plan).nodes.len() + 2);
                cut.check().unwrap();
                Some(value)
            });
            // Every value except the argmax and the feed-forward values that are wider than the
            // vocabulary.
            assert_eq!(ends.count(), plan.values.len() - 6 - 1);
        }
    }
}
