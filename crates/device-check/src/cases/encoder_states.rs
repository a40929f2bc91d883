//! Programs of several plans: numeric inputs, windows of rows, and encoder states that one plan
//! writes and others read.

use weights::BlockType;

use super::{Case, N_TOKENS, SUM, kv_types, stored};
use crate::BEST_AND_LOGITS;
use crate::{AttentionOptions, PlanBuilder, Sequences, limits};
use device::{Activation, DType, KvLayer, KvLayerId, KvType, Limits, Op, OpKind, OutputKind, Plan, RowCount};

/// Input and Unfold with one to six rows for each token, and several spans in a step.
pub fn inputs() -> Vec<Case> {
    let mut cases = vec![];
    // (columns, rows for each token, size of the first window, of the second, its stride)
    for (cols, per_token, first, second, stride) in [
        (1, 1, 3, 1, 1),
        (5, 1, 1, 5, 1),
        (80, 2, 3, 3, 2),
        (17, 3, 2, 4, 3),
        (33, 4, 7, 3, 2),
        (8, 6, 3, 6, 3),
    ] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let x = b.input(cols, per_token);
        let y = b.unfold(x, first, 1);
        b.keep(y);
        let y = b.linear(y, 19, BlockType::F32, true);
        let y = b.activate(y, Activation::GeluErf);
        b.keep(y);
        let y = b.unfold(y, second, stride);
        let y = b.linear(y, 35, BlockType::F16, true);
        b.keep(y);
        // Down to one row for each token.
        let y = b.unfold(y, 1, per_token / stride);
        let y = b.layer_norm(y, true);
        let plan = b.finish(y);
        let limits = limits(&plan.kv);
        let mut sequences = Sequences::new(cols as u64, &plan.kv, &limits, N_TOKENS);
        let spans: [&[(usize, usize)]; 5] =
            [&[(0, 1)], &[(0, 3)], &[(0, 2), (1, 5)], &[(2, 17), (0, 1), (1, 3)], &[(1, 64)]];
        let mut steps = vec![];
        for spans in spans {
            let mut step = sequences.step(spans);
            step.input = sequences.numbers(step.tokens.len() * per_token * cols);
            steps.push(step);
        }
        let name = format!("input of {per_token}x{cols}, windows {first} and {second} by {stride}");
        let (kind, block, plans) = (OpKind::Unfold, BlockType::F32, vec![plan]);
        cases.push(Case { name, kind, block, plans, limits, steps, tolerance: 5.0 * SUM });
    }
    // A plan with an input for output rows only, and nothing else.
    let mut b = PlanBuilder::new(1, N_TOKENS as usize);
    let x = b.value(RowCount::Outputs, 7, DType::F32);
    b.push(Op::Input { out: x });
    let plan = b.finish(x);
    let limits = limits(&plan.kv);
    let mut sequences = Sequences::new(1, &plan.kv, &limits, N_TOKENS);
    let mut step = sequences.step(&[(0, 5), (1, 2)]);
    step = step.with_outputs(vec![1, 6], BEST_AND_LOGITS);
    step.input = sequences.numbers(2 * 7);
    let (name, plans, steps) = ("input of outputs".to_owned(), vec![plan], vec![step]);
    cases.push(Case {
        name,
        kind: OpKind::Input,
        block: BlockType::F32,
        plans,
        limits,
        steps,
        tolerance: 0.0,
    });
    cases
}

/// The shape of a case of encoder states.
#[derive(Clone, Copy)]
struct Shape {
    n_kv_heads: usize,
    /// Query heads for each KV head.
    ratio: usize,
    head_dim: usize,
    n_states: usize,
    /// Input rows for each position.
    per_token: usize,
}

impl Shape {
    /// Two layers of encoder states around one of the sequence, so that layers and groups have
    /// different orders.
    fn layers(self, b: &mut PlanBuilder) -> [KvLayerId; 3] {
        let Shape { n_kv_heads, head_dim, n_states, .. } = self;
        let layer = |encoder_states| KvLayer {
            n_kv_heads,
            head_dim,
            window: None,
            encoder_states,
            values_are_keys: false,
        };
        [Some(n_states), None, Some(n_states)].map(|n| b.kv_layer(layer(n)))
    }

