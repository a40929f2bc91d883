//! Tests of adapters chosen by requests: several in one batch give the same as each alone, and
//! share no cached prefixes.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{all_logits, fixture, greedy, options};
use device::{Device, Numerics};
use ingle_engine::*;
use weights::Access;

const NAMES: [&str; 3] = ["llama_qv", "llama_patterns", "llama_layers"];

fn adapter(name: &str) -> Adapter {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/lora");
    let checkpoint = formats::open_adapter(&folder.join(name), Access::Map).unwrap();
    Adapter { name: name.to_owned(), checkpoint, factor: 1.0 }
}

fn model() -> Arc<Model> {
    let checkpoint = formats::open(&fixture("llama"), Access::Map).unwrap();
    let adapters = NAMES.into_iter().map(adapter).collect();
    let model = Model::from_opened_adapted(&fixture("llama"), checkpoint, &TokenizerSource::None, adapters);
    Arc::new(model.unwrap())
}

fn devices() -> Vec<Arc<dyn Device>> {
    let cpu = device_cpu::Options { threads: Some(2), isa: None };
    vec![Arc::new(device_reference::Reference::new(1)), Arc::new(device_cpu::CpuDevice::new(cpu).unwrap())]
}

fn request(adapter: Option<&str>, tokens: &[u32]) -> Request {
    Request { adapter: adapter.map(Into::into), ignore_end: true, ..greedy(tokens, 9) }
}

fn choices() -> impl Iterator<Item = Option<&'static str>> {
    std::iter::once(None).chain(NAMES.into_iter().map(Some))
}

/// Answers of a model loaded with all adapters, for each choice alone.
fn each_alone(device: &Arc<dyn Device>, options: &LoadOptions, prompt: &[u32]) -> Vec<Vec<u32>> {
    let mut engine = Engine::new(model(), device, options).unwrap();
    choices().map(|name| engine.complete(request(name, prompt)).unwrap().tokens).collect()
}

#[test]
fn a_mixed_batch_gives_what_each_gives_alone() {
    let prompt: Vec<u32> = (0..37).map(|i| (i * 37 + 11) % 150).collect();
    for device in devices() {
        for numerics in [Numerics::Fast, Numerics::Deterministic] {
            let sizes = |n| LoadOptions { numerics, ..options(64, 24, n) };
            let want = each_alone(&device, &sizes(1), &prompt);
            // Each adapter gives a different answer.
            assert!((1..4).all(|i| want[..i].iter().all(|other| *other != want[i])), "{want:?}");
            let mut together = Engine::new(model(), &device, &sizes(4)).unwrap();
            let ids: Vec<_> = choices().map(|name| together.add(request(name, &prompt)).unwrap()).collect();
            let mut got = vec![Vec::new(); ids.len()];
            let mut more = true;
            while more {
                more = together
                    .step(&mut |event| {
                        if let Event::Token { sequence, id, n_reused, .. } = event {
                            assert_eq!(n_reused, 0, "computed with other weights");
                            got[ids.iter().position(|i| *i == sequence).unwrap()].push(id);
                        }
                    })
                    .unwrap();
            }
            assert_eq!(got, want, "{}, {numerics:?}", device.name());
            // Cached rows are found only under the same adapter.
            let again = together.complete(request(Some(NAMES[1]), &prompt)).unwrap();
            assert!(again.finished.timings.reused_tokens > 30);
            assert_eq!(again.tokens, want[2]);
        }
    }
}

#[test]
fn what_is_scored_is_scored_with_the_adapter_that_was_set() {
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 150).collect();
    let mut engine = Engine::new(model(), &devices()[0], &options(64, 16, 1)).unwrap();
    let plain = all_logits(&mut engine, &tokens, Prefill::Batched);
    engine.set_scored_adapter(Some(NAMES[0])).unwrap();
    assert_ne!(all_logits(&mut engine, &tokens, Prefill::Batched), plain);
    engine.set_scored_adapter(None).unwrap();
    assert_eq!(all_logits(&mut engine, &tokens, Prefill::Batched), plain);
    let error = engine.set_scored_adapter(Some("other")).unwrap_err().to_string();
    assert!(error.contains("other") && error.contains("llama_qv, llama_patterns, llama_layers"), "{error}");
    assert!(engine.add(request(Some("other"), &tokens)).is_err());
}

/// The memory plan includes the adapters.
#[test]
fn the_memory_plan_counts_adapters() {
    let device = &devices()[0];
    let with = plan_memory(&model(), device.as_ref(), &options(64, 16, 1)).unwrap();
    let without = plan_memory(&crate::common::model("llama"), device.as_ref(), &options(64, 16, 1)).unwrap();
    assert!(with.total > without.total + 50_000, "{} and {}", with.total, without.total);
}

