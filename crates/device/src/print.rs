//! Plans as text: one Op a line.
//!
//! ```text
//! plan: 3 ops, 4 values, 2 weights (0.1 MB)
//!    0  v0 hidden (tokens, 576) = embed(token_embd.weight Q4_1 [49152, 576], scale 1)
//! layer 0
//!    1  fused NormLinear
//!         v1 layer 0 norm (tokens, 576) = rms_norm(v0 hidden, blk.0.attn_norm.weight F32 [576], eps 1e-5, group 576)
//!         v2 layer 0 q (tokens, 576) = linear(v1 layer 0 norm, blk.0.attn_q.weight Q4_1 [576, 576])
//! ```

use std::fmt::{self, Display, Formatter};

use crate::{
    Activation, CollectiveKind, FusedKind, KvLayerId, Op, OutputKind, Plan, Pooling, RopeStyle, RowCount,
    ValueId, Weight, WeightId,
};

/// An Op with the names and shapes of its plan, or with bare ids. Ids out of range are printed as
/// they are, so that a plan that failed its check can still be shown.
struct Shown<'a> {
    op: &'a Op,
    plan: Option<&'a Plan>,
    /// Indentation of every line but the first.
    indent: &'static str,
}

impl Shown<'_> {
    fn value(&self, id: ValueId) -> String {
        match self.plan.and_then(|p| p.values.get(id.0 as usize)) {
            Some(value) => format!("{id} {}", value.name),
            None => id.to_string(),
        }
    }

    fn out(&self, id: ValueId) -> String {
        match self.plan.and_then(|p| p.values.get(id.0 as usize)) {
            Some(value) => format!("{id} {} ({}, {})", value.name, value.rows, value.cols),
            None => id.to_string(),
        }
    }

    fn weight(&self, id: WeightId) -> String {
        match self.plan.and_then(|p| p.weights.get(id.0 as usize)) {
            Some(weight) => format!("{} {} {:?}", weight.name, weight.block, weight.shape),
            None => id.to_string(),
        }
    }

    /// `, name weight`, or nothing if the weight is absent.
    fn optional(&self, name: &str, id: Option<WeightId>) -> String {
        id.map(|id| format!(", {name} {}", self.weight(id))).unwrap_or_default()
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = self.op.kind();
        match self.op {
            Op::Embed { table, scale, out } => {
                write!(f, "{} = {kind}({}, scale {scale})", self.out(*out), self.weight(*table))
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                let weight = self.optional("weight", *weight);
                write!(
                    f,
                    "{} = {kind}({}{weight}, eps {eps:e}, group {group})",
                    self.out(*out),
                    self.value(*x)
                )
            }
            Op::Linear { x, weight, bias, out } => {
                let bias = self.optional("bias", *bias);
                write!(f, "{} = {kind}({}, {}{bias})", self.out(*out), self.value(*x), self.weight(*weight))
            }
            Op::Rope { x, head_dim, n_dims, style, frequencies, scale, out } => write!(
                f,
                "{} = {kind}({}, {n_dims} of {head_dim} dims, {style}, {}, scale {scale})",
                self.out(*out),
                self.value(*x),
                self.weight(*frequencies)
            ),
            Op::KvWrite { k, v, layer } => {
                write!(f, "{layer} = {kind}({}, {})", self.value(*k), self.value(*v))
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } => {
                let softcap = softcap.map(|cap| format!(", softcap {cap}")).unwrap_or_default();
                let kind_of_window = if *chunked { "chunks of" } else { "window" };
                let window = window.map(|n| format!(", {kind_of_window} {n}")).unwrap_or_default();
                let sinks = self.optional("sinks", *sinks);
                let both = if *both_ways { ", both ways" } else { "" };
                write!(
                    f,
                    "{} = {kind}({}, {layer}, {n_heads} heads, scale {scale}{softcap}{window}{both}{sinks})",
                    self.out(*out),
                    self.value(*q)
                )
            }
            Op::Activate { x, kind: function, out } => {
                write!(f, "{} = {kind}({function}, {})", self.out(*out), self.value(*x))
            }
            Op::Gate { gate, up, kind: function, out } => {
                write!(
                    f,
                    "{} = {kind}({function}, {}, {})",
                    self.out(*out),
                    self.value(*gate),
                    self.value(*up)
                )
            }
            Op::Add { a, b, out } => {
                write!(f, "{} = {kind}({}, {})", self.out(*out), self.value(*a), self.value(*b))
            }
            Op::Scale { x, factor, out } => {
                write!(f, "{} = {kind}({}, factor {factor})", self.out(*out), self.value(*x))
            }
            Op::Softcap { x, cap, out } => {
                write!(f, "{} = {kind}({}, cap {cap})", self.out(*out), self.value(*x))
            }
            Op::Clamp { x, min, max, out } => {
                write!(f, "{} = {kind}({}, from {min} to {max})", self.out(*out), self.value(*x))
            }
            Op::Columns { x, first, group, out } => {
                write!(f, "{} = {kind}({}, from {first} of {group})", self.out(*out), self.value(*x))
            }
            Op::Route { x, normalise, factor, scores, bias, groups, scales, ids, weights } => {
                let normalise = if *normalise { ", normalised" } else { "" };
                let scales = self.optional("scales", *scales);
                let bias = self.optional("bias", *bias);
                let scores = if *scores == crate::RouterScores::Sigmoid { ", sigmoid" } else { "" };
                let groups = groups
                    .map(|g| format!(", {} of {} groups by their best {}", g.n_used, g.n, g.n_best))
                    .unwrap_or_default();
                write!(
                    f,
                    "{}, {} = {kind}({}{scores}{normalise}, factor {factor}{bias}{groups}{scales})",
                    self.out(*ids),
                    self.out(*weights),
                    self.value(*x)
                )
            }
            Op::ExpertLinear { x, ids, weight, out } => {
                let weight = self.weight(*weight);
                write!(f, "{} = {kind}({}, {}, {weight})", self.out(*out), self.value(*x), self.value(*ids))
            }
            Op::ExpertSum { x, weights, out } => {
                write!(f, "{} = {kind}({}, {})", self.out(*out), self.value(*x), self.value(*weights))
            }
            Op::SelectRows { x, out } | Op::Argmax { x, out } => {
                write!(f, "{} = {kind}({})", self.out(*out), self.value(*x))
            }
            Op::Fused { kind: fused, parts } => {
                write!(f, "{kind} {fused}")?;
                for part in parts {
                    let part = Shown { op: part, plan: self.plan, indent: self.indent };
                    write!(f, "\n{}{part}", self.indent)?;
                }
                Ok(())
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let bias = self.optional("bias", *bias);
                let (out, x, weight) = (self.out(*out), self.value(*x), self.weight(*weight));
                write!(f, "{out} = {kind}({x}, weight {weight}{bias}, eps {eps:e})")
            }
            Op::EmbedPositions { table, out } => {
                write!(f, "{} = {kind}({})", self.out(*out), self.weight(*table))
            }
            Op::SelfAttention { q, k, v, n_heads, scale, window, out } => {
                let (q, k, v) = (self.value(*q), self.value(*k), self.value(*v));
                let window = window.map(|n| format!(", {n} rows to each side")).unwrap_or_default();
                write!(
                    f,
                    "{} = {kind}({q}, {k}, {v}, {n_heads} heads, scale {scale}{window})",
                    self.out(*out)
                )
            }
            Op::ExpertBias { x, ids, bias, out } => {
                let (out, x, ids) = (self.out(*out), self.value(*x), self.value(*ids));
                write!(f, "{out} = {kind}({x}, {ids}, {})", self.weight(*bias))
            }
            Op::GateClamped { gate, up, alpha, limit, out } => {
                let (out, gate, up) = (self.out(*out), self.value(*gate), self.value(*up));
                write!(f, "{out} = {kind}({gate}, {up}, alpha {alpha}, limit {limit})")
            }
            Op::Join { a, b, n_heads, out } => {
                let (out, a, b) = (self.out(*out), self.value(*a), self.value(*b));
                write!(f, "{out} = {kind}({a}, {b}, {n_heads} heads)")
            }
            Op::Ordinals { out } => write!(f, "{} = {kind}()", self.out(*out)),
            Op::Collective { kind, x, out } => write!(f, "{} = {kind}({})", self.out(*out), self.value(*x)),
            Op::Adapters { n, out } => write!(f, "{} = {kind}({n})", self.out(*out)),
            Op::Pool { x, kind: pooling, out } => {
                write!(f, "{} = {kind}({pooling}, {})", self.out(*out), self.value(*x))
            }
            Op::Input { out } => write!(f, "{} = {kind}()", self.out(*out)),
            Op::Unfold { x, size, stride, out } => {
                write!(f, "{} = {kind}({}, size {size}, stride {stride})", self.out(*out), self.value(*x))
            }
            Op::CrossAttention { q, layer, n_heads, scale, out } => {
                let (out, q) = (self.out(*out), self.value(*q));
                write!(f, "{out} = {kind}({q}, {layer}, {n_heads} heads, scale {scale})")
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                let (out, q) = (self.out(*out), self.value(*q));
                write!(f, "{out} = {kind}({q}, {layer}, {heads:?} of {n_heads} heads, scale {scale})")
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                let bias = self.optional("bias", *bias);
                let (out, x, weight) = (self.out(*out), self.value(*x), self.weight(*weight));
                write!(f, "{out} = {kind}({x}, {weight}{bias}, state {})", state.0)
            }
            Op::GatedDelta { q, k, v, step, beta, rate, n_key_heads, n_heads, tiled, scale, state, out } => {
                let (out, q, k, v) = (self.out(*out), self.value(*q), self.value(*k), self.value(*v));
                let (step, beta, rate) = (self.value(*step), self.value(*beta), self.weight(*rate));
                let tiled = if *tiled { " tiled" } else { "" };
                write!(f, "{out} = {kind}({q}, {k}, {v}, step {step}, beta {beta}, rate {rate}, ")?;
                write!(f, "{n_heads} heads of {n_key_heads}{tiled}, scale {scale}, state {})", state.0)
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out } => {
                let skip = self.optional("skip", *skip);
                let (out, x, b, c) = (self.out(*out), self.value(*x), self.value(*b), self.value(*c));
                let (step, rate) = (self.value(*step), self.weight(*rate));
                write!(f, "{out} = {kind}({x}, {b}, {c}, step {step}, rate {rate}{skip}, ")?;
                write!(f, "{n_heads} heads in {n_groups} groups, state {})", state.0)
            }
        }
    }
}

