//! Recurrent layers alone, several together, and beside attention.

use super::{Case, N_TOKENS, SUM};
use crate::builder::RecurrentShape;
use crate::{AttentionOptions, PlanBuilder, Sequences, limits};
use device::{KvLayer, Limits, OpKind, OwnedStep, Plan};
use weights::BlockType;

/// Sequences that begin, continue and run together, in single rows and chunks.
fn steps(seed: u64, plan: &Plan, limits: &Limits) -> Vec<OwnedStep> {
    let mut sequences = Sequences::new(seed, &plan.kv, limits, N_TOKENS);
    let spans: [&[(usize, usize)]; 7] = [
        &[(0, 1)],
        &[(0, 1), (1, 5)],
        &[(2, 17), (0, 2), (1, 1)],
        &[(0, 1)],
        &[(1, 40)],
        &[(2, 1), (0, 1)],
        &[(3, 2)],
    ];
    spans.iter().map(|spans| sequences.step(spans)).collect()
}

/// Short convolutions alone, and beside attention.
pub fn short_convolutions() -> Vec<Case> {
    let mut cases = vec![];
    for (cols, sizes, with_attention) in [
        (1, vec![2], false),
        (7, vec![3], false),
        (64, vec![4, 2], false),
        (33, vec![3, 5], true),
        (160, vec![4], true),
    ] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let mut x = b.embed(cols);
        for size in &sizes {
            let y = b.short_conv(x, *size, cols % 2 == 0);
            b.keep(y);
            let y = b.linear(y, cols, BlockType::F32, true);
            x = b.add(x, y);
        }
        if with_attention {
            let layer = b.kv_layer(KvLayer {
                n_kv_heads: 1,
                head_dim: 16,
                window: None,
                encoder_states: None,
                values_are_keys: false,
            });
            let q = b.linear(x, 16, BlockType::F32, false);
            b.kv_write(q, q, layer);
            let y = b.attention(q, layer, 1, AttentionOptions::default());
            let y = b.linear(y, cols, BlockType::F32, false);
            x = b.short_conv(y, 3, false);
        }
        let x = b.select_rows(x);
        let logits = b.linear(x, 29, BlockType::F32, true);
        let plan = b.finish(logits);
        let limits = limits(&plan.kv);
        let steps = steps(cols as u64, &plan, &limits);
        let name = format!("short convolutions of {cols} columns over {sizes:?}, attention {with_attention}");
        let (kind, block) = (OpKind::ShortConv, BlockType::F32);
        cases.push(Case { name, kind, block, plans: vec![plan], limits, steps, tolerance: 5.0 * SUM });
    }
    cases
}

/// The gated delta rule and the selective scan: heads with and without sharing, sizes around those
/// of vectors, chunks that cross those of kernels.
pub fn recurrences() -> Vec<Case> {
    let mut cases = vec![];
    let shapes =
        [(1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 16, 16), (2, 6, 24, 40), (3, 3, 33, 64), (1, 2, 128, 128)];
    for (at, (n_shared, n_heads, rows, cols)) in shapes.into_iter().enumerate() {
        let shape = RecurrentShape { n_shared, n_heads, rows, cols };
        for kind in [OpKind::GatedDelta, OpKind::SelectiveScan] {
            // The delta rule also has tiled key heads, and a decay for each row of the state.
            for (tiled, per_row) in [(false, false), (true, false), (true, true)] {
                if kind == OpKind::SelectiveScan && tiled {
                    continue;
                }
                let mut b = PlanBuilder::new((rows * cols + at) as u64, N_TOKENS as usize);
                let x = b.embed(24);
                let y = if kind == OpKind::GatedDelta {
                    b.gated_delta(x, shape, tiled, per_row)
                } else {
                    b.selective_scan(x, shape, at % 2 == 0)
                };
                b.keep(y);
                let y = b.linear(y, 24, BlockType::F32, false);
                let y = b.add(x, y);
                let y = b.short_conv(y, 4, true);
                let y = b.select_rows(y);
                let logits = b.linear(y, 29, BlockType::F32, true);
                let plan = b.finish(logits);
                let limits = limits(&plan.kv);
                let mut steps = steps(at as u64, &plan, &limits);
                // More rows than a kernel computes at a time.
                let limits = Limits { max_rows: 200, max_outputs: 200, ..limits };
                let mut long = Sequences::new(1, &plan.kv, &limits, N_TOKENS);
                steps.extend([long.step(&[(0, 3), (1, 150)]), long.step(&[(0, 65), (1, 64)])]);
                let name = format!(
                    "{kind} {n_heads} heads of {n_shared}, {rows}x{cols}, tiled {tiled}, a decay for each row {per_row}"
                );
                // Errors in a state persist: it sums over all positions, and subtracts old from
                // new.
                let (block, tolerance) = (BlockType::F32, 20.0 * SUM);
                cases.push(Case { name, kind, block, plans: vec![plan], limits, steps, tolerance });
            }
        }
    }
    cases
}
