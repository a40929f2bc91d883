//! Unusual whole layers: norms after attention and network, norms of values and of whole rows of q
//! and k, per-layer inputs, and a shared expert.
use weights::{BlockType, ScaleType};

use super::{Case, N_TOKENS, SUM};
use crate::{AttentionOptions, PlanBuilder};
use device::{Activation, KvLayer, KvLayerId, KvType, OpKind, Plan, RopeStyle, RowCount, ValueId};

/// Placement of norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norms {
    /// Norms before and after both parts of a layer and over heads of q, k and v; a factor on the
    /// layer.
    Around,
    /// Norms after both parts only, and over whole rows of q and k.
    After,
    /// Like [`Self::Around`], with experts beside the dense network: a norm before and after each,
    /// and after their sum.
    AroundExperts,
    /// Like [`Self::Around`]. Each layer has an input of its own, gated by the residual stream.
    /// Every second layer reads the keys and values of the previous layer.
    AroundInputs,
    /// Norms before both parts only, and over heads of q and k; experts, and a shared expert that
    /// every row passes through.
    SharedExpert,
}

impl Norms {
    /// Returns true if values are normalised too, and the layer has a factor.
    fn are_around(self) -> bool {
        !matches!(self, Norms::After | Norms::SharedExpert)
    }
}

/// Layers with these norms, and a head with capped logits. Heads have 32 columns.
pub fn layers_with_norms(seed: u64, n_layers: u32, hidden: usize, block: BlockType, norms: Norms) -> Plan {
    let mut b = PlanBuilder::new(seed, N_TOKENS as usize);
    let mut x = b.embed_from(hidden, BlockType::F32, 1.0);
    let has_inputs = norms == Norms::AroundInputs;
    let inputs = has_inputs.then(|| b.linear(x, n_layers as usize * INPUT, block, false));
    let mut kv = None;
    for index in 0..n_layers {
        b.layer(Some(index));
        let shared = kv.filter(|_| has_inputs && index % 2 == 1);
        (x, kv) = attention(&mut b, x, block, norms, shared, index + 1 == n_layers);
        x = network(&mut b, x, block, norms);
        if let Some(inputs) = inputs {
            x = own_input(&mut b, x, inputs, index as usize * INPUT, block);
        }
        if norms.are_around() {
            x = b.scale(x, 0.75);
        }
    }
    b.layer(None);
    let x = b.rms_norm(x, hidden);
    let logits = b.linear(x, N_TOKENS as usize, block, false);
    let logits = b.softcap(logits, 20.0);
    b.finish(logits)
}

/// Columns of a per-layer input.
const INPUT: usize = 32;

/// Attention over the keys and values of `shared`, or of a new layer; returns the KV layer. The
/// last layer computes output rows only.
fn attention(
    b: &mut PlanBuilder,
    x: ValueId,
    block: BlockType,
    norms: Norms,
    shared: Option<KvLayerId>,
    is_last: bool,
) -> (ValueId, Option<KvLayerId>) {
    const HEAD_DIM: usize = 32;
    let hidden = b.cols(x);
    let residual = b.select_rows_of_last(x, is_last);
    let input = if norms == Norms::After { x } else { b.rms_norm(x, hidden) };
    let q = b.linear(input, 4 * HEAD_DIM, block, false);
    let of_q = if norms == Norms::After { 4 * HEAD_DIM } else { HEAD_DIM };
    let of_k = if norms == Norms::After { 2 * HEAD_DIM } else { HEAD_DIM };
    let (q, layer) = match shared {
        Some(layer) => {
            let q = b.rms_norm(q, of_q);
            (b.rope(q, HEAD_DIM, HEAD_DIM, RopeStyle::Half), layer)
        }
        None => {
            let k = b.linear(input, 2 * HEAD_DIM, block, false);
            let mut v = b.linear(input, 2 * HEAD_DIM, block, false);
            if norms.are_around() {
                v = b.rms_norm_plain(v, HEAD_DIM);
            }
            let (q, k) = (b.rms_norm(q, of_q), b.rms_norm(k, of_k));
            let q = b.rope(q, HEAD_DIM, HEAD_DIM, RopeStyle::Half);
            let k = b.rope(k, HEAD_DIM, HEAD_DIM, RopeStyle::Half);
            let kv = KvLayer {
                n_kv_heads: 2,
                head_dim: HEAD_DIM,
                window: None,
                encoder_states: None,
                values_are_keys: false,
            };
            let layer = b.kv_layer(kv);
            b.kv_write(k, v, layer);
            (q, layer)
        }
    };
    let y = b.attention(q, layer, 4, AttentionOptions::default());
    let y = b.select_rows_of_last(y, is_last);
    let mut y = b.linear(y, hidden, whole_blocks(block, 4 * HEAD_DIM), false);
    if norms != Norms::SharedExpert {
        y = b.rms_norm(y, hidden);
    }
    (b.add(residual, y), Some(layer))
}

/// A block type for a matrix whose columns may not be whole blocks.
fn whole_blocks(block: BlockType, n_in: usize) -> BlockType {
    if n_in.is_multiple_of(block.block_len()) { block } else { BlockType::F32 }
}

