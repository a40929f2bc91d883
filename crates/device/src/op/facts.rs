//! [`OpFacts`]: everything about an Op that follows from its fields, as data.
//!
//! [`Op::facts`] is the one place that names every Op for this. Code that treats most Ops alike
//! reads a fact instead of listing the Ops that do not concern it, so a new Op needs no change
//! there.

use std::fmt::{self, Display, Formatter};

use super::Op;
use crate::{KvLayerId, StateId, ValueId, WeightId};

/// An [`Op`] without its fields, for patterns and tables.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    Embed,
    RmsNorm,
    Linear,
    Rope,
    KvWrite,
    Attention,
    Activate,
    Gate,
    Add,
    Scale,
    Softcap,
    Clamp,
    Columns,
    Route,
    ExpertLinear,
    ExpertSum,
    SelectRows,
    Argmax,
    Fused,
    LayerNorm,
    EmbedPositions,
    SelfAttention,
    Pool,
    Input,
    Unfold,
    CrossAttention,
    CrossScores,
    ShortConv,
    GatedDelta,
    SelectiveScan,
    ExpertBias,
    GateClamped,
    Join,
    Ordinals,
    Adapters,
    Collective,
}

/// Facts about an Op that follow from its fields. A fused Op has only its kind; its primitives have
/// the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpFacts {
    /// The operation.
    pub kind: OpKind,
    /// Values read, in the order of the fields, then `None`.
    reads: [Option<ValueId>; 5],
    /// Values written, in the order of the fields, then `None`.
    writes: [Option<ValueId>; 2],
    /// Weights read, in the order of the fields.
    weights: [Option<WeightId>; 2],
    /// True if `out[i]` depends on element `i` of each input only.
    pub is_element_wise: bool,
    /// True if a kernel may write `out` over an input of the same size.
    pub may_write_over: bool,
    /// True if a kernel needs memory beside its operands: scores of attention, a recurrent state,
    /// quantised rows.
    pub needs_scratch: bool,
    /// True if the rows of a span must be in one step, because a row depends on later rows of its
    /// span.
    pub needs_whole_spans: bool,
    /// The matrix of a product. Only products count as operations.
    pub product: Option<WeightId>,
    /// The KV layer that the Op writes or reads.
    pub kv: Option<KvAccess>,
    /// The state of a recurrent layer.
    pub state: Option<StateId>,
    /// The part of the step that the Op reads itself, beside positions and pages.
    pub from_step: FromStep,
}

/// Access to the pages of a KV layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvAccess {
    /// The layer.
    pub layer: KvLayerId,
    /// True for a write, false for a read.
    pub writes: bool,
}

/// The part of a step that an Op reads by itself, beside positions and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromStep {
    /// Nothing.
    Nothing,
    /// Token ids, each of which selects a row of the table.
    Tokens(WeightId),
    /// Positions, each of which selects a row of the table.
    Positions(WeightId),
    /// [`crate::Step::input`], copied to the value.
    Input(ValueId),
    /// [`crate::Step::adapters`], each below this number.
    Adapters(usize),
}

impl OpFacts {
    /// Values written.
    pub fn written(&self) -> impl Iterator<Item = ValueId> {
        self.writes.into_iter().flatten()
    }

    fn new(kind: OpKind) -> OpFacts {
        OpFacts {
            kind,
            reads: [None; 5],
            writes: [None; 2],
            weights: [None; 2],
            is_element_wise: false,
            may_write_over: false,
            needs_scratch: false,
            needs_whole_spans: false,
            product: None,
            kv: None,
            state: None,
            from_step: FromStep::Nothing,
        }
    }

    /// An Op that reads `reads` and writes one value.
    fn of<const N: usize>(kind: OpKind, reads: [&ValueId; N], out: &ValueId) -> OpFacts {
        OpFacts { writes: [Some(*out), None], ..OpFacts::new(kind) }.reading(reads)
    }

    fn element_wise<const N: usize>(kind: OpKind, reads: [&ValueId; N], out: &ValueId) -> OpFacts {
        OpFacts { is_element_wise: true, may_write_over: true, ..OpFacts::of(kind, reads, out) }
    }

