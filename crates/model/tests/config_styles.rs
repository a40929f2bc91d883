//! Hugging Face checkpoints in older and multimodal styles give the same logits.
#![allow(clippy::unwrap_used)]

use crate::common::{check, open};
use model::ModelSpec;
use weights::{Checkpoint, Metadata, Value};

/// The checkpoint with keys and tensor names rewritten; a key that becomes `None` is removed.
fn rename(
    mut checkpoint: Checkpoint,
    key: impl Fn(&str) -> Option<String>,
    tensor: impl Fn(&str) -> String,
) -> Checkpoint {
    let mut metadata = Metadata::default();
    for (k, v) in checkpoint.metadata.iter() {
        if let Some(k) = key(k) {
            metadata.insert(k, v.clone());
        }
    }
    checkpoint.metadata = metadata;
    for t in &mut checkpoint.tensors {
        t.name = tensor(&t.name);
    }
    checkpoint
}

fn agrees(name: &str, checkpoint: &Checkpoint) {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
    check(name, &spec.plan(checkpoint).unwrap(), 40);
}

#[test]
fn multimodal_checkpoints_keep_the_language_model_inside() {
    for prefix in ["language_model.model.", "model.language_model."] {
        let key = |k: &str| Some(format!("text_config.{k}"));
        let mut checkpoint = rename(open("gemma3"), key, |t| t.replacen("model.", prefix, 1));
        checkpoint.metadata.insert("model_type".into(), Value::Str("gemma3".into()));
        // A key of the vision part has the same name.
        checkpoint.metadata.insert("hidden_size".into(), Value::Int(1152));
        agrees("gemma3", &checkpoint);
    }
    // An untied head has a name outside the model.
    let tensor = |t: &str| match t {
        "lm_head.weight" => "language_model.lm_head.weight".to_owned(),
        t => t.replacen("model.", "language_model.model.", 1),
    };
    agrees("mistral", &rename(open("mistral"), |k| Some(format!("text_config.{k}")), tensor));
}

#[test]
fn older_configs_keep_rotation_parameters_outside() {
    // Two bases and a pattern replace lists by layer.
    let key = |k: &str| match k {
        "rope_parameters.full_attention.rope_theta" => Some("rope_theta".to_owned()),
        "rope_parameters.sliding_attention.rope_theta" => Some("rope_local_base_freq".to_owned()),
        "layer_types" | "_sliding_window_pattern" => None,
        k if k.starts_with("rope_parameters") => None,
        k => Some(k.to_owned()),
    };
    let mut checkpoint = rename(open("gemma3"), key, str::to_owned);
    checkpoint.metadata.insert("sliding_window_pattern".into(), Value::Int(3));
    agrees("gemma3", &checkpoint);

    // The scaling object's kind is called `type`.
    let key = |k: &str| match k {
        "rope_parameters.rope_theta" => Some("rope_theta".to_owned()),
        "rope_parameters.rope_type" => Some("rope_scaling.type".to_owned()),
        k => Some(k.replace("rope_parameters.", "rope_scaling.")),
    };
    agrees("llama", &rename(open("llama"), key, str::to_owned));
}

#[test]
fn a_base_model_without_a_head_has_no_prefix() {
    agrees("llama", &rename(open("llama"), |k| Some(k.to_owned()), |t| t.replacen("model.", "", 1)));
}

#[test]
fn what_the_family_leaves_out_is_known() {
    // The smallest text_config in use; the descriptor has the defaults.
    let key = |k: &str| {
        ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers"]
            .contains(&k)
            .then(|| format!("text_config.{k}"))
    };
    let error =
        ModelSpec::from_checkpoint(&rename(open("gemma3"), key, str::to_owned)).unwrap_err().to_string();
    assert!(error.contains("[262208, 64]"), "the usual vocabulary was expected: {error}");
}

/// Clamped steps would give other results.
#[test]
fn clamped_steps_of_a_scan_are_refused() {
    let key = "time_step_limit";
    let mut checkpoint = rename(open("nemotron_h"), |k| (k != key).then(|| k.to_owned()), str::to_owned);
    agrees("nemotron_h", &checkpoint);
    checkpoint.metadata.insert(key.into(), Value::Array(weights::Array::Float(vec![0.001, 0.1])));
    let error = ModelSpec::from_checkpoint(&checkpoint).unwrap_err().to_string();
    assert!(error.contains(key) && error.contains("clamped"), "{error}");
}
