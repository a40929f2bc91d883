//! A family with the numbers of one checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use device::{Activation, OutputKind, Plan, RopeStyle, RouterGroups, RouterScores};
use weights::{Array, Checkpoint, Naming};

use crate::adapters::{Adapter, Adapters};
use crate::build;
use crate::descriptor::{
    ArchDescriptor, AttentionScale, EmbeddingScale, ExpertPlace, RecurrentPlace, Temperature, WHISPER_CPP,
    WindowPattern,
};
use crate::embedding::EmbeddingSpec;
use crate::error::{Error, Result};
use crate::families::FAMILIES;
use crate::keys::{Choice, Keys};
use crate::names::{IGNORED, Key, TEXT_CONFIG, TensorRole, WINDOW_ROPE_OBJECTS};
use crate::recurrent::{Mixers, Multipliers, RecurrentSpec};
use crate::rope::{RopeScaling, RopeSpec, RopeTensors};
use crate::speech::SpeechPlans;
use crate::tensors::Tensors;
use crate::vision::{GivenRows, VisionPlans, VisionSpec};

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
    /// The head is the embedding.
    pub tied_head: bool,
    /// Columns of the input that each layer has of its own; 0: none.
    pub per_layer_width: usize,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// Factors that the checkpoint keeps apart from its weights.
    pub multipliers: Multipliers,
    /// The encoder whose states every layer also attends to. Its tensors are counted here, and so are its unused ones.
    pub encoder: Option<Box<ModelSpec>>,
    /// The tower that encodes images, if it sees.
    pub vision: Option<VisionSpec>,
    /// Values of all tensors in use; a tied head counts once. 0 of an encoder: they are counted with its decoder's.
    pub n_parameters: u64,
    /// Tensors of the file that nothing reads, in file order.
    pub unused_tensors: Vec<String>,
}

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
    };
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
        let n_next = keys.count(Key::NextLayers)?.unwrap_or(0);
        let unused = |name: &&String| {
            let ignored = IGNORED.iter().any(|part| name.contains(part));
            !tensors.is_used(name)
                && !of_vision.contains(*name)
                && !ignored
                && !is_beyond(name, spec.n_layers(), n_next)
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
        let given = build::GivenShape {
            n_taps: vision.taps.len(),
            n_heads,
            n_pairs,
            both_ways: vision.tower.both_ways,
        };
        build::build_given(self, tensors, n_ctx, given)
    }

    /// Heads and pairs of a row's turns; 0 heads where positions have one axis.
    fn given_turns(&self, vision: &VisionSpec) -> Result<(usize, usize)> {
        let refuse = |found: String, expected: &str| {
            Err(Error::BadKey { key: "vision_config".to_owned(), found, expected: expected.to_owned() })
        };
        if self.per_layer_width > 0 || self.family.learned_positions || self.family.embedding_norm {
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
            both_ways: vision.tower.both_ways,
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

    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
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

/// The family that answers to the name in the file.
pub(crate) fn family_of(checkpoint: &Checkpoint) -> Option<&'static ArchDescriptor> {
    Some(select(checkpoint).ok()?.0)
}

/// The family that answers to the name in the file, and that name.
pub(crate) fn select(checkpoint: &Checkpoint) -> Result<(&'static ArchDescriptor, String)> {
    let metadata = &checkpoint.metadata;
    let text_model_type = format!("{TEXT_CONFIG}model_type");
    let keys: &[&str] = match checkpoint.naming {
        Naming::Gguf => &["general.architecture"],
        Naming::HuggingFace | Naming::Base => &[&text_model_type, "model_type"],
        Naming::CTranslate2 => &["ctranslate2.spec"],
        Naming::WhisperCpp => &[],
    };
    let mut found: Vec<(&str, String)> =
        keys.iter().filter_map(|k| Some((*k, metadata.str(k)?.to_owned()))).collect();
    if checkpoint.naming == Naming::WhisperCpp {
        found.push(("format", WHISPER_CPP.to_owned()));
    }
    if checkpoint.naming == Naming::HuggingFace {
        // The class says it too: `SomethingForCausalLM` is of the type `something`.
        let class = metadata.array("architectures").and_then(|a| std::str::from_utf8(a.str_bytes(0)?).ok());
        let class = class.and_then(|c| c.split_once("For")).map(|(c, _)| c.to_ascii_lowercase());
        found.extend(class.map(|class| ("architectures", class)));
    }
    let family = |name: &str| FAMILIES.iter().find(|f| f.selectors(checkpoint.naming).contains(&name));
    if let Some((name, family)) = found.iter().find_map(|(_, name)| Some((name, family(name)?))) {
        let keys = Keys::new(metadata, checkpoint.naming, family, name);
        if let (Some(both_ways), Ok(Some(true))) = (family.both_ways, keys.flag(Key::Bidirectional)) {
            return Ok((both_ways, name.clone()));
        }
        return Ok((family, name.clone()));
    }
    let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.selectors(checkpoint.naming)).copied().collect();
    let (key, found) = match found.first() {
        Some((key, name)) => ((*key).to_owned(), format!("{:?}", name.chars().take(60).collect::<String>())),
        None => (keys.join(" or "), "nothing".to_owned()),
    };
    Err(Error::UnknownFamily { key, found, known: known.join(", ") })
}

