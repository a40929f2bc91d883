//! Whole steps in one launch of a persistent kernel (`kernels/persistent/README.md`). This module
//! finds the plans that a kernel runs, and makes the table of phases and the arguments of a launch.
//!
//! | file | purpose |
//! |---|---|
//! | `pattern.rs` | finds the decoder in a plan |
//! | `products.rs` | the product of each phase, and how its weights are packed |
//! | `rows.rs` | limits of the kernel for several rows, and the kernel that a step uses |
//! | `ring.rs` | sizes of the ring and of shared memory |
//! | `table.rs` | the table of phases and the arguments of a launch |
//! | `weights.rs` | packs weights on the GPU |
//! | `general.rs`, `sources.rs` | the text of the general kernel |
//! | `fixed.rs` | the text of a kernel for one table alone |
//! | `header.rs` | constants of the kernels' header |

mod fixed;
mod general;
mod header;
mod pattern;
mod products;
mod ring;
mod rows;
mod sources;
mod table;
mod weights;

use crate::profile::Profile;
use device::key_bias::KeyBias;
use device::{KvType, Limits, Numerics, Plan};
use device_lower::units::LoweredUnit;
use std::ops::Range;

pub use fixed::{FIXED, fixed_file};
pub use general::{General, Pages, Rows};
use header::{
    EXCHANGE_ATTENDED, EXCHANGE_BEST, EXCHANGE_GATED, EXCHANGE_PARTIALS, EXCHANGE_QKV, EXCHANGE_SCORES,
    EXCHANGE_SQUARES, EXCHANGE_WIDE, MAX_BLOCKS, MAX_OWN, MAX_SPLITS, MAX_USED, MAX_VOCAB, PASS, TILE,
};
pub use pattern::{FoundDecoder, Mixture, decoder};
use products::{PhaseProduct, even_blocks, products, qkv_parts};
use ring::SLOT_MIXED;
pub use rows::MOST_IN_TURN;
pub use table::PhasePlaces;
pub use weights::{PersistentPlan, PersistentWeights};

/// Numbers of columns of a head that the kernels support.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// Maximum number of query heads of a KV head.
const MOST_OF_GROUP: usize = 8;

/// Threads of a block.
pub const THREADS: u32 = header::THREADS as u32;

/// Maximum number of rows of a pass of a block.
const PASS_ROWS: usize = 8 * PASS;

/// Bytes of the exchange for the input of the down projection.
const GATED_BYTES: usize = (EXCHANGE_ATTENDED - EXCHANGE_GATED) as usize;

/// Maximum number of layers without experts after one with experts. Epochs of the exchange's words
/// repeat after 15: the kernel would mistake a word that is 15 epochs old for a new one.
const MOST_DENSE: usize = 12;

/// A plan that a persistent kernel runs.
#[derive(Clone, Debug)]
pub struct Persistent {
    /// The decoder.
    pub decoder: FoundDecoder,
    /// Units of the plan that run before the kernel, and units that run after it.
    pub outside: [Range<usize>; 2],
    /// True if the kernel chooses the best token itself: no Op changes the logits before the
    /// choice.
    pub chooses: bool,
    /// Maximum number of rows of a step in the kernel for several rows, or the reason why there is
    /// no such kernel. It is 1 if this is the only kernel and no step has more rows.
    pub several: Result<usize, String>,
    /// Maximum number of rows of a step that the kernel for one row computes by a launch for each
    /// row. It applies only if there is no kernel for several rows.
    pub in_turn: usize,
    pages: Pages,
    n_blocks: usize,
    /// The matrices of q, k and v (0, 1, 2) that each QKV phase of a layer multiplies.
    qkv_parts: Vec<Range<usize>>,
    /// The product of each phase.
    products: Vec<PhaseProduct>,
}

