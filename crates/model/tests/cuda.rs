//! Every family's plan on the CUDA device gives transformers' results: decoders with and without
//! experts, an encoder, and speech. The tests need an NVIDIA GPU: `cargo xtask gpu-test` bundles
//! them, and `cargo xtask full` runs them on an emulated one.
//!
//! Deterministic programs, and fast ones of one row, multiply the fixtures' BF16 weights in f32, so
//! the interpreter's bound applies. Fast programs of several rows round factors to half precision.
//! Keys and values are f32 here.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::common::speech::{NAME, agrees_with_fixture, worst};
use crate::common::{HALVES, Runner, TOLERANCE, all, failures, json, open};
use device::Numerics;
use device_cuda::CudaDevice;
use device_testing::EmulatedGpu;
use model::ModelSpec;

fn agree(names: impl Iterator<Item = &'static str>) {
    let device = CudaDevice::new(0).unwrap();
    let cases = [
        (40, Numerics::Deterministic, TOLERANCE),
        (7, Numerics::Deterministic, TOLERANCE),
        (32, Numerics::Fast, HALVES),
        (7, Numerics::Fast, HALVES),
        (1, Numerics::Fast, TOLERANCE),
    ];
    let mut failed = Vec::new();
    for name in names {
        let checkpoint = open(name);
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        failed.extend(failures(&device, &plan, name, &cases));
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn all_fixtures_agree_on_cuda() {
    agree(all());
}

/// One fixture of each kind.
#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn a_few_fixtures_agree_on_cuda() {
    agree(["gemma3", "qwen3_moe", "lfm2"].into_iter());
}

/// The emulator runs the kernels, and the code around them, on a CPU.
#[test]
fn a_few_agree_on_an_emulated_gpu() {
    let tests = ["a_few_fixtures_agree_on_cuda", "an_encoder_agrees_on_cuda", "speech_agrees_on_cuda"];
    let tests = tests.map(|name| format!("cuda::{name}"));
    let gpu = EmulatedGpu::build(env!("CARGO_TARGET_TMPDIR")).unwrap();
    gpu.test(12, &tests.each_ref().map(String::as_str)).unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn an_encoder_agrees_on_cuda() {
    let checkpoint = open("bert");
    let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
    let json = json("bert/expected.json");
    let row = |v: &serde_json::Value| -> Vec<f32> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
    };
    let ids: Vec<u32> = row(&json["input_ids"]).into_iter().map(|v| v as u32).collect();
    let expected: Vec<Vec<f32>> = json["last_hidden_state"].as_array().unwrap().iter().map(row).collect();
    let device = CudaDevice::new(0).unwrap();
    let (found, _) = Runner::on(&device, &plan, Numerics::Deterministic).step(&ids);
    let difference = worst(&found, &expected);
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn speech_agrees_on_cuda() {
    let device = CudaDevice::new(0).unwrap();
    agrees_with_fixture(&device, "cuda", Numerics::Deterministic, &open(NAME), &[5]);
}
