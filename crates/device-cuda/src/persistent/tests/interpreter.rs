//! An interpreter of the persistent kernels' table: it runs the phases of `PersistentPhase` entries
//! in f32 on the CPU and can stop after any of them. It reads nothing of the plan but the vectors
//! and packed weights that the table's addresses point to.

use super::super::header::{
    ADD, ADD_EXPERTS, BUNDLE, CODEC_F16, CODEC_FP4, CODEC_NL, CODEC_Q2M, CODEC_Q3, CODEC_Q4, CODEC_Q4M,
    CODEC_Q5M, CODEC_Q6, CODEC_Q8, CONTINUED, CONTINUES, EXCHANGE_ATTENDED, EXCHANGE_GATED, EXCHANGE_INPUT,
    EXCHANGE_MIDDLE, EXPERTS, GATE, HEAD, QKV, ROUTE, UNIT_F16, UNIT_FP4, UNIT_NL, UNIT_Q2M, UNIT_Q3,
    UNIT_Q4, UNIT_Q4M, UNIT_Q5M, UNIT_Q6, UNIT_Q8,
};
use super::super::pattern::HeadShape;
use super::super::weights::PersistentPlan;
use crate::arguments::{PersistentArguments, PersistentPhase};
use device::Activation;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// A vector that a phase publishes, and the mean of the squares of the residual that it comes from.
struct Published {
    values: Vec<f32>,
    mean_square: f32,
}

/// Keys and values of a position, all heads.
type Position = (Vec<f32>, Vec<f32>);

/// The memory that a table's addresses point to, and the state of a sequence.
pub struct Interpreter<'a> {
    pub arguments: PersistentArguments,
    pub phases: Vec<PersistentPhase>,
    pub heads: HeadShape,
    packed: &'a PersistentPlan,
    /// The address of the packed weights.
    base: u64,
    /// Decoded matrices by offset.
    decoded: RefCell<HashMap<usize, [Vec<Vec<f32>>; 2]>>,
    /// Vectors by address.
    pub vectors: BTreeMap<u64, Vec<f32>>,
    /// Positions by the address of a layer's pages.
    cache: HashMap<u64, Vec<Position>>,
    exchange: HashMap<u32, Published>,
    residual: Vec<f32>,
    qkv: Vec<f32>,
    /// The chosen experts and their weights.
    chosen: Vec<(usize, f32)>,
}

impl<'a> Interpreter<'a> {
    /// An interpreter of a table, with an empty sequence. `packed` comes with its address.
    pub fn new(
        arguments: PersistentArguments,
        phases: Vec<PersistentPhase>,
        heads: HeadShape,
        (packed, base): (&'a PersistentPlan, u64),
        vectors: BTreeMap<u64, Vec<f32>>,
    ) -> Interpreter<'a> {
        Interpreter {
            arguments,
            phases,
            heads,
            packed,
            base,
            decoded: RefCell::default(),
            vectors,
            cache: HashMap::new(),
            exchange: HashMap::new(),
            residual: vec![],
            qkv: vec![],
            chosen: vec![],
        }
    }

    /// Runs a step of one row and stops after `stop` phases. Returns the result of each phase: the
    /// residual, the gated network, the weights of the chosen experts, or the logits. The last
    /// phase of q, k and v yields the attention, its other phases the product.
    pub fn step(&mut self, x: &[f32], position: usize, stop: usize) -> Vec<Vec<f32>> {
        self.residual = x.to_vec();
        self.publish(EXCHANGE_INPUT, self.arguments.first_norm);
        let phases: Vec<PersistentPhase> = self.phases.iter().take(stop).copied().collect();
        phases.iter().map(|p| self.phase(p, position)).collect()
    }

    /// The vector that the last phases published in a part of the exchange.
    pub fn published(&self, input: u32) -> &[f32] {
        &self.exchange[&input].values
    }

