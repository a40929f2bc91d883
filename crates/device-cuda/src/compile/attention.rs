//! Attention: norm and RoPE of heads, stores to the KV cache, and the Ops that read it.

use super::primitives::interleaved;
use super::{Call, Draft, ONE, blocks, each, failed};
use crate::arguments::{AttentionArguments, HeadsArguments, PagesArguments, RowArguments, ScoresArguments};
use crate::layout::{PARTIALS, TOTALS};
use crate::products::Products;
use device::{KvLayerId, KvType, Op, Result, RowCount, ValueId};
use device_lower::fields::{AttentionOf, HeadChain, RopeOf, attention_of};
use device_lower::table::{Extent, RowClass, When};
use device_lower::units::{Heads, Queries};

/// Maximum number of columns of a head (heads.cuh, attention/decode.cuh).
const MOST_COLUMNS: usize = 640;

/// A family of attention kernels that process rows in tiles, one for each KV type.
struct Tiled {
    /// Prefix of the names of files and kernels, before the KV type and the columns of a head.
    name: &'static str,
    n_threads: u32,
    /// Queries of a tile.
    n_queries: u32,
    /// Pairs: columns of a head, and bytes of shared memory of its kernel.
    heads: &'static [(usize, u32)],
}

/// Kernels with one query head per block, by `mma` (attention_flash/prefill.cuh). Over Q8_0 and FP8
/// pages the columns of a head must be a multiple of 64.
const MMA: Tiled = Tiled {
    name: "flash",
    n_threads: 128,
    n_queries: 64,
    heads: &[(64, 36864), (80, 45056), (96, 53248), (128, 69632), (256, 101_376)],
};

/// Kernels with all query heads of a KV head in one block, by `wgmma`
/// (attention_flash/warpgroups.cuh).
const WGMMA: Tiled = Tiled {
    name: "wgmma",
    n_threads: 256,
    n_queries: 128,
    heads: &[(64, 65536), (128, 131_072), (256, 196_608)],
};

/// An attention kernel.
struct Kernel {
    file: String,
    name: String,
    /// Blocks that share the heads.
    heads: usize,
    rows: RowCount,
}

