//! Tests of chunks in the background: when they are used, the time that they leave the answers, and
//! that they change no answer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{Device, KvLayer, Numerics};
use device_testing::null;
use weights::Access;

use super::{BACKGROUND_ROWS, N_VOCAB, Simulation, request};
use crate::sampling::{Rng, SamplingParams};
use crate::{Engine, Event, FinishReason, LoadOptions, Model, Prefill, Request, SequenceId, TokenizerSource};

fn layer(window: Option<usize>) -> KvLayer {
    KvLayer { n_kv_heads: 1, head_dim: 32, window, encoder_states: None, values_are_keys: false }
}

/// Options with a latency of two steps of the answers.
fn twice() -> LoadOptions {
    LoadOptions { token_latency: None, latency_steps: Some(2.0), ..LoadOptions::default() }
}

fn simulation(background: bool, n_ctx: usize, n_slots: usize, options: &LoadOptions) -> Simulation {
    let plan = null::plan(N_VOCAB, &[layer(None)]);
    let rows = if background { BACKGROUND_ROWS } else { 0 };
    let s = Simulation::of(&plan, 1, n_ctx, 512, n_slots, rows, options);
    // A part takes 3 ms, so that a chunk takes several steps.
    Simulation { part: Duration::from_millis(3), ..s }
}

/// A device on which eight rows of a prompt take as long as two steps of the answers from position
/// 5,000 on.
fn dear(rows: usize, attended: u64) -> f64 {
    0.01 + 0.0002 * rows as f64 + 5e-7 * attended as f64
}

fn has_prompts(s: &Simulation) -> bool {
    s.scheduler.slots.iter().flatten().any(|s| s.in_prompt) || s.scheduler.n_waiting() > 0
}

/// Start eight answers.
fn eight_streams(s: &mut Simulation) {
    (0..8).for_each(|i| _ = s.add(Request { ignore_end: true, ..request(i, 30, 9000) }));
    while has_prompts(s) {
        s.step(&dear);
    }
    (0..50).for_each(|_| _ = s.step(&dear));
}

/// 99th percentile of the time between two tokens while the background computes a prompt of 16,000
/// tokens, and the number of steps. The unit of time is a step of the answers alone. A step after a
/// part of the prompt may be slower, since the cache is cold; the prompt gets no share of that
/// time.
#[test]
fn answers_keep_their_time_beside_rows_that_do_not_fit() {
    let run = |background: bool, slowdown: f64| {
        let mut s = simulation(background, 20_000, 9, &twice());
        s.slowdown = slowdown;
        eight_streams(&mut s);
        let long = s.add(request(99, 16_000, 3));
        let mut gaps = Vec::new();
        while s.tokens[long.0 as usize].len() < 3 {
            let running = || s.scheduler.slots.iter().flatten();
            let attended: usize = running().filter(|s| !s.in_prompt).map(|s| s.tokens.len()).sum();
            let alone = dear(8, attended as u64);
            s.step(&dear);
            gaps.extend(s.gaps.last().map(|gap| gap / alone));
            assert!(gaps.len() < 20_000, "the prompt goes on");
        }
        assert_eq!(s.tokens[long.0 as usize], null::greedy(&request(99, 16_000, 3).tokens, 3, N_VOCAB));
        gaps.sort_by(f64::total_cmp);
        (gaps[(gaps.len() - 1) * 99 / 100], gaps.len())
    };
    let (without, _) = run(false, 1.0);
    assert!(without > 2.5, "without a background p99 is {without} steps");
    // The prompt gets about three rows after each step, or two if steps are slower.
    for (slowdown, rows_per_step) in [(1.0, 2), (1.3, 1)] {
        let (with, n_steps) = run(true, slowdown);
        assert!(with < 2.1, "p99 is {with} steps, {n_steps} of them, each {slowdown} times as long");
        assert!(n_steps < 16_000 / rows_per_step, "the prompt took {n_steps} steps");
    }
}

