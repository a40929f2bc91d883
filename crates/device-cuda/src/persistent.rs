//! Whole tokens in one launch (`kernels/persistent`): which plans the kernel can run, the table of phases that a plan becomes, and
//! the launch. `pattern` finds the decoder in a plan, `weights` packs its matrices a third time.

mod pattern;
mod weights;

use crate::arguments::{PersistentArguments, PersistentPhase};
use crate::driver::Address;
use crate::products::has_activation;
use crate::profile::Profile;
use ::weights::BlockType;
use device::key_bias::KeyBias;
use device::{KvType, Limits, Numerics, Plan, RopeStyle, WeightId};
use device_lower::units::LoweredUnit;
use std::ops::Range;

pub use pattern::{Dense, dense};
pub use weights::{PersistentPlan, PersistentWeights};

/// Columns of a head and query heads of a KV head of the kernels that there are.
const SHAPES: [(usize, usize); 7] = [(64, 2), (64, 3), (64, 4), (128, 2), (128, 3), (128, 4), (128, 8)];

/// Threads of a block.
pub const THREADS: u32 = 320;

// The names of `persistent/arguments.h`; a test compares them.
const QKV: u32 = 0;
const ADD: u32 = 1;
const GATE: u32 = 2;
const HEAD: u32 = 3;
const EXCHANGE_INPUT: u32 = 0;
const EXCHANGE_MIDDLE: u32 = 65_536;
const EXCHANGE_GATED: u32 = 131_072;
const EXCHANGE_ATTENDED: u32 = 262_144;
const EXCHANGE_QKV: usize = 327_680;
const EXCHANGE_PARTIALS: usize = 458_752;
const EXCHANGE_SQUARES: usize = 1_507_328;
const EXCHANGE: usize = 1_515_520;
const MAX_BLOCKS: usize = 160;
const MAX_SLOTS: usize = 40;
const MAX_ROWS: usize = 64;

/// Bytes of both exchanges and the turn.
const EXCHANGE_BYTES: usize = 2 * EXCHANGE + 256;

/// Blocks of a KV head, at most.
const MOST_SPLITS: usize = 16;

/// Bytes of a slot of the ring (NOTES.md has others).
const SLOT: usize = 9216;

/// Cycles that a block waits between its own words and its first poll (NOTES.md).
const POLL_DELAY: u32 = 100;

/// Slots without which the ring is too short to be worth it.
const FEWEST_SLOTS: usize = 6;

/// Bits of a row in the word that blocks exchange to choose the best.
const MOST_VOCAB: usize = 1 << 18;

/// How a product's weights are packed (`PERSISTENT_CODEC_*`): the codec and the bytes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    number: u32,
    unit: usize,
}

impl Codec {
    /// Of a type; `None`: the kernel has none.
    pub fn of(block: BlockType) -> Option<Codec> {
        use BlockType::*;
        let (number, unit) = match block {
            Q4_0 => (0, 576),
            Q4_1 | Q4_K => (1, 640),
            Q8_0 => (2, 1088),
            Q6_K => (3, 896),
            _ => return None,
        };
        Some(Codec { number, unit })
    }

    /// Bytes of a step: 8 rows by 1,024 columns.
    fn step(self) -> usize {
        8 * self.unit
    }
}

/// Groups of 1,024 columns.
fn quads(n_cols: usize) -> usize {
    n_cols.div_ceil(1024)
}

/// A plan that the kernel can run.
#[derive(Clone, Debug)]
pub struct Persistent {
    /// The decoder.
    pub dense: Dense,
    /// Units of the plan that run before the kernel, and after it.
    pub outside: [Range<usize>; 2],
    /// Whether nothing happens to logits before a token is chosen from them: the kernel then chooses the best.
    pub chooses: bool,
    /// Of the kernel's name: how keys and values are stored.
    kv_name: &'static str,
    n_blocks: usize,
    /// By phase.
    products: Vec<Product>,
}

/// A product of a phase.
#[derive(Clone, Copy, Debug)]
struct Product {
    codec: Codec,
    groups: usize,
    k_quads: usize,
}

