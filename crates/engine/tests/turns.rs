//! Tests of the order of sequences: priorities, tenants, deadlines, the limit of the queue; and
//! that no sequence is forgotten.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use device::Device;
use device_testing::cases;
use device_testing::null::{NullDevice, greedy as answer};
use ingle_engine::*;
use proptest::prelude::*;

fn null_engine(options: &LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(NullDevice::default());
    Engine::new(model_with_text("llama"), &device, options).unwrap()
}

fn long(seed: u32, n_prompt: usize, max_tokens: usize) -> Request {
    let tokens: Vec<u32> = (0..n_prompt as u32).map(|i| (i * 37 + seed * 11) % 150).collect();
    Request { ignore_end: true, ..greedy(&tokens, max_tokens) }
}

/// The sequences in the order in which they end, with their reasons.
fn ends(engine: &mut Engine) -> Vec<(SequenceId, FinishReason)> {
    let mut ends = Vec::new();
    let mut on_event = |event: Event<'_>| {
        if let Event::Done { sequence, reason, .. } = event {
            ends.push((sequence, reason.clone()));
        }
    };
    while engine.step(&mut on_event).unwrap() {}
    engine.kv().check().unwrap();
    ends
}

#[test]
fn a_higher_priority_takes_a_slot_and_the_other_goes_on_later() {
    let mut engine = null_engine(&options(128, 32, 2));
    let n_vocab = engine.model().n_vocab();
    let low: Vec<_> = (0..3).map(|i| engine.add(long(i, 20, 30)).unwrap()).collect();
    for _ in 0..5 {
        engine.step(&mut |_| {}).unwrap();
    }
    let request = Request { priority: 1, ..long(9, 30, 10) };
    let high = engine.add(request.clone()).unwrap();
    let mut tokens = HashMap::<SequenceId, Vec<u32>>::new();
    let mut order = Vec::new();
    while engine
        .step(&mut |event| match event {
            Event::Token { sequence, id, .. } => tokens.entry(sequence).or_default().push(id),
            Event::PromptToken { .. } | Event::Progress { .. } => {}
            Event::Done { sequence, .. } => order.push(sequence),
        })
        .unwrap()
    {}
    assert_eq!(order, [high, low[0], low[1], low[2]]);
    assert_eq!(tokens[&high], answer(&request.tokens, 10, n_vocab));
    let second = answer(&long(1, 20, 30).tokens, 30, n_vocab);
    assert!(second.ends_with(&tokens[&low[1]]), "it goes on where it was");
    assert_eq!(engine.n_parked(), 0, "there was no lack of memory");
}

#[test]
fn a_deadline_ends_what_waits_and_what_runs() {
    let mut engine = null_engine(&options(128, 32, 1));
    let now = Instant::now();
    let soon = engine.add(Request { deadline: Some(now), ..long(0, 20, 30) }).unwrap();
    let runs = engine.add(long(1, 20, 5)).unwrap();
    let waits = engine.add(Request { deadline: Some(now), ..long(2, 20, 30) }).unwrap();
    let later = now + Duration::from_secs(3600);
    let never = engine.add(Request { deadline: Some(later), ..long(3, 20, 5) }).unwrap();
    let ends: HashMap<_, _> = ends(&mut engine).into_iter().collect();
    assert_eq!(ends[&soon], FinishReason::DeadlineExceeded);
    assert_eq!(ends[&waits], FinishReason::DeadlineExceeded);
    assert_eq!((&ends[&runs], &ends[&never]), (&FinishReason::MaxTokens, &FinishReason::MaxTokens));
}

#[test]
fn a_full_queue_refuses_and_forgets_nothing() {
    let mut engine = null_engine(&LoadOptions { max_waiting: Some(2), ..options(128, 32, 1) });
    let mut n = 0;
    for i in 0..10 {
        match engine.add(long(i, 20, 5)) {
            Ok(_) => n += 1,
            Err(error) => {
                assert!(matches!(error, Error::QueueFull { n_waiting: 2, limit: 2 }), "{error}");
                engine.step(&mut |_| {}).unwrap();
            }
        }
    }
    assert!(n > 3);
    assert!(engine.fork(SequenceId(100), &SamplingParams::greedy()).is_err());
    ends(&mut engine);
    assert!(engine.is_idle());
}

#[test]
fn tenants_are_served_in_turn_whoever_asks_more() {
    let mut engine = null_engine(&options(512, 64, 2));
    // One tenant adds 40 long requests at once, the other 5 short ones later.
    for i in 0..40 {
        engine.add(Request { tenant: 1, reuse: false, ..long(i, 200, 60) }).unwrap();
    }
    for _ in 0..20 {
        engine.step(&mut |_| {}).unwrap();
    }
    let modest: Vec<_> = (0..5)
        .map(|i| engine.add(Request { tenant: 2, reuse: false, ..long(100 + i, 50, 20) }).unwrap())
        .collect();
    let order: Vec<_> = ends(&mut engine).into_iter().map(|(id, _)| id).collect();
    let places: Vec<_> = modest.iter().map(|id| order.iter().position(|o| o == id).unwrap()).collect();
    // Slots become free one by one, and the second tenant gets the next ones.
    assert!(places.iter().all(|place| *place <= 12), "{places:?}");
}

#[test]
fn what_is_cached_costs_a_tenant_nothing() {
    let mut engine = null_engine(&options(1024, 64, 1));
    engine.complete(long(1, 900, 1)).unwrap();
    // Both tenants add ten requests; the prompts of the first are cached.
    let cached: Vec<_> =
        (0..10).map(|_| engine.add(Request { tenant: 1, ..long(1, 900, 2) }).unwrap()).collect();
    for i in 0..10 {
        engine.add(Request { tenant: 2, ..long(50 + i, 900, 2) }).unwrap();
    }
    let order: Vec<_> = ends(&mut engine).into_iter().map(|(id, _)| id).collect();
    let last = cached.iter().map(|id| order.iter().position(|o| o == id).unwrap()).max().unwrap();
    assert!(last <= 12, "the last cached one was number {last} to end");
}

