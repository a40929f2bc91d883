//! The forward passes of a model.

use std::collections::BTreeMap;

use device::{Plan, RopeStyle};
use weights::Checkpoint;

use crate::adapters::{Adapter, Adapters};
use crate::build::{End, GivenShape, Options, build, build_next};
use crate::embedding::EmbeddingSpec;
use crate::error::{Error, Result};
use crate::names::TensorRole;
use crate::rope::RopeSpec;
use crate::spec::ModelSpec;
use crate::speech::SpeechPlans;
use crate::tensors::Tensors;
use crate::vision::{BothWays, GivenRows, VisionPlans, VisionSpec};

impl ModelSpec {
    /// The forward pass from tokens, for contexts up to [`Self::n_ctx_train`].
    ///
    /// # Errors
    /// The checkpoint is not the one that this spec was read from.
    pub fn plan(&self, checkpoint: &Checkpoint) -> Result<Plan> {
        self.plan_for_context(checkpoint, self.n_ctx_train)
    }

    /// The forward pass from tokens, for contexts up to `n_ctx` positions. It differs from
    /// [`Self::plan`] only if RoPE depends on the context ([`Self::depends_on_context`]).
    ///
    /// # Errors
    /// The checkpoint is not the one that this spec was read from.
    pub fn plan_for_context(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        build(self, &mut Tensors::new(checkpoint, self.family), Options::new(n_ctx))
    }

    /// Like [`Self::plan_for_context`], with adapters. Adapter `i + 1` of a step is `adapters[i]`;
    /// 0 is no adapter.
    ///
    /// # Errors
    /// The checkpoint is not the one that this spec was read from, or an adapter does not fit the
    /// model.
    pub fn adapted_plan(&self, checkpoint: &Checkpoint, n_ctx: usize, adapters: &[Adapter]) -> Result<Plan> {
        let mut adapters = Adapters::new(adapters)?;
        let tensors = &mut Tensors::new(checkpoint, self.family);
        let options = Options { adapters: Some(&mut adapters), ..Options::new(n_ctx) };
        let plan = build(self, tensors, options)?;
        adapters.finish()?;
        Ok(plan)
    }

    /// The forward pass to one vector for each sequence: pooled hidden states, normalised if the
    /// checkpoint says so. The result has one row for each output, which pools that output's whole
    /// sequence.
    ///
    /// # Errors
    /// The checkpoint is not the one that this spec was read from.
    pub fn embedding_plan(
        &self,
        checkpoint: &Checkpoint,
        embedding: &EmbeddingSpec,
        n_ctx: usize,
    ) -> Result<Plan> {
        let options = Options { end: End::Embedding(embedding), ..Options::new(n_ctx) };
        build(self, &mut Tensors::new(checkpoint, self.family), options)
    }

    /// The forward pass of the encoder, which ends with the keys and values that this model's
    /// layers attend to.
    pub(crate) fn encoder_plan(&self, tensors: &mut Tensors<'_>) -> Result<Plan> {
        let encoder = self.encoder.as_deref().ok_or(Error::NoEncoder { family: self.family.title })?;
        let options = Options { end: End::EncoderStates(self), ..Options::new(encoder.n_ctx_train) };
        build(encoder, tensors, options)
    }

    /// The forward passes of a model with an encoder, over one KV cache. `alignment_heads` are
    /// layers and heads of cross-attention, in any order, each once.
    ///
    /// # Errors
    /// The model has no encoder or no such head, or the checkpoint is not the one that this spec
    /// was read from.
    pub fn speech_plans(
        &self,
        checkpoint: &Checkpoint,
        alignment_heads: &[(usize, usize)],
    ) -> Result<SpeechPlans> {
        let mut tensors = Tensors::new(checkpoint, self.family);
        let encoder = self.encoder_plan(&mut tensors)?;
        let decoder = build(self, &mut tensors, Options::new(self.n_ctx_train))?;
        let mut heads: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(layer, head) in alignment_heads {
            let of_layer = heads.entry(layer).or_default();
            let there = self.layers.get(layer).is_some_and(|l| head < l.n_heads);
            if !there || of_layer.contains(&head) {
                return Err(Error::BadHead { layer, head, n_layers: self.layers.len() });
            }
            of_layer.push(head);
            of_layer.sort_unstable();
        }
        let alignment: Vec<_> = heads.into_iter().collect();
        let options = Options { end: End::Alignment(&alignment), ..Options::new(self.n_ctx_train) };
        let align = build(self, &mut tensors, options)?;
        Ok(SpeechPlans { encoder, decoder, align, alignment })
    }

    /// The plans of the vision tower.
    ///
    /// # Errors
    /// The model has no tower, or the checkpoint is not the one that this spec was read from.
    pub fn vision_plans(&self, checkpoint: &Checkpoint) -> Result<VisionPlans> {
        self.need_vision()?.plans(checkpoint)
    }

