//! Kernels that read and write KV pages: KvWrite, norm and RoPE of heads, and the attentions.
//!
//! Few rows are decoded: a threadgroup for a row and the query heads of a KV head. A single row's
//! norm, RoPE and store are part of that dispatch. Long sequences are split over threadgroups,
//! whose results the next projection merges (`merged`), or a second dispatch. Many rows go by
//! tiles.
//!
//! The contracts are the headers `kernels/attention/decode.h`, `merge.h` and `prefill.h`, and
//! `kernels/cross_scores.metal`.

use super::call::{Call, ONE, each};
use super::draft::{AttentionParts, Draft};
use crate::arguments::{
    AttentionArguments, KvWriteArguments, PagesArguments, QkRopeKvArguments, TurnArguments,
};
use crate::geometry::{MOST_DECODED, partial_bytes};
use crate::gpu::MetalGpu;
use crate::kernels::{self, Kernel, attention, constant};
use crate::layout::{PARTIALS, TOTALS};
use device::{KvLayerId, Op, Result, RowCount, ValueId, WeightId};
use device_gpu::replayer::TABLES;
use device_lower::fields::{AttentionOf, HeadChain, QkRopeKv, attention_of};
use device_lower::table::{Extent, Location, Region, RowClass, When};
use device_lower::units::{Heads, Queries};

/// Maximum columns of a head in the kernels.
const MOST_COLUMNS: usize = 576;

/// Heads with more columns than this are attended fewer than eight at once.
const MANY_COLUMNS: usize = 512;

/// Maximum columns of a head in attention to activations.
const MOST_COLUMNS_OF_ROWS: usize = 512;

/// Positions of a window, at most; a longer one is none.
const MOST_WINDOW: usize = 1 << 30;

/// Maximum columns of a head in tiles of encoder states.
const MOST_ENCODER_COLUMNS: usize = 128;

/// The source of keys and values.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// Pages of the row's own sequence.
    Sequence(KvLayerId),
    /// Pages of encoder states, and the number of these states.
    EncoderStates(KvLayerId, usize),
    /// Activations of the row's span.
    Activations { k: ValueId, v: ValueId },
}

/// An attention of any kind.
struct Attention<'a> {
    q: ValueId,
    source: Source,
    n_heads: usize,
    head_dim: usize,
    scale: f32,
    softcap: Option<f32>,
    window: Option<usize>,
    chunked: bool,
    both_ways: bool,
    sinks: Option<WeightId>,
    out: ValueId,
    /// Norm and RoPE of the query heads, in the same dispatch.
    turned: Option<HeadChain>,
    /// Norm and RoPE of keys and values, and their store, in the same dispatch.
    fused: Option<&'a Heads>,
}

