//! Tests of sequences through steps: batching, chunks, prefix reuse, eviction, windows, overflow,
//! cancelling.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::*;
use device::{Device, KvType};
use device_testing::cases;
use ingle_engine::*;
use proptest::prelude::*;

/// Families with full attention only, with windows only, and with both.
const MODELS: [&str; 3] = ["llama", "mistral", "gemma3"];

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

/// Run until idle. Returns tokens, reason and timings of each sequence.
fn drain(engine: &mut Engine) -> HashMap<SequenceId, (Vec<u32>, Option<FinishReason>, Timings)> {
    let mut all: HashMap<_, (Vec<u32>, Option<FinishReason>, Timings)> = HashMap::new();
    let mut more = true;
    while more {
        more = engine
            .step(&mut |event| {
                let entry = all.entry(event.sequence()).or_default();
                assert!(entry.1.is_none(), "an event after Done");
                match event {
                    Event::Token { id, .. } => entry.0.push(id),
                    Event::PromptToken { .. } | Event::Progress { .. } => {}
                    Event::Done { reason, timings, .. } => {
                        (entry.1, entry.2) = (Some(reason.clone()), timings)
                    }
                }
            })
            .unwrap();
        engine.kv().check().unwrap();
    }
    all
}

#[test]
fn chunks_reuse_and_the_way_of_prefill_change_nothing() {
    for name in MODELS {
        let model = model(name);
        let prompt = prompt(75);
        let want = continuation(&model, &prompt, 40);
        for chunk in [1, 7, 16, 500] {
            let mut engine = engine(name, &options(160, chunk, 1));
            for reuse in [false, true, true] {
                for prefill in [Prefill::Batched, Prefill::PerToken] {
                    let request = Request { reuse, prefill, ..greedy(&prompt, 40) };
                    let got = engine.complete(request).unwrap();
                    assert_eq!(got.tokens, want, "{name}, chunk {chunk}, reuse {reuse}, {prefill:?}");
                    assert_eq!(got.finished.reason, FinishReason::MaxTokens);
                    engine.kv().check().unwrap();
                }
            }
        }
    }
}

#[test]
fn many_sequences_share_steps_and_wait_for_slots() {
    for name in MODELS {
        let mut engine = engine(name, &options(128, 16, 3));
        let mut want = HashMap::new();
        for i in 0..7 {
            let prompt: Vec<u32> = prompt(5 + 9 * i).iter().map(|t| (t + i as u32 / 2) % 160).collect();
            let n = 30 - 3 * i;
            let id = engine.add(greedy(&prompt, n)).unwrap();
            want.insert(id, continuation(engine.model(), &prompt, n));
        }
        assert_eq!((engine.n_waiting(), engine.n_running()), (7, 0));
        engine.step(&mut |_| {}).unwrap();
        assert_eq!((engine.n_waiting(), engine.n_running()), (4, 3));
        let got = drain(&mut engine);
        for (id, want) in want {
            // The events of the first step were ignored, so only later tokens are compared.
            let tokens = &got[&id].0;
            assert!(want.ends_with(tokens) && want.len() - tokens.len() <= 1, "{name} {id:?}");
        }
    }
}

#[test]
fn a_long_prompt_delays_nobody_by_more_than_a_chunk() {
    let mut engine = engine("llama", &options(256, 16, 2));
    let short = engine.add(greedy(&prompt(4), 30)).unwrap();
    engine.step(&mut |_| {}).unwrap();
    let long = engine.add(greedy(&prompt(200), 1)).unwrap();
    for _ in 0..10 {
        let mut got = Vec::new();
        engine.step(&mut |event| got.push(event.sequence())).unwrap();
        assert_eq!(got, [short], "a token of the short one in every step while the long prompt is computed");
    }
    assert!(drain(&mut engine).contains_key(&long));
}

#[test]
fn a_slide_delays_nobody_either() {
    let mut engine = engine("llama", &options(128, 16, 2));
    let slide = Request { overflow: Overflow::Slide { keep: 0 }, ..greedy(&prompt(120), 40) };
    let slides = engine.add(slide).unwrap();
    let other = engine.add(greedy(&prompt(3), 30)).unwrap();
    let mut of_step = Vec::new();
    let mut got = Vec::new();
    while engine.step(&mut |event| of_step.push(event.sequence())).unwrap() {
        got.push(std::mem::take(&mut of_step));
    }
    // The slide is where the older sequence has no token for a few steps while the younger one goes
    // on.
    let first = got.iter().position(|s| s.contains(&slides) && s.contains(&other)).unwrap();
    let silent = got[first..].iter().take(20).filter(|s| !s.contains(&slides)).count();
    assert!(silent >= 3, "64 tokens again, 15 or 16 a step: {silent}");
    assert!(got[first..].iter().take(20).all(|s| s.contains(&other)));
}

