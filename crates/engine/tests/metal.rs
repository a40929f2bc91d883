//! Tests of the engine on the emulated Metal device: answers with steps in flight equal those of
//! single steps.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use crate::common::{emulated_metal, greedy, model, options};
use device::KvType;
use ingle_engine::*;

fn engine(name: &str, options: &LoadOptions) -> Engine {
    Engine::new(model(name), &emulated_metal().unwrap(), options).unwrap()
}

fn prompt() -> Vec<u32> {
    (0..45).map(|i| (i * 37 + 11) % 150).collect()
}

/// Families that write text, first those with different demands on steps in flight: pages without a
/// window and with one, recurrent states, latent attention, experts.
const FAMILIES: [&str; 21] = [
    "llama",
    "gemma3",
    "qwen3_5_moe",
    "deepseek_v3",
    "gemma4_e2b",
    "lfm2_moe",
    "mistral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma4_moe",
    "gemma3n",
    "smollm3",
    "phi3",
    "granite",
    "olmo2",
    "falcon_h1",
    "deepseek_v2",
    "llama4",
];

/// Windows are included, so pages are freed while steps are in flight. A profile runs step by step.
/// Runs of more cases have all families.
#[test]
fn answers_with_steps_in_flight_are_those_of_single_steps() {
    let families = if device_testing::cases(1) > 1 { &FAMILIES[..] } else { &FAMILIES[..6] };
    for name in families {
        let options = LoadOptions { kv_type: Some(KvType::F16), ..options(96, 32, 1) };
        let mut engine = engine(name, &options);
        let request = || Request { ignore_end: true, ..greedy(&prompt(), 12) };
        let ahead = engine.complete(request()).unwrap();
        engine.clear_prefix_cache();
        engine.record_timings(true);
        let single = engine.complete(request()).unwrap();
        let steps = engine.take_timings();
        assert_eq!(ahead.tokens, single.tokens, "{name}");
        assert_eq!(ahead.tokens.len(), 12, "{name}");
        assert!(steps.iter().filter(|step| step.n_rows == 1).count() >= 11, "{name}");
    }
}

/// Rows cached by steps in flight serve the next turn.
#[test]
fn the_next_turn_begins_where_the_answer_ended() {
    for name in ["qwen3", "gemma3"] {
        let options = LoadOptions { kv_type: Some(KvType::F16), ..options(96, 32, 1) };
        let mut engine = engine(name, &options);
        let mut longer = prompt();
        longer.extend(engine.complete(greedy(&prompt(), 30)).unwrap().tokens);
        let reused = engine.complete(greedy(&longer, 5)).unwrap();
        assert!(reused.finished.timings.reused_tokens > 60, "{name}: {:?}", reused.finished.timings);
        engine.clear_prefix_cache();
        assert_eq!(reused.tokens, engine.complete(greedy(&longer, 5)).unwrap().tokens, "{name}");
    }
}

/// The answer ends at the end of the context, and when it is cancelled.
#[test]
fn steps_in_flight_end_where_answers_end() {
    let mut engine = engine("llama", &options(64, 32, 1));
    let full = engine.complete(greedy(&prompt(), 1000)).unwrap();
    assert_eq!(full.tokens.len(), 64 - 45);
    assert_eq!(full.finished.reason, FinishReason::ContextFull);
    let request = greedy(&prompt(), 1000);
    let cancel = request.cancel.clone();
    let mut n = 0;
    let finished = engine
        .generate(request, |event| {
            if let Event::Token { .. } = event {
                n += 1;
                if n == 3 {
                    cancel.cancel();
                }
            }
        })
        .unwrap();
    assert_eq!(finished.reason, FinishReason::Cancelled);
    assert!(n <= 4, "{n}");
    assert_eq!(engine.complete(greedy(&prompt(), 1000)).unwrap().tokens, full.tokens);
}

/// A seed gives the same answer with and without steps in flight, for all sampling parameters;
/// those that need the host run step by step.
#[test]
fn sampled_answers_are_those_of_single_steps() {
    let seeded = SamplingParams { seed: Some(11), ..SamplingParams::default() };
    let stages = SamplingParams { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.02, ..seeded.clone() };
    let penalties = SamplingParams {
        repeat_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        penalty_window: 20,
        ..stages.clone()
    };
    let options = LoadOptions { kv_type: Some(KvType::F16), ..options(96, 32, 1) };
    let mut engine = engine("qwen3", &options);
    let mut answers = Vec::new();
    for sampling in [
        seeded.clone(),
        stages.clone(),
        SamplingParams { top_p: 0.8, ..seeded },
        penalties.clone(),
        SamplingParams { penalty_window: 0, ..penalties.clone() },
        SamplingParams { temperature: 0.0, ..penalties.clone() },
        SamplingParams { logit_bias: [(3, 5.0)].into(), ..stages.clone() },
        SamplingParams { logprobs: true, ..stages },
    ] {
        let request = || Request { sampling: sampling.clone(), ..greedy(&prompt(), 16) };
        engine.clear_prefix_cache();
        let ahead = engine.complete(request()).unwrap();
        engine.clear_prefix_cache();
        engine.record_timings(true);
        let single = engine.complete(request()).unwrap();
        engine.take_timings();
        engine.record_timings(false);
        assert_eq!(ahead.tokens, single.tokens, "{sampling:?}");
        assert_eq!(ahead.tokens.len(), 16);
        answers.push(ahead.tokens);
    }
    answers.dedup();
    assert!(answers.len() >= 6, "{answers:?}");
}

/// Random numbers continue where steps in flight and single steps alternate.
#[test]
fn random_numbers_go_on_between_both_kinds_of_steps() {
    let options = LoadOptions { kv_type: Some(KvType::F16), ..options(96, 32, 1) };
    let mut engine = engine("llama", &options);
    let sampling = SamplingParams { seed: Some(4), ..SamplingParams::default() };
    let request = || Request { sampling: sampling.clone(), ..greedy(&prompt(), 24) };
    let whole = engine.complete(request()).unwrap();
    engine.clear_prefix_cache();
    engine.add(request()).unwrap();
    let mut tokens = Vec::new();
    for round in 0.. {
        // Some rounds run step by step.
        engine.record_timings(round % 2 == 0);
        let more = engine
            .step(&mut |event| {
                if let Event::Token { id, .. } = event {
                    tokens.push(id);
                }
            })
            .unwrap();
        if !more {
            break;
        }
    }
    assert_eq!(tokens, whole.tokens);
}
