//! A family with the numbers of one checkpoint. `read.rs` reads them and `plans.rs` builds plans
//! from them.

mod layer_spec;

use device::{Activation, RopeStyle};
use weights::Naming;

use crate::descriptor::{ArchDescriptor, QkNorm};
use crate::recurrent::Multipliers;
use crate::rope::{RopeScaling, RopeSpec};
use crate::sampling::SamplingAdvice;
use crate::vision::VisionSpec;

pub use layer_spec::{ExpertSpec, LatentSpec, LayerSpec, TemperatureSpec};

/// A checkpoint's family, numbers and layers.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The family.
    pub family: &'static ArchDescriptor,
    /// The convention of the checkpoint's names.
    pub naming: Naming,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the head, one for each token of the vocabulary.
    pub n_vocab: usize,
    /// Rows of the checkpoint's embedding and head beyond `n_vocab`: placeholder tokens that no
    /// text contains.
    pub n_vocab_beyond: usize,
    /// Columns of an input row of numbers; 0: the model reads tokens.
    pub n_inputs: usize,
    /// Positions of the context that the model was trained with.
    pub n_ctx_train: usize,
    /// Rows of the position table before the row of position 0.
    pub first_position: usize,
    /// Epsilon added to the mean square in norms.
    pub norm_eps: f32,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Pairing of a head's columns under RoPE.
    pub rope_style: RopeStyle,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on each branch before it is added to the residual stream.
    pub residual_scale: f32,
    /// Factor on logits, before the softcap.
    pub logit_scale: f32,
    /// Softcap of logits: `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Softcap of attention scores: `cap * tanh(score / cap)`.
    pub attention_softcap: Option<f32>,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// True if the head is the embedding matrix.
    pub tied_head: bool,
    /// Columns of the per-layer input of each layer; 0: none.
    pub per_layer_width: usize,
    /// Residual streams (AltUp), of which each layer computes one; 1 in most models.
    pub n_streams: usize,
    /// Rank of the low-rank residual of each layer (LAuReL), if there are several streams.
    pub laurel_rank: usize,
    /// The layers of the model, followed by `n_next` layers for multi-token prediction.
    pub layers: Vec<LayerSpec>,
    /// Layers at the end of `layers` for multi-token prediction: 1 in a spec from
    /// [`Self::predicting`], otherwise 0.
    pub n_next: usize,
    /// The layer for multi-token prediction, if the checkpoint has one of a supported kind.
    pub next_layer: Option<Box<LayerSpec>>,
    /// Factors that the checkpoint stores apart from its weights.
    pub multipliers: Multipliers,
    /// The encoder whose states every decoder layer attends to. This spec also counts the encoder's
    /// parameters and unused tensors.
    pub encoder: Option<Box<ModelSpec>>,
    /// The vision tower that encodes images, if the checkpoint has one.
    pub vision: Option<VisionSpec>,
    /// Sampling parameters that the model's makers recommend.
    pub sampling: SamplingAdvice,
    /// Number of values of all tensors in use; a tied head counts once. 0 in an encoder: its
    /// decoder counts them.
    pub n_parameters: u64,
    /// Names of tensors of the file that the model does not use, in file order.
    pub unused_tensors: Vec<String>,
}

impl ModelSpec {
    /// The model with its layer for multi-token prediction, or `None` if the checkpoint has none.
    /// Plans of the result keep the states that this layer reads, and their KV cache has one more
    /// layer.
    pub fn predicting(&self) -> Option<ModelSpec> {
        let mut spec = self.clone();
        spec.layers.push(*spec.next_layer.take()?);
        spec.n_next = 1;
        Some(spec)
    }

    /// The layers of the model without those for multi-token prediction.
    pub fn main_layers(&self) -> &[LayerSpec] {
        self.layers.get(..self.n_layers()).unwrap_or_default()
    }

    /// Number of layers without those for multi-token prediction.
    pub fn n_layers(&self) -> usize {
        self.layers.len() - self.n_next
    }

    /// True if plans differ with the context length that they are built for.
    pub fn depends_on_context(&self) -> bool {
        let depends = |rope: &RopeSpec| matches!(rope.scaling, RopeScaling::LongRope { .. });
        let scaled = |l: &LayerSpec| l.temperature.is_some() || l.rope.as_ref().is_some_and(depends);
        self.layers.iter().any(scaled)
    }

    /// The longest context that does not change the result of shorter ones, in positions. It is the
    /// training context, or the original context of LongRoPE, which scales positions differently
    /// beyond it.
    pub fn default_context(&self) -> usize {
        let ropes = self.layers.iter().filter_map(|l| l.rope.as_ref());
        let original = ropes.filter_map(|rope| {
            let RopeScaling::LongRope { original, .. } = rope.scaling else { return None };
            Some(original as usize)
        });
        original.min().map_or(self.n_ctx_train, |original| original.min(self.n_ctx_train))
    }
}