    fn phase(&mut self, p: &PersistentPhase, position: usize) -> Vec<f32> {
        match p.kind {
            QKV => self.qkv(p, position),
            ADD | ADD_EXPERTS => self.add(p),
            GATE => {
                let [gate, up] = self.product(p.weights, p);
                self.gated(p, vec![(gate, up, 1.0)])
            }
            ROUTE => self.route(p),
            EXPERTS => self.experts(p),
            HEAD => self.product(p.weights, p)[0].clone(),
            kind => panic!("the table has a phase of kind {kind}"),
        }
    }

    /// `n` numbers of the vector at an address.
    fn vector(&self, address: u64, n: usize) -> Vec<f32> {
        let (start, values) = self.vectors.range(..=address).next_back().expect("a vector at the address");
        let first = ((address - start) / 4) as usize;
        values[first..first + n].to_vec()
    }

    fn optional(&self, address: u64, n: usize, default: f32) -> Vec<f32> {
        if address == 0 { vec![default; n] } else { self.vector(address, n) }
    }

    /// Publishes the residual times a norm's weights.
    fn publish(&mut self, to: u32, norm: u64) {
        let norm = self.vector(norm, self.residual.len());
        let values = self.residual.iter().zip(&norm).map(|(x, w)| x * w).collect();
        let mean_square = mean_square(&self.residual);
        self.exchange.insert(to, Published { values, mean_square });
    }

    /// The product of a phase's input with the weights at an address: of a matrix, or of gate and
    /// up.
    fn product(&self, weights: u64, p: &PersistentPhase) -> [Vec<f32>; 2] {
        let input = &self.exchange[&p.input];
        assert_eq!(input.values.len(), 8 * p.chunks as usize, "chunks of the input");
        let scale = match p.kind {
            ADD | ADD_EXPERTS => 1.0,
            _ => 1.0 / (input.mean_square + self.arguments.eps).sqrt(),
        };
        self.multiply(weights, &input.values).map(|sums| sums.into_iter().map(|sum| sum * scale).collect())
    }

    /// The product of `x` with the matrices at an address: of a matrix, or of gate and up.
    fn multiply(&self, weights: u64, x: &[f32]) -> [Vec<f32>; 2] {
        let offset = (weights - self.base) as usize;
        let mut decoded = self.decoded.borrow_mut();
        let rows = decoded.entry(offset).or_insert_with(|| self.packed.rows(offset));
        rows.each_ref().map(|rows| rows.iter().map(|row| dot(row, x)).collect())
    }

    fn qkv(&mut self, p: &PersistentPhase, position: usize) -> Vec<f32> {
        if p.qkv_part & CONTINUES == 0 {
            self.qkv.clear();
        }
        assert_eq!(self.qkv.len(), p.first_row as usize, "first_row");
        let [mut values, _] = self.product(p.weights, p);
        let bias = self.optional(p.bias, values.len(), 0.0);
        values.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
        self.qkv.extend_from_slice(&values);
        if p.qkv_part & CONTINUED != 0 { values } else { self.attention(p, position) }
    }

    /// The heads of q or k: their norm, then their rotation.
    fn rotated(&self, p: &PersistentPhase, heads: &[f32], norm: u64, position: usize) -> Vec<f32> {
        let d = self.heads.head_dim;
        let a = &self.arguments;
        let (frequencies, factor) = match p.rotation {
            0 => (0, 1.0),
            1 => (a.frequencies1, a.rotation_scale1),
            _ => (a.frequencies2, a.rotation_scale2),
        };
        let mut out = heads.to_vec();
        for head in out.chunks_exact_mut(d) {
            if norm != 0 {
                let scale = 1.0 / (mean_square(head) + a.eps).sqrt();
                head.iter_mut().zip(self.vector(norm, d)).for_each(|(x, w)| *x *= scale * w);
            }
            if frequencies == 0 {
                continue;
            }
            for (pair, frequency) in self.vector(frequencies, d / 2).into_iter().enumerate() {
                let (i, j) = if a.interleaved == 1 { (2 * pair, 2 * pair + 1) } else { (pair, pair + d / 2) };
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                let (x, y) = (head[i], head[j]);
                head[i] = factor * (x * cosine - y * sine);
                head[j] = factor * (y * cosine + x * sine);
            }
        }
        out
    }