    /// A plan that stores encoder states: windows of an input, attention to all of it, keys and
    /// values for both layers, and one kept value.
    fn writer(self) -> Plan {
        let mut b = PlanBuilder::new(self.n_states as u64, N_TOKENS as usize);
        let [first, _, second] = self.layers(&mut b);
        let cols = self.n_kv_heads * self.head_dim;
        let x = b.input(9, self.per_token);
        let x = b.unfold(x, 3, self.per_token);
        let x = b.linear(x, cols, BlockType::F32, true);
        let y = b.self_attention(x, x, x, self.n_kv_heads);
        b.keep(y);
        for layer in [first, second] {
            let (k, v) = (b.linear(y, cols, BlockType::F32, false), b.linear(x, cols, BlockType::F32, true));
            b.kv_write(k, v, layer);
        }
        Plan { output_kind: OutputKind::Hidden, ..b.finish(y) }
    }

    /// A plan with attention to the sequence, then to the encoder states of both layers, with or
    /// without scores of some heads.
    fn reader(self, scores: bool) -> Plan {
        let Shape { n_kv_heads, ratio, head_dim, .. } = self;
        let n_heads = n_kv_heads * ratio;
        let mut b = PlanBuilder::new(self.n_states as u64 + 1, N_TOKENS as usize);
        let [first, own, second] = self.layers(&mut b);
        let q = b.embed_from(n_heads * head_dim, BlockType::F32, 2.0);
        let (k, v) = (b.embed(n_kv_heads * head_dim), b.embed(n_kv_heads * head_dim));
        b.kv_write(k, v, own);
        let x = b.attention(q, own, n_heads, AttentionOptions::default());
        let x = b.add(x, q);
        if scores {
            for heads in [vec![n_heads - 1], (0..n_heads).rev().chain([0]).collect()] {
                let y = b.cross_scores(x, first, n_heads, &heads);
                b.keep(y);
            }
        }
        let y = b.cross_attention(x, first, n_heads);
        b.keep(y);
        let x = b.add(x, y);
        let y = b.cross_attention(x, second, n_heads);
        b.finish(y)
    }
}

/// Programs of a writer, a reader, and a reader that keeps scores. Slots share the pages of encoder
/// states beside a slot with its own; the states fill no whole number of pages, and are written
/// again.
pub fn encoder_states() -> Vec<Case> {
    let mut cases = vec![];
    for (n_kv_heads, ratio, head_dim, n_states, per_token) in [
        (1, 1, 16, 1, 1),
        (2, 1, 64, 37, 2),
        (3, 2, 32, 64, 1),
        (1, 8, 80, 50, 3),
        (2, 3, 12, 100, 2),
        (1, 1, 256, 17, 1),
        (3, 1, 64, 150, 2),
    ] {
        let shape = Shape { n_kv_heads, ratio, head_dim, n_states, per_token };
        let plans = vec![shape.writer(), shape.reader(false), shape.reader(true)];
        for kv_type in kv_types(&plans[0]) {
            let sizes = limits(&plans[0].kv);
            let limits = Limits { max_rows: sizes.max_rows.max(2 * n_states), kv_type, ..sizes };
            let mut sequences = Sequences::new(n_states as u64, &plans[0].kv, &limits, N_TOKENS);
            let mut steps = vec![sequences.write_encoder_states(0, &[0, 3], n_states, 9 * per_token)];
            sequences.share_encoder_states(0, 1);
            sequences.share_encoder_states(0, 2);
            let reads: [(usize, &[(usize, usize)]); 6] = [
                (1, &[(0, 4)]),
                (1, &[(0, 1), (1, 3), (2, 2), (3, 1)]),
                (1, &[(0, 1), (1, 1), (2, 1)]),
                (2, &[(3, 5), (1, 1), (0, 30)]),
                (2, &[(2, 1)]),
                (1, &[(3, 1)]),
            ];
            for (plan, spans) in reads {
                let mut step = sequences.step(spans);
                step.plan = plan;
                steps.push(step);
            }
            let mut write = sequences.write_encoder_states(0, &[1], n_states, 9 * per_token);
            write = write.with_outputs(vec![0, n_states as u32 / 2], BEST_AND_LOGITS);
            write.outputs.dedup();
            write.wants.truncate(write.outputs.len());
            steps.push(write);
            let mut step = sequences.step(&[(0, 1), (1, 1), (3, 1)]);
            step.plan = 1;
            steps.push(step);
            let name = format!(
                "{n_states} encoder states, {n_kv_heads}x{ratio}x{head_dim}, {per_token} a token, kv {kv_type:?}"
            );
            cases.push(Case {
                name,
                kind: OpKind::CrossAttention,
                block: BlockType::F32,
                plans: plans.clone(),
                limits,
                steps,
                // Three attentions in sequence, whose softmax amplifies differences.
                tolerance: stored(5.0 * SUM, kv_type) * if kv_type == KvType::F32 { 1.0 } else { 2.0 },
            });
        }
    }
    cases
}