#[test]
fn the_next_turn_computes_only_what_is_new() {
    for name in MODELS {
        let mut engine = engine(name, &options(256, 64, 1));
        let mut text = prompt(70);
        let first = engine.complete(greedy(&text, 20)).unwrap();
        assert_eq!(first.finished.timings.reused_tokens, 0);
        text.extend(&first.tokens);
        let held = text.len() - 1; // the last token was chosen, never computed
        text.extend([3, 1, 4, 1, 5]);
        let second = engine.complete(greedy(&text, 20)).unwrap();
        assert_eq!(second.tokens, continuation(engine.model(), &text, 20), "{name}");
        assert_eq!(second.finished.timings.reused_tokens, held, "{name}");
        assert_eq!(second.finished.timings.prompt_tokens, text.len());
        // The second request has the same prompt, whose full pages are cached.
        let again = engine.complete(greedy(&text, 1)).unwrap();
        assert!(again.finished.timings.reused_tokens >= text.len() / 16 * 16 - 16, "{name}");
        engine.clear_prefix_cache();
        let anew = engine.complete(greedy(&text, 1)).unwrap();
        assert_eq!(anew.finished.timings.reused_tokens, 0);
        assert_eq!((anew.tokens[0], again.tokens[0]), (second.tokens[0], second.tokens[0]));
    }
}

#[test]
fn unrelated_prompts_push_out_the_oldest() {
    for name in MODELS {
        let mut engine = engine(name, &options(96, 32, 2));
        for round in 0..20u32 {
            let prompt: Vec<u32> = prompt(60).iter().map(|t| (t + 7 * round) % 160).collect();
            let got = engine.complete(greedy(&prompt, 30)).unwrap();
            assert_eq!(got.tokens, continuation(engine.model(), &prompt, 30), "{name}, round {round}");
            engine.kv().check().unwrap();
        }
        for group in 0..engine.plan().kv.groups.len() {
            let (held, all) = engine.kv().usage(group);
            assert!(held <= all);
        }
    }
}

#[test]
fn a_full_context_stops_with_a_clear_word() {
    let mut engine = engine("gemma3", &options(64, 16, 1));
    let got = engine.complete(Request { max_tokens: None, ..greedy(&prompt(50), 0) }).unwrap();
    assert_eq!((got.tokens.len(), got.finished.reason), (14, FinishReason::ContextFull));
    let error = engine.add(greedy(&prompt(64), 1)).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { n_tokens: 64, n_ctx: 64 }), "{error}");
    assert!(error.to_string().contains("at most 63"), "{error}");
    assert_eq!(engine.complete(greedy(&prompt(63), 9)).unwrap().tokens.len(), 1);
}

/// Expected answer with slides: cut when the context is full, and continue from exactly what
/// remains.
fn slid(model: &Model, prompt: &[u32], n: usize, keep: usize, n_ctx: usize) -> Vec<u32> {
    let windows = windows(model);
    let cut = |tokens: &mut Vec<u32>| {
        if tokens.len() >= n_ctx {
            let tail = tokens.len() - (n_ctx - keep).div_ceil(2);
            *tokens = [&tokens[..keep], &tokens[tail..]].concat();
        }
    };
    let mut tokens = prompt.to_vec();
    let mut out = Vec::new();
    for _ in 0..n {
        cut(&mut tokens);
        let next = next_token(&windows, &tokens, model.n_vocab());
        tokens.push(next);
        out.push(next);
    }
    out
}

#[test]
fn a_sliding_context_sees_exactly_what_remains() {
    for name in MODELS {
        for (keep, n_prompt, reuse) in
            [(0, 10, true), (20, 40, true), (32, 63, false), (5, 64, true), (7, 300, true)]
        {
            let mut engine = engine(name, &options(64, 16, 1));
            let prompt = prompt(n_prompt);
            let request = Request { overflow: Overflow::Slide { keep }, reuse, ..greedy(&prompt, 150) };
            let got = engine.complete(request).unwrap();
            assert_eq!(got.tokens, slid(engine.model(), &prompt, 150, keep, 64), "{name}, keep {keep}");
            engine.kv().check().unwrap();
        }
    }
    let error = engine("llama", &options(64, 16, 1))
        .add(Request { overflow: Overflow::Slide { keep: 33 }, ..greedy(&prompt(3), 1) })
        .unwrap_err();
    assert_eq!(error.to_string(), "keep is 33, expected at most 32, half the context");
}

