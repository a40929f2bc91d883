//! Tests that steps submitted ahead give the same as single steps: for one sequence and for many,
//! greedy and sampled. Answers end, slide or are cancelled while later rows of theirs are in
//! flight, and devices fail.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::*;
use device::Device;
use device_testing::cases;
use device_testing::null::{Event as Asked, NullDevice};
use ingle_engine::*;
use proptest::prelude::*;

fn null_engine(name: &str, n_in_flight: usize, options: &LoadOptions) -> (Engine, NullDevice) {
    let null = NullDevice::default().recording().with_steps_in_flight(n_in_flight);
    let device: Arc<dyn Device> = Arc::new(null.clone());
    (Engine::new(model_with_text(name), &device, options).unwrap(), null)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    /// Requests also wait for slots, prompts come in chunks, and some are cancelled half-way.
    #[test]
    fn answers_do_not_depend_on_the_steps_in_flight(
        kinds in prop::collection::vec(0u64..1000, 1..9), depth in 2usize..7, n_slots in 1usize..5, chunk in 8usize..40,
        cancelled in 0u64..7, family in 0usize..3,
    ) {
        let name = ["llama", "mistral", "gemma3"][family];
        let options = options(96, chunk, n_slots);
        let cancel = |kind: u64| (kind % 7 == cancelled).then_some((kind % 9) as usize);
        let one_by_one = answers(&mut null_engine(name, 1, &options).0, &kinds, &cancel);
        let ahead = answers(&mut null_engine(name, depth, &options).0, &kinds, &cancel);
        for (a, b) in one_by_one.iter().zip(&ahead) {
            // A cancelled answer may have one token more or less, since the time of cancelling
            // differs.
            let n = a.0.len().min(b.0.len());
            prop_assert_eq!(&a.0[..n], &b.0[..n]);
            prop_assert!(a == b || a.1 == FinishReason::Cancelled || b.1 == FinishReason::Cancelled);
        }
    }
}

#[test]
fn rows_are_linked_for_one_sequence_and_for_five() {
    for n in [1, 5] {
        let (mut engine, null) = null_engine("llama", 4, &options(128, 64, n));
        for i in 0..n as u64 {
            engine.add(Request { max_tokens: Some(40), ignore_end: true, ..request(i * 4) }).unwrap();
        }
        while engine.step(&mut |_| {}).unwrap() {}
        let steps: Vec<_> = null
            .take_events()
            .into_iter()
            .filter_map(|event| if let Asked::Submit(step) = event { Some(step) } else { None })
            .collect();
        let linked = steps.iter().filter(|step| step.links.len() == n && step.tokens.len() == n).count();
        assert!(linked >= 25, "{linked} of {} steps have every row linked", steps.len());
    }
}

#[test]
fn what_the_host_must_see_is_not_run_ahead() {
    let (mut engine, null) = null_engine("llama", 4, &options(128, 64, 2));
    for _ in 0..2 {
        let request = Request { ignore_end: true, max_tokens: Some(9), ..request(0) };
        engine.add(request).unwrap();
    }
    engine.record_timings(true);
    while engine.step(&mut |_| {}).unwrap() {}
    assert!(!engine.take_timings().is_empty());
    let is_linked = |event: Asked| matches!(event, Asked::Submit(step) if !step.links.is_empty());
    assert!(!null.take_events().into_iter().any(is_linked), "a measured step is alone");
}

#[test]
fn a_failure_in_flight_loses_nothing() {
    for fail_at in 0..24 {
        let kinds = [1, 4, 6, 12];
        let run = |ahead, fail_at| {
            let device: Arc<dyn Device> = Arc::new(History { ahead, fail_at, ..History::default() });
            let mut engine = Engine::new(model("gemma3"), &device, &options(96, 32, 3)).unwrap();
            answers(&mut engine, &kinds, &|_| None)
        };
        assert_eq!(run(3, fail_at), run(0, usize::MAX), "failed at step {fail_at}");
    }
}