/// Rows of the table of positions that no text's position has.
pub(crate) fn positions_before(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<usize> {
    match family.positions_after_padding && keys.naming() == Naming::HuggingFace {
        true => Ok(keys.count(Key::Padding)?.unwrap_or(1) + 1),
        false => Ok(0),
    }
}

/// Whether a tensor is of one of the layers after the last, which predict further tokens.
fn is_beyond(name: &str, n_layers: usize, n_next: usize) -> bool {
    let of = |l: usize| [format!("blk.{l}."), format!("layers.{l}.")].iter().any(|part| name.contains(part));
    (n_layers..n_layers + n_next).any(of)
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
    let tied_head = match (family.output, keys.flag(Key::TiedHead)?) {
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
    Ok(ModelSpec {
        family,
        naming: keys.naming(),
        hidden,
        n_vocab,
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
        tied_head,
        per_layer_width: keys.count(Key::PerLayerWidth)?.unwrap_or(0),
        layers: layers(keys, family, tensors, n_layers, hidden, n_ctx_train)?,
        multipliers: Multipliers::read(keys)?,
        encoder: None,
        vision: None,
        n_parameters: 0,
        unused_tensors: Vec::new(),
    })
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

fn layers(
    keys: &Keys<'_>,
    family: &'static ArchDescriptor,
    tensors: &mut Tensors<'_>,
    n_layers: usize,
    hidden: usize,
    n_ctx_train: usize,
) -> Result<Vec<LayerSpec>> {
    let heads = keys.counts(Key::Heads, n_layers)?.ok_or_else(|| keys.missing(Key::Heads))?;
    let kv_heads = keys.counts(Key::KvHeads, n_layers)?.unwrap_or_else(|| heads.clone());
    let ffn = match (keys.counts(Key::Ffn, n_layers)?, family.ffn_per_hidden) {
        (Some(ffn), _) => ffn,
        (None, Some(times)) => vec![hidden * times; n_layers],
        (None, None) => vec![need(keys, tensors, Key::Ffn)?; n_layers],
    };
    let experts = experts(keys, family, n_layers)?;
    let windows = windows(keys, family, n_layers)?;
    let rotates = rotates(keys, family, n_layers)?;
    let recurrent = RecurrentSpec::read(keys, family, hidden)?;
    let multipliers = Multipliers::read(keys)?;
    let kv_from = kv_from(keys, &windows)?;
    let wide_shared_kv = keys.flag(Key::WideSharedKv)? == Some(true);
    let given_scale = match (keys.real(Key::AttentionScale)?, keys.real(Key::QueryScalar)?) {
        (Some(scale), _) => Some(scale),
        (None, Some(scalar)) => Some(1.0 / scalar.sqrt()),
        (None, None) => None,
    };
    let magnitude = if family.latent { latent_magnitude(keys)? } else { 1.0 };
    // Half of the largest head's columns is the most that can be.
    let mut factors = |role| tensors.small_vector(role, 8192);
    let ready_made = RopeTensors {
        divisors: factors(TensorRole::RopeDivisors)?,
        short: factors(TensorRole::RopeShort)?,
        long: factors(TensorRole::RopeLong)?,
    };

    let mut layers = Vec::with_capacity(n_layers);
    for (l, ((n_heads, n_kv_heads), mut ffn)) in heads.into_iter().zip(kv_heads).zip(ffn).enumerate() {
        let window = windows.get(l).copied().flatten();
        let mixers = Mixers::of(family, tensors, l);
        let kv_from = kv_from.get(l).copied().flatten();
        let experts = experts.get(l).copied().flatten();
        let one_mixer = family.recurrent.is_some_and(|r| r.place == RecurrentPlace::OneMixer);
        let experts = experts.filter(|_| !one_mixer || tensors.has_in(TensorRole::Router, l));
        let mine = keys.of_layer(l, window.is_some());
        let full = |key: Key| if window.is_none() { mine.count(key) } else { Ok(None) };
        let keys_are_values = family.keys_as_values
            && window.is_none()
            && kv_from.is_none()
            && !tensors.has_in(TensorRole::AttnV, l)
            && (keys.naming() == Naming::Gguf || keys.flag(Key::KeysAreValues)? == Some(true));
        let head_dim = match mine.count(Key::LayerHeadDim)? {
            Some(head_dim) => Some(head_dim),
            None => full(Key::FullHeadDim)?.map_or_else(|| mine.count(Key::HeadDim), |d| Ok(Some(d)))?,
        };
        let value_dim = mine.count(Key::ValueDim)?;
        let n_kv_heads = match mine.count(Key::LayerKvHeads)? {
            Some(n) => n,
            None if keys_are_values => full(Key::FullKvHeads)?.unwrap_or(n_kv_heads),
            None => n_kv_heads,
        };
        match (experts, family.experts) {
            (Some(_), ExpertPlace::Instead) => ffn = 0,
            (Some(experts), ExpertPlace::WithPlainShared) => {
                let n_shared = keys.count(Key::SharedExperts)?.unwrap_or(0);
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(n_shared * experts.ffn);
            }
            (Some(_), ExpertPlace::WithShared) => ffn = keys.need_count(Key::SharedFfn)?,
            (Some(_), ExpertPlace::BesideShared) => ffn = keys.count(Key::SharedFfn)?.unwrap_or(0),
            // Where no layer has experts, all have what would be shared.
            (None, ExpertPlace::BesideShared) if !one_mixer => {
                ffn = keys.count(Key::SharedFfn)?.unwrap_or(ffn);
            }
            _ if wide_shared_kv && kv_from.is_some() => ffn *= 2,
            _ => {}
        }
        // A layer of one mixer is a feed-forward network only if it is nothing else.
        if one_mixer && (mixers.attends || mixers.recurs) {
            ffn = 0;
        } else if ffn == 0 && experts.is_none() && family.recurrent.is_none() {
            return Err(keys.bad(Key::Ffn, 0, format!("at least 1 (layer {l})")));
        }
        let (n_heads, n_kv_heads) = if mixers.attends { (n_heads, n_kv_heads) } else { (1, 1) };
        for (key, n) in [(Key::Heads, n_heads), (Key::KvHeads, n_kv_heads)] {
            if n == 0 {
                return Err(keys.bad(key, 0, format!("at least 1 (layer {l})")));
            }
        }
        if n_heads % n_kv_heads != 0 {
            let expected = format!("a divisor of the {n_heads} query heads (layer {l})");
            return Err(keys.bad(Key::KvHeads, n_kv_heads, expected));
        }
        let latent = if family.latent { Some(latent(keys)?) } else { None };
        let (n_kv_heads, head_dim, value_dim) = match latent {
            Some(latent) => (1, Some(latent.rank + latent.turning), None),
            None => (n_kv_heads, head_dim, value_dim),
        };
        let head_dim = match head_dim {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
            None => {
                return Err(keys.bad(Key::Heads, n_heads, format!("a divisor of the hidden size {hidden}")));
            }
        };
        if let Some(value_dim) = value_dim.filter(|v| *v != head_dim) {
            return Err(keys.bad(Key::ValueDim, value_dim, format!("the same as of a key, {head_dim}")));
        }
        let rope = match rotates.get(l) {
            Some(false) => None,
            _ if family.rope_in_windows_only && window.is_none() && windows.iter().any(Option::is_some) => {
                None
            }
            _ if latent.is_some() => {
                let n = latent.map_or(0, |latent| latent.turning);
                Some(RopeSpec::read(keys, n, n_ctx_train, &ready_made)?)
            }
            _ if window.is_some() => Some(window_rope(&mine, family, head_dim, n_ctx_train, &ready_made)?),
            _ => Some(RopeSpec::read(keys, head_dim, n_ctx_train, &ready_made)?),
        };
        let attention_scale = given_scale.unwrap_or_else(|| match family.attention_scale {
            AttentionScale::HiddenPerHead { n_layers: n } if n == n_layers => {
                (n_heads as f64 / hidden as f64).sqrt()
            }
            AttentionScale::One => 1.0,
            _ => match latent {
                Some(latent) => magnitude * magnitude / ((latent.plain + latent.turning) as f64).sqrt(),
                None => 1.0 / (head_dim as f64).sqrt(),
            },
        }) as f32
            * multipliers.attention_in.powi(2)
            * multipliers.key;
        let temperature = temperature(keys, family, rope.is_some())?;
        layers.push(LayerSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            ffn,
            experts,
            kv_from,
            keys_are_values,
            latent,
            window,
            rope,
            temperature,
            attention_scale,
            attends: mixers.attends,
            recurrent: recurrent.filter(|_| mixers.recurs),
        });
    }
    Ok(layers)
}

/// The experts of each layer.
fn experts(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<Option<ExpertSpec>>> {
    let n = keys.count(Key::Experts)?.unwrap_or(0);
    if n == 0 || family.experts == ExpertPlace::Nowhere || keys.flag(Key::ExpertsOn)? == Some(false) {
        return Ok(vec![None; n_layers]);
    }
    let n_used = keys.need_count(Key::ExpertsUsed)?;
    if n_used > n {
        return Err(keys.bad(Key::ExpertsUsed, n_used, format!("at most all of the {n} experts")));
    }
    let spec = ExpertSpec {
        n,
        n_used,
        ffn: match keys.count(Key::ExpertFfn)? {
            Some(ffn) => ffn,
            // Where all layers have experts, the one number is theirs.
            None => keys.count(Key::Ffn)?.ok_or_else(|| keys.missing(Key::ExpertFfn))?,
        },
        normalise: keys.flag(Key::ExpertsNormalised)?.unwrap_or(false),
        factor: keys.real(Key::ExpertFactor)?.unwrap_or(1.0) as f32,
        scores: router_scores(keys, family)?,
        groups: None,
        clamp: match family.gate_clamped {
            true => Some((
                keys.real(Key::GateAlpha)?.unwrap_or(1.702) as f32,
                keys.real(Key::GateLimit)?.unwrap_or(7.0) as f32,
            )),
            false => None,
        },
        latent: keys.count(Key::LatentWidth)?,
    };
    if family.experts_weigh_input && n_used > 1 {
        return Err(keys.bad(Key::ExpertsUsed, n_used, "1: experts whose weight is on their input"));
    }
    let spec = ExpertSpec { groups: router_groups(keys, &spec)?, ..spec };
    let every = keys.count(Key::ExpertsEvery)?.unwrap_or(1).max(1);
    let dense = keys.reals(Key::DenseLayers)?.unwrap_or_default();
    let n_dense = keys.count(Key::FirstDenseLayers)?.unwrap_or(0);
    let listed = keys.reals(Key::ExpertLayers)?;
    let has = |l: usize| match &listed {
        Some(listed) => listed.contains(&(l as f32)),
        None => (l + 1).is_multiple_of(every) && !dense.contains(&(l as f32)) && l >= n_dense,
    };
    Ok((0..n_layers).map(|l| has(l).then_some(spec)).collect())
}

/// What a router makes of its logits.
fn router_scores(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<RouterScores> {
    let expected = "softmax or sigmoid (in GGUF 1 to 3)";
    if keys.naming() == Naming::Gguf {
        return match keys.count(Key::ExpertScores)? {
            None | Some(0) => Ok(family.router_scores),
            // 3: a softmax of those chosen, which is one over all, normalised.
            Some(1 | 3) => Ok(RouterScores::Softmax),
            Some(2) => Ok(RouterScores::Sigmoid),
            Some(other) => Err(keys.bad(Key::ExpertScores, other, expected)),
        };
    }
    match keys.word(Key::ExpertScores)? {
        None => Ok(family.router_scores),
        Some("softmax") => Ok(RouterScores::Softmax),
        Some("sigmoid") => Ok(RouterScores::Sigmoid),
        Some(other) => Err(keys.bad(Key::ExpertScores, format!("{other:?}"), expected)),
    }
}

/// The groups of experts that are chosen first, if there are several. They are compared by their best expert, where scores are
/// sigmoids by their best two.
fn router_groups(keys: &Keys<'_>, experts: &ExpertSpec) -> Result<Option<RouterGroups>> {
    let Some(n) = keys.count(Key::ExpertGroups)?.filter(|n| *n > 1) else { return Ok(None) };
    let n_used = keys.count(Key::ExpertGroupsUsed)?.filter(|n| *n > 0).unwrap_or(n);
    let n_best = if experts.scores == RouterScores::Sigmoid { 2 } else { 1 };
    let of_group = experts.n / n;
    if !experts.n.is_multiple_of(n) || n_used > n || n_best > of_group || experts.n_used > of_group * n_used {
        let expected = format!("a divisor of the {} experts, with enough in those used", experts.n);
        return Err(keys.bad(Key::ExpertGroups, format!("{n}, {n_used} of them used"), expected));
    }
    Ok(Some(RouterGroups { n, n_used, n_best }))
}

/// The latent of a layer's keys and values.
fn latent(keys: &Keys<'_>) -> Result<LatentSpec> {
    let turning = keys.need_count(Key::TurningKeyDim)?;
    let plain = match (keys.naming(), keys.count(Key::LatentKeyDim)?) {
        (Naming::Gguf, Some(all)) => all.checked_sub(turning).filter(|n| *n > 0).ok_or_else(|| {
            keys.bad(Key::LatentKeyDim, all, format!("more than the {turning} that rotate"))
        })?,
        _ => keys.need_count(Key::PlainKeyDim)?,
    };
    Ok(LatentSpec {
        rank: keys.need_count(Key::LatentRank)?,
        query_rank: keys.count(Key::QueryRank)?.filter(|n| *n > 0),
        plain,
        turning,
        value: keys.need_count(Key::LatentValueDim)?,
    })
}

/// The factor on queries and on keys by which YaRN sharpens the softmax of latent attention.
fn latent_magnitude(keys: &Keys<'_>) -> Result<f64> {
    // GGUF files hold a tenth of it.
    let all = match keys.naming() {
        Naming::Gguf => keys.real(Key::RopeLogMultiplier)?.map(|m| m * 10.0),
        _ => keys.real(Key::RopeMscaleAll)?,
    };
    let factor = keys.real(Key::RopeFactor)?.unwrap_or(1.0);
    Ok(match all {
        Some(all) if factor > 1.0 => 0.1 * all * factor.ln() + 1.0,
        _ => 1.0,
    })
}

/// The layer whose keys and values each layer reads, if not its own: the last ones read those of the last before them that
/// sees as far.
fn kv_from(keys: &Keys<'_>, windows: &[Option<usize>]) -> Result<Vec<Option<usize>>> {
    let n_layers = windows.len();
    let n_shared = keys.count(Key::SharedKvLayers)?.unwrap_or(0);
    if n_shared >= n_layers {
        return Err(keys.bad(Key::SharedKvLayers, n_shared, format!("fewer than the {n_layers} layers")));
    }
    let (own, shared) = windows.split_at(n_layers - n_shared);
    let source = |window: &Option<usize>| {
        own.iter().rposition(|w| w == window).map(Some).ok_or_else(|| {
            keys.bad(Key::SharedKvLayers, n_shared, format!("a layer before them with the window {window:?}"))
        })
    };
    let shared = shared.iter().map(source).collect::<Result<Vec<_>>>()?;
    Ok(own.iter().map(|_| None).chain(shared).collect())
}

/// The window of each layer.
fn windows(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<Option<usize>>> {
    // 0 is how some converters write that there is none.
    let key = if family.chunked { Key::Chunk } else { Key::Window };
    let window = keys.count(key)?.filter(|w| *w > 0);
    let window = if keys.flag(Key::WindowUsed)? == Some(false) { None } else { window };

    let word = |choice: Choice<'_>| match choice {
        Choice::Word("full_attention") => Some(false),
        Choice::Word("sliding_attention" | "chunked_attention") => Some(true),
        // What a layer is, its tensors say.
        Choice::Word(_) if family.recurrent.is_some() => Some(false),
        _ => None,
    };
    if let Some(types) =
        keys.choices(Key::LayerTypes, n_layers, "full_attention or sliding_attention", word)?
    {
        if window.is_none() && types.contains(&true) {
            return Err(keys.missing(Key::Window));
        }
        return Ok(types.into_iter().map(|slides| window.filter(|_| slides)).collect());
    }
    let Some(window) = window else { return Ok(vec![None; n_layers]) };

    let flag = |choice: Choice<'_>| match choice {
        Choice::Flag(slides) => Some(slides),
        Choice::Word(_) => None,
    };
    if let Some(slides) = keys.choices(Key::WindowEvery, n_layers, "truth values", flag)? {
        return Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect());
    }
    let first = usize::from(!matches!(family.windows, WindowPattern::FullFirst(_)));
    let full_every = |n: usize| (0..n_layers).map(|l| ((l + first) % n != 0).then_some(window)).collect();
    if let Some(n) = keys.count(Key::WindowEvery)? {
        return Ok(full_every(n));
    }
    match family.windows {
        WindowPattern::All => Ok(vec![Some(window); n_layers]),
        WindowPattern::FullEvery(n) | WindowPattern::FullFirst(n) => Ok(full_every(n.max(1))),
        WindowPattern::FromKey => {
            let first = keys.need_count(Key::FirstWindowLayer)?;
            Ok((0..n_layers).map(|l| (l >= first).then_some(window)).collect())
        }
    }
}

/// Whether each layer rotates its queries and keys.
fn rotates(keys: &Keys<'_>, family: &ArchDescriptor, n_layers: usize) -> Result<Vec<bool>> {
    let flag = |choice: Choice<'_>| match choice {
        Choice::Flag(rotates) => Some(rotates),
        Choice::Word(_) => None,
    };
    if let Some(list) = keys.choices(Key::NoRopeLayers, n_layers, "0 or 1", flag)? {
        return Ok(list);
    }
    match keys.count(Key::NoRopeEvery)?.or(family.no_rope_every) {
        Some(1) if family.recurrent.is_some() => {
            let word = keys.word(Key::PositionKind)?.map(|kind| kind == "rope");
            Ok(vec![word.or(keys.flag(Key::RopeUsed)?).unwrap_or(false); n_layers])
        }
        Some(n) => Ok((0..n_layers).map(|l| (l + 1) % n.max(1) != 0).collect()),
        None => Ok(vec![true; n_layers]),
    }
}

/// How a layer scales its queries by their position.
fn temperature(keys: &Keys<'_>, family: &ArchDescriptor, rotates: bool) -> Result<Option<TemperatureSpec>> {
    let offset = match family.temperature {
        Temperature::All => 0.0,
        Temperature::WithoutRotation if !rotates => 1.0,
        Temperature::None | Temperature::WithoutRotation => return Ok(None),
    };
    if keys.flag(Key::TemperatureOn)? == Some(false) {
        return Ok(None);
    }
    let Some(beta) = keys.real(Key::TemperatureScale)?.filter(|beta| *beta > 0.0) else { return Ok(None) };
    let length = match keys.real(Key::TemperatureLength)? {
        Some(length) => length,
        None => keys.real(Key::RopeContext)?.ok_or_else(|| keys.missing(Key::TemperatureLength))?,
    };
    Ok(Some(TemperatureSpec { beta, length, offset }))
}

/// The rotation of a layer with a window: its own, where the checkpoint or the family says so.
fn window_rope(
    keys: &Keys<'_>,
    family: &ArchDescriptor,
    head_dim: usize,
    n_ctx_train: usize,
    ready_made: &RopeTensors,
) -> Result<RopeSpec> {
    if let Some(own) = keys.with_rope_objects(WINDOW_ROPE_OBJECTS) {
        return RopeSpec::read(&own, head_dim, n_ctx_train, &RopeTensors::default());
    }
    match keys.real(Key::WindowRopeTheta)?.or(family.window_rope_theta) {
        Some(theta) => {
            let shared = RopeSpec::read(keys, head_dim, n_ctx_train, &RopeTensors::default())?;
            Ok(RopeSpec { theta, scaling: RopeScaling::None, divisors: None, ..shared })
        }
        None if family.window_rope_unscaled => {
            let shared = RopeSpec::read(keys, head_dim, n_ctx_train, &RopeTensors::default())?;
            Ok(RopeSpec { scaling: RopeScaling::None, divisors: None, ..shared })
        }
        None => RopeSpec::read(keys, head_dim, n_ctx_train, ready_made),
    }
}
