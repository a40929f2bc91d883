//! Every number and tensor that does not fit is refused with its name, the value found and the
//! value expected.
#![allow(clippy::unwrap_used)]

use crate::common;
use model::ModelSpec;
use weights::{Array, Bytes, Checkpoint, Metadata, Value};

/// The checkpoint with one key replaced, added, or (`None`) removed.
fn with(mut checkpoint: Checkpoint, key: &str, value: Option<Value>) -> Checkpoint {
    let mut metadata = Metadata::default();
    for (k, v) in checkpoint.metadata.iter().filter(|(k, _)| *k != key) {
        metadata.insert(k.to_owned(), v.clone());
    }
    if let Some(value) = value {
        metadata.insert(key.to_owned(), value);
    }
    checkpoint.metadata = metadata;
    checkpoint
}

/// Asserts that the checkpoint is refused with a message that contains all of `parts`.
fn refused(checkpoint: &Checkpoint, parts: &[&str]) {
    let error = ModelSpec::from_checkpoint(checkpoint)
        .expect_err(&format!("accepted, expected {parts:?}"))
        .to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn absurd_numbers() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("num_hidden_layers", Value::Int(0), &["num_hidden_layers", "found 0", "from 1 to 4096"]),
        ("num_hidden_layers", Value::Int(i128::MAX), &["num_hidden_layers"]),
        ("num_hidden_layers", Value::Int(-1), &["found -1"]),
        ("num_hidden_layers", Value::Str("4".into()), &["found \"4\"", "a whole number"]),
        (
            "num_hidden_layers",
            Value::Int(5),
            &["model.layers.4.input_layernorm.weight", "missing", "layer 4"],
        ),
        ("hidden_size", Value::Int(1 << 40), &["hidden_size"]),
        ("hidden_size", Value::Int(65), &["model.embed_tokens.weight", "[160, 64]", "[160, 65]"]),
        ("num_attention_heads", Value::Int(5), &["num_key_value_heads", "found 2", "divisor of the 5"]),
        ("num_key_value_heads", Value::Int(0), &["num_key_value_heads", "found 0"]),
        ("head_dim", Value::Int(15), &["15 columns that rotate", "even"]),
        ("head_dim", Value::Int(1 << 60), &["head_dim"]),
        ("intermediate_size", Value::Float(160.5), &["intermediate_size", "160.5"]),
        ("intermediate_size", Value::Int(161), &["gate_proj", "[160, 64]", "[161, 64]"]),
        ("intermediate_size", Value::Array(Array::Int(vec![160; 3])), &["3 items", "4, one a layer"]),
        ("vocab_size", Value::Int(0), &["vocab_size"]),
        ("rms_norm_eps", Value::Float(f64::NAN), &["rms_norm_eps", "NaN"]),
        ("rms_norm_eps", Value::Float(-1e-6), &["rms_norm_eps"]),
        ("hidden_act", Value::Str("swiglu9".into()), &["hidden_act", "swiglu9", "silu"]),
        ("max_position_embeddings", Value::Int(0), &["max_position_embeddings"]),
        ("rope_parameters.rope_theta", Value::Float(0.0), &["rope_theta"]),
        ("rope_parameters.rope_type", Value::Str("dynamic".into()), &["rope_type", "dynamic", "llama3"]),
        ("rope_parameters.low_freq_factor", Value::Float(4.0), &["low_freq_factor", "less than"]),
        ("rope_parameters.factor", Value::Null, &["rope_parameters.factor"]),
        ("partial_rotary_factor", Value::Float(2.0), &["partial_rotary_factor", "found 2"]),
        ("num_local_experts", Value::Int(8), &["num_experts_per_tok", "experts used for each token"]),
        (
            "tie_word_embeddings",
            Value::Bool(false),
            &["lm_head.weight", "missing", "output head", "[160, 64]"],
        ),
        ("tie_word_embeddings", Value::Int(1), &["tie_word_embeddings", "true or false"]),
    ];
    for (key, value, parts) in cases {
        refused(&with(common::open("llama"), key, Some(value.clone())), parts);
    }
}