impl Display for Op {
    /// Prints an Op with bare ids: `v2 = linear(v1, w7)`. The parts of a fused Op follow below,
    /// indented.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Shown { op: self, plan: None, indent: "  " }.fmt(f)
    }
}

impl Plan {
    /// An Op with the names and shapes of its values and weights. Never panics, even if ids are out
    /// of range.
    pub fn show<'a>(&'a self, op: &'a Op) -> impl Display + 'a {
        Shown { op, plan: Some(self), indent: "        " }
    }
}

impl Display for Plan {
    /// Prints one Op a line after the index of its node. A header precedes each layer, and parts of
    /// fused Ops are indented.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.weights.iter().map(Weight::n_bytes).sum();
        writeln!(
            f,
            "plan: {} ops, {} values, {} weights ({:.1} MB)",
            self.nodes.len(),
            self.values.len(),
            self.weights.len(),
            bytes as f64 / 1e6
        )?;
        for group in &self.kv.groups {
            let kept = match (group.encoder_states, group.window) {
                (Some(n), _) => format!("{n} encoder states"),
                (None, Some(n)) => format!("{n} positions"),
                (None, None) => "every position".to_owned(),
            };
            writeln!(f, "kv: {} layers keep {kept}", group.layers.len())?;
        }
        let mut layer = None;
        for (index, node) in self.nodes.iter().enumerate() {
            if node.layer != layer {
                layer = node.layer;
                match layer {
                    Some(n) => writeln!(f, "layer {n}")?,
                    None => writeln!(f, "after the layers")?,
                }
            }
            writeln!(f, "{index:5}  {}", self.show(&node.op))?;
        }
        let output = match self.output_kind {
            OutputKind::Logits => "logits",
            OutputKind::Hidden => "hidden states",
        };
        write!(f, "{output} {}, argmax {}", self.output, self.argmax)?;
        for id in &self.kept {
            write!(f, ", kept {id}")?;
        }
        writeln!(f)
    }
}

