//! Which neighbouring Ops a device fuses, as data: a rule is a pattern of [`PatternPart`]s.

use crate::OpKind;

/// What a fused Op does; a device has one kernel (or schedule) for each that its profile lists.
///
/// In every kind: the parts stand in one layer, all their values have the same rows (tokens or outputs), and a norm's
/// group is the whole row unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FusedKind {
    /// RmsNorm, then one to three Linears that read it (q, k, v; or the head).
    NormLinear,
    /// RmsNorm, the gate's and the up Linear that read it, Gate of the two (the Linears stand in either order).
    NormGateUp,
    /// The gate's and the up Linear of the same input, Gate of the two (the Linears stand in either order).
    GateUp,
    /// Linear, Add of its output to a residual.
    LinearAdd,
    /// RmsNorm, Add of its output to a residual.
    NormAdd,
    /// RmsNorm of q and k (or none), Rope of q and k (or none), KvWrite.
    ///
    /// Every norm and Rope belongs to one of two chains `norm -> Rope` with at most one of each: the one that ends in the
    /// KvWrite's `k`, or that of q. Norms are of heads (`group` is the layer's head_dim), and `v` comes from outside.
    QkNormRopeKvWrite,
    /// The same, with the Attention that follows: over the layer just written, of the q chain's end (if there is a chain).
    QkNormRopeKvAttention,
}

/// One place of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternPart {
    /// The kind of Op.
    pub kind: OpKind,
    /// Fewest times in a row.
    pub min: u8,
    /// Most times in a row.
    pub max: u8,
    /// Each must read what an Op of this earlier place wrote (index in the pattern).
    pub reads: Option<u8>,
}

impl PatternPart {
    /// `min` to `max` Ops of a kind, whatever they read.
    pub const fn new(kind: OpKind, min: u8, max: u8) -> PatternPart {
        PatternPart { kind, min, max, reads: None }
    }

    /// The same, each reading what an Op of an earlier place wrote.
    pub const fn reading(self, place: u8) -> PatternPart {
        PatternPart { reads: Some(place), ..self }
    }
}

/// A rule: neighbouring Ops that match `pattern` become one fused Op of `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What they become.
    pub kind: FusedKind,
    /// The places, in order; matched greedily.
    pub pattern: &'static [PatternPart],
}