#[test]
fn cancelling_ends_running_and_waiting_sequences() {
    let mut engine = engine("llama", &options(64, 16, 1));
    let flag = CancelFlag::default();
    let a = engine.add(Request { cancel: flag.clone(), ..greedy(&prompt(5), 50) }).unwrap();
    let b = engine.add(greedy(&prompt(6), 50)).unwrap();
    let c = engine.add(greedy(&prompt(7), 2)).unwrap();
    engine.step(&mut |_| {}).unwrap();
    flag.cancel();
    engine.cancel(b);
    let got = drain(&mut engine);
    assert_eq!(got[&a].1, Some(FinishReason::Cancelled));
    assert_eq!(got[&b].1, Some(FinishReason::Cancelled));
    assert_eq!((got[&c].0.len(), got[&c].1.clone()), (2, Some(FinishReason::MaxTokens)));
    // Cancelled from the callback of a running answer, as by Ctrl-C or a client that hangs up.
    let flag = CancelFlag::default();
    let request = Request { cancel: flag.clone(), ..greedy(&prompt(5), 50) };
    let mut n = 0;
    let done = engine
        .generate(request, |event| {
            n += matches!(event, Event::Token { .. }) as usize;
            if n == 3 {
                flag.cancel();
            }
        })
        .unwrap();
    assert_eq!((n, done.reason), (3, FinishReason::Cancelled));
}

#[test]
fn zero_tokens_computes_the_prompt_only() {
    let mut engine = engine("llama", &options(64, 16, 1));
    let got = engine.complete(greedy(&prompt(40), 0)).unwrap();
    assert_eq!((got.tokens.len(), got.finished.timings.prompt_tokens), (0, 40));
    assert!(got.finished.timings.prefill_seconds > 0.0);
}

#[test]
fn what_cannot_be_run_is_refused_with_its_value_and_limit() {
    let mut engine = engine("llama", &options(64, 16, 1));
    let n_vocab = engine.model().n_vocab() as u32;
    assert!(matches!(engine.add(greedy(&[], 1)).unwrap_err(), Error::EmptyPrompt));
    let error = engine.add(greedy(&[1, n_vocab], 1)).unwrap_err();
    assert!(matches!(error, Error::TokenOutOfRange { position: 1, .. }), "{error}");
    let stop = Request { stop: text::Stops::new(&["x"]).unwrap(), ..greedy(&[1], 1) };
    assert!(matches!(engine.add(stop).unwrap_err(), Error::NoTokenizer { .. }));
    let forbid_all = SamplingParams {
        logit_bias: (0..n_vocab).map(|t| (t, f32::NEG_INFINITY)).collect(),
        ..SamplingParams::greedy()
    };
    let error = engine.generate(Request { sampling: forbid_all, ..greedy(&[1], 1) }, |_| {}).unwrap_err();
    assert!(matches!(error, Error::SequenceFailed(_)), "{error}");
    assert!(engine.is_idle());
}

#[test]
fn a_failed_step_can_be_run_again() {
    for fail_at in [0, 1, 3, 5] {
        let device: Arc<dyn Device> = Arc::new(History { fail_at, ..History::default() });
        let mut engine = Engine::new(model("gemma3"), &device, &options(128, 16, 2)).unwrap();
        let ids = [prompt(40), prompt(23)].map(|p| engine.add(greedy(&p, 20)).unwrap());
        let (got, n_failed) = drain_with_failures(&mut engine);
        assert_eq!(n_failed, 1);
        assert_eq!(got[&ids[0]], continuation(engine.model(), &prompt(40), 20));
        assert_eq!(got[&ids[1]], continuation(engine.model(), &prompt(23), 20));
    }
    // `generate` returns the error, and leaves nothing behind.
    let device: Arc<dyn Device> = Arc::new(History { fail_at: 2, ..History::default() });
    let mut engine = Engine::new(model("llama"), &device, &options(128, 16, 1)).unwrap();
    let mut done = 0;
    let error = engine.generate(greedy(&prompt(20), 9), |e| done += matches!(e, Event::Done { .. }) as usize);
    assert!(matches!(error.unwrap_err(), Error::Device(_)));
    assert_eq!((done, engine.is_idle()), (1, true));
    assert_eq!(engine.complete(greedy(&prompt(20), 9)).unwrap().tokens.len(), 9);
}

