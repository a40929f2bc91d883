//! The numbers of one layer.

use device::{RouterGroups, RouterScores};

use crate::recurrent::RecurrentSpec;
use crate::rope::RopeSpec;

/// The numbers of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Columns of a head; with latent attention, columns of a cached vector.
    pub head_dim: usize,
    /// Columns of the dense feed-forward network, or of the shared expert; 0: none.
    pub ffn: usize,
    /// The layer's experts, if it has any.
    pub experts: Option<ExpertSpec>,
    /// The earlier layer whose keys and values this layer reads; `None`: it has its own.
    pub kv_from: Option<usize>,
    /// True if the values are the output of the key projection.
    pub keys_are_values: bool,
    /// The latent from which keys and values are expanded, if the layer has latent attention.
    pub latent: Option<LatentSpec>,
    /// Length of the attention window in positions, the query's own included; `None`: all
    /// positions.
    pub window: Option<usize>,
    /// The layer's RoPE; `None`: positions do not rotate.
    pub rope: Option<RopeSpec>,
    /// Factor on queries that grows with their position, if the layer has one.
    pub temperature: Option<TemperatureSpec>,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// True if the layer has attention.
    pub attends: bool,
    /// The layer's recurrence, if it has one.
    pub recurrent: Option<RecurrentSpec>,
    /// Cutoff of the gates, in standard deviations above their mean: lower gates count as 0.
    /// `None`: no cutoff.
    pub cutoff: Option<f32>,
}

impl LayerSpec {
    /// True if a position of this layer reads other positions.
    pub fn mixes(&self) -> bool {
        self.attends || self.recurrent.is_some()
    }

    /// A layer without heads and columns, which stands for tensors outside the layers when their
    /// shapes are computed.
    pub(crate) const EMPTY: LayerSpec = LayerSpec {
        n_heads: 0,
        n_kv_heads: 0,
        head_dim: 0,
        ffn: 0,
        experts: None,
        kv_from: None,
        keys_are_values: false,
        latent: None,
        window: None,
        rope: None,
        temperature: None,
        attention_scale: 0.0,
        attends: true,
        recurrent: None,
        cutoff: None,
    };
}

/// Temperature of queries by position: `1 + beta * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TemperatureSpec {
    /// Growth of the factor.
    pub beta: f64,
    /// Positions until the factor first grows.
    pub length: f64,
    /// Offset added to positions.
    pub offset: f64,
}

impl TemperatureSpec {
    /// The factor at a position.
    pub fn factor(&self, position: usize) -> f32 {
        (1.0 + self.beta * ((position as f64 + self.offset) / self.length).floor().ln_1p()) as f32
    }
}

/// Latent attention: keys and values of all heads are expanded from one latent vector. The KV cache
/// holds the latent and the rotated key columns, one vector for all heads; [`LayerSpec::head_dim`]
/// counts the columns of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSpec {
    /// Columns of the latent of keys and values.
    pub rank: usize,
    /// Columns of the latent of queries; `None`: queries are projected directly.
    pub query_rank: Option<usize>,
    /// Columns of a head's key without RoPE.
    pub plain: usize,
    /// Columns of a head's key with RoPE.
    pub turning: usize,
    /// Columns of a head's value.
    pub value: usize,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertSpec {
    /// Number of experts.
    pub n: usize,
    /// Experts that run for each row.
    pub n_used: usize,
    /// Columns of an expert's feed-forward network.
    pub ffn: usize,
    /// True if the weights of the chosen experts are normalised to sum to 1.
    pub normalise: bool,
    /// Factor on the weights of experts.
    pub factor: f32,
    /// Columns of the experts' input and output, if they differ from the residual stream's.
    pub latent: Option<usize>,
    /// Function from the router's logits to scores.
    pub scores: RouterScores,
    /// Groups of experts that the router chooses among first.
    pub groups: Option<RouterGroups>,
    /// Factor in the sigmoid, and bound, of a clamped gate.
    pub clamp: Option<(f32, f32)>,
}
