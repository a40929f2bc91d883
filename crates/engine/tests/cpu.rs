//! Tests of the engine on the CPU device: it may change rounding, and nothing else.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::{FAMILIES, all_logits, expected, greedy, model, options};
use device::{Device, KvType, Numerics};
use device_cpu::{CpuDevice, Options};
use ingle_engine::*;

fn engine(name: &str, options: &LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap());
    Engine::new(model(name), &device, options).unwrap()
}

fn prompt() -> Vec<u32> {
    (0..45).map(|i| (i * 37 + 11) % 150).collect()
}

/// The weights are BF16, so the arithmetic is f32: with keys and values in f32 the bound is the
/// reference's own. Half precision has 11 bits, 5e-4 of a value. A key with that error moves the
/// logits (up to 10 here) in the third digit. KV of type i16 has a similar error. The ten layers of
/// `gemma4_e2b` amplify any rounding ten times more than the other fixtures do, f32's too; those of
/// `gemma3n` twice.
#[test]
fn logits_agree_with_the_reference_by_every_way_of_prefill() {
    for name in FAMILIES {
        let want = expected(name);
        let f16_bound = match name {
            "gemma4_e2b" => 0.3,
            "gemma3n" => 0.06,
            _ => 0.03,
        };
        for (kv_type, bound) in [(KvType::F32, 1e-3), (KvType::F16, f16_bound), (KvType::I16, f16_bound)] {
            for prefill in [Prefill::Batched, Prefill::PerToken] {
                let options =
                    LoadOptions { kv_type: Some(kv_type), n_outputs: Some(8), ..options(64, 13, 1) };
                let logits = all_logits(&mut engine(name, &options), &want.input, prefill);
                let mut worst = 0f64;
                for (position, want) in want.positions.iter().zip(&want.logits) {
                    let errors =
                        want.iter().zip(&logits[*position]).map(|(want, got)| (f64::from(*got) - want).abs());
                    worst = errors.fold(worst, f64::max);
                }
                println!("{name}, {kv_type:?}, {prefill:?}: {worst:.6}");
                assert!(worst <= bound, "{name}, {kv_type:?}, {prefill:?}: {worst}, bound {bound}");
            }
        }
    }
}

#[test]
fn batched_prefill_agrees_with_token_by_token() {
    for name in FAMILIES {
        for numerics in [Numerics::Fast, Numerics::Deterministic] {
            let options = LoadOptions { numerics, n_outputs: Some(4), ..options(64, 13, 1) };
            let check = engine(name, &options).validate_prefill(&prompt()).unwrap();
            assert!(check.spread > 0.1, "{name}");
        }
    }
}

/// With [`Numerics::Deterministic`] an answer does not depend on chunks, on reuse, or on what
/// shares the steps: not even the last bit of a log-probability.
#[test]
fn deterministic_answers_are_equal_to_the_bit() {
    for name in FAMILIES {
        let request = || Request {
            sampling: SamplingParams { logprobs: true, ..SamplingParams::greedy() },
            ..greedy(&prompt(), 15)
        };
        let load = |chunk, n| LoadOptions { numerics: Numerics::Deterministic, ..options(64, chunk, n) };
        let want = engine(name, &load(64, 1)).complete(request()).unwrap();
        for (chunk, n_sequences) in [(1, 1), (7, 1), (24, 3)] {
            let mut engine = engine(name, &load(chunk, n_sequences));
            for _ in 1..n_sequences {
                engine.add(greedy(&prompt()[3..30], 12)).unwrap();
            }
            for _ in 0..2 {
                let got = engine.complete(request()).unwrap();
                assert_eq!(got.tokens, want.tokens, "{name}, chunk {chunk}");
            }
            if n_sequences == 1 {
                let got = engine.complete(request()).unwrap();
                assert!(got.finished.timings.reused_tokens > 30);
                assert_eq!(got.logprobs, want.logprobs, "{name}, chunk {chunk}");
            }
        }
    }
}
