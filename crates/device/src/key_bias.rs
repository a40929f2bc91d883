//! The known part of every key of a layer: the bias of the key projection, rotated to the key's
//! position.
//!
//! Some models have key biases that are hundreds of times larger than the difference of two keys.
//! Stored with one scale for a vector, or in a few bits, such a key spends its precision on the
//! known part. So if keys are quantised ([`KvType::is_quantized`](crate::KvType::is_quantized)), a
//! device stores `k_p - R_p b`, where b is the bias and `R_p` the rotation of position p. Attention
//! adds the missing term to each score:
//!
//! `q . k_p = q . (k_p - R_p b) + q . R_p b`
//!
//! A pair i of columns with frequency `f_i` contributes `C_i cos(p f_i) + D_i sin(p f_i)` to the
//! last term, with `C_i = q_a b_a + q_b b_b` and `D_i = q_b b_a - q_a b_b`. Let `p = s + j`, where
//! s is the first position of p's block of [`BLOCK`]. The angle at s rotates `(C_i, D_i)` once for
//! a block. The rest is a matrix product with a table of positions within a block
//! ([`KeyBias::within`]), which all blocks share. The subtracted part comes from the same two
//! tables, so rounding of angles cancels.
//!
//! The known part depends on the weights and the position alone. A key's bits therefore do not
//! depend on the step that stored it, and pages are copied, shared and saved unchanged.

use std::collections::HashMap;

use crate::{KvLayerId, Limits, Op, Plan, RopeStyle, ValueId, WeightId};

/// Positions of a block. Blocks begin at its multiples, and all share one table.
pub const BLOCK: usize = 128;

/// Pairs with a smaller bias are stored unchanged, since keys themselves differ by this much.
const LEAST: f32 = 1.0;

/// Pairs with a bias below this part of the layer's largest are stored unchanged, too. The root of
/// the sum of squares of 64 such columns is 1/32 of the largest.
const LEAST_OF_LARGEST: f32 = 1.0 / 256.0;

/// Two columns that RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The two columns of a head.
    pub columns: [usize; 2],
    /// Radians per position.
    pub frequency: f32,
}

/// The large biases of the keys of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyBias {
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of a head without rotation.
    pub constant: Vec<usize>,
    /// Rotated pairs.
    pub pairs: Vec<Pair>,
    /// `(n_kv_heads, constant + 2 * pairs)`: the biases of the constant columns, then of the pairs,
    /// times RoPE's scale.
    pub values: Vec<f32>,
}

