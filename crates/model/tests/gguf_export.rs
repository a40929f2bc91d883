//! Every fixture exported under GGUF names, written to a file and read again, gives the same
//! results.
#![allow(clippy::unwrap_used)]

use crate::common::{RECURRENT, Runner, TOLERANCE, all, check, json, open};
use formats::convert::{self, Options, Plan, Target};
use model::{EmbeddingSpec, GgufExport, ModelSpec, to_gguf};
use weights::Source;
use weights::{Access, Array, BlockType, Checkpoint, Metadata, Naming, Value};

fn export(checkpoint: &Checkpoint) -> Result<GgufExport, model::Error> {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    to_gguf(checkpoint, &spec, "A fixture", None)
}

/// The export, written to a file and read again.
fn through_a_file(checkpoint: &Checkpoint) -> Checkpoint {
    written_as(checkpoint, "gguf")
}

fn written_as(checkpoint: &Checkpoint, to: &str) -> Checkpoint {
    let exported = export(checkpoint).unwrap();
    let target = Target::parse(to).unwrap();
    let options = Options { target, profile: None, requantize: false, force: false };
    let plan = Plan::new(&exported, &options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    convert::run(&exported, &plan, "", &[], &path, &options, &mut |_| {}).unwrap();
    formats::open(&path, Access::Read).unwrap()
}

/// The checkpoint with some keys of config.json changed or removed.
fn with_keys(mut checkpoint: Checkpoint, changes: &[(&str, Option<Value>)]) -> Checkpoint {
    let mut metadata = Metadata::default();
    for (key, value) in checkpoint.metadata.iter() {
        if !changes.iter().any(|(changed, _)| *changed == key) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    for (key, value) in changes {
        if let Some(value) = value {
            metadata.insert((*key).to_owned(), value.clone());
        }
    }
    checkpoint.metadata = metadata;
    checkpoint
}

fn text(s: &str) -> Option<Value> {
    Some(Value::Str(s.to_owned()))
}

/// Logits of some tokens on the reference interpreter.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % spec.n_vocab as u32).collect();
    Runner::new(&spec.plan(checkpoint).unwrap()).step(&tokens).0.concat()
}

fn same_logits(checkpoint: &Checkpoint) -> Checkpoint {
    let read = through_a_file(checkpoint);
    let (expected, found) = (logits(checkpoint), logits(&read));
    assert_eq!(expected.len(), found.len());
    let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < TOLERANCE, "{worst}");
    read
}

