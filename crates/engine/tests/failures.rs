//! Tests of failures: a device that fails or panics costs only the sequences of that step. Also of
//! counters and warm-up.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use std::time::Duration;

use crate::common::*;
use device::Device;
use device_testing::cases;
use ingle_engine::*;
use proptest::prelude::*;

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

#[test]
fn a_panic_ends_the_sequences_of_its_step_only() {
    for panics in [false, true] {
        let device: Arc<dyn Device> = Arc::new(History { fail_at: 4, panics, ..History::default() });
        let mut engine = Engine::new(model("llama"), &device, &options(128, 16, 2)).unwrap();
        let ids = [20, 10, 30].map(|n| engine.add(greedy(&prompt(n), 20)).unwrap());
        let mut reasons = HashMap::new();
        let mut note = |event: Event<'_>| {
            if let Event::Done { sequence, reason, .. } = event {
                reasons.insert(sequence, reason.clone());
            }
        };
        let mut n_failed = 0;
        loop {
            match engine.step(&mut note) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    n_failed += 1;
                    assert_eq!(matches!(error, Error::Panicked(_)), panics, "{error}");
                    engine.end_failed(&error.to_string(), &mut note);
                    engine.kv().check().unwrap();
                }
            }
        }
        assert_eq!(n_failed, 1);
        for id in &ids[..2] {
            assert!(matches!(&reasons[id], FinishReason::Failed(r) if r.contains("as asked")), "{reasons:?}");
        }
        assert_eq!(reasons[&ids[2]], FinishReason::MaxTokens, "it was waiting");
    }
}

#[test]
fn a_sequence_in_a_slot_without_rows_in_the_step_goes_on() {
    let device: Arc<dyn Device> = Arc::new(History { fail_at: 0, panics: true, ..History::default() });
    let mut engine = Engine::new(model("llama"), &device, &options(128, 16, 2)).unwrap();
    // The second sequence waits for the rows of the first.
    let [first, second] = [(); 2].map(|()| engine.add(greedy(&prompt(60), 9)).unwrap());
    let error = engine.step(&mut |_| {}).unwrap_err();
    let mut ended = Vec::new();
    engine.end_failed(&error.to_string(), &mut |event| ended.push(event.sequence()));
    assert_eq!((ended, engine.n_running()), (vec![first], 1));
    let mut got = Vec::new();
    while engine
        .step(&mut |event| {
            assert_eq!(event.sequence(), second);
            if let Event::Token { id, .. } = event {
                got.push(id);
            }
        })
        .unwrap()
    {}
    assert_eq!(got, continuation(engine.model(), &prompt(60), 9));
}

#[test]
fn warming_up_leaves_no_trace() {
    for chunk in [4, 64] {
        let mut engine = engine("gemma3", &LoadOptions { max_waiting: Some(1), ..options(128, chunk, 5) });
        assert_eq!(engine.warm_up(Duration::from_secs(600)).unwrap(), None);
        let load = engine.load();
        let nothing =
            EngineLoad { n_slots: 5, kv_bytes_budget: load.kv_bytes_budget, ..EngineLoad::default() };
        assert_eq!(load, nothing);
        assert!(engine.predicted_first_token_seconds(10).is_some());
        let got = engine.complete(greedy(&prompt(20), 9)).unwrap();
        assert_eq!(
            (got.tokens, got.finished.timings.reused_tokens),
            (continuation(engine.model(), &prompt(20), 9), 0)
        );
        let load = engine.load();
        assert_eq!((load.n_computed, load.n_cached, load.n_generated), (20, 0, 9));
        engine.complete(greedy(&prompt(20), 9)).unwrap();
        let load = engine.load();
        assert_eq!((load.n_computed + load.n_cached, load.n_generated), (40, 18));
        assert!(load.n_cached >= 16 && load.kv_bytes_used > 0 && load.kv_bytes_used <= load.kv_bytes_budget);
        engine.add(greedy(&prompt(20), 9)).unwrap();
        assert!(matches!(engine.warm_up(Duration::ZERO).unwrap_err(), Error::Busy { .. }));
    }
}

