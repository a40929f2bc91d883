//! How many dispatches a step has: at most 5 a layer and 3 beside for a dense model, 8 a layer for a mixture of experts, 12 a
//! layer for many rows. Counted where they are encoded.
#![allow(clippy::unwrap_used)]

use crate::common::NullGpu;
use device::testing::{AttentionOptions, PlanBuilder, Sequences, limits};
use device::{Activation, Device, KvLayer, KvType, Limits, Plan, RopeStyle, ValueId, Want, fusion};
use formats::BlockType;
use ingle_device_metal::MetalDevice;

const HIDDEN: usize = 64;

/// Norm, q, k, v, norms of heads, Rope, cache, attention, output, residual.
fn attention(b: &mut PlanBuilder, x: ValueId, [block, v_block]: [BlockType; 2], qk_norm: bool) -> ValueId {
    let layer = b.kv_layer(KvLayer { n_kv_heads: 2, head_dim: 16, window: None, memory: None });
    let norm = b.rms_norm(x, HIDDEN);
    let mut q = b.linear(norm, 64, block, false);
    let mut k = b.linear(norm, 32, block, false);
    let v = b.linear(norm, 32, v_block, false);
    if qk_norm {
        q = b.rms_norm(q, 16);
        k = b.rms_norm(k, 16);
    }
    let q = b.rope(q, 16, 16, RopeStyle::Half);
    let k = b.rope(k, 16, 16, RopeStyle::Half);
    b.kv_write(k, v, layer);
    let y = b.attention(q, layer, 4, AttentionOptions::default());
    let y = b.linear(y, HIDDEN, block, false);
    b.add(x, y)
}

fn dense(n_layers: u32, [block, v_block]: [BlockType; 2], qk_norm: bool) -> Plan {
    let mut b = PlanBuilder::new(1, 97);
    let mut x = b.embed_from(HIDDEN, block, 1.0);
    for index in 0..n_layers {
        b.layer(Some(index));
        x = attention(&mut b, x, [block, v_block], qk_norm);
        let norm = b.rms_norm(x, HIDDEN);
        let (gate, up) = (b.linear(norm, 128, block, false), b.linear(norm, 128, block, false));
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.linear(y, HIDDEN, block, false);
        x = b.add(x, y);
    }
    head(b, x, block)
}

fn mixture(n_layers: u32, block: BlockType) -> Plan {
    let mut b = PlanBuilder::new(1, 97);
    let mut x = b.embed_from(HIDDEN, block, 1.0);
    for index in 0..n_layers {
        b.layer(Some(index));
        x = attention(&mut b, x, [block; 2], true);
        let norm = b.rms_norm(x, HIDDEN);
        let router = b.linear(norm, 9, BlockType::F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, false);
        let gate = b.expert_linear((norm, false), ids, (9, 64), block);
        let up = b.expert_linear((norm, false), ids, (9, 64), block);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (9, HIDDEN), block);
        let y = b.expert_sum(y, weights);
        x = b.add(x, y);
    }
    head(b, x, block)
}

fn head(mut b: PlanBuilder, x: ValueId, block: BlockType) -> Plan {
    b.layer(None);
    let x = b.select_rows(x);
    let x = b.rms_norm(x, HIDDEN);
    let logits = b.linear(x, 97, block, false);
    b.finish(logits)
}

/// Dispatches and barriers of a decode step and of a prompt's chunk.
fn counts(plan: &Plan) -> [(usize, usize); 2] {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let plan = fusion::fuse(plan, device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    [1, 50].map(|n| {
        let mut step = sequences.step(&[(0, n)]);
        step.outputs = vec![n as u32 - 1];
        step.want = Want::Argmax;
        device.gpu().take();
        program.run(&step.borrow()).unwrap();
        device.gpu().take()
    })
}

#[test]
fn a_dense_model_has_five_dispatches_a_layer_and_three_beside() {
    for qk_norm in [true, false] {
        // Files that mix types store v with more bits than q and k.
        for blocks in [[BlockType::Q4_0; 2], [BlockType::F16; 2], [BlockType::Q5_0, BlockType::Q8_0]] {
            let counts = [2, 5].map(|n| counts(&dense(n, blocks, qk_norm)));
            for (n, [(decode, barriers), (prefill, _)]) in [2, 5].into_iter().zip(counts) {
                assert!(decode <= 5 * n + 3, "{decode} dispatches of {n} layers");
                // Each needs what the one before wrote.
                assert_eq!(barriers, decode - 1);
                assert!(prefill <= 12 * n + 5, "{prefill} dispatches of {n} layers");
            }
            let a_layer = (counts[1][1].0 - counts[0][1].0) / 3;
            assert!(a_layer <= 12, "{a_layer} dispatches a layer for many rows");
            println!("{blocks:?}: decode {:?}, many rows {a_layer} a layer", counts[1][0]);
        }
    }
}

#[test]
fn a_mixture_of_experts_has_eight_dispatches_a_layer() {
    let counts = [2, 5].map(|n| counts(&mixture(n, BlockType::Q4_0)));
    for (n, [(decode, _), (prefill, _)]) in [2, 5].into_iter().zip(counts) {
        assert!(decode <= 8 * n + 3, "{decode} dispatches of {n} layers");
        assert!(prefill <= 12 * n + 5, "{prefill} dispatches of {n} layers");
    }
}
