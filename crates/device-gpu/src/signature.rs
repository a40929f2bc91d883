//! Signatures of the kernels whose operands are the same on every GPU: element-wise Ops, and those
//! that take rows or columns. A GPU binds operands and numbers in its own way, once for all of
//! them.

use device::{Activation, Op, Plan, ValueId, WeightId};

/// The data that a kernel's parameter points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Rows of a value.
    Value(ValueId),
    /// A vector or a matrix in f32.
    Weight(WeightId),
    /// The rows that are outputs of the step.
    Outputs,
    /// The input of the step.
    Input,
}

/// Numbers that a kernel needs in addition to its operands; 0 if it does not use them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers {
    /// Columns of a row of `a`.
    pub a_cols: usize,
    /// `columns`: the first column that is taken of each group.
    pub first: usize,
    /// `columns`: columns of a group of `a`; `expert_bias`: of an expert; `join_heads`: of a head
    /// of `out`.
    pub group: usize,
    /// `columns`: columns taken of each group; `expert_bias`: experts of a row; `join_heads`:
    /// columns of a head of `a`.
    pub taken: usize,
    /// `scale`: the factor; `softcap`: the cap; `clamped`: the lower bound; `gate_clamped`: alpha.
    pub factor: f32,
    /// `clamped`: the upper bound; `gate_clamped`: the bound of gate and up.
    pub limit: f32,
}

/// A kernel, its operands and its numbers. It computes a row of `out` for each row of `out`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signature {
    /// Name of the file and of the function.
    pub kernel: &'static str,
    /// The first operand.
    pub a: Option<Source>,
    /// Indices: rows of `a`, or experts of a row.
    pub rows: Option<Source>,
    /// The second operand.
    pub b: Option<Source>,
    /// The value that the kernel writes.
    pub out: ValueId,
    /// The activation, of kernels that have one.
    pub activation: Option<Activation>,
    /// Its numbers.
    pub numbers: Numbers,
}

/// The signature of an Op; `None`: its kernels have signatures of their own.
pub fn signature(plan: &Plan, op: &Op) -> Option<Signature> {
    let cols = |id: &ValueId| plan.value(*id).cols;
    let of = |kernel, a: &ValueId, out: &ValueId| Signature {
        kernel,
        a: Some(Source::Value(*a)),
        rows: None,
        b: None,
        out: *out,
        activation: None,
        numbers: Numbers { a_cols: cols(a), ..Numbers::default() },
    };
    let two = |kernel, a, b: &ValueId, out| Signature { b: Some(Source::Value(*b)), ..of(kernel, a, out) };
    let found = match op {
        Op::Activate { x, kind, out } => Signature { activation: Some(*kind), ..of("activate", x, out) },
        Op::Gate { gate, up, kind, out } => {
            Signature { activation: Some(*kind), ..two("gate", gate, up, out) }
        }
        Op::Add { a, b, out } => two("add", a, b, out),
        Op::Scale { x, factor, out } => of("scale", x, out).with(|n| n.factor = *factor),
        Op::Softcap { x, cap, out } => of("softcap", x, out).with(|n| n.factor = *cap),
        Op::Clamp { x, min, max, out } => of("clamped", x, out).with(|n| (n.factor, n.limit) = (*min, *max)),
        Op::GateClamped { gate, up, alpha, limit, out } => {
            two("gate_clamped", gate, up, out).with(|n| (n.factor, n.limit) = (*alpha, *limit))
        }
        Op::Columns { x, first, group, out } => {
            let taken = cols(out) / (cols(x) / group).max(1);
            of("columns", x, out).with(|n| (n.first, n.group, n.taken) = (*first, *group, taken))
        }
        Op::Join { a, b, n_heads, out } => {
            let (group, taken) = (cols(out) / n_heads, cols(a) / n_heads);
            two("join_heads", a, b, out).with(|n| (n.group, n.taken) = (group, taken))
        }
        Op::ExpertBias { x, ids, bias, out } => {
            let taken = cols(ids);
            let (rows, b) = (Some(Source::Value(*ids)), Some(Source::Weight(*bias)));
            let of_experts = Signature { rows, b, ..of("expert_bias", x, out) };
            of_experts.with(|n| (n.group, n.taken) = (cols(x) / taken, taken))
        }
        Op::SelectRows { x, out } => Signature { rows: Some(Source::Outputs), ..of("select_rows", x, out) },
        Op::Input { out } => Signature { a: Some(Source::Input), ..of("input", out, out) },
        Op::Ordinals { out } => Signature { a: None, ..of("ordinals", out, out) },
        Op::Embed { .. }
        | Op::EmbedPositions { .. }
        | Op::Linear { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope { .. }
        | Op::KvWrite { .. }
        | Op::Attention { .. }
        | Op::SelfAttention { .. }
        | Op::CrossAttention { .. }
        | Op::CrossScores { .. }
        | Op::Route { .. }
        | Op::ExpertLinear { .. }
        | Op::ExpertSum { .. }
        | Op::Adapters { .. }
        | Op::Pool { .. }
        | Op::Unfold { .. }
        | Op::ShortConv { .. }
        | Op::GatedDelta { .. }
        | Op::SelectiveScan { .. }
        | Op::Argmax { .. }
        | Op::Collective { .. }
        | Op::Fused { .. } => return None,
    };
    Some(found)
}

impl Signature {
    /// The signature with some numbers set by `set`.
    fn with(mut self, set: impl FnOnce(&mut Numbers)) -> Signature {
        set(&mut self.numbers);
        self
    }
}
