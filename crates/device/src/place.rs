//! Places: names for the parts of a layer, which its builder gives to the nodes.
//!
//! Devices fuse neighbouring Ops. Places say which Ops are neighbours, so that a builder may emit
//! the Ops of a layer in any order that data flow allows: [`Plan::arrange`] orders them.

use crate::{Node, Plan};

/// Part of a layer that a node computes, in the order of computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The rows of the residual that later layers need.
    Rows,
    /// The norm before attention.
    AttentionNorm,
    /// The projection to queries.
    Query,
    /// The gate that the projection to queries also computes.
    AttentionGate,
    /// The projection to keys.
    Key,
    /// The projection to values, and their norm.
    Value,
    /// The norm of queries, or their RoPE if the norm is after RoPE.
    QueryFirst,
    /// The norm of keys, or their RoPE if the norm is after RoPE.
    KeyFirst,
    /// The RoPE of queries, or their norm if the norm is after RoPE.
    QuerySecond,
    /// The RoPE of keys, or their norm if the norm is after RoPE.
    KeySecond,
    /// The factor on queries.
    QueryScale,
    /// The write of keys and values to the KV cache.
    KvWrite,
    /// Attention, its output projection, and the addition to the residual.
    Attention,
    /// The norm before the feed-forward network or the router.
    NetworkNorm,
    /// The router's product.
    Router,
    /// The weight of the shared expert.
    SharedWeight,
    /// The choice of experts.
    Route,
    /// The input of experts, if they do not read the norm.
    ExpertInput,
    /// The norm before a dense network beside experts.
    DenseNorm,
    /// The gate of the dense network.
    Gate,
    /// The up projection of the dense network.
    Up,
    /// The product of gate and up.
    Gated,
    /// The norm before experts beside a dense network.
    ExpertNorm,
    /// The gates of experts.
    ExpertGate,
    /// The up projections of experts.
    ExpertUp,
    /// The biases of the gates of experts.
    ExpertGateBias,
    /// The products of gates and up projections of experts.
    ExpertGated,
    /// The gate of a shared expert that has a weight.
    SharedGate,
    /// The up projection of a shared expert that has a weight.
    SharedUp,
    /// The down projection of a shared expert that has a weight.
    SharedDown,
    /// The product of the shared expert and its weight, and the addition to the residual.
    SharedSum,
    /// The down projection of the dense network.
    Down,
    /// The down projections of experts, and their sum.
    ExpertDown,
    /// The gate of a shared expert without a weight.
    LateGate,
    /// The up projection of a shared expert without a weight.
    LateUp,
    /// The down projection of a shared expert without a weight, and its addition.
    LateDown,
    /// The norm after a dense network beside experts.
    PostDenseNorm,
    /// The norm after experts beside a dense network.
    PostExpertNorm,
    /// The addition of the network's output to the residual.
    NetworkSum,
}

impl Plan {
    /// Orders the nodes of each span by their places. A span is a run of nodes of one layer that
    /// have places. Nodes of one place keep their order, and nodes without a place stay where they
    /// are.
    pub fn arrange(&mut self) {
        let is_span = |a: &Node, b: &Node| a.layer == b.layer && a.place.is_some() && b.place.is_some();
        for span in self.nodes.chunk_by_mut(is_span) {
            span.sort_by_key(|node| node.place);
        }
    }
}
