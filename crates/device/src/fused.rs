//! Kinds of fused Ops.

/// Kind of a fused Op. A device lists the kinds for which it has a kernel or a schedule.
///
/// In every kind all parts belong to one layer, all their values have the same rows (tokens or
/// outputs), and the group of a norm is the whole row unless stated otherwise.
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
