//! What a layer is.

use device::{RouterGroups, RouterScores};

use crate::recurrent::RecurrentSpec;
use crate::rope::RopeSpec;

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns of the dense feed-forward network, or of the shared expert; 0: none.
    pub ffn: usize,
    /// Its experts, if it has any.
    pub experts: Option<ExpertSpec>,
    /// The earlier layer whose keys and values it reads; `None`: its own.
    pub kv_from: Option<usize>,
    /// Values are what the key projection gives.
    pub keys_are_values: bool,
    /// Keys and values are expanded from this.
    pub latent: Option<LatentSpec>,
    /// Positions that it sees, its own included; `None`: all.
    pub window: Option<usize>,
    /// Its rotation, if it has any.
    pub rope: Option<RopeSpec>,
    /// How its queries are scaled by their position, if they are.
    pub temperature: Option<TemperatureSpec>,
    /// Factor on the scores.
    pub attention_scale: f32,
    /// Whether it attends.
    pub attends: bool,
    /// Its recurrence, if it has one.
    pub recurrent: Option<RecurrentSpec>,
    /// Gates of its network count from so many standard deviations above their mean on; `None`: all do.
    pub cutoff: Option<f32>,
}

impl LayerSpec {
    /// Whether a position sees others in it.
    pub fn mixes(&self) -> bool {
        self.attends || self.recurrent.is_some()
    }

    /// No heads, no columns: what names outside the layers are sized with.
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

/// Factors on queries: `1 + beta * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TemperatureSpec {
    /// How much they grow.
    pub beta: f64,
    /// Positions after which they first do.
    pub length: f64,
    /// What positions count from.
    pub offset: f64,
}

impl TemperatureSpec {
    /// The factor at a position.
    pub fn factor(&self, position: usize) -> f32 {
        (1.0 + self.beta * ((position as f64 + self.offset) / self.length).floor().ln_1p()) as f32
    }
}

/// A latent from which the keys and values of all heads are expanded. It is cached with what rotates of the keys, one vector for
/// all heads; [`LayerSpec::head_dim`] is the columns of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSpec {
    /// Its columns.
    pub rank: usize,
    /// Columns of the queries' own latent; `None`: they have none.
    pub query_rank: Option<usize>,
    /// Columns of a head's key that do not rotate.
    pub plain: usize,
    /// Those that do.
    pub turning: usize,
    /// Columns of a head's value.
    pub value: usize,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertSpec {
    /// How many there are.
    pub n: usize,
    /// How many run for a row.
    pub n_used: usize,
    /// Columns of one.
    pub ffn: usize,
    /// Whether the weights of those that run sum to 1.
    pub normalise: bool,
    /// Factor on their weights.
    pub factor: f32,
    /// Columns that they work in, if not those of the residual stream.
    pub latent: Option<usize>,
    /// What the router makes of its logits.
    pub scores: RouterScores,
    /// Groups that are chosen first.
    pub groups: Option<RouterGroups>,
    /// Factor in the sigmoid and bound of a clamped gate.
    pub clamp: Option<(f32, f32)>,
}