#[test]
fn where_a_few_rows_fit_nothing_is_in_the_background() {
    let mut s = simulation(true, 4000, 9, &twice());
    eight_streams(&mut s);
    s.add(request(99, 3000, 3));
    while has_prompts(&s) {
        s.step(&|rows, _| 0.01 + 0.0002 * rows as f64);
        assert!(!s.scheduler.pacing.background.is_busy());
    }
    // Nothing is in the background if nobody answers, or if the answers alone are late.
    let named = LoadOptions { token_latency: Some(Duration::from_millis(2)), ..twice() };
    let mut s = simulation(true, 16_000, 9, &named);
    s.add(request(1, 10_000, 300));
    while has_prompts(&s) {
        s.step(&dear);
        assert!(!s.scheduler.pacing.background.is_busy());
    }
    s.add(request(2, 10_000, 3));
    for _ in 0..100 {
        s.step(&dear);
        assert!(!s.scheduler.pacing.background.is_busy());
    }
}

/// Two prompts that do not fit take turns: one waits for the other's chunk. A third that fits goes
/// on beside them.
#[test]
fn prompts_take_turns_in_the_background() {
    let mut s = simulation(true, 12_000, 11, &twice());
    eight_streams(&mut s);
    let asked = [request(101, 10_000, 2), request(102, 10_000, 2)];
    let ids: Vec<_> = asked.iter().map(|asked| s.add(asked.clone())).collect();
    let mut by_slot = std::collections::HashSet::new();
    let mut short = None;
    while has_prompts(&s) {
        s.step(&dear);
        by_slot.extend(s.scheduler.pacing.background.rows().map(|(slot, _)| slot));
        if by_slot.len() == 2 && short.is_none() {
            let id = s.add(request(103, 100, 2));
            let mut n_steps = 0;
            while s.tokens[id.0 as usize].is_empty() {
                s.step(&dear);
                n_steps += 1;
            }
            short = Some(n_steps);
        }
        assert!(s.gaps.len() < 20_000, "the prompts go on");
    }
    assert!(short.is_some_and(|n| n < 40), "a short prompt took {short:?} steps");
    (0..3).for_each(|_| _ = s.step(&dear));
    for (id, asked) in ids.iter().zip(&asked) {
        assert_eq!(s.tokens[id.0 as usize], null::greedy(&asked.tokens, 2, N_VOCAB));
    }
}

/// A second request with the same prompt waits for the one in the background and takes over its
/// rows.
#[test]
fn a_prompt_is_computed_once_for_two_requests() {
    let mut s = simulation(true, 4000, 4, &twice());
    s.scheduler.pacing.background.always = true;
    s.add(Request { ignore_end: true, ..request(1, 5, 3000) });
    (0..5).for_each(|_| _ = s.step(&dear));
    let before = s.scheduler.totals.n_computed;
    let ids: Vec<_> = (0..2).map(|_| s.add(request(7, 1000, 4))).collect();
    while has_prompts(&s) {
        s.step(&dear);
    }
    (0..6).for_each(|_| _ = s.step(&dear));
    let n_computed = s.scheduler.totals.n_computed - before;
    assert!((1000..1040).contains(&n_computed), "{n_computed} rows of two prompts of 1,000 tokens");
    for id in ids {
        assert_eq!(s.tokens[id.0 as usize], null::greedy(&request(7, 1000, 4).tokens, 4, N_VOCAB));
    }
}

/// Rows whose logits or states are needed are computed in steps: log-probabilities of the prompt,
/// and rows one by one.
#[test]
fn rows_of_which_more_is_wanted_are_in_steps() {
    let mut s = simulation(true, 2000, 4, &twice());
    s.scheduler.pacing.background.always = true;
    s.add(Request { ignore_end: true, ..request(1, 5, 1500) });
    (0..5).for_each(|_| _ = s.step(&dear));
    s.add(Request { prompt_logprobs: Some(1), ..request(2, 60, 2) });
    s.add(Request { prefill: Prefill::PerToken, ..request(3, 60, 2) });
    while has_prompts(&s) {
        s.step(&dear);
        assert!(!s.scheduler.pacing.background.is_busy());
    }
    s.add(request(4, 60, 2));
    s.step(&dear);
    assert!(s.scheduler.pacing.background.is_busy(), "any other prompt is not");
}