impl Draft<'_> {
    pub(super) fn kv_write(&mut self, k: ValueId, v: ValueId, layer: KvLayerId) -> Result<()> {
        let chain = HeadChain { x: k, norm: None, rope: None, end: k, escapes: false };
        self.heads(None, &chain, v, layer)
    }

    pub(super) fn qk_rope_kv(&mut self, heads: &Heads) -> Result<()> {
        let chains = &heads.chains;
        if heads.v_norm.is_some() || heads.whole_rows {
            return failed("norms of heads that have no kernel".to_owned());
        }
        let q = chains.q.filter(|q| !q.is_empty());
        if let (Some(q), Some(attention)) = (&q, &chains.attention)
            && q.rope == chains.k.rope
            && self.row(q, &chains.k, chains.v, chains.layer, attention)?
        {
            // Long sequences need the kernels that split positions over blocks.
            self.when = When::Long;
            let result = self.heads(Some(q), &chains.k, chains.v, chains.layer);
            let result = result.and_then(|()| self.attend_layer(q.end, chains.layer, attention));
            self.when = When::Always;
            return result;
        }
        // One kernel applies RoPE to q and k if both use the same parameters.
        match q.filter(|q| q.rope != chains.k.rope) {
            Some(q) => {
                self.heads(None, &chains.k, chains.v, chains.layer)?;
                self.queries(&q, chains.layer)?;
            }
            None => self.heads(q.as_ref(), &chains.k, chains.v, chains.layer)?,
        }
        match (chains.attention, chains.q) {
            (Some(attention), Some(q)) => self.attend_layer(q.end, chains.layer, &attention),
            (Some(_), None) => failed("an attention without queries".to_owned()),
            (None, _) => Ok(()),
        }
    }

    pub(super) fn q_rope(&mut self, queries: &Queries) -> Result<()> {
        self.queries(&queries.q, queries.layer)?;
        self.attend_layer(queries.q.end, queries.layer, &queries.attention)
    }

    /// Adds norm and RoPE of the query heads as separate commands.
    fn queries(&mut self, q: &HeadChain, layer: KvLayerId) -> Result<()> {
        let head_dim = self.c.plan.kv.layer(layer).head_dim;
        let mut x = q.x;
        if let Some(norm) = q.norm {
            self.rms_norm(x, norm, head_dim, q.end)?;
            x = q.end;
        }
        let Some(RopeOf { frequencies, n_dims, style, scale }) = q.rope else { return Ok(()) };
        self.rope(&Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out: q.end })
    }

    /// Adds one kernel for heads and attention of a single row, for steps without long sequences.
    /// Returns false, and adds nothing, if no such kernel fits.
    fn row(
        &mut self,
        q: &HeadChain,
        k: &HeadChain,
        v: ValueId,
        layer: KvLayerId,
        of: &AttentionOf,
    ) -> Result<bool> {
        let c = self.c;
        let rows = c.rows(q.x);
        let head_dim = c.pages(layer).head_dim as usize;
        let is_cross = c.plan.kv.layer(layer).encoder_states.is_some();
        let is_f16 = c.limits.kv_type == KvType::F16;
        if self.class(rows) != RowClass::One || c.is_deterministic() || !is_f16 || is_cross || q.escapes {
            return Ok(false);
        }
        // Lanes per position, with 8 columns each (attention/row.cuh).
        let lanes = [8, 16, 32].into_iter().find(|lanes| head_dim <= 8 * lanes);
        let Some(lanes) = lanes.filter(|_| head_dim.is_multiple_of(8)) else { return Ok(false) };
        let arguments = RowArguments {
            n_rows: 0,
            reserved: 0,
            heads: self.heads_arguments(Some(q), k, v, layer)?,
            attention: self.attention_arguments(q.end, layer, of)?,
        };
        let k_out = Some(k.end).filter(|_| k.escapes && !k.is_empty());
        let writes: Vec<ValueId> = [of.out].into_iter().chain(k_out).collect();
        let grid = [Extent::Fixed(of.n_heads as u32), ONE, ONE];
        let (name, call) =
            (format!("row_f16_l{lanes}"), Call::new("attention/row_f16.cu", rows, grid, 512, &writes));
        self.push(Call { name: &name, when: When::Short, ..call }, &arguments);
        Ok(true)
    }

    fn heads(&mut self, q: Option<&HeadChain>, k: &HeadChain, v: ValueId, layer: KvLayerId) -> Result<()> {
        let c = self.c;
        let arguments = self.heads_arguments(q, k, v, layer)?;
        let (n_q, n_kv) = (arguments.n_q_heads as usize, arguments.pages.n_kv_heads as usize);
        let k_out = Some(k.end).filter(|_| k.escapes && !k.is_empty());
        let rows = c.rows(k.x);
        let writes: Vec<ValueId> = q.map(|q| q.end).into_iter().chain(k_out).collect();
        let name = format!("qk_rope_kv_{}", c.kv_name()?);
        let grid = [blocks(n_q + 2 * n_kv, 4), each(rows), ONE];
        self.push(Call { name: &name, ..Call::new("qk_rope_kv.cu", rows, grid, 128, &writes) }, &arguments);
        Ok(())
    }

    fn heads_arguments(
        &self,
        q: Option<&HeadChain>,
        k: &HeadChain,
        v: ValueId,
        layer: KvLayerId,
    ) -> Result<HeadsArguments> {
        let c = self.c;
        let pages = c.pages(layer);
        let head_dim = pages.head_dim as usize;
        if head_dim > MOST_COLUMNS {
            return failed(format!("a head of {head_dim} columns, expected at most {MOST_COLUMNS}"));
        }
        let n_q = q.map_or(0, |q| c.cols(q.x) / head_dim);
        let (q_norm, k_norm, rope) = (q.and_then(|q| q.norm), k.norm, k.rope);
        let k_out = Some(k.end).filter(|_| k.escapes && !k.is_empty());
        Ok(HeadsArguments {
            n_rows: 0,
            n_q_heads: n_q as u32,
            q_norm: u32::from(q_norm.is_some()),
            k_norm: u32::from(k_norm.is_some()),
            v_norm: 0,
            n_dims: rope.map_or(0, |rope| rope.n_dims as u32),
            interleaved: rope.map_or(0, |rope| interleaved(rope.style)),
            k_turns: 1,
            scale: rope.map_or(1.0, |rope| rope.scale),
            q_eps: q_norm.map_or(0.0, |norm| norm.eps),
            k_eps: k_norm.map_or(0.0, |norm| norm.eps),
            v_eps: 0.0,
            q: q.map_or(Ok(0), |q| c.value(q.x))?,
            k: c.value(k.x)?,
            v: c.value(v)?,
            q_weight: c.vector_or_null(q_norm.and_then(|norm| norm.weight))?,
            k_weight: c.vector_or_null(k_norm.and_then(|norm| norm.weight))?,
            frequencies: c.vector_or_null(rope.map(|rope| rope.frequencies))?,
            positions: c.step_place(c.step.positions),
            row_spans: c.step_place(c.step.row_spans),
            q_out: q.map_or(Ok(0), |q| c.value(q.end))?,
            k_out: k_out.map_or(Ok(0), |id| c.value(id))?,
            pages,
        })
    }

    pub(super) fn attention(&mut self, op: &Op) -> Result<()> {
        let Some((q, layer, of)) = attention_of(op) else {
            return failed(format!("{:?} is no attention", op.kind()));
        };
        self.attend_layer(q, layer, &of)
    }

    /// Adds attention of the rows of a span to each other, without the KV cache.
    pub(super) fn self_attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        n_heads: usize,
        scale: f32,
        window: Option<usize>,
        out: ValueId,
    ) -> Result<()> {
        let c = self.c;
        let head_dim = c.cols(q) / n_heads;
        let arguments = AttentionArguments {
            n_heads: n_heads as u32,
            window: window.map_or(0, |n| n as u32 + 1),
            scale,
            q: c.value(q)?,
            k: c.value(k)?,
            v: c.value(v)?,
            out: c.value(out)?,
            pages: PagesArguments {
                n_kv_heads: (c.cols(k) / head_dim) as u32,
                head_dim: head_dim as u32,
                ..Default::default()
            },
            ..self.attention_places()
        };
        let name = format!("self_attention_d{}", columns_of_lane(head_dim)?);
        let kernel = Kernel { file: "self_attention.cu".to_owned(), name, heads: n_heads, rows: c.rows(q) };
        self.attend(&kernel, When::Always, out, arguments);
        Ok(())
    }

    /// Adds the probabilities of encoder states in chosen heads of a cross-attention.
    pub(super) fn cross_scores(
        &mut self,
        q: ValueId,
        layer: KvLayerId,
        n_heads: usize,
        heads: &[usize],
        scale: f32,
        out: ValueId,
    ) -> Result<()> {
        let c = self.c;
        let (rows, n_states) = (c.rows(q), c.cols(out) / heads.len().max(1));
        let Some((_, first)) = c.heads.iter().find(|(list, _)| list == heads) else {
            return failed("heads that were not listed".to_owned());
        };
        let arguments = ScoresArguments {
            n_rows: 0,
            n_heads: n_heads as u32,
            n_chosen: heads.len() as u32,
            n_states: n_states as u32,
            scale,
            reserved: 0,
            q: c.value(q)?,
            heads: c.places.heads + 4 * *first as u64,
            row_spans: c.step_place(c.step.row_spans),
            out: c.value(out)?,
            pages: c.pages(layer),
        };
        let name = format!("cross_scores_{}", c.kv_name()?);
        let grid = [blocks(n_states, 128), Extent::Fixed(heads.len() as u32), each(rows)];
        let writes = [out];
        let call = Call::new("cross_scores.cu", rows, grid, 128, &writes);
        self.push(Call { name: &name, ..call }, &arguments);
        Ok(())
    }

    /// Arguments that all attention kernels share: the addresses of a step's parts, with one split.
    fn attention_places(&self) -> AttentionArguments {
        let c = self.c;
        AttentionArguments {
            n_splits: 1,
            positions: c.step_place(c.step.positions),
            row_spans: c.step_place(c.step.row_spans),
            spans: c.step_place(c.step.spans),
            partials: c.scratch_place(PARTIALS),
            totals: c.scratch_place(TOTALS),
            ..Default::default()
        }
    }

    fn attend(&mut self, kernel: &Kernel, when: When, out: ValueId, arguments: AttentionArguments) {
        let grid = [Extent::Fixed(kernel.heads as u32), Extent::Fixed(arguments.n_splits), each(kernel.rows)];
        // With several splits the merge kernel writes `out`.
        let written = [out];
        let writes = if arguments.n_splits == 1 { &written[..] } else { &[] };
        let call = Call::new(&kernel.file, kernel.rows, grid, 128, writes);
        self.push(Call { name: &kernel.name, when, ..call }, &arguments);
    }

    /// Arguments of attention to a layer's pages, with one split.
    fn attention_arguments(
        &self,
        q: ValueId,
        layer: KvLayerId,
        of: &AttentionOf,
    ) -> Result<AttentionArguments> {
        let c = self.c;
        Ok(AttentionArguments {
            n_heads: of.n_heads as u32,
            window: of.window.unwrap_or(0) as u32,
            chunked: u32::from(of.chunked && of.window.is_some()),
            both_ways: u32::from(of.both_ways),
            n_states: c.plan.kv.layer(layer).encoder_states.unwrap_or(0) as u32,
            scale: of.scale,
            softcap: of.softcap.unwrap_or(0.0),
            q: c.value(q)?,
            sinks: c.vector_or_null(of.sinks)?,
            out: c.value(of.out)?,
            pages: c.pages(layer),
            ..self.attention_places()
        })
    }

    pub(super) fn attend_layer(&mut self, q: ValueId, layer: KvLayerId, of: &AttentionOf) -> Result<()> {
        let c = self.c;
        let (rows, pages) = (c.rows(q), c.pages(layer));
        let n_states = c.plan.kv.layer(layer).encoder_states.unwrap_or(0);
        let (n_kv, head_dim) = (pages.n_kv_heads as usize, pages.head_dim as usize);
        let group = of.n_heads / n_kv;
        let columns = columns_of_lane(head_dim)?;
        let g = group.next_power_of_two().min(if columns >= 16 { 4 } else { 8 });
        let kernel = Kernel {
            file: format!("attention/pages_{}.cu", c.kv_name()?),
            name: format!("attention_{}_g{g}_d{columns}", c.kv_name()?),
            heads: n_kv * group.div_ceil(g),
            rows,
        };
        let whole = self.attention_arguments(q, layer, of)?;
        let class = self.class(rows);
        if class == RowClass::Many && !c.is_deterministic() && self.flash(head_dim, rows, of, whole) {
            return Ok(());
        }
        let n_rows = class.most().unwrap_or(usize::MAX);
        let n_blocks = c.profile.n_blocks;
        let n_splits = (n_blocks / (kernel.heads * n_rows.min(n_blocks)).max(1)).min(c.profile.most_splits);
        let may_split =
            class != RowClass::Many && n_rows <= c.profile.most_split_rows && !c.is_deterministic();
        if n_splits < 2 || !may_split {
            self.attend(&kernel, When::Always, of.out, whole);
            return Ok(());
        }
        // The number of encoder states is constant, so the choice is made here.
        let (short, long) = match n_states {
            0 => (Some(When::Short), Some(When::Long)),
            n if n > c.profile.long => (None, Some(When::Always)),
            _ => (Some(When::Always), None),
        };
        if let Some(when) = short.filter(|_| self.when != When::Long) {
            self.attend(&kernel, when, of.out, whole);
        }
        if let Some(when) = long {
            let split_len = c.profile.split_len as u32;
            let split = AttentionArguments { n_splits: n_splits as u32, split_len, ..whole };
            self.attend(&kernel, when, of.out, split);
            let (grid, writes) = ([Extent::Fixed(of.n_heads as u32), each(rows), ONE], [of.out]);
            let call = Call::new("attention/merge.cu", rows, grid, 128, &writes);
            self.push(Call { name: "attention_merge", when, ..call }, &split);
        }
        Ok(())
    }
}

