//! Whole tokens in one launch (`kernels/persistent`): which plans the kernel can run, the table of phases that a plan becomes, and
//! the launch. `pattern` finds the decoder in a plan, `weights` packs its matrices a third time, `rows` says which plans have the kernel of
//! several rows too, `sources` where a kernel's text is.

mod fixed;
mod pattern;
mod products;
mod rows;
mod sources;
mod weights;

use crate::arguments::{PersistentArguments, PersistentPhase};
use crate::driver::Address;
use crate::layout::StepLayout;
use crate::profile::Profile;
use device::key_bias::KeyBias;
use device::{KvType, Limits, Numerics, Plan, RopeStyle, RouterScores, WeightId};
use device_lower::units::LoweredUnit;
use std::ops::Range;

pub use fixed::{FIXED, fixed_file};
pub use pattern::{Decoder, Mixture, decoder};
use products::{BUNDLE, Codec, Packing, Product, even_blocks, products, qkv_parts};
pub use rows::{MOST_IN_TURN, Rows};
use rows::{ROWS_CHOICE, ROWS_INPUT, SHARED_MORE};
pub use weights::{PersistentPlan, PersistentWeights};

/// Columns of a head, and query heads of a KV head at most, of the kernels that there can be. Where no file under `kernels/persistent` is of such heads,
/// `sources` writes the text.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];
const MOST_OF_GROUP: usize = 8;

/// Threads of a block.
pub const THREADS: u32 = 320;

// The names of `persistent/arguments.h`; a test compares them.
const QKV: u32 = 0;
const ADD: u32 = 1;
const GATE: u32 = 2;
const HEAD: u32 = 3;
const ROUTE: u32 = 4;
const EXPERTS: u32 = 5;
const ADD_EXPERTS: u32 = 6;
const EXCHANGE_INPUT: u32 = 0;
const EXCHANGE_MIDDLE: u32 = 65_536;
const EXCHANGE_GATED: u32 = 131_072;
const EXCHANGE_ATTENDED: u32 = 262_144;
const EXCHANGE_QKV: usize = 327_680;
const EXCHANGE_PARTIALS: usize = 458_752;
const EXCHANGE_BEST: usize = 1_507_328;
const EXCHANGE_WIDE: usize = 1_511_424;
const EXCHANGE_SCORES: usize = 1_527_808;
const EXCHANGE_SQUARES: usize = 1_528_832;
const EXCHANGE: usize = 1_545_216;
const MAX_BLOCKS: usize = 160;
const MAX_SLOTS: usize = 40;
const MAX_SPLITS: usize = 32;
const MAX_VOCAB: usize = 524_288;
const MAX_ROWS: usize = 64;
const MAX_USED: usize = 32;
const CHOICE: usize = 272;
const CONTINUES: u32 = 1;
const CONTINUED: u32 = 2;
const REVERSED: u32 = 4;
const OF_THREE: u32 = 8;

/// Positions that a warp attends to at a time.
const TILE: usize = 16;

/// Rows of a pass of a block.
const PASS_ROWS: usize = 64;

/// Bytes of the input of down.
const GATED_BYTES: usize = (EXCHANGE_ATTENDED - EXCHANGE_GATED) as usize;

/// Layers without experts after one with them, at most: a word that is as many epochs old as there are tags would pass for a new one.
const MOST_DENSE: usize = 12;

/// Bytes of both exchanges and the turn.
const EXCHANGE_BYTES: usize = 2 * EXCHANGE + 256;

/// Bytes of shared memory of an input of 1,024 columns.
const INPUT: usize = 2560;

/// Bytes of a slot of the ring, or of one that holds two steps of units of 640 bytes, as those of `q4m` (NOTES.md has others).
const SLOT: usize = 9216;
const SLOT_640: usize = 10_240;

