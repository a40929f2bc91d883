//! Finds decoders among plans. A decoder has layers of norm, q k v, attention, output, norm, gate
//! and up, down, each part with its residual. A norm and a head follow. A layer may have a router
//! and experts instead of gate, up and down. The search follows what primitive Ops read, so that
//! fusion, the order of Ops and the names of families do not matter.

use device::{Activation, KvLayerId, Op, OutputKind, Plan, RopeStyle, RouterScores, ValueId, WeightId};
use std::ops::Range;

/// A decoder as the table of the persistent kernels needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundDecoder {
    /// The residual before the first layer, `(1, hidden)`.
    pub first: ValueId,
    /// The logits that the head writes, `(1, n_vocab)`.
    pub logits: ValueId,
    /// Nodes of the plan from the first layer to the head. Other nodes run before or after them.
    pub nodes: Range<usize>,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// The norm before the head.
    pub norm: WeightId,
    /// `(n_vocab, hidden)`
    pub head: WeightId,
    /// Epsilon of all norms.
    pub eps: f32,
    /// The shape that all attentions share.
    pub heads: HeadShape,
    /// RoPE frequencies, and the factor of cosine and sine.
    pub rotations: Vec<(WeightId, f32)>,
}

/// The shape that all attentions share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    /// Query heads.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor of scores.
    pub scale: f32,
    /// Cap on scores, if there is one.
    pub softcap: Option<f32>,
    /// Columns that RoPE rotates together.
    pub style: RopeStyle,
}

impl HeadShape {
    /// Query heads of a KV head.
    pub fn of_group(&self) -> usize {
        self.n_heads / self.n_kv_heads.max(1)
    }
}

/// A matrix and its bias.
pub type BiasedMatrix = (WeightId, Option<WeightId>);

/// A layer of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The norm before q, k and v.
    pub norm: WeightId,
    /// q, k and v.
    pub qkv: [BiasedMatrix; 3],
    /// The norm of the heads of q.
    pub q_norm: Option<WeightId>,
    /// The norm of the heads of k.
    pub k_norm: Option<WeightId>,
    /// 0 without RoPE, else 1 + the index in [`FoundDecoder::rotations`].
    pub rotation: usize,
    /// The layer of the KV cache.
    pub kv: KvLayerId,
    /// Positions that a row sees, or all of them.
    pub window: Option<usize>,
    /// `(n_heads)`: sinks, which are scores without a value.
    pub sinks: Option<WeightId>,
    /// `(hidden, n_heads * head_dim)`
    pub output: WeightId,
    /// `(hidden)`
    pub output_bias: Option<WeightId>,
    /// The norm after the attention's output matrix, before the residual is added.
    pub post_attention: Option<WeightId>,
    /// The norm before gate and up.
    pub ffn_norm: WeightId,
    /// Gate, `(ffn, hidden)`, or a stack of experts' gates.
    pub gate: WeightId,
    /// Up, `(ffn, hidden)`, or a stack of experts' up.
    pub up: WeightId,
    /// The function on the gate.
    pub activation: Activation,
    /// Biases of gate and up, `(n_experts * ffn)` each.
    pub expert_biases: Option<[WeightId; 2]>,
    /// Down, `(hidden, ffn)`, or a stack of experts' down.
    pub down: WeightId,
    /// Bias of down, `(hidden)`, or `(n_experts * hidden)` of experts.
    pub down_bias: Option<WeightId>,
    /// The norm after the network, before the residual is added.
    pub post_ffn: Option<WeightId>,
    /// The router, or `None` for a dense layer.
    pub router: Option<Router>,
}

/// The choice of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// `(n_experts, hidden)`
    pub matrix: WeightId,
    /// Bias of the router's product, `(n_experts)`.
    pub product_bias: Option<WeightId>,
    /// Bias that counts for the choice of experts but not for their weights, `(n_experts)`.
    pub choice_bias: Option<WeightId>,
    /// Factor of each expert, `(n_experts)`.
    pub scales: Option<WeightId>,
    /// Properties that are equal in all layers.
    pub mixture: Mixture,
}