    fn attention(&mut self, p: &PersistentPhase, position: usize) -> Vec<f32> {
        let HeadShape { n_heads, n_kv_heads, head_dim: d, .. } = self.heads;
        let (q, kv) = self.qkv.split_at(n_heads * d);
        let (k, v) = kv.split_at(n_kv_heads * d);
        let q = self.rotated(p, q, p.q_norm_or_second_bias, position);
        let k = self.rotated(p, k, p.k_norm_or_factors, position);
        let v = v.to_vec();
        let sinks = (p.norm_or_sinks != 0).then(|| self.vector(p.norm_or_sinks, n_heads));
        let positions = self.cache.entry(p.pages).or_default();
        assert!(positions.len() >= position, "positions before the step's");
        // A position may be computed again.
        positions.truncate(position);
        positions.push((k, v));
        let first = if p.window == 0 { 0 } else { (position + 1).saturating_sub(p.window as usize) };
        let mut out = vec![0.0; n_heads * d];
        for (head, (q, out)) in q.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
            let at = head / self.heads.of_group() * d;
            let scale = self.arguments.attention_scale / std::f32::consts::LOG2_E;
            let cap = self.arguments.softcap;
            let score = |(k, _): &Position| {
                let score = scale * dot(q, &k[at..at + d]);
                if cap > 0.0 { cap * (score / cap).tanh() } else { score }
            };
            let mut scores: Vec<f32> = positions[first..].iter().map(score).collect();
            scores.extend(sinks.as_ref().map(|sinks| sinks[head]));
            softmax(&mut scores);
            for (weight, (_, v)) in scores.iter().zip(&positions[first..]) {
                out.iter_mut().zip(&v[at..at + d]).for_each(|(out, v)| *out += weight * v);
            }
        }
        self.exchange.insert(EXCHANGE_ATTENDED, Published { values: out.clone(), mean_square: 0.0 });
        out
    }

    fn add(&mut self, p: &PersistentPhase) -> Vec<f32> {
        let hidden = self.residual.len();
        let mut sums = match p.kind {
            ADD => {
                let [sums, _] = self.product(p.weights, p);
                let bias = self.optional(p.bias, hidden, 0.0);
                sums.iter().zip(&bias).map(|(sum, bias)| sum + bias).collect()
            }
            _ => self.down_of_experts(p),
        };
        if p.post_norm != 0 {
            let scale = 1.0 / (mean_square(&sums) + self.arguments.eps).sqrt();
            let norm = self.vector(p.post_norm, hidden);
            sums.iter_mut().zip(&norm).for_each(|(sum, w)| *sum *= scale * w);
        }
        self.residual.iter_mut().zip(&sums).for_each(|(x, sum)| *x += sum);
        let to = if p.input == EXCHANGE_GATED { EXCHANGE_INPUT } else { EXCHANGE_MIDDLE };
        self.publish(to, p.norm_or_sinks);
        self.residual.clone()
    }

    /// Publishes activation(gate) * up * weight of one or more networks, one after the other.
    fn gated(&mut self, p: &PersistentPhase, networks: Vec<(Vec<f32>, Vec<f32>, f32)>) -> Vec<f32> {
        let kind = match p.activation {
            0 => Activation::Silu,
            1 => Activation::GeluTanh,
            2 => Activation::GeluErf,
            _ => Activation::Relu,
        };
        let (limit, alpha) = (self.arguments.expert_limit, self.arguments.expert_alpha);
        let clamped = p.kind == EXPERTS && limit > 0.0;
        let of_one = |gate: f32, up: f32| match clamped {
            true => {
                let gate = gate.min(limit);
                gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
            false => device_reference::activate(kind, gate) * up,
        };
        let values: Vec<f32> = networks
            .iter()
            .flat_map(|(gate, up, weight)| gate.iter().zip(up).map(move |(g, u)| of_one(*g, *u) * weight))
            .collect();
        self.exchange.insert(EXCHANGE_GATED, Published { values: values.clone(), mean_square: 0.0 });
        values
    }

    fn route(&mut self, p: &PersistentPhase) -> Vec<f32> {
        let a = self.arguments;
        let n = a.n_experts as usize;
        let [mut logits, _] = self.product(p.weights, p);
        let bias = self.optional(p.bias, n, 0.0);
        logits.iter_mut().zip(&bias).for_each(|(x, bias)| *x += bias);
        let mut scores = logits.clone();
        match a.expert_sigmoid {
            1 => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            _ => softmax(&mut scores),
        }
        let second = self.optional(p.q_norm_or_second_bias, n, 0.0);
        let key = |i: usize| if p.q_norm_or_second_bias == 0 { logits[i] } else { scores[i] + second[i] };
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|i, j| key(*j).total_cmp(&key(*i)));
        order.truncate(a.n_used as usize);
        let sum: f32 = order.iter().map(|i| scores[*i]).sum();
        let by = if a.expert_normalise == 1 { a.expert_factor / sum } else { a.expert_factor };
        let factors = self.optional(p.k_norm_or_factors, n, 1.0);
        self.chosen = order.into_iter().map(|i| (i, scores[i] * by * factors[i])).collect();
        self.chosen.iter().map(|(_, weight)| *weight).collect()
    }

    fn experts(&mut self, p: &PersistentPhase) -> Vec<f32> {
        let (a, ffn) = (self.arguments, self.arguments.expert_ffn as usize);
        let step = (p.warps as usize * unit(p.codec)).next_multiple_of(128);
        let bytes = (p.groups / a.n_used) as usize * BUNDLE * p.k_quads as usize * step;
        let chosen = self.chosen.clone();
        let network = |(expert, weight): &(usize, f32)| {
            let [mut gate, mut up] = self.product(p.weights + (expert * bytes) as u64, p);
            let at = (4 * expert * ffn) as u64;
            for (values, biases) in [(&mut gate, p.bias), (&mut up, p.q_norm_or_second_bias)] {
                let bias = self.optional(if biases == 0 { 0 } else { biases + at }, ffn, 0.0);
                values.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
            }
            (gate, up, *weight)
        };
        let networks = chosen.iter().map(network).collect();
        self.gated(p, networks)
    }

    fn down_of_experts(&self, p: &PersistentPhase) -> Vec<f32> {
        let (ffn, hidden) = (self.arguments.expert_ffn as usize, self.residual.len());
        let bytes = p.groups as usize * ffn.div_ceil(128) * unit(p.codec);
        let gated = &self.exchange[&p.input].values;
        let mut sums = vec![0.0; hidden];
        for ((expert, weight), x) in self.chosen.iter().zip(gated.chunks_exact(ffn)) {
            let [down, _] = self.multiply(p.weights + (expert * bytes) as u64, x);
            let at = p.bias + (4 * expert * hidden) as u64;
            let bias = self.optional(if p.bias == 0 { 0 } else { at }, hidden, 0.0);
            let parts = down.iter().zip(&bias).map(|(sum, bias)| sum + weight * bias);
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        sums
    }
}

/// Bytes of a unit of a codec.
fn unit(codec: u32) -> usize {
    let units = [
        (CODEC_Q4, UNIT_Q4),
        (CODEC_Q4M, UNIT_Q4M),
        (CODEC_Q8, UNIT_Q8),
        (CODEC_Q6, UNIT_Q6),
        (CODEC_Q5M, UNIT_Q5M),
        (CODEC_F16, UNIT_F16),
        (CODEC_Q2M, UNIT_Q2M),
        (CODEC_Q3, UNIT_Q3),
        (CODEC_NL, UNIT_NL),
        (CODEC_FP4, UNIT_FP4),
    ];
    units.into_iter().find(|(of, _)| *of == codec).expect("a codec of the header").1
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn mean_square(x: &[f32]) -> f32 {
    dot(x, x) / x.len() as f32
}

fn softmax(x: &mut [f32]) {
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - high).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}
