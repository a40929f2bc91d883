//! Writes the keys of a GGUF file from the numbers of a spec. Integers have 32 bits and other
//! numbers are f32, as llama.cpp reads them.

use device::{Pooling, RouterScores};
use weights::{Array, Checkpoint, Metadata, Naming, Value};

use super::recipe::TensorRecipe;
use super::recurrent;
use super::sink::{Sink, count, counts, real, sections, strings};
use crate::descriptor::{
    ArchDescriptor, AttentionScale, EmbeddingScale, ExpertPlace, NormKind, QkNorm, RecurrentKind,
    RecurrentPlace, WindowPattern,
};
use crate::embedding::{EmbeddingSpec, GGUF_PROMPT};
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::names::{Key, TensorRole};
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::{LayerSpec, ModelSpec};

/// GGUF's number for the pooling of a ranking model.
const RANK: i128 = 4;

/// The keys that name the model.
pub(super) fn general(architecture: &str, name: &str) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture".to_owned(), Value::Str(architecture.to_owned()));
    metadata.insert("general.type".to_owned(), Value::Str("model".to_owned()));
    metadata.insert("general.name".to_owned(), Value::Str(name.to_owned()));
    metadata
}

/// Writes the tokenizer's keys, or the word for none, and the number of token types.
pub(super) fn vocabulary(tokenizer: Option<&Metadata>, recipes: &[TensorRecipe], metadata: &mut Metadata) {
    match tokenizer {
        Some(tokenizer) => {
            for (key, value) in tokenizer.iter() {
                metadata.insert(key.to_owned(), value.clone());
            }
        }
        None => {
            metadata.insert("tokenizer.ggml.model".to_owned(), Value::Str("none".to_owned()));
        }
    }
    let types = recipes.iter().find(|r| r.name == "token_types.weight").and_then(|r| r.shape.first());
    if let Some(n) = types {
        metadata.insert("tokenizer.ggml.token_type_count".to_owned(), Value::Int(*n as i128));
    }
}

/// Writes all numbers of the spec.
pub(super) fn numbers(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    target: &ArchDescriptor,
    architecture: &str,
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) -> Result<()> {
    let source = Keys::new(&checkpoint.metadata, checkpoint.naming, spec.family, "");
    let mut sink = Sink { architecture, metadata };
    let layers = &spec.layers;
    // The layer count includes layers for multi-token prediction.
    sink.put(Key::Layers, count(layers.len()));
    if spec.n_next > 0 {
        sink.put(Key::NextLayers, count(spec.n_next));
    }
    sink.put(Key::Context, count(spec.n_ctx_train));
    sink.put(Key::Hidden, count(spec.hidden));
    sink.put_as("vocab_size", count(spec.n_vocab));
    sink.put(Key::Ffn, counts(&ffn(&source, spec)?));
    let heads: Vec<usize> = attending(spec).map(|l| l.n_heads).collect();
    // If the whole projection from the latent is written, each head has its own keys. Otherwise the
    // latent is the one key of all heads.
    let whole = spec.family.recurrent.is_none();
    let of_kv = |l: &LayerSpec| match (l.attends, l.latent) {
        (false, _) => 0,
        (true, Some(_)) if whole => l.n_heads,
        (true, _) => l.n_kv_heads,
    };
    // Layers without attention have no heads, so one number of the attending layers is enough.
    match heads.len() == layers.len() {
        true => sink.put(Key::Heads, counts(&heads)),
        false => sink.put(Key::Heads, count(heads.first().copied().unwrap_or(0))),
    }
    // If an interval tells which layers attend, readers expect a single number.
    let kv_heads: Vec<usize> = match layers.iter().find_map(|l| l.recurrent) {
        Some(r) if r.kind == RecurrentKind::GatedDelta && !r.by_rows => attending(spec).map(of_kv).collect(),
        _ => layers.iter().map(of_kv).collect(),
    };
    sink.put(Key::KvHeads, counts(&kv_heads));
    let names = Key::NormEps.row().gguf;
    let one_mixer = spec.family.recurrent.is_some_and(|r| r.place == RecurrentPlace::OneMixer);
    let names = match (one_mixer, spec.family.norm_kind) {
        // Readers of these families expect the second key, whatever the kind of norm.
        (true, _) => names,
        (false, NormKind::Rms) => &names[..1],
        (false, NormKind::Layer) => &names[1..],
    };
    names.iter().for_each(|name| sink.put_as(name, real(spec.norm_eps.into())));

    heads_and_windows(spec, &mut sink);
    rotation(&source, spec, target, &mut sink)?;
    temperature(spec, &mut sink);
    scales(&source, spec, target, &mut sink)?;
    experts(spec, &mut sink)?;
    recurrent::numbers(&checkpoint.metadata, spec, &mut sink)?;
    if let Some(vision) = spec.vision.as_ref().filter(|vision| vision.tower.axes.is_some()) {
        sections(&checkpoint.metadata, vision.sections.map(|n| n as i64).to_vec(), &mut sink);
        if !vision.tower.tap_projector.is_empty() {
            sink.put_as("n_deepstack_layers", count(vision.taps.len()));
        }
    }

    let has_role = |role| spec.family.tensors.iter().copied().flatten().any(|row| row.holds(role));
    if has_role(TensorRole::PerLayerEmbedding) {
        sink.put(Key::PerLayerWidth, count(spec.per_layer_width));
        sink.put(Key::SharedKvLayers, count(layers.iter().filter(|l| l.kv_from.is_some()).count()));
    }
    if spec.n_streams > 1 {
        sink.put(Key::Streams, count(spec.n_streams));
        sink.put_as("altup.active_idx", count(0));
        let cutoffs = layers.iter().map(|layer| layer.cutoff.unwrap_or(f32::NEG_INFINITY)).collect();
        sink.put(Key::Sparsity, Value::Array(Array::Float(cutoffs)));
    }
    if spec.family.bidirectional {
        sink.put_as("attention.causal", Value::Bool(false));
    }
    embedding(checkpoint, spec, &mut sink, notes)
}