impl Persistent {
    /// Finds the decoder of a plan, and checks it against the kernels' limits.
    ///
    /// # Errors
    /// Returns the reason why no kernel can run the plan.
    pub fn new(
        plan: &Plan,
        units: &[LoweredUnit],
        limits: &Limits,
        profile: &Profile,
    ) -> Result<Persistent, String> {
        if !profile.persistent {
            return Err("the profile of this GPU has no persistent kernels".to_owned());
        }
        if limits.numerics == Numerics::Deterministic {
            return Err("--deterministic needs a launch for each unit".to_owned());
        }
        let pages = match limits.kv_type {
            KvType::F16 => Pages::F16,
            KvType::Q8_0 | KvType::Fp8
                if KeyBias::of_layers(std::slice::from_ref(plan)).iter().any(Option::is_some) =>
            {
                return Err("keys are stored without their bias".to_owned());
            }
            KvType::Q8_0 => Pages::Q8_0,
            KvType::Fp8 => Pages::Fp8,
            other @ (KvType::F32 | KvType::I16 | KvType::I8) => {
                return Err(format!("keys and values are {other:?}, expected F16, Q8_0 or Fp8"));
            }
        };
        let decoder = decoder(plan)?;
        let before = units.iter().take_while(|unit| unit.last < decoder.nodes.start).count();
        let after = units.iter().position(|unit| unit.node >= decoder.nodes.end).unwrap_or(units.len());
        let inside = |unit: &LoweredUnit| unit.node >= decoder.nodes.start && unit.last < decoder.nodes.end;
        if !units[before..after].iter().all(inside)
            || !units[after..].iter().all(|unit| unit.node >= decoder.nodes.end)
        {
            return Err("a fused Op crosses the start or end of the decoder".to_owned());
        }
        let hidden = plan.value(decoder.first).cols;
        let qkv_parts = qkv_parts(plan, &decoder);
        let products = products(plan, &decoder, &qkv_parts)?;
        let n_blocks = even_blocks(plan, &decoder, profile.n_processors.min(MAX_BLOCKS));
        let chooses = decoder.logits == plan.output;
        let mut mine = Persistent {
            decoder,
            outside: [0..before, after..units.len()],
            chooses,
            several: Err(String::new()),
            in_turn: 1,
            pages,
            n_blocks,
            qkv_parts,
            products,
        };
        mine.check(plan, hidden, limits, profile)?;
        mine.several = match mine.most_rows(plan, limits, profile) {
            Err(reason) if mine.has_halves() => return Err(reason),
            several => several,
        };
        mine.in_turn = mine.most_in_turn(limits, profile);
        Ok(mine)
    }

