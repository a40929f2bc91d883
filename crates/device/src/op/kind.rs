//! The operations without their fields.

use super::Op;

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

impl Op {
    /// Which operation.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Embed { .. } => OpKind::Embed,
            Op::RmsNorm { .. } => OpKind::RmsNorm,
            Op::Linear { .. } => OpKind::Linear,
            Op::Rope { .. } => OpKind::Rope,
            Op::KvWrite { .. } => OpKind::KvWrite,
            Op::Attention { .. } => OpKind::Attention,
            Op::Activate { .. } => OpKind::Activate,
            Op::Gate { .. } => OpKind::Gate,
            Op::Add { .. } => OpKind::Add,
            Op::Scale { .. } => OpKind::Scale,
            Op::Softcap { .. } => OpKind::Softcap,
            Op::Clamp { .. } => OpKind::Clamp,
            Op::Columns { .. } => OpKind::Columns,
            Op::Route { .. } => OpKind::Route,
            Op::ExpertLinear { .. } => OpKind::ExpertLinear,
            Op::ExpertSum { .. } => OpKind::ExpertSum,
            Op::SelectRows { .. } => OpKind::SelectRows,
            Op::Argmax { .. } => OpKind::Argmax,
            Op::Fused { .. } => OpKind::Fused,
            Op::LayerNorm { .. } => OpKind::LayerNorm,
            Op::EmbedPositions { .. } => OpKind::EmbedPositions,
            Op::SelfAttention { .. } => OpKind::SelfAttention,
            Op::Pool { .. } => OpKind::Pool,
            Op::Input { .. } => OpKind::Input,
            Op::Unfold { .. } => OpKind::Unfold,
            Op::CrossAttention { .. } => OpKind::CrossAttention,
            Op::CrossScores { .. } => OpKind::CrossScores,
            Op::ShortConv { .. } => OpKind::ShortConv,
            Op::GatedDelta { .. } => OpKind::GatedDelta,
            Op::SelectiveScan { .. } => OpKind::SelectiveScan,
            Op::ExpertBias { .. } => OpKind::ExpertBias,
            Op::GateClamped { .. } => OpKind::GateClamped,
            Op::Join { .. } => OpKind::Join,
            Op::Ordinals { .. } => OpKind::Ordinals,
            Op::Adapters { .. } => OpKind::Adapters,
            Op::Collective { .. } => OpKind::Collective,
        }
    }
}