/// Columns of each layer's network. For layers with experts instead the source's number is written,
/// which no reader uses.
fn ffn(source: &Keys<'_>, spec: &ModelSpec) -> Result<Vec<usize>> {
    let said = source.counts(Key::Ffn, spec.n_layers())?.unwrap_or_default();
    let instead = matches!(
        spec.family.experts,
        ExpertPlace::Instead | ExpertPlace::WithShared | ExpertPlace::WithPlainShared
    );
    let of = |(l, layer): (usize, &LayerSpec)| match layer.experts {
        Some(experts) if instead => said.get(l).or(said.last()).copied().unwrap_or(experts.ffn),
        Some(experts) if spec.family.experts == ExpertPlace::BesideShared => experts.ffn,
        _ => layer.ffn,
    };
    Ok(spec.layers.iter().enumerate().map(of).collect())
}

/// The layers with attention.
fn attending(spec: &ModelSpec) -> impl Iterator<Item = &LayerSpec> {
    spec.layers.iter().filter(|l| l.attends)
}

/// The first attending layer with full attention, or else the first attending layer; and the first
/// with a window.
fn full_and_window(spec: &ModelSpec) -> (Option<&LayerSpec>, Option<&LayerSpec>) {
    let full = attending(spec).find(|l| l.window.is_none());
    (full.or(attending(spec).next()), attending(spec).find(|l| l.window.is_some()))
}

fn heads_and_windows(spec: &ModelSpec, sink: &mut Sink<'_>) {
    let (full, window) = full_and_window(spec);
    if let Some(latent) = full.and_then(|full| full.latent) {
        sink.put(Key::LatentRank, count(latent.rank));
        if let Some(rank) = latent.query_rank {
            sink.put(Key::QueryRank, count(rank));
        }
        let (key, value) = (count(latent.plain + latent.turning), count(latent.value));
        if spec.family.recurrent.is_some() {
            // Readers of these families expect separate matrices for the heads, and the number of
            // key columns with RoPE.
            sink.put_as("attention.key_length", count(latent.rank + latent.turning));
            sink.put_as("attention.value_length", count(latent.rank));
            sink.put_as("attention.key_length_mla", key);
            sink.put_as("attention.value_length_mla", value);
            sink.put(Key::TurningKeyDim, count(latent.turning));
        } else {
            sink.put_as("attention.key_length", key);
            sink.put_as("attention.value_length", value);
        }
    } else if let Some(full) = full {
        sink.put(Key::HeadDim, count(full.head_dim));
        sink.put(Key::ValueDim, count(full.head_dim));
    }
    let Some(window) = window else { return };
    if full.is_some_and(|full| full.head_dim != window.head_dim) {
        sink.put_window(Key::HeadDim, count(window.head_dim));
        sink.put_window(Key::ValueDim, count(window.head_dim));
    }
    sink.put(Key::Window, count(window.window.unwrap_or_default()));
    let slides: Vec<bool> = spec.layers.iter().map(|l| l.window.is_some()).collect();
    if slides.contains(&false) || spec.family.windows != WindowPattern::All {
        sink.put(Key::WindowEvery, Value::Array(Array::Bool(slides)));
    }
}