impl Display for ValueId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for WeightId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

impl Display for KvLayerId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "kv{}", self.0)
    }
}

impl Display for RowCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            RowCount::Tokens | RowCount::PerToken(1) => f.write_str("tokens"),
            RowCount::Outputs => f.write_str("outputs"),
            RowCount::PerToken(k) => write!(f, "{k} x tokens"),
        }
    }
}

impl Display for Activation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluErf => "gelu_erf",
            Activation::Relu => "relu",
            Activation::Sigmoid => "sigmoid",
            Activation::Identity => "identity",
            Activation::ReluSquared => "relu_squared",
            Activation::Softplus => "softplus",
        })
    }
}

impl Display for RopeStyle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RopeStyle::Half => "half",
            RopeStyle::Interleaved => "interleaved",
        })
    }
}

impl Display for Pooling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooling::Mean => "mean",
            Pooling::First => "first",
            Pooling::Last => "last",
        })
    }
}

impl Display for CollectiveKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
        })
    }
}

impl Display for FusedKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FusedKind::NormLinear => "norm_linear",
            FusedKind::NormGateUp => "norm_gate_up",
            FusedKind::GateUp => "gate_up",
            FusedKind::LinearAdd => "linear_add",
            FusedKind::NormAdd => "norm_add",
            FusedKind::QkNormRopeKvWrite => "qk_norm_rope_kv_write",
            FusedKind::QkNormRopeKvAttention => "qk_norm_rope_kv_attention",
        })
    }
}