/// Run steps until `n` more tokens were chosen, and collect those of each sequence.
fn run(engine: &mut Engine, n: usize, tokens: &mut std::collections::BTreeMap<SequenceId, Vec<u32>>) {
    let before: usize = tokens.values().map(Vec::len).sum();
    let mut more = true;
    while more && tokens.values().map(Vec::len).sum::<usize>() < before + n {
        more = engine
            .step(&mut |event| {
                if let Event::Token { sequence, id, .. } = event {
                    tokens.entry(sequence).or_default().push(id);
                }
            })
            .unwrap();
    }
}

#[test]
fn adapters_come_and_go_while_sequences_run() {
    let prompt: Vec<u32> = (0..37).map(|i| (i * 37 + 11) % 150).collect();
    for device in devices() {
        for numerics in [Numerics::Fast, Numerics::Deterministic] {
            let sizes = |n| LoadOptions { numerics, ..options(64, 24, n) };
            let want = each_alone(&device, &sizes(1), &prompt);

            let mut engine = Engine::new(crate::common::model("llama"), &device, &sizes(4)).unwrap();
            assert!(engine.add(request(Some(NAMES[0]), &prompt)).is_err());
            engine.add_adapter(adapter(NAMES[0]), false).unwrap();
            assert!(engine.add_adapter(adapter(NAMES[0]), false).is_err(), "the name is in use");
            let mut tokens = std::collections::BTreeMap::new();
            let plain = engine.add(request(None, &prompt)).unwrap();
            let first = engine.add(request(Some(NAMES[0]), &prompt)).unwrap();
            run(&mut engine, 5, &mut tokens);
            // A second adapter is added while both sequences answer; the first is removed, but
            // stays for the sequence that uses it.
            engine.add_adapter(adapter(NAMES[1]), false).unwrap();
            let second = engine.add(request(Some(NAMES[1]), &prompt)).unwrap();
            run(&mut engine, 3, &mut tokens);
            engine.remove_adapter(NAMES[0]).unwrap();
            assert_eq!(engine.adapters().collect::<Vec<_>>(), [NAMES[1]]);
            assert!(engine.remove_adapter(NAMES[0]).is_err(), "it is gone already");
            assert!(engine.add(request(Some(NAMES[0]), &prompt)).is_err());
            // A different adapter with the same name.
            let other = Adapter { name: NAMES[0].to_owned(), ..adapter(NAMES[2]) };
            engine.add_adapter(other, false).unwrap();
            let third = engine.add(request(Some(NAMES[0]), &prompt)).unwrap();
            run(&mut engine, usize::MAX / 2, &mut tokens);
            for (id, want) in [plain, first, second, third].into_iter().zip(&want) {
                assert_eq!(&tokens[&id], want, "{}, {numerics:?}", device.name());
            }
            // Earlier cached rows are still found.
            let again = engine.complete(request(Some(NAMES[1]), &prompt)).unwrap();
            assert!(again.finished.timings.reused_tokens > 30 && again.tokens == want[2]);
            // An adapter is replaced by another; one that does not fit changes nothing.
            let replaced = Adapter { name: NAMES[1].to_owned(), ..adapter(NAMES[0]) };
            engine.add_adapter(replaced, true).unwrap();
            let answer = |engine: &mut Engine, name| engine.complete(request(name, &prompt)).unwrap().tokens;
            assert_eq!(answer(&mut engine, Some(NAMES[1])), want[1]);
            let unfit = Adapter { name: "unfit".to_owned(), ..adapter("gpt2_turned") };
            assert!(engine.add_adapter(unfit, false).is_err());
            assert_eq!(answer(&mut engine, Some(NAMES[1])), want[1]);
            // A plan that was made before another change is refused.
            let stale = engine.adapter_planner().remove(NAMES[1]).unwrap();
            engine.remove_adapter(NAMES[0]).unwrap();
            assert!(!engine.set_adapters(stale).unwrap());
            // A plan without an adapter that a sequence has begun to use is refused too.
            let dropped = engine.adapter_planner().remove(NAMES[1]).unwrap();
            let id = engine.add(request(Some(NAMES[1]), &prompt)).unwrap();
            assert!(!engine.set_adapters(dropped).unwrap());
            let mut tokens = std::collections::BTreeMap::new();
            run(&mut engine, usize::MAX / 2, &mut tokens);
            assert_eq!(tokens[&id], want[1]);
            engine.remove_adapter(NAMES[1]).unwrap();
            assert_eq!(engine.adapters().count(), 0);
            assert_eq!(answer(&mut engine, None), want[0]);
        }
    }
}
