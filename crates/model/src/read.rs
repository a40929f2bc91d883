//! Reads a checkpoint: the family, then each number, then every tensor.

mod family;
mod layers;
mod mixers;
mod next;

use std::collections::BTreeSet;

use device::{Activation, OutputKind};
use weights::{Array, Checkpoint, Naming};

use crate::build::{Options, build};
use crate::descriptor::{ArchDescriptor, EmbeddingScale, ExpertPlace, QkNorm};
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::names::{IGNORED, Key, TensorRole};
use crate::recurrent::Multipliers;
use crate::sampling::SamplingAdvice;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use crate::vision::VisionSpec;

pub(crate) use family::family_of;
use family::select;

impl ModelSpec {
    /// Selects the family, reads and checks every number, and finds every tensor.
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

        // The plan below checks each tensor's name, shape and type. It decodes no values, so that
        // inspecting a file does not read it.
        tensors.without_values();
        if let Some(encoder) = family.encoder {
            let keys = Keys::new(&checkpoint.metadata, checkpoint.naming, encoder, &architecture);
            tensors.use_names_of(encoder);
            let encoder = read(&keys, encoder, &mut tensors)?;
            if encoder.hidden != spec.hidden {
                let expected = format!("the decoder's hidden size, {}", spec.hidden);
                return Err(keys.bad(Key::Hidden, encoder.hidden, expected));
            }
            spec.encoder = Some(Box::new(encoder));
            spec.encoder_plan(&mut tensors)?;
        }
        build(&spec, &mut tensors, Options::new(spec.n_ctx_train))?;
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
        // Some files have this layer although no key counts it.
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
}

/// Refuses scans with clamped time steps, which are not supported. Published checkpoints have the
/// key, with limits that clamp nothing.
fn check_step_limit(checkpoint: &Checkpoint) -> Result<()> {
    let key = "time_step_limit";
    let Some(Array::Float(limit)) = checkpoint.metadata.array(key) else { return Ok(()) };
    match limit[..] {
        [low, high] if low <= 0.0 && high == f32::INFINITY => Ok(()),
        _ => Err(Error::BadKey {
            key: key.to_owned(),
            found: format!("{limit:?}"),
            expected: "0 and infinity: clamped steps are not supported".to_owned(),
        }),
    }
}

/// Rows of the position table before the row of position 0.
pub(crate) fn positions_before(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<usize> {
    match family.positions_after_padding && keys.naming() == Naming::HuggingFace {
        true => Ok(keys.count(Key::Padding)?.unwrap_or(1) + 1),
        false => Ok(0),
    }
}

/// Reads and checks the numbers. Looks only at tensors that a number depends on.
pub(crate) fn read(
    keys: &Keys<'_>,
    family: &'static ArchDescriptor,
    tensors: &mut Tensors<'_>,
) -> Result<ModelSpec> {
    refuse_what_is_not_built(keys, family)?;
    let n_layers = match (keys.naming(), keys.count(Key::NextLayers)?) {
        // In GGUF files the layer count includes the layers for multi-token prediction.
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
                keys.bad(Key::Context, all, format!("more than the {n} positions before the first token"))
            })?
        }
    };
    let (n_vocab, n_inputs) = match family.convolutions {
        [] => (need(keys, tensors, Key::Vocab)?, 0),
        _ => (0, need(keys, tensors, Key::Inputs)?),
    };
    // Versions of transformers disagree: either the text model's own key or the outer one counts.
    // So both must agree.
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
        return Err(keys.bad(Key::PerLayerWidth, 0, "at least 1 with several residual streams"));
    }
    // Token ids without per-layer inputs are placeholders for images and sounds.
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
        activation: activation(keys, family)?,
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

/// The activation of the feed-forward network.
fn activation(keys: &Keys<'_>, family: &ArchDescriptor) -> Result<Activation> {
    match keys.word(Key::Activation)? {
        None => Ok(family.activation),
        Some("silu" | "swish") => Ok(Activation::Silu),
        // "swiglu" names the whole gated network, whose activation is SiLU.
        Some("swiglu") if family.gated => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
        Some("gelu") => Ok(Activation::GeluErf),
        Some("relu") => Ok(Activation::Relu),
        Some("relu2") => Ok(Activation::ReluSquared),
        Some(other) => {
            let expected = "silu, gelu, gelu_pytorch_tanh, relu or relu2";
            Err(keys.bad(Key::Activation, format!("{other:?}"), expected))
        }
    }
}

/// The norms of queries and keys that this checkpoint has.
fn qk_norm(keys: &Keys<'_>, family: &ArchDescriptor, tensors: &Tensors<'_>) -> Result<QkNorm> {
    let plain = family.qk_norm == QkNorm::PlainWhereTurning;
    let there = match (family.qk_norm_may_lack, keys.flag(Key::QkNorm)?) {
        (false, _) => true,
        (true, Some(said)) => said,
        // A norm without weights has no tensor that would show it.
        (true, None) if plain => match family.qk_norm_lacks_with_experts {
            Some(n) if keys.naming() == Naming::Gguf => keys.count(Key::Experts)? != Some(n),
            _ => true,
        },
        (true, None) => tensors.has_in(TensorRole::AttnQNorm, 0),
    };
    Ok(if there { family.qk_norm } else { QkNorm::None })
}

/// Reads a number from the metadata, or from tensor shapes if files of this naming never store it
/// there.
fn need(keys: &Keys<'_>, tensors: &Tensors<'_>, key: Key) -> Result<usize> {
    let measured = if keys.is_said(key) { None } else { tensors.measure(key)? };
    measured.map_or_else(|| keys.need_count(key), Ok)
}

/// Refuses a model that would run and give wrong answers.
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
    // Image rows may attend to each other both ways; text is always causal.
    let ahead = match keys.word(Key::Bidirectional) {
        Ok(word) => word.is_some_and(|word| word != "vision"),
        Err(_) => keys.flag(Key::Bidirectional)? == Some(true),
    };
    if ahead && !family.bidirectional {
        return Err(keys.bad(Key::Bidirectional, "true", "a model whose attention is causal"));
    }
    Ok(())
}
