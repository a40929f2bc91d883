//! Numbers that kernels look up: what keys are stored without, and the heads of CrossScores.

use device::key_bias::KnownKeys;
use device::{Limits, Op, Plan};

/// Columns of a head, at most, whose keys are stored without what is known of them (`MOST_BIASED_COLUMNS`, key_bias.cuh).
const MOST_BIASED_COLUMNS: usize = 256;

/// By KV layer: the words of what its keys are stored without (`kernels/key_bias.cuh`).
pub fn known_keys(plans: &[Plan], limits: &Limits) -> Vec<Option<Vec<u32>>> {
    let fits = |index: usize| {
        plans.iter().all(|plan| plan.kv.layers.get(index).is_none_or(|of| of.head_dim <= MOST_BIASED_COLUMNS))
    };
    let known = KnownKeys::of_layers(plans, limits).into_iter().enumerate();
    known.map(|(index, known)| known.filter(|_| fits(index)).map(|known| known.words().collect())).collect()
}

/// The lists of heads of CrossScores, each with where it begins in the words of all.
pub fn head_lists(plans: &[Plan]) -> (Vec<(Vec<usize>, usize)>, Vec<u32>) {
    let (mut lists, mut words): (Vec<(Vec<usize>, usize)>, Vec<u32>) = (vec![], vec![]);
    for op in plans.iter().flat_map(Plan::primitives) {
        let Op::CrossScores { heads, .. } = op else { continue };
        if !lists.iter().any(|(list, _)| list == heads) {
            lists.push((heads.clone(), words.len()));
            words.extend(heads.iter().map(|head| *head as u32));
        }
    }
    (lists, words)
}