impl Persistent {
    /// Of a plan and its units.
    ///
    /// # Errors
    /// Why the kernel cannot run it, in words.
    pub fn new(
        plan: &Plan,
        units: &[LoweredUnit],
        limits: &Limits,
        profile: &Profile,
    ) -> Result<Persistent, String> {
        if profile.persistent_positions == 0 {
            return Err("the profile of this GPU does not have them".to_owned());
        }
        if limits.numerics == Numerics::Deterministic {
            return Err("--deterministic".to_owned());
        }
        let kv_name = match limits.kv_type {
            KvType::F16 => "",
            KvType::Q8_0 if KeyBias::of_layers(std::slice::from_ref(plan)).iter().any(Option::is_some) => {
                return Err("keys that are stored without their bias".to_owned());
            }
            KvType::Q8_0 => "q8_0_",
            other @ (KvType::F32 | KvType::I16 | KvType::I8) => {
                return Err(format!("keys and values in {other:?}"));
            }
        };
        let dense = dense(plan)?;
        let before = units.iter().take_while(|unit| unit.last < dense.nodes.start).count();
        let after = units.iter().position(|unit| unit.node >= dense.nodes.end).unwrap_or(units.len());
        let inside = |unit: &LoweredUnit| unit.node >= dense.nodes.start && unit.last < dense.nodes.end;
        if !units[before..after].iter().all(inside)
            || !units[after..].iter().all(|unit| unit.node >= dense.nodes.end)
        {
            return Err("fused Ops across its ends".to_owned());
        }
        let (hidden, n_blocks) = (plan.value(dense.first).cols, profile.n_processors.min(MAX_BLOCKS));
        let products = products(plan, &dense)?;
        let chooses = dense.logits == plan.output;
        let mine = Persistent {
            dense,
            outside: [0..before, after..units.len()],
            chooses,
            kv_name,
            n_blocks,
            products,
        };
        mine.check(plan, hidden, limits, profile)?;
        Ok(mine)
    }

    /// Sizes that the kernel has room for.
    fn check(&self, plan: &Plan, hidden: usize, limits: &Limits, profile: &Profile) -> Result<(), String> {
        let heads = self.dense.heads;
        let (of_group, head_dim) = (heads.n_heads / heads.n_kv_heads.max(1), heads.head_dim);
        if !SHAPES.contains(&(head_dim, of_group)) {
            return Err(format!("{of_group} query heads a KV head of {head_dim} columns"));
        }
        let most_rows = (hidden / 8).div_ceil(self.n_blocks) * 8;
        let qkv_rows = (heads.n_heads + 2 * heads.n_kv_heads) * head_dim;
        let ffn = self.dense.layers.iter().map(|layer| plan.weight(layer.gate).n_rows()).max().unwrap_or(0);
        let partials = heads.n_kv_heads * self.n_splits() * (of_group * head_dim + 2 * of_group + 4) * 4;
        let sizes = [
            ("columns of the residual, a multiple of 8", hidden % 8, 0),
            ("columns of the network, a multiple of 8", ffn % 8, 0),
            ("rows of the residual of a block", most_rows, MAX_ROWS),
            ("bytes of q, k and v", qkv_rows * 4, EXCHANGE_PARTIALS - EXCHANGE_QKV),
            ("bytes of attention", heads.n_heads * head_dim * 2, EXCHANGE_QKV - EXCHANGE_ATTENDED as usize),
            ("bytes of the network", ffn * 2, (EXCHANGE_ATTENDED - EXCHANGE_GATED) as usize),
            ("bytes of partial attentions", partials, EXCHANGE_SQUARES - EXCHANGE_PARTIALS),
            ("KV heads", heads.n_kv_heads, self.n_blocks),
            ("tokens", plan.weight(self.dense.head).n_rows(), MOST_VOCAB),
        ];
        if let Some((what, found, most)) = sizes.into_iter().find(|(_, found, most)| found > most) {
            return Err(format!("{what}: {found}, expected at most {most}"));
        }
        let n_groups = plan.kv.groups.len();
        let page_bytes = |group| plan.kv.page_bytes(group, limits.kv_type, limits.page_len);
        if (0..n_groups).any(|group| page_bytes(group) > u32::MAX as usize) {
            return Err("pages of more than 4 GiB".to_owned());
        }
        match self.ring(profile.shared_bytes).0 {
            n if n >= FEWEST_SLOTS => Ok(()),
            n => Err(format!("{n} slots of shared memory, expected at least {FEWEST_SLOTS}")),
        }
    }

