//! BaseRT files: the content of a GGUF file under other names.
//!
//! BaseRT's converter stores query and key rows and norm weights as GGUF does, whatever the source.
//! Its names are close to Hugging Face's, and its `config` has its own keys beside config.json's.
//! So such a checkpoint is renamed and read as a GGUF file, and its fused matrices become views of
//! their rows. Nothing is copied.
//!
//! Names and keys are those of `base-arch` and `base-convert` in
//! <https://github.com/basecompute/baseRT>. Files converted from GGUF and from Hugging Face differ
//! in two names of norms; both are known here.
use weights::{Array, Checkpoint, Metadata, Naming, Tensor, Value};

use crate::error::{Error, Result};
use crate::keys::show;
use crate::sampling::SamplingAdvice;

/// The key of the architecture.
const ARCH: &str = "base.arch";

/// Architecture in the header, a tensor of the first layer that tells apart architectures of one
/// name, and GGUF's architecture.
const ARCHITECTURES: &[(&str, &str, &str)] = &[
    ("llama", "", "llama"),
    ("qwen", "layers.0.self_attn.q_norm.weight", "qwen3"),
    ("qwen", "", "qwen2"),
    ("qwen2", "", "qwen2"),
    ("qwen3", "", "qwen3"),
    ("gemma3", "", "gemma3"),
];