#[test]
fn all_fixtures_agree_with_transformers_after_the_export() {
    // Experts whose matrices alternate are not exported yet, nor a dense layer among layers with
    // experts.
    let refused = ["qwen2_moe", "gpt_oss", "gpt_oss_mxfp4"];
    for name in all().filter(|name| !refused.contains(name)) {
        let checkpoint = through_a_file(&open(name));
        assert_eq!(checkpoint.naming, Naming::Gguf);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(spec.unused_tensors.is_empty(), "{name}: {:?}", spec.unused_tensors);
        let plan = spec.plan(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let worst = check(name, &plan, 40);
        println!("{name}: {worst:.1e}");
    }
}

/// llama.cpp can read the tensors: they are F32 and have the shape where its operations require it.
#[test]
fn recurrent_layers_are_as_llama_cpp_reads_them() {
    let shape_of = |checkpoint: &Checkpoint, name: &str| {
        let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(tensor.block, BlockType::F32, "{name}");
        tensor.shape.clone()
    };
    let first = |checkpoint: &Checkpoint, end: &str| {
        checkpoint.tensors.iter().find(|t| t.name.ends_with(end)).map(|t| t.name.clone()).unwrap()
    };
    for name in RECURRENT {
        let read = written_as(&open(name), "gguf:q8_0");
        let spec = ModelSpec::from_checkpoint(&read).unwrap();
        let r = spec.layers.iter().find_map(|l| l.recurrent).unwrap();
        let taps = match name {
            "kimi_linear" => "ssm_conv1d_k.weight",
            name if name.starts_with("lfm2") => "shortconv.conv.weight",
            _ => "ssm_conv1d.weight",
        };
        assert_eq!(shape_of(&read, &first(&read, taps)).last(), Some(&r.conv_size), "{name}");
        let arch = read.metadata.str("general.architecture").unwrap().to_owned();
        let kv_heads = read.metadata.get(&format!("{arch}.attention.head_count_kv")).unwrap();
        if name == "mamba2" || name.starts_with("qwen") {
            let expected = spec.layers.iter().filter(|l| l.attends).map(|l| l.n_kv_heads).max().unwrap_or(0);
            assert!(matches!(kv_heads, Value::Int(n) if *n == expected as i128), "{name}: {kv_heads:?}");
        } else if spec.layers.iter().any(|l| !l.attends) {
            let Value::Array(Array::Int(list)) = kv_heads else { panic!("{name}: {kv_heads:?}") };
            assert!(list.iter().zip(&spec.layers).all(|(n, l)| (*n == 0) != l.attends), "{name}: {list:?}");
        }
        if name.starts_with("lfm2") {
            continue;
        }
        let rates = shape_of(&read, &first(&read, "ssm_a"));
        if name == "kimi_linear" {
            assert_eq!(rates, [1, 1, r.n_heads, 1]);
            assert_eq!(shape_of(&read, &first(&read, taps)), [r.shared(), 1, r.conv_size]);
            let number = |key: &str| read.metadata.usize(&format!("kimi-linear.{key}"));
            assert_eq!((number("kda.head_dim"), number("ssm.time_step_rank")), (Some(24), None));
            assert_eq!(
                (number("attention.key_length_mla"), number("rope.dimension_count")),
                (Some(24), Some(8))
            );
        } else if name.starts_with("qwen") {
            assert_eq!(rates, [r.n_heads], "{name}");
            assert!(read.metadata.usize(&format!("{arch}.full_attention_interval")).is_some(), "{name}");
            assert!(!read.tensors.iter().any(|t| t.name.contains("ssm_in")), "{name}");
        } else {
            assert_eq!(rates, [r.n_heads, 1], "{name}");
            assert_eq!(shape_of(&read, &first(&read, "ssm_d")), [r.n_heads, 1], "{name}");
        }
        let rates = read.tensor(&first(&read, "ssm_a")).unwrap().to_f32();
        assert!(rates.iter().all(|rate| *rate < 0.0), "{name}: {rates:?}");
    }
}

#[test]
fn an_encoder_agrees_with_transformers_after_the_export() {
    let source = open("bert");
    let exported = export(&source).unwrap();
    assert!(
        exported.unused_tensors.iter().all(|n| n.starts_with("pooler.")),
        "{:?}",
        exported.unused_tensors
    );
    assert_eq!(exported.unused_tensors.len(), 2);
    assert!(exported.notes.iter().any(|note| note.contains("length 1")), "{:?}", exported.notes);
    let checkpoint = through_a_file(&source);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let embedding = EmbeddingSpec::from_checkpoint(&checkpoint, &spec).unwrap().unwrap();
    assert_eq!(embedding.pooling, device::Pooling::Mean);
    assert_eq!(checkpoint.metadata.usize("tokenizer.ggml.token_type_count"), Some(2));
    let expected = json("bert/expected.json");
    let ids: Vec<u32> =
        expected["input_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let (found, _) = Runner::new(&spec.plan(&checkpoint).unwrap()).step(&ids);
    for (found, expected) in found.iter().zip(expected["last_hidden_state"].as_array().unwrap()) {
        for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
            assert!((f64::from(*found) - expected.as_f64().unwrap()).abs() < f64::from(TOLERANCE));
        }
    }
}

#[test]
fn keys_are_of_the_width_that_other_readers_ask_for() {
    for (key, value) in export(&open("gemma3")).unwrap().metadata.iter() {
        if let Value::Float(f) = value {
            assert_eq!(f64::from(*f as f32), *f, "{key} is no f32");
        }
    }
    let exported = through_a_file(&open("gemma3"));
    assert_eq!(exported.metadata.str("general.architecture"), Some("gemma3"));
    assert_eq!(exported.metadata.str("general.name"), Some("A fixture"));
    assert_eq!(exported.metadata.str("tokenizer.ggml.model"), Some("none"));
    assert_eq!(exported.metadata.usize("gemma3.vocab_size"), Some(160));
    assert_eq!(exported.metadata.usize("general.file_type"), Some(32));
    assert_eq!(exported.metadata.f64("gemma3.rope.freq_base_swa"), Some(1e4));
    // Vectors are F32, matrices are unchanged, and the tied head is left out.
    for tensor in &exported.tensors {
        let expected = if tensor.shape.len() == 1 { BlockType::F32 } else { BlockType::BF16 };
        assert_eq!(tensor.block, expected, "{}", tensor.name);
    }
    assert!(exported.tensor("output.weight").is_none() && exported.tensor("token_embd.weight").is_some());
    let mistral = export(&open("mistral")).unwrap();
    assert_eq!(mistral.metadata.str("general.architecture"), Some("llama"));
    assert_eq!(mistral.metadata.usize("llama.attention.sliding_window"), Some(16));
    let eight_bits = written_as(&open("gemma3"), "gguf:q8_0");
    assert_eq!(eight_bits.metadata.usize("general.file_type"), Some(7));
}

#[test]
fn views_stay_views_and_declarations_hold() {
    let source = open("llama");
    let exported = export(&source).unwrap();
    let declarations = exported.declarations();
    for (i, declared) in declarations.iter().enumerate() {
        let tensor = exported.tensor(i).unwrap();
        assert_eq!(
            (tensor.name.as_str(), tensor.shape.as_slice(), tensor.block),
            (declared.name, declared.shape, declared.block)
        );
        if declared.name.ends_with("ffn_up.weight") {
            assert!(tensor.data.is_mapped(), "{} is a copy", declared.name);
        }
    }
    let error = exported.tensor(declarations.len()).unwrap_err().to_string();
    assert!(error.contains(&declarations.len().to_string()), "{error}");
}

#[test]
fn stretched_rotations_keep_their_meaning() {
    let yarn = |mut more: Vec<(&'static str, Option<Value>)>| {
        more.extend([
            ("rope_parameters.rope_type", text("yarn")),
            ("rope_parameters.factor", Some(Value::Float(4.0))),
            ("rope_parameters.original_max_position_embeddings", Some(Value::Int(128))),
        ]);
        with_keys(open("qwen3"), &more)
    };
    same_logits(&yarn(vec![]));
    same_logits(&yarn(vec![
        ("rope_parameters.attention_factor", Some(Value::Float(1.3))),
        ("rope_parameters.beta_fast", Some(Value::Float(20.0))),
    ]));
    let error = export(&yarn(vec![("rope_parameters.truncate", Some(Value::Bool(false)))]));
    assert!(error.unwrap_err().to_string().contains("YaRN"));
    let linear =
        [("rope_parameters.rope_type", text("linear")), ("rope_parameters.factor", Some(Value::Float(3.0)))];
    let read = same_logits(&with_keys(open("llama"), &linear));
    assert!(read.tensor("rope_freqs.weight").is_none());
}

#[test]
fn experts_with_a_shared_one_are_stacked() {
    let one_layer = [
        ("num_hidden_layers", Some(Value::Int(1))),
        ("mlp_only_layers", Some(Value::Array(Array::Int(vec![])))),
        ("layer_types", None),
    ];
    let read = same_logits(&with_keys(open("qwen2_moe"), &one_layer));
    let experts = read.tensor("blk.0.ffn_gate_exps.weight").unwrap();
    assert_eq!(experts.shape, [6, 40, 64]);
    assert_eq!(read.tensor("blk.0.ffn_gate_inp.weight").unwrap().block, BlockType::F32);
}

#[test]
fn experts_in_one_tensor_with_both_matrices_are_taken_apart() {
    let mut source = open("qwen3_moe");
    let mut tensors = Vec::new();
    for l in 0..4 {
        let name = |rest: &str| format!("model.layers.{l}.mlp.experts.{rest}");
        let find = |rest: String| source.tensor(&name(&rest)).unwrap();
        let (mut both, mut down) = (Vec::new(), Vec::new());
        for e in 0..8 {
            both.extend_from_slice(&find(format!("{e}.gate_proj.weight")).data);
            both.extend_from_slice(&find(format!("{e}.up_proj.weight")).data);
            down.extend_from_slice(&find(format!("{e}.down_proj.weight")).data);
        }
        for (rest, shape, data) in
            [("gate_up_proj", vec![8, 96, 64], both), ("down_proj", vec![8, 64, 48], down)]
        {
            let one = find("0.gate_proj.weight".to_owned()).clone();
            let data = weights::Bytes::from_slice(&data);
            tensors.push(weights::Tensor { name: name(rest), shape, data, ..one });
        }
    }
    source.tensors.retain(|t| !t.name.contains(".experts."));
    source.tensors.extend(tensors);
    let read = through_a_file(&source);
    let spec = ModelSpec::from_checkpoint(&read).unwrap();
    check("qwen3_moe", &spec.plan(&read).unwrap(), 40);
}

#[test]
fn what_the_format_has_no_place_for_is_refused() {
    let said = |checkpoint: &Checkpoint| export(checkpoint).unwrap_err().to_string();
    for name in ["gpt_oss", "gpt_oss_mxfp4"] {
        let error = said(&open(name));
        assert!(error.contains("gate_up_proj") && error.contains("alternate"), "{error}");
    }
    // This model has a dense layer among layers with experts.
    let error = said(&open("qwen2_moe"));
    assert!(error.contains("layer 1, experts") && error.contains("None"), "{error}");
    // GGUF files of the family do not have this activation.
    let error = said(&with_keys(open("llama"), &[("hidden_act", text("gelu"))]));
    assert!(error.contains("activation") && error.contains("Silu"), "{error}");
    let layers = Some(Value::Array(Array::Int(vec![1, 0, 1, 1])));
    let error = said(&with_keys(open("smollm3"), &[("no_rope_layers", layers)]));
    assert!(error.contains("layer 1, columns that rotate"), "{error}");
    // Readers of GGUF files derive this from the number of experts.
    let error = said(&with_keys(open("llama4"), &[("use_qk_norm", Some(Value::Bool(false)))]));
    assert!(error.contains("norms of queries and keys") && error.contains("none beside 4"), "{error}");
    // This checkpoint has GGUF names already.
    let read = through_a_file(&open("llama"));
    let spec = ModelSpec::from_checkpoint(&read).unwrap();
    let error = to_gguf(&read, &spec, "x", None).unwrap_err().to_string();
    assert!(error.contains("found GGUF"), "{error}");
}
