//! Decoders among plans: layers of norm, q k v, attention, output, norm, gate and up, down, each with its residual, then a norm
//! and a head. Instead of gate, up and down a layer may have a router and experts. Found by what reads what among primitive Ops, so that fusion, the order of Ops and the names of families do not matter.

use device::{Activation, KvLayerId, Op, OutputKind, Plan, RopeStyle, RouterScores, ValueId, WeightId};
use std::ops::Range;

/// A decoder, as the table of the persistent kernel needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// The residual before the first layer, `(1, hidden)`.
    pub first: ValueId,
    /// What the head writes, `(1, n_vocab)`.
    pub logits: ValueId,
    /// Nodes of the plan from the first layer to the head; the rest runs before or after them.
    pub nodes: Range<usize>,
    /// In order.
    pub layers: Vec<Layer>,
    /// Before the head.
    pub norm: WeightId,
    /// `(n_vocab, hidden)`
    pub head: WeightId,
    /// Of all norms.
    pub eps: f32,
    /// What all attentions share.
    pub heads: HeadShape,
    /// Rotations: frequencies, and the factor on cosine and sine.
    pub rotations: Vec<(WeightId, f32)>,
}

/// What all attentions share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    /// Query heads.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Columns of each.
    pub head_dim: usize,
    /// On scores.
    pub scale: f32,
    /// Of scores.
    pub softcap: Option<f32>,
    /// Which columns turn together.
    pub style: RopeStyle,
}

impl HeadShape {
    /// Query heads of a KV head.
    pub fn of_group(&self) -> usize {
        self.n_heads / self.n_kv_heads.max(1)
    }
}

/// A matrix and its bias.
pub type Matrix = (WeightId, Option<WeightId>);

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Before q, k and v.
    pub norm: WeightId,
    /// q, k and v.
    pub qkv: [Matrix; 3],
    /// Of the heads of q.
    pub q_norm: Option<WeightId>,
    /// Of the heads of k.
    pub k_norm: Option<WeightId>,
    /// 0: none, or 1 and the place in [`Decoder::rotations`].
    pub rotation: usize,
    /// Where keys and values lie.
    pub kv: KvLayerId,
    /// Positions that are seen.
    pub window: Option<usize>,
    /// `(n_heads)`: scores without a value.
    pub sinks: Option<WeightId>,
    /// `(hidden, n_heads * head_dim)`
    pub output: WeightId,
    /// `(hidden)`
    pub output_bias: Option<WeightId>,
    /// After the attention, before it is added.
    pub post_attention: Option<WeightId>,
    /// Before gate and up.
    pub ffn_norm: WeightId,
    /// `(ffn, hidden)`; of experts a stack.
    pub gate: WeightId,
    /// `(ffn, hidden)`; of experts a stack.
    pub up: WeightId,
    /// On the gate.
    pub activation: Activation,
    /// `(n_experts * ffn)`, of gate and of up.
    pub expert_biases: Option<[WeightId; 2]>,
    /// `(hidden, ffn)`; of experts a stack.
    pub down: WeightId,
    /// `(hidden)`; of experts `(n_experts * hidden)`.
    pub down_bias: Option<WeightId>,
    /// After the network, before it is added.
    pub post_ffn: Option<WeightId>,
    /// `None`: a dense layer.
    pub router: Option<Router>,
}

/// How a layer chooses its experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// `(n_experts, hidden)`
    pub matrix: WeightId,
    /// `(n_experts)`: of the product.
    pub product_bias: Option<WeightId>,
    /// `(n_experts)`: added where experts are chosen, but not where they are weighed.
    pub choice_bias: Option<WeightId>,
    /// `(n_experts)`: a factor of each expert.
    pub scales: Option<WeightId>,
    /// The same in all layers.
    pub mixture: Mixture,
}