/// The properties that all routers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// Experts.
    pub n: usize,
    /// Experts that are chosen for a token.
    pub n_used: usize,
    /// Rows of an expert's gate.
    pub ffn: usize,
    /// The function that makes scores of the router's product.
    pub scores: RouterScores,
    /// True if the weights of the chosen experts are made to sum to 1.
    pub normalise: bool,
    /// Factor of every expert's weight.
    pub factor: f32,
    /// `alpha` and `limit` of a clamped gate, which replaces the activation.
    pub clamp: Option<(f32, f32)>,
}

/// The network of a layer.
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

/// Maximum number of different rotations of a plan.
const MOST_ROTATIONS: usize = 2;

/// A plan's primitive Ops, and the ones that the decoder has claimed.
struct Ops<'a> {
    plan: &'a Plan,
    /// Ops with the indices of their nodes.
    ops: Vec<(usize, &'a Op)>,
    /// The index of the Op that writes a value, by value.
    writer: Vec<Option<usize>>,
    claimed: Vec<bool>,
    eps: Option<f32>,
    heads: Option<HeadShape>,
    style: Option<RopeStyle>,
    mixture: Option<Mixture>,
    rotations: Vec<(WeightId, f32)>,
}

/// The input of a norm and its weights.
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
        let claimed = vec![false; ops.len()];
        let rotations = Vec::new();
        Ops { plan, ops, writer, claimed, eps: None, heads: None, style: None, mixture: None, rotations }
    }

    /// The value before selections of rows. With one row, a selection is equal to its input.
    fn whole(&self, mut id: ValueId) -> ValueId {
        while let Some(index) = self.writer[id.0 as usize]
            && let Op::SelectRows { x, .. } = self.ops[index].1
        {
            id = *x;
        }
        id
    }

    /// The Op that writes a value. It is not claimed.
    fn peek(&self, id: ValueId) -> Option<&'a Op> {
        self.writer[self.whole(id).0 as usize].map(|index| self.ops[index].1)
    }

    /// Claims the Op that writes a value, and selections of rows between.
    fn claim(&mut self, mut id: ValueId) -> Result<&'a Op, String> {
        loop {
            let Some(index) = self.writer[id.0 as usize] else {
                return Err(format!("no Op writes {}", self.plan.value(id).name));
            };
            self.claimed[index] = true;
            let op = self.ops[index].1;
            let Op::SelectRows { x, .. } = op else { return Ok(op) };
            id = *x;
        }
    }

    fn norm(&mut self, id: ValueId, group: Option<usize>) -> Result<Norm, String> {
        let op = self.claim(id)?;
        let Op::RmsNorm { x, weight: Some(weight), eps, group: found, .. } = op else {
            return Err(format!("{}, expected a norm with weights", op.kind()));
        };
        let group = group.unwrap_or(self.plan.value(*x).cols);
        if *found != group || self.plan.weight(*weight).n_cols() != group {
            return Err(format!("a norm of {found} columns, expected {group}"));
        }
        if *self.eps.get_or_insert(*eps) != *eps {
            return Err("norms have different eps, expected one".to_owned());
        }
        Ok((*x, *weight))
    }

    /// Claims a norm if one writes the value. Returns the norm and its input, or the value itself.
    fn optional_norm(&mut self, id: ValueId) -> Result<(Option<WeightId>, ValueId), String> {
        if !matches!(self.peek(id), Some(Op::RmsNorm { .. })) {
            return Ok((None, id));
        }
        let (x, weight) = self.norm(id, None)?;
        Ok((Some(weight), x))
    }

    fn linear(&mut self, id: ValueId) -> Result<(ValueId, BiasedMatrix), String> {
        let op = self.claim(id)?;
        let Op::Linear { x, weight, bias, .. } = op else {
            return Err(format!("{}, expected a Linear", op.kind()));
        };
        Ok((*x, (*weight, *bias)))
    }

    fn plain_linear(&mut self, id: ValueId) -> Result<(ValueId, WeightId), String> {
        match self.linear(id)? {
            (x, (weight, None)) => Ok((x, weight)),
            (_, (weight, Some(_))) => {
                Err(format!("{} has a bias, expected none", self.plan.weight(weight).name))
            }
        }
    }

    /// True if a value is the product, perhaps normed, of an Op's output for which `of` is true.
    fn is_branch(&self, id: ValueId, of: impl Fn(&Op) -> bool) -> bool {
        let linear = match self.peek(id) {
            Some(Op::RmsNorm { x, .. }) => self.peek(*x),
            other => other,
        };
        matches!(linear, Some(Op::Linear { x, .. }) if self.peek(*x).is_some_and(of))
    }

    /// Claims a branch that is added. Returns the residual, the norm after the product, and the
    /// product.
    fn branch(
        &mut self,
        sum: ValueId,
        what: &str,
        of: impl Fn(&Op) -> bool + Copy,
    ) -> Result<(ValueId, Option<WeightId>, ValueId, BiasedMatrix), String> {
        let Op::Add { a, b, .. } = self.claim(sum)? else {
            return Err(format!("expected a residual with one {what} added"));
        };
        let (branch, residual) = match (self.is_branch(*a, of), self.is_branch(*b, of)) {
            (true, false) => (*a, *b),
            (false, true) => (*b, *a),
            _ => return Err(format!("expected a residual with one {what} added")),
        };
        let (post, product) = self.optional_norm(branch)?;
        let (x, matrix) = self.linear(product)?;
        Ok((self.whole(residual), post, x, matrix))
    }

    /// Claims a product, perhaps a norm of heads, perhaps RoPE. Returns the product's input, its
    /// matrix, the norm and the rotation.
    fn heads(
        &mut self,
        end: ValueId,
        head_dim: usize,
    ) -> Result<(ValueId, BiasedMatrix, Option<WeightId>, usize), String> {
        let (mut at, mut rotation, mut norm) = (end, 0, None);
        if let Some(Op::Rope { x, head_dim: of, n_dims, style, frequencies, scale, .. }) = self.peek(at) {
            self.claim(at)?;
            if *of != head_dim || *n_dims != head_dim {
                return Err(format!("RoPE on {n_dims} columns of a head, expected {head_dim}"));
            }
            if *self.style.get_or_insert(*style) != *style {
                return Err("RoPE in two styles, expected one".to_owned());
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

    /// The index of a rotation. Equal frequencies and factors are one rotation.
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
            n if n > MOST_ROTATIONS => {
                Err(format!("{n} different rotations, expected at most {MOST_ROTATIONS}"))
            }
            n => Ok(n - 1),
        }
    }

    /// Claims the dense network that is added to the residual in `end`. Returns that residual too.
    fn dense(&mut self, end: ValueId) -> Result<(ValueId, Network), String> {
        let is_gate = |op: &Op| matches!(op, Op::Gate { .. });
        let (middle, post, gated, (down, down_bias)) = self.branch(end, "gated network", is_gate)?;
        let Op::Gate { gate, up, kind: activation, .. } = self.claim(gated)? else {
            return Err("a network without a gate".to_owned());
        };
        let ((of_gate, gate), (of_up, up)) = (self.plain_linear(*gate)?, self.plain_linear(*up)?);
        let norm = self.input(of_gate, of_up, middle)?;
        let activation = *activation;
        let network =
            Network { norm, gate, up, activation, expert_biases: None, down, down_bias, post, router: None };
        Ok((middle, network))
    }

    /// Claims the norm of the residual that gate and up read.
    fn input(&mut self, of_gate: ValueId, of_up: ValueId, residual: ValueId) -> Result<WeightId, String> {
        let (x, norm) = self.norm(of_gate, None)?;
        match self.whole(of_up) == self.whole(of_gate) && self.whole(x) == residual {
            true => Ok(norm),
            false => Err("gate and up do not read the norm of the residual".to_owned()),
        }
    }

    /// The branch of a sum that ends in a sum of experts (and perhaps a norm), and the other
    /// operand.
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

    /// Claims the mixture that is added to the residual in `end`. Returns that residual too.
    fn experts(
        &mut self,
        end: ValueId,
        branch: ValueId,
        residual: ValueId,
    ) -> Result<(ValueId, Network), String> {
        self.claim(end)?;
        let middle = self.whole(residual);
        let (post, sum) = self.optional_norm(branch)?;
        let Op::ExpertSum { x, weights, .. } = self.claim(sum)? else {
            return Err("no sum of experts".to_owned());
        };
        let (gated, ids, (down, down_bias)) = self.expert_linear(*x)?;
        let op = self.claim(gated)?;
        let (gate, up, activation, clamp) = if let Op::Gate { gate, up, kind, .. } = op {
            (gate, up, *kind, None)
        } else if let Op::GateClamped { gate, up, alpha, limit, .. } = op
            && *limit > 0.0
        {
            (gate, up, Activation::Silu, Some((*alpha, *limit)))
        } else {
            return Err(format!("{}, expected a gate of experts", op.kind()));
        };
        let ((of_gate, gate_ids, (gate, gate_bias)), (of_up, up_ids, (up, up_bias))) =
            (self.expert_linear(*gate)?, self.expert_linear(*up)?);
        if gate_bias.is_some() != up_bias.is_some() {
            return Err("gate or up alone has a bias, expected both or none".to_owned());
        }
        let expert_biases = gate_bias.zip(up_bias).map(|(gate, up)| [gate, up]);
        if [gate_ids, up_ids].iter().any(|other| self.whole(*other) != self.whole(ids)) {
            return Err("gate, up and down use different experts".to_owned());
        }
        let Op::Route { x, normalise, factor, scores, bias, groups, scales, weights: its, .. } =
            self.claim(ids)?
        else {
            return Err("no Route chooses the experts".to_owned());
        };
        if self.whole(*weights) != self.whole(*its) || groups.is_some() {
            return Err("groups of experts, or weights from another Op than the router".to_owned());
        }
        let (routed, (matrix, product_bias)) = self.linear(*x)?;
        let norm = self.input(of_gate, of_up, middle)?;
        if self.whole(routed) != self.whole(of_gate) {
            return Err("router and experts read different values".to_owned());
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
            return Err("layers have different mixtures, expected equal ones".to_owned());
        }
        let router = Router { matrix, product_bias, choice_bias: *bias, scales: *scales, mixture };
        let router = Some(router);
        Ok((middle, Network { norm, gate, up, activation, expert_biases, down, down_bias, post, router }))
    }

    /// Claims a product with experts. Returns its input, the chosen experts, the stack and its
    /// biases.
    fn expert_linear(&mut self, id: ValueId) -> Result<(ValueId, ValueId, BiasedMatrix), String> {
        let (mut product, mut biases) = (id, None);
        if let Some(Op::ExpertBias { x, ids, bias, .. }) = self.peek(id) {
            self.claim(id)?;
            (product, biases) = (*x, Some((*ids, *bias)));
        }
        let Op::ExpertLinear { x, ids, weight, .. } = self.claim(product)? else {
            return Err("expected a product with experts".to_owned());
        };
        match biases {
            Some((other, _)) if self.whole(other) != self.whole(*ids) => {
                Err("the biases are of other experts than the product".to_owned())
            }
            bias => Ok((*x, *ids, (*weight, bias.map(|(_, bias)| bias)))),
        }
    }

    /// Claims the layer that ends in `end`. Returns the residual before it.
    fn layer(&mut self, end: ValueId) -> Result<(ValueId, Layer), String> {
        let (middle, network) = match self.mixture(end) {
            Some((branch, residual)) => self.experts(end, branch, residual)?,
            None => self.dense(end)?,
        };
        let is_attention = |op: &Op| matches!(op, Op::Attention { .. });
        let (start, post_attention, attended, (output, output_bias)) =
            self.branch(middle, "attention", is_attention)?;
        let Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, .. } =
            self.claim(attended)?
        else {
            return Err("no attention".to_owned());
        };
        if (*chunked && window.is_some()) || *both_ways {
            return Err("attention in chunks or in both directions".to_owned());
        }
        let kv = *self.plan.kv.layer(*layer);
        if kv.encoder_states.is_some() || kv.values_are_keys {
            return Err("values are the keys, or encoder states".to_owned());
        }
        let (k, v) = self.written(*layer)?;
        let (of_q, q_matrix, q_norm, rotation) = self.heads(*q, kv.head_dim)?;
        let (of_k, k_matrix, k_norm, k_rotation) = self.heads(k, kv.head_dim)?;
        let (of_v, v_matrix) = self.linear(v)?;
        let (x, norm) = self.norm(of_q, None)?;
        if [of_k, of_v].iter().any(|id| self.whole(*id) != self.whole(of_q)) || self.whole(x) != start {
            return Err("q, k and v do not read the norm of the residual".to_owned());
        }
        if rotation != k_rotation {
            return Err("q and k have different rotations".to_owned());
        }
        let (n_heads, n_kv_heads, head_dim) = (*n_heads, kv.n_kv_heads, kv.head_dim);
        let style = self.style.unwrap_or(RopeStyle::Half);
        let heads = HeadShape { n_heads, n_kv_heads, head_dim, scale: *scale, softcap: *softcap, style };
        let before = HeadShape { style, ..*self.heads.get_or_insert(heads) };
        if before != heads {
            return Err("layers have different heads, expected equal ones".to_owned());
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

    /// Claims the write of a layer of the cache. Returns keys and values.
    fn written(&mut self, layer: KvLayerId) -> Result<(ValueId, ValueId), String> {
        let mut found = None;
        for (index, (_, op)) in self.ops.iter().enumerate() {
            let Op::KvWrite { k, v, layer: of } = op else { continue };
            if *of != layer {
                continue;
            }
            if found.is_some() || self.claimed[index] {
                return Err("layers share keys and values".to_owned());
            }
            (found, self.claimed[index]) = (Some((*k, *v)), true);
        }
        found.ok_or_else(|| "a layer writes no keys and values".to_owned())
    }
}

/// Finds the decoder of a plan.
///
/// # Errors
/// Returns the reason why the plan has none.
pub fn decoder(plan: &Plan) -> Result<FoundDecoder, String> {
    if plan.output_kind != OutputKind::Logits || !plan.kept.is_empty() || !plan.kv.states.is_empty() {
        return Err("the plan keeps states, or has outputs other than logits".to_owned());
    }
    let mut ops = Ops::new(plan);
    // Ops on logits run after the kernel.
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
    Ok(FoundDecoder { first: at, logits, nodes, layers, norm, head, eps, heads, rotations })
}

impl Ops<'_> {
    /// The nodes of the claimed Ops. All Ops between them must be claimed, and no other Op may read
    /// what they write.
    fn region(&self, first: ValueId, logits: ValueId) -> Result<Range<usize>, String> {
        let claimed = || {
            self.ops.iter().zip(&self.claimed).filter(|(_, claimed)| **claimed).map(|((node, _), _)| *node)
        };
        let (Some(start), Some(last)) = (claimed().min(), claimed().max()) else {
            return Err("nothing".to_owned());
        };
        for (index, (node, op)) in self.ops.iter().enumerate().filter(|(index, _)| !self.claimed[*index]) {
            let is_selection = matches!(op, Op::SelectRows { .. });
            if (start..=last).contains(node) && !is_selection {
                return Err(format!("{} (op {index}) between its layers", op.kind()));
            }
            // `first` is the value before all selections.
            let reads = op.reads();
            let inner = |id: &&ValueId| {
                **id != logits
                    && **id != first
                    && self.writer[id.0 as usize].is_some_and(|writer| self.claimed[writer])
            };
            if let Some(id) = reads.iter().find(inner).filter(|_| !is_selection) {
                return Err(format!("{} reads {}", op.kind(), self.plan.value(*id).name));
            }
        }
        match self.writer[first.0 as usize] {
            Some(index) if self.claimed[index] => Err("the first residual is written by a layer".to_owned()),
            _ => Ok(start..last + 1),
        }
    }
}
