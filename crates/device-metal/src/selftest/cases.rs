//! Cases of the report beyond those of all devices: kernel functions that only some shapes or types
//! need. Their kernels have tests of their own on the emulated GPU, with more shapes.

use device::{Activation, KvLayer, KvType, Limits, OpKind, OutputKind, Plan, ValueId};
use device_check::{
    AttentionOptions, Case, PlanBuilder, RecurrentShape, Sequences, block_types, check_op_cases, limits,
};
use weights::BlockType;

/// Tokens that steps draw from.
const N_TOKENS: u32 = 64;

/// Bound of a layer: products in f32 in any order, and norms of their sums.
const LAYER: f32 = 4e-4;

/// Bound of attention over keys and values in F16 or F32, then in Q8_0 (`device-check`).
const STORED: [f32; 2] = [2e-3, 3e-2];

/// Types of weights whose last of three products has a kernel with the other two.
const PAIRS: [(BlockType, BlockType); 6] = {
    use BlockType::*;
    [(Q2_K, Q4_K), (Q3_K, Q5_K), (Q4_K, Q5_K), (Q4_K, Q6_K), (Q5_0, Q8_0), (Q5_K, Q6_K)]
};

/// All cases of the report, in no particular order.
pub fn report_cases() -> Vec<Case> {
    check_op_cases().into_iter().chain(further_cases()).collect()
}

/// The cases beyond those of all devices.
pub fn further_cases() -> Vec<Case> {
    let mut types: Vec<BlockType> = vec![];
    for block in block_types() {
        let is_known =
            |known: &BlockType| crate::kernels::type_name(*known) == crate::kernels::type_name(block);
        if !types.iter().any(is_known) {
            types.push(block);
        }
    }
    let mut cases: Vec<Case> = types.into_iter().map(|block| layers(block, block)).collect();
    cases.extend(PAIRS.map(|(block, last)| layers(block, last)));
    for kv_type in [KvType::F32, KvType::F16, KvType::Q8_0] {
        cases.extend([512, 576].map(|head_dim| wide_heads(head_dim, kv_type)));
    }
    cases.push(wide_rows());
    cases.push(encoder_states());
    cases.extend([OpKind::GatedDelta, OpKind::SelectiveScan].map(wide_states));
    cases
}

fn case(name: String, kind: OpKind, block: BlockType, plan: Plan, kv_type: KvType, tolerance: f32) -> Case {
    let limits = Limits { kv_type, ..limits(&plan.kv) };
    let mut sequences = Sequences::new(name.len() as u64, &plan.kv, &limits, N_TOKENS);
    let spans: [&[(usize, usize)]; 6] =
        [&[(0, 1)], &[(0, 9), (1, 3)], &[(0, 1)], &[(1, 40), (2, 2)], &[(0, 1), (1, 1)], &[(1, 3), (2, 2)]];
    let steps = spans.iter().map(|spans| sequences.step(spans)).collect();
    let of_kv = STORED[usize::from(kv_type == KvType::Q8_0)];
    let tolerance = if plan.kv.layers.is_empty() { tolerance } else { tolerance.max(of_kv) };
    Case { name, kind, block, plans: vec![plan], limits, steps, tolerance }
}

/// Two layers with norms before and after attention and network, then experts. All matrices have a
/// type, but for that of values. The queries of the second layer, and the experts, have enough rows
/// that one row of x takes eight rows of a weight at once (`Profile::weight_rows`).
fn layers(block: BlockType, last: BlockType) -> Case {
    let hidden = block.block_len().max(last.block_len()).max(64);
    let mut b = PlanBuilder::new(hidden as u64, N_TOKENS as usize);
    let mut x = b.embed(hidden);
    for (index, n_heads, head_dim) in [(0, 4, 64), (1, 16, 128)] {
        b.layer(Some(index));
        let norm = b.rms_norm(x, hidden);
        let heads = [(n_heads * head_dim, block), (2 * head_dim, block), (2 * head_dim, last)];
        let [q, k, v] = heads.map(|(n_out, block)| b.linear(norm, n_out, block, false));
        let y = attention(&mut b, [q, k, v], 2, head_dim, n_heads, false);
        x = branch(&mut b, x, y, block);
        let norm = b.rms_norm(x, hidden);
        let [gate, up] = [0, 1].map(|_| b.linear(norm, hidden, block, false));
        let y = b.gate(gate, up, Activation::Silu);
        x = branch(&mut b, x, y, block);
    }
    let norm = b.rms_norm(x, hidden);
    let router = b.linear(norm, 3, BlockType::F32, false);
    // All experts are chosen, so that rounding chooses no others.
    let (ids, weights) = b.route(router, 3, true, 1.0, false);
    let [gate, up] = [0, 1].map(|_| b.expert_linear((norm, false), ids, (3, 512), block));
    let y = b.gate(gate, up, Activation::Silu);
    let y = b.expert_linear((y, true), ids, (3, hidden), block);
    let y = b.expert_sum(y, weights);
    let x = b.add(x, y);
    b.layer(None);
    let name = if block == last { format!("layers {block}") } else { format!("layers {block}, {last}") };
    case(name, OpKind::Fused, block, b.finish(x), KvType::F16, LAYER)
}

