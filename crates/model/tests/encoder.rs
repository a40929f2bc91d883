//! An encoder's plan gives transformers' hidden states: on the reference interpreter from every
//! format, and on the CPU device with every instruction set.
#![allow(clippy::unwrap_used)]

use crate::common::{Runner, TOLERANCE, json, open};
use device::{Device, Numerics, OutputKind, Pooling};
use device_cpu::{CpuDevice, Isa, Options};
use device_reference::Reference;
use model::{EmbeddingSpec, ModelSpec};
use weights::{Checkpoint, Metadata, Naming, Value};

const NAME: &str = "bert";

fn answers() -> (Vec<u32>, Vec<Vec<f32>>) {
    let json = json("bert/expected.json");
    let row = |v: &serde_json::Value| -> Vec<f32> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
    };
    let ids = row(&json["input_ids"]).into_iter().map(|v| v as u32).collect();
    (ids, json["last_hidden_state"].as_array().unwrap().iter().map(row).collect())
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn agrees(checkpoint: &Checkpoint) -> ModelSpec {
    agrees_on(&Reference::new(2), Numerics::Deterministic, checkpoint).0
}

/// Compares hidden states, and prints the largest difference over all rows. States are normalised,
/// of magnitude 1 to 3.
fn agrees_on(device: &dyn Device, numerics: Numerics, checkpoint: &Checkpoint) -> (ModelSpec, f32) {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let plan = spec.plan(checkpoint).unwrap();
    assert_eq!(plan.output_kind, OutputKind::Hidden);
    assert!(plan.kv.layers.is_empty());
    let (ids, expected) = answers();
    let (found, _) = Runner::on(device, &plan, numerics).step(&ids);
    assert_eq!(found.len(), expected.len());
    let worst =
        found.iter().zip(&expected).map(|(found, expected)| worst(found, expected)).fold(0.0, f32::max);
    assert!(worst < TOLERANCE, "{}: {worst}", device.name());
    (spec, worst)
}

/// The fixture with other keys and tensor names.
fn renamed(tensor: impl Fn(&str) -> String) -> Checkpoint {
    let mut checkpoint = open(NAME);
    for t in &mut checkpoint.tensors {
        t.name = tensor(&t.name);
    }
    checkpoint
}

#[test]
fn hidden_states_agree_with_transformers() {
    let spec = agrees(&open(NAME));
    assert!(spec.unused_tensors.iter().all(|name| name.starts_with("pooler.")), "{:?}", spec.unused_tensors);
    assert!(spec.to_string().contains("in both directions"), "{spec}");
}

/// The weights are BF16, which the device multiplies in f32, so the interpreter's bound applies.
#[test]
fn hidden_states_agree_on_every_instruction_set() {
    for isa in Isa::available() {
        for (threads, numerics) in [(2, Numerics::Fast), (3, Numerics::Deterministic)] {
            let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
            let (_, worst) = agrees_on(&device, numerics, &open(NAME));
            println!("{isa}, {numerics:?}: {worst:.1e}");
        }
    }
}

#[test]
fn with_a_prefix_and_with_the_old_names_of_norms() {
    agrees(&renamed(|name| format!("bert.{name}")));
    agrees(&renamed(|name| {
        let old =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        format!("bert.{old}")
    }));
}

#[test]
fn with_the_names_of_gguf() {
    let pairs = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer.", "blk."),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ];
    let mut checkpoint =
        renamed(|name| pairs.iter().fold(name.to_owned(), |n, (from, to)| n.replace(from, to)));
    checkpoint.naming = Naming::Gguf;
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture".into(), Value::Str("bert".into()));
    for (key, value) in [
        ("block_count", 3),
        ("embedding_length", 64),
        ("context_length", 128),
        ("attention.head_count", 4),
        ("feed_forward_length", 160),
        ("pooling_type", 2),
    ] {
        metadata.insert(format!("bert.{key}"), Value::Int(value));
    }
    metadata.insert("bert.attention.layer_norm_epsilon".into(), Value::Float(1e-12));
    checkpoint.metadata = metadata;
    let spec = agrees(&checkpoint);
    let embedding = EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap().unwrap();
    assert_eq!((embedding.pooling, embedding.normalize, embedding.max_tokens), (Pooling::First, true, 128));
}

#[test]
fn the_files_beside_the_weights_say_how_to_pool() {
    let with = |entries: &[(&str, Value)]| {
        let mut checkpoint = open(NAME);
        for (key, value) in entries {
            checkpoint.metadata.insert((*key).to_owned(), value.clone());
        }
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
        EmbeddingSpec::from_checkpoint(&checkpoint, &spec)
    };
    let text = |text: &str| Value::Str(text.into());
    let plain = with(&[]).unwrap().unwrap();
    assert_eq!((plain.pooling, plain.normalize, plain.max_tokens), (Pooling::Mean, false, 128));
    let pooling = ("modules.0.type", text("sentence_transformers.models.Pooling"));
    let said = with(&[
        pooling.clone(),
        ("modules.1.type", text("sentence_transformers.models.Normalize")),
        ("pooling.pooling_mode_cls_token", Value::Bool(true)),
        ("pooling.pooling_mode_mean_tokens", Value::Bool(false)),
        ("sentence_bert_config.max_seq_length", Value::Int(7)),
        ("sentence_bert_config.do_lower_case", Value::Bool(true)),
        ("config_sentence_transformers.default_prompt_name", text("q")),
        ("config_sentence_transformers.prompts.q", text("query: ")),
    ]);
    let expected = EmbeddingSpec {
        pooling: Pooling::First,
        pools: true,
        dense: vec![],
        ranks: false,
        separators: 1,
        answers: None,
        normalize: true,
        max_tokens: 7,
        lower_case: true,
        prompt: "query: ".into(),
    };
    assert_eq!(said.unwrap().unwrap(), expected);
    let word = with(&[pooling.clone(), ("pooling.pooling_mode", text("lasttoken"))]).unwrap().unwrap();
    assert_eq!(word.pooling, Pooling::Last);
    for (entries, part) in [
        (
            vec![pooling.clone(), ("pooling.pooling_mode_max_tokens", Value::Bool(true))],
            "pooling_mode_max_tokens",
        ),
        (vec![pooling], "no known mode"),
        (vec![("modules.0.type", text("sentence_transformers.models.WordWeights"))], "WordWeights"),
        (vec![("sentence_bert_config.max_seq_length", Value::Int(0))], "at least 1"),
    ] {
        let error = with(&entries).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // A model that generates text has no settings for embeddings.
    let checkpoint = open("llama");
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap(), None);
}
