//! Tests of the engine's calls to a device, as the null device records them.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::{greedy, model, options};
use device::Device;
use device_testing::null::{self, Event as Asked, NullDevice};
use ingle_engine::*;

fn engine(name: &str, options: &LoadOptions) -> (Engine, NullDevice) {
    let null = NullDevice::default().recording();
    let device: Arc<dyn Device> = Arc::new(null.clone());
    (Engine::new(model(name), &device, options).unwrap(), null)
}

#[test]
fn steps_have_the_shapes_that_were_scheduled() {
    let (mut engine, null) = engine("gemma3", &options(128, 16, 2));
    let prompt: Vec<u32> = (0..37).collect();
    let answer = engine.complete(greedy(&prompt, 4)).unwrap().tokens;
    assert_eq!(answer, null::greedy(&prompt, 4, engine.model().n_vocab()));
    let steps: Vec<_> = null
        .take_events()
        .into_iter()
        .filter_map(|e| if let Asked::Submit(step) = e { Some(step) } else { None })
        .collect();
    let shapes: Vec<_> = steps.iter().map(|s| (s.tokens.len(), s.outputs.len())).collect();
    assert_eq!(shapes, [(16, 0), (16, 0), (5, 1), (1, 1), (1, 1), (1, 1)], "rows, and rows with logits");
    assert!(
        steps.iter().skip(2).all(|s| s.wants == [device::Want::BEST]),
        "greedy asks for the device's argmax"
    );
}

#[test]
fn a_shared_part_of_a_page_is_copied_once_and_all_pages_are_given_back() {
    let (mut engine, null) = engine("llama", &options(128, 16, 1));
    let prompt: Vec<u32> = (0..24).collect();
    engine.complete(greedy(&prompt, 1)).unwrap();
    let other: Vec<u32> = (0..21).chain([100, 101]).collect();
    null.take_events();
    let got = engine.complete(greedy(&other, 1)).unwrap();
    assert_eq!(got.finished.timings.reused_tokens, 21);
    let copies = null.take_events().iter().filter(|e| matches!(e, Asked::CopyPage(..))).count();
    assert_eq!(copies, 1);
    let held = engine.kv().usage(0).0;
    engine.clear_prefix_cache();
    assert!(held > 0);
    assert_eq!(engine.kv().usage(0).0, 0);
    null.take_events();
    assert!(engine.give_back_memory().unwrap());
    let events = null.take_events();
    // The last granule is decommitted first, and every granule that was committed.
    let granules: Vec<_> =
        events.iter().map(|e| if let Asked::Decommit(0, pages) = e { pages.clone() } else { 9..9 }).collect();
    assert!(granules.windows(2).all(|pair| pair[1].end == pair[0].start), "{granules:?}");
    assert_eq!(granules.last().map(|pages| pages.start), Some(0));
    assert!(!engine.give_back_memory().unwrap());
    // The engine still works afterwards.
    assert_eq!(engine.complete(greedy(&prompt, 1)).unwrap().finished.timings.reused_tokens, 0);
}