#[test]
fn missing_numbers() {
    for (key, what) in [
        ("num_hidden_layers", "number of layers"),
        ("hidden_size", "hidden size"),
        ("num_attention_heads", "query heads"),
        ("intermediate_size", "feed-forward"),
        ("vocab_size", "vocabulary"),
        ("max_position_embeddings", "positions"),
        ("rms_norm_eps", "epsilon"),
        ("rope_parameters.high_freq_factor", "high frequency"),
    ] {
        refused(&with(common::open("llama"), key, None), &[key, what]);
    }
}

#[test]
fn the_name_of_the_family() {
    // Each of the two names is enough.
    for key in ["model_type", "architectures"] {
        assert_eq!(
            ModelSpec::from_checkpoint(&with(common::open("llama"), key, None)).unwrap().family.name,
            "llama"
        );
    }
    let neither = with(with(common::open("llama"), "model_type", None), "architectures", None);
    refused(&neither, &["model_type", "nothing", "known are llama, mistral"]);
    let other = with(neither, "model_type", Some(Value::Str("frobnicate".into())));
    refused(&other, &["model_type", "\"frobnicate\"", "qwen3"]);
}

#[test]
fn patterns_of_layers() {
    let sliding = |bytes: &str, n: u32| {
        let len = bytes.len() as u32;
        Value::Array(Array::Str {
            bytes: Bytes::from_slice(bytes.as_bytes()),
            spans: vec![(0, len); n as usize],
        })
    };
    refused(
        &with(common::open("qwen3"), "layer_types", Some(sliding("sliding_attention", 4))),
        &["sliding_window"],
    );
    refused(&with(common::open("qwen3"), "layer_types", Some(sliding("full_attention", 3))), &["3 items"]);
    refused(
        &with(common::open("qwen3"), "layer_types", Some(sliding("linear_attention", 4))),
        &["layer_types", "item 0"],
    );
    refused(
        &with(common::open("gemma2"), "use_bidirectional_attention", Some(Value::Bool(true))),
        &["causal"],
    );
}

#[test]
fn tensors_that_do_not_fit() {
    let name = "model.layers.2.self_attn.k_proj.weight";
    let mut missing = common::open("llama");
    missing.tensors.retain(|t| t.name != name);
    refused(&missing, &[name, "missing", "Hugging Face", "layer 2 key projection", "[32, 64]"]);

    let mut misshapen = common::open("llama");
    misshapen.tensors.iter_mut().find(|t| t.name == name).unwrap().shape = vec![64, 32];
    refused(&misshapen, &[name, "[64, 32]", "[32, 64]"]);

    let mut short = common::open("llama");
    let tensor = short.tensors.iter_mut().find(|t| t.name == name).unwrap();
    tensor.data = tensor.data.slice(0..100).unwrap();
    refused(&short, &[name, "100 bytes", "4096 bytes"]);

    let mut unscaled = common::open("llama");
    let tensor = unscaled.tensors.iter_mut().find(|t| t.name == name).unwrap();
    tensor.block = weights::BlockType::I8_ROWS;
    tensor.data = tensor.data.slice(0..32 * 64).unwrap();
    refused(&unscaled, &[name, "0 bytes of scales", "each of 32 rows 4 of scales and 0 of offsets"]);

    let bias = "model.layers.1.self_attn.q_proj.bias";
    let mut unbiased = common::open("qwen2");
    unbiased.tensors.retain(|t| t.name != bias);
    refused(&unbiased, &[bias, "missing", "layer 1 query projection bias", "[64]"]);

    let mut fused = common::open("phi3");
    let tensor = fused.tensors.iter_mut().find(|t| t.name.ends_with("0.self_attn.qkv_proj.weight")).unwrap();
    tensor.shape = vec![129, 64];
    refused(&fused, &["qkv_proj", "[129, 64]", "[128, 64]"]);
}

