//! The forward pass, Op by Op: inputs and outputs of each. The arithmetic of each Op is in the file
//! of its name.

use device::{Error, KvLayerId, Op, Plan, Result, RowCount, Span, Step, ValueId, WeightId};

use crate::activations::Activations;
use crate::kv_pages::{Half, KvPages};
use crate::{
    Rank, attention, cross, element_wise, embed, encoder, experts, input, linear, norm, recurrent, rope,
    select,
};

/// A plan, and the step that runs through it.
pub struct Forward<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Norm weights, biases, frequencies and sinks, decoded, by weight; empty for matrices.
    pub vectors: &'a [Vec<f32>],
    /// Values of the step.
    pub activations: &'a mut Activations,
    /// Keys and values.
    pub pages: &'a mut KvPages,
    /// `(n_states, state_len)`: states of recurrent layers.
    pub states: &'a mut [f32],
    /// Rows and page tables.
    pub step: &'a Step<'a>,
    /// `(n_tokens)` position of each row in its sequence.
    pub positions: &'a [u32],
    /// `(n_tokens)`: slot of each row's page tables.
    pub slots: &'a [u32],
    /// Threads for expensive Ops.
    pub n_threads: usize,
    /// Rank in a group, if the device is part of one.
    pub rank: Option<&'a Rank>,
}

/// `(n_rows)`: position and slot of each row of a step's spans.
pub fn rows(spans: &[Span]) -> impl Iterator<Item = (u32, u32)> {
    spans.iter().flat_map(|span| (0..span.n_rows).map(|row| (span.first_position + row, span.slot)))
}

impl<'a> Forward<'a> {
    /// Length of a value in this step.
    fn len(&self, id: ValueId) -> usize {
        let value = self.plan.value(id);
        value.rows.count(self.step.tokens.len(), self.step.outputs.len()) * value.cols
    }

    fn cols(&self, id: ValueId) -> usize {
        self.plan.value(id).cols
    }

