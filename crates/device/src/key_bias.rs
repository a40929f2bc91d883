//! What is the same in every key of a layer: the bias of the keys' projection, turned to the key's position.
//!
//! Some models have biases of keys that are hundreds of times what differs between two keys. Stored with a scale for a
//! whole vector, or in a few bits each, a key then spends its digits on what is known already. So where keys are quantized
//! ([`KvType::is_quantized`](crate::KvType::is_quantized)), a device stores `k_p - R_p b`: b is the bias, `R_p` the rotation of
//! position p. Attention adds what is missing to each score:
//!
//! `q . k_p = q . (k_p - R_p b) + q . R_p b`
//!
//! A pair i of columns that turns by `f_i` a position contributes `C_i cos(p f_i) + D_i sin(p f_i)` to the last term, with
//! `C_i = q_a b_a + q_b b_b` and `D_i = q_b b_a - q_a b_b`. With `p = s + j`, where s is the first position of p's block of
//! [`BLOCK`], the angle at s turns `(C_i, D_i)` once for a block, and the rest is a matrix product with a table of
//! the block's positions ([`KeyBias::within`]), which is the same for all blocks. What is subtracted is computed from the same two
//! tables, so it does not matter that angles are rounded.
//!
//! This is a function of the weights and of a position alone: a key's bits do not depend on the step that stored it, and pages
//! are copied, shared and saved as they are.

use std::collections::HashMap;

use crate::{KvLayerId, Limits, Op, Plan, RopeStyle, ValueId, WeightId};

/// Positions of a block, which has one table for all; blocks begin at its multiples.
pub const BLOCK: usize = 128;

/// Pairs whose bias is smaller are stored as they are: keys differ by as much.
const LEAST: f32 = 1.0;

/// So are pairs whose bias is smaller than this part of the layer's largest: of 64 such columns the root of the sum of squares
/// is a thirty-second of it.
const LEAST_OF_LARGEST: f32 = 1.0 / 256.0;

/// Two columns that turn together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The columns of a head.
    pub columns: [usize; 2],
    /// Radians a position.
    pub frequency: f32,
}

/// What is the same in every key of a layer, as far as it is large.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyBias {
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of a head that do not turn.
    pub constant: Vec<usize>,
    /// Pairs that do.
    pub pairs: Vec<Pair>,
    /// `(n_kv_heads, constant + 2 * pairs)`: the biases of those columns, in that order, times the rotation's factor.
    pub values: Vec<f32>,
}

impl KeyBias {
    /// Of each layer of the plans' KV cache, in the layers' order. `None`: its keys have no bias, or none that is large, or it is changed
    /// (by a norm, say) before it is stored.
    pub fn of_layers(plans: &[Plan]) -> Vec<Option<KeyBias>> {
        let n_layers = plans.iter().map(|plan| plan.kv.layers.len()).max().unwrap_or(0);
        let mut found: Vec<Option<Option<KeyBias>>> = vec![None; n_layers];
        for plan in plans {
            let mut writers = HashMap::new();
            for op in plan.primitives() {
                if let Op::KvWrite { k, layer, .. } = op {
                    let bias = of_write(plan, &writers, *k, *layer);
                    let slot = &mut found[layer.0 as usize];
                    // Whoever writes the layer must subtract the same.
                    *slot = match slot.take() {
                        None => Some(bias),
                        Some(other) => Some(other.filter(|other| Some(other) == bias.as_ref())),
                    };
                }
                writers.extend(op.writes().into_iter().map(|id| (id, op)));
            }
        }
        found.into_iter().map(Option::flatten).collect()
    }

    /// Biases of a head.
    pub fn n_values(&self) -> usize {
        self.constant.len() + 2 * self.pairs.len()
    }

    /// Numbers that `q . R_p b` is a sum of: one of all columns that do not turn, and two of each pair.
    pub fn n_terms(&self) -> usize {
        1 + 2 * self.pairs.len()
    }

    /// The biases of a head: [`Self::n_values`].
    pub fn of_head(&self, head: usize) -> &[f32] {
        &self.values[head * self.n_values()..][..self.n_values()]
    }

    /// `(n_terms, BLOCK)`: ones; then of each pair the cosines and the sines of its angles from a block's first position on.
    pub fn within(&self) -> Vec<f32> {
        let mut table = Vec::with_capacity(self.n_terms() * BLOCK);
        table.resize(BLOCK, 1.0);
        for pair in &self.pairs {
            let angles = || (0..BLOCK).map(|at| at as f64 * f64::from(pair.frequency));
            table.extend(angles().map(|angle| angle.cos() as f32));
            table.extend(angles().map(|angle| angle.sin() as f32));
        }
        table
    }