/// What all routers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Experts.
    pub n: usize,
    /// Experts that are chosen.
    pub n_used: usize,
    /// Rows of an expert's gate.
    pub ffn: usize,
    /// What is made of the product.
    pub scores: RouterScores,
    /// Whether the weights of the chosen are made to sum to 1.
    pub normalise: bool,
    /// On every weight.
    pub factor: f32,
    /// `alpha` and `limit` of a clamped gate, which has no other activation.
    pub clamp: Option<(f32, f32)>,
}

/// A layer's network.
struct Network {
    norm: WeightId,
    gate: WeightId,
    up: WeightId,
    activation: Activation,
    expert_biases: Option<[WeightId; 2]>,
    down: WeightId,
    down_bias: Option<WeightId>,
    post: Option<WeightId>,
    router: Option<Router>,
}

/// Rotations that the kernel knows.
const MOST_ROTATIONS: usize = 2;

/// A plan's primitives, and which of them are taken.
struct Ops<'a> {
    plan: &'a Plan,
    /// With their nodes.
    ops: Vec<(usize, &'a Op)>,
    /// By value: the Op that writes it.
    writer: Vec<Option<usize>>,
    taken: Vec<bool>,
    eps: Option<f32>,
    heads: Option<HeadShape>,
    style: Option<RopeStyle>,
    mixture: Option<Mixture>,
    rotations: Vec<(WeightId, f32)>,
}

/// A norm of whole rows: what is normalised, and its weight.
type Norm = (ValueId, WeightId);

impl<'a> Ops<'a> {
    fn new(plan: &'a Plan) -> Ops<'a> {
        let nodes = plan.nodes.iter().enumerate();
        let ops: Vec<(usize, &Op)> =
            nodes.flat_map(|(node, n)| n.op.primitives().iter().map(move |op| (node, op))).collect();
        let mut writer = vec![None; plan.values.len()];
        for (index, (_, op)) in ops.iter().enumerate() {
            op.writes().iter().for_each(|id| writer[id.0 as usize] = Some(index));
        }
        let taken = vec![false; ops.len()];
        let rotations = Vec::new();
        Ops { plan, ops, writer, taken, eps: None, heads: None, style: None, mixture: None, rotations }
    }

    /// With one row, a selection of rows is what it selects from.
    fn whole(&self, mut id: ValueId) -> ValueId {
        while let Some(index) = self.writer[id.0 as usize]
            && let Op::SelectRows { x, .. } = self.ops[index].1
        {
            id = *x;
        }
        id
    }

    /// What writes a value, without taking it.
    fn peek(&self, id: ValueId) -> Option<&'a Op> {
        self.writer[self.whole(id).0 as usize].map(|index| self.ops[index].1)
    }