/// The same of one that holds a step of `f16`, or a tile of heads of 256 columns in F16, and of one that holds two of `q8` too.
const SLOT_F16: usize = 16_384;
const SLOT_MIXED: usize = 18_432;

/// Bytes of weights that are on their way to a block at once, about (NOTES.md).
const IN_FLIGHT: usize = 32_768;

/// Cycles that a block waits between its own words and its first poll (NOTES.md).
const POLL_DELAY: u32 = 100;
const POLL_DELAY_FIXED: u32 = 200;

/// Slots without which the ring is too short to be worth it.
const FEWEST_SLOTS: usize = 6;
const FEWEST_LARGE_SLOTS: usize = 4;

/// A plan that the kernel can run.
#[derive(Clone, Debug)]
pub struct Persistent {
    /// The decoder.
    pub decoder: Decoder,
    /// Units of the plan that run before the kernel, and after it.
    pub outside: [Range<usize>; 2],
    /// Whether nothing happens to logits before a token is chosen from them: the kernel then chooses the best.
    pub chooses: bool,
    /// Rows of a step that the kernel of several rows takes, at most (1: it is the only kernel, and no step has more); or why there is none,
    /// in words.
    pub several: Result<usize, String>,
    /// Where there is none: rows of a step that the kernel of one row takes, one after the other, at most.
    pub in_turn: usize,
    /// Of the kernel's name: how keys and values are stored.
    kv_name: &'static str,
    n_blocks: usize,
    /// Which of a layer's q, k and v each of its phases for them multiplies.
    qkv_parts: Vec<Range<usize>>,
    /// By phase.
    products: Vec<Product>,
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
        if !profile.persistent {
            return Err("the profile of this GPU does not have them".to_owned());
        }
        if limits.numerics == Numerics::Deterministic {
            return Err("--deterministic".to_owned());
        }
        let kv_name = match limits.kv_type {
            KvType::F16 => "",
            KvType::Q8_0 | KvType::Fp8
                if KeyBias::of_layers(std::slice::from_ref(plan)).iter().any(Option::is_some) =>
            {
                return Err("keys that are stored without their bias".to_owned());
            }
            KvType::Q8_0 => "q8_0_",
            KvType::Fp8 => "fp8_",
            other @ (KvType::F32 | KvType::I16 | KvType::I8) => {
                return Err(format!("keys and values in {other:?}"));
            }
        };
        let decoder = decoder(plan)?;
        let before = units.iter().take_while(|unit| unit.last < decoder.nodes.start).count();
        let after = units.iter().position(|unit| unit.node >= decoder.nodes.end).unwrap_or(units.len());
        let inside = |unit: &LoweredUnit| unit.node >= decoder.nodes.start && unit.last < decoder.nodes.end;
        if !units[before..after].iter().all(inside)
            || !units[after..].iter().all(|unit| unit.node >= decoder.nodes.end)
        {
            return Err("fused Ops across its ends".to_owned());
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
            kv_name,
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

    /// Sizes that the kernel has room for.
    fn check(&self, plan: &Plan, hidden: usize, limits: &Limits, profile: &Profile) -> Result<(), String> {
        let heads = self.decoder.heads;
        let (of_group, head_dim) = (heads.of_group(), heads.head_dim);
        if !HEAD_DIMS.contains(&head_dim) || of_group > MOST_OF_GROUP {
            return Err(format!("{of_group} query heads a KV head of {head_dim} columns"));
        }
        if !profile.other_shapes && !self.has_file(Rows::One) {
            let what = match self.has_rare() {
                true => "a type, sinks, biases or a clamped gate".to_owned(),
                false => format!("{of_group} query heads a KV head of {head_dim} columns"),
            };
            return Err(format!("{what}, whose kernels NVRTC compiles, which is not there"));
        }
        let (own_rows, qkv_rows, ffn) = (self.own_rows(hidden), self.qkv_rows(), self.ffn(plan));
        let of_qkv = self.qkv_parts.len();
        // Of parts; all of q, k and v in one phase may be any number.
        let parts = self.products.iter().take(if of_qkv > 1 { of_qkv } else { 0 });
        let part_rows = parts.map(|part| part.groups.div_ceil(self.n_blocks) * 8).max().unwrap_or(0);
        let partials = heads.n_kv_heads * self.n_splits() * self.partial_bytes();
        let sizes = [
            ("columns of the residual, a multiple of 8", hidden % 8, 0),
            ("columns of the network, a multiple of 8", ffn % 8, 0),
            ("rows of the residual of a block", own_rows, MAX_ROWS),
            ("rows of a part of q, k and v of a block", part_rows, PASS_ROWS),
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
                ("experts of a block", n.div_ceil(self.n_blocks), 8),
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
        // Of halves `most_rows` looks at the kernel that there is.
        if self.has_halves() { Ok(()) } else { self.has_slots(Rows::One, profile.shared_bytes) }
    }

    /// Rows of the residual of a block, at most.
    fn own_rows(&self, hidden: usize) -> usize {
        (hidden / 8).div_ceil(self.n_blocks) * 8
    }

    /// Rows of q, k and v.
    fn qkv_rows(&self) -> usize {
        let heads = self.decoder.heads;
        (heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim
    }

    /// Columns of the widest network, of an expert's where a layer has some.
    fn ffn(&self, plan: &Plan) -> usize {
        let networks = self.decoder.layers.iter().map(|layer| match layer.router {
            Some(router) => router.mixture.ffn,
            None => plan.weight(layer.gate).n_rows(),
        });
        networks.max().unwrap_or(0)
    }

    /// Bytes of what a block makes of a KV head's positions.
    fn partial_bytes(&self) -> usize {
        let heads = self.decoder.heads;
        let of_group = heads.of_group();
        (of_group * heads.head_dim + 2 * of_group + 4) * 4
    }

    /// What its routers share, if it has some.
    fn mixture(&self) -> Option<Mixture> {
        self.decoder.layers.iter().find_map(|layer| layer.router).map(|router| router.mixture)
    }

    /// Dense layers in a row, after the first mixture.
    fn longest_dense(&self) -> usize {
        let layers = self.decoder.layers.iter().map(|layer| layer.router.is_none());
        let after = layers.skip_while(|is_dense| *is_dense);
        let longest = |(longest, now): (usize, usize), is_dense: bool| {
            let now = if is_dense { now + 1 } else { 0 };
            (longest.max(now), now)
        };
        after.fold((0, 0), longest).0
    }

    /// Steps that a launch of the kernel of one row computes, at most. More than one where every block waits for the token that a step chose, since it has
    /// rows of the residual of the next; not with experts, where it was slower (NOTES.md).
    pub fn chained_steps(&self, plan: &Plan, profile: &Profile) -> usize {
        let all_blocks_have_rows = plan.value(self.decoder.first).cols / 8 >= self.n_blocks;
        if !self.chooses || !all_blocks_have_rows || self.mixture().is_some() {
            return 1;
        }
        let fit = profile.chained_bytes / self.weight_bytes().max(1);
        profile.chained_steps.min(fit as usize).max(1)
    }

    /// Whether a step at this position of a sequence attends to the same tiles as one at the next.
    pub fn has_same_tiles(windows: &[usize], position: usize) -> bool {
        let first_seen = |position: usize, window: &usize| (position + 1).saturating_sub(*window) / TILE;
        position / TILE == (position + 1) / TILE
            && windows.iter().all(|window| first_seen(position, window) == first_seen(position + 1, window))
    }

    /// The windows of its layers.
    pub fn windows(&self) -> Vec<usize> {
        let mut windows: Vec<usize> = self.decoder.layers.iter().filter_map(|layer| layer.window).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    /// Blocks: one a multiprocessor, of most or all.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Blocks of a KV head.
    fn n_splits(&self) -> usize {
        MAX_SPLITS.min(self.n_blocks / self.decoder.heads.n_kv_heads.max(1)).max(1)
    }

    /// Of 1,024 columns: the widest input that shared memory has room for. Of several rows inputs wider than the residual, which the first
    /// product reads, are streamed.
    fn most_quads(&self, rows: Rows) -> usize {
        let (n, fewest) = match rows {
            Rows::One => (self.products.len(), 1),
            Rows::Several => (1, rows::FEWEST_QUADS),
        };
        self.products.iter().take(n).map(|product| product.k_quads).fold(fewest, usize::max)
    }

    /// Slots of the ring, and bytes of shared memory.
    fn ring(&self, rows: Rows, shared_bytes: u32) -> (usize, u32) {
        let heads = self.decoder.heads;
        let (d, h) = (heads.head_dim, heads.of_group());
        // PERSISTENT_SHARED or PERSISTENT_SHARED_ROWS, the input, the phases.
        let (more, input, choice) = match rows {
            Rows::One => (0, INPUT, CHOICE),
            Rows::Several => (SHARED_MORE, ROWS_INPUT, ROWS_CHOICE),
        };
        let choice = if self.mixture().is_some() { choice } else { 0 };
        let own = 4752 + 12 * d + 36 * h * d + 64 * h + more;
        let phases = size_of::<PersistentPhase>() * self.products.len();
        let rest = own + input * self.most_quads(rows) + phases + choice;
        let n_slots = ((shared_bytes as usize).saturating_sub(rest) / self.slot()).min(MAX_SLOTS);
        (n_slots, (n_slots * self.slot() + rest) as u32)
    }

    /// Bytes of a slot: room for a tile of keys and values and for 8 rows of an expert, and as [`Self::slot_of_steps`] has it.
    fn slot(&self) -> usize {
        let has_large_tiles = self.kv_name.is_empty() && self.decoder.heads.head_dim > 128;
        let of_tiles = if has_large_tiles { SLOT_F16 } else { 0 };
        self.slot_of_steps().max(of_tiles).max(self.expert_group().next_multiple_of(128))
    }

    /// Bytes of 8 rows of an expert's last matrix; 0: there are no experts.
    fn expert_group(&self) -> usize {
        let bytes = |product: &Product| match product.packing {
            Packing::Down { units, .. } => units * product.codec.unit,
            _ => 0,
        };
        self.products.iter().map(bytes).max().unwrap_or(0)
    }

    /// Bytes of a slot as whole steps of most products fill it, and at least the largest.
    fn slot_of_steps(&self) -> usize {
        let are_most = |is: fn(Codec) -> bool| {
            2 * self.products.iter().filter(|product| is(product.codec)).count() > self.products.len()
        };
        if are_most(Codec::is_halves) {
            SLOT_F16
        } else if self.has_halves() {
            SLOT_MIXED
        } else if are_most(|codec| codec.unit == SLOT_640 / 16) {
            SLOT_640
        } else {
            SLOT
        }
    }

    /// Bytes of weights that a token reads, as packed.
    pub fn weight_bytes(&self) -> u64 {
        self.products.iter().map(|product| product.bytes().1 as u64).sum()
    }

    /// The table.
    ///
    /// # Errors
    /// Those of `places`.
    pub fn phases(&self, plan: &Plan, places: &PhasePlaces<'_>) -> device::Result<Vec<PersistentPhase>> {
        let (vector, weights) = (places.vector, places.weights);
        let optional = |id: Option<WeightId>| id.map_or(Ok(0), vector);
        let layers = &self.decoder.layers;
        let chunks = |id: WeightId| (plan.weight(id).n_cols() / 8) as u32;
        let mut phases = Vec::with_capacity(self.products.len());
        for (index, layer) in layers.iter().enumerate() {
            let next_norm = layers.get(index + 1).map_or(self.decoder.norm, |next| next.norm);
            let (pages, page_bytes, table) = (places.pages)(layer.kv);
            let mut first_row = 0;
            for (part, matrices) in self.qkv_parts.iter().enumerate() {
                phases.push(PersistentPhase {
                    norm: optional(layer.sinks)?,
                    bias: match places.biases[index] {
                        0 => 0,
                        bias => bias + 4 * u64::from(first_row),
                    },
                    q_norm: optional(layer.q_norm)?,
                    k_norm: optional(layer.k_norm)?,
                    pages,
                    page_bytes,
                    table,
                    window: layer.window.unwrap_or(0) as u32,
                    rotation: layer.rotation as u32,
                    qkv_part: part_flags(part, self.qkv_parts.len()),
                    first_row,
                    kind: QKV,
                    input: EXCHANGE_INPUT,
                    chunks: chunks(layer.qkv[0].0),
                    ..PersistentPhase::default()
                });
                let matrices = &layer.qkv[matrices.clone()];
                first_row += matrices.iter().map(|(id, _)| plan.weight(*id).n_rows() as u32).sum::<u32>();
            }
            phases.push(PersistentPhase {
                norm: vector(layer.ffn_norm)?,
                post_norm: optional(layer.post_attention)?,
                bias: optional(layer.output_bias)?,
                kind: ADD,
                input: EXCHANGE_ATTENDED,
                chunks: chunks(layer.output),
                ..PersistentPhase::default()
            });
            if let Some(router) = layer.router {
                phases.push(PersistentPhase {
                    bias: optional(router.product_bias)?,
                    q_norm: optional(router.choice_bias)?,
                    k_norm: optional(router.scales)?,
                    kind: ROUTE,
                    input: EXCHANGE_MIDDLE,
                    chunks: chunks(router.matrix),
                    ..PersistentPhase::default()
                });
            }
            let [gate_bias, up_bias] = layer.expert_biases.map_or([None; 2], |biases| biases.map(Some));
            phases.push(PersistentPhase {
                bias: optional(gate_bias)?,
                q_norm: optional(up_bias)?,
                kind: if layer.router.is_some() { EXPERTS } else { GATE },
                input: EXCHANGE_MIDDLE,
                chunks: chunks(layer.gate),
                activation: crate::compile::activation(layer.activation),
                gate_refill: u32::from(layer.router.is_none()),
                ..PersistentPhase::default()
            });
            phases.push(PersistentPhase {
                norm: vector(next_norm)?,
                post_norm: optional(layer.post_ffn)?,
                bias: optional(layer.down_bias)?,
                kind: if layer.router.is_some() { ADD_EXPERTS } else { ADD },
                input: EXCHANGE_GATED,
                chunks: chunks(layer.down),
                ..PersistentPhase::default()
            });
        }
        phases.push(PersistentPhase {
            kind: HEAD,
            input: EXCHANGE_INPUT,
            chunks: chunks(self.decoder.head),
            ..PersistentPhase::default()
        });
        for ((phase, product), weights) in phases.iter_mut().zip(&self.products).zip(weights) {
            phase.weights = *weights;
            phase.codec = product.codec.number;
            phase.groups = product.groups as u32;
            (phase.k_quads, phase.warps) = (product.k_quads as u32, product.warps as u32);
        }
        Ok(phases)
    }

    /// A launch's arguments but for addresses, and the bytes of its shared memory.
    pub fn arguments(
        &self,
        plan: &Plan,
        limits: &Limits,
        step: &StepLayout,
        shared_bytes: u32,
        rows: Rows,
    ) -> (PersistentArguments, u32) {
        let heads = self.decoder.heads;
        let (n_slots, shared) = self.ring(rows, shared_bytes);
        // 0 where a kernel does not read it.
        let (n_splits, table_stride) = match rows {
            Rows::One => (self.n_splits() as u32, 0),
            Rows::Several => (0, step.table_stride()),
        };
        let scale = |index: usize| self.decoder.rotations.get(index).map_or(1.0, |(_, scale)| *scale);
        let mixture = self.mixture();
        let clamp = mixture.and_then(|mixture| mixture.clamp);
        let arguments = PersistentArguments {
            n_phases: self.products.len() as u32,
            rotation_scale1: scale(0),
            rotation_scale2: scale(1),
            interleaved: u32::from(heads.style == RopeStyle::Interleaved),
            hidden: plan.value(self.decoder.first).cols as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            n_vocab: plan.weight(self.decoder.head).n_rows() as u32,
            n_splits,
            page_len: limits.page_len as u32,
            slot_bytes: self.slot() as u32,
            n_slots: n_slots as u32,
            eps: self.decoder.eps,
            attention_scale: heads.scale * std::f32::consts::LOG2_E,
            softcap: heads.softcap.unwrap_or(0.0),
            poll_delay: POLL_DELAY,
            // A layer with experts has no end that is known before they are chosen.
            refill_gates: u32::from(mixture.is_none()),
            in_flight: IN_FLIGHT.div_ceil(self.slot_of_steps()).min(n_slots.saturating_sub(1)) as u32,
            stop_phase: self.products.len() as u32,
            most_quads: self.most_quads(rows) as u32,
            table_stride,
            n_experts: mixture.map_or(0, |mixture| mixture.n as u32),
            n_used: mixture.map_or(0, |mixture| mixture.n_used as u32),
            expert_ffn: mixture.map_or(0, |mixture| mixture.ffn as u32),
            expert_sigmoid: u32::from(mixture.is_some_and(|mixture| mixture.scores == RouterScores::Sigmoid)),
            expert_normalise: u32::from(mixture.is_some_and(|mixture| mixture.normalise)),
            expert_factor: mixture.map_or(1.0, |mixture| mixture.factor),
            expert_limit: clamp.map_or(0.0, |(_, limit)| limit),
            expert_alpha: clamp.map_or(0.0, |(alpha, _)| alpha),
            ..PersistentArguments::default()
        };
        (arguments, shared)
    }
}

/// That nothing is larger than its room: what, how much is found, how much fits.
fn fit(sizes: impl IntoIterator<Item = (&'static str, usize, usize)>) -> Result<(), String> {
    match sizes.into_iter().find(|(_, found, most)| found > most) {
        Some((what, found, most)) => Err(format!("{what}: {found}, expected at most {most}")),
        None => Ok(()),
    }
}

/// `PersistentPhase::qkv_part` of one of `n` parts.
fn part_flags(part: usize, n: usize) -> u32 {
    let flags = [
        (part > 0, CONTINUES),
        (part + 1 < n, CONTINUED),
        (part == 1, REVERSED),
        (n == 3 && part != 1, OF_THREE),
    ];
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
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
    let read = found.iter().flatten().map(Persistent::weight_bytes).max().unwrap_or(0);
    let third = packed.total() as u64;
    let has_halves = found.iter().flatten().any(Persistent::has_halves);
    let most = if has_halves { profile.most_halves } else { profile.most_persistent };
    let too_much = if read > most {
        let most = most / 1_000_000;
        Some(format!("{} MB of weights a token, expected at most {most}", read / 1_000_000))
    } else if third > 0 && third + others as u64 > profile.most_copies {
        Some(format!("{} MB for a third copy of the weights, too much of the memory", third / 1_000_000))
    } else {
        None
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
    /// By layer: biases of q, k and v, one after the other, or 0.
    pub biases: &'a [Address],
    /// A vector.
    pub vector: &'a dyn Fn(WeightId) -> device::Result<Address>,
    /// A layer's part of the first page of its group, bytes of a page, first entry in the page table.
    pub pages: &'a dyn Fn(device::KvLayerId) -> (Address, u32, u32),
}

#[cfg(test)]
mod tests;
