//! A family with the numbers of one checkpoint.

mod family;
mod layer_spec;
mod layers;
mod next;

use std::collections::{BTreeMap, BTreeSet};

use device::{Activation, OutputKind, Plan, RopeStyle};
use weights::{Array, Checkpoint, Naming};

use crate::adapters::{Adapter, Adapters};
use crate::build;
use crate::descriptor::{ArchDescriptor, EmbeddingScale, ExpertPlace, QkNorm};
use crate::embedding::EmbeddingSpec;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::names::{IGNORED, Key, TensorRole};
use crate::recurrent::Multipliers;
use crate::rope::{RopeScaling, RopeSpec};
use crate::sampling::SamplingAdvice;
use crate::speech::SpeechPlans;
use crate::tensors::Tensors;
use crate::vision::{BothWays, GivenRows, VisionPlans, VisionSpec};

pub(crate) use family::{family_of, select};
pub use layer_spec::{ExpertSpec, LatentSpec, LayerSpec, TemperatureSpec};

/// What a checkpoint is: its family, its numbers, its layers.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The family.
    pub family: &'static ArchDescriptor,
    /// The convention of the checkpoint's names.
    pub naming: Naming,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the head.
    pub n_vocab: usize,
    /// Rows that the checkpoint's embedding and head have after those: tokens that no text has.
    pub n_vocab_beyond: usize,
    /// Columns of a row of numbers, if that is what it reads; 0: it reads tokens.
    pub n_inputs: usize,
    /// Positions that the model was trained for.
    pub n_ctx_train: usize,
    /// Rows of the table of positions before that of the first.
    pub first_position: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// The feed-forward network's function.
    pub activation: Activation,
    /// Which columns of a head turn together.
    pub rope_style: RopeStyle,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on what a branch adds to the residual.
    pub residual_scale: f32,
    /// Factor on logits, before their cap.
    pub logit_scale: f32,
    /// `cap * tanh(logit / cap)`
    pub logit_softcap: Option<f32>,
    /// `cap * tanh(score / cap)`
    pub attention_softcap: Option<f32>,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Columns of the input that each layer has of its own; 0: none.
    pub per_layer_width: usize,
    /// Residual streams, of which a layer computes one; 1 in most models.
    pub n_streams: usize,
    /// Columns of the low-rank residual beside each layer, where there are several streams.
    pub laurel_rank: usize,
    /// The layers; after those of the model itself so many as [`Self::n_next`].
    pub layers: Vec<LayerSpec>,
    /// Layers at the end of `layers` that predict one token more and are no part of the model itself: 1 of what
    /// [`Self::predicting`] gives, otherwise 0.
    pub n_next: usize,
    /// The layer that predicts one token more, if the checkpoint has one that is known.
    pub next_layer: Option<Box<LayerSpec>>,
    /// Factors that the checkpoint keeps apart from its weights.
    pub multipliers: Multipliers,
    /// The encoder whose states every layer also attends to. Its tensors are counted here, and so are its unused ones.
    pub encoder: Option<Box<ModelSpec>>,
    /// The tower that encodes images, if it sees.
    pub vision: Option<VisionSpec>,
    /// How its makers recommend that tokens be chosen.
    pub sampling: SamplingAdvice,
    /// Values of all tensors in use; a tied head counts once. 0 of an encoder: they are counted with its decoder's.
    pub n_parameters: u64,
    /// Tensors of the file that nothing reads, in file order.
    pub unused_tensors: Vec<String>,
}

impl ModelSpec {
    /// Recognise the family, read and check every number, and find every tensor.
    ///
    /// # Errors
    /// Names the key or tensor, what was found, and what was expected.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<ModelSpec> {
        let (family, architecture) = select(checkpoint)?;
        let keys = Keys::new(&checkpoint.metadata, checkpoint.naming, family, &architecture);
        let mut tensors = Tensors::new(checkpoint, family);
        let mut spec = read(&keys, family, &mut tensors)?;
        spec.sampling = SamplingAdvice::of(checkpoint);
        check_step_limit(checkpoint)?;