/// `x + norm(out(f(gate(x)) * input))`
fn own_input(b: &mut PlanBuilder, x: ValueId, inputs: ValueId, first: usize, block: BlockType) -> ValueId {
    let hidden = b.cols(x);
    let inputs = b.select_rows_of_last(inputs, b.rows(x) == RowCount::Outputs);
    let gate = b.linear(x, INPUT, block, false);
    let input = b.columns(inputs, first, INPUT);
    let y = b.gate(gate, input, Activation::GeluTanh);
    let y = b.linear(y, hidden, whole_blocks(block, INPUT), false);
    let y = b.rms_norm(y, hidden);
    b.add(x, y)
}

/// `f(gate) * up`
fn inner(b: &mut PlanBuilder, x: ValueId, ffn: usize, block: BlockType) -> ValueId {
    let (gate, up) = (b.linear(x, ffn, block, false), b.linear(x, ffn, block, false));
    b.gate(gate, up, Activation::GeluTanh)
}

const N_EXPERTS: usize = 5;

/// Number of experts of a row. Devices that round activations to 8 bits could choose others, so all
/// experts are chosen for them.
fn n_chosen(block: BlockType) -> usize {
    if block.is_float() { 2 } else { N_EXPERTS }
}

/// `x + sigmoid(weight) * shared expert + experts`
fn shared_expert(b: &mut PlanBuilder, x: ValueId, block: BlockType) -> ValueId {
    let hidden = b.cols(x);
    let norm = b.rms_norm(x, hidden);
    let router = b.linear(norm, N_EXPERTS, BlockType::F32, false);
    let weight = b.linear(norm, 1, BlockType::F32, false);
    let (ids, weights) = b.route(router, n_chosen(block), false, 1.0, false);
    let gate = b.expert_linear((norm, false), ids, (N_EXPERTS, hidden), block);
    let up = b.expert_linear((norm, false), ids, (N_EXPERTS, hidden), block);
    let routed = b.gate(gate, up, Activation::GeluTanh);
    let shared = inner(b, norm, 3 * hidden, block);
    let shared = b.linear(shared, hidden, block, false);
    let open = b.activate(weight, Activation::Sigmoid);
    let shared = b.expert_sum(shared, open);
    let x = b.add(x, shared);
    let routed = b.expert_linear((routed, true), ids, (N_EXPERTS, hidden), block);
    let routed = b.expert_sum(routed, weights);
    b.add(x, routed)
}

fn network(b: &mut PlanBuilder, x: ValueId, block: BlockType, norms: Norms) -> ValueId {
    let hidden = b.cols(x);
    let y = match norms {
        Norms::Around | Norms::AroundInputs => {
            let norm = b.rms_norm(x, hidden);
            let y = inner(b, norm, hidden, block);
            b.linear(y, hidden, block, false)
        }
        Norms::After => {
            let y = inner(b, x, hidden, block);
            b.linear(y, hidden, block, false)
        }
        Norms::AroundExperts => {
            let routed = b.rms_norm(x, hidden);
            let router = b.linear(routed, N_EXPERTS, BlockType::F32, false);
            let (ids, weights) = b.route(router, n_chosen(block), true, 1.0, true);
            let norm = b.rms_norm(x, hidden);
            let dense = inner(b, norm, hidden, block);
            let norm = b.rms_norm(x, hidden);
            let gate = b.expert_linear((norm, false), ids, (N_EXPERTS, hidden), block);
            let up = b.expert_linear((norm, false), ids, (N_EXPERTS, hidden), block);
            let sparse = b.gate(gate, up, Activation::GeluTanh);
            let dense = b.linear(dense, hidden, block, false);
            let sparse = b.expert_linear((sparse, true), ids, (N_EXPERTS, hidden), block);
            let sparse = b.expert_sum(sparse, weights);
            let dense = b.rms_norm(dense, hidden);
            let sparse = b.rms_norm(sparse, hidden);
            b.add(dense, sparse)
        }
        Norms::SharedExpert => return shared_expert(b, x, block),
    };
    let y = b.rms_norm(y, hidden);
    b.add(x, y)
}

/// Two layers with each placement of norms.
pub fn layers() -> Vec<Case> {
    use BlockType::*;
    let affine = weights::Affine::new(4, 64, ScaleType::BF16, false).map_or(Q8_0, BlockType::Affine);
    let kinds = [
        (Norms::Around, Q4_0, 96, KvType::F16),
        (Norms::Around, F32, 70, KvType::F32),
        (Norms::After, affine, 64, KvType::F16),
        (Norms::After, F32, 70, KvType::Q8_0),
        (Norms::AroundExperts, F32, 38, KvType::F32),
        (Norms::AroundExperts, Q4_0, 64, KvType::F16),
        (Norms::AroundInputs, Q8_0, 96, KvType::F16),
        (Norms::AroundInputs, F32, 70, KvType::F32),
        (Norms::SharedExpert, Q4_0, 64, KvType::F16),
        (Norms::SharedExpert, F32, 38, KvType::F32),
    ];
    let case = |(norms, block, hidden, kv_type)| {
        let plan = layers_with_norms(hidden as u64, 2, hidden, block, norms);
        // Norms of norms of products, which amplify each rounding.
        Case::cached(format!("norms {norms:?} {block}"), OpKind::Fused, block, 20.0 * SUM, plan, kv_type)
    };
    kinds.into_iter().map(case).collect()
}
