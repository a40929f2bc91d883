//! Tests of draft tokens by a model's own next-token layer. They are right where its fixture says
//! so, which shows that its states, tokens and positions are right. They do not affect the answer.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use device::{Device, KvType, Numerics};
use device_reference::Reference;
use ingle_engine::*;
use weights::Access;

const FIXTURES: [&str; 4] = ["deepseek_v3_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"];

/// Number of tokens of the answer to which the layer is fitted: it drafts every one after the first
/// correctly.
const FITTED: usize = 30;

fn open(name: &str) -> Model {
    let checkpoint = formats::open(&fixture(name), Access::Map).unwrap();
    Model::from_opened(&fixture(name), checkpoint, &TokenizerSource::None).unwrap()
}

/// The fixture's answer of 60 tokens.
fn answer(name: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["answer"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn devices() -> [Arc<dyn Device>; 2] {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    [Arc::new(Reference::new(1)), Arc::new(cpu)]
}

fn engine(name: &str, device: &Arc<dyn Device>, speculate: Speculate, options: LoadOptions) -> Engine {
    let options = LoadOptions {
        speculate,
        numerics: if device.name() == "metal-emulated" { Numerics::Fast } else { Numerics::Deterministic },
        kv_type: Some(KvType::F32),
        check_memory: false,
        ..options
    };
    Engine::new(Arc::new(open(name).predicting().unwrap()), device, &options).unwrap()
}

fn request(tokens: &[u32], n: usize) -> Request {
    Request { ignore_end: true, ..greedy(tokens, n) }
}

#[test]
fn guesses_are_those_of_the_layer_and_answers_are_those_of_the_model() {
    for device in devices() {
        for name in FIXTURES {
            let (prompt, answer) = (expected(name).input, answer(name));
            for (chunk, max_draft) in [(64, 1), (7, 1), (1, 1), (16, 3)] {
                let what = format!("{name} on {}, chunks of {chunk}, {max_draft} guesses", device.name());
                let load = LoadOptions { max_draft, ..options(128, chunk, 1) };
                let mut engine = engine(name, &device, Speculate::Always, load);
                let got = engine.complete(request(&prompt, FITTED)).unwrap();
                assert_eq!(got.tokens, answer[..FITTED], "{what}");
                let t = got.finished.timings;
                match max_draft {
                    // Each step after the first gives two tokens.
                    1 => assert_eq!((t.drafted_tokens, t.accepted_tokens), (14, 14), "{what}"),
                    _ => assert!(t.accepted_tokens >= 14 && t.drafted_tokens > 14, "{what}: {t:?}"),
                }
                // Beyond these tokens most draft tokens are wrong.
                let got = engine.complete(Request { reuse: false, ..request(&prompt, 60) }).unwrap();
                assert_eq!(got.tokens, answer, "{what}, all");
                let t = got.finished.timings;
                assert!(t.accepted_tokens < t.drafted_tokens, "{what}: {t:?}");
                // Wrong draft tokens do not end drafting: with recurrent layers, two of three steps
                // have one.
                assert!(t.drafted_tokens >= 30, "{what}: {t:?}");
                engine.kv().check().unwrap();
            }
        }
    }
}

/// On the emulated GPU, whose sums have another order, the fitted layer drafts correctly too.
#[test]
fn guesses_on_metal_are_right_as_often() {
    let Some(metal) = emulated_metal() else { return };
    for name in FIXTURES {
        let (prompt, answer) = (expected(name).input, answer(name));
        let load = LoadOptions { max_draft: 1, ..options(128, 64, 1) };
        let mut engine = engine(name, &metal, Speculate::Always, load);
        let got = engine.complete(request(&prompt, FITTED)).unwrap();
        assert_eq!(got.tokens, answer[..FITTED], "{name}");
        let t = got.finished.timings;
        assert!(t.accepted_tokens >= 12 && t.drafted_tokens <= 17, "{name}: {t:?}");
    }
}

/// The layer's keys and values are in the sequence's pages, so the prefix cache has them and a fork
/// shares them.
#[test]
fn what_is_reused_holds_the_layer_too() {
    for device in devices() {
        for name in FIXTURES {
            let (prompt, answer) = (expected(name).input, answer(name));
            // On any machine, a prompt beside an answer takes one step for each of its chunks.
            let token_latency = Some(Duration::from_secs(3600));
            let load = LoadOptions { max_draft: 1, token_latency, ..options(128, 16, 2) };
            let mut engine = engine(name, &device, Speculate::Always, load);
            engine.complete(request(&prompt, 4)).unwrap();
            let again = engine.complete(request(&prompt, FITTED)).unwrap();
            let t = again.finished.timings;
            assert_eq!(again.tokens, answer[..FITTED]);
            assert!(t.reused_tokens >= 32, "{t:?}");
            assert_eq!((t.drafted_tokens, t.accepted_tokens), (14, 14), "{name} on {}", device.name());

            // Two sequences that share steps have draft tokens of their own.
            let other: Vec<u32> = prompt.iter().map(|t| (t + 5) % 150 + 3).collect();
            let alone = engine.complete(Request { reuse: false, ..request(&other, 25) }).unwrap().tokens;
            let first = engine.add(Request { reuse: false, ..request(&prompt, FITTED) }).unwrap();
            let second = engine.add(Request { reuse: false, ..request(&other, 25) }).unwrap();
            let mut got: HashMap<SequenceId, Vec<u32>> = HashMap::new();
            let mut accepted = HashMap::new();
            let mut note = |event: Event<'_>| match event {
                Event::Token { sequence, id, .. } => got.entry(sequence).or_default().push(id),
                Event::Done { sequence, timings, .. } => {
                    accepted.insert(sequence, (timings.accepted_tokens, timings.drafted_tokens));
                }
                _ => {}
            };
            while engine.step(&mut note).unwrap() {}
            assert_eq!(got[&first], answer[..FITTED]);
            assert_eq!(got[&second], alone);
            // Steps with rows of the other's prompt have no draft tokens: two more steps for models
            // with recurrent layers.
            let n_guesses = if name.starts_with("qwen3") { 11 } else { 13 };
            assert_eq!(accepted[&first], (n_guesses, n_guesses), "{name} on {}", device.name());
        }
    }
}

#[test]
fn sampling_sliding_and_measured_speculation_change_nothing() {
    let device = devices()[1].clone();
    for name in FIXTURES {
        let prompt = expected(name).input;
        let sampling = SamplingParams { seed: Some(3), temperature: 0.8, ..SamplingParams::default() };
        let run = |speculate: Speculate| {
            let load = LoadOptions { max_draft: 4, ..options(64, 16, 1) };
            let mut engine = engine(name, &device, speculate, load);
            let sampled =
                engine.complete(Request { sampling: sampling.clone(), ..request(&prompt, 20) }).unwrap();
            let slid = Request { overflow: Overflow::Slide { keep: 5 }, ..request(&prompt, 90) };
            let slid = engine.complete(slid).unwrap();
            engine.kv().check().unwrap();
            (sampled.tokens, slid.tokens, sampled.finished.timings.drafted_tokens)
        };
        let (want, always, auto) = (run(Speculate::Off), run(Speculate::Always), run(Speculate::Auto));
        assert_eq!((&want.0, &want.1), (&always.0, &always.1), "{name}");
        assert_eq!((&want.0, &want.1), (&auto.0, &auto.1), "{name}");
        assert!(want.2 == 0 && always.2 > 0);
    }
}

#[test]
fn a_model_without_the_layer_says_so() {
    let error = open("deepseek_v2").predicting().unwrap_err().to_string();
    assert!(error.contains("deepseek_v2") && error.contains("nextn"), "{error}");
}