impl KeyBias {
    /// The key bias of each layer of the plans' KV cache, in the layers' order. `None` if the keys
    /// have no large bias, or if something else, such as a norm, changes the bias before it is
    /// stored.
    pub fn of_layers(plans: &[Plan]) -> Vec<Option<KeyBias>> {
        let n_layers = plans.iter().map(|plan| plan.kv.layers.len()).max().unwrap_or(0);
        let mut found: Vec<Option<Option<KeyBias>>> = vec![None; n_layers];
        for plan in plans {
            let mut writers = HashMap::new();
            for op in plan.primitives() {
                if let Op::KvWrite { k, layer, .. } = op {
                    let bias = of_write(plan, &writers, *k, *layer);
                    let slot = &mut found[layer.0 as usize];
                    // All writers of a layer must subtract the same bias.
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

    /// Number of biases of a head.
    pub fn n_values(&self) -> usize {
        self.constant.len() + 2 * self.pairs.len()
    }

    /// Number of terms of `q . R_p b`: one for all constant columns together, and two for each
    /// pair.
    pub fn n_terms(&self) -> usize {
        1 + 2 * self.pairs.len()
    }

    /// The biases of a head: [`Self::n_values`].
    pub fn of_head(&self, head: usize) -> &[f32] {
        &self.values[head * self.n_values()..][..self.n_values()]
    }

    /// `(n_terms, BLOCK)`: a row of ones, then the cosines and the sines of each pair's angles,
    /// counted from a block's first position.
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

    /// `(blocks, pairs, 2)`: cosine and sine of each pair's angle at the first position of each
    /// block, for `n_positions` positions.
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

/// [`KeyBias::n_terms`] of each layer; 0 for layers whose keys are stored unchanged. Empty if all
/// are.
pub fn n_terms(plans: &[Plan], limits: &Limits) -> Vec<usize> {
    used(plans, limits).iter().map(|bias| bias.as_ref().map_or(0, KeyBias::n_terms)).collect()
}

/// The key biases of each layer that apply to the limits' KV type.
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
    /// See [`KeyBias::within`].
    pub within: Vec<f32>,
    /// See [`KeyBias::starts`].
    pub starts: Vec<f32>,
}

impl KnownKeys {
    /// The tables of a layer, for sequences of up to `n_positions` positions.
    pub fn new(bias: KeyBias, n_positions: usize) -> KnownKeys {
        KnownKeys { within: bias.within(), starts: bias.starts(n_positions), bias }
    }

    /// The tables of each layer of the plans' KV cache, in the layers' order; `None` for layers
    /// whose keys are stored unchanged.
    pub fn of_layers(plans: &[Plan], limits: &Limits) -> Vec<Option<KnownKeys>> {
        let known = |bias: Option<KeyBias>| bias.map(|bias| KnownKeys::new(bias, n_positions(limits)));
        used(plans, limits).into_iter().map(known).collect()
    }

    /// `(pairs, 2)`: cosines and sines at the first position of `position`'s block.
    pub fn start(&self, position: usize) -> &[f32] {
        let n = 2 * self.bias.pairs.len();
        &self.starts[position / BLOCK * n..][..n]
    }

    /// All fields as words of 4 bytes for GPU kernels. The order is: number of constant columns,
    /// number of pairs, 0, 0, and the constant columns. The rest is f32: biases, tables within a
    /// block, and tables of the blocks' first positions.
    pub fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let bias = &self.bias;
        let sizes = [bias.constant.len(), bias.pairs.len(), 0, 0];
        let columns = bias.constant.iter().copied().chain(bias.pairs.iter().flat_map(|pair| pair.columns));
        let tables = [&bias.values[..], &self.within[BLOCK..], &self.starts];
        let floats = tables.into_iter().flatten().map(|x| x.to_bits());
        sizes.into_iter().chain(columns).map(|n| n as u32).chain(floats)
    }

    /// `k += sign R_p b`: adds the known part to a head's key at position p (`sign` 1), or
    /// subtracts it (-1).
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

    /// [`KeyBias::n_terms`] terms of a query, times `scale`, before the block's rotation. The
    /// second term of each pair is multiplied by the sine.
    pub fn terms(&self, head: usize, q: &[f32], scale: f32, terms: &mut [f32]) {
        let (constant, pairs) = self.bias.of_head(head).split_at(self.bias.constant.len());
        terms[0] = scale * self.bias.constant.iter().zip(constant).map(|(c, b)| q[*c] * b).sum::<f32>();
        let terms = terms[1..].as_chunks_mut::<2>().0.iter_mut();
        for ((pair, [a, b]), term) in self.bias.pairs.iter().zip(pairs.as_chunks::<2>().0).zip(terms) {
            let [qa, qb] = pair.columns.map(|column| scale * q[column]);
            *term = [qa * a + qb * b, qb * a - qa * b];
        }
    }

    /// The terms of a query, rotated to the block of a position.
    pub fn turn(&self, position: usize, terms: &[f32], turned: &mut [f32]) {
        turned[0] = terms[0];
        let start = self.start(position).as_chunks::<2>().0;
        let turned = turned[1..].as_chunks_mut::<2>().0.iter_mut();
        for (([c, d], [cos, sin]), turned) in terms[1..].as_chunks::<2>().0.iter().zip(start).zip(turned) {
            *turned = [c * cos + d * sin, d * cos - c * sin];
        }
    }
}

/// Rotation of keys.
struct Rotation {
    head_dim: usize,
    n_dims: usize,
    style: RopeStyle,
    frequencies: WeightId,
    scale: f32,
}

/// The biases of the keys that a KvWrite stores. `writers` maps values to the earlier Ops that
/// write them.
fn of_write(plan: &Plan, writers: &HashMap<ValueId, &Op>, k: ValueId, layer: KvLayerId) -> Option<KeyBias> {
    let kv = plan.kv.layer(layer);
    if kv.encoder_states.is_some() {
        return None;
    }
    let (mut from, mut first, mut rotation) = (k, 0, None);
    let bias = loop {
        let op = *writers.get(&from)?;
        if let &Op::Rope { x, head_dim, n_dims, style, frequencies, scale, .. } = op
            && rotation.is_none()
            && first == 0
        {
            rotation = Some(Rotation { head_dim, n_dims, style, frequencies, scale });
            from = x;
        } else if let Op::Columns { x, first: columns, group, .. } = op
            && plan.value(*x).cols == *group
        {
            first += columns;
            from = *x;
        } else if let Op::Linear { bias, .. } = op {
            break (*bias)?;
        } else {
            return None;
        }
    };
    let floats = |id: WeightId| -> Vec<f32> {
        let numbers = plan.weight(id).data.as_chunks::<4>().0;
        numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (head_dim, n) = (kv.head_dim, kv.n_kv_heads * kv.head_dim);
    let bias = floats(bias);
    let bias = bias.get(first..first + n)?;
    if !bias.iter().all(|b| b.is_finite()) || rotation.as_ref().is_some_and(|t| t.head_dim != head_dim) {
        return None;
    }
    let (n_rotated, frequencies) =
        rotation.as_ref().map_or((0, vec![]), |t| (t.n_dims, floats(t.frequencies)));
    let pair = |(at, frequency): (usize, &f32)| {
        let columns = match rotation.as_ref().map(|t| t.style) {
            Some(RopeStyle::Interleaved) => [2 * at, 2 * at + 1],
            Some(RopeStyle::Half) | None => [at, at + n_rotated / 2],
        };
        Pair { columns, frequency: *frequency }
    };
    let heads = || bias.chunks_exact(head_dim);
    let largest = |columns: &[usize]| {
        let of_head = |head: &[f32]| columns.iter().map(|c| head[*c] * head[*c]).sum::<f32>().sqrt();
        heads().map(of_head).fold(0.0, f32::max)
    };
    let mut pairs: Vec<Pair> = frequencies.iter().enumerate().take(n_rotated / 2).map(pair).collect();
    let mut constant: Vec<usize> = (n_rotated..head_dim).collect();
    let of_all = pairs.iter().map(|p| largest(&p.columns)).chain(constant.iter().map(|c| largest(&[*c])));
    let least = (of_all.fold(0.0, f32::max) * LEAST_OF_LARGEST).max(LEAST);
    pairs.retain(|pair| largest(&pair.columns) >= least);
    constant.retain(|column| largest(&[*column]) >= least);
    if pairs.is_empty() && constant.is_empty() {
        return None;
    }
    let factor = rotation.as_ref().map_or(1.0, |t| t.scale);
    let of_head = |head: &[f32]| -> Vec<f32> {
        let turned = pairs.iter().flat_map(|pair| pair.columns).map(|column| factor * head[column]);
        constant.iter().map(|column| head[*column]).chain(turned).collect()
    };
    let values = heads().flat_map(of_head).collect();
    Some(KeyBias { n_kv_heads: kv.n_kv_heads, constant, pairs, values })
}