        // Building the plan is what checks the tensors, by name, shape and type: a look into a file does not read it.
        tensors.without_values();
        if let Some(encoder) = family.encoder {
            let keys = Keys::new(&checkpoint.metadata, checkpoint.naming, encoder, &architecture);
            tensors.turn_to(encoder);
            let encoder = read(&keys, encoder, &mut tensors)?;
            if encoder.hidden != spec.hidden {
                let expected = format!("the decoder's hidden size, {}", spec.hidden);
                return Err(keys.bad(Key::Hidden, encoder.hidden, expected));
            }
            spec.encoder = Some(Box::new(encoder));
            spec.encoder_plan(&mut tensors)?;
        }
        build::build(&spec, &mut tensors, spec.n_ctx_train)?;
        spec.n_parameters = tensors.n_parameters();
        let n_pairs = spec.layers.iter().find_map(|l| l.rope.as_ref()).map_or(0, |rope| rope.n_dims / 2);
        let seen = VisionSpec::from_checkpoint(checkpoint, spec.hidden, n_pairs)?;
        let (vision, of_vision) = seen.map_or((None, BTreeSet::new()), |(vision, used)| (Some(vision), used));
        spec.vision = vision;
        if spec.vision.is_some() {
            spec.given_plan_of(&mut tensors, spec.n_ctx_train)?;
        }
        let size =
            |name: &String| checkpoint.tensor(name).map_or(0, |t| t.n_rows() as u64 * t.n_cols() as u64);
        spec.n_parameters += of_vision.iter().map(size).sum::<u64>();
        // Some files have one without saying so.
        let least = usize::from(tensors.names_next(spec.n_layers()));
        let n_next = keys.count(Key::NextLayers)?.unwrap_or(0).max(least);
        spec.next_layer = next::read(&spec, &tensors, n_next);
        let unused = |name: &&String| {
            let ignored = IGNORED.iter().any(|part| name.contains(part));
            !tensors.is_used(name)
                && !of_vision.contains(*name)
                && !ignored
                && !next::is_beyond(name, spec.n_layers(), n_next)
        };
        spec.unused_tensors = checkpoint.tensors.iter().map(|t| &t.name).filter(unused).cloned().collect();
        Ok(spec)
    }

    /// The forward pass, for contexts up to [`Self::n_ctx_train`].
    ///
    /// # Errors
    /// The checkpoint is not the one that this was read from.
    pub fn plan(&self, checkpoint: &Checkpoint) -> Result<Plan> {
        self.plan_for_context(checkpoint, self.n_ctx_train)
    }

    /// The forward pass for contexts up to `n_ctx` positions. Differs from [`Self::plan`] only where the rotation depends on
    /// the context ([`Self::depends_on_context`]).
    ///
    /// # Errors
    /// The checkpoint is not the one that this was read from.
    pub fn plan_for_context(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        build::build(self, &mut Tensors::new(checkpoint, self.family), n_ctx)
    }

    /// The same with adapters beside the matrices that they change: adapter `i + 1` of a step is `adapters[i]`.
    ///
    /// # Errors
    /// As there, or an adapter does not fit the model.
    pub fn adapted_plan(&self, checkpoint: &Checkpoint, n_ctx: usize, adapters: &[Adapter]) -> Result<Plan> {
        let mut adapters = Adapters::new(adapters)?;
        let tensors = &mut Tensors::new(checkpoint, self.family);
        let plan = build::build_adapted(self, tensors, n_ctx, build::End::Own, Some(&mut adapters))?;
        adapters.finish()?;
        Ok(plan)
    }

    /// The forward pass to one vector for each sequence: hidden states, pooled and, if the checkpoint says so, of length 1.
    /// For contexts up to `n_ctx` positions; the plan's result has a row for each output, of its whole sequence.
    ///
    /// # Errors
    /// The checkpoint is not the one that this was read from.
    pub fn embedding_plan(
        &self,
        checkpoint: &Checkpoint,
        embedding: &EmbeddingSpec,
        n_ctx: usize,
    ) -> Result<Plan> {
        let end = build::End::Embedding(embedding);
        build::build_to(self, &mut Tensors::new(checkpoint, self.family), n_ctx, end)
    }

    /// The forward pass of the encoder, if there is one, to the encoder states of this model's layers.
    fn encoder_plan(&self, tensors: &mut Tensors<'_>) -> Result<Plan> {
        let encoder = self.encoder.as_deref().ok_or(Error::NoEncoder { family: self.family.title })?;
        build::build_to(encoder, tensors, encoder.n_ctx_train, build::End::EncoderStates(self))
    }

    /// The forward passes of a model with an encoder, over one cache. `alignment_heads` are layers and heads of
    /// cross-attention, in any order, each once.
    ///
    /// # Errors
    /// There is no encoder, or no such head; or the checkpoint is not the one that this was read from.
    pub fn speech_plans(
        &self,
        checkpoint: &Checkpoint,
        alignment_heads: &[(usize, usize)],
    ) -> Result<SpeechPlans> {
        let mut tensors = Tensors::new(checkpoint, self.family);
        let encoder = self.encoder_plan(&mut tensors)?;
        let decoder = build::build(self, &mut tensors, self.n_ctx_train)?;
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
        let align = build::build_to(self, &mut tensors, self.n_ctx_train, build::End::Alignment(&alignment))?;
        Ok(SpeechPlans { encoder, decoder, align, alignment })
    }

    /// The plans of the tower.
    ///
    /// # Errors
    /// It does not see, or the checkpoint is not the one that this was read from.
    pub fn vision_plans(&self, checkpoint: &Checkpoint) -> Result<VisionPlans> {
        self.need_vision()?.plans(checkpoint)
    }

    /// The forward pass of rows that are given ([`Self::given_rows`]) instead of tokens, for contexts up to `n_ctx` positions, over the
    /// cache of [`Self::plan_for_context`].
    ///
    /// # Errors
    /// As [`Self::vision_plans`]; or the family does more with tokens than look up their embeddings.
    pub fn given_plan(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        self.given_plan_of(&mut Tensors::new(checkpoint, self.family), n_ctx)
    }

    fn given_plan_of(&self, tensors: &mut Tensors<'_>, n_ctx: usize) -> Result<Plan> {
        let vision = self.need_vision()?;
        let (n_heads, n_pairs) = self.given_turns(vision)?;
        let given =
            build::GivenShape { n_taps: vision.taps.len(), n_heads, n_pairs, both_ways: vision.both_ways };
        build::build_given(self, tensors, n_ctx, given)
    }

    /// Heads and pairs of a row's turns; 0 heads where positions have one axis.
    fn given_turns(&self, vision: &VisionSpec) -> Result<(usize, usize)> {
        let refuse = |found: String, expected: &str| {
            Err(Error::BadKey { key: "vision_config".to_owned(), found, expected: expected.to_owned() })
        };
        if self.n_streams > 1 || self.family.learned_positions || self.family.embedding_norm {
            return refuse(
                format!("a tower before {}", self.family.title),
                "a family that reads embeddings alone",
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

    /// What a row of the input of [`Self::given_plan`] is.
    ///
    /// # Errors
    /// As there.
    pub fn given_rows(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<GivenRows> {
        let vision = self.need_vision()?;
        let (n_heads, n_pairs) = self.given_turns(vision)?;
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

    /// Whether the plan differs with the context that it is made for.
    pub fn depends_on_context(&self) -> bool {
        let depends = |rope: &RopeSpec| matches!(rope.scaling, RopeScaling::LongRope { .. });
        let scaled = |l: &LayerSpec| l.temperature.is_some() || l.rope.as_ref().is_some_and(depends);
        self.layers.iter().any(scaled)
    }

    /// The longest context that costs shorter texts nothing: what the model was trained for, or, where positions are scaled
    /// differently for contexts beyond the original one, that.
    pub fn default_context(&self) -> usize {
        let ropes = self.layers.iter().filter_map(|l| l.rope.as_ref());
        let original = ropes.filter_map(|rope| match rope.scaling {
            RopeScaling::LongRope { original, .. } => Some(original as usize),
            _ => None,
        });
        original.min().map_or(self.n_ctx_train, |original| original.min(self.n_ctx_train))
    }
}

/// Steps of a scan that are clamped are not built. Every published checkpoint says so, and leaves them as they are.
fn check_step_limit(checkpoint: &Checkpoint) -> Result<()> {
    let key = "time_step_limit";
    let Some(Array::Float(limit)) = checkpoint.metadata.array(key) else { return Ok(()) };
    match limit[..] {
        [low, high] if low <= 0.0 && high == f32::INFINITY => Ok(()),
        _ => Err(Error::BadKey {
            key: key.to_owned(),
            found: format!("{limit:?}"),
            expected: "0 and infinity: clamped steps are not built".to_owned(),
        }),
    }
}

/// Rows of the table of positions that no text's position has.
pub(crate) fn positions_before(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<usize> {
    match family.positions_after_padding && keys.naming() == Naming::HuggingFace {
        true => Ok(keys.count(Key::Padding)?.unwrap_or(1) + 1),
        false => Ok(0),
    }
}

/// The numbers, checked. Of the tensors, only those that numbers depend on are looked at.
pub(crate) fn read(
    keys: &Keys<'_>,
    family: &'static ArchDescriptor,
    tensors: &mut Tensors<'_>,
) -> Result<ModelSpec> {
    refuse_what_is_not_built(keys, family)?;
    let n_layers = match (keys.naming(), keys.count(Key::NextLayers)?) {
        // GGUF files count these layers.
        (Naming::Gguf, Some(next)) => {
            let all = need(keys, tensors, Key::Layers)?;
            let left = all.checked_sub(next).filter(|n| *n > 0);
            left.ok_or_else(|| keys.bad(Key::NextLayers, next, format!("fewer than the {all} layers")))?
        }
        _ => need(keys, tensors, Key::Layers)?,
    };
    let hidden = need(keys, tensors, Key::Hidden)?;
    let n_ctx_train = match positions_before(keys, family)? {
        0 => need(keys, tensors, Key::Context)?,
        n => {
            let all = need(keys, tensors, Key::Context)?;
            let left = all.checked_sub(n).filter(|left| *left > 0);
            left.ok_or_else(|| {
                keys.bad(Key::Context, all, format!("more than the {n} before the first text's"))
            })?
        }
    };
    let (n_vocab, n_inputs) = match family.convolutions {
        [] => (need(keys, tensors, Key::Vocab)?, 0),
        _ => (0, need(keys, tensors, Key::Inputs)?),
    };
    let activation = match keys.word(Key::Activation)? {
        None => family.activation,
        Some("silu" | "swish") => Activation::Silu,
        // The name of such a network as a whole.
        Some("swiglu") if family.gated => Activation::Silu,
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Activation::GeluTanh,
        Some("gelu") => Activation::GeluErf,
        Some("relu") => Activation::Relu,
        Some("relu2") => Activation::ReluSquared,
        Some(other) => {
            return Err(keys.bad(
                Key::Activation,
                format!("{other:?}"),
                "silu, gelu, gelu_pytorch_tanh, relu or relu2",
            ));
        }
    };
    // Of a text model within another, what stands outside counts in some versions of transformers, what stands inside in others.
    let tied_head = match (family.output, keys.agreed_flag(Key::TiedHead)?) {
        (OutputKind::Logits, Some(tied)) => tied,
        (OutputKind::Logits, None) => tensors.is_head_tied(),
        (OutputKind::Hidden, _) => false,
    };
    let embedding_scale = match (keys.real(Key::EmbeddingScale)?, family.embedding_scale) {
        (Some(scale), _) => scale,
        (None, EmbeddingScale::SqrtHidden) => (hidden as f64).sqrt(),
        (None, EmbeddingScale::One) => 1.0,
    };
    let real = |key: Key| Ok::<_, Error>(keys.real(key)?.map(|v| v as f32));
    let per_layer_width = keys.count(Key::PerLayerWidth)?.unwrap_or(0);
    let n_streams = keys.count(Key::Streams)?.unwrap_or(1);
    if n_streams > 1 && per_layer_width == 0 {
        return Err(keys.bad(Key::PerLayerWidth, 0, "at least 1 where there are several residual streams"));
    }
    // Places for images and sounds come after the tokens that layers have inputs for.
    let n_vocab_beyond = match keys.count(Key::PerLayerVocab)?.filter(|_| per_layer_width > 0) {
        Some(n) => n_vocab.saturating_sub(n),
        None => 0,
    };
    Ok(ModelSpec {
        family,
        naming: keys.naming(),
        hidden,
        n_vocab: n_vocab - n_vocab_beyond,
        n_vocab_beyond,
        n_inputs,
        n_ctx_train,
        first_position: positions_before(keys, family)?,
        norm_eps: real(Key::NormEps)?.ok_or_else(|| keys.missing(Key::NormEps))?,
        activation,
        rope_style: family.rope_style.of(keys.naming()),
        embedding_scale: embedding_scale as f32,
        residual_scale: real(Key::ResidualScale)?.unwrap_or(1.0),
        logit_scale: keys
            .real(Key::LogitFactor)?
            .map_or(1.0, |factor| (if family.logits_multiplied { factor } else { 1.0 / factor }) as f32)
            * real(Key::LogitMultiplier)?.unwrap_or(1.0),
        logit_softcap: real(Key::LogitSoftcap)?,
        attention_softcap: real(Key::AttentionSoftcap)?,
        qk_norm: qk_norm(keys, family, tensors)?,
        tied_head,
        per_layer_width,
        n_streams,
        laurel_rank: if n_streams > 1 { need(keys, tensors, Key::LaurelRank)? } else { 0 },
        layers: layers::read(keys, family, tensors, n_layers, hidden, n_ctx_train)?,
        n_next: 0,
        next_layer: None,
        multipliers: Multipliers::read(keys)?,
        encoder: None,
        vision: None,
        sampling: SamplingAdvice::default(),
        n_parameters: 0,
        unused_tensors: Vec::new(),
    })
}

/// The norms of queries and keys that this checkpoint has.
fn qk_norm(keys: &Keys<'_>, family: &ArchDescriptor, tensors: &Tensors<'_>) -> Result<QkNorm> {
    let plain = family.qk_norm == QkNorm::PlainWhereTurning;
    let there = match (family.qk_norm_may_lack, keys.flag(Key::QkNorm)?) {
        (false, _) => true,
        (true, Some(said)) => said,
        // Without weights, no tensor tells.
        (true, None) if plain => match family.qk_norm_lacks_with_experts {
            Some(n) if keys.naming() == Naming::Gguf => keys.count(Key::Experts)? != Some(n),
            _ => true,
        },
        (true, None) => tensors.has_in(TensorRole::AttnQNorm, 0),
    };
    Ok(if there { family.qk_norm } else { QkNorm::None })
}

/// A number of the metadata, or, where such files never say it there, of the shapes of tensors.
fn need(keys: &Keys<'_>, tensors: &Tensors<'_>, key: Key) -> Result<usize> {
    let measured = if keys.is_said(key) { None } else { tensors.measure(key)? };
    measured.map_or_else(|| keys.need_count(key), Ok)
}

/// Better a clear word than a model that runs and answers nonsense.
fn refuse_what_is_not_built(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<()> {
    let dense = family.experts == ExpertPlace::Nowhere;
    if let Some(n) = keys.count(Key::Experts)?.filter(|n| dense && *n > 0) {
        return Err(keys.bad(Key::Experts, format!("{n} experts"), "a dense model of this family"));
    }
    let rotates = family.recurrent.is_some();
    let built = |kind: &str| kind == "absolute" || rotates && (kind == "nope" || kind == "rope");
    if keys.word(Key::PositionKind)?.is_some_and(|kind| !built(kind)) {
        let found = keys.word(Key::PositionKind)?.unwrap_or_default();
        return Err(keys.bad(Key::PositionKind, format!("{found:?}"), "absolute"));
    }
    keys.check_settings()?;
    keys.refuse_scaled_queries()?;
    // Images may be looked at as a whole; text never is.
    let ahead = match keys.word(Key::Bidirectional) {
        Ok(word) => word.is_some_and(|word| word != "vision"),
        Err(_) => keys.flag(Key::Bidirectional)? == Some(true),
    };
    if ahead && !family.bidirectional {
        return Err(keys.bad(Key::Bidirectional, "true", "a model whose attention is causal"));
    }
    Ok(())
}
