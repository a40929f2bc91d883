//! Checkpoints under GGUF names give the same logits.
//!
//! The conversion here follows real converters, and not the tables under test. It permutes query
//! and key rows of some families, adds 1 to norms of others, and precomputes divisors of RoPE
//! frequencies.
#![allow(clippy::unwrap_used)]

use std::f64::consts::PI;

use crate::common::{DENSE, check, json, open};
use formats::gguf::{MetaValue, Writer};
use model::{ModelSpec, RopeScaling};
use serde_json::Value as Json;
use weights::{Access, BlockType, Checkpoint, Naming, Tensor, codec};

/// Maps `model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`.
fn gguf_name(name: &str, sandwich: bool) -> String {
    let mut name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd");
    let post_attention = if sandwich { "post_attention_norm" } else { "ffn_norm" };
    for (hf, gguf) in [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", post_attention),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ] {
        name = name.replace(hf, gguf);
    }
    name
}

/// Permutes the rows of each head from halves to pairs: row `2i + j` of the result is row `i + j *
/// head_dim / 2`.
fn reorder(data: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = data.chunks(row_bytes).collect();
    let half = head_dim / 2;
    let from = |r: usize| r / head_dim * head_dim + (r % head_dim) / 2 + (r % 2) * half;
    (0..rows.len()).flat_map(|r| rows[from(r)].to_vec()).collect()
}

struct Converter {
    config: Json,
    writer: Writer,
    arch: String,
}

impl Converter {
    fn number(&self, key: &str) -> Option<f64> {
        self.config[key].as_f64()
    }

    fn put(&mut self, key: &str, value: MetaValue) {
        self.writer.metadata(&format!("{}.{key}", self.arch), value).unwrap();
    }

    fn count(&mut self, gguf: &str, hf: &str) {
        if let Some(value) = self.number(hf) {
            self.put(gguf, MetaValue::U32(value as u32));
        }
    }

    fn real(&mut self, gguf: &str, hf: &str) {
        if let Some(value) = self.number(hf) {
            self.put(gguf, MetaValue::F32(value as f32));
        }
    }
}