/// If the chunk's sequence ends, or the device fails with it, other sequences go on and nothing
/// leaks.
#[test]
fn a_chunk_ends_with_its_sequence() {
    for fails in [false, true] {
        let mut s = simulation(true, 2000, 3, &twice());
        s.scheduler.pacing.background.always = true;
        let other = s.add(Request { ignore_end: true, ..request(1, 5, 60) });
        (0..5).for_each(|_| _ = s.step(&dear));
        let long = s.add(request(2, 1000, 2));
        (0..4).for_each(|_| _ = s.step(&dear));
        let (slot, _) = s.scheduler.pacing.background.rows().expect("a chunk is computed");
        let mut reason = None;
        let mut note = |event: Event<'_>| {
            if let Event::Done { sequence, reason: why, .. } = event {
                reason = Some((sequence, why.clone()));
            }
        };
        if fails {
            s.scheduler.forget_failed_background(s.program.as_mut());
            s.scheduler.end_failed("as asked", &mut note);
            assert_eq!(reason, Some((long, FinishReason::Failed("as asked".into()))));
        } else {
            s.scheduler.slots[slot].as_ref().unwrap().cancel.cancel();
            s.scheduler.end_unwanted(s.now, &mut note);
            assert_eq!(reason, Some((long, FinishReason::Cancelled)));
        }
        while s.step(&dear).is_some() {
            assert!(!s.scheduler.pacing.background.is_busy());
        }
        assert_eq!(s.tokens[other.0 as usize], null::greedy(&request(1, 5, 60).tokens, 60, N_VOCAB));
        s.scheduler.kv.clear_prefixes();
        assert_eq!(s.scheduler.kv.held_bytes(), 0);
    }
}

/// If pages of the chunk move, it begins anew.
#[test]
fn a_chunk_does_not_outlive_its_pages() {
    let mut s = simulation(true, 2000, 4, &twice());
    s.scheduler.pacing.background.always = true;
    // The first sequence has the lowest pages, which are free when it ends.
    let asked = [request(1, 600, 900), request(2, 5, 100), request(3, 1000, 2)];
    let [first, answers, long] = asked.clone().map(|asked| {
        let id = s.add(Request { ignore_end: true, reuse: false, ..asked });
        while s.tokens[id.0 as usize].is_empty() && id.0 < 2 {
            s.step(&dear);
        }
        id
    });
    while !s.scheduler.pacing.background.is_busy() {
        s.step(&dear);
    }
    s.scheduler.sequences().filter(|s| s.id == first).for_each(|s| s.cancel.cancel());
    s.scheduler.end_unwanted(s.now, &mut |_| {});
    s.scheduler.kv.forget_oldest();
    assert!(s.scheduler.kv.give_back(s.program.as_mut()).unwrap());
    assert!(s.scheduler.kv.is_background_lost(), "pages moved");
    while s.step(&dear).is_some() {}
    for (id, asked) in [answers, long].iter().zip(&asked[1..]) {
        let expected = null::greedy(&asked.tokens, asked.max_tokens.unwrap(), N_VOCAB);
        assert_eq!(s.tokens[id.0 as usize], expected, "{id:?}");
    }
}