#[test]
fn the_prefill_check_fails_when_batches_are_wrong() {
    let good: Arc<dyn Device> = Arc::new(History::default());
    let many = LoadOptions { n_outputs: Some(5), ..options(128, 16, 1) };
    let mut engine = Engine::new(model("gemma3"), &good, &many).unwrap();
    let check = engine.validate_prefill(&prompt(50)).unwrap();
    assert_eq!((check.n_positions, check.rms, check.max), (5, 0.0, 0.0));
    let bad: Arc<dyn Device> = Arc::new(History { broken_batches: true, ..History::default() });
    let mut engine = Engine::new(model("gemma3"), &bad, &options(128, 16, 1)).unwrap();
    let error = engine.validate_prefill(&prompt(50)).unwrap_err();
    assert!(matches!(error, Error::PrefillDiffers { .. }), "{error}");
    assert!(engine.is_idle() && engine.kv().check().is_ok());
}

#[test]
fn what_does_not_fit_says_what_would() {
    let model = model("gemma3");
    let plan = |free: u64| {
        let memory = platform::SystemMemory { total: 1 << 30, free };
        let device: Arc<dyn Device> = Arc::new(History { memory, ..History::default() });
        (
            device.clone(),
            plan_memory(
                &model,
                device.as_ref(),
                &LoadOptions { kv_type: Some(KvType::F32), ..options(2000, 64, 2) },
            ),
        )
    };
    let (_, fits) = plan(1 << 40);
    let fits = fits.unwrap();
    assert!(fits.fits && fits.alternatives.is_empty());
    assert_eq!(fits.total, fits.items.iter().map(|i| i.bytes).sum::<u64>());
    let (device, report) = plan(fits.total - fits.reserved / 3 * 2);
    let report = report.unwrap();
    assert!(!report.fits);
    let first = &report.alternatives[0];
    assert_eq!((first.kv_type, first.chunk, first.n_sequences), ("f32", 64, 2), "the least change first");
    assert!(report.alternatives.windows(2).all(|w| w[0].n_ctx < w[1].n_ctx), "{report}");
    let last = report.alternatives.last().unwrap();
    assert_eq!((last.kv_type, last.n_sequences), ("f16", 1));
    for a in &report.alternatives {
        let kv_type = if a.kv_type == "f16" { KvType::F16 } else { KvType::F32 };
        let options = LoadOptions { kv_type: Some(kv_type), ..options(a.n_ctx, a.chunk, a.n_sequences) };
        assert!(Engine::new(model.clone(), &device, &options).is_ok(), "{a:?}");
        if a.n_ctx < 2000 {
            let more = LoadOptions { n_ctx: Some(a.n_ctx + 16), ..options };
            let error = Engine::new(model.clone(), &device, &more).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::DoesNotFit(_)), "{a:?} is the largest that fits");
        }
    }
    let (device, report) = plan(10);
    assert!(report.unwrap().alternatives.is_empty());
    let error = Engine::new(model.clone(), &device, &options(64, 16, 1)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("free now") && error.contains("no setting makes it fit"), "{error}");
    assert!(
        Engine::new(model.clone(), &device, &LoadOptions { check_memory: false, ..options(64, 16, 1) })
            .is_ok()
    );
}

#[test]
fn load_options_outside_their_limits_are_named() {
    let device: Arc<dyn Device> = Arc::new(History::default());
    let error = |options: LoadOptions| {
        Engine::new(model("llama"), &device, &options).map(|_| ()).unwrap_err().to_string()
    };
    let base = || options(64, 16, 1);
    assert_eq!(
        error(LoadOptions { n_ctx: Some(1), ..base() }),
        "context length is 1, expected a number from 2 to 16777216"
    );
    assert!(error(LoadOptions { chunk: Some(0), ..base() }).starts_with("chunk is 0"));
    assert!(error(LoadOptions { n_sequences: 0, ..base() }).starts_with("number of sequences is 0"));
    assert!(error(LoadOptions { page_len: Some(24), ..base() }).starts_with("page length is 24"));
    let kv = error(LoadOptions { kv_type: Some(KvType::Q8_0), ..base() });
    assert_eq!(kv, "KV type is q8_0, expected one of f16, f32 on history");
}