    /// `(blocks, pairs, 2)`: the cosine and sine of each pair's angle at the first position of each block of so many positions.
    pub fn starts(&self, n_positions: usize) -> Vec<f32> {
        let n_blocks = n_positions.div_ceil(BLOCK);
        let of_block = |block: usize| {
            self.pairs.iter().flat_map(move |pair| {
                let angle = (block * BLOCK) as f64 * f64::from(pair.frequency);
                [angle.cos() as f32, angle.sin() as f32]
            })
        };
        let mut table = Vec::with_capacity(2 * n_blocks * self.pairs.len());
        table.extend((0..n_blocks).flat_map(of_block));
        table
    }
}

/// Bytes of the biases and tables ([`KnownKeys`]) of all layers.
pub fn n_bytes(plans: &[Plan], limits: &Limits) -> u64 {
    let n_blocks = n_positions(limits).div_ceil(BLOCK);
    let floats =
        |bias: &KeyBias| bias.values.len() + bias.n_terms() * BLOCK + 2 * n_blocks * bias.pairs.len();
    used(plans, limits).iter().flatten().map(|bias| 4 * floats(bias) as u64).sum()
}

/// Of each layer, [`KeyBias::n_terms`]; 0, or nothing: its keys are stored as they are.
pub fn n_terms(plans: &[Plan], limits: &Limits) -> Vec<usize> {
    used(plans, limits).iter().map(|bias| bias.as_ref().map_or(0, KeyBias::n_terms)).collect()
}

/// Those that the KV type makes use of.
fn used(plans: &[Plan], limits: &Limits) -> Vec<Option<KeyBias>> {
    if limits.kv_type.is_quantized() { KeyBias::of_layers(plans) } else { vec![] }
}

fn n_positions(limits: &Limits) -> usize {
    limits.n_ctx.next_multiple_of(limits.page_len)
}

/// [`KeyBias`] with its tables.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The biases.
    pub bias: KeyBias,
    /// [`KeyBias::within`]
    pub within: Vec<f32>,
    /// [`KeyBias::starts`]
    pub starts: Vec<f32>,
}

impl KnownKeys {
    /// Of a layer of sequences of so many positions.
    pub fn new(bias: KeyBias, n_positions: usize) -> KnownKeys {
        KnownKeys { within: bias.within(), starts: bias.starts(n_positions), bias }
    }

    /// Of each layer of the plans' KV cache, in the layers' order; `None`: its keys are stored as they are.
    pub fn of_layers(plans: &[Plan], limits: &Limits) -> Vec<Option<KnownKeys>> {
        let known = |bias: Option<KeyBias>| bias.map(|bias| KnownKeys::new(bias, n_positions(limits)));
        used(plans, limits).into_iter().map(known).collect()
    }

    /// Cosines and sines at the first position of a position's block: `(pairs, 2)`.
    pub fn start(&self, position: usize) -> &[f32] {
        let n = 2 * self.bias.pairs.len();
        &self.starts[position / BLOCK * n..][..n]
    }

    /// As kernels of GPUs read them, words of 4 bytes: the numbers of columns that do not turn and of pairs that do, 0, 0; these columns;
    /// the biases, the tables within a block, and those of the blocks' first positions, all f32.
    pub fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let bias = &self.bias;
        let sizes = [bias.constant.len(), bias.pairs.len(), 0, 0];
        let columns = bias.constant.iter().copied().chain(bias.pairs.iter().flat_map(|pair| pair.columns));
        let tables = [&bias.values[..], &self.within[BLOCK..], &self.starts];
        let floats = tables.into_iter().flatten().map(|x| x.to_bits());
        sizes.into_iter().chain(columns).map(|n| n as u32).chain(floats)
    }

    /// `k += sign R_p b`: a head's key of position p with the known part (`sign` 1) or without it (-1).
    pub fn add(&self, head: usize, position: usize, sign: f32, k: &mut [f32]) {
        let (constant, pairs) = self.bias.of_head(head).split_at(self.bias.constant.len());
        for (column, bias) in self.bias.constant.iter().zip(constant) {
            k[*column] += sign * bias;
        }
        let (start, at) = (self.start(position).as_chunks::<2>().0, position % BLOCK);
        let within = self.within[BLOCK..].as_chunks::<{ 2 * BLOCK }>().0;
        for (((pair, [a, b]), [cos_s, sin_s]), table) in
            self.bias.pairs.iter().zip(pairs.as_chunks::<2>().0).zip(start).zip(within)
        {
            let (cos_j, sin_j) = (table[at], table[BLOCK + at]);
            let (cos, sin) = (cos_s * cos_j - sin_s * sin_j, sin_s * cos_j + cos_s * sin_j);
            k[pair.columns[0]] += sign * (a * cos - b * sin);
            k[pair.columns[1]] += sign * (b * cos + a * sin);
        }
    }

    /// The terms of a query, times `scale`, before the block's angle: [`KeyBias::n_terms`] numbers. Of each pair the second meets the sine.
    pub fn terms(&self, head: usize, q: &[f32], scale: f32, terms: &mut [f32]) {
        let (constant, pairs) = self.bias.of_head(head).split_at(self.bias.constant.len());
        terms[0] = scale * self.bias.constant.iter().zip(constant).map(|(c, b)| q[*c] * b).sum::<f32>();
        let terms = terms[1..].as_chunks_mut::<2>().0.iter_mut();
        for ((pair, [a, b]), term) in self.bias.pairs.iter().zip(pairs.as_chunks::<2>().0).zip(terms) {
            let [qa, qb] = pair.columns.map(|column| scale * q[column]);
            *term = [qa * a + qb * b, qb * a - qa * b];
        }
    }

    /// A query's terms in the block of a position.
    pub fn turn(&self, position: usize, terms: &[f32], turned: &mut [f32]) {
        turned[0] = terms[0];
        let start = self.start(position).as_chunks::<2>().0;
        let turned = turned[1..].as_chunks_mut::<2>().0.iter_mut();
        for (([c, d], [cos, sin]), turned) in terms[1..].as_chunks::<2>().0.iter().zip(start).zip(turned) {
            *turned = [c * cos + d * sin, d * cos - c * sin];
        }
    }
}

