//! Encoders, embedding models and rerankers give transformers' hidden states, vectors and scores,
//! on the interpreter, the CPU device and the emulated Metal device.
#![allow(clippy::unwrap_used)]

use crate::common::{Runner, TOLERANCE, json, open};
use device::{Device, Numerics, OutputKind};
use device_cpu::{CpuDevice, Options};
use device_reference::Reference;
use model::{EmbeddingSpec, ModelSpec};
use serde_json::Value;

fn devices() -> Vec<Box<dyn Device>> {
    let cpu = CpuDevice::new(Options { isa: None, threads: Some(2) }).unwrap();
    #[cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), allow(unused_mut))]
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(Reference::new(1)), Box::new(cpu)];
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    devices.push(Box::new(crate::common::emulated_metal()));
    devices
}

fn row(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

#[test]
fn hidden_states_and_vectors_agree() {
    for name in [
        "modernbert",
        "xlm_roberta",
        "nomic_bert",
        "jina_embeddings_v3",
        "embedding_gemma",
        "qwen3_embedding",
    ] {
        let checkpoint = open(name);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let unused = |t: &&String| !t.starts_with("pooler.") && !t.contains("_Dense.");
        let unused: Vec<_> = spec.unused_tensors.iter().filter(unused).collect();
        assert!(unused.is_empty(), "{name}: {unused:?}");
        let json = json(&format!("{name}/expected.json"));
        let tokens = ids(&json["input_ids"]);
        let embedding = EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap().unwrap();
        let vectors = spec.embedding_plan(&checkpoint, &embedding, 96).unwrap();
        let states: Vec<Vec<f32>> = json["last_hidden_state"].as_array().unwrap().iter().map(row).collect();
        for device in devices() {
            if spec.family.output == OutputKind::Hidden {
                let plan = spec.plan(&checkpoint).unwrap();
                let (found, _) = Runner::on(device.as_ref(), &plan, Numerics::Fast).step(&tokens);
                let off = worst(&found.concat(), &states.concat());
                println!("{name} on {}: states {off:.1e}", device.name());
                assert!(off < TOLERANCE, "{name} on {}: states are off by {off}", device.name());
            }
            let (found, _) = Runner::on(device.as_ref(), &vectors, Numerics::Fast).step(&tokens);
            let off = worst(found.last().unwrap(), &row(&json["embedding"]));
            println!("{name} on {}: vector {off:.1e}", device.name());
            assert!(off < TOLERANCE, "{name} on {}: the vector is off by {off}", device.name());
        }
    }
}

#[test]
fn a_reranker_agrees() {
    let checkpoint = open("xlm_roberta_reranker");
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let ranking = EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap().unwrap();
    assert!(ranking.ranks);
    let plan = spec.embedding_plan(&checkpoint, &ranking, spec.n_ctx_train).unwrap();
    for device in devices() {
        for pair in json("xlm_roberta_reranker/expected.json")["pairs"].as_array().unwrap() {
            let tokens = ids(&pair["input_ids"]);
            let (found, _) = Runner::on(device.as_ref(), &plan, Numerics::Fast).step(&tokens);
            let off = (found.last().unwrap()[0] - pair["score"].as_f64().unwrap() as f32).abs();
            assert!(off < TOLERANCE, "{} on {}: off by {off}", spec.family.name, device.name());
        }
    }
}

#[test]
fn a_model_that_answers_yes_or_no_agrees() {
    let checkpoint = open("qwen3_reranker");
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let ranking = EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap().unwrap();
    let json = json("qwen3_reranker/expected.json");
    let answers = ranking.answers.as_ref().unwrap();
    let rows = ["yes", "no"].map(|name| json[name].as_u64().unwrap() as usize);
    assert_eq!((ranking.ranks, answers.rows), (true, rows));
    let (prompt, after) = answers.about("{document}", "{query}");
    assert!(
        prompt.contains("<Query>: {document}\n<Document>: {query}") && prompt.ends_with(after),
        "{prompt}"
    );
    let plan = spec.embedding_plan(&checkpoint, &ranking, 256).unwrap();
    for device in devices() {
        for pair in json["pairs"].as_array().unwrap() {
            let tokens = ids(&pair["input_ids"]);
            let (found, _) = Runner::on(device.as_ref(), &plan, Numerics::Fast).step(&tokens);
            let off = (found.last().unwrap()[0] - pair["score"].as_f64().unwrap() as f32).abs();
            assert!(off < 1e-5, "on {}: off by {off}", device.name());
        }
    }
}
