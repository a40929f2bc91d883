//! RoPE frequencies of every kind of scaling against the reference's own functions.
#![allow(clippy::unwrap_used)]

use crate::common;
use model::RopeSpec;
use weights::{Array, Checkpoint, Metadata, Naming, Value};

/// The reference computes in f32 and blends wavelengths with a subtraction that cancels, so a few
/// units in the last place may differ.
const RELATIVE: f32 = 1e-5;

fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => {
            n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap()), |i| Value::Int(i.into()))
        }
        serde_json::Value::String(s) => Value::Str(s.clone()),
        serde_json::Value::Array(list) => {
            Value::Array(Array::Float(list.iter().map(|v| v.as_f64().unwrap() as f32).collect()))
        }
        _ => Value::Null,
    }
}

/// The fixture's checkpoint with other RoPE parameters and heads.
fn with_rope(rope: &serde_json::Value, object: &str, n_ctx_train: usize) -> Checkpoint {
    let mut checkpoint = common::open("llama");
    let mut metadata = Metadata::default();
    for (key, old) in checkpoint.metadata.iter() {
        if !key.starts_with("rope_") && key != "head_dim" && key != "max_position_embeddings" {
            metadata.insert(key.to_owned(), old.clone());
        }
    }
    metadata.insert("head_dim".into(), Value::Int(48));
    metadata.insert("max_position_embeddings".into(), Value::Int(n_ctx_train as i128));
    for (key, json) in rope.as_object().unwrap() {
        // The older style keeps the base outside the object.
        let name = if object == "rope_scaling" && key == "rope_theta" {
            key.clone()
        } else {
            format!("{object}.{key}")
        };
        metadata.insert(name, value(json));
    }
    checkpoint.metadata = metadata;
    // Heads of 48 columns need other matrices, whose values do not matter.
    for tensor in &mut checkpoint.tensors {
        let shape = match tensor.name.rsplit('.').nth(1).unwrap() {
            "q_proj" => vec![192, 64],
            "k_proj" | "v_proj" => vec![96, 64],
            "o_proj" => vec![64, 192],
            _ => continue,
        };
        tensor.data = weights::Bytes::from_slice(&vec![0; shape.iter().product::<usize>() * 2]);
        tensor.shape = shape;
    }
    assert_eq!(checkpoint.naming, Naming::HuggingFace);
    checkpoint
}

#[test]
fn frequencies_agree_with_the_reference_in_both_styles_of_config() {
    let json = common::json("rope.json");
    let n_ctx_train = json["n_ctx_train"].as_u64().unwrap() as usize;
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        for object in ["rope_parameters", "rope_scaling"] {
            let checkpoint = with_rope(&case["rope"], object, n_ctx_train);
            let spec = model::ModelSpec::from_checkpoint(&checkpoint).unwrap();
            let rope: &RopeSpec = spec.layers[0].rope.as_ref().unwrap();
            let found = rope.frequencies(case["n_ctx"].as_u64().unwrap() as usize);
            let wanted: Vec<f32> =
                case["frequencies"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
            assert_eq!(found.len(), wanted.len());
            for (i, (f, w)) in found.iter().zip(&wanted).enumerate() {
                assert!(
                    (f - w).abs() <= RELATIVE * w,
                    "{} {object}, pair {i}: {f}, expected {w}",
                    case["rope"]
                );
            }
            let scale = case["scale"].as_f64().unwrap() as f32;
            assert!(
                (rope.scale() - scale).abs() < 1e-6,
                "{}: {}, expected {scale}",
                case["rope"],
                rope.scale()
            );
        }
    }
}

#[test]
fn layers_that_rotate_alike_share_a_table() {
    let checkpoint = common::open("gemma3");
    let spec = model::ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let plan = spec.plan(&checkpoint).unwrap();
    let tables = plan.weights.iter().filter(|w| w.name.starts_with("rope frequencies")).count();
    assert_eq!(tables, 2, "one of full layers, one of layers with a window");
    assert_eq!(spec.layers[0].rope.as_ref().unwrap().theta, 1e4);
    assert_eq!(spec.layers[2].rope.as_ref().unwrap().theta, 1e6);
}