/// Random arrivals, cancellations, forgotten steps and parking, with texts that share starts; every
/// prompt is computed in the background.
#[test]
fn random_scheduling_keeps_integrity_and_answers() {
    let mut rng = Rng::new(11);
    let mut below = |n: usize| (rng.uniform() * n as f64) as usize;
    let mut n_busy = 0;
    for round in 0..60 {
        let layers =
            [vec![layer(None)], vec![layer(Some(24)), layer(None)], vec![layer(Some(40))]][below(3)].clone();
        let depth = [1, 3][below(2)];
        let plan = null::plan(N_VOCAB, &layers);
        let chunk = 4 + below(40);
        let mut s = Simulation::of(&plan, depth, 160, chunk, 3, BACKGROUND_ROWS, &twice());
        s.scheduler.pacing.background.always = true;
        s.part = Duration::from_micros([200, 8000][below(2)]);
        let mut asked = Vec::new();
        for _ in 0..40 {
            let n_shared = [0, 33, 64, 100][below(4)];
            let mut tokens: Vec<u32> = (0..n_shared as u32).map(|i| i % 90).collect();
            tokens.extend((0..1 + below(30)).map(|_| below(N_VOCAB) as u32));
            let request = Request {
                max_tokens: Some(1 + below(25)),
                ignore_end: true,
                reuse: below(5) > 0,
                priority: i32::from(below(8) == 0),
                ..Request::new(tokens)
            };
            let id = s.add(request.clone());
            asked.push((id, request));
            for _ in 0..below(8) {
                s.step(&|_, _| 0.01);
                n_busy += usize::from(s.scheduler.pacing.background.is_busy());
            }
            match below(9) {
                0 => s.scheduler.forget_in_flight(s.program.as_mut()),
                1 => {
                    let slot = s.scheduler.slots.iter().position(Option::is_some);
                    slot.into_iter().for_each(|slot| s.scheduler.park(slot));
                }
                2 => s.scheduler.sequences().filter(|s| s.id == id).for_each(|s| s.cancel.cancel()),
                3 => _ = s.scheduler.kv.give_back(s.program.as_mut()).unwrap(),
                _ => {}
            }
        }
        while s.step(&|_, _| 0.01).is_some() {}
        for (id, request) in &asked {
            let expected = null::greedy(&request.tokens, request.max_tokens.unwrap(), N_VOCAB);
            let found = &s.tokens[id.0 as usize];
            assert!(expected.starts_with(found), "round {round}, {id:?}: {found:?}, expected {expected:?}");
        }
        s.scheduler.kv.clear_prefixes();
        assert_eq!(s.scheduler.kv.held_bytes(), 0);
    }
    assert!(n_busy > 1000, "{n_busy} steps beside a chunk");
}

/// On the CPU, with deterministic numerics: every answer is what it is alone, with prompts in the
/// background or without.
#[test]
fn answers_beside_and_out_of_the_background_are_those_of_solo_runs() {
    let device: Arc<dyn Device> =
        Arc::new(device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let mut n_models = 0;
    for name in names.into_iter().step_by(9) {
        let path = folder.join(&name);
        let Ok(checkpoint) = formats::open(&path, Access::Map) else { continue };
        let Ok(model) = Model::from_opened(&path, checkpoint, &TokenizerSource::None) else { continue };
        let options = LoadOptions {
            n_ctx: Some(160),
            chunk: Some(64),
            n_sequences: 3,
            numerics: Numerics::Deterministic,
            ..twice()
        };
        let Ok(mut engine) = Engine::new(Arc::new(model), &device, &options) else { continue };
        n_models += 1;
        let n_vocab = engine.model().n_vocab() as u32;
        let asked = |i: u32| {
            let tokens = (0..20 + 45 * i).map(|t| (t * 37 + i * 11) % n_vocab).collect();
            let sampling = SamplingParams { logprobs: true, ..SamplingParams::greedy() };
            let n = [40, 6, 3][i as usize];
            Request { sampling, max_tokens: Some(n), ignore_end: true, reuse: false, ..Request::new(tokens) }
        };
        let run = |engine: &mut Engine, which: &[u32]| {
            let ids: Vec<SequenceId> = which.iter().map(|i| engine.add(asked(*i)).unwrap()).collect();
            let mut found = vec![Vec::new(); ids.len()];
            let mut more = true;
            while more {
                let note = &mut |event: Event<'_>| {
                    if let Event::Token { sequence, id, logprob, .. } = event {
                        let at = ids.iter().position(|id| *id == sequence).unwrap();
                        found[at].push((id, logprob.unwrap().to_bits()));
                    }
                };
                more = engine.step(note).unwrap();
            }
            found
        };
        let alone: Vec<_> = [0, 1, 2].iter().flat_map(|i| run(&mut engine, &[*i])).collect();
        engine.scheduler.pacing.background.always = true;
        assert_eq!(run(&mut engine, &[0, 1, 2]), alone, "{name:?}");
        assert!(engine.scheduler.pacing.background.last.is_some(), "{name:?}: no chunk was begun");
    }
    assert!(n_models >= 5, "{n_models} models of {}", folder.display());
}
