//! Adapters of the fixtures give PEFT's results: under Hugging Face and GGUF names, on every
//! device, and with quantised matrices.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use crate::common::{Runner, TOLERANCE, cut, open};
use device::{Device, Numerics, Plan};
use device_reference::Reference;
use formats::convert::{self, Options, Plan as Conversion, Target};
use formats::gguf::{MetaValue, Writer};
use model::{Adapter, ModelSpec, to_gguf};
use weights::{Access, BlockType, Bytes, Checkpoint, Value};

/// Fixtures of adapters, made by make_adapters.py.
const ADAPTERS: [&str; 9] = [
    "llama_qv",
    "llama_patterns",
    "llama_layers",
    "qwen3_all",
    "qwen2_head",
    "phi3_stacked",
    "gpt2_turned",
    "granite_scan",
    "mixtral_attention",
];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/lora").join(name)
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join("expected.json")).unwrap()).unwrap()
}

fn base(name: &str) -> Checkpoint {
    open(json(name)["base"].as_str().unwrap())
}

fn adapter(name: &str) -> Adapter {
    let checkpoint = formats::open_adapter(&folder(name), Access::Map).unwrap();
    Adapter { name: name.to_owned(), checkpoint, factor: 1.0 }
}

fn plan(checkpoint: &Checkpoint, adapters: &[Adapter]) -> Plan {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    spec.adapted_plan(checkpoint, spec.n_ctx_train, adapters).unwrap()
}

/// The largest difference from PEFT's logits, with the prompt in steps of these lengths; the last
/// length repeats.
fn difference(mut runner: Runner, name: &str, lengths: &[usize]) -> f32 {
    let json = json(name);
    let numbers = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let ids: Vec<u32> = numbers(&json["input_ids"]).into_iter().map(|v| v as u32).collect();
    let rows: Vec<Vec<f32>> =
        cut(&ids, lengths).into_iter().flat_map(|tokens| runner.step(tokens).0).collect();
    let positions = numbers(&json["positions"]).into_iter().map(|v| v as usize);
    let mut worst = 0.0f32;
    for (position, wanted) in positions.zip(json["logits"].as_array().unwrap()) {
        for (found, wanted) in rows[position].iter().zip(numbers(wanted)) {
            worst = worst.max((found - wanted as f32).abs());
        }
    }
    worst
}

fn agree_on(device: &dyn Device, names: &[&str], ways: &[&[usize]]) {
    for name in names {
        let plan = plan(&base(name), &[adapter(name)]);
        for lengths in ways {
            let worst = difference(Runner::on(device, &plan, Numerics::Fast), name, lengths);
            println!("{name} on {}: steps of {lengths:?}: {worst:.1e}", device.name());
            assert!(worst < TOLERANCE, "{name} on {}, steps of {lengths:?}: {worst}", device.name());
        }
    }
}

#[test]
fn adapters_agree_with_peft() {
    agree_on(&Reference::new(2), &ADAPTERS, &[&[100], &[7], &[1]]);
}

