//! Files as BaseRT writes them, made from the fixtures: its names, its config, and GGUF's order of
//! rows and norms.
#![allow(clippy::unwrap_used)]

use formats::base;
use serde_json::{Value as Json, json};
use std::path::Path;
use weights::{BlockType, Bytes, Checkpoint, Map, Naming, Planes, Tensor};

use crate::common::open;

/// The way to make a file from a fixture.
pub struct Recipe {
    pub fixture: &'static str,
    pub arch: &'static str,
    /// Names of norms in files from Hugging Face checkpoints, and in files from GGUF.
    pub post_norms: &'static [(&'static str, &'static str)],
    /// True if query and key rows are permuted, so that neighbours rotate together.
    pub reordered: bool,
    /// Offset of the stored norm weights.
    pub norm_offset: f32,
    pub fused: bool,
}

/// A fixture whose GGUF files have this family's architecture.
pub const LLAMA: Recipe = Recipe {
    fixture: "mistral",
    arch: "llama",
    post_norms: &[("post_attention_layernorm", "post_attn_norm")],
    reordered: true,
    norm_offset: 0.0,
    fused: false,
};

pub const RECIPES: [Recipe; 5] = [
    LLAMA,
    Recipe { fused: true, ..LLAMA },
    Recipe { fixture: "qwen3", arch: "qwen", reordered: false, fused: true, ..LLAMA },
    Recipe { fixture: "qwen2", arch: "qwen", reordered: false, fused: true, ..LLAMA },
    Recipe {
        fixture: "gemma3",
        arch: "gemma3",
        post_norms: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "post_attn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
        reordered: false,
        norm_offset: 1.0,
        fused: false,
    },
];

fn f32_tensor(name: String, shape: Vec<usize>, values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Tensor { name, shape, block: BlockType::F32, data: Bytes::from_slice(&bytes), planes: Planes::default() }
}

/// Permutes the rows of each head from halves to neighbours: row `2 i + j` is row `j * head / 2 +
/// i`.
fn reorder(values: &mut [f32], n_cols: usize, head: usize) {
    for block in values.chunks_mut(head * n_cols) {
        let old = block.to_vec();
        for (row, new) in block.chunks_mut(n_cols).enumerate() {
            let from = row % 2 * head / 2 + row / 2;
            new.copy_from_slice(&old[from * n_cols..][..n_cols]);
        }
    }
}

/// The header's config.
pub fn config(metadata: &weights::Metadata) -> Json {
    let mut config = json!({ "tie_word_embeddings": true, "rope_scaling_factor": 1.0 });
    for (from, to) in [
        ("hidden_size", "hidden_size"),
        ("num_hidden_layers", "num_hidden_layers"),
        ("num_attention_heads", "num_attention_heads"),
        ("num_key_value_heads", "num_key_value_heads"),
        ("head_dim", "head_dim"),
        ("intermediate_size", "intermediate_size"),
        ("vocab_size", "vocab_size"),
        ("rms_norm_eps", "rms_norm_eps"),
        ("rope_theta", "rope_theta"),
        ("rope_parameters.rope_theta", "rope_theta"),
        ("rope_parameters.full_attention.rope_theta", "rope_theta"),
        ("rope_parameters.sliding_attention.rope_theta", "rope_local_theta"),
        ("sliding_window", "sliding_window"),
        ("query_pre_attn_scalar", "attention_scale"),
    ] {
        match metadata.get(from) {
            Some(weights::Value::Int(n)) if to != "attention_scale" => {
                config[to] = json!(i64::try_from(*n).unwrap())
            }
            Some(_) if to == "attention_scale" => {
                config[to] = json!(1.0 / metadata.f64(from).unwrap().sqrt())
            }
            Some(weights::Value::Float(f)) => config[to] = json!(f),
            _ => {}
        }
    }
    if config.get("head_dim").is_none() {
        config["head_dim"] =
            json!(config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap());
    }
    if let Some(list) = metadata.array("layer_types") {
        let slides: Vec<bool> =
            (0..list.len()).map(|i| list.str_bytes(i) == Some(b"sliding_attention")).collect();
        if slides.contains(&true) {
            config["swa_layers"] = json!(slides);
        }
    }
    config
}

/// The fixture's tensors under BaseRT's names.
pub fn tensors(recipe: &Recipe, fixture: &Checkpoint, head: usize) -> Vec<Tensor> {
    let mut all: Vec<Tensor> = Vec::new();
    for tensor in &fixture.tensors {
        let mut values = tensor.to_f32();
        let mut name = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name).to_owned();
        if name == "norm.weight" {
            name = "final_norm.weight".to_owned();
        }
        name = name.replace("input_layernorm", "input_norm");
        for (from, to) in recipe.post_norms {
            // No other name is part of the longer name.
            name = name.replace(&format!(".{from}."), &format!(".{to}."));
        }
        if recipe.reordered && (name.contains(".q_proj.") || name.contains(".k_proj.")) {
            reorder(&mut values, tensor.n_cols(), head);
        }
        if name.ends_with("norm.weight") {
            values.iter_mut().for_each(|v| *v += recipe.norm_offset);
        }
        all.push(f32_tensor(name, tensor.shape.clone(), &values));
    }
    if recipe.fused {
        let layers = all.iter().filter(|t| t.name.ends_with("q_proj.weight")).count();
        for layer in 0..layers {
            for suffix in ["weight", "bias"] {
                for (parts, whole) in [
                    (&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..], "attn.qkv_proj"),
                    (&["mlp.gate_proj", "mlp.up_proj"], "mlp.gate_up_proj"),
                ] {
                    fuse(&mut all, layer, parts, whole, suffix);
                }
            }
        }
    }
    all
}

fn fuse(all: &mut Vec<Tensor>, layer: usize, parts: &[&str], whole: &str, suffix: &str) {
    let name = |part: &str| format!("layers.{layer}.{part}.{suffix}");
    let found: Vec<Tensor> =
        parts.iter().filter_map(|part| all.iter().find(|t| t.name == name(part)).cloned()).collect();
    if found.len() == parts.len() {
        all.retain(|t| found.iter().all(|f| f.name != t.name));
        let mut shape = found[0].shape.clone();
        shape[0] = found.iter().map(|t| t.shape[0]).sum();
        let values: Vec<f32> = found.iter().flat_map(Tensor::to_f32).collect();
        all.push(f32_tensor(name(whole), shape, &values));
    }
}

/// The file, written and opened.
pub fn written(arch: &str, config: &Json, tensors: &[Tensor]) -> Checkpoint {
    let mut writer = base::BaseWriter::new(arch, Naming::Base);
    writer.field("config", config.clone());
    tensors.iter().for_each(|t| writer.tensor(&t.name, &t.shape, t.block).unwrap());
    let mut body = writer.begin(std::io::Cursor::new(Vec::new())).unwrap();
    tensors.iter().for_each(|t| body.tensor_data(&t.data, t.planes.as_slices()).unwrap());
    let bytes = body.finish().unwrap().into_inner();
    base::parse(Map::from_slice(&bytes), Path::new("x.base")).unwrap().into_checkpoint()
}

/// The file of a recipe, with each tensor passed through `change`.
pub fn file(recipe: &Recipe, change: impl Fn(Tensor) -> Tensor) -> Checkpoint {
    let fixture = open(recipe.fixture);
    let config = config(&fixture.metadata);
    let head = config["head_dim"].as_u64().unwrap() as usize;
    let tensors: Vec<Tensor> = tensors(recipe, &fixture, head).into_iter().map(change).collect();
    written(recipe.arch, &config, &tensors)
}
