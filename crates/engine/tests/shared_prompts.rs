//! Tests that a shared prompt is computed once, and that a fork shares pages.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::*;
use device::Device;
use device_testing::null::{Event as Asked, NullDevice, greedy as answer};
use ingle_engine::*;

fn recorded(name: &str, options: &LoadOptions) -> (Engine, NullDevice) {
    let null = NullDevice::default().recording();
    let device: Arc<dyn Device> = Arc::new(null.clone());
    (Engine::new(model_with_text(name), &device, options).unwrap(), null)
}

/// Rows of all steps since the last call, and number of tokens copied from page to page.
fn work(null: &NullDevice) -> (usize, usize) {
    let (mut n_rows, mut n_copies) = (0, 0);
    for event in null.take_events() {
        match event {
            Asked::Submit(step) => n_rows += step.tokens.len(),
            Asked::CopyPage(..) => n_copies += 1,
            _ => {}
        }
    }
    (n_rows, n_copies)
}

/// Run to the end. Returns tokens and timings of each sequence.
fn drain(engine: &mut Engine) -> HashMap<SequenceId, (Vec<u32>, Timings)> {
    let mut all = HashMap::<SequenceId, (Vec<u32>, Timings)>::new();
    while engine
        .step(&mut |event| {
            let entry = all.entry(event.sequence()).or_default();
            match event {
                Event::Token { id, .. } => entry.0.push(id),
                Event::PromptToken { .. } | Event::Progress { .. } => {}
                Event::Done { timings, .. } => entry.1 = timings,
            }
        })
        .unwrap()
    {
        engine.kv().check().unwrap();
    }
    all
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

fn long(tokens: &[u32], max_tokens: usize) -> Request {
    Request { ignore_end: true, ..greedy(tokens, max_tokens) }
}

#[test]
fn what_several_send_at_once_is_computed_once() {
    for (name, n_prompt, n_own, chunk) in [
        ("llama", 200, 0, 32),
        ("gemma3", 200, 9, 512),
        ("mistral", 150, 5, 100),
        ("llama", 30, 0, 512),
        ("llama", 90, 40, 256),
    ] {
        let (mut engine, null) = recorded(name, &options(256, chunk, 8));
        let n_vocab = engine.model().n_vocab();
        let texts: Vec<Vec<u32>> =
            (0..8).map(|i| [prompt(n_prompt), vec![i; n_own], vec![99]].concat()).collect();
        let ids: Vec<_> = texts.iter().map(|text| engine.add(long(text, 10)).unwrap()).collect();
        let all = drain(&mut engine);
        let (n_rows, n_copies) = work(&null);
        // Each sequence computes the end of its own prompt, nine tokens of its answer, and with
        // windows at most a page more.
        let most = n_prompt + 8 * (n_own + 1 + 9 + 16);
        assert!(n_rows <= most, "{name}: {n_rows} rows, at most {most} are needed");
        assert!(n_copies <= 8 * 3, "{name}: {n_copies} copies");
        for (id, text) in ids.iter().zip(&texts) {
            assert_eq!(all[id].0, answer(text, 10, n_vocab), "{name}");
        }
        let n_reused: usize = all.values().map(|(_, timings)| timings.reused_tokens).sum();
        assert!(n_reused >= 7 * (n_prompt - 16), "{name}: {n_reused} tokens were not computed again");
    }
}

#[test]
fn a_second_prompt_waits_for_the_chunk_of_the_first_and_no_longer() {
    let (mut engine, null) = recorded("llama", &options(512, 32, 3));
    let text = prompt(400);
    let first = engine.add(long(&text, 5)).unwrap();
    for _ in 0..3 {
        engine.step(&mut |_| {}).unwrap();
    }
    // Now 96 tokens are computed. One request shares all of them, one 200 tokens, and the first is
    // cancelled half-way.
    let same = engine.add(long(&text, 5)).unwrap();
    let half = engine.add(long(&[&text[..200], &[7; 50]].concat(), 5)).unwrap();
    work(&null);
    for _ in 0..2 {
        engine.step(&mut |_| {}).unwrap();
    }
    assert_eq!(work(&null).0, 64, "only the first one's chunks");
    engine.cancel(first);
    let all = drain(&mut engine);
    let n_rows = work(&null).0;
    // 160 tokens were computed; 240 more of the text, 50 others and the answers remain.
    assert!(n_rows <= 240 + 50 + 2 * (1 + 5 + 16), "{n_rows} rows");
    assert_eq!(all[&same].0, answer(&text, 5, engine.model().n_vocab()));
    assert_eq!(all[&half].0, answer(&[&text[..200], &[7; 50]].concat(), 5, engine.model().n_vocab()));
}

#[test]
fn salts_and_refusals_to_reuse_share_nothing() {
    let (mut engine, null) = recorded("llama", &options(256, 32, 4));
    let text = prompt(100);
    for request in [
        long(&text, 2),
        Request { salt: 1, ..long(&text, 2) },
        Request { salt: 2, ..long(&text, 2) },
        Request { reuse: false, ..long(&text, 2) },
    ] {
        engine.add(request).unwrap();
    }
    let all = drain(&mut engine);
    assert!(all.values().all(|(_, timings)| timings.reused_tokens == 0));
    assert_eq!(work(&null).0, 4 * 101);
    let again = engine.add(Request { salt: 2, ..long(&text, 2) }).unwrap();
    let other = engine.add(Request { salt: 3, ..long(&text, 2) }).unwrap();
    let all = drain(&mut engine);
    assert_eq!((all[&again].1.reused_tokens, all[&other].1.reused_tokens), (99, 0));
}

#[test]
fn several_answers_to_one_prompt_share_it_and_are_what_each_would_be_alone() {
    for (name, n_prompt) in [("llama", 120), ("gemma3", 77), ("mistral", 20)] {
        let text = prompt(n_prompt);
        let request = |seed| Request { sampling: sampled(seed, 8), ..long(&text, 25) };
        let alone: Vec<_> = (0..5)
            .map(|seed| engine_of(name).complete(Request { reuse: false, ..request(seed) }).unwrap().tokens)
            .collect();
        let (mut engine, null) = recorded(name, &options(256, 32, 5));
        let first = engine.add(request(0)).unwrap();
        let mut ids = vec![first];
        ids.extend((1..5).map(|seed| engine.fork(first, &sampled(seed, 8)).unwrap()));
        let all = drain(&mut engine);
        for (id, alone) in ids.iter().zip(&alone) {
            assert_eq!(all[id].0, *alone, "{name}");
        }
        let (n_rows, most) = (work(&null).0, n_prompt + 5 * (25 + 16));
        assert!(n_rows <= most, "{name}: {n_rows} rows, at most {most} are needed");
    }
}

fn engine_of(name: &str) -> Engine {
    recorded(name, &options(256, 32, 5)).0
}

#[test]
fn a_fork_in_the_middle_of_an_answer_goes_on_from_there() {
    let (mut engine, null) = recorded("gemma3", &options(256, 32, 3));
    let text = prompt(60);
    let first = engine.add(Request { sampling: sampled(1, 0), ..long(&text, 40) }).unwrap();
    let mut so_far = Vec::new();
    while so_far.len() < 15 {
        engine
            .step(&mut |event| {
                if let Event::Token { id, .. } = event {
                    so_far.push(id)
                }
            })
            .unwrap();
    }
    work(&null);
    let fork = engine.fork(first, &sampled(2, 0)).unwrap();
    let same = engine.fork(first, &SamplingParams::greedy()).unwrap();
    let n_so_far = so_far.len();
    let all = drain(&mut engine);
    let rest = 40 - n_so_far;
    assert!(work(&null).0 <= 3 * rest + 16, "nothing is computed twice");
    let from_there = [&text[..], &so_far].concat();
    let alone = Request { sampling: sampled(2, 0), reuse: false, ..long(&from_there, rest) };
    assert_eq!(all[&fork].0, engine_of("gemma3").complete(alone).unwrap().tokens);
    assert_eq!(all[&same].0, answer(&from_there, rest, engine.model().n_vocab()));
    let error = engine.fork(first, &SamplingParams::greedy()).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}