#[test]
fn adapters_agree_with_peft_on_the_cpu() {
    for isa in device_cpu::Isa::available() {
        let options = device_cpu::Options { isa: Some(isa), threads: Some(2) };
        agree_on(&device_cpu::CpuDevice::new(options).unwrap(), &ADAPTERS, &[&[100], &[7], &[1]]);
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn adapters_agree_with_peft_on_metal() {
    let device = crate::common::emulated_metal();
    let names =
        ["llama_patterns", "qwen3_all", "qwen2_head", "phi3_stacked", "gpt2_turned", "mixtral_attention"];
    agree_on(&device, &names, &[&[100], &[7, 7, 7, 7, 1]]);
}

/// Each of several adapters changes its own rows, and rows without an adapter stay unchanged.
#[test]
fn sequences_choose_among_adapters() {
    let names = ["llama_patterns", "llama_qv", "llama_layers"];
    let adapters: Vec<Adapter> = names.iter().map(|name| adapter(name)).collect();
    let checkpoint = base(names[0]);
    let plan = plan(&checkpoint, &adapters);
    for (index, name) in (1..).zip(names) {
        let runner = Runner::new(&plan).with_adapter(index);
        let worst = difference(runner, name, &[40]);
        assert!(worst < TOLERANCE, "{name}: {worst}");
    }
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 160).collect();
    let without = Runner::new(&plan).with_adapter(0).step(&tokens);
    let plain = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
    assert_eq!(without, Runner::new(&plain).step(&tokens));
}

/// A doubled factor changes the result, and a factor of 0 is like no adapter.
#[test]
fn the_factor_counts() {
    let tokens = [5, 9, 33, 2];
    let of = |factor| {
        let adapter = Adapter { factor, ..adapter("llama_qv") };
        Runner::new(&plan(&base("llama_qv"), &[adapter])).step(&tokens).0.concat()
    };
    let plain = of(0.0);
    let change = |logits: Vec<f32>| logits.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(change(of(1.0)) > 0.5 && change(of(2.0)) > change(of(1.0)));
}

/// The base model as a GGUF file.
fn as_gguf(checkpoint: &Checkpoint, to: &str) -> Checkpoint {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let exported = to_gguf(checkpoint, &spec, "A fixture", None).unwrap();
    let target = Target::parse(to).unwrap();
    let options = Options { target, profile: None, requantize: false, force: false };
    let conversion = Conversion::new(&exported, &options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    convert::run(&exported, &conversion, "", &[], &path, &options, &mut |_| {}).unwrap();
    formats::open(&path, Access::Read).unwrap()
}

/// The adapter `llama_qv` as llama.cpp's converter writes it, with the rows of B permuted for
/// neighbouring columns.
fn gguf_adapter(path: &Path) -> Adapter {
    let source = adapter("llama_qv").checkpoint;
    let head = 16;
    let mut tensors = Vec::new();
    for tensor in &source.tensors {
        let name = tensor.name.strip_prefix("base_model.model.model.layers.").unwrap();
        let (layer, name) = name.split_once('.').unwrap();
        let which = if name.starts_with("self_attn.q_proj") { "q" } else { "v" };
        let half = if name.contains("lora_A") { "a" } else { "b" };
        let (values, cols) = (tensor.to_f32(), tensor.shape[1]);
        let row = |r: usize| match (which, half) {
            ("q", "b") => r / head * head + r % head / 2 + r % 2 * (head / 2),
            _ => r,
        };
        let rows = (0..tensor.shape[0]).flat_map(|r| values[row(r) * cols..(row(r) + 1) * cols].to_vec());
        let data: Vec<u8> = rows.flat_map(f32::to_le_bytes).collect();
        tensors.push((format!("blk.{layer}.attn_{which}.weight.lora_{half}"), tensor.shape.clone(), data));
    }
    let mut writer = Writer::new();
    for (key, value) in
        [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
    {
        writer.metadata(key, MetaValue::from_value(&Value::Str(value.to_owned())).unwrap()).unwrap();
    }
    writer.metadata("adapter.lora.alpha", MetaValue::from_value(&Value::Float(8.0)).unwrap()).unwrap();
    for (name, shape, _) in &tensors {
        writer.tensor(name, shape, BlockType::F32).unwrap();
    }
    let mut body = writer.begin(std::fs::File::create(path).unwrap()).unwrap();
    tensors.iter().for_each(|(.., data)| body.tensor_data(data).unwrap());
    body.finish().unwrap();
    Adapter {
        name: "gguf".to_owned(),
        checkpoint: formats::open_adapter(path, Access::Read).unwrap(),
        factor: 1.0,
    }
}

#[test]
fn either_names_of_an_adapter_fit_either_names_of_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = gguf_adapter(&folder.path().join("adapter.gguf"));
    let own = base("llama_qv");
    for checkpoint in [as_gguf(&own, "gguf"), own] {
        for adapter in [gguf.clone(), adapter("llama_qv")] {
            let plan = plan(&checkpoint, std::slice::from_ref(&adapter));
            let worst = difference(Runner::new(&plan), "llama_qv", &[40]);
            assert!(worst < TOLERANCE, "{} beside {:?}: {worst}", adapter.name, checkpoint.naming);
        }
    }
}

/// An adapter beside 8-bit blocks gives the same result as beside their decoded values.
#[test]
fn adapters_fit_quantised_matrices() {
    for name in ["llama_patterns", "qwen3_all"] {
        let blocks = as_gguf(&base(name), "gguf:q8_0");
        let mut numbers = blocks.clone();
        for tensor in &mut numbers.tensors {
            let bytes: Vec<u8> = tensor.to_f32().into_iter().flat_map(f32::to_le_bytes).collect();
            (tensor.block, tensor.data) = (BlockType::F32, Bytes::from_slice(&bytes));
        }
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 150).collect();
        let logits = |checkpoint: &Checkpoint| {
            Runner::new(&plan(checkpoint, &[adapter(name)])).step(&tokens).0.concat()
        };
        let pairs = logits(&blocks).into_iter().zip(logits(&numbers));
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < TOLERANCE, "{name}: {worst}");
    }
}

/// The adapter with one key of its configuration changed.
fn with(name: &str, key: &str, value: Value) -> Adapter {
    let mut adapter = adapter(name);
    let mut metadata = weights::Metadata::default();
    adapter.checkpoint.metadata.iter().filter(|(k, _)| *k != key).for_each(|(k, v)| {
        metadata.insert(k.to_owned(), v.clone());
    });
    metadata.insert(key.to_owned(), value);
    adapter.checkpoint.metadata = metadata;
    adapter
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let refused = |base: &str, adapter: Adapter, expected: &str| {
        let checkpoint = open(base);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
        let error = spec.adapted_plan(&checkpoint, 64, &[adapter]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused("llama", with("llama_qv", "use_dora", Value::Bool(true)), "use_dora");
    refused("llama", with("llama_qv", "bias", Value::Str("all".into())), "bias");
    refused("llama", with("llama_qv", "peft_type", Value::Str("LOHA".into())), "\"LORA\"");
    refused("llama", with("llama_qv", "alpha_pattern.q.*", Value::Int(3)), "regular expression");
    // These adapters belong to other models: their shapes or names differ.
    refused("qwen3", adapter("llama_qv"), "(rank, 64) and (128, rank)");
    refused(
        "gpt2",
        adapter("llama_qv"),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight and 15 more",
    );
    let mut half = adapter("llama_qv");
    half.checkpoint
        .tensors
        .retain(|tensor| !tensor.name.ends_with("layers.2.self_attn.q_proj.lora_B.weight"));
    refused("llama", half, "layers.2.self_attn.q_proj.lora_A.weight");
    let mut none = adapter("llama_qv");
    none.checkpoint.tensors.clear();
    refused("llama", none, "pairs of matrices");
}
