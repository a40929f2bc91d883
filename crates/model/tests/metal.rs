//! Every family's plan on the emulated Metal device gives transformers' results: decoders with and
//! without experts, an encoder, and speech. Prompts run in one chunk, in chunks of seven rows, and
//! row by row.
//!
//! The fixtures have BF16 weights, which the device multiplies in f32, tiles included. Keys and
//! values are kept in f32 here, so the interpreter's bound applies.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::common::speech::{NAME, agrees_with_fixture, worst};
use crate::common::{
    DENSE, LATER, MIXED, OTHER, RECURRENT, Runner, TOLERANCE, check_with, difference, emulated_metal,
    expected, json, open,
};
use device::Numerics;
use model::ModelSpec;

/// Step lengths for a prompt of `n_rows` rows; the last length repeats. The prompt runs whole, and
/// in chunks with the last dozen rows one by one. Only runs of more cases go row by row from the
/// start, which takes as long as both.
fn ways(n_rows: usize) -> Vec<Vec<usize>> {
    let mut mixed = vec![7; n_rows.saturating_sub(12).div_ceil(7)];
    mixed.push(1);
    let mut ways = vec![vec![n_rows], mixed];
    if device_testing::cases(1) > 1 {
        ways.push(vec![1]);
    }
    ways
}

fn agree(names: &[&str]) {
    let device = emulated_metal();
    for name in names {
        let checkpoint = open(name);
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        for lengths in ways(expected(name).input_ids.len()) {
            let worst = check_with(Runner::on(&device, &plan, Numerics::Fast), name, &lengths);
            println!("{name}: steps of {lengths:?}: {worst:.1e}");
        }
    }
}

#[test]
fn dense_fixtures_agree() {
    agree(&DENSE);
}

#[test]
fn other_fixtures_agree() {
    agree(&OTHER);
}

#[test]
fn fixtures_with_experts_agree() {
    agree(&MIXED);
}

/// Sigmoid and grouped routers, biases of experts, clamped gates, sinks, chunked windows, caches
/// whose values are their keys.
#[test]
fn fixtures_with_other_routers_windows_and_caches_agree() {
    let in_f32: Vec<&str> = LATER.into_iter().filter(|name| *name != MXFP4).collect();
    agree(&in_f32);
}

const MXFP4: &str = "gpt_oss_mxfp4";

/// Tiles multiply 4-bit experts with activations rounded to half precision: by 2^-11 of logits of
/// magnitude 10.
#[test]
fn a_fixture_with_experts_of_four_bits_agrees() {
    let device = emulated_metal();
    let checkpoint = open(MXFP4);
    let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
    let runner = || Runner::on(&device, &plan, Numerics::Fast);
    check_with(runner(), MXFP4, &[7]);
    check_with(runner(), MXFP4, &[1]);
    let worst = difference(runner(), MXFP4, &[40]);
    assert!(worst < 10.0 / 2048.0, "{worst}");
}

/// Short convolutions, the gated delta rule, selective scans.
#[test]
fn recurrent_fixtures_agree() {
    agree(&RECURRENT);
}

#[test]
fn an_encoder_agrees() {
    let checkpoint = open("bert");
    let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
    let json = json("bert/expected.json");
    let row = |v: &serde_json::Value| -> Vec<f32> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
    };
    let ids: Vec<u32> = row(&json["input_ids"]).into_iter().map(|v| v as u32).collect();
    let expected: Vec<Vec<f32>> = json["last_hidden_state"].as_array().unwrap().iter().map(row).collect();
    let (found, _) = Runner::on(&emulated_metal(), &plan, Numerics::Fast).step(&ids);
    let difference = worst(&found, &expected);
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn speech_agrees() {
    agrees_with_fixture(&emulated_metal(), "metal-emulated", Numerics::Fast, &open(NAME), &[]);
}