impl Draft<'_> {
    /// Adds tiled attention on tensor cores, if the chip and the head's columns allow it. Returns
    /// false if nothing was added.
    fn flash(
        &mut self,
        head_dim: usize,
        rows: RowCount,
        of: &AttentionOf,
        arguments: AttentionArguments,
    ) -> bool {
        let c = self.c;
        // Tiled kernels do not add biases that were subtracted from stored keys.
        if of.chunked || arguments.pages.known != 0 {
            return false;
        }
        let kv_name = match c.limits.kv_type {
            KvType::F16 => "f16",
            KvType::Q8_0 if head_dim.is_multiple_of(64) => "q8_0",
            KvType::Fp8 if head_dim.is_multiple_of(64) => "fp8",
            KvType::Q8_0 | KvType::Fp8 | KvType::F32 | KvType::I16 | KvType::I8 => return false,
        };
        let fits = |tiled: &'static Tiled| {
            let head = tiled.heads.iter().find(|(columns, _)| *columns == head_dim)?;
            (head.1 <= c.profile.flash_bytes).then_some((tiled, head.1))
        };
        let wgmma = Some(&WGMMA).filter(|_| c.profile.products == Products::Wgmma).and_then(fits);
        let Some((tiled, shared)) = wgmma.or_else(|| fits(&MMA)) else { return false };
        let (n_blocks, heads_a_block) = match wgmma {
            Some(_) => (arguments.pages.n_kv_heads, of.n_heads as u32 / arguments.pages.n_kv_heads),
            None => (of.n_heads as u32, 1),
        };
        // Spans do not share tiles: there are at most rows / queries of a tile, plus one per span.
        let n_experts = c.limits.max_spans as u32;
        let tiles = Extent::Tiles { rows, k: heads_a_block, pairs: tiled.n_queries, n_experts };
        let (grid, writes) = ([Extent::Fixed(n_blocks), tiles, ONE], [of.out]);
        let file = format!("attention/{}_{kv_name}.cu", tiled.name);
        let name = format!("{}_{kv_name}_{head_dim}", tiled.name);
        let call = Call::new(&file, rows, grid, tiled.n_threads, &writes);
        self.push(Call { name: &name, shared, ..call }, &arguments);
        true
    }
}

/// Smallest number of columns per lane, among those with kernels, that covers a head.
fn columns_of_lane(head_dim: usize) -> Result<usize> {
    match [2, 4, 8, 16, 20].into_iter().find(|columns| head_dim <= 32 * columns) {
        Some(columns) => Ok(columns),
        None => failed(format!("a head of {head_dim} columns, expected at most {MOST_COLUMNS}")),
    }
}