    /// What writes a value, as part of the decoder; with the selections between.
    fn take(&mut self, mut id: ValueId) -> Result<&'a Op, String> {
        loop {
            let Some(index) = self.writer[id.0 as usize] else {
                return Err(format!("nothing writes {}", self.plan.value(id).name));
            };
            self.taken[index] = true;
            match self.ops[index].1 {
                Op::SelectRows { x, .. } => id = *x,
                op => return Ok(op),
            }
        }
    }

    fn norm(&mut self, id: ValueId, group: Option<usize>) -> Result<Norm, String> {
        match self.take(id)? {
            Op::RmsNorm { x, weight: Some(weight), eps, group: found, .. } => {
                let group = group.unwrap_or(self.plan.value(*x).cols);
                if *found != group || self.plan.weight(*weight).n_cols() != group {
                    return Err(format!("a norm of {found} columns where {group} are expected"));
                }
                if *self.eps.get_or_insert(*eps) != *eps {
                    return Err("norms of different eps".to_owned());
                }
                Ok((*x, *weight))
            }
            op => Err(format!("{} where a norm with weights is expected", op.kind())),
        }
    }

    fn linear(&mut self, id: ValueId) -> Result<(ValueId, Matrix), String> {
        match self.take(id)? {
            Op::Linear { x, weight, bias, .. } => Ok((*x, (*weight, *bias))),
            op => Err(format!("{} where a product is expected", op.kind())),
        }
    }

    fn plain_linear(&mut self, id: ValueId) -> Result<(ValueId, WeightId), String> {
        match self.linear(id)? {
            (x, (weight, None)) => Ok((x, weight)),
            (_, (weight, Some(_))) => Err(format!("a bias of {}", self.plan.weight(weight).name)),
        }
    }

    /// Whether a value is a product (and its norm) of what `of` says.
    fn is_branch(&self, id: ValueId, of: impl Fn(&Op) -> bool) -> bool {
        let linear = match self.peek(id) {
            Some(Op::RmsNorm { x, .. }) => self.peek(*x),
            other => other,
        };
        matches!(linear, Some(Op::Linear { x, .. }) if self.peek(*x).is_some_and(of))
    }

    /// A branch that is added: the residual, the norm after the product, and the product.
    fn branch(
        &mut self,
        sum: ValueId,
        what: &str,
        of: impl Fn(&Op) -> bool + Copy,
    ) -> Result<(ValueId, Option<WeightId>, ValueId, Matrix), String> {
        let Op::Add { a, b, .. } = self.take(sum)? else {
            return Err(format!("no {what} added to a residual"));
        };
        let (branch, residual) = match (self.is_branch(*a, of), self.is_branch(*b, of)) {
            (true, false) => (*a, *b),
            (false, true) => (*b, *a),
            _ => return Err(format!("no {what} added to a residual")),
        };
        let (post, product) = match self.peek(branch) {
            Some(Op::RmsNorm { .. }) => {
                let (x, weight) = self.norm(branch, None)?;
                (Some(weight), x)
            }
            _ => (None, branch),
        };
        let (x, matrix) = self.linear(product)?;
        Ok((self.whole(residual), post, x, matrix))
    }

    /// A chain of a product, perhaps a norm of heads, perhaps a rotation: the product's input, its matrix, the norm, the rotation.
    fn heads(
        &mut self,
        end: ValueId,
        head_dim: usize,
    ) -> Result<(ValueId, Matrix, Option<WeightId>, usize), String> {
        let (mut at, mut rotation, mut norm) = (end, 0, None);
        if let Some(Op::Rope { x, head_dim: of, n_dims, style, frequencies, scale, .. }) = self.peek(at) {
            self.take(at)?;
            if *of != head_dim || *n_dims != head_dim {
                return Err(format!("{n_dims} of {head_dim} columns of a head turn"));
            }
            if *self.style.get_or_insert(*style) != *style {
                return Err("two styles of rotation".to_owned());
            }
            rotation = 1 + self.rotation(*frequencies, *scale)?;
            at = *x;
        }
        if let Some(Op::RmsNorm { .. }) = self.peek(at) {
            let (x, weight) = self.norm(at, Some(head_dim))?;
            (at, norm) = (x, Some(weight));
        }
        let (x, matrix) = self.linear(at)?;
        Ok((x, matrix, norm, rotation))
    }

    /// Which of the rotations it is; the same numbers are the same rotation.
    fn rotation(&mut self, frequencies: WeightId, scale: f32) -> Result<usize, String> {
        let plan = self.plan;
        let same = |(other, its): &(WeightId, f32)| {
            *its == scale && plan.weight(*other).data[..] == plan.weight(frequencies).data[..]
        };
        if let Some(index) = self.rotations.iter().position(same) {
            return Ok(index);
        }
        self.rotations.push((frequencies, scale));
        match self.rotations.len() {
            n if n > MOST_ROTATIONS => Err(format!("more than {MOST_ROTATIONS} rotations")),
            n => Ok(n - 1),
        }
    }

    /// The network whose sum with the residual is `end`, and that residual.
    fn dense(&mut self, end: ValueId) -> Result<(ValueId, Network), String> {
        let is_gate = |op: &Op| matches!(op, Op::Gate { .. });
        let (middle, post, gated, (down, down_bias)) = self.branch(end, "gated network", is_gate)?;
        let Op::Gate { gate, up, kind: activation, .. } = self.take(gated)? else {
            return Err("no gate".to_owned());
        };
        let ((of_gate, gate), (of_up, up)) = (self.plain_linear(*gate)?, self.plain_linear(*up)?);
        let norm = self.input(of_gate, of_up, middle)?;
        let activation = *activation;
        let network =
            Network { norm, gate, up, activation, expert_biases: None, down, down_bias, post, router: None };
        Ok((middle, network))
    }

    /// The norm of the residual that gate and up read.
    fn input(&mut self, of_gate: ValueId, of_up: ValueId, residual: ValueId) -> Result<WeightId, String> {
        let (x, norm) = self.norm(of_gate, None)?;
        match self.whole(of_up) == self.whole(of_gate) && self.whole(x) == residual {
            true => Ok(norm),
            false => Err("gate and up that do not read the norm of the residual".to_owned()),
        }
    }

    /// Of a sum: the branch that ends in a sum of experts (and perhaps a norm), and the other.
    fn mixture(&self, sum: ValueId) -> Option<(ValueId, ValueId)> {
        let Some(Op::Add { a, b, .. }) = self.peek(sum) else { return None };
        let ends = |id: ValueId| match self.peek(id) {
            Some(Op::RmsNorm { x, .. }) => matches!(self.peek(*x), Some(Op::ExpertSum { .. })),
            Some(op) => matches!(op, Op::ExpertSum { .. }),
            None => false,
        };
        match (ends(*a), ends(*b)) {
            (true, false) => Some((*a, *b)),
            (false, true) => Some((*b, *a)),
            _ => None,
        }
    }

    /// The mixture whose sum with the residual is `end`, and that residual.
    fn experts(
        &mut self,
        end: ValueId,
        branch: ValueId,
        residual: ValueId,
    ) -> Result<(ValueId, Network), String> {
        self.take(end)?;
        let middle = self.whole(residual);
        let (post, sum) = match self.peek(branch) {
            Some(Op::RmsNorm { .. }) => {
                let (x, weight) = self.norm(branch, None)?;
                (Some(weight), x)
            }
            _ => (None, branch),
        };
        let Op::ExpertSum { x, weights, .. } = self.take(sum)? else {
            return Err("no sum of experts".to_owned());
        };
        let (gated, ids, (down, down_bias)) = self.expert_linear(*x)?;
        let (gate, up, activation, clamp) = match self.take(gated)? {
            Op::Gate { gate, up, kind, .. } => (gate, up, *kind, None),
            Op::GateClamped { gate, up, alpha, limit, .. } if *limit > 0.0 => {
                (gate, up, Activation::Silu, Some((*alpha, *limit)))
            }
            _ => return Err("experts without a gate".to_owned()),
        };
        let ((of_gate, gate_ids, (gate, gate_bias)), (of_up, up_ids, (up, up_bias))) =
            (self.expert_linear(*gate)?, self.expert_linear(*up)?);
        if gate_bias.is_some() != up_bias.is_some() {
            return Err("a bias of gate or up alone".to_owned());
        }
        let expert_biases = gate_bias.zip(up_bias).map(|(gate, up)| [gate, up]);
        if [gate_ids, up_ids].iter().any(|other| self.whole(*other) != self.whole(ids)) {
            return Err("gate, up and down of different experts".to_owned());
        }
        let Op::Route { x, normalise, factor, scores, bias, groups, scales, weights: its, .. } =
            self.take(ids)?
        else {
            return Err("experts that no router chooses".to_owned());
        };
        if self.whole(*weights) != self.whole(*its) || groups.is_some() {
            return Err("groups of experts, or weights that are not the router's".to_owned());
        }
        let (routed, (matrix, product_bias)) = self.linear(*x)?;
        let norm = self.input(of_gate, of_up, middle)?;
        if self.whole(routed) != self.whole(of_gate) {
            return Err("a router that does not read what its experts read".to_owned());
        }
        let plan = self.plan;
        let n = plan.value(*x).cols;
        let mixture = Mixture {
            n,
            n_used: plan.value(ids).cols,
            ffn: plan.weight(gate).n_rows() / n.max(1),
            scores: *scores,
            normalise: *normalise,
            factor: *factor,
            clamp,
        };
        if *self.mixture.get_or_insert(mixture) != mixture {
            return Err("layers with different mixtures".to_owned());
        }
        let router = Router { matrix, product_bias, choice_bias: *bias, scales: *scales, mixture };
        let router = Some(router);
        Ok((middle, Network { norm, gate, up, activation, expert_biases, down, down_bias, post, router }))
    }

    /// A product with experts: its input, which experts, the stack and its biases.
    fn expert_linear(&mut self, id: ValueId) -> Result<(ValueId, ValueId, Matrix), String> {
        let (product, bias) = match self.peek(id) {
            Some(Op::ExpertBias { x, ids, bias, .. }) => {
                self.take(id)?;
                (*x, Some((*ids, *bias)))
            }
            _ => (id, None),
        };
        let Op::ExpertLinear { x, ids, weight, .. } = self.take(product)? else {
            return Err("no product with experts where one is expected".to_owned());
        };
        match bias {
            Some((other, _)) if self.whole(other) != self.whole(*ids) => {
                Err("biases of other experts than the product's".to_owned())
            }
            bias => Ok((*x, *ids, (*weight, bias.map(|(_, bias)| bias)))),
        }
    }

    /// The layer whose end is `end`, and the residual before it.
    fn layer(&mut self, end: ValueId) -> Result<(ValueId, Layer), String> {
        let (middle, network) = match self.mixture(end) {
            Some((branch, residual)) => self.experts(end, branch, residual)?,
            None => self.dense(end)?,
        };
        let is_attention = |op: &Op| matches!(op, Op::Attention { .. });
        let (start, post_attention, attended, (output, output_bias)) =
            self.branch(middle, "attention", is_attention)?;
        let Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, .. } =
            self.take(attended)?
        else {
            return Err("no attention".to_owned());
        };
        if (*chunked && window.is_some()) || *both_ways {
            return Err("attention in chunks or both ways".to_owned());
        }
        let kv = *self.plan.kv.layer(*layer);
        if kv.encoder_states.is_some() || kv.values_are_keys {
            return Err("values that are keys, or encoder states".to_owned());
        }
        let (k, v) = self.written(*layer)?;
        let (of_q, q_matrix, q_norm, rotation) = self.heads(*q, kv.head_dim)?;
        let (of_k, k_matrix, k_norm, k_rotation) = self.heads(k, kv.head_dim)?;
        let (of_v, v_matrix) = self.linear(v)?;
        let (x, norm) = self.norm(of_q, None)?;
        if [of_k, of_v].iter().any(|id| self.whole(*id) != self.whole(of_q)) || self.whole(x) != start {
            return Err("q, k and v that do not read the norm of the residual".to_owned());
        }
        if rotation != k_rotation {
            return Err("q and k that turn differently".to_owned());
        }
        let (n_heads, n_kv_heads, head_dim) = (*n_heads, kv.n_kv_heads, kv.head_dim);
        let style = self.style.unwrap_or(RopeStyle::Half);
        let heads = HeadShape { n_heads, n_kv_heads, head_dim, scale: *scale, softcap: *softcap, style };
        let before = HeadShape { style, ..*self.heads.get_or_insert(heads) };
        if before != heads {
            return Err("layers with different heads".to_owned());
        }
        let layer = Layer {
            norm,
            qkv: [q_matrix, k_matrix, v_matrix],
            q_norm,
            k_norm,
            rotation,
            kv: *layer,
            window: *window,
            sinks: *sinks,
            output,
            output_bias,
            post_attention,
            ffn_norm: network.norm,
            gate: network.gate,
            up: network.up,
            activation: network.activation,
            expert_biases: network.expert_biases,
            down: network.down,
            down_bias: network.down_bias,
            post_ffn: network.post,
            router: network.router,
        };
        Ok((start, layer))
    }

    /// What a layer of the cache is written from.
    fn written(&mut self, layer: KvLayerId) -> Result<(ValueId, ValueId), String> {
        let mut found = None;
        for (index, (_, op)) in self.ops.iter().enumerate() {
            let Op::KvWrite { k, v, layer: of } = op else { continue };
            if *of != layer {
                continue;
            }
            if found.is_some() || self.taken[index] {
                return Err("layers that share keys and values".to_owned());
            }
            (found, self.taken[index]) = (Some((*k, *v)), true);
        }
        found.ok_or_else(|| "a layer that writes no keys and values".to_owned())
    }
}