/// Writes the keys of RoPE. Returns the tensors that replace some of them in GGUF files.
fn rotation(c: &mut Converter, head_dim: usize) -> Vec<(&'static str, Vec<f32>)> {
    let rope = c.config["rope_parameters"].clone();
    let global = if rope["full_attention"].is_object() { rope["full_attention"].clone() } else { rope };
    let theta = global["rope_theta"].as_f64().unwrap();
    c.put("rope.freq_base", MetaValue::F32(theta as f32));
    let mut extra: Vec<(&'static str, Vec<f32>)> = Vec::new();
    match global["rope_type"].as_str().unwrap() {
        "llama3" => {
            let get = |key: &str| global[key].as_f64().unwrap();
            let (factor, original) = (get("factor"), get("original_max_position_embeddings"));
            let (longest, shortest) = (original / get("low_freq_factor"), original / get("high_freq_factor"));
            let divisor = |i: usize| {
                let wavelength = 2.0 * PI * theta.powf(2.0 * i as f64 / head_dim as f64);
                if wavelength < shortest {
                    1.0
                } else if wavelength > longest {
                    factor
                } else {
                    let smooth = (original / wavelength - get("low_freq_factor"))
                        / (get("high_freq_factor") - get("low_freq_factor"));
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            };
            extra.push(("rope_freqs.weight", (0..head_dim / 2).map(|i| divisor(i) as f32).collect()));
        }
        "longrope" => {
            let list = |key: &str| {
                global[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
            };
            extra.push(("rope_factors_long.weight", list("long_factor")));
            extra.push(("rope_factors_short.weight", list("short_factor")));
            c.put("rope.scaling.original_context_length", MetaValue::U32(32));
            c.put("rope.scaling.attn_factor", MetaValue::F32((1.0 + 16f32.ln() / 32f32.ln()).sqrt()));
            c.put("rope.dimension_count", MetaValue::U32(12));
        }
        _ => c.put("rope.dimension_count", MetaValue::U32(head_dim as u32)),
    }
    extra
}

/// The fixture as a GGUF file.
fn convert(name: &str) -> Vec<u8> {
    let hf: Checkpoint = open(name);
    let config = json(&format!("{name}/config.json"));
    let arch = if name == "mistral" { "llama" } else { name };
    let mut c = Converter { config, writer: Writer::new(), arch: arch.to_owned() };
    c.writer.metadata("general.architecture", MetaValue::Str(arch.into())).unwrap();
    c.count("block_count", "num_hidden_layers");
    c.count("context_length", "max_position_embeddings");
    c.count("embedding_length", "hidden_size");
    c.count("feed_forward_length", "intermediate_size");
    c.count("attention.head_count", "num_attention_heads");
    c.count("attention.head_count_kv", "num_key_value_heads");
    c.count("attention.key_length", "head_dim");
    c.count("attention.value_length", "head_dim");
    c.count("attention.sliding_window", "sliding_window");
    c.real("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    c.real("attn_logit_softcapping", "attn_logit_softcapping");
    c.real("final_logit_softcapping", "final_logit_softcapping");
    c.real("embedding_scale", "embedding_multiplier");
    c.real("residual_scale", "residual_multiplier");
    c.real("attention.scale", "attention_multiplier");
    c.real("logit_scale", "logits_scaling");
    if name == "gemma2" {
        // The format has no key for this number, and the fixture's differs from the default.
        c.put("attention.scale", MetaValue::F32(24f32.sqrt().recip()));
    }
    if name == "gemma3" {
        c.put(
            "attention.sliding_window_pattern",
            MetaValue::Bools(vec![true, true, false, true, true, false]),
        );
    }

    let head_dim = c.number("head_dim").unwrap_or(16.0) as usize;
    let extra = rotation(&mut c, head_dim);
    let reordered = ["llama", "mistral", "smollm3", "granite"].contains(&name);
    let less_one = name.starts_with("gemma");
    let sandwich = less_one || name == "olmo2";
    let mut data: Vec<Vec<u8>> = Vec::new();
    for Tensor { name: hf_name, shape, block, data: bytes, .. } in &hf.tensors {
        let gguf = gguf_name(hf_name, sandwich);
        // GGUF stores vectors in F32; matrices stay unchanged.
        if shape.len() == 1 {
            let mut values = vec![0.0; shape[0]];
            codec::dequantize_row(*block, bytes, &mut values);
            let offset = if less_one { 1.0 } else { 0.0 };
            data.push(values.iter().flat_map(|v| (v + offset).to_le_bytes()).collect());
            c.writer.tensor(&gguf, shape, BlockType::F32).unwrap();
            continue;
        }
        let of_q_or_k = gguf.ends_with("attn_q.weight") || gguf.ends_with("attn_k.weight");
        let row_bytes = block.row_bytes(shape[1]);
        data.push(if reordered && of_q_or_k { reorder(bytes, row_bytes, head_dim) } else { bytes.to_vec() });
        c.writer.tensor(&gguf, shape, *block).unwrap();
    }
    for (name, values) in extra {
        c.writer.tensor(name, &[values.len()], BlockType::F32).unwrap();
        data.push(values.iter().flat_map(|v| v.to_le_bytes()).collect());
    }
    let mut body = c.writer.begin(Vec::new()).unwrap();
    for bytes in data {
        body.tensor_data(&bytes).unwrap();
    }
    body.finish().unwrap()
}

fn open_gguf(name: &str) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, convert(name)).unwrap();
    let checkpoint = formats::open(&path, Access::Read).unwrap();
    assert_eq!(checkpoint.naming, Naming::Gguf);
    checkpoint
}

#[test]
fn all_fixtures_agree_under_gguf_names() {
    for name in DENSE {
        let checkpoint = open_gguf(name);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(spec.unused_tensors.is_empty(), "{name}: {:?}", spec.unused_tensors);
        let plan = spec.plan(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        for chunk in [40, 1] {
            let worst = check(name, &plan, chunk);
            println!("{name}: chunks of {chunk}: {worst:.1e}");
        }
    }
}

#[test]
fn both_namings_give_the_same_numbers() {
    for name in DENSE {
        let hf = ModelSpec::from_checkpoint(&open(name)).unwrap();
        let gguf = ModelSpec::from_checkpoint(&open_gguf(name)).unwrap();
        assert_eq!(
            (hf.hidden, hf.n_vocab, hf.n_ctx_train, hf.n_layers()),
            (gguf.hidden, gguf.n_vocab, gguf.n_ctx_train, gguf.n_layers())
        );
        for (a, b) in hf.layers.iter().zip(&gguf.layers) {
            assert_eq!(
                (a.n_heads, a.n_kv_heads, a.head_dim, a.ffn, a.window),
                (b.n_heads, b.n_kv_heads, b.head_dim, b.ffn, b.window),
                "{name}"
            );
            assert_eq!(a.rope.is_some(), b.rope.is_some(), "{name}");
            assert!((a.attention_scale - b.attention_scale).abs() < 1e-6, "{name}");
        }
    }
}

#[test]
fn a_file_of_experts_is_refused_by_name() {
    let mut checkpoint = open_gguf("qwen3");
    checkpoint.metadata.insert("qwen3.expert_count".into(), weights::Value::Int(8));
    let error = ModelSpec::from_checkpoint(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("qwen3.expert_count") && error.contains("8 experts"), "{error}");
}

#[test]
fn an_architecture_that_is_not_known_is_named() {
    let mut checkpoint = open_gguf("llama");
    checkpoint.metadata = weights::Metadata::default();
    checkpoint.metadata.insert("general.architecture".into(), weights::Value::Str("mamba".into()));
    let error = ModelSpec::from_checkpoint(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("\"mamba\"") && error.contains("llama, mistral3, qwen2"), "{error}");
}

#[test]
fn rotation_is_scaled_in_full_layers_only_where_windows_have_their_own() {
    let mut checkpoint = open_gguf("gemma3");
    checkpoint.metadata.insert("gemma3.rope.scaling.factor".into(), weights::Value::Float(8.0));
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    for (l, layer) in spec.layers.iter().enumerate() {
        let rope = layer.rope.as_ref().unwrap();
        let expected = match layer.window {
            Some(_) => (RopeScaling::None, 1e4),
            None => (RopeScaling::Linear { factor: 8.0 }, 1e6),
        };
        assert_eq!((rope.scaling.clone(), rope.theta), expected, "layer {l}");
    }
}