    /// The forward pass from rows of embeddings ([`Self::given_rows`]) instead of tokens, for
    /// contexts up to `n_ctx` positions. It uses the KV cache of [`Self::plan_for_context`].
    ///
    /// # Errors
    /// The errors of [`Self::vision_plans`], or a family that does more with tokens than look up
    /// their embeddings.
    pub fn given_plan(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        self.given_plan_of(&mut Tensors::new(checkpoint, self.family), n_ctx)
    }

    pub(crate) fn given_plan_of(&self, tensors: &mut Tensors<'_>, n_ctx: usize) -> Result<Plan> {
        let vision = self.need_vision()?;
        let (n_heads, n_pairs) = self.given_rotations(vision)?;
        let given = GivenShape { n_taps: vision.taps.len(), n_heads, n_pairs, both_ways: vision.both_ways };
        build(self, tensors, Options { given: Some(given), ..Options::new(n_ctx) })
    }

    /// Heads and column pairs of an input row's rotations; 0 heads if positions have one axis.
    fn given_rotations(&self, vision: &VisionSpec) -> Result<(usize, usize)> {
        let refuse = |found: String, expected: &str| {
            Err(Error::BadKey { key: "vision_config".to_owned(), found, expected: expected.to_owned() })
        };
        if self.n_streams > 1 || self.family.learned_positions || self.family.embedding_norm {
            return refuse(
                format!("a vision tower before {}", self.family.title),
                "a family whose only input is embeddings",
            );
        }
        if vision.taps.len() > self.layers.len() {
            return refuse(format!("{} taps", vision.taps.len()), "no more than layers of the text");
        }
        if vision.tower.axes.is_none() {
            return Ok((0, 0));
        }
        let mut ropes = self.layers.iter().filter(|l| l.attends).filter_map(|l| Some((l.rope.as_ref()?, l)));
        let Some((first, _)) = ropes.clone().next() else { return Ok((0, 0)) };
        let halves = self.rope_style == RopeStyle::Half;
        if !halves || ropes.any(|(rope, _)| rope != first) {
            return refuse(
                "layers that rotate differently, or in neighbouring pairs".to_owned(),
                "one rotation for positions with axes",
            );
        }
        let most = self.layers.iter().filter(|l| l.attends).map(|l| l.n_heads).max();
        Ok((most.unwrap_or(0), first.n_dims / 2))
    }

    /// The layout of an input row of [`Self::given_plan`].
    ///
    /// # Errors
    /// The errors of [`Self::given_plan`].
    pub fn given_rows(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<GivenRows> {
        let vision = self.need_vision()?;
        let (n_heads, n_pairs) = self.given_rotations(vision)?;
        let mut tensors = Tensors::new(checkpoint, self.family);
        let rope = self.layers.iter().filter(|l| l.attends).find_map(|l| l.rope.as_ref());
        let rope = rope.filter(|_| n_heads > 0);
        Ok(GivenRows {
            hidden: self.hidden,
            n_taps: vision.taps.len(),
            n_heads,
            frequencies: rope.map_or(vec![], |rope| rope.frequencies(n_ctx)),
            axes: vision.axes(n_pairs),
            turn_scale: rope.map_or(1.0, RopeSpec::scale),
            embeddings: tensors.matrix(self, TensorRole::TokenEmbedding, None)?,
            embedding_scale: self.embedding_scale,
            both_ways: vision.both_ways != BothWays::Never,
            layer_input: (self.per_layer_width > 0).then_some(vision.input_token),
        })
    }

    fn need_vision(&self) -> Result<&VisionSpec> {
        self.vision.as_ref().ok_or(Error::NoVision { family: self.family.title })
    }

    /// The plan of the layer for multi-token prediction, over the KV cache of
    /// [`Self::plan_for_context`]. A row has a token and the state of the position before it, which
    /// [`Plan::kept`] of the model's own plan holds. Its position is the state's, and its logits
    /// are for the token after its own. To draft further tokens, the state that this plan keeps
    /// replaces the next state.
    ///
    /// # Errors
    /// This spec is not from [`Self::predicting`], or a tensor is missing.
    pub fn next_plan(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        if self.n_next == 0 {
            return Err(Error::NoNextLayer { family: self.family.title });
        }
        let mut tensors = Tensors::new(checkpoint, self.family);
        tensors.names_next(self.n_layers());
        // This layer has no recurrent states, but the cache must have the model's layout.
        let is_recurrent = self.layers.iter().any(|layer| layer.recurrent.is_some());
        let states = match is_recurrent {
            true => {
                let mut names = Tensors::new(checkpoint, self.family);
                names.without_values();
                build(self, &mut names, Options::new(n_ctx))?.kv.states
            }
            false => Vec::new(),
        };
        build_next(self, &mut tensors, n_ctx, states)
    }
}
