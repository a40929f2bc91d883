//! RoPE of both styles, of a part of a head, with factors, and from several tables.

use weights::BlockType;

use super::{Case, ELEMENT, N_TOKENS};
use crate::{PlanBuilder, Sequences, limits};
use device::{Limits, OpKind, RopeStyle};

pub fn rope() -> Vec<Case> {
    let mut cases = vec![];
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for (n_heads, head_dim, n_dims, scale) in
            [(1, 2, 2, 1.0), (3, 6, 4, 1.0), (2, 64, 64, 1.2), (5, 80, 32, 1.0), (1, 256, 256, 1.0)]
        {
            let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
            let x = b.embed(n_heads * head_dim);
            let y = b.rope_scaled(x, head_dim, n_dims, style, scale);
            let plan = b.finish(y);
            let limits = Limits { n_ctx: 1 << 17, ..limits(&plan.kv) };
            let mut sequences = Sequences::new(1, &plan.kv, &limits, N_TOKENS);
            sequences.start_at(1, 100_000);
            let steps =
                [&[(0, 1)][..], &[(0, 33)], &[(1, 3), (0, 2)]].map(|spans| sequences.step(spans)).to_vec();
            let name = format!("rope {style} {n_heads}x{head_dim} {n_dims} dims");
            let (kind, block, tolerance) = (OpKind::Rope, BlockType::F32, ELEMENT);
            cases.push(Case { name, kind, block, plans: vec![plan], limits, steps, tolerance });
        }
    }
    cases.extend([false, true].map(ropes_of_two_tables));
    cases
}

/// Two Ropes with other frequencies and factors, of rows of a table or of numeric inputs.
fn ropes_of_two_tables(of_inputs: bool) -> Case {
    let (cols, head_dim) = (48, 24);
    let mut b = PlanBuilder::new(3, N_TOKENS as usize);
    let x = if of_inputs { b.input(cols, 1) } else { b.embed(cols) };
    let first = b.rope(x, head_dim, 24, RopeStyle::Half);
    let second = b.rope_scaled(x, head_dim, 10, RopeStyle::Interleaved, 1.3);
    let y = b.add(first, second);
    let plan = b.finish(y);
    let limits = Limits { n_ctx: 1 << 17, ..limits(&plan.kv) };
    let mut sequences = Sequences::new(1, &plan.kv, &limits, N_TOKENS);
    sequences.start_at(1, 70_000);
    let mut steps =
        [&[(0, 1)][..], &[(0, 33)], &[(1, 3), (0, 2)]].map(|spans| sequences.step(spans)).to_vec();
    for step in steps.iter_mut().filter(|_| of_inputs) {
        step.input = sequences.numbers(step.tokens.len() * cols);
    }
    let name = format!("ropes of two tables, inputs {of_inputs}");
    let (kind, block, plans) = (OpKind::Rope, BlockType::F32, vec![plan]);
    Case { name, kind, block, plans, limits, steps, tolerance: ELEMENT }
}