    fn reading<const N: usize>(self, reads: [&ValueId; N]) -> OpFacts {
        OpFacts { reads: std::array::from_fn(|i| reads.get(i).map(|id| **id)), ..self }
    }

    fn weights(self, weights: [Option<WeightId>; 2]) -> OpFacts {
        OpFacts { weights, ..self }
    }

    fn product(self, weight: &WeightId) -> OpFacts {
        OpFacts { product: Some(*weight), ..self }
    }

    fn scratch(self) -> OpFacts {
        OpFacts { needs_scratch: true, ..self }
    }

    fn whole_spans(self, needs_whole_spans: bool) -> OpFacts {
        OpFacts { needs_whole_spans, ..self }
    }

    fn kv(self, layer: &KvLayerId, writes: bool) -> OpFacts {
        OpFacts { kv: Some(KvAccess { layer: *layer, writes }), ..self }
    }

    fn state(self, state: &StateId) -> OpFacts {
        OpFacts { state: Some(*state), ..self }
    }

    fn step(self, from_step: FromStep) -> OpFacts {
        OpFacts { from_step, ..self }
    }
}

impl Op {
    /// Facts that follow from the fields.
    pub fn facts(&self) -> OpFacts {
        use OpKind as Kind;
        match self {
            Op::Embed { table, out, .. } => {
                OpFacts::of(Kind::Embed, [], out).weights([Some(*table), None]).step(FromStep::Tokens(*table))
            }
            Op::EmbedPositions { table, out } => OpFacts::of(Kind::EmbedPositions, [], out)
                .weights([Some(*table), None])
                .step(FromStep::Positions(*table)),
            Op::Input { out } => OpFacts::of(Kind::Input, [], out).step(FromStep::Input(*out)),
            Op::Adapters { n, out } => OpFacts::of(Kind::Adapters, [], out).step(FromStep::Adapters(*n)),
            Op::Ordinals { out } => OpFacts::of(Kind::Ordinals, [], out),
            Op::Activate { x, out, .. } => OpFacts::element_wise(Kind::Activate, [x], out),
            Op::Gate { gate, up, out, .. } => OpFacts::element_wise(Kind::Gate, [gate, up], out),
            Op::GateClamped { gate, up, out, .. } => {
                OpFacts::element_wise(Kind::GateClamped, [gate, up], out)
            }
            Op::Add { a, b, out } => OpFacts::element_wise(Kind::Add, [a, b], out),
            Op::Scale { x, out, .. } => OpFacts::element_wise(Kind::Scale, [x], out),
            Op::Softcap { x, out, .. } => OpFacts::element_wise(Kind::Softcap, [x], out),
            Op::Clamp { x, out, .. } => OpFacts::element_wise(Kind::Clamp, [x], out),
            Op::Rope { x, frequencies, out, .. } => {
                // A kernel reads both columns of a pair before it writes them.
                let facts = OpFacts::of(Kind::Rope, [x], out).weights([Some(*frequencies), None]);
                OpFacts { may_write_over: true, ..facts }
            }
            Op::RmsNorm { x, weight, out, .. } => {
                OpFacts::of(Kind::RmsNorm, [x], out).weights([*weight, None])
            }
            Op::LayerNorm { x, weight, bias, out, .. } => {
                OpFacts::of(Kind::LayerNorm, [x], out).weights([Some(*weight), *bias])
            }
            Op::Linear { x, weight, bias, out } => {
                OpFacts::of(Kind::Linear, [x], out).weights([Some(*weight), *bias]).product(weight)
            }
            Op::Columns { x, out, .. } => OpFacts::of(Kind::Columns, [x], out),
            Op::Join { a, b, out, .. } => OpFacts::of(Kind::Join, [a, b], out),
            Op::SelectRows { x, out } => OpFacts::of(Kind::SelectRows, [x], out),
            Op::Argmax { x, out } => OpFacts::of(Kind::Argmax, [x], out),
            Op::Collective { x, out, .. } => OpFacts::of(Kind::Collective, [x], out),
            Op::Pool { x, out, .. } => OpFacts::of(Kind::Pool, [x], out).whole_spans(true),
            Op::Unfold { x, out, .. } => OpFacts::of(Kind::Unfold, [x], out).whole_spans(true),
            Op::Route { x, bias, scales, ids, weights, .. } => {
                let facts = OpFacts::of(Kind::Route, [x], ids).weights([*bias, *scales]).scratch();
                OpFacts { writes: [Some(*ids), Some(*weights)], ..facts }
            }
            Op::ExpertLinear { x, ids, weight, out } => OpFacts::of(Kind::ExpertLinear, [x, ids], out)
                .weights([Some(*weight), None])
                .product(weight)
                .scratch(),
            Op::ExpertBias { x, ids, bias, out } => {
                OpFacts::of(Kind::ExpertBias, [x, ids], out).weights([Some(*bias), None])
            }
            Op::ExpertSum { x, weights, out } => OpFacts::of(Kind::ExpertSum, [x, weights], out),
            Op::KvWrite { k, v, layer } => {
                OpFacts::new(Kind::KvWrite).reading([k, v]).kv(layer, true).scratch()
            }
            Op::Attention { q, layer, both_ways, sinks, out, .. } => OpFacts::of(Kind::Attention, [q], out)
                .weights([*sinks, None])
                .kv(layer, false)
                .whole_spans(*both_ways)
                .scratch(),
            Op::SelfAttention { q, k, v, out, .. } => {
                OpFacts::of(Kind::SelfAttention, [q, k, v], out).whole_spans(true).scratch()
            }
            Op::CrossAttention { q, layer, out, .. } => {
                OpFacts::of(Kind::CrossAttention, [q], out).kv(layer, false).scratch()
            }
            Op::CrossScores { q, layer, out, .. } => {
                OpFacts::of(Kind::CrossScores, [q], out).kv(layer, false).scratch()
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                OpFacts::of(Kind::ShortConv, [x], out).weights([Some(*weight), *bias]).state(state).scratch()
            }
            Op::GatedDelta { q, k, v, step, beta, rate, state, out, .. } => {
                OpFacts::of(Kind::GatedDelta, [q, k, v, step, beta], out)
                    .weights([Some(*rate), None])
                    .state(state)
                    .scratch()
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, state, out, .. } => {
                OpFacts::of(Kind::SelectiveScan, [x, b, c, step], out)
                    .weights([Some(*rate), *skip])
                    .state(state)
                    .scratch()
            }
            Op::Fused { .. } => OpFacts::new(Kind::Fused),
        }
    }

