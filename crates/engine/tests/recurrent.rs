//! Tests of models with recurrent layers: handling of states between a prompt and its answer
//! changes nothing.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::{RECURRENT, emulated_metal, expected, greedy, model, options};
use device::{Device, Numerics};
use device_testing::null::{self, NullDevice};
use ingle_engine::*;

/// One model for each kind of recurrence; the emulated GPU runs them too.
const ONE_OF_EACH: [&str; 3] = ["lfm2", "qwen3_5", "granitemoehybrid"];

/// The interpreter, the CPU with deterministic and with fast numerics, and the emulated Metal.
fn devices() -> Vec<(Arc<dyn Device>, Numerics)> {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    let cpu: Arc<dyn Device> = Arc::new(cpu);
    let mut devices: Vec<(Arc<dyn Device>, Numerics)> = vec![
        (Arc::new(device_reference::Reference::new(1)), Numerics::Deterministic),
        (cpu.clone(), Numerics::Deterministic),
        (cpu, Numerics::Fast),
    ];
    devices.extend(emulated_metal().map(|metal| (metal, Numerics::Fast)));
    devices
}

pub(crate) fn each(mut f: impl FnMut(&str, &dyn Fn(LoadOptions) -> Engine)) {
    for (device, numerics) in devices() {
        let emulated = device.name() == "metal-emulated";
        for name in RECURRENT.into_iter().filter(|name| !emulated || ONE_OF_EACH.contains(name)) {
            let what = format!("{name} on {}, {numerics:?}", device.name());
            let kv_type = Some(device::KvType::F32);
            f(&what, &|load| {
                let load = LoadOptions { numerics, kv_type, ..load };
                Engine::new(model(name), &device, &load).unwrap()
            });
        }
    }
}

/// Fixture name in a description: `lfm2` of `lfm2 on cpu, Fast`.
pub(crate) fn fixture(what: &str) -> &str {
    what.split(' ').next().unwrap()
}

/// Run to the end, and return all tokens of each sequence.
pub(crate) fn drain(engine: &mut Engine) -> HashMap<SequenceId, Vec<u32>> {
    let mut all: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    while engine
        .step(&mut |event| {
            if let Event::Token { sequence, id, .. } = event {
                all.entry(sequence).or_default().push(id);
            }
        })
        .unwrap()
    {}
    all
}

/// A cached state belongs to the end of the tokens with which it was cached, not to the end of a
/// page that later holds more of them.
#[test]
fn a_kept_state_stands_behind_its_own_tokens() {
    let text: Vec<u32> = (0..58).map(|i| (i * 37 + 11) % 150).collect();
    let device: Arc<dyn Device> = Arc::new(NullDevice::default());
    for name in RECURRENT {
        for first in [[28, 58], [58, 28]] {
            // With chunks of 20 no chunk ends with the second page.
            let mut engine = Engine::new(model(name), &device, &options(128, 20, 1)).unwrap();
            let n_vocab = engine.model().n_vocab();
            let mut ask = |prompt: &[u32]| {
                let answer = engine.complete(Request { ignore_end: true, ..greedy(prompt, 1) }).unwrap();
                assert_eq!(answer.tokens, null::greedy(prompt, 1, n_vocab), "{name}, {first:?}");
                engine.kv().check().unwrap();
            };
            first.into_iter().for_each(|n| ask(&text[..n]));
            ask(&[&text[..32], &[3, 1, 4, 1, 5]].concat());
        }
    }
}

#[test]
fn answers_agree_with_the_trusted_ones_and_reuse_changes_nothing() {
    each(|what, engine| {
        let want = expected(fixture(what));
        for chunk in [128, 16] {
            let mut engine = engine(options(128, chunk, 1));
            let request = || Request { ignore_end: true, ..greedy(&want.input, want.greedy.len()) };
            assert_eq!(engine.complete(request()).unwrap().tokens, want.greedy, "{what}");
            let again = engine.complete(request()).unwrap();
            assert_eq!(again.tokens, want.greedy, "{what}, again");
            // A state is cached at the end of a prompt, so all but its last piece is found.
            assert!(again.finished.timings.reused_tokens >= 32, "{what}: {:?}", again.finished.timings);
            let longer = [&want.input[..], &want.greedy[..6]].concat();
            let request = Request { ignore_end: true, ..greedy(&longer, want.greedy.len() - 6) };
            assert_eq!(engine.complete(request).unwrap().tokens, want.greedy[6..], "{what}, longer");
        }
    });
}

#[test]
fn sequences_that_share_steps_get_their_own_answers() {
    each(|what, engine| {
        let input = expected(fixture(what)).input;
        let prompts = [&input[..], &input[..17], &input[5..], &input[30..]];
        let request = |p: &[u32]| Request { ignore_end: true, reuse: false, ..greedy(p, 12) };
        let mut alone = engine(options(128, 128, 1));
        let want: Vec<_> = prompts.iter().map(|p| alone.complete(request(p)).unwrap().tokens).collect();
        let mut together = engine(options(128, 24, 4));
        let ids: Vec<_> = prompts.iter().map(|p| together.add(request(p)).unwrap()).collect();
        let all = drain(&mut together);
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(&all[id], want, "{what}");
        }
    });
}

#[test]
fn a_fork_goes_on_from_the_state_of_the_first() {
    each(|what, engine| {
        let input = expected(fixture(what)).input;
        let mut engine = engine(options(128, 32, 3));
        let request = Request { ignore_end: true, ..greedy(&input[..40], 20) };
        let want = engine.complete(request.clone()).unwrap().tokens;
        let first = engine.add(request).unwrap();
        let mut n_before = 0;
        while n_before < 7 {
            let mut count = |event: Event<'_>| n_before += usize::from(matches!(event, Event::Token { .. }));
            engine.step(&mut count).unwrap();
        }
        let fork = engine.fork(first, &SamplingParams::greedy()).unwrap();
        let all = drain(&mut engine);
        assert_eq!(all[&first], want[n_before..], "{what}");
        assert_eq!(all[&fork], want[n_before..], "{what}");
    });
}