impl<G: MetalGpu> Draft<'_, G> {
    /// Bind the step's positions, the spans of its rows and the page tables from an index on.
    fn bind_tables(&self, call: Call, first: u8) -> Call {
        let c = self.compiler;
        call.bind(first, c.step_place(c.step.positions))
            .bind(first + 1, c.step_place(c.step.row_spans))
            .bind(first + 2, c.step_place(c.step.page_tables))
    }

    pub(super) fn kv_write(&mut self, k: ValueId, v: ValueId, layer: KvLayerId) -> Result<()> {
        let c = self.compiler;
        if self.key_bias(layer).is_some() {
            let k = HeadChain { x: k, norm: None, rope: None, end: k, escapes: false };
            let chains = QkRopeKv { q: None, k, v, layer, attention: None };
            return self.turn_heads(layer, None, Some(&Heads { chains, v_norm: None, whole_rows: false }));
        }
        let args = KvWriteArguments { pages: c.pages(layer) };
        let call = self
            .step_call("kv_write.metal", &args)
            .uint(constant::KV_TYPE, kernels::kv_kind(c.limits.kv_type))
            .read(2, self.value(k))
            .read(3, self.value(v));
        let mut call = self.bind_tables(call, 4);
        call.writes.push(Region::kv(layer));
        let heads = Extent::Fixed(stored_heads(&args.pages));
        self.push(call.grid([heads, each(RowCount::Tokens), ONE], 32))
    }

    /// The place of the bias that is subtracted from a layer's keys before they are stored.
    fn key_bias(&self, layer: KvLayerId) -> Option<Location> {
        self.compiler.tables.key_bias(TABLES, layer)
    }

    fn turn(&self, chain: &HeadChain, head_dim: usize) -> TurnArguments {
        TurnArguments {
            n_heads: (self.compiler.cols(chain.x) / head_dim) as u32,
            n_dims: chain.rope.map_or(0, |rope| rope.n_dims as u32),
            eps: chain.norm.map_or(0.0, |norm| norm.eps),
            ..Default::default()
        }
    }

    /// Heads on their way to the cache, and the attention after them.
    pub(super) fn qk_rope_kv(&mut self, heads: &Heads) -> Result<()> {
        let unit = &heads.chains;
        let attention = unit.attention.zip(unit.q).map(|(a, q)| self.attention_of(&a, q.end, unit.layer));
        let escapes =
            unit.k.escapes && !unit.k.is_empty() || unit.q.is_some_and(|q| q.escapes && !q.is_empty());
        match attention {
            Some(attention) if !escapes && self.turns(&attention) => {
                self.attend(&Attention { turned: unit.q, fused: Some(heads), ..attention })
            }
            attention => {
                let (q, k) = (unit.q.filter(|q| !q.is_empty()), unit.k);
                match q.is_none() && k.is_empty() && heads.v_norm.is_none() {
                    true => self.kv_write(k.x, unit.v, unit.layer)?,
                    false => self.turn_heads(unit.layer, q, Some(heads))?,
                }
                attention.map_or(Ok(()), |attention| self.attend(&attention))
            }
        }
    }

    /// Query heads, and the attention after them, over what another layer wrote.
    pub(super) fn q_rope(&mut self, Queries { q, layer, attention }: &Queries) -> Result<()> {
        let attention = self.attention_of(attention, q.end, *layer);
        if self.turns(&attention) {
            return self.attend(&Attention { turned: Some(*q), ..attention });
        }
        self.turn_heads(*layer, Some(*q), None)?;
        self.attend(&attention)
    }

    /// An attention over a layer of the row's own sequence.
    fn attention_of(&self, a: &AttentionOf, q: ValueId, layer: KvLayerId) -> Attention<'static> {
        Attention {
            q,
            source: Source::Sequence(layer),
            n_heads: a.n_heads,
            head_dim: self.compiler.plan.kv.layer(layer).head_dim,
            scale: a.scale,
            softcap: a.softcap,
            window: a.window,
            chunked: a.chunked,
            both_ways: a.both_ways,
            sinks: a.sinks,
            out: a.out,
            turned: None,
            fused: None,
        }
    }

    /// Returns true if the attention kernel applies RoPE itself: only for a single row, since
    /// several rows may be of one sequence and see each other's keys.
    fn turns(&self, a: &Attention) -> bool {
        self.tokens == RowClass::One && a.head_dim <= MOST_COLUMNS && !self.compiler.is_deterministic()
    }

    /// A dispatch that normalises heads, applies RoPE, and stores keys and values in the cache.
    fn turn_heads(&mut self, layer: KvLayerId, q: Option<HeadChain>, kv: Option<&Heads>) -> Result<()> {
        let c = self.compiler;
        let head_dim = c.plan.kv.layer(layer).head_dim;
        let (k, v_norm) = (kv.map(|heads| heads.chains.k), kv.and_then(|heads| heads.v_norm));
        let turn = |chain: &Option<HeadChain>| {
            chain.as_ref().map_or_else(Default::default, |chain| self.turn(chain, head_dim))
        };
        let args = QkRopeKvArguments {
            pages: c.pages(layer),
            q: turn(&q),
            k: turn(&k),
            v_eps: v_norm.map_or(0.0, |norm| norm.eps),
            ..Default::default()
        };
        let k_out = k.filter(|k| k.escapes && !k.is_empty());
        let (q_turns, k_turns) = (self.turns_of_heads(q)?, self.turns_of_heads(k)?);
        let bias = self.key_bias(layer);
        let call = self
            .step_call("qk_rope_kv.metal", &args)
            .uint(constant::KV_TYPE, kernels::kv_kind(c.limits.kv_type))
            .bool(constant::Q_NORM, q.is_some_and(|q| q.norm.is_some()))
            .bool(constant::K_NORM, k.is_some_and(|k| k.norm.is_some()))
            .bool(constant::Q_WEIGHT, q.as_ref().and_then(norm_weight).is_some())
            .bool(constant::K_WEIGHT, k.as_ref().and_then(norm_weight).is_some())
            .uint(constant::Q_ROPE, q.as_ref().map_or(0, style))
            .uint(constant::K_ROPE, k.as_ref().map_or(0, style))
            .bool(constant::K_OUT, k_out.is_some())
            .bool(constant::V_NORM, v_norm.is_some())
            .bool(constant::WHOLE_ROWS, kv.is_some_and(|heads| heads.whole_rows))
            .bool(constant::KEY_BIAS, kv.is_some() && bias.is_some())
            .bind(15, bias.unwrap_or(c.anything()))
            .read_or_any(3, k.map(|k| self.value(k.x)), c.anything())
            .read_or_any(4, kv.map(|heads| self.value(heads.chains.v)), c.anything())
            .read_or_any(2, q.map(|q| self.value(q.x)), c.anything())
            .write_or_any(5, q.map(|q| self.value(q.end)), c.anything())
            .write_or_any(14, k_out.map(|k| self.value(k.end)), c.anything());
        let mut call = self
            .bind_tables(call, 6)
            .bind(10, c.weight_or_any(q.as_ref().and_then(norm_weight))?)
            .bind(11, c.weight_or_any(k.as_ref().and_then(norm_weight))?)
            .read_or_any(12, q_turns, c.anything())
            .read_or_any(13, k_turns, c.anything());
        let mut n_heads = args.q.n_heads;
        if kv.is_some() {
            n_heads += stored_heads(&args.pages);
            call.writes.push(Region::kv(layer));
        }
        call.threadgroup_bytes = head_dim as u32 * 4;
        self.push(call.grid([Extent::Fixed(n_heads), each(RowCount::Tokens), ONE], 32))
    }

    /// Attention by itself, over the pages of each row's own sequence.
    pub(super) fn attention(&mut self, op: &Op) -> Result<()> {
        let Some((q, layer, of)) = attention_of(op) else { return Err(self.not_lowered(op)) };
        self.attend(&self.attention_of(&of, q, layer))
    }

    /// Attention over encoder states.
    pub(super) fn cross_attention(&mut self, op: &Op) -> Result<()> {
        let Op::CrossAttention { q, layer, n_heads, scale, out } = op else {
            return Err(self.not_lowered(op));
        };
        let kv = self.compiler.plan.kv.layer(*layer);
        self.attend(&Attention {
            q: *q,
            source: Source::EncoderStates(*layer, kv.encoder_states.unwrap_or(0)),
            n_heads: *n_heads,
            head_dim: kv.head_dim,
            scale: *scale,
            softcap: None,
            window: None,
            chunked: false,
            both_ways: false,
            sinks: None,
            out: *out,
            turned: None,
            fused: None,
        })
    }

    /// Attention over the activations of each row's span.
    pub(super) fn self_attention(&mut self, op: &Op) -> Result<()> {
        let Op::SelfAttention { q, k, v, n_heads, scale, window, out } = op else {
            return Err(self.not_lowered(op));
        };
        self.attend(&Attention {
            q: *q,
            source: Source::Activations { k: *k, v: *v },
            n_heads: *n_heads,
            head_dim: self.compiler.cols(*q) / n_heads,
            scale: *scale,
            softcap: None,
            window: *window,
            chunked: false,
            both_ways: false,
            sinks: None,
            out: *out,
            turned: None,
            fused: None,
        })
    }

    fn attend(&mut self, a: &Attention) -> Result<()> {
        let c = self.compiler;
        let most = match a.source {
            Source::Activations { .. } => MOST_COLUMNS_OF_ROWS,
            Source::Sequence(_) | Source::EncoderStates(..) => MOST_COLUMNS,
        };
        if a.head_dim > most {
            let what = format!("heads of {} columns", a.head_dim);
            let hint = format!("this device runs heads of at most {most}; use --device cpu");
            return Err(c.unsupported(what, &hint));
        }
        let few = self.tokens <= RowClass::of(MOST_DECODED);
        match a.source {
            Source::Activations { .. } => self.tiles(a),
            // Tiles and splits add in another order, and whether a step is split depends on all its
            // sequences.
            Source::Sequence(_) | Source::EncoderStates(..) if c.is_deterministic() => {
                self.decode(a, None, When::Always)
            }
            Source::EncoderStates(_, n) if few || a.head_dim > MOST_ENCODER_COLUMNS => {
                // Many rows have enough threadgroups without a split.
                match few && n > c.profile.split_positions {
                    true => self.decode_split(a, When::Always),
                    false => self.decode(a, None, When::Always),
                }
            }
            Source::Sequence(_) if few => {
                self.decode(a, None, When::Short)?;
                self.decode_split(a, When::Long)
            }
            Source::Sequence(_) | Source::EncoderStates(..) => self.tiles(a),
        }
    }

    /// Arguments and constants that the kernels share.
    fn attention_call(&self, kernel: Kernel, a: &Attention, n_splits: Option<usize>) -> Call {
        let c = self.compiler;
        let (pages, n_positions) = match a.source {
            Source::Sequence(layer) => (c.pages(layer), 0),
            Source::EncoderStates(layer, n) => (c.pages(layer), n),
            Source::Activations { k, .. } => {
                let (n_kv_heads, head_dim) = ((c.cols(k) / a.head_dim) as u32, a.head_dim as u32);
                (PagesArguments { n_kv_heads, head_dim, ..Default::default() }, 0)
            }
        };
        let q = a.turned;
        let k = a.fused.map(|heads| heads.chains.k);
        let v_norm = a.fused.and_then(|heads| heads.v_norm);
        let bias = match a.source {
            Source::Sequence(layer) => self.key_bias(layer),
            Source::EncoderStates(..) | Source::Activations { .. } => None,
        };
        let turn = |chain: &Option<HeadChain>| {
            chain.as_ref().map_or_else(Default::default, |chain| self.turn(chain, a.head_dim))
        };
        let args = AttentionArguments {
            n_heads: a.n_heads as u32,
            n_positions: n_positions as u32,
            // This window is larger than any distance between positions.
            window: a.window.unwrap_or(0).min(MOST_WINDOW) as u32,
            n_splits: n_splits.unwrap_or(1) as u32,
            scale: a.scale,
            softcap: a.softcap.unwrap_or(0.0),
            q: turn(&q),
            k: turn(&k),
            v_eps: v_norm.map_or(0.0, |norm| norm.eps),
            pages,
            ..Default::default()
        };
        let norm = |chain: &Option<HeadChain>| chain.is_some_and(|chain| chain.norm.is_some());
        let weighted = |chain: &Option<HeadChain>| chain.as_ref().and_then(norm_weight).is_some();
        Call::new(kernel, &args)
            .uint(attention::HEAD_DIM, a.head_dim as u32)
            .uint(attention::HEADS, self.heads_at_once(a) as u32)
            .bool(attention::SOFTCAP, a.softcap.is_some())
            .bool(attention::SINKS, a.sinks.is_some())
            .bool(attention::WINDOW, a.window.is_some())
            .bool(attention::SPLIT, n_splits.is_some())
            .bool(attention::FUSED, a.fused.is_some())
            .bool(attention::Q_NORM, norm(&q))
            .bool(attention::K_NORM, norm(&k))
            .bool(attention::Q_WEIGHT, weighted(&q))
            .bool(attention::K_WEIGHT, weighted(&k))
            .uint(attention::Q_ROPE, q.as_ref().map_or(0, style))
            .uint(attention::K_ROPE, k.as_ref().map_or(0, style))
            .bool(attention::V_NORM, v_norm.is_some())
            .bool(attention::WHOLE_ROWS, a.fused.is_some_and(|heads| heads.whole_rows))
            .bool(attention::KEY_BIAS, bias.is_some())
            .bool(attention::CHUNKED, a.chunked)
            .bool(attention::BOTH_WAYS, a.both_ways)
            .uint(attention::KEY_LANES, c.profile.key_lanes(self.heads_at_once(a)))
            .bind(1, c.step_place(0))
            .bind(18, bias.unwrap_or(c.anything()))
    }

    fn n_kv_heads(&self, a: &Attention) -> usize {
        match a.source {
            Source::Sequence(layer) | Source::EncoderStates(layer, _) => {
                self.compiler.plan.kv.layer(layer).n_kv_heads
            }
            Source::Activations { k, .. } => self.compiler.cols(k) / a.head_dim,
        }
    }

    /// Query heads that a threadgroup computes at once: those that share a KV head, limited by
    /// registers.
    fn heads_at_once(&self, a: &Attention) -> usize {
        let most = if a.head_dim > MANY_COLUMNS { 4 } else { 8 };
        (a.n_heads / self.n_kv_heads(a).max(1)).min(most)
    }

    /// Threadgroups that a row has without splits: one for each of [`Self::heads_at_once`].
    fn head_groups(&self, a: &Attention) -> usize {
        let n_kv_heads = self.n_kv_heads(a);
        n_kv_heads * (a.n_heads / n_kv_heads.max(1)).div_ceil(self.heads_at_once(a))
    }

    fn decode_split(&mut self, a: &Attention, when: When) -> Result<()> {
        let n_splits = self.compiler.profile.n_splits(self.head_groups(a));
        self.decode(a, Some(n_splits), when)?;
        let (partials, totals) = self.partials(a.n_heads, a.head_dim);
        let (out, n_heads, head_dim, sinks) = (a.out, a.n_heads, a.head_dim, a.sinks);
        let parts = AttentionParts { out, n_heads, head_dim, n_splits, sinks, partials, totals, when };
        if self.is_merged_next(&parts) {
            self.parts = Some(parts);
            return Ok(());
        }
        let kernel = Kernel { file: "attention.metal", function: "attention_merge".to_owned() };
        let mut call = self
            .attention_call(kernel, a, Some(n_splits))
            .bind(8, self.compiler.weight_or_any(a.sinks)?)
            .write(9, self.value(a.out))
            .read(10, partials)
            .read(11, totals);
        call.when = when;
        self.push(call.grid([Extent::Fixed(a.n_heads as u32), each(RowCount::Tokens), ONE], 64))
    }

    /// Places of the partial sums of a split row, and of their totals.
    fn partials(&self, n_heads: usize, head_dim: usize) -> ((Location, usize), (Location, usize)) {
        let c = self.compiler;
        let (partials, totals) = partial_bytes(c.limits.max_rows, n_heads, head_dim);
        ((c.scratch_place(PARTIALS), partials), (c.scratch_place(TOTALS), totals))
    }

    fn decode(&mut self, a: &Attention, n_splits: Option<usize>, when: When) -> Result<()> {
        let c = self.compiler;
        let (Source::Sequence(layer) | Source::EncoderStates(layer, _)) = a.source else { return Ok(()) };
        let kv = kernels::kv_name(c.limits.kv_type);
        let (file, function) = match a.source {
            Source::EncoderStates(..) => ("cross_attention.metal", format!("cross_attention_decode_{kv}")),
            Source::Sequence(_) | Source::Activations { .. } => {
                ("attention.metal", format!("attention_decode_{kv}"))
            }
        };
        let heads = self.heads_at_once(a);
        let simdgroups = c.profile.attention_simdgroups as usize;
        let mut call = self.attention_call(Kernel { file, function }, a, n_splits);
        // RoPE and KvWrite of one row, whose own key and value are also visible.
        let (q, k) = (a.turned, a.fused.map(|heads| heads.chains.k));
        let (q_turns, k_turns) = (self.turns_of_heads(q)?, self.turns_of_heads(k)?);
        let from = q.map_or(a.q, |q| q.x);
        call = call
            .read(2, self.value(from))
            .bind(3, c.step_place(c.step.positions))
            .bind(4, c.step_place(c.step.row_spans))
            .bind(5, c.step_place(c.step.spans))
            .bind(6, c.step_place(c.step.page_tables))
            .bind(8, c.weight_or_any(a.sinks)?);
        call.reads.push(Region::kv(layer));
        call = match a.fused {
            Some(Heads { chains, .. }) => {
                call.writes.push(Region::kv(layer));
                call.read(12, self.value(chains.k.x)).read(13, self.value(chains.v))
            }
            None => call.bind(12, c.anything()).bind(13, c.anything()),
        };
        call = call
            .bind(14, c.weight_or_any(q.as_ref().and_then(norm_weight))?)
            .bind(15, c.weight_or_any(k.as_ref().and_then(norm_weight))?)
            .read_or_any(16, q_turns, c.anything())
            .read_or_any(17, k_turns, c.anything());
        call = match n_splits {
            Some(_) => {
                let (partials, totals) = self.partials(a.n_heads, a.head_dim);
                call.bind(9, c.anything()).write(10, partials).write(11, totals)
            }
            None => call.write(9, self.value(a.out)).bind(10, c.anything()).bind(11, c.anything()),
        };
        let columns = a.head_dim.next_multiple_of(4);
        let terms = if self.key_bias(layer).is_some() { heads * (1 + a.head_dim) } else { 0 };
        let floats = (heads + 2).max(simdgroups) * columns + simdgroups * heads * 34 + terms;
        call.threadgroup_bytes = 4 * floats as u32;
        call.when = when;
        let fused = match (a.fused, a.turned) {
            (Some(_), _) => "qk_norm + rope + kv_write + ",
            (None, Some(_)) => "q_norm + rope + ",
            (None, None) => "",
        };
        let split = if n_splits.is_some() { " (split)" } else { "" };
        call.name = Some(format!("{fused}{}{split}", call.kernel.function));
        let groups = [self.head_groups(a), n_splits.unwrap_or(1)].map(|n| Extent::Fixed(n as u32));
        // Fewer SIMD-groups take more tiles each, and leave a part of the memory unused.
        self.push(call.flexible([groups[0], groups[1], each(RowCount::Tokens)], 32 * simdgroups as u32))
    }

    fn tiles(&mut self, a: &Attention) -> Result<()> {
        let c = self.compiler;
        let kv = kernels::kv_name(c.limits.kv_type);
        let columns = a.head_dim.next_power_of_two().clamp(64, MOST_COLUMNS);
        let heads = self.heads_at_once(a);
        let (file, function, floats) = match a.source {
            Source::Activations { .. } => ("self_attention.metal", format!("self_attention_{columns}"), true),
            Source::EncoderStates(..) | Source::Sequence(_) => {
                let floats = c.limits.kv_type == device::KvType::F32;
                let (file, name) = match a.source {
                    Source::EncoderStates(..) => ("cross_attention.metal", "cross_attention_prefill"),
                    Source::Sequence(_) | Source::Activations { .. } => {
                        ("attention.metal", "attention_prefill")
                    }
                };
                (file, format!("{name}_{kv}_{columns}"), floats)
            }
        };
        // Blocks of eight pairs of a row and a head that a tile has.
        let blocks = match (columns, floats) {
            (64, _) | (128, false) => 4,
            (128, true) | (256, false) => 2,
            _ => 1,
        };
        let mut call = self
            .attention_call(Kernel { file, function }, a, None)
            .bool(attention::TENSOR, c.profile.tensor)
            .read(2, self.value(a.q))
            .bind(4, c.step_place(c.step.row_spans))
            .bind(5, c.step_place(c.step.spans))
            .bind(6, c.step_place(c.step.page_tables))
            .bind(8, c.weight_or_any(a.sinks)?)
            .write(9, self.value(a.out));
        call = match a.source {
            Source::Activations { k, v } => call.read(12, self.value(k)).read(13, self.value(v)),
            Source::Sequence(layer) | Source::EncoderStates(layer, _) => {
                call.reads.push(Region::kv(layer));
                call.bind(12, c.anything()).bind(13, c.anything())
            }
        };
        let tiles =
            Extent::PerRow { rows: RowCount::Tokens, multiple: 1, divisor: 8 * blocks / heads as u32 };
        self.push(call.grid([tiles, Extent::Fixed(self.head_groups(a) as u32), ONE], 128))
    }

    pub(super) fn cross_scores(
        &mut self,
        q: ValueId,
        layer: KvLayerId,
        n_heads: usize,
        heads: &[usize],
        scale: f32,
        out: ValueId,
    ) -> Result<()> {
        let c = self.compiler;
        let kv = c.plan.kv.layer(layer);
        let n_positions = kv.encoder_states.unwrap_or(0);
        let args = AttentionArguments {
            pages: c.pages(layer),
            n_heads: n_heads as u32,
            n_positions: n_positions as u32,
            n_chosen: heads.len() as u32,
            scale,
            ..Default::default()
        };
        let function = format!("cross_scores_{}", kernels::kv_name(c.limits.kv_type));
        let mut call = Call::new(Kernel { file: "cross_scores.metal", function }, &args)
            .uint(attention::HEAD_DIM, kv.head_dim as u32)
            .uint(attention::HEADS, 1)
            .uint(attention::KEY_LANES, c.profile.key_lanes(1))
            .bool(attention::SOFTCAP, false)
            .bind(1, c.step_place(0))
            .read(2, self.value(q))
            .bind(4, c.step_place(c.step.row_spans))
            .bind(6, c.step_place(c.step.page_tables))
            .bind(8, c.tables.heads(TABLES, heads))
            .write(9, self.value(out));
        call.reads.push(Region::kv(layer));
        call.threadgroup_bytes = 16 * kv.head_dim.div_ceil(4) as u32;
        let grid = [n_positions.div_ceil(32), heads.len()].map(|n| Extent::Fixed(n as u32));
        self.push(call.grid([grid[0], grid[1], each(RowCount::Tokens)], 32))
    }
}

/// Heads of a row that are stored.
fn stored_heads(pages: &PagesArguments) -> u32 {
    if pages.values_are_keys != 0 { pages.n_kv_heads } else { 2 * pages.n_kv_heads }
}

fn style(chain: &HeadChain) -> u32 {
    kernels::rope(chain.rope.map(|rope| rope.style))
}

fn norm_weight(chain: &HeadChain) -> Option<WeightId> {
    chain.norm.and_then(|norm| norm.weight)
}