    fn vector(&self, id: WeightId) -> &'a [f32] {
        &self.vectors[id.0 as usize]
    }

    /// Computes one primitive.
    ///
    /// # Errors
    /// The other ranks of the group are gone.
    pub fn run(&mut self, op: &Op) -> Result<()> {
        let Forward { plan, step, n_threads, positions, .. } = *self;
        match op {
            Op::Embed { table, scale, out } => {
                self.write(*out, |_, out| embed::embed(plan.weight(*table), step.tokens, *scale, out));
            }
            Op::EmbedPositions { table, out } => {
                self.write(*out, |_, out| embed::embed(plan.weight(*table), positions, 1.0, out));
            }
            Op::Input { out } => self.write(*out, |_, out| out.copy_from_slice(step.input)),
            Op::RmsNorm { x, weight, eps, group, out } => {
                let weight = weight.map(|w| self.vector(w));
                self.write(*out, |a, out| norm::rms_norm(a.floats(*x), weight, *eps, *group, out));
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let (weight, bias) = (self.vector(*weight), bias.map(|b| self.vector(b)));
                self.write(*out, |a, out| encoder::layer_norm(a.floats(*x), weight, bias, *eps, out));
            }
            Op::Linear { x, weight, bias, out } => {
                let (weight, bias) = (plan.weight(*weight), bias.map(|b| self.vector(b)));
                self.write(*out, |a, out| linear::linear(n_threads, a.floats(*x), weight, bias, out));
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } => {
                let (frequencies, (dim, n, scale)) =
                    (self.vector(*frequencies), (*head_dim, *n_dims, *scale));
                self.write(*out, |a, out| {
                    rope::rope(a.floats(*x), positions, dim, n, *style, frequencies, scale, out);
                });
            }
            Op::KvWrite { k, v, layer } => {
                for (id, half) in [(*k, Half::Keys), (*v, Half::Values)] {
                    let rows = self.activations.floats(id).chunks_exact(plan.value(id).cols);
                    for (row, heads) in rows.enumerate() {
                        let table = table(plan, step, *layer, self.slots[row]);
                        self.pages.write(*layer, half, table, positions[row] as usize, heads);
                    }
                }
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } => {
                let op = attention::Attention {
                    layer: *layer,
                    kv: *plan.kv.layer(*layer),
                    n_heads: *n_heads,
                    scale: *scale,
                    softcap: *softcap,
                    window: *window,
                    chunked: *chunked,
                    sinks: sinks.map(|s| self.vector(s)),
                };
                // The last position that each row attends to.
                let last: Vec<u32> = if *both_ways {
                    let end = |span: &Span| span.first_position + span.n_rows - 1;
                    step.spans.iter().flat_map(|s| (0..s.n_rows).map(move |_| end(s))).collect()
                } else {
                    positions.to_vec()
                };
                self.attend(*layer, *out, |pages, a, table, out| {
                    attention::attention(n_threads, &op, pages, a.floats(*q), (positions, &last), table, out);
                });
            }
            Op::CrossAttention { q, layer, n_heads, scale, out } => {
                let op = self.cross(*layer, *n_heads, *scale);
                self.attend(*layer, *out, |pages, a, table, out| {
                    cross::attention(n_threads, &op, pages, a.floats(*q), table, out);
                });
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                let op = self.cross(*layer, *n_heads, *scale);
                self.attend(*layer, *out, |pages, a, table, out| {
                    cross::scores(n_threads, &op, heads, pages, a.floats(*q), table, out);
                });
            }
            Op::SelfAttention { q, k, v, n_heads, scale, window, out } => {
                let head_dim = self.cols(*q) / n_heads;
                let n_kv_heads = self.cols(*k) / head_dim;
                let heads = encoder::HeadShape {
                    n_heads: *n_heads,
                    n_kv_heads,
                    head_dim,
                    scale: *scale,
                    window: *window,
                };
                self.write(*out, |a, out| {
                    let (q, k, v) = (a.floats(*q), a.floats(*k), a.floats(*v));
                    encoder::self_attention(n_threads, heads, q, k, v, step.spans, out);
                });
            }
            Op::Activate { x, kind, out } => {
                self.write(*out, |a, out| element_wise::activation(*kind, a.floats(*x), out));
            }
            Op::Gate { gate, up, kind, out } => {
                self.write(*out, |a, out| element_wise::gate(*kind, a.floats(*gate), a.floats(*up), out));
            }
            Op::Add { a: x, b: y, out } => {
                self.write(*out, |a, out| element_wise::add(a.floats(*x), a.floats(*y), out));
            }
            Op::Scale { x, factor, out } => {
                self.write(*out, |a, out| element_wise::scale(*factor, a.floats(*x), out));
            }
            Op::Softcap { x, cap, out } => {
                self.write(*out, |a, out| element_wise::softcap(*cap, a.floats(*x), out));
            }
            Op::Clamp { x, min, max, out } => {
                self.write(*out, |a, out| element_wise::clamp(*min, *max, a.floats(*x), out));
            }
            Op::Columns { x, first, group, out } => {
                let taken = self.cols(*out) / (self.cols(*x) / group);
                self.write(*out, |a, out| select::columns(a.floats(*x), *group, *first, taken, out));
            }
            Op::Unfold { x, size, stride, out } => {
                let per_token = plan.value(*out).rows.count(1, 0);
                let cols = self.cols(*x);
                self.write(*out, |a, out| {
                    input::unfold(a.floats(*x), cols, *size, *stride, per_token, step.spans, out);
                });
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                let (cols, weight) = (self.cols(*x), plan.weight(*weight));
                let bias = bias.map(|b| self.vector(b));
                let mut taps = vec![0.0; cols * weight.n_cols()];
                weight.decode_rows(0..cols, &mut taps);
                let (len, range) = (plan.kv.state_len(), plan.kv.state_range(*state));
                let states = std::mem::take(&mut self.states);
                self.write(*out, |a, out| {
                    let x = a.floats(*x);
                    recurrent::short_conv(
                        x,
                        cols,
                        &taps,
                        bias,
                        step.spans,
                        step.states,
                        states,
                        len,
                        range,
                        out,
                    );
                });
                self.states = states;
            }
            Op::GatedDelta {
                q,
                k,
                v,
                step: steps,
                beta,
                rate,
                n_key_heads,
                n_heads,
                tiled,
                scale,
                state,
                out,
            } => {
                let heads = recurrent::Heads {
                    n: *n_heads,
                    n_shared: *n_key_heads,
                    tiled: *tiled,
                    rows: self.cols(*k) / n_key_heads,
                    cols: self.cols(*v) / n_heads,
                };
                let (states, rate) = (std::mem::take(&mut self.states), self.vector(*rate));
                let mut states = recurrent::States::new(states, plan, *state, step);
                self.write(*out, |a, out| {
                    let given = recurrent::Inputs {
                        v: a.floats(*v),
                        k: a.floats(*k),
                        q: a.floats(*q),
                        steps: a.floats(*steps),
                        rate,
                    };
                    recurrent::gated_delta(heads, &given, a.floats(*beta), *scale, &mut states, out);
                });
                self.states = states.all;
            }
            Op::SelectiveScan { x, b, c, step: steps, rate, skip, n_groups, n_heads, state, out } => {
                let heads = recurrent::Heads {
                    n: *n_heads,
                    n_shared: *n_groups,
                    tiled: false,
                    rows: self.cols(*b) / n_groups,
                    cols: self.cols(*x) / n_heads,
                };
                let (states, rate) = (std::mem::take(&mut self.states), self.vector(*rate));
                let skip = skip.map(|s| self.vector(s));
                let mut states = recurrent::States::new(states, plan, *state, step);
                self.write(*out, |a, out| {
                    let given = recurrent::Inputs {
                        v: a.floats(*x),
                        k: a.floats(*b),
                        q: a.floats(*c),
                        steps: a.floats(*steps),
                        rate,
                    };
                    recurrent::selective_scan(heads, &given, skip, &mut states, out);
                });
                self.states = states.all;
            }
            Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights } => {
                let route = experts::Route {
                    n_experts: self.cols(*x),
                    scores: *scores,
                    bias: bias.map(|b| self.vector(b)),
                    groups: *groups,
                    normalise: *normalise,
                    factor: *factor,
                    scales: scales.map(|s| self.vector(s)),
                };
                let (k, n) = (self.cols(*ids), self.len(*ids));
                self.activations.write_ids(*ids, n, |a, ids| route.choose(a.floats(*x), k, ids));
                self.write(*weights, |a, out| route.weigh(a.floats(*x), a.ids(*ids), k, out));
            }
            Op::ExpertLinear { x, ids, weight, out } => {
                let (k, weight) = (self.cols(*ids), plan.weight(*weight));
                self.write(*out, |a, out| experts::linear(a.floats(*x), a.ids(*ids), k, weight, out));
            }
            Op::ExpertBias { x, ids, bias, out } => {
                let (k, bias) = (self.cols(*ids), self.vector(*bias));
                self.write(*out, |a, out| experts::bias(a.floats(*x), a.ids(*ids), k, bias, out));
            }
            Op::GateClamped { gate, up, alpha, limit, out } => {
                self.write(*out, |a, out| {
                    element_wise::gate_clamped(*alpha, *limit, a.floats(*gate), a.floats(*up), out);
                });
            }
            Op::Join { a: x, b: y, n_heads, out } => {
                let (x_dim, y_dim) = (self.cols(*x) / n_heads, self.cols(*y) / n_heads);
                self.write(*out, |a, out| select::join(a.floats(*x), x_dim, a.floats(*y), y_dim, out));
            }
            Op::Ordinals { out } => {
                let (cols, n) = (self.cols(*out), self.len(*out));
                self.activations.write_ids(*out, n, |_, ids| {
                    ids.iter_mut().enumerate().for_each(|(i, id)| *id = (i % cols) as u32);
                });
            }
            Op::Adapters { out, .. } => {
                let (rows, n) = (self.plan.value(*out).rows, self.len(*out));
                self.activations.write_ids(*out, n, |_, ids| {
                    for (i, id) in ids.iter_mut().enumerate() {
                        let row = if rows == RowCount::Outputs { step.outputs[i] } else { i as u32 };
                        let span = step.spans.iter().position(|s| row < s.first_row + s.n_rows);
                        *id = span.map_or(0, |span| step.adapters[span]);
                    }
                });
            }
            Op::ExpertSum { x, weights, out } => {
                let k = self.cols(*weights);
                self.write(*out, |a, out| experts::sum(a.floats(*x), a.floats(*weights), k, out));
            }
            Op::SelectRows { x, out } => {
                let cols = self.cols(*x);
                self.write(*out, |a, out| select::select_rows(a.floats(*x), step.outputs, cols, out));
            }
            Op::Pool { x, kind, out } => {
                let cols = self.cols(*x);
                self.write(*out, |a, out| {
                    encoder::pool(*kind, a.floats(*x), cols, step.spans, step.outputs, out);
                });
            }
            Op::Argmax { x, out } => {
                let (cols, n) = (self.cols(*x), self.len(*out));
                self.activations.write_ids(*out, n, |a, out| select::argmax(a.floats(*x), cols, out));
            }
            Op::Collective { kind, x, out } => {
                let (cols, rank) = (self.cols(*x), self.rank);
                let mut result = Ok(());
                self.write(*out, |a, out| {
                    let nobody = || Err("a collective on a device without a group".to_owned());
                    result = rank.map_or_else(nobody, |rank| rank.collective(*kind, a.floats(*x), cols, out));
                });
                result.map_err(|reason| Error::Failed { device: crate::program::NAME, reason })?;
            }
            Op::Fused { parts, .. } => parts.iter().try_for_each(|op| self.run(op))?,
        }
        Ok(())
    }

    /// Writes a value; `f` receives all others, and the buffer.
    fn write(&mut self, id: ValueId, f: impl FnOnce(&Activations, &mut [f32])) {
        let len = self.len(id);
        self.activations.write(id, len, f);
    }

    /// Like [`Self::write`], for an Op that reads a layer's pages; `f` also receives the page table
    /// of each row.
    fn attend(
        &mut self,
        layer: KvLayerId,
        out: ValueId,
        f: impl FnOnce(&KvPages, &Activations, &(dyn Fn(usize) -> &'a [u32] + Sync), &mut [f32]),
    ) {
        let len = self.len(out);
        let Forward { plan, step, slots, .. } = *self;
        let pages = &*self.pages;
        let of_row = |row: usize| table(plan, step, layer, slots[row]);
        self.activations.write(out, len, |activations, out| f(pages, activations, &of_row, out));
    }

    fn cross(&self, layer: KvLayerId, n_heads: usize, scale: f32) -> cross::Cross {
        let kv = *self.plan.kv.layer(layer);
        cross::Cross { layer, kv, n_states: kv.encoder_states.unwrap_or(0), n_heads, scale }
    }
}

/// The page table of a slot for a layer.
fn table<'a>(plan: &Plan, step: &Step<'a>, layer: KvLayerId, slot: u32) -> &'a [u32] {
    step.page_table(slot, plan.kv.group_of(layer).0, plan.kv.groups.len())
}