#[test]
fn warming_up_ends_in_time_and_says_what_it_left_out() {
    let mut engine = engine("llama", &options(128, 64, 5));
    let left = engine.warm_up(Duration::ZERO).unwrap().unwrap();
    assert!(left.contains("prompts of") || left.contains("answers"), "{left}");
    assert!(engine.is_idle());
    assert_eq!(engine.load().n_generated, 0);
    let got = engine.complete(greedy(&prompt(20), 9)).unwrap();
    assert_eq!(got.tokens, continuation(engine.model(), &prompt(20), 9));
}

#[test]
fn a_longer_queue_is_predicted_to_take_longer() {
    let mut engine = engine("llama", &options(128, 16, 2));
    assert_eq!(engine.predicted_first_token_seconds(10), None);
    assert_eq!(engine.warm_up(Duration::from_secs(600)).unwrap(), None);
    let alone = engine.predicted_first_token_seconds(100).unwrap();
    for _ in 0..8 {
        engine.add(greedy(&prompt(100), 20)).unwrap();
    }
    assert!(engine.predicted_first_token_seconds(100).unwrap() > 4.0 * alone);
}

#[test]
fn a_cancelled_sequence_has_no_rows_in_the_next_step() {
    for ahead in [0, 3] {
        let device: Arc<dyn Device> = Arc::new(History { ahead, ..History::default() });
        let mut engine = Engine::new(model("llama"), &device, &options(128, 16, 1)).unwrap();
        let first = engine.add(greedy(&prompt(10), 90)).unwrap();
        let second = engine.add(greedy(&prompt(12), 3)).unwrap();
        for _ in 0..6 {
            engine.step(&mut |_| {}).unwrap();
        }
        engine.cancel(first);
        let mut done = Vec::new();
        engine
            .step(&mut |event| done.extend(matches!(event, Event::Done { .. }).then(|| event.sequence())))
            .unwrap();
        assert_eq!(
            (done, engine.n_running(), engine.n_waiting()),
            (vec![first], 1, 0),
            "{second:?} has its slot"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    /// Under failures and panics every sequence ends once: with its answer, or with the device's
    /// error.
    #[test]
    fn random_schedules_with_failures(
        fail_every in 3..12usize,
        panics in any::<bool>(),
        ahead in 0..3usize,
        chunk in 1..40usize,
        actions in prop::collection::vec((0..5u8, 1..60usize, 1..30usize), 1..40),
    ) {
        let device: Arc<dyn Device> = Arc::new(History { fail_every, panics, ahead, ..History::default() });
        let mut engine = Engine::new(model("gemma3"), &device, &options(96, chunk, 3)).unwrap();
        let mut wanted = HashMap::new();
        let mut all = Answers::new();
        let mut step = |engine: &mut Engine| {
            let mut note = |event: Event<'_>| note(&mut all, &event);
            let more = match engine.step(&mut note) {
                Ok(more) => more,
                Err(error) => {
                    engine.end_failed(&error.to_string(), &mut note);
                    true
                }
            };
            engine.kv().check().unwrap();
            more
        };
        for (kind, len, n) in actions {
            match kind {
                0..=1 => {
                    let id = engine.add(greedy(&prompt(len), n)).unwrap();
                    wanted.insert(id, continuation(engine.model(), &prompt(len), n));
                }
                _ => for _ in 0..n.min(8) { step(&mut engine); },
            }
        }
        while step(&mut engine) {}
        for (id, want) in wanted {
            let (tokens, reason) = &all[&id];
            prop_assert!(want.starts_with(tokens));
            let is_failed = matches!(reason, Some(FinishReason::Failed(r)) if r.contains("as asked"));
            prop_assert!(is_failed || want == *tokens || reason == &Some(FinishReason::ContextFull));
        }
    }
}
