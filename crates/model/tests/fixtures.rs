//! Every family's plan on the reference interpreter gives transformers' logits.
#![allow(clippy::unwrap_used)]

use crate::common;
use crate::common::{Runner, all, check, open};
use model::{ModelSpec, to_gguf};
use weights::{Bytes, Checkpoint, Source};

#[test]
fn all_fixtures_agree_in_one_chunk_and_token_by_token() {
    for name in all() {
        let checkpoint = open(name);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Some fixtures belong to the family whose name begins theirs.
        let family = match name {
            "granitemoehybrid_dense" => "granitemoehybrid",
            "nemotron_h_moe" | "nemotron_h_latent" => "nemotron_h",
            name if name.starts_with("gemma4") => "gemma4",
            "gemma3n_beyond" => "gemma3n",
            "gpt_oss_mxfp4" => "gpt_oss",
            // Fixtures without norms of queries and keys.
            name if name.ends_with("_plain") => name.trim_end_matches("_plain"),
            // Fixtures with a layer for multi-token prediction.
            name if name.ends_with("_mtp") => name.trim_end_matches("_mtp"),
            name => name,
        };
        assert_eq!(spec.family.name, family);
        assert!(spec.unused_tensors.is_empty(), "{name}: {:?}", spec.unused_tensors);
        let plan = spec.plan(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        for chunk in [100, 40, 7, 1] {
            let worst = check(name, &plan, chunk);
            println!("{name}: chunks of {chunk}: {worst:.1e}");
        }
    }
}

/// Experts as published and as saved again by transformers give the same model and the same GGUF
/// file.
#[test]
fn experts_lie_either_way() {
    let published = open("qwen3_vl_moe");
    let mut saved = published.clone();
    for tensor in saved.tensors.iter_mut().filter(|t| t.name.contains(".mlp.experts.")) {
        let [n, rows, cols] = tensor.shape[..] else { panic!("{:?}", tensor.shape) };
        let at = |e: usize, c: usize, r: usize| ((e * rows + r) * cols + c) * 2;
        let turned: Vec<u8> = (0..n * cols * rows)
            .map(|i| at(i / (cols * rows), i / rows % cols, i % rows))
            .flat_map(|at| tensor.data[at..at + 2].to_vec())
            .collect();
        (tensor.shape, tensor.data) = (vec![n, cols, rows], Bytes::from_slice(&turned));
    }
    let logits = |checkpoint: &Checkpoint| {
        let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
        assert!(spec.unused_tensors.is_empty() && !spec.tied_head, "{:?}", spec.unused_tensors);
        Runner::new(&spec.plan(checkpoint).unwrap()).step(&[3, 17, 5, 99, 42]).0
    };
    assert_eq!(logits(&published), logits(&saved));
    let written = |checkpoint: &Checkpoint| {
        let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
        let export = to_gguf(checkpoint, &spec, "x", None).unwrap();
        let tensors = (0..export.declarations().len()).map(|i| export.tensor(i).unwrap());
        tensors.map(|t| (t.name.clone(), t.shape.clone(), t.to_f32())).collect::<Vec<_>>()
    };
    assert_eq!(written(&published), written(&saved));
    let tensor = saved.tensors.iter_mut().find(|t| t.name.ends_with("1.mlp.experts.down_proj")).unwrap();
    tensor.shape = vec![6, 32, 48];
    let error = ModelSpec::from_checkpoint(&saved).unwrap_err().to_string();
    assert!(error.contains("1.mlp.experts.down_proj") && error.contains("[6, 32, 48]"), "{error}");
}

/// A test uses every folder of `fixtures/models`: this one, or one of those named here.
#[test]
fn every_fixture_is_compared() {
    let elsewhere = [
        "bert",                 // tests/encoder.rs: hidden states
        "modernbert",           // tests/encoders.rs: hidden states and vectors
        "xlm_roberta",          // as above
        "xlm_roberta_reranker", // as above
        "nomic_bert",           // as above
        "jina_embeddings_v3",   // as above
        "embedding_gemma",      // as above
        "qwen3_embedding",      // as above
        "qwen3_reranker",       // as above
        "whisper",              // tests of speech
        "smolvlm",              // engine/tests/vision.rs
        "gemma3_vl",            // as above
        "gemma4_vl",            // as above
        "gemma4_moe_vl",        // as above
        "qwen2_5_vl",           // as above
        "qwen3_vl",             // as above
        "qwen3_vl_moe",         // as above
        "qwen3_5_vl",           // as above
        "qwen2_key_biases",     // engine/tests/kv_types.rs
    ];
    for entry in std::fs::read_dir(common::folder("")).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            let known = all().chain(elsewhere).any(|known| known == name);
            assert!(known, "fixtures/models/{name} is compared with nothing");
        }
    }
}
