//! BaseRT files give the same models as their sources.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use crate::common::base_rt::{LLAMA, RECIPES, Recipe, config, file, tensors, written};
use crate::common::{check, open};
use model::ModelSpec;
use serde_json::{Value as Json, json};

#[test]
fn files_of_base_rt_answer_as_their_sources() {
    for recipe in RECIPES {
        let base = file(&recipe, |tensor| tensor);
        let renamed = model::from_base(&base).unwrap().unwrap();
        let spec = ModelSpec::from_checkpoint(&renamed).unwrap();
        assert!(spec.unused_tensors.is_empty(), "{}: {:?}", recipe.fixture, spec.unused_tensors);
        check(recipe.fixture, &spec.plan(&renamed).unwrap(), 16);
    }
}

#[test]
fn what_is_not_base_rts_is_left_alone_and_what_is_not_built_is_named() {
    let fixture = open("mistral");
    assert!(model::from_base(&fixture).unwrap().is_none());
    let config = config(&fixture.metadata);
    let head = config["head_dim"].as_u64().unwrap() as usize;
    let fused = tensors(&Recipe { fused: true, ..LLAMA }, &fixture, head);
    let error = |arch: &str, change: (&str, Json)| {
        let mut config = config.clone();
        config[change.0] = change.1;
        model::from_base(&written(arch, &config, &fused)).unwrap_err().to_string()
    };
    let unknown = error("mamba", ("x", json!(1)));
    assert!(unknown.contains("mamba") && unknown.contains("gemma3"), "{unknown}");
    let scaled = error("llama", ("rope_scaling_type", json!("llama3")));
    assert!(scaled.contains("llama3"), "{scaled}");
    for (key, value) in [
        ("head_dim", json!(0)),
        ("head_dim", json!(-1)),
        ("head_dim", json!(1u64 << 62)),
        ("num_attention_heads", json!("many")),
        ("num_key_value_heads", json!(3)),
        ("intermediate_size", json!([1])),
    ] {
        let message = error("llama", (key, value.clone()));
        assert!(message.contains(key) || message.contains("rows"), "{key} {value}: {message}");
    }
}
