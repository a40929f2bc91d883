//! Columns, routers, experts and mixtures.

use device::{Activation, OpKind};
use weights::{BlockType, ScaleType};

use super::{Case, ELEMENT, N_TOKENS, SUM, widths};
use crate::PlanBuilder;

/// Columns, routing, experts with a shared input and with inputs of their own, and a whole mixture.
/// Routers are F32, so that rounding does not change the chosen experts.
pub fn experts() -> Vec<Case> {
    use BlockType::*;
    let mut cases = vec![];
    for (n_groups, first, cols) in
        [(1, 0, 1), (1, 3, 16), (1, 17, 20), (1, 0, 37), (3, 5, 32), (7, 36, 1), (2, 0, 20)]
    {
        let mut b = PlanBuilder::new(first as u64, N_TOKENS as usize);
        let x = b.embed(37 * n_groups);
        let y = b.columns_of_groups(x, first, 37, cols);
        let name = format!("columns {first} {cols} of {n_groups} groups");
        cases.push(Case::rows(name, OpKind::Columns, F32, 0.0, b.finish(y)));
    }
    for (n_experts, k) in [(1, 1), (5, 2), (8, 8), (33, 6), (128, 8)] {
        for normalise in [false, true] {
            let mut b = PlanBuilder::new(n_experts as u64, N_TOKENS as usize);
            let x = b.embed_from(n_experts, F32, 2.0);
            let (_, weights) = b.route(x, k, normalise, if normalise { 1.0 } else { 2.5 }, normalise);
            let name = format!("route {k} of {n_experts} normalise {normalise}");
            cases.push(Case::rows(name, OpKind::Route, F32, 4.0 * ELEMENT, b.finish(weights)));
        }
    }
    for (k, cols) in [(1, 7), (2, 33), (8, 64)] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let (x, weights) = (b.embed(k * cols), b.embed(k));
        let y = b.expert_sum(x, weights);
        cases.push(Case::rows(format!("expert_sum {k}x{cols}"), OpKind::ExpertSum, F32, SUM, b.finish(y)));
    }
    let affine = |bits, group, scale| weights::Affine::new(bits, group, scale, false).map(BlockType::Affine);
    let affine = [affine(4, 64, ScaleType::BF16), affine(3, 128, ScaleType::F32)];
    let types = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, MXFP4, IQ3_XXS, I8_ROWS];
    for block in types.into_iter().chain(affine.into_iter().flatten()) {
        let [narrow, wide] = widths(block);
        for (n_in, n_out, n_experts, k) in [(narrow, 7, 3, 1), (narrow, 33, 5, 2), (wide, 16, 40, 6)] {
            for own in [false, true] {
                let mut b = PlanBuilder::new((n_in * n_out) as u64, N_TOKENS as usize);
                let router = b.embed_from(n_experts, F32, 2.0);
                let (ids, _) = b.route(router, k, true, 1.0, false);
                let x = b.embed(if own { k * n_in } else { n_in });
                let y = b.expert_linear((x, own), ids, (n_experts, n_out), block);
                let name = format!("expert_linear {block} {k} of {n_experts} {n_out}x{n_in} own {own}");
                cases.push(Case::rows(name, OpKind::ExpertLinear, block, SUM, b.finish(y)));
            }
        }
        // A whole mixture, beside a part that every row passes through.
        let hidden = block.block_len().max(64);
        let mut b = PlanBuilder::new(hidden as u64, N_TOKENS as usize);
        let x = b.embed(hidden);
        b.layer(Some(0));
        let norm = b.rms_norm(x, hidden);
        let router = b.linear(norm, 9, F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, true);
        let gate = b.expert_linear((norm, false), ids, (9, hidden), block);
        let up = b.expert_linear((norm, false), ids, (9, hidden), block);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (9, hidden), block);
        let y = b.expert_sum(y, weights);
        let shared = b.linear(norm, 1, F32, false);
        let shared = b.activate(shared, Activation::Sigmoid);
        let shared = b.expert_sum(norm, shared);
        let y = b.add(y, shared);
        let y = b.add(x, y);
        let plan = b.finish(y);
        cases.push(Case::rows(format!("mixture {block}"), OpKind::Fused, block, 5.0 * SUM, plan));
    }
    cases
}
