//! Routers by sigmoids, with biases and groups; biases of experts, clamped gates, concatenated
//! heads, matrices of all heads. Attention in chunks, within windows to both sides, and with keys
//! that heads share or that equal the values.

use super::{Case, ELEMENT, N_TOKENS, SUM, kv_types};
use crate::{AttentionOptions, PlanBuilder};
use device::{KvLayer, KvType, OpKind, RouterGroups, RowCount};
use weights::BlockType::{self, F32};

/// Routers.
pub fn routers() -> Vec<Case> {
    let groups = |n, n_used, n_best| Some(RouterGroups { n, n_used, n_best });
    let shapes = [
        (1, 1, None),
        (7, 3, None),
        (128, 8, None),
        (12, 4, groups(4, 2, 2)),
        (33, 2, groups(11, 1, 1)),
        (256, 8, groups(8, 4, 2)),
    ];
    let case = |(n_experts, k, groups): (usize, usize, Option<RouterGroups>)| {
        let mut b = PlanBuilder::new(n_experts as u64, N_TOKENS as usize);
        let x = b.embed_from(n_experts, F32, 2.0);
        let (_, weights) = b.route_by_sigmoids(x, k, groups);
        let name = format!("route {k} of {n_experts} by sigmoids, {groups:?}");
        Case::rows(name, OpKind::Route, F32, 4.0 * ELEMENT, b.finish(weights))
    };
    shapes.into_iter().map(case).collect()
}

/// Further Ops of experts and heads.
pub fn parts() -> Vec<Case> {
    let mut cases = vec![];
    for (n_experts, k, cols) in [(1, 1, 7), (5, 2, 33), (9, 3, 64)] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let router = b.embed_from(n_experts, F32, 2.0);
        let (ids, _) = b.route(router, k, true, 1.0, false);
        let x = b.embed(k * cols);
        let y = b.expert_bias(x, ids, n_experts);
        let name = format!("expert_bias {k} of {n_experts} {cols}");
        cases.push(Case::rows(name, OpKind::ExpertBias, F32, ELEMENT, b.finish(y)));
    }
    for (cols, alpha, limit) in [(1, 1.0, 7.0), (33, 1.702, 0.5), (100, 1.702, 7.0)] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let (gate, up) = (b.embed_from(cols, F32, 3.0), b.embed_from(cols, F32, 3.0));
        let y = b.gate_clamped(gate, up, alpha, limit);
        let name = format!("gate_clamped {cols} {alpha} {limit}");
        cases.push(Case::rows(name, OpKind::GateClamped, F32, 8.0 * ELEMENT, b.finish(y)));
    }
    for (n_heads, a, c) in [(1, 1, 3), (3, 7, 5), (4, 32, 8)] {
        let mut b = PlanBuilder::new(n_heads as u64, N_TOKENS as usize);
        let (x, y) = (b.embed(n_heads * a), b.embed(n_heads * c));
        let y = b.join(x, y, n_heads);
        cases.push(Case::rows(format!("join {n_heads}x{a} {c}"), OpKind::Join, F32, 0.0, b.finish(y)));
    }
    for (n_heads, n_in, n_out, block) in [(2, 33, 7, F32), (5, 64, 48, BlockType::Q8_0)] {
        let mut b = PlanBuilder::new(n_in as u64, N_TOKENS as usize);
        let x = b.embed(n_heads * n_in);
        let ids = b.ordinals(n_heads);
        let y = b.expert_linear((x, true), ids, (n_heads, n_out), block);
        let name = format!("heads {n_heads}x{n_out}x{n_in} of {block}");
        cases.push(Case::rows(name, OpKind::Ordinals, block, SUM, b.finish(y)));
    }
    // Rows of tokens, and rows of outputs.
    for (n, rank, n_in, n_out) in [(1, 1, 7, 3), (3, 4, 33, 17), (4, 16, 64, 48)] {
        let mut b = PlanBuilder::new(n_in as u64, N_TOKENS as usize);
        let mut x = b.embed(n_in);
        let mut sum = x;
        for rows in [RowCount::Tokens, RowCount::Outputs] {
            if rows == RowCount::Outputs {
                x = b.select_rows(sum);
            }
            let ids = b.adapters(rows, n);
            let y = b.expert_linear((x, false), ids, (n, rank), F32);
            let y = b.expert_linear((y, false), ids, (n, n_in), F32);
            sum = b.add(x, y);
        }
        let ids = b.adapters(RowCount::Outputs, n);
        let y = b.expert_linear((sum, false), ids, (n, n_out), F32);
        let name = format!("adapters {n} {n_in} {rank} {n_out}");
        cases.push(Case::cached(name, OpKind::Adapters, F32, SUM, b.finish(y), KvType::F32));
    }
    cases
}