/// Without an option, the chip's profile determines the prompt rows of a step.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn chunks_are_as_long_as_suits_the_device() {
    use device_metal::gpu::Gpu;
    use device_metal::gpu::emulated::{EmulatedGpu, Options};
    use device_metal::{MetalDevice, Profile};
    let gpu = EmulatedGpu::new(&Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"))).unwrap();
    let profile = Profile { prompt_chunk: 48, ..Profile::new(gpu.facts()) };
    let device: Arc<dyn Device> = Arc::new(MetalDevice::with_profile(gpu, profile));
    let max_rows = |chunk| {
        let options = LoadOptions { chunk, ..options(64, 16, 1) };
        Engine::new(model("llama"), &device, &options).unwrap().limits().max_rows
    };
    assert_eq!([None, Some(20)].map(max_rows), [48, 20]);
}

#[test]
fn times_of_steps_are_recorded_when_asked() {
    let mut engine = engine("llama", &options(64, 16, 1));
    engine.record_timings(true);
    engine.complete(greedy(&prompt(20), 3)).unwrap();
    let rows: Vec<usize> = engine.take_timings().iter().map(|t| t.n_rows).collect();
    assert_eq!(rows, [16, 4, 1, 1]);
    engine.record_timings(false);
    engine.complete(greedy(&prompt(20), 3)).unwrap();
    assert!(engine.take_timings().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60)))]

    /// Random requests, steps and cancellations over texts that share starts. The books balance
    /// after every step, and every answer is the one that its prompt gives alone.
    #[test]
    fn random_scheduling_keeps_integrity_and_answers(
        which in 0..3usize,
        chunk in 1..40usize,
        actions in prop::collection::vec((0..6u8, 1..90usize, 0..4u32, 1..40usize), 1..40),
    ) {
        let mut engine = engine(MODELS[which], &options(96, chunk, 3));
        let mut prompts = HashMap::new();
        let mut got: HashMap<SequenceId, Vec<u32>> = HashMap::new();
        let mut step = |engine: &mut Engine| {
            let more = engine.step(&mut |event| if let Event::Token { sequence, id, .. } = event {
                got.entry(sequence).or_default().push(id);
            }).unwrap();
            engine.kv().check().unwrap();
            more
        };
        let mut last = None;
        for (kind, len, text, n) in actions {
            match kind {
                0 | 1 => {
                    let shared = [90, 17, 48, 31][text as usize];
                    let prompt: Vec<u32> = (0..len as u32).map(|i| (i * 3 + if i < shared { 0 } else { 10 * text }) % 160).collect();
                    let slide = n % 3 == 0;
                    let overflow = if slide { Overflow::Slide { keep: n } } else { Overflow::Stop };
                    let id = engine.add(Request { overflow, reuse: n % 5 != 0, ..greedy(&prompt, n) }).unwrap();
                    prompts.insert(id, (prompt, slide.then_some(n), n));
                    last = Some(id);
                }
                2 if n > 35 => if let Some(id) = last { engine.cancel(id) },
                _ => for _ in 0..n.min(8) { step(&mut engine); },
            }
        }
        while step(&mut engine) {}
        for (id, tokens) in &got {
            let (prompt, keep, n) = &prompts[id];
            let want = match keep {
                Some(keep) => slid(engine.model(), prompt, *n, *keep, 96),
                None => continuation(engine.model(), prompt, *n),
            };
            prop_assert!(want.starts_with(tokens), "{:?}", id);
        }
    }
}

#[test]
fn progress_is_told_from_what_was_cached_to_the_whole_prompt() {
    let mut engine = engine("llama", &options(200, 16, 2));
    let asked = Request { progress: true, ..greedy(&prompt(100), 3) };
    let mut told = |asked: &Request| {
        let mut all = Vec::new();
        let note = |event: &Event<'_>| {
            if let Event::Progress { progress, .. } = event {
                all.push(*progress);
            }
        };
        engine.generate(asked.clone(), note).unwrap();
        all
    };
    let first = told(&asked);
    let done: Vec<usize> = first.iter().map(|progress| progress.n_done).collect();
    assert_eq!(done, [0, 16, 32, 48, 64, 80, 96, 100]);
    assert!(first.iter().all(|progress| (progress.n_prompt, progress.n_reused) == (100, 0)));
    assert!(first[0].seconds == 0.0 && first.is_sorted_by(|a, b| a.seconds <= b.seconds), "{first:?}");
    let second = told(&asked);
    let (begin, end) = (second[0], second[second.len() - 1]);
    assert!(begin.n_reused >= 80 && begin.n_done == begin.n_reused, "{second:?}");
    assert_eq!((second.len(), end.n_done), (2, 100));
    assert!(told(&Request { progress: false, ..asked }).is_empty());
}
