//! A model's plan, Op by Op in the order of the `model` crate's builder, with random weights.

use crate::shapes::{Experts, Layers, Shapes};
use device::{
    Activation, DType, KvLayer, Op, Plan, RopeStyle, RowCount, ValueId, Weight, WeightId, WeightPart,
};
use device_testing::{AttentionOptions, PlanBuilder, Rng, stored};
use weights::{BlockType, Bytes, Planes};

/// Number of different rows of a matrix; the other rows repeat them.
const N_DIFFERENT: usize = 16;

/// Number of different rows of the embedding: one for each token of a prompt, so that each token
/// chooses experts of its own.
pub const N_TOKENS: usize = 512;

/// Scale of the embeddings, large enough that rows stay different after random attention.
const EMBEDDING_SCALE: f32 = 16.0;

fn noise(n_out: usize, n_in: usize, block: BlockType, n_different: usize) -> Weight {
    let weight = stored(&mut Rng::new(5), "noise", n_different.min(n_out), n_in, block, 0.05);
    let data: Vec<u8> = weight.data.iter().copied().cycle().take(n_out * weight.row_bytes()).collect();
    Weight { shape: vec![n_out, n_in], data: Bytes::from_slice(&data), ..weight }
}

fn linear_of(b: &mut PlanBuilder, x: ValueId, weight: WeightId, (rows, n_out): (RowCount, usize)) -> ValueId {
    let out = b.value(rows, n_out, DType::F32);
    b.push(Op::Linear { x, weight, bias: None, out });
    out
}

fn linear(b: &mut PlanBuilder, x: ValueId, n_out: usize) -> ValueId {
    let weight = b.weight(noise(n_out, b.cols(x), BlockType::Q4_0, N_DIFFERENT));
    linear_of(b, x, weight, (RowCount::Tokens, n_out))
}

fn expert_linear(
    b: &mut PlanBuilder,
    x: ValueId,
    ids: ValueId,
    (n, n_out, n_in): (usize, usize, usize),
) -> ValueId {
    let part = noise(n_out, n_in, BlockType::Q4_0, N_DIFFERENT);
    let parts: Vec<WeightPart> = (0..n)
        .map(|_| WeightPart { data: Bytes::from_slice(&part.data), planes: Planes::default() })
        .collect();
    let weight =
        b.weight(Weight { shape: vec![n, n_out, n_in], data: Bytes::from_slice(&[]), parts, ..part });
    let out = b.value(RowCount::Tokens, b.cols(ids) * n_out, DType::F32);
    b.push(Op::ExpertLinear { x, ids, weight, out });
    out
}

fn activation(s: &Shapes) -> Activation {
    if s.sandwich { Activation::GeluTanh } else { Activation::Silu }
}

/// Network with `f(gate) * up`.
fn inner(b: &mut PlanBuilder, s: &Shapes, x: ValueId) -> ValueId {
    let (gate, up) = (linear(b, x, s.ffn), linear(b, x, s.ffn));
    b.gate(gate, up, activation(s))
}

/// Experts that a random router chooses, and their weights. All rows of the router differ, so that
/// every expert has the same probability.
fn route(b: &mut PlanBuilder, s: &Shapes, e: &Experts, routed: ValueId) -> (ValueId, ValueId) {
    let router = b.weight(noise(e.n, s.hidden, BlockType::F32, e.n));
    let scores = linear_of(b, routed, router, (RowCount::Tokens, e.n));
    b.route(scores, e.n_used, true, 1.0, s.sandwich)
}

/// Network with `f(gate) * up` of the chosen experts.
fn experts_inner(b: &mut PlanBuilder, s: &Shapes, e: &Experts, x: ValueId, ids: ValueId) -> ValueId {
    let gate = expert_linear(b, x, ids, (e.n, e.ffn, s.hidden));
    let up = expert_linear(b, x, ids, (e.n, e.ffn, s.hidden));
    b.gate(gate, up, activation(s))
}

