//! Division of keys and values among ranks, by heads.

use device::{KvLayout, Op, Plan};

/// Placement of a layer's heads on the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// Each rank has all heads, because an Op reads the scores of some of them.
    Whole,
    /// Each rank has an equal number of KV heads.
    Divided,
    /// There are fewer KV heads than ranks: several ranks share one.
    Shared,
}

/// Placement of each layer of keys and values of a program's plans among `n` ranks.
///
/// # Errors
/// The layer whose heads cannot be divided.
pub fn heads(plans: &[Plan], n: usize) -> Result<Vec<Heads>, String> {
    let Some(kv) = plans.first().map(|plan| &plan.kv) else { return Ok(Vec::new()) };
    let mut all = Vec::with_capacity(kv.layers.len());
    for (index, layer) in kv.layers.iter().enumerate() {
        let scored = plans
            .iter()
            .flat_map(Plan::primitives)
            .any(|op| matches!(op, Op::CrossScores { layer, .. } if layer.0 as usize == index));
        all.push(match layer.n_kv_heads {
            _ if scored => Heads::Whole,
            n_kv_heads if n_kv_heads.is_multiple_of(n) => Heads::Divided,
            n_kv_heads if n.is_multiple_of(n_kv_heads) => Heads::Shared,
            n_kv_heads => {
                return Err(format!(
                    "{n_kv_heads} KV heads on {n} devices (expected a multiple or a divisor of {n})"
                ));
            }
        });
    }
    for op in plans.iter().flat_map(Plan::primitives) {
        let (Op::Attention { layer, n_heads, .. } | Op::CrossAttention { layer, n_heads, .. }) = op else {
            continue;
        };
        if all[layer.0 as usize] != Heads::Whole && !n_heads.is_multiple_of(n) {
            return Err(format!("{n_heads} query heads on {n} devices (expected a multiple of {n})"));
        }
    }
    Ok(all)
}

/// The KV layout of a rank.
pub fn layout(kv: &KvLayout, heads: &[Heads], n: usize) -> KvLayout {
    let mut kv = kv.clone();
    for (layer, heads) in kv.layers.iter_mut().zip(heads) {
        match heads {
            Heads::Whole => {}
            Heads::Divided => layer.n_kv_heads /= n,
            Heads::Shared => layer.n_kv_heads = 1,
        }
    }
    kv
}