/// An action on an engine.
#[derive(Clone, Debug)]
enum Action {
    Add { kind: u64, salt: u64, tenant: u64, priority: i32 },
    Steps(usize),
    Cancel(usize),
    Fork { of: usize, seed: u64 },
    ClearPrefixes,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0u64..400, 0u64..2, 0u64..3, -1i32..2).prop_map(|(kind, salt, tenant, priority)| {
            Action::Add { kind, salt, tenant, priority }
        }),
        6 => (1usize..9).prop_map(Action::Steps),
        1 => (0usize..20).prop_map(Action::Cancel),
        2 => (0usize..20, 1000u64..1100).prop_map(|(of, seed)| Action::Fork { of, seed }),
        1 => Just(Action::ClearPrefixes),
    ]
}

/// A sequence of the test: its request and its events.
struct Asked {
    id: SequenceId,
    request: Request,
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    cancelled: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(150)))]

    /// Random arrivals, cancels and forks, prompts that share starts, priorities, tenants and
    /// salts, a device that fails now and then, and too little memory. Every answer is the one that
    /// its request gives alone, every sequence ends, and nothing is left behind.
    #[test]
    fn every_answer_is_what_it_is_alone(
        actions in prop::collection::vec(action(), 1..40), ahead in 0usize..4, n_slots in 1usize..6,
        chunk in 8usize..40, family in 0usize..3, memory in 1.0f64..3.0, fail_every in prop_oneof![Just(0), 5usize..40],
    ) {
        let name = ["llama", "mistral", "gemma3"][family];
        let model = model_with_text(name);
        let load = options(96, chunk, n_slots);
        let device = |ahead, fail_every| -> Arc<dyn Device> {
            Arc::new(History { ahead, fail_every, ..History::default() })
        };
        let mut alone = Engine::new(model.clone(), &device(0, 0), &options(96, 64, 1)).unwrap();
        let one = bytes_of_sequence(&alone.plan().kv, alone.limits(), 96).max({
            let probe = Engine::new(model.clone(), &device(0, 0), &load).unwrap();
            bytes_of_sequence(&probe.plan().kv, probe.limits(), 96)
        });
        let budget = (one as f64 * memory) as u64;
        let load = LoadOptions { kv_budget: Some(budget), ..load };
        let mut engine = Engine::new(model, &device(ahead, fail_every), &load).unwrap();
        let mut asked: Vec<Asked> = Vec::new();
        let step = |engine: &mut Engine, asked: &mut Vec<Asked>| {
            // A failure is reported, and loses nothing.
            let more = engine.step(&mut |event| {
                let of = asked.iter_mut().find(|a| a.id == event.sequence()).unwrap();
                assert!(of.reason.is_none(), "an event after Done");
                match event {
                    Event::Token { id, .. } => of.tokens.push(id),
                    Event::PromptToken { .. } | Event::Progress { .. } => {}
                    Event::Done { reason, .. } => of.reason = Some(reason.clone()),
                }
            });
            engine.kv().check().unwrap();
            assert!(engine.kv().held_bytes() <= budget);
            more.unwrap_or(true)
        };
        for action in actions {
            match action {
                Action::Add { kind, salt, tenant, priority } => {
                    let request = Request { salt, tenant, priority, ..request(kind) };
                    let id = engine.add(request.clone()).unwrap();
                    asked.push(Asked { id, request, tokens: vec![], reason: None, cancelled: false });
                }
                Action::Steps(n) => (0..n).for_each(|_| _ = step(&mut engine, &mut asked)),
                Action::Cancel(index) => {
                    if let Some(a) = asked.get_mut(index) {
                        a.cancelled = true;
                        engine.cancel(a.id);
                    }
                }
                Action::Fork { of, seed } => {
                    // After a slide a sequence's tokens are not those of its events.
                    let Some(a) = asked.get(of).filter(|a| a.request.overflow == Overflow::Stop) else { continue };
                    if a.reason.is_some() || a.cancelled {
                        continue;
                    }
                    let sampling = sampled(seed, 5);
                    let id = engine.fork(a.id, &sampling).unwrap();
                    let tokens = [&a.request.tokens[..], &a.tokens].concat();
                    let max_tokens = a.request.max_tokens.map(|n| n - a.tokens.len());
                    let request = Request { tokens, max_tokens, sampling, ..a.request.clone() };
                    asked.push(Asked { id, request, tokens: vec![], reason: None, cancelled: false });
                }
                Action::ClearPrefixes => engine.clear_prefix_cache(),
            }
        }
        let mut n_steps = 0;
        while step(&mut engine, &mut asked) {
            n_steps += 1;
            prop_assert!(n_steps < 20_000, "somebody waits for ever");
        }
        for a in &asked {
            let request = Request { reuse: false, cancel: CancelFlag::default(), ..a.request.clone() };
            let expected = alone.complete(request).unwrap();
            match &a.reason {
                Some(FinishReason::Cancelled) => {
                    prop_assert!(a.cancelled && expected.tokens.starts_with(&a.tokens));
                }
                reason => {
                    prop_assert_eq!(&a.tokens, &expected.tokens);
                    prop_assert_eq!(reason.as_ref(), Some(&expected.finished.reason));
                }
            }
        }
        engine.clear_prefix_cache();
        prop_assert_eq!(engine.kv().held_bytes(), 0);
    }
}