    /// The operation without its fields.
    pub fn kind(&self) -> OpKind {
        self.facts().kind
    }

    /// Values read, in the order of the fields. A fused Op reads the values that none of its parts
    /// writes.
    pub fn reads(&self) -> Vec<ValueId> {
        let Op::Fused { parts, .. } = self else {
            return self.facts().reads.into_iter().flatten().collect();
        };
        let written: Vec<_> = parts.iter().flat_map(Op::writes).collect();
        let mut reads = Vec::new();
        for id in parts.iter().flat_map(Op::reads) {
            if !written.contains(&id) && !reads.contains(&id) {
                reads.push(id);
            }
        }
        reads
    }

    /// Values written. A fused Op writes all that its parts write, even values that only its parts
    /// read.
    pub fn writes(&self) -> Vec<ValueId> {
        let facts = self.primitives().iter().map(Op::facts);
        facts.flat_map(|facts| facts.writes.into_iter().flatten()).collect()
    }

    /// Weights read.
    pub fn weights(&self) -> Vec<WeightId> {
        let facts = self.primitives().iter().map(Op::facts);
        facts.flat_map(|facts| facts.weights.into_iter().flatten()).collect()
    }

    /// The Op with each value that it reads and each weight replaced. The values that it writes
    /// stay.
    pub fn with_operands(
        &self,
        values: &mut dyn FnMut(ValueId) -> ValueId,
        weights: &mut dyn FnMut(WeightId) -> WeightId,
    ) -> Op {
        let mut op = self.clone();
        let optional = |id: &mut Option<WeightId>, weights: &mut dyn FnMut(WeightId) -> WeightId| {
            if let Some(id) = id {
                *id = weights(*id);
            }
        };
        let mut each = |ids: &mut [&mut ValueId]| ids.iter_mut().for_each(|id| **id = values(**id));
        match &mut op {
            Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => *table = weights(*table),
            Op::RmsNorm { x, weight, .. } => {
                each(&mut [x]);
                optional(weight, weights);
            }
            Op::LayerNorm { x, weight, bias, .. }
            | Op::Linear { x, weight, bias, .. }
            | Op::ShortConv { x, weight, bias, .. } => {
                each(&mut [x]);
                *weight = weights(*weight);
                optional(bias, weights);
            }
            Op::Rope { x, frequencies, .. } => {
                each(&mut [x]);
                *frequencies = weights(*frequencies);
            }
            Op::KvWrite { k, v, .. } => each(&mut [k, v]),
            Op::Attention { q, sinks, .. } => {
                each(&mut [q]);
                optional(sinks, weights);
            }
            Op::CrossAttention { q, .. } | Op::CrossScores { q, .. } => each(&mut [q]),
            Op::SelfAttention { q, k, v, .. } => each(&mut [q, k, v]),
            Op::Activate { x, .. }
            | Op::Scale { x, .. }
            | Op::Softcap { x, .. }
            | Op::Clamp { x, .. }
            | Op::Columns { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Argmax { x, .. }
            | Op::Pool { x, .. }
            | Op::Unfold { x, .. }
            | Op::Collective { x, .. } => each(&mut [x]),
            Op::Gate { gate, up, .. } | Op::GateClamped { gate, up, .. } => each(&mut [gate, up]),
            Op::Add { a, b, .. } | Op::Join { a, b, .. } => each(&mut [a, b]),
            Op::Route { x, bias, scales, .. } => {
                each(&mut [x]);
                optional(bias, weights);
                optional(scales, weights);
            }
            Op::ExpertLinear { x, ids, weight, .. } => {
                each(&mut [x, ids]);
                *weight = weights(*weight);
            }
            Op::ExpertBias { x, ids, bias, .. } => {
                each(&mut [x, ids]);
                *bias = weights(*bias);
            }
            Op::ExpertSum { x, weights, .. } => each(&mut [x, weights]),
            Op::GatedDelta { q, k, v, step, beta, rate, .. } => {
                each(&mut [q, k, v, step, beta]);
                *rate = weights(*rate);
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, .. } => {
                each(&mut [x, b, c, step]);
                *rate = weights(*rate);
                optional(skip, weights);
            }
            Op::Fused { parts, .. } => {
                parts.iter_mut().for_each(|part| *part = part.with_operands(values, weights));
            }
            Op::Ordinals { .. } | Op::Adapters { .. } | Op::Input { .. } => {}
        }
        op
    }

    /// The primitives: the parts of a fused Op, or the Op itself.
    pub fn primitives(&self) -> &[Op] {
        if let Op::Fused { parts, .. } = self { parts } else { std::slice::from_ref(self) }
    }
}

impl Display for OpKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Embed => "embed",
            OpKind::RmsNorm => "rms_norm",
            OpKind::Linear => "linear",
            OpKind::Rope => "rope",
            OpKind::KvWrite => "kv_write",
            OpKind::Attention => "attention",
            OpKind::Activate => "activate",
            OpKind::Gate => "gate",
            OpKind::Add => "add",
            OpKind::Scale => "scale",
            OpKind::Softcap => "softcap",
            OpKind::Clamp => "clamp",
            OpKind::Columns => "columns",
            OpKind::Route => "route",
            OpKind::ExpertLinear => "expert_linear",
            OpKind::ExpertSum => "expert_sum",
            OpKind::SelectRows => "select_rows",
            OpKind::Argmax => "argmax",
            OpKind::Fused => "fused",
            OpKind::LayerNorm => "layer_norm",
            OpKind::EmbedPositions => "embed_positions",
            OpKind::SelfAttention => "self_attention",
            OpKind::Pool => "pool",
            OpKind::Input => "input",
            OpKind::Unfold => "unfold",
            OpKind::CrossAttention => "cross_attention",
            OpKind::CrossScores => "cross_scores",
            OpKind::ShortConv => "short_conv",
            OpKind::ExpertBias => "expert_bias",
            OpKind::GateClamped => "gate_clamped",
            OpKind::Join => "join",
            OpKind::Ordinals => "ordinals",
            OpKind::Adapters => "adapters",
            OpKind::GatedDelta => "gated_delta",
            OpKind::SelectiveScan => "selective_scan",
            OpKind::Collective => "collective",
        })
    }
}