    /// Its file and its name.
    pub fn kernel(&self) -> (String, String) {
        let heads = self.dense.heads;
        let shape = format!("{}_{}", heads.head_dim, heads.n_heads / heads.n_kv_heads);
        let shape = format!("{}{shape}", self.kv_name);
        (format!("persistent/decode_{shape}.cu"), format!("persistent_decode_{shape}"))
    }

    /// Blocks: one a multiprocessor.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Blocks of a KV head.
    fn n_splits(&self) -> usize {
        MOST_SPLITS.min(self.n_blocks / self.dense.heads.n_kv_heads.max(1)).max(1)
    }

    fn most_quads(&self) -> usize {
        self.products.iter().map(|product| product.k_quads).max().unwrap_or(1)
    }

    /// Slots of the ring, and bytes of shared memory.
    fn ring(&self, shared_bytes: u32) -> (usize, u32) {
        let heads = self.dense.heads;
        let (d, h) = (heads.head_dim, heads.n_heads / heads.n_kv_heads);
        // PERSISTENT_SHARED, the input, the phases.
        let own = 4752 + 20 * d + 36 * h * d + 64 * h;
        let rest = own + 2560 * self.most_quads() + size_of::<PersistentPhase>() * self.products.len();
        let n_slots = ((shared_bytes as usize).saturating_sub(rest) / SLOT).min(MAX_SLOTS);
        (n_slots, (n_slots * SLOT + rest) as u32)
    }

    /// Bytes of weights that a token reads, as packed.
    pub fn weight_bytes(&self) -> u64 {
        self.products.iter().map(|p| (p.groups * p.k_quads * p.codec.step()) as u64).sum()
    }

    /// The table.
    pub fn phases(&self, plan: &Plan, places: &PhasePlaces<'_>) -> Vec<PersistentPhase> {
        let (vector, weights) = (places.vector, places.weights);
        let optional = |id: Option<WeightId>| id.map_or(0, vector);
        let layers = &self.dense.layers;
        let chunks = |id: WeightId| (plan.weight(id).n_cols() / 8) as u32;
        let mut phases = Vec::with_capacity(self.products.len());
        for (index, layer) in layers.iter().enumerate() {
            let [qkv, output, gate, down] = [0, 1, 2, 3].map(|i| 4 * index + i);
            let next_norm = layers.get(index + 1).map_or(self.dense.norm, |next| next.norm);
            let (pages, page_bytes, table) = (places.pages)(layer.kv);
            phases.push(PersistentPhase {
                weights: weights[qkv],
                bias: places.biases[index],
                q_norm: optional(layer.q_norm),
                k_norm: optional(layer.k_norm),
                pages,
                page_bytes,
                table,
                window: layer.window.unwrap_or(0) as u32,
                rotation: layer.rotation as u32,
                kind: QKV,
                input: EXCHANGE_INPUT,
                chunks: chunks(layer.qkv[0].0),
                ..PersistentPhase::default()
            });
            phases.push(PersistentPhase {
                weights: weights[output],
                norm: vector(layer.ffn_norm),
                post_norm: optional(layer.post_attention),
                kind: ADD,
                input: EXCHANGE_ATTENDED,
                chunks: chunks(layer.output),
                ..PersistentPhase::default()
            });
            phases.push(PersistentPhase {
                weights: weights[gate],
                kind: GATE,
                input: EXCHANGE_MIDDLE,
                chunks: chunks(layer.gate),
                activation: crate::compile::activation(layer.activation),
                gate_refill: 1,
                ..PersistentPhase::default()
            });
            phases.push(PersistentPhase {
                weights: weights[down],
                norm: vector(next_norm),
                post_norm: optional(layer.post_ffn),
                kind: ADD,
                input: EXCHANGE_GATED,
                chunks: chunks(layer.down),
                ..PersistentPhase::default()
            });
        }
        phases.push(PersistentPhase {
            weights: weights[4 * layers.len()],
            kind: HEAD,
            input: EXCHANGE_INPUT,
            chunks: chunks(self.dense.head),
            ..PersistentPhase::default()
        });
        for (phase, product) in phases.iter_mut().zip(&self.products) {
            phase.codec = product.codec.number;
            (phase.groups, phase.k_quads) = (product.groups as u32, product.k_quads as u32);
        }
        phases
    }