/// Attention.
pub fn windows() -> Vec<Case> {
    let mut cases = vec![];
    for (n_kv_heads, ratio, head_dim, window) in [(1, 2, 16, 7), (2, 3, 32, 16), (1, 1, 64, 33)] {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads,
            head_dim,
            window: Some(window),
            encoder_states: None,
            values_are_keys: false,
        });
        let q = b.embed_from(n_kv_heads * ratio * head_dim, F32, 2.0);
        let (k, v) = (b.embed(n_kv_heads * head_dim), b.embed(n_kv_heads * head_dim));
        b.kv_write(k, v, layer);
        let options = AttentionOptions { window: Some(window), chunked: true, ..AttentionOptions::default() };
        let y = b.attention(q, layer, n_kv_heads * ratio, options);
        let name = format!("attention {n_kv_heads}x{ratio}x{head_dim} in chunks of {window}");
        cases.push(Case::cached(name, OpKind::Attention, F32, SUM, b.finish(y), KvType::F32));
    }
    for (n_kv_heads, ratio, head_dim, window) in [(1, 2, 16, Some(3)), (2, 3, 32, None), (1, 1, 17, Some(40))]
    {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let (encoder_states, values_are_keys) = (None, false);
        let layer = b.kv_layer(KvLayer { n_kv_heads, head_dim, window, encoder_states, values_are_keys });
        let q = b.embed_from(n_kv_heads * ratio * head_dim, F32, 2.0);
        let (k, v) = (b.embed(n_kv_heads * head_dim), b.embed(n_kv_heads * head_dim));
        b.kv_write(k, v, layer);
        let options = AttentionOptions { window, both_ways: true, ..AttentionOptions::default() };
        let y = b.attention(q, layer, n_kv_heads * ratio, options);
        let plan = b.finish(y);
        for kv_type in kv_types(&plan) {
            let name = format!("attention {n_kv_heads}x{ratio}x{head_dim} both ways, window {window:?}");
            cases.push(Case::cached(name, OpKind::Attention, F32, SUM, plan.clone(), kv_type));
        }
    }
    for (n_heads, head_dim) in [(4, 40), (3, 17), (16, 96)] {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let (n_kv_heads, window, encoder_states) = (1, None, None);
        let layer =
            b.kv_layer(KvLayer { n_kv_heads, head_dim, window, encoder_states, values_are_keys: true });
        let (q, k) = (b.embed_from(n_heads * head_dim, F32, 2.0), b.embed(head_dim));
        b.kv_write(k, k, layer);
        let y = b.attention(q, layer, n_heads, AttentionOptions::default());
        let plan = b.finish(y);
        for kv_type in kv_types(&plan) {
            let name = format!("attention 1x{n_heads}x{head_dim} to keys that are values");
            cases.push(Case::cached(name, OpKind::Attention, F32, SUM, plan.clone(), kv_type));
        }
    }
    for (n_heads, n_kv_heads, head_dim, window) in [
        (2, 2, 16, Some(1)),
        (6, 2, 32, Some(8)),
        (4, 1, 64, None),
        (3, 3, 17, Some(0)),
        (4, 2, 24, Some(100)),
    ] {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let q = b.embed_from(n_heads * head_dim, F32, 2.0);
        let (k, v) = (b.embed(n_kv_heads * head_dim), b.embed(n_kv_heads * head_dim));
        let y = b.windowed_self_attention(q, k, v, n_heads, window);
        let name = format!("self_attention {n_heads} of {n_kv_heads}x{head_dim}, {window:?} to each side");
        cases.push(Case::cached(name, OpKind::SelfAttention, F32, SUM, b.finish(y), KvType::F32));
    }
    cases
}