    /// Checks the sizes that the kernels have room for.
    fn check(&self, plan: &Plan, hidden: usize, limits: &Limits, profile: &Profile) -> Result<(), String> {
        let heads = self.decoder.heads;
        let (of_group, head_dim) = (heads.of_group(), heads.head_dim);
        if !HEAD_DIMS.contains(&head_dim) || of_group > MOST_OF_GROUP {
            return Err(format!("{of_group} query heads a KV head of {head_dim} columns"));
        }
        if !profile.other_shapes && !self.is_prebuilt(Rows::One) {
            let what = match self.has_rare() {
                true => "a type, sinks, biases or a clamped gate".to_owned(),
                false => format!("{of_group} query heads a KV head of {head_dim} columns"),
            };
            return Err(format!("{what}: no kernel is prebuilt for it, and NVRTC was not found"));
        }
        let (own_rows, qkv_rows, ffn) = (self.own_rows(hidden), self.qkv_rows(), self.ffn(plan));
        let of_qkv = self.qkv_parts.len();
        // If q, k and v are split into parts, each part must fit one pass of a block.
        let parts = self.products.iter().take(if of_qkv > 1 { of_qkv } else { 0 });
        let part_rows = parts.map(|part| part.groups.div_ceil(self.n_blocks) * 8).max().unwrap_or(0);
        let partials = heads.n_kv_heads * self.n_splits() * self.partial_bytes();
        let sizes = [
            ("columns of the residual, a multiple of 8", hidden % 8, 0),
            ("columns of the network, a multiple of 8", ffn % 8, 0),
            ("rows of the residual in a block", own_rows, MAX_OWN),
            ("rows of a part of q, k and v in a block", part_rows, PASS_ROWS),
            ("bytes of q, k and v", qkv_rows * 4, EXCHANGE_PARTIALS - EXCHANGE_QKV),
            ("bytes of attention", heads.n_heads * head_dim * 2, EXCHANGE_QKV - EXCHANGE_ATTENDED as usize),
            ("bytes of the network", ffn * 2, GATED_BYTES),
            ("bytes of partial attentions", partials, EXCHANGE_BEST - EXCHANGE_PARTIALS),
            ("KV heads", heads.n_kv_heads, self.n_blocks),
            ("tokens", plan.weight(self.decoder.head).n_rows(), MAX_VOCAB),
        ];
        let of_mixture = self.mixture().map(|Mixture { n, n_used, ffn, .. }| {
            let units = ffn.div_ceil(128);
            [
                ("experts in a block", n.div_ceil(self.n_blocks), 8),
                ("bytes of scores", n * 4, EXCHANGE_SQUARES - EXCHANGE_SCORES),
                ("experts of a token", n_used, MAX_USED),
                ("bytes of a router's input", hidden * 4, EXCHANGE_SCORES - EXCHANGE_WIDE),
                ("bytes of the experts' networks", n_used * units * 256, GATED_BYTES),
                ("bytes of 8 rows of an expert", self.expert_group(), SLOT_MIXED),
                ("layers without experts in a row", self.longest_dense(), MOST_DENSE),
            ]
        });
        fit(sizes.into_iter().chain(of_mixture.into_iter().flatten()))?;
        let n_groups = plan.kv.groups.len();
        let page_bytes = |group| plan.kv.page_bytes(group, limits.kv_type, limits.page_len);
        if (0..n_groups).any(|group| page_bytes(group) > u32::MAX as usize) {
            return Err("pages of more than 4 GiB".to_owned());
        }
        // F16 and BF16 weights use only the kernel for several rows, which `most_rows` checks.
        if self.has_halves() { Ok(()) } else { self.has_slots(Rows::One, profile.shared_bytes) }
    }

    /// Maximum number of rows of the residual in a block.
    fn own_rows(&self, hidden: usize) -> usize {
        (hidden / 8).div_ceil(self.n_blocks) * 8
    }