#[test]
fn experts_that_do_not_fit() {
    let name = "model.layers.2.mlp.experts.5.up_proj.weight";
    let mut missing = common::open("qwen3_moe");
    missing.tensors.retain(|t| t.name != name);
    refused(&missing, &[name, "missing", "layer 2 up projection of the experts", "[48, 64]"]);

    let mut misshapen = common::open("qwen3_moe");
    misshapen.tensors.iter_mut().find(|t| t.name == name).unwrap().shape = vec![64, 48];
    refused(&misshapen, &[name, "[64, 48]", "[48, 64]"]);

    let mut all = common::open("gemma4_moe");
    let stack = all.tensors.iter_mut().find(|t| t.name.ends_with("1.experts.gate_up_proj")).unwrap();
    stack.shape = vec![8, 64, 96];
    refused(&all, &["layers.1.experts.gate_up_proj", "[8, 64, 96]", "[8, 96, 64]"]);

    let value = |v| Some(Value::Int(v));
    refused(
        &with(common::open("qwen3_moe"), "num_experts_per_tok", value(9)),
        &["num_experts_per_tok", "9", "8 experts"],
    );
    refused(
        &with(common::open("gemma4_e2b"), "num_kv_shared_layers", value(10)),
        &["num_kv_shared_layers", "10"],
    );
    refused(
        &with(common::open("gemma4_e2b"), "num_kv_shared_layers", value(8)),
        &["num_kv_shared_layers", "window"],
    );
    refused(
        &with(common::open("gemma4_e2b"), "hidden_size_per_layer_input", value(17)),
        &["per_layer", "[160, 160]"],
    );
}

#[test]
fn streams_that_do_not_fit() {
    let value = |v| Some(Value::Int(v));
    let open = || common::open("gemma3n");
    refused(&with(open(), "altup_num_inputs", value(3)), &["altup.modality_router", "[4, 64]", "[3, 64]"]);
    refused(&with(open(), "altup_active_idx", value(1)), &["altup_active_idx", "1"]);
    refused(&with(open(), "text_config.altup_active_idx", value(2)), &["text_config.altup_active_idx", "2"]);
    refused(&with(open(), "laurel_rank", value(9)), &["laurel.linear_left", "[8, 64]", "[9, 64]"]);
    refused(
        &with(open(), "hidden_size_per_layer_input", value(0)),
        &["hidden_size_per_layer_input", "streams"],
    );
    refused(
        &with(open(), "vocab_size_per_layer_input", value(100)),
        &["embed_tokens_per_layer", "[100, 160]"],
    );
    let parts = |parts: Vec<f32>| Some(Value::Array(Array::Float(parts)));
    refused(&with(open(), "activation_sparsity_pattern", None), &["activation_sparsity_pattern"]);
    refused(
        &with(open(), "activation_sparsity_pattern", parts(vec![0.5; 9])),
        &["activation_sparsity_pattern", "9 items", "10"],
    );
    for bad in [1.0, -0.5, f32::NAN] {
        refused(
            &with(open(), "activation_sparsity_pattern", parts(vec![bad; 10])),
            &["activation_sparsity_pattern"],
        );
    }
    let mut missing = open();
    missing.tensors.retain(|t| t.name != "model.altup_projections.2.weight");
    refused(&missing, &["altup_projections.2", "missing"]);
}

#[test]
fn extra_tensors_are_listed_and_not_an_error() {
    let mut checkpoint = common::open("llama");
    for name in ["model.vision.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
        let extra = weights::Tensor { name: name.into(), ..checkpoint.tensors[0].clone() };
        checkpoint.tensors.push(extra);
    }
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(spec.unused_tensors, ["model.vision.weight"]);
}
