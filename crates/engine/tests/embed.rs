//! Tests of embeddings on the reference interpreter and on the CPU: the fixture's pooled hidden
//! states, batches and errors.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use device::Device;
use device_reference::Reference;
use ingle_engine::{Embedder, Engine, Error, LoadOptions, Model, TokenizerSource};
use weights::Access;

fn model(name: &str) -> Arc<Model> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
    Arc::new(
        Model::from_opened(&folder, formats::open(&folder, Access::Map).unwrap(), &TokenizerSource::Own)
            .unwrap(),
    )
}

fn devices() -> [Arc<dyn Device>; 2] {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    [Arc::new(Reference::new(2)), Arc::new(cpu)]
}

/// Token ids, and the mean of transformers' hidden states for them.
fn answer() -> (Vec<u32>, Vec<f32>) {
    let file = model("bert").path().join("expected.json");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let numbers = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let rows: Vec<Vec<f64>> = json["last_hidden_state"].as_array().unwrap().iter().map(numbers).collect();
    let mean = |column: usize| (rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64) as f32;
    let ids: Vec<f64> = numbers(&json["input_ids"]);
    (ids.into_iter().map(|id| id as u32).collect(), (0..rows[0].len()).map(mean).collect())
}

#[test]
fn the_fixture_pooled_alone_and_in_batches() {
    let (ids, expected) = answer();
    for device in devices() {
        let all: Vec<&[u32]> = (0..150).map(|i| &ids[..1 + i % ids.len()]).chain([&ids[..]]).collect();
        let mut first: Option<Vec<Vec<f32>>> = None;
        // Steps with one text at a time (the context is 128), with several, and more texts than a
        // step has spans.
        for chunk in [1, 200, 4000] {
            let options = LoadOptions { chunk: Some(chunk), ..LoadOptions::default() };
            let mut embedder = Embedder::new(model("bert"), &device, &options).unwrap();
            let found = embedder.embed_tokens(&all).unwrap();
            assert_eq!(found.n_tokens, all.iter().map(|tokens| tokens.len()).sum::<usize>());
            // Weights are bf16 and activations f32, sums have other orders, and the answers are
            // printed with 5 decimals.
            let near = |a: &[f32], b: &[f32], bound: f32| a.iter().zip(b).all(|(a, b)| (a - b).abs() < bound);
            assert!(near(&found.vectors[150], &expected, 1e-3), "{}, {chunk}", device.name());
            let first = first.get_or_insert_with(|| found.vectors.clone());
            for (at, (a, b)) in found.vectors.iter().zip(first.iter()).enumerate() {
                assert!(near(a, b, 1e-5), "{}, chunk {chunk}, text {at}", device.name());
            }
        }
    }
}

#[test]
fn what_cannot_be() {
    let [device, _] = devices();
    let mut embedder = Embedder::new(model("bert"), &device, &LoadOptions::default()).unwrap();
    assert!(matches!(embedder.embed_tokens(&[vec![]]).unwrap_err(), Error::EmptyPrompt));
    assert!(matches!(embedder.embed_tokens(&[vec![1; 129]]).unwrap_err(), Error::TooManyTokens { .. }));
    assert!(matches!(embedder.embed_tokens(&[vec![160]]).unwrap_err(), Error::TokenOutOfRange { .. }));
    assert!(matches!(embedder.embed(&["text"]).unwrap_err(), Error::NoTokenizer { .. }));
    assert!(embedder.embed_tokens::<Vec<u32>>(&[]).unwrap().vectors.is_empty());
    let long = LoadOptions { n_ctx: Some(129), ..LoadOptions::default() };
    assert!(matches!(Embedder::new(model("bert"), &device, &long), Err(Error::Option { .. })));
    let options = LoadOptions::default();
    assert!(matches!(Embedder::new(model("llama"), &device, &options), Err(Error::NoEmbeddings { .. })));
    assert!(matches!(Engine::new(model("bert"), &device, &options), Err(Error::NoHead { .. })));
}