/// `x + norm(product(y))`
fn branch(b: &mut PlanBuilder, x: ValueId, y: ValueId, block: BlockType) -> ValueId {
    let hidden = b.cols(x);
    let y = b.linear(y, hidden, block, false);
    let y = b.rms_norm(y, hidden);
    b.add(x, y)
}

fn attention(
    b: &mut PlanBuilder,
    [q, k, v]: [ValueId; 3],
    n_kv_heads: usize,
    head_dim: usize,
    n_heads: usize,
    values_are_keys: bool,
) -> ValueId {
    let layer = KvLayer { n_kv_heads, head_dim, window: None, encoder_states: None, values_are_keys };
    let layer = b.kv_layer(layer);
    b.kv_write(k, v, layer);
    b.attention(q, layer, n_heads, AttentionOptions::default())
}

/// Attention of heads with many columns; the widest are those of latent caches.
fn wide_heads(head_dim: usize, kv_type: KvType) -> Case {
    let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
    let (q, k) = (b.embed(3 * head_dim), b.embed(head_dim));
    let is_latent = head_dim > 512;
    let v = if is_latent { k } else { b.embed(head_dim) };
    let y = attention(&mut b, [q, k, v], 1, head_dim, 3, is_latent);
    let name = format!("attention 1x3x{head_dim} kv {kv_type:?}");
    case(name, OpKind::Attention, BlockType::F32, b.finish(y), kv_type, LAYER)
}

/// Attention to all rows of a sequence, of heads with many columns.
fn wide_rows() -> Case {
    let mut b = PlanBuilder::new(5, N_TOKENS as usize);
    let [q, k, v] = [2.0, 1.0, 1.0].map(|scale| b.embed_from(2 * 400, BlockType::F32, scale));
    let y = b.self_attention(q, k, v, 2);
    let name = "self_attention 2x400".to_owned();
    case(name, OpKind::SelfAttention, BlockType::F32, b.finish(y), KvType::F32, LAYER)
}

/// Attention to encoder states in Q8_0, of heads with 128 columns.
fn encoder_states() -> Case {
    const N_STATES: usize = 21;
    let layer = KvLayer {
        n_kv_heads: 2,
        head_dim: 128,
        window: None,
        encoder_states: Some(N_STATES),
        values_are_keys: false,
    };
    let mut b = PlanBuilder::new(1, N_TOKENS as usize);
    let states = b.kv_layer(layer);
    let x = b.input(9, 1);
    let [k, v] = [0, 1].map(|_| b.linear(x, 2 * 128, BlockType::F32, false));
    b.kv_write(k, v, states);
    let writer = Plan { output_kind: OutputKind::Hidden, ..b.finish(k) };
    let mut b = PlanBuilder::new(2, N_TOKENS as usize);
    let states = b.kv_layer(layer);
    let q = b.embed(4 * 128);
    let y = b.cross_attention(q, states, 4);
    let reader = b.finish(y);
    let limits = Limits { kv_type: KvType::Q8_0, ..limits(&reader.kv) };
    let mut sequences = Sequences::new(3, &reader.kv, &limits, N_TOKENS);
    let mut steps = vec![sequences.write_encoder_states(0, &[0], N_STATES, 9)];
    for n_rows in [1, 3, 40] {
        let mut step = sequences.step(&[(0, n_rows)]);
        step.plan = 1;
        steps.push(step);
    }
    let name = "encoder states, 2x2x128, kv Q8_0".to_owned();
    let (kind, block, plans) = (OpKind::CrossAttention, BlockType::F32, vec![writer, reader]);
    Case { name, kind, block, plans, limits, steps, tolerance: STORED[1] }
}

/// Recurrent layers whose states have many rows: the gated delta rule, or the selective scan.
fn wide_states(kind: OpKind) -> Case {
    let shape = RecurrentShape { n_shared: 1, n_heads: 2, rows: 200, cols: 20 };
    let mut b = PlanBuilder::new(7, N_TOKENS as usize);
    let x = b.embed(24);
    let is_delta = kind == OpKind::GatedDelta;
    let y = if is_delta { b.gated_delta(x, shape, false, false) } else { b.selective_scan(x, shape, true) };
    let name = format!("{kind} 2 heads of 1, 200x20");
    case(name, kind, BlockType::F32, b.finish(y), KvType::F32, LAYER)
}