    /// Rows of q, k and v.
    fn qkv_rows(&self) -> usize {
        let heads = self.decoder.heads;
        (heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim
    }

    /// Columns of the widest network, or of an expert's network in layers with experts.
    fn ffn(&self, plan: &Plan) -> usize {
        let networks = self.decoder.layers.iter().map(|layer| match layer.router {
            Some(router) => router.mixture.ffn,
            None => plan.weight(layer.gate).n_rows(),
        });
        networks.max().unwrap_or(0)
    }

    /// Bytes of a block's partial attention to a KV head.
    fn partial_bytes(&self) -> usize {
        let heads = self.decoder.heads;
        let of_group = heads.of_group();
        (of_group * heads.head_dim + 2 * of_group + 4) * 4
    }

    /// The properties that all routers share, if some layer has a router.
    fn mixture(&self) -> Option<Mixture> {
        self.decoder.layers.iter().find_map(|layer| layer.router).map(|router| router.mixture)
    }

    /// Maximum number of dense layers in a row after the first mixture.
    fn longest_dense(&self) -> usize {
        let layers = self.decoder.layers.iter().map(|layer| layer.router.is_none());
        let after = layers.skip_while(|is_dense| *is_dense);
        let longest = |(longest, now): (usize, usize), is_dense: bool| {
            let now = if is_dense { now + 1 } else { 0 };
            (longest.max(now), now)
        };
        after.fold((0, 0), longest).0
    }

    /// Maximum number of steps of a launch of the kernel for one row. It is more than one only if
    /// every block has rows of the residual: every block then waits for the token of the previous
    /// step. With experts several steps were slower (NOTES.md).
    pub fn chained_steps(&self, plan: &Plan, profile: &Profile) -> usize {
        let all_blocks_have_rows = plan.value(self.decoder.first).cols / 8 >= self.n_blocks;
        if !self.chooses || !all_blocks_have_rows || self.mixture().is_some() {
            return 1;
        }
        let fit = profile.chained_bytes / self.weight_bytes().max(1);
        profile.chained_steps.min(fit as usize).max(1)
    }

    /// True if a step at this position of a sequence attends to the same tiles as one at the next
    /// position.
    pub fn has_same_tiles(windows: &[usize], position: usize) -> bool {
        let first_seen = |position: usize, window: &usize| (position + 1).saturating_sub(*window) / TILE;
        position / TILE == (position + 1) / TILE
            && windows.iter().all(|window| first_seen(position, window) == first_seen(position + 1, window))
    }

    /// The windows of all layers, each once, in ascending order.
    pub fn windows(&self) -> Vec<usize> {
        let mut windows: Vec<usize> = self.decoder.layers.iter().filter_map(|layer| layer.window).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    /// Blocks of a launch: one for each multiprocessor in use.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Blocks that share a KV head.
    fn n_splits(&self) -> usize {
        MAX_SPLITS.min(self.n_blocks / self.decoder.heads.n_kv_heads.max(1)).max(1)
    }

    /// Bytes of packed weights that a token reads.
    pub fn weight_bytes(&self) -> u64 {
        self.products.iter().map(|product| product.bytes().1 as u64).sum()
    }
}

/// Checks sizes, each with its name, its value and the largest value that fits.
fn fit(sizes: impl IntoIterator<Item = (&'static str, usize, usize)>) -> Result<(), String> {
    match sizes.into_iter().find(|(_, found, most)| found > most) {
        Some((what, found, most)) => Err(format!("{what}: {found}, expected at most {most}")),
        None => Ok(()),
    }
}

/// Returns for each plan its persistent form, or the reason why it has none, and the packed weights
/// of all of them. If memory is short, packed weights of other kinds (`others` bytes) take
/// precedence.
pub fn persistent_of<'a>(
    parts: impl Iterator<Item = (&'a Plan, &'a [LoweredUnit])>,
    limits: &Limits,
    profile: &Profile,
    others: usize,
) -> (Vec<Result<Persistent, String>>, PersistentPlan) {
    let parts: Vec<(&Plan, &[LoweredUnit])> = parts.collect();
    let of = |(plan, units): &(&Plan, &[LoweredUnit])| Persistent::new(plan, units, limits, profile);
    let mut found: Vec<Result<Persistent, String>> = parts.iter().map(of).collect();
    let plans = || parts.iter().map(|(plan, _)| *plan);
    let packed = PersistentPlan::new(plans().zip(&found));
    let read = found.iter().flatten().map(Persistent::weight_bytes).max().unwrap_or(0);
    let third = packed.total() as u64;
    let has_halves = found.iter().flatten().any(Persistent::has_halves);
    let most = if has_halves { profile.most_halves } else { profile.most_persistent };
    let too_much = if read > most {
        let most = most / 1_000_000;
        Some(format!("{} MB of weights a token, expected at most {most} MB", read / 1_000_000))
    } else if third > 0 && third + others as u64 > profile.most_copies {
        Some(format!(
            "the third copy of the weights takes {} MB, with {} MB of other copies, expected at most {} MB",
            third / 1_000_000,
            others / 1_000_000,
            profile.most_copies / 1_000_000
        ))
    } else {
        None
    };
    let Some(reason) = too_much else { return (found, packed) };
    found.iter_mut().filter(|found| found.is_ok()).for_each(|found| *found = Err(reason.clone()));
    let packed = PersistentPlan::new(plans().zip(&found));
    (found, packed)
}

#[cfg(test)]
mod tests;
