//! Constant data that kernels look up: biases of keys, and lists of heads of CrossScores.

use std::sync::Arc;

use crate::driver::{Address, Buffer, Context};
use device::key_bias::KnownKeys;
use device::{Limits, Op, Plan, Result};

/// Maximum number of columns of a head whose biases are subtracted from keys
/// (`MOST_BIASED_COLUMNS`, key_bias.cuh).
const MOST_BIASED_COLUMNS: usize = 256;

/// Constant data of a program on the GPU.
pub(super) struct Lookup {
    /// Lists of heads, with their offsets from `heads` in words.
    pub lists: Vec<(Vec<usize>, usize)>,
    /// All lists of heads.
    pub heads: Buffer,
    /// Addresses of key biases by KV layer; 0: none.
    pub known_at: Vec<Address>,
    _known: Vec<Buffer>,
}

impl Lookup {
    /// Uploads the constant data of plans.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn load(context: &Arc<Context>, plans: &[Plan], limits: &Limits) -> Result<Lookup> {
        let (lists, words) = head_lists(plans);
        let heads = Buffer::new(context, "tables", words.len() * 4)?;
        context.upload(heads.start(), bytemuck::cast_slice(&words))?;
        let (mut known, mut known_at) = (Vec::new(), Vec::new());
        for layer in known_keys(plans, limits) {
            let Some(words) = layer else {
                known_at.push(0);
                continue;
            };
            let buffer = Buffer::new(context, "biases of keys", words.len() * 4)?;
            context.upload(buffer.start(), bytemuck::cast_slice(&words))?;
            known_at.push(buffer.start());
            known.push(buffer);
        }
        Ok(Lookup { lists, heads, known_at, _known: known })
    }
}

/// Words of the biases that are subtracted from keys before they are stored, by KV layer
/// (`kernels/key_bias.cuh`).
fn known_keys(plans: &[Plan], limits: &Limits) -> Vec<Option<Vec<u32>>> {
    let fits = |index: usize| {
        plans.iter().all(|plan| plan.kv.layers.get(index).is_none_or(|of| of.head_dim <= MOST_BIASED_COLUMNS))
    };
    let known = KnownKeys::of_layers(plans, limits).into_iter().enumerate();
    known.map(|(index, known)| known.filter(|_| fits(index)).map(|known| known.words().collect())).collect()
}

/// The lists of heads of CrossScores, each with its offset in words, and the words of all lists.
fn head_lists(plans: &[Plan]) -> (Vec<(Vec<usize>, usize)>, Vec<u32>) {
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