/// How keys turn.
struct Turning {
    head_dim: usize,
    n_dims: usize,
    style: RopeStyle,
    frequencies: WeightId,
    scale: f32,
}

/// Of the keys that a KvWrite stores. `writers`: the Ops before it by what they write.
fn of_write(plan: &Plan, writers: &HashMap<ValueId, &Op>, k: ValueId, layer: KvLayerId) -> Option<KeyBias> {
    let kv = plan.kv.layer(layer);
    if kv.encoder_states.is_some() {
        return None;
    }
    let (mut from, mut first, mut turning) = (k, 0, None);
    let bias = loop {
        match writers.get(&from)? {
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, .. }
                if turning.is_none() && first == 0 =>
            {
                turning = Some(Turning {
                    head_dim: *head_dim,
                    n_dims: *n_dims,
                    style: *style,
                    frequencies: *frequencies,
                    scale: *scale,
                });
                from = *x;
            }
            Op::Columns { x, first: columns, group, .. } if plan.value(*x).cols == *group => {
                first += columns;
                from = *x;
            }
            Op::Linear { bias, .. } => break (*bias)?,
            _ => return None,
        }
    };
    let floats = |id: WeightId| -> Vec<f32> {
        let numbers = plan.weight(id).data.as_chunks::<4>().0;
        numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (head_dim, n) = (kv.head_dim, kv.n_kv_heads * kv.head_dim);
    let bias = floats(bias);
    let bias = bias.get(first..first + n)?;
    if !bias.iter().all(|b| b.is_finite()) || turning.as_ref().is_some_and(|t| t.head_dim != head_dim) {
        return None;
    }
    let (n_turning, frequencies) =
        turning.as_ref().map_or((0, vec![]), |t| (t.n_dims, floats(t.frequencies)));
    let pair = |(at, frequency): (usize, &f32)| {
        let columns = match turning.as_ref().map(|t| t.style) {
            Some(RopeStyle::Interleaved) => [2 * at, 2 * at + 1],
            Some(RopeStyle::Half) | None => [at, at + n_turning / 2],
        };
        Pair { columns, frequency: *frequency }
    };
    let heads = || bias.chunks_exact(head_dim);
    let largest = |columns: &[usize]| {
        let of_head = |head: &[f32]| columns.iter().map(|c| head[*c] * head[*c]).sum::<f32>().sqrt();
        heads().map(of_head).fold(0.0, f32::max)
    };
    let mut pairs: Vec<Pair> = frequencies.iter().enumerate().take(n_turning / 2).map(pair).collect();
    let mut constant: Vec<usize> = (n_turning..head_dim).collect();
    let of_all = pairs.iter().map(|p| largest(&p.columns)).chain(constant.iter().map(|c| largest(&[*c])));
    let least = (of_all.fold(0.0, f32::max) * LEAST_OF_LARGEST).max(LEAST);
    pairs.retain(|pair| largest(&pair.columns) >= least);
    constant.retain(|column| largest(&[*column]) >= least);
    if pairs.is_empty() && constant.is_empty() {
        return None;
    }
    let factor = turning.as_ref().map_or(1.0, |t| t.scale);
    let of_head = |head: &[f32]| -> Vec<f32> {
        let turned = pairs.iter().flat_map(|pair| pair.columns).map(|column| factor * head[column]);
        constant.iter().map(|column| head[*column]).chain(turned).collect()
    };
    let values = heads().flat_map(of_head).collect();
    Some(KeyBias { n_kv_heads: kv.n_kv_heads, constant, pairs, values })
}