/// Weighted sum of the chosen experts' results.
fn experts_sum(
    b: &mut PlanBuilder,
    s: &Shapes,
    e: &Experts,
    y: ValueId,
    (ids, weights): (ValueId, ValueId),
) -> ValueId {
    let y = expert_linear(b, y, ids, (e.n, s.hidden, e.ffn));
    b.expert_sum(y, weights)
}

fn attention(b: &mut PlanBuilder, s: &Shapes, layers: &Layers, x: ValueId) -> ValueId {
    let Layers { n_kv_heads, head_dim, window, keys_are_values, .. } = *layers;
    let layer =
        b.kv_layer(KvLayer { n_kv_heads, head_dim, window, encoder_states: None, values_are_keys: false });
    let norm = b.rms_norm(x, s.hidden);
    let mut q = linear(b, norm, s.n_heads * head_dim);
    let mut k = linear(b, norm, n_kv_heads * head_dim);
    let mut v = if keys_are_values { k } else { linear(b, norm, n_kv_heads * head_dim) };
    if s.sandwich {
        v = b.rms_norm_plain(v, head_dim);
    }
    if s.qk_norm {
        q = b.rms_norm(q, head_dim);
        k = b.rms_norm(k, head_dim);
    }
    let q = b.rope(q, head_dim, head_dim, RopeStyle::Half);
    let k = b.rope(k, head_dim, head_dim, RopeStyle::Half);
    b.kv_write(k, v, layer);
    let y = b.attention(q, layer, s.n_heads, AttentionOptions { window, ..AttentionOptions::default() });
    let mut y = linear(b, y, s.hidden);
    if s.sandwich {
        y = b.rms_norm(y, s.hidden);
    }
    b.add(x, y)
}

fn feed_forward(b: &mut PlanBuilder, s: &Shapes, x: ValueId) -> ValueId {
    let mut y = match &s.experts {
        None => {
            let norm = b.rms_norm(x, s.hidden);
            let y = inner(b, s, norm);
            linear(b, y, s.hidden)
        }
        Some(e) if s.ffn == 0 => {
            let norm = b.rms_norm(x, s.hidden);
            let chosen = route(b, s, e, norm);
            let y = experts_inner(b, s, e, norm, chosen.0);
            experts_sum(b, s, e, y, chosen)
        }
        Some(e) => {
            let routed = b.rms_norm(x, s.hidden);
            let chosen = route(b, s, e, routed);
            let norm = b.rms_norm(x, s.hidden);
            let dense = inner(b, s, norm);
            let norm = b.rms_norm(x, s.hidden);
            let sparse = experts_inner(b, s, e, norm, chosen.0);
            let dense = linear(b, dense, s.hidden);
            let sparse = experts_sum(b, s, e, sparse, chosen);
            let dense = b.rms_norm(dense, s.hidden);
            let sparse = b.rms_norm(sparse, s.hidden);
            b.add(dense, sparse)
        }
    };
    if s.sandwich {
        y = b.rms_norm(y, s.hidden);
    }
    let x = b.add(x, y);
    if s.sandwich { b.scale(x, 0.5) } else { x }
}

/// Plan of a model with the given layers between embedding and head. Weights are Q4_0, the
/// embedding and head Q6_K, the router F32.
pub fn plan(s: &Shapes, layers: &[&Layers]) -> Plan {
    let mut b = PlanBuilder::new(1, 64);
    let table = b.weight(noise(s.n_vocab, s.hidden, BlockType::Q6_K, N_TOKENS));
    let mut x = b.value(RowCount::Tokens, s.hidden, DType::F32);
    b.push(Op::Embed { table, scale: EMBEDDING_SCALE, out: x });
    for (index, layer) in layers.iter().enumerate() {
        b.layer(Some(index as u32));
        x = attention(&mut b, s, layer, x);
        x = feed_forward(&mut b, s, x);
    }
    b.layer(None);
    let x = b.select_rows(x);
    let x = b.rms_norm(x, s.hidden);
    let mut logits = linear_of(&mut b, x, table, (RowCount::Outputs, s.n_vocab));
    if s.sandwich {
        logits = b.softcap(logits, 30.0);
    }
    b.finish(logits)
}