fn rotation(source: &Keys<'_>, spec: &ModelSpec, target: &ArchDescriptor, sink: &mut Sink<'_>) -> Result<()> {
    let turning = |window: bool| {
        let mut of_kind = attending(spec).filter(move |l| l.window.is_some() == window);
        of_kind.find_map(|l| l.rope.as_ref())
    };
    let (full, window) = (turning(false), turning(true));
    let Some(rope) = full.or(window) else { return Ok(()) };
    sink.put(Key::RopeDims, count(rope.n_dims));
    sink.put(Key::RopeTheta, real(rope.theta));
    if let Some(window) = window {
        if window.n_dims != rope.n_dims {
            sink.put_window(Key::RopeDims, count(window.n_dims));
        }
        if window.theta != rope.theta || spec.family.window_rope_theta.is_some() {
            sink.put(Key::WindowRopeTheta, real(window.theta));
        }
    }
    let latent = spec.layers.iter().any(|l| l.latent.is_some());
    stretching(source, rope, target, latent, sink)
}

fn stretching(
    source: &Keys<'_>,
    rope: &RopeSpec,
    target: &ArchDescriptor,
    latent: bool,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let kind = |word: &str| Value::Str(word.to_owned());
    match rope.scaling {
        // The divisors are written as tensors.
        RopeScaling::None | RopeScaling::ByWavelength { .. } | RopeScaling::Proportional { .. } => {}
        RopeScaling::Linear { factor } => {
            sink.put(Key::RopeKind, kind("linear"));
            sink.put(Key::RopeFactor, real(factor));
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, attention_factor } => {
            if !truncate && target.default(Naming::Gguf, Key::RopeTruncate) != Some(0.0) {
                return Err(Error::Export {
                    what: "YaRN".to_owned(),
                    found: "a range that is not rounded".to_owned(),
                    expected: "truncate to be true".to_owned(),
                });
            }
            sink.put(Key::RopeKind, kind("yarn"));
            sink.put(Key::RopeFactor, real(factor));
            sink.put(Key::RopeContext, count(original as usize));
            sink.put(Key::RopeBetaFast, real(beta_fast));
            sink.put(Key::RopeBetaSlow, real(beta_slow));
            if let Some(all) = source.real(Key::RopeMscaleAll)?.filter(|_| latent) {
                sink.put(Key::RopeLogMultiplier, real(all / 10.0));
                return Ok(());
            }
            // Readers multiply the factor by YaRN's default.
            let usual = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
            sink.put(Key::RopeAttention, real(attention_factor / usual));
        }
        RopeScaling::LongRope { original, attention_factor, .. } => {
            sink.put(Key::RopeKind, kind("longrope"));
            sink.put(Key::RopeContext, count(original as usize));
            sink.put(Key::RopeAttention, real(attention_factor));
        }
    }
    Ok(())
}

fn temperature(spec: &ModelSpec, sink: &mut Sink<'_>) {
    let Some(temperature) = spec.layers.iter().find_map(|l| l.temperature) else { return };
    sink.put(Key::TemperatureScale, real(temperature.beta));
    sink.put(Key::TemperatureLength, count(temperature.length as usize));
}

/// Writes factors and caps that differ from the family's defaults.
fn scales(source: &Keys<'_>, spec: &ModelSpec, target: &ArchDescriptor, sink: &mut Sink<'_>) -> Result<()> {
    if let Some(layer) = attending(spec).next() {
        let usual = match target.attention_scale {
            AttentionScale::One => 1.0,
            AttentionScale::HiddenPerHead { n_layers } if n_layers == spec.n_layers() => {
                (layer.n_heads as f64 / spec.hidden as f64).sqrt()
            }
            AttentionScale::HeadDim | AttentionScale::HiddenPerHead { .. } => match layer.latent {
                // YaRN's part of the scale has its own key.
                Some(_) => f64::from(layer.attention_scale),
                None => 1.0 / (layer.head_dim as f64).sqrt(),
            },
        };
        if layer.attention_scale != usual as f32 {
            sink.put(Key::AttentionScale, real(layer.attention_scale.into()));
        }
    }
    for (key, cap) in
        [(Key::AttentionSoftcap, spec.attention_softcap), (Key::LogitSoftcap, spec.logit_softcap)]
    {
        if let Some(cap) = cap {
            sink.put(key, real(cap.into()));
        }
    }
    let usual = match target.embedding_scale {
        EmbeddingScale::One => 1.0,
        EmbeddingScale::SqrtHidden => (spec.hidden as f64).sqrt() as f32,
    };
    if spec.embedding_scale != usual {
        sink.put(Key::EmbeddingScale, real(spec.embedding_scale.into()));
    }
    if spec.residual_scale != 1.0 {
        sink.put(Key::ResidualScale, real(spec.residual_scale.into()));
    }
    if let Some(factor) = source.real(Key::LogitFactor)?.filter(|_| spec.logit_scale != 1.0) {
        sink.put(Key::LogitFactor, real(factor));
    }
    Ok(())
}