/// Keys of `config`, and GGUF's keys after the architecture. Of keys with the same meaning, the
/// first one present is used.
const KEYS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("num_attention_heads", "attention.head_count"),
    ("n_kv_heads_per_layer", "attention.head_count_kv"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("per_layer_ffn", "feed_forward_length"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_local_theta", "rope.freq_base_swa"),
    ("sliding_window", "attention.sliding_window"),
    ("swa_layers", "attention.sliding_window_pattern"),
    ("sliding_window_pattern", "attention.sliding_window_pattern"),
    ("attention_scale", "attention.scale"),
    ("logit_softcap", "final_logit_softcapping"),
];

/// Context of a file that does not store it, as files from GGUF do not.
const USUAL_CONTEXT: i128 = 4096;

/// Names of tensors outside the layers.
const OUTER: &[(&str, &str)] = &[
    ("embed_tokens.weight", "token_embd.weight"),
    ("final_norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Names of tensors in a layer, without `.weight` or `.bias`.
const INNER: &[(&str, &str)] = &[
    ("input_norm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attn_norm", "ffn_norm"),
    ("post_attention_norm", "post_attention_norm"),
    ("post_ffw_norm", "post_ffw_norm"),
    ("post_mlp_norm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Fused matrices, which hold the rows of several.
const FUSED: &[(&str, &[&str])] = &[
    ("self_attn.qkv_proj", &["attn_q", "attn_k", "attn_v"]),
    ("attn.qkv_proj", &["attn_q", "attn_k", "attn_v"]),
    ("mlp.gate_up_proj", &["ffn_gate", "ffn_up"]),
];

/// The checkpoint under GGUF names, with every tensor a view of the same bytes. `None` if its names
/// are not BaseRT's.
///
/// # Errors
/// An unsupported architecture or RoPE scaling, or a fused matrix whose rows do not match the
/// heads.
pub fn from_base(checkpoint: &Checkpoint) -> Result<Option<Checkpoint>> {
    if checkpoint.naming != Naming::Base {
        return Ok(None);
    }
    let architecture = architecture(checkpoint)?;
    let metadata = metadata(&checkpoint.metadata, architecture)?;
    let mut tensors = Vec::with_capacity(checkpoint.tensors.len());
    for tensor in &checkpoint.tensors {
        rename(tensor, &checkpoint.metadata, &mut tensors)?;
    }
    Ok(Some(Checkpoint { naming: Naming::Gguf, metadata, tensors, ..checkpoint.clone() }))
}

fn architecture(checkpoint: &Checkpoint) -> Result<&'static str> {
    let found = checkpoint.metadata.str(ARCH).unwrap_or_default();
    let of = |(name, tensor, _): &&(&str, &str, &str)| {
        *name == found && (tensor.is_empty() || checkpoint.tensor(tensor).is_some())
    };
    match ARCHITECTURES.iter().find(of) {
        Some((.., architecture)) => Ok(architecture),
        None => {
            let mut known: Vec<&str> = ARCHITECTURES.iter().map(|(name, ..)| *name).collect();
            known.dedup();
            let found = format!("{:?}", found.chars().take(60).collect::<String>());
            Err(Error::UnknownFamily { key: ARCH.to_owned(), found, known: known.join(", ") })
        }
    }
}

fn metadata(config: &Metadata, architecture: &str) -> Result<Metadata> {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture".to_owned(), Value::Str(architecture.to_owned()));
    SamplingAdvice::of_generation_config(config).write(&mut metadata);
    for (from, to) in KEYS {
        if let Some(value) = config.get(from) {
            metadata.insert(format!("{architecture}.{to}"), value.clone());
        }
    }
    // The header stores 0 for an unknown context.
    let context = format!("{architecture}.context_length");
    metadata.insert(context, Value::Int(USUAL_CONTEXT));
    let factor = config.f64("rope_scaling_factor").unwrap_or(1.0);
    match config.str("rope_scaling_type").unwrap_or_default() {
        "" | "default" | "linear" if factor != 1.0 => {
            metadata.insert(format!("{architecture}.rope.scaling.type"), Value::Str("linear".to_owned()));
            metadata.insert(format!("{architecture}.rope.scaling.factor"), Value::Float(factor));
        }
        "" | "default" | "linear" => {}
        other => {
            return Err(Error::BadKey {
                key: "rope_scaling_type".to_owned(),
                found: format!("{other:?}"),
                expected: "linear or no scaling".to_owned(),
            });
        }
    }
    config.iter().for_each(|(key, value)| _ = metadata.insert(key.to_owned(), value.clone()));
    Ok(metadata)
}

fn rename(tensor: &Tensor, config: &Metadata, out: &mut Vec<Tensor>) -> Result<()> {
    let renamed = |name: String| Tensor { name, ..tensor.clone() };
    if let Some((_, name)) = OUTER.iter().find(|(from, _)| tensor.name == *from) {
        out.push(renamed((*name).to_owned()));
        return Ok(());
    }
    // An unknown tensor keeps its name, and is listed as unused.
    let keep = |out: &mut Vec<Tensor>| out.push(tensor.clone());
    let parts = tensor.name.strip_prefix("layers.").and_then(|rest| {
        let (layer, name) = rest.split_once('.')?;
        let (role, suffix) = name.rsplit_once('.')?;
        Some((layer.parse::<usize>().ok()?, role, suffix))
    });
    let Some((layer, role, suffix)) = parts else {
        keep(out);
        return Ok(());
    };
    if let Some((_, name)) = INNER.iter().find(|(from, _)| role == *from) {
        out.push(renamed(format!("blk.{layer}.{name}.{suffix}")));
    } else if let Some((_, names)) = FUSED.iter().find(|(from, _)| role == *from) {
        split(tensor, layer, names, suffix, config, out)?;
    } else {
        keep(out);
    }
    Ok(())
}

/// Adds a view for each matrix that a fused tensor holds.
fn split(
    tensor: &Tensor,
    layer: usize,
    names: &[&str],
    suffix: &str,
    config: &Metadata,
    out: &mut Vec<Tensor>,
) -> Result<()> {
    let count = |key: &str| {
        let value = match config.get(key) {
            Some(Value::Array(Array::Int(list))) => list.get(layer).and_then(|n| usize::try_from(*n).ok()),
            _ => config.usize(key),
        };
        value.filter(|n| (1..=1 << 24).contains(n)).ok_or_else(|| Error::BadKey {
            key: key.to_owned(),
            found: config.get(key).map_or_else(|| "nothing".to_owned(), show),
            expected: format!("a number above 0, to split {:?} by", tensor.name),
        })
    };
    let either = |first: &str, second: &str| count(if config.get(first).is_some() { first } else { second });
    let rows: Vec<usize> = if names.len() == 3 {
        let head = count("head_dim")?;
        let kv = either("n_kv_heads_per_layer", "num_key_value_heads")? * head;
        vec![count("num_attention_heads")? * head, kv, kv]
    } else {
        vec![either("per_layer_ffn", "intermediate_size")?; 2]
    };
    // A bias has one row for each value.
    let is_vector = tensor.shape.len() == 1;
    let n_rows = tensor.shape.first().copied().unwrap_or(0);
    let bad = || Error::BadTensor {
        name: tensor.name.clone(),
        found: format!("shape {:?} of {}", tensor.shape, tensor.block),
        expected: format!("{} rows: {rows:?}", rows.iter().sum::<usize>()),
    };
    if rows.iter().sum::<usize>() != n_rows || tensor.shape.len() > 2 {
        return Err(bad());
    }
    let mut first = 0;
    for (name, n) in names.iter().zip(&rows) {
        let mut shape = tensor.shape.clone();
        shape[0] = *n;
        let (data, planes) = if is_vector {
            let size = tensor.block.block_bytes();
            let plain = tensor.block.block_len() == 1 && !tensor.block.has_planes();
            let data = tensor.data.slice(first * size..(first + n) * size).filter(|_| plain);
            (data.ok_or_else(bad)?, tensor.planes.clone())
        } else {
            tensor.rows(first..first + n).ok_or_else(bad)?
        };
        out.push(Tensor {
            name: format!("blk.{layer}.{name}.{suffix}"),
            shape,
            data,
            planes,
            ..tensor.clone()
        });
        first += n;
    }
    Ok(())
}