/// The decoder that a plan is.
///
/// # Errors
/// Why it is none, in words.
pub fn decoder(plan: &Plan) -> Result<Decoder, String> {
    if plan.output_kind != OutputKind::Logits || !plan.kept.is_empty() || !plan.kv.states.is_empty() {
        return Err("it keeps states, or gives more than logits".to_owned());
    }
    let mut ops = Ops::new(plan);
    // What is done to logits runs after the kernel.
    let mut logits = plan.output;
    while let Some(Op::Softcap { x, .. } | Op::Scale { x, .. }) = ops.peek(logits) {
        logits = *x;
    }
    let (normed, head) = ops.plain_linear(logits)?;
    let (end, norm) = ops.norm(normed, None)?;
    let (mut at, mut layers) = (ops.whole(end), Vec::new());
    while let Some(Op::Add { .. }) = ops.peek(at) {
        let (before, layer) = ops.layer(at)?;
        layers.push(layer);
        at = before;
    }
    layers.reverse();
    let Some(heads) = ops.heads else { return Err("no layer of attention and gated network".to_owned()) };
    let heads = HeadShape { style: ops.style.unwrap_or(heads.style), ..heads };
    let nodes = ops.region(at, logits)?;
    let rotations = std::mem::take(&mut ops.rotations);
    let eps = ops.eps.unwrap_or(0.0);
    Ok(Decoder { first: at, logits, nodes, layers, norm, head, eps, heads, rotations })
}