fn experts(spec: &ModelSpec, sink: &mut Sink<'_>) -> Result<()> {
    let with = spec.layers.iter().find_map(|l| Some((l.experts?, l.ffn)));
    let Some((experts, beside)) = with else { return Ok(()) };
    sink.put(Key::Experts, count(experts.n));
    sink.put(Key::ExpertsUsed, count(experts.n_used));
    sink.put(Key::ExpertFfn, count(experts.ffn));
    if spec.family.experts == ExpertPlace::WithShared {
        sink.put(Key::SharedFfn, count(beside));
    }
    if spec.family.experts == ExpertPlace::BesideShared && beside > 0 {
        sink.put(Key::SharedFfn, count(beside));
        sink.put(Key::SharedExperts, count(1));
    }
    if spec.family.experts == ExpertPlace::Instead && experts.scores == RouterScores::Sigmoid {
        let first = spec.layers.iter().position(|l| l.experts.is_some()).unwrap_or(0);
        sink.put(Key::FirstDenseLayers, count(first));
    }
    if spec.family.experts != ExpertPlace::WithPlainShared && experts.scores == RouterScores::Sigmoid {
        sink.put(Key::ExpertScores, count(2));
    }
    if let Some(latent) = experts.latent {
        sink.put(Key::LatentWidth, count(latent));
    }
    if spec.family.experts == ExpertPlace::WithPlainShared {
        sink.put(Key::SharedExperts, count(beside / experts.ffn.max(1)));
        let first = spec.layers.iter().position(|l| l.experts.is_some()).unwrap_or(0);
        sink.put(Key::FirstDenseLayers, count(first));
        let kind = if experts.scores == RouterScores::Sigmoid { 2 } else { 1 };
        sink.put(Key::ExpertScores, count(kind));
    }
    if let Some(n) = spec.family.qk_norm_lacks_with_experts {
        let (lacks, read_so) = (spec.qk_norm == QkNorm::None, experts.n == n);
        if lacks != read_so {
            return Err(Error::Export {
                what: "norms of queries and keys".to_owned(),
                found: format!("{} beside {} experts", if lacks { "none" } else { "some" }, experts.n),
                expected: format!("none beside {n} experts, some beside others: GGUF has no key for them"),
            });
        }
    }
    if let Some(groups) = experts.groups {
        sink.put(Key::ExpertGroups, count(groups.n));
        sink.put(Key::ExpertGroupsUsed, count(groups.n_used));
    }
    if spec.family.experts == ExpertPlace::WithPlainShared {
        let with = spec.layers.iter().filter(|l| l.experts.is_some()).count();
        let every = if spec.family.experts_weigh_input { spec.n_layers() / with.max(1) } else { 1 };
        sink.put(Key::ExpertsEvery, count(every));
    }
    sink.put(Key::ExpertsNormalised, Value::Bool(experts.normalise));
    if experts.factor != 1.0 {
        sink.put(Key::ExpertFactor, real(experts.factor.into()));
    }
    Ok(())
}

/// Writes the pooling. Readers of GGUF files normalise the vector, cut texts at the context and
/// prepend nothing.
fn embedding(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    sink: &mut Sink<'_>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(embedding) = EmbeddingSpec::from_checkpoint(checkpoint, spec)? else { return Ok(()) };
    if let Some(answers) = &embedding.answers {
        sink.put_as("pooling_type", Value::Int(RANK));
        sink.put_as("classifier.output_labels", strings(&["yes", "no"]));
        sink.metadata.insert(GGUF_PROMPT.to_owned(), Value::Str(answers.prompt.clone()));
        return Ok(());
    }
    let kind = match embedding.pooling {
        Pooling::Mean => 1,
        Pooling::First => 2,
        Pooling::Last => 3,
    };
    sink.put_as("pooling_type", Value::Int(kind));
    if !embedding.normalize {
        notes.push("embeddings are not brought to length 1 in the source; readers of GGUF do".to_owned());
    }
    if embedding.max_tokens != spec.n_ctx_train {
        let n = embedding.max_tokens;
        notes.push(format!("the source cuts texts at {n} tokens; GGUF has no key for it"));
    }
    if embedding.lower_case {
        notes.push("the source lower-cases texts; GGUF has no key for it".to_owned());
    }
    if !embedding.prompt.is_empty() {
        let prompt = &embedding.prompt;
        notes.push(format!("the source prepends {prompt:?} to texts; GGUF has no key for it"));
    }
    Ok(())
}