    /// A launch's arguments but for addresses, and the bytes of its shared memory.
    pub fn arguments(&self, plan: &Plan, limits: &Limits, shared_bytes: u32) -> (PersistentArguments, u32) {
        let heads = self.dense.heads;
        let (n_slots, shared) = self.ring(shared_bytes);
        let scale = |index: usize| self.dense.rotations.get(index).map_or(1.0, |(_, scale)| *scale);
        let arguments = PersistentArguments {
            n_phases: self.products.len() as u32,
            rotation_scale1: scale(0),
            rotation_scale2: scale(1),
            interleaved: u32::from(heads.style == RopeStyle::Interleaved),
            hidden: plan.value(self.dense.first).cols as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            n_vocab: plan.weight(self.dense.head).n_rows() as u32,
            n_splits: self.n_splits() as u32,
            page_len: limits.page_len as u32,
            slot_bytes: SLOT as u32,
            n_slots: n_slots as u32,
            eps: self.dense.eps,
            attention_scale: heads.scale * std::f32::consts::LOG2_E,
            softcap: heads.softcap.unwrap_or(0.0),
            poll_delay: POLL_DELAY,
            refill_gates: 1,
            stop_phase: self.products.len() as u32,
            most_quads: self.most_quads() as u32,
            ..PersistentArguments::default()
        };
        (arguments, shared)
    }
}

/// By plan, what the kernel runs of it, or why it does not; and the weights of those that it runs. Packed weights of other kinds, `others`
/// bytes, come first where memory is short.
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
    let too_much = match packed.total() as u64 {
        n if n > profile.most_persistent => {
            let most = profile.most_persistent / 1_000_000;
            Some(format!("{} MB of weights, expected at most {most}", n / 1_000_000))
        }
        n if n + others as u64 > profile.most_packed => {
            Some(format!("{} MB for a third copy of the weights, too much of the memory", n / 1_000_000))
        }
        _ => None,
    };
    let Some(reason) = too_much else { return (found, packed) };
    found.iter_mut().filter(|found| found.is_ok()).for_each(|found| *found = Err(reason.clone()));
    let packed = PersistentPlan::new(plans().zip(&found));
    (found, packed)
}

/// What a table points to.
pub struct PhasePlaces<'a> {
    /// By phase: packed weights.
    pub weights: &'a [Address],
    /// By layer: biases of q, k and v in the order of packed rows, or 0.
    pub biases: &'a [Address],
    /// A vector.
    pub vector: &'a dyn Fn(WeightId) -> Address,
    /// A layer's part of the first page of its group, bytes of a page, first entry in the page table.
    pub pages: &'a dyn Fn(device::KvLayerId) -> (Address, u32, u32),
}

/// The products of all phases, in order.
fn products(plan: &Plan, dense: &Dense) -> Result<Vec<Product>, String> {
    let of = |ids: &[WeightId], groups: usize| -> Result<Product, String> {
        let weight = plan.weight(ids[0]);
        let Some(codec) = Codec::of(weight.block) else {
            return Err(format!("{} in {}", weight.name, weight.block));
        };
        if let Some(other) = ids.iter().map(|id| plan.weight(*id)).find(|other| other.block != weight.block) {
            return Err(format!(
                "{} in {} beside {} in {}",
                other.name, other.block, weight.name, weight.block
            ));
        }
        Ok(Product { codec, groups, k_quads: quads(weight.n_cols()) })
    };
    let rows = |id: WeightId| plan.weight(id).n_rows();
    let mut products = Vec::new();
    for layer in &dense.layers {
        if !has_activation(layer.activation) {
            return Err(format!("the activation {:?}", layer.activation));
        }
        let qkv = layer.qkv.map(|(weight, _)| weight);
        products.push(of(&qkv, qkv.iter().map(|id| rows(*id)).sum::<usize>() / 8)?);
        products.push(of(&[layer.output], rows(layer.output).div_ceil(8))?);
        products.push(of(&[layer.gate, layer.up], 2 * rows(layer.gate).div_ceil(8))?);
        products.push(of(&[layer.down], rows(layer.down).div_ceil(8))?);
    }
    products.push(of(&[dense.head], rows(dense.head).div_ceil(8))?);
    Ok(products)
}

#[cfg(test)]
mod tests;