impl Ops<'_> {
    /// The nodes of what is taken; what lies among them must be taken too, and nothing else may read what it writes.
    fn region(&self, first: ValueId, logits: ValueId) -> Result<Range<usize>, String> {
        let taken =
            || self.ops.iter().zip(&self.taken).filter(|(_, taken)| **taken).map(|((node, _), _)| *node);
        let (Some(start), Some(last)) = (taken().min(), taken().max()) else {
            return Err("nothing".to_owned());
        };
        for (index, (node, op)) in self.ops.iter().enumerate().filter(|(index, _)| !self.taken[*index]) {
            let is_selection = matches!(op, Op::SelectRows { .. });
            if (start..=last).contains(node) && !is_selection {
                return Err(format!("{} (op {index}) between its layers", op.kind()));
            }
            // With selections between, `first` is what is before them all.
            let reads = op.reads();
            let inner = |id: &&ValueId| {
                **id != logits
                    && **id != first
                    && self.writer[id.0 as usize].is_some_and(|writer| self.taken[writer])
            };
            if let Some(id) = reads.iter().find(inner).filter(|_| !is_selection) {
                return Err(format!("{} reads {}", op.kind(), self.plan.value(*id).name));
            }
        }
        match self.writer[first.0 as usize] {
            Some(index) if self.taken[index] => Err("a residual that begins inside".to_owned()),
            _ => Ok(start..last + 1),
        }
    }
}
