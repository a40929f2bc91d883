//! The engine on the CPU device: what it may change (rounding) and what it may not.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{greedy, model, options};
use device::{Device, Numerics};
use device_cpu::{CpuDevice, Options};
use ingle_engine::*;

const FAMILIES: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "gemma3"];

fn engine(name: &str, options: &LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap());
    Engine::new(model(name), &device, options).unwrap()
}

fn prompt() -> Vec<u32> {
    (0..45).map(|i| (i * 37 + 11) % 150).collect()
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

/// With [`Numerics::Deterministic`] an answer does not depend on chunks, on reuse, or on what shares the steps: not even
/// the last bit of a log-probability.
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
