//! Experts, shared keys, per-layer inputs and several residual streams under GGUF names give the
//! same logits.
//!
//! The conversion follows real converters, like `gguf.rs`: experts are stacked into one tensor,
//! numbers of window layers have keys, and divisors stop the rotation of pairs.
#![allow(clippy::unwrap_used)]

use crate::common;
use std::path::Path;

use crate::common::{Runner, TOLERANCE, check, json, open};
use formats::gguf;
use formats::gguf::{MetaValue, Writer};
use model::ModelSpec;
use weights::{Access, Array, BlockType, Checkpoint, Map, Metadata, Value, codec};

/// Maps `model.layers.3.experts.gate_up_proj` to `blk.3.ffn_gate_up_exps.weight`.
fn gguf_name(name: &str) -> String {
    let mut name = name.replace("model.layers.", "blk.").replace("model.", "");
    let post_attention = if name.contains("post_attention_layernorm") { "ffn_norm" } else { "" };
    for (hf, gguf) in [
        ("embed_tokens_per_layer", "per_layer_token_embd"),
        ("embed_tokens", "token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"),
        ("per_layer_input_gate", "inp_gate"),
        ("post_per_layer_input_norm", "post_norm"),
        ("per_layer_projection", "proj"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.proj", "ffn_gate_inp"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("input_layernorm", "attn_norm"),
        ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_attention_layernorm", post_attention),
        ("lm_head", "output"),
        ("altup.router_norm", "altup_router_norm"),
        ("altup.modality_router", "altup_router"),
        ("altup.prediction_coefs", "altup_predict_coef"),
        ("altup.correction_coefs", "altup_correct_coef"),
        ("altup.correct_output_scale", "altup_correct_scale.weight"),
        ("laurel.linear_left", "laurel_l"),
        ("laurel.linear_right", "laurel_r"),
        ("laurel.post_laurel_norm", "laurel_post_norm"),
    ] {
        name = name.replace(hf, gguf);
    }
    if name.starts_with("norm.") { format!("output_{name}") } else { name }
}

/// The fixture as a GGUF file.
fn convert(name: &str) -> Vec<u8> {
    let config = json(&format!("{name}/config.json"));
    let mut writer = Writer::new();
    metadata(name, &config, &mut writer);
    let tensors = tensors(name, &config);
    for (name, shape, block, _) in &tensors {
        writer.tensor(name, shape, *block).unwrap();
    }
    let mut body = writer.begin(Vec::new()).unwrap();
    for (.., bytes) in &tensors {
        body.tensor_data(bytes).unwrap();
    }
    body.finish().unwrap()
}

fn metadata(name: &str, config: &serde_json::Value, writer: &mut Writer) {
    let sandwich = name.starts_with("gemma");
    let streams = config["altup_num_inputs"].as_u64();
    let arch = match name {
        _ if streams.is_some() => "gemma3n".to_owned(),
        _ if sandwich => "gemma4".to_owned(),
        name => name.replace('_', ""),
    };
    writer.metadata("general.architecture", MetaValue::Str(arch.clone())).unwrap();
    let mut put = |key: &str, value: MetaValue| writer.metadata(&format!("{arch}.{key}"), value).unwrap();
    let number = |key: &str| config[key].as_f64();
    let n_layers = number("num_hidden_layers").unwrap() as usize;
    for (gguf, key) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.shared_kv_layers", "num_kv_shared_layers"),
        ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
        ("expert_count", "num_experts"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_used_count", "top_k_experts"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ] {
        if let Some(value) = number(key) {
            put(gguf, MetaValue::U32(value as u32));
        }
    }
    let of_layer = |l: usize, key: &str| {
        config["per_layer_config"][l.to_string()][key].as_f64().or_else(|| number(key)).map(|v| v as i32)
    };
    let kv = (0..n_layers).map(|l| of_layer(l, "num_key_value_heads").unwrap()).collect();
    put("attention.head_count_kv", MetaValue::I32s(kv));
    let ffn = number("intermediate_size").or(config["intermediate_size"][0].as_f64()).unwrap() as i32;
    let first_shared = n_layers - number("num_kv_shared_layers").unwrap_or(0.0) as usize;
    let wide = config["use_double_wide_mlp"].as_bool() == Some(true);
    let width = |l: usize| if wide && l >= first_shared { 2 * ffn } else { ffn };
    put("feed_forward_length", MetaValue::I32s((0..n_layers).map(width).collect()));
    put("attention.layer_norm_rms_epsilon", MetaValue::F32(number("rms_norm_eps").unwrap() as f32));
    let head_dim = number("head_dim").unwrap_or(16.0) as u32;
    if let Some(n) = streams {
        put("altup.num_inputs", MetaValue::U32(n as u32));
        put("altup.active_idx", MetaValue::U32(0));
        // Quantiles of the shares of the normal distribution that the fixtures cut off.
        let quantile = |part: &serde_json::Value| match part.as_f64().unwrap() {
            0.0 => f32::NEG_INFINITY,
            0.3 => -0.524_400_5,
            0.9 => 1.281_551_6,
            0.95 => 1.644_853_6,
            part => panic!("{part}"),
        };
        let parts = config["activation_sparsity_pattern"].as_array().unwrap();
        put("activation_sparsity_scale", MetaValue::F32s(parts.iter().map(quantile).collect()));
        put("attention.key_length", MetaValue::U32(head_dim));
        put("attention.value_length", MetaValue::U32(head_dim));
        put("rope.freq_base", MetaValue::F32(1e6));
        put("final_logit_softcapping", MetaValue::F32(number("final_logit_softcapping").unwrap() as f32));
        let types = config["layer_types"].as_array().unwrap();
        let slides = types.iter().map(|t| t.as_str() == Some("sliding_attention")).collect();
        put("attention.sliding_window_pattern", MetaValue::Bools(slides));
    } else if sandwich {
        for (key, value) in [("attention.key_length", 64), ("attention.value_length", 64)] {
            put(key, MetaValue::U32(value));
            put(&format!("{key}_swa"), MetaValue::U32(head_dim));
        }
        put("rope.dimension_count", MetaValue::U32(64));
        put("rope.dimension_count_swa", MetaValue::U32(head_dim));
        put("rope.freq_base", MetaValue::F32(1e6));
        put("rope.freq_base_swa", MetaValue::F32(1e4));
        put("final_logit_softcapping", MetaValue::F32(30.0));
        let types = config["layer_types"].as_array().unwrap();
        let slides = types.iter().map(|t| t.as_str() == Some("sliding_attention")).collect();
        put("attention.sliding_window_pattern", MetaValue::Bools(slides));
    } else {
        put("attention.key_length", MetaValue::U32(head_dim));
        put("rope.freq_base", MetaValue::F32(1e4));
    }
}

/// The name, shape, type and bytes of a tensor.
type Entry = (String, Vec<usize>, BlockType, Vec<u8>);

fn tensors(name: &str, config: &serde_json::Value) -> Vec<Entry> {
    let hf: Checkpoint = open(name);
    let sandwich = name.starts_with("gemma");
    let streams = config["altup_num_inputs"].as_u64();
    let mut tensors: Vec<Entry> = Vec::new();
    for tensor in &hf.tensors {
        let (mut shape, block) = (tensor.shape.clone(), tensor.block);
        if let Some((before, after)) = tensor.name.split_once(".experts.").filter(|_| shape.len() == 2) {
            // Separate experts are stacked into one tensor.
            let Some(matrix) = after.strip_prefix("0.").and_then(|m| m.strip_suffix("_proj.weight")) else {
                continue;
            };
            let n = hf.tensors.iter().filter(|t| {
                t.name.starts_with(&format!("{before}.experts."))
                    && t.name.ends_with(&format!("{matrix}_proj.weight"))
            });
            let n = n.count();
            let find = |name: String| hf.tensors.iter().find(|t| t.name == name).unwrap().data.to_vec();
            let all =
                (0..n).flat_map(|e| find(format!("{before}.experts.{e}.{matrix}_proj.weight"))).collect();
            shape.insert(0, n);
            let layer = before.strip_suffix(".mlp").unwrap().strip_prefix("model.layers.").unwrap();
            tensors.push((format!("blk.{layer}.ffn_{matrix}_exps.weight"), shape, block, all));
            continue;
        }
        let mut gguf = gguf_name(&tensor.name);
        if let Some((role, rest)) = tensor.name.split_once("_projections.").filter(|_| streams.is_some()) {
            // The matrices of the streams are stacked into one tensor.
            let n = streams.unwrap() as usize - 1;
            if rest == "0.weight" {
                let find = |i| hf.tensor(&format!("{role}_projections.{i}.weight")).unwrap().data.to_vec();
                let name = role.replace("model.", "").replace("unembed", "unembd");
                shape.insert(0, n);
                tensors.push((format!("{name}_proj.weight"), shape, block, (0..n).flat_map(find).collect()));
            }
            continue;
        }
        if sandwich && tensor.name.contains("post_attention_layernorm") {
            gguf = gguf.replace("ffn_norm", "post_attention_norm");
        }
        if shape.len() > 1 {
            let mut bytes = tensor.data.to_vec();
            if let Some(n) =
                config["vocab_size_per_layer_input"].as_u64().filter(|_| gguf == "token_embd.weight")
            {
                // Tokens without per-layer inputs are left out.
                let n = shape[0].min(n as usize);
                bytes.truncate(bytes.len() / shape[0] * n);
                shape[0] = n;
            }
            tensors.push((gguf, shape, block, bytes));
        } else {
            let mut values = vec![0.0; shape[0]];
            codec::dequantize_row(block, &tensor.data, &mut values);
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            tensors.push((gguf, shape, BlockType::F32, bytes));
        }
    }
    if sandwich && streams.is_none() {
        // A quarter of the 32 pairs rotates.
        let divisors = (0..32).flat_map(|i| if i < 8 { 1f32 } else { 1e30 }.to_le_bytes()).collect();
        tensors.push(("rope_freqs.weight".to_owned(), vec![32], BlockType::F32, divisors));
    }
    tensors
}

#[test]
fn fixtures_with_experts_agree_under_gguf_names() {
    for name in common::MIXED {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, convert(name)).unwrap();
        let checkpoint = formats::open(&path, Access::Read).unwrap();
        if name == "qwen2_moe" {
            // The format cannot store a dense layer among layers with experts.
            let error = ModelSpec::from_checkpoint(&checkpoint).unwrap_err().to_string();
            assert!(error.contains("blk.1."), "{error}");
            continue;
        }
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(spec.unused_tensors.is_empty(), "{name}: {:?}", spec.unused_tensors);
        let plan = spec.plan(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        for chunk in [40, 1] {
            let worst = check(name, &plan, chunk);
            println!("{name}: chunks of {chunk}: {worst:.1e}");
        }
        let hf = ModelSpec::from_checkpoint(&open(name)).unwrap();
        for (a, b) in hf.layers.iter().zip(&spec.layers) {
            assert_eq!(
                (a.experts, a.kv_from, a.keys_are_values, a.cutoff.is_some()),
                (b.experts, b.kv_from, b.keys_are_values, b.cutoff.is_some()),
                "{name}"
            );
            assert!((a.cutoff.unwrap_or(0.0) - b.cutoff.unwrap_or(0.0)).abs() < 1e-6, "{name}");
        }
    }
}

/// Counts that a converter wrote as f32 are read; other non-integers are refused.
#[test]
fn counts_may_be_written_as_f32() {
    let checkpoint = gguf::parse(Map::from_slice(&convert("gemma3n")), Path::new("x.gguf")).unwrap();
    let shared = |value: f64| {
        let mut metadata = Metadata::default();
        for (key, old) in checkpoint.metadata.iter() {
            let is_it = key == "gemma3n.attention.shared_kv_layers";
            metadata.insert(key.to_owned(), if is_it { Value::Float(value) } else { old.clone() });
        }
        ModelSpec::from_checkpoint(&Checkpoint { metadata, ..checkpoint.clone() })
    };
    assert_eq!(shared(5.0).unwrap().layers.iter().filter(|l| l.kv_from.is_some()).count(), 5);
    for bad in [5.5, -1.0, f64::NAN, f64::INFINITY, 1e20] {
        let error = shared(bad).unwrap_err().to_string();
        assert!(error.contains("attention.shared_kv_layers") && error.contains("a whole number"), "{error}");
    }
}

/// Files in use store the one-row matrix of the shared expert's weight as a vector, because
/// converters drop dimensions of 1.
#[test]
fn the_weight_of_the_shared_expert_may_be_a_vector() {
    // The format cannot store the dense layer, so only the layers before it are kept.
    let with_one_layer = |mut checkpoint: Checkpoint| {
        let mut metadata = Metadata::default();
        for (key, value) in checkpoint.metadata.iter() {
            let value = match (key, value) {
                ("num_hidden_layers" | "qwen2moe.block_count", _) => Value::Int(1),
                ("mlp_only_layers", _) => Value::Array(Array::Int(vec![])),
                ("layer_types", _) => continue,
                (_, Value::Array(Array::Int(of_layers))) => Value::Int(of_layers[0].into()),
                (_, value) => value.clone(),
            };
            metadata.insert(key.to_owned(), value);
        }
        checkpoint.metadata = metadata;
        checkpoint
    };
    let answer = |checkpoint: &Checkpoint| {
        let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
        Runner::new(&spec.plan(checkpoint).unwrap()).step(&[3, 17, 5, 99, 42]).0
    };
    let expected = answer(&with_one_layer(open("qwen2_moe")));
    let converted = gguf::parse(Map::from_slice(&convert("qwen2_moe")), Path::new("x.gguf")).unwrap();
    let mut gguf = with_one_layer(converted);
    for shape in [vec![1, 64], vec![64]] {
        let gate = gguf.tensors.iter_mut().find(|t| t.name == "blk.0.ffn_gate_inp_shexp.weight").unwrap();
        gate.shape = shape.clone();
        for (found, expected) in answer(&gguf).iter().zip(&expected) {
            let worst = found.iter().zip(expected).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs()));
            assert!(worst < TOLERANCE, "{shape:?}: {worst}");
        }
    }
    let gate = gguf.tensors.iter_mut().find(|t| t.name == "blk.0.ffn_gate_inp_shexp.weight").unwrap();
    gate.shape = vec![64, 1];
    assert!(ModelSpec::from_checkpoint(&gguf).unwrap_err().to_string().contains("[1, 64]"));
}
