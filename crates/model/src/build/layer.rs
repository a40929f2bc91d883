//! The parts of a layer but for the feed-forward network: attention, cross-attention, and per-layer
//! inputs.

use device::{DType, KvLayerId, Op, Place, RowCount, ValueId, Weight, WeightId};

use super::Builder;
use super::network::DENSE;
use crate::descriptor::QkNorm;
use crate::error::Result;
use crate::names::TensorRole;
use crate::rope::RopeSpec;
use crate::spec::{LatentSpec, LayerSpec, TemperatureSpec};

/// Places of the heads of queries and of keys, before and after the other step.
const FIRST: [Place; 2] = [Place::QueryFirst, Place::KeyFirst];
const SECOND: [Place; 2] = [Place::QuerySecond, Place::KeySecond];

impl Builder<'_, '_> {
    /// `x + post_norm(mixer(pre_norm(x)))`, or `post_norm(x + mixer(pre_norm(x)))` if the family
    /// normalises sums. The mixer is attention, a recurrence, or the sum of both. If the pass
    /// `ends` here, only output rows are computed, because no later row reads another.
    pub fn mix(&mut self, x: ValueId, kv_layer: KvLayerId, layer: &LayerSpec, ends: bool) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        self.at(Place::Rows);
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        self.at(Place::AttentionNorm);
        let has_norm = norms.pre_attention && !(self.spec.family.first_norm_missing && self.layer == Some(0));
        let input = self.maybe_norm(has_norm, x, TensorRole::AttnNorm, "attention norm")?;
        self.place = None;
        let attended =
            if layer.attends { Some(self.attention_branch(input, kv_layer, layer, ends)?) } else { None };
        let branch = match (attended, &layer.recurrent) {
            (Some(attended), Some(recurrent)) => {
                let recurred = self.recurrence(input, recurrent, ends)?;
                self.sum(attended, recurred, "attention and recurrence")
            }
            (Some(attended), None) => attended,
            (None, Some(recurrent)) => self.recurrence(input, recurrent, ends)?,
            (None, None) => return Ok(residual),
        };
        let (role, name) = (TensorRole::PostAttnNorm, "post-attention norm");
        self.at(Place::Attention);
        let norm = norms.post_attention.then_some((role, name));
        let sum = self.join(residual, branch, norm, "attention residual");
        self.place = None;
        sum
    }

    /// `x + attention(norm(x)) + network(norm(x))`. `ends` is that of [`mix`](Self::mix).
    pub fn parallel(
        &mut self,
        x: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        ends: bool,
    ) -> Result<ValueId> {
        let norms = self.spec.family.norms;
        let mut input = self.maybe_norm(norms.pre_attention, x, TensorRole::AttnNorm, "attention norm")?;
        let branch = self.attention_branch(input, kv_layer, layer, ends)?;
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        if norms.pre_ffn {
            input = self.norm(residual, TensorRole::FfnNorm, self.spec.hidden, "ffn norm")?;
        } else if ends {
            input = self.output_rows(input, "norm of output rows");
        }
        let sum = self.add_branch(residual, branch, "attention residual");
        let branch = self.network(input, layer, DENSE)?;
        self.place = None;
        Ok(self.add_branch(sum, branch, "ffn residual"))
    }

    /// `attention(input)` with its output projection. `ends` is that of [`mix`](Self::mix).
    pub(super) fn attention_branch(
        &mut self,
        input: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        ends: bool,
    ) -> Result<ValueId> {
        if let Some(latent) = layer.latent {
            return self.latent_branch(input, kv_layer, layer, latent, ends);
        }
        // The layer has its own keys and values, or reads those of an earlier layer.
        let own = layer.kv_from.is_none();
        self.at(Place::Query);
        let (mut q, gate) = self.queries(input, layer.head_dim)?;
        let mut kv = if own { Some(self.keys_and_values(input, layer)?) } else { None };
        let after = self.spec.family.qk_norm_after_rope;
        if !after {
            self.qk_norm(&mut q, &mut kv, layer, FIRST)?;
        }
        if let Some(rope) = &layer.rope {
            let [of_q, of_k] = if after { FIRST } else { SECOND };
            self.at(of_q);
            q = self.rope(q, rope, layer.head_dim, "q rope")?;
            if let Some((k, _)) = &mut kv {
                self.at(of_k);
                *k = self.rope(*k, rope, layer.head_dim, "k rope")?;
            }
        }
        if after {
            self.qk_norm(&mut q, &mut kv, layer, SECOND)?;
        }
        if let Some(temperature) = &layer.temperature {
            self.at(Place::QueryScale);
            let weights = self.temperature(temperature);
            let out = self.like(q, "q scaled by position");
            self.push(Op::ExpertSum { x: q, weights, out });
            q = out;
        }
        let mixed = self.value("attention", RowCount::Tokens, layer.n_heads * layer.head_dim);
        let (n_heads, scale) = (layer.n_heads, layer.attention_scale);
        match kv {
            Some((k, v)) if self.spec.family.bidirectional => {
                self.at(Place::Attention);
                let window = layer.window.map(|n| n / 2);
                self.push(Op::SelfAttention { q, k, v, n_heads, scale, window, out: mixed });
            }
            kv => {
                self.at(Place::KvWrite);
                if let Some((k, v)) = kv {
                    self.push(Op::KvWrite { k, v, layer: kv_layer });
                }
                self.at(Place::Attention);
                let sinks = self.vectors(TensorRole::AttnSinks)?;
                self.push(Op::Attention {
                    q,
                    layer: kv_layer,
                    n_heads,
                    scale,
                    softcap: self.spec.attention_softcap,
                    window: layer.window,
                    chunked: self.spec.family.chunked && layer.window.is_some(),
                    both_ways: self.given.as_ref().is_some_and(|given| given.sees_both_ways(layer)),
                    sinks,
                    out: mixed,
                });
            }
        }
        let mixed = gate.map_or(mixed, |gate| self.gate_attention(mixed, gate));
        let mixed = if ends { self.output_rows(mixed, "attention of output rows") } else { mixed };
        let out = self.linear(mixed, TensorRole::AttnOut, "attention out")?;
        let factors = self.spec.multipliers;
        let out = self.scaled(out, factors.attention_in * factors.attention_out, "attention scaled");
        self.place = None;
        Ok(out)
    }

    /// Latent attention. Queries are projected to the latent, and the attention's result from the
    /// latent to values, head by head. The KV cache holds the latent and the rotated key columns,
    /// one vector for all heads.
    fn latent_branch(
        &mut self,
        input: ValueId,
        kv_layer: KvLayerId,
        layer: &LayerSpec,
        latent: LatentSpec,
        ends: bool,
    ) -> Result<ValueId> {
        let LatentSpec { rank, plain, turning, .. } = latent;
        let n_heads = layer.n_heads;
        let q = match latent.query_rank {
            Some(query_rank) => {
                let q = self.linear(input, TensorRole::AttnQA, "latent q")?;
                let q = self.norm(q, TensorRole::AttnQANorm, query_rank, "latent q norm")?;
                self.linear(q, TensorRole::AttnQB, "q")?
            }
            None => self.linear(input, TensorRole::AttnQ, "q")?,
        };
        let kv = self.linear(input, TensorRole::AttnKvA, "latent kv")?;
        let c = self.part(kv, (0, rank), rank + turning, "latent")?;
        let c = self.norm(c, TensorRole::AttnKvANorm, rank, "latent norm")?;
        let mut k_turning = self.part(kv, (rank, turning), rank + turning, "k turning")?;
        let q_plain = self.part(q, (0, plain), plain + turning, "q plain")?;
        let mut q_turning = self.part(q, (plain, turning), plain + turning, "q turning")?;
        if let Some(rope) = &layer.rope {
            q_turning = self.rope(q_turning, rope, turning, "q rope")?;
            k_turning = self.rope(k_turning, rope, turning, "k rope")?;
        }
        let k = self.join_heads(c, k_turning, 1, "k");
        self.push(Op::KvWrite { k, v: k, layer: kv_layer });
        let (of_keys, of_values) = self.tensors.latent_heads(self.spec, self.layer)?;
        let (of_keys, of_values) = (self.weight(of_keys), self.weight(of_values));
        let q = self.each_head(q_plain, of_keys, n_heads, rank, "q to the latent");
        let q = self.join_heads(q, q_turning, n_heads, "q joined");
        let mixed = self.value("attention", RowCount::Tokens, n_heads * layer.head_dim);
        self.push(Op::Attention {
            q,
            layer: kv_layer,
            n_heads,
            scale: layer.attention_scale,
            softcap: self.spec.attention_softcap,
            window: layer.window,
            chunked: false,
            both_ways: false,
            sinks: None,
            out: mixed,
        });
        let mixed = if ends { self.output_rows(mixed, "attention of output rows") } else { mixed };
        let mixed = self.part(mixed, (0, rank), layer.head_dim, "latents mixed")?;
        let values = self.each_head(mixed, of_values, n_heads, latent.value, "values");
        self.linear(values, TensorRole::AttnOut, "attention out")
    }

    /// `taken` columns from `first` of each group of columns.
    pub(super) fn part(
        &mut self,
        x: ValueId,
        (first, taken): (usize, usize),
        group: usize,
        name: &str,
    ) -> Result<ValueId> {
        let out = self.value(name, self.rows(x), self.cols(x) / group.max(1) * taken);
        self.push(Op::Columns { x, first, group, out });
        Ok(out)
    }

    pub(super) fn join_heads(&mut self, a: ValueId, b: ValueId, n_heads: usize, name: &str) -> ValueId {
        let out = self.value(name, self.rows(a), self.cols(a) + self.cols(b));
        self.push(Op::Join { a, b, n_heads, out });
        out
    }

    /// Multiplies each head by its own matrix of a stack. If `x` has the columns of one head, every
    /// matrix multiplies it.
    pub(super) fn each_head(
        &mut self,
        x: ValueId,
        weight: WeightId,
        n_heads: usize,
        n_out: usize,
        name: &str,
    ) -> ValueId {
        let rows = self.rows(x);
        let known = self.ordinals.iter().find(|(of, n, _)| (*of, *n) == (rows, n_heads));
        let ids = match known {
            Some((.., ids)) => *ids,
            None => {
                let ids = self.new_value("heads", rows, n_heads, DType::U32);
                self.push(Op::Ordinals { out: ids });
                self.ordinals.push((rows, n_heads, ids));
                ids
            }
        };
        let out = self.value(name, rows, n_heads * n_out);
        self.push(Op::ExpertLinear { x, ids, weight, out });
        out
    }

    /// The vectors of a role, if the file has them.
    pub(super) fn vectors(&mut self, role: TensorRole) -> Result<Option<WeightId>> {
        Ok(self.tensors.vectors(self.spec, role, self.layer)?.map(|weight| self.weight(weight)))
    }

    /// Norms of queries and keys.
    fn qk_norm(
        &mut self,
        q: &mut ValueId,
        kv: &mut Option<(ValueId, ValueId)>,
        layer: &LayerSpec,
        [of_q, of_k]: [Place; 2],
    ) -> Result<()> {
        let whole_row = match self.spec.qk_norm {
            QkNorm::None => return Ok(()),
            QkNorm::PerHead => false,
            QkNorm::WholeRow => true,
            QkNorm::PlainWhereTurning => {
                if layer.rope.is_some() {
                    self.at(of_q);
                    *q = self.plain_norm(*q, None, layer.head_dim, "q norm");
                    if let Some((k, _)) = kv {
                        self.at(of_k);
                        *k = self.plain_norm(*k, None, layer.head_dim, "k norm");
                    }
                }
                return Ok(());
            }
        };
        let group = |n_heads: usize| layer.head_dim * if whole_row { n_heads } else { 1 };
        self.at(of_q);
        *q = self.norm(*q, TensorRole::AttnQNorm, group(layer.n_heads), "q norm")?;
        if let Some((k, _)) = kv {
            self.at(of_k);
            *k = self.norm(*k, TensorRole::AttnKNorm, group(layer.n_kv_heads), "k norm")?;
        }
        Ok(())
    }

    /// `(n, 1)`: the factor on each row's queries, from a table of all positions.
    fn temperature(&mut self, temperature: &TemperatureSpec) -> ValueId {
        if let Some((_, id)) = self.temperatures.iter().find(|(known, _)| known == temperature) {
            return *id;
        }
        let factors: Vec<f32> = (0..self.n_ctx).map(|position| temperature.factor(position)).collect();
        let table = Weight {
            shape: vec![self.n_ctx, 1],
            ..Weight::vector("factors on queries by position", &factors)
        };
        let table = self.weight(table);
        let out = self.value("factor on queries", RowCount::Tokens, 1);
        self.push(Op::EmbedPositions { table, out });
        self.temperatures.push((*temperature, out));
        out
    }

    /// `x + cross_attention(norm(x))` over all encoder states. Keeps the scores of the heads
    /// `aligned`. `ends` is that of [`mix`](Self::mix).
    pub fn cross_attention(
        &mut self,
        x: ValueId,
        states: KvLayerId,
        layer: &LayerSpec,
        aligned: &[usize],
        ends: bool,
    ) -> Result<ValueId> {
        let residual = if ends { self.output_rows(x, "output rows") } else { x };
        let (n_heads, scale) = (layer.n_heads, layer.attention_scale);
        let input = self.norm(x, TensorRole::CrossNorm, self.spec.hidden, "cross-attention norm")?;
        let q = self.linear(input, TensorRole::CrossQ, "cross q")?;
        if let (false, Some(encoder)) = (aligned.is_empty(), &self.spec.encoder) {
            let out = self.value("alignment", RowCount::Tokens, aligned.len() * encoder.n_ctx_train);
            self.push(Op::CrossScores { q, layer: states, n_heads, heads: aligned.to_vec(), scale, out });
            self.kept.push(out);
        }
        let mixed = self.value("cross-attention", RowCount::Tokens, n_heads * layer.head_dim);
        self.push(Op::CrossAttention { q, layer: states, n_heads, scale, out: mixed });
        let mixed = if ends { self.output_rows(mixed, "cross-attention of output rows") } else { mixed };
        let branch = self.linear(mixed, TensorRole::CrossOut, "cross-attention out")?;
        Ok(self.add_branch(residual, branch, "cross-attention residual"))
    }

    /// `x + post_norm(branch)`, or `post_norm(x + branch)` if the family normalises sums.
    pub(super) fn join(
        &mut self,
        x: ValueId,
        branch: ValueId,
        norm: Option<(TensorRole, &str)>,
        name: &str,
    ) -> Result<ValueId> {
        let Some((role, norm_name)) = norm else { return Ok(self.add_branch(x, branch, name)) };
        if self.spec.family.norm_on_sum {
            let sum = self.add_branch(x, branch, name);
            return self.norm(sum, role, self.spec.hidden, norm_name);
        }
        let branch = self.norm(branch, role, self.spec.hidden, norm_name)?;
        Ok(self.add_branch(x, branch, name))
    }

    /// Keys before their norm, and values.
    fn keys_and_values(&mut self, input: ValueId, layer: &LayerSpec) -> Result<(ValueId, ValueId)> {
        self.at(Place::Key);
        let k = self.linear(input, TensorRole::AttnK, "k")?;
        self.at(Place::Value);
        let mut v = if layer.keys_are_values { k } else { self.linear(input, TensorRole::AttnV, "v")? };
        if self.spec.family.v_norm {
            v = self.plain_norm(v, None, layer.head_dim, "v norm");
        }
        Ok((k, v))
    }

    /// `x + norm(out(f(gate(x)) * input))`, with the per-layer input.
    pub fn per_layer_branch(&mut self, x: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let of_outputs = self.rows(x) == RowCount::Outputs;
        let inputs = if of_outputs { self.output_rows(inputs, "inputs of output rows") } else { inputs };
        let gate = self.linear(x, TensorRole::PerLayerGate, "input gate")?;
        let y = self.per_layer_output(gate, inputs, l)?;
        Ok(self.add_branch(x, y, "input residual"))
    }

    /// `norm(out(f(gate) * input))`, with the per-layer input.
    pub(super) fn per_layer_output(&mut self, gate: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let width = self.spec.per_layer_width;
        let input = self.value("input", self.rows(inputs), width);
        let group = width * self.spec.layers.len();
        self.push(Op::Columns { x: inputs, first: l * width, group, out: input });
        let out = self.like(gate, "input gated");
        self.push(Op::Gate { gate, up: input, kind: self.spec.activation, out });
        let y = self.linear(out, TensorRole::PerLayerOut, "input projection")?;
        self.norm(y, TensorRole::PostPerLayerNorm, self.spec.hidden, "post-input norm")
    }

    /// `factor * x`, if the layer has a factor.
    pub fn layer_scale(&mut self, x: ValueId) -> Result<ValueId> {
        match self.tensors.number(self.spec, TensorRole::LayerScale, self.layer)? {
            Some(factor) => Ok(self.scale(x, factor, "scaled")),
            None => Ok(x),
        }
    }

    fn rope(&mut self, x: ValueId, rope: &RopeSpec, head_dim: usize, name: &str) -> Result<ValueId> {
        if let Some(turns) = self.given.as_ref().and_then(|given| given.turns) {
            return self.rotate(x, turns, (rope.n_dims, head_dim), name);
        }
        let frequencies = match self.ropes.iter().find(|(known, _)| known == rope) {
            Some((_, id)) => *id,
            None => {
                let table =
                    Weight::vector(format!("rope frequencies ({rope})"), &rope.frequencies(self.n_ctx));
                let id = self.weight(table);
                self.ropes.push((rope.clone(), id));
                id
            }
        };
        let out = self.like(x, name);
        let (n_dims, style, scale) = (rope.n_dims, self.spec.rope_style, rope.scale());
        self.push(Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out });
        Ok(out)
    }
}
