//! Fusion rules as data: a rule is a pattern of [`PatternPart`]s that matches neighbouring Ops.

use crate::OpKind;

/// Kind of a fused Op. A device has one kernel (or schedule) for each kind in its profile.
///
/// In every kind all parts belong to one layer, and all their values have the same rows (tokens or
/// outputs). The group of a norm is the whole row unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FusedKind {
    /// RmsNorm, then one to three Linears that read it (q, k, v; or the head).
    NormLinear,
    /// RmsNorm, then the gate's and the up Linear that read it, in either order, then the Gate of
    /// the two.
    NormGateUp,
    /// The gate's and the up Linear of the same input, in either order, then the Gate of the two.
    GateUp,
    /// Linear, Add of its output to a residual.
    LinearAdd,
    /// RmsNorm, Add of its output to a residual.
    NormAdd,
    /// RmsNorm of q and k (or none), Rope of q and k (or none), KvWrite.
    ///
    /// Every norm and Rope belongs to one of two chains `norm -> Rope` with at most one of each:
    /// the chain that ends in the KvWrite's `k`, or the chain of q. Norms are over heads (`group`
    /// is the layer's head_dim), and `v` is written before the window.
    QkNormRopeKvWrite,
    /// Like [`Self::QkNormRopeKvWrite`], followed by the Attention over the layer just written. The
    /// Attention reads the end of the q chain, if there is one.
    QkNormRopeKvAttention,
}

/// One place of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternPart {
    /// The kind of Op.
    pub kind: OpKind,
    /// Minimum times in a row.
    pub min: u8,
    /// Maximum times in a row.
    pub max: u8,
    /// Index of an earlier place in the pattern; each Op must read a value that an Op of that place
    /// wrote.
    pub reads: Option<u8>,
}

impl PatternPart {
    /// `min` to `max` Ops of a kind, with any inputs.
    pub const fn new(kind: OpKind, min: u8, max: u8) -> PatternPart {
        PatternPart { kind, min, max, reads: None }
    }

    /// Like [`Self::new`], but each Op reads a value that an Op of an earlier place wrote.
    pub const fn reading(self, place: u8) -> PatternPart {
        PatternPart { reads: Some(place), ..self }
    }
}

/// A rule: neighbouring Ops that match `pattern` become one fused Op of `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Kind of the fused Op.
    pub kind: FusedKind,
    /// The places, in order; each matches greedily.
    pub pattern: &'static [PatternPart],
}
