//! Tests that draft tokens of any quality change the speed of an answer and nothing else.
//!
//! Past 600 lines, because one set of drafters serves all tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::*;
use device::{Device, Numerics};
use device_reference::Reference;
use device_testing::{cases, every};
use ingle_engine::*;
use proptest::prelude::*;

/// Families with full attention only, with windows only, and with both.
const MODELS: [&str; 3] = ["llama", "mistral", "gemma3"];

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

/// Quality of the draft tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Skill {
    Right,
    Wrong,
    /// The first few tokens of a draft are right, another number each time.
    Partly,
    /// Random tokens, mostly wrong.
    Random,
}

pub(crate) const SKILLS: [Skill; 4] = [Skill::Right, Skill::Wrong, Skill::Partly, Skill::Random];

/// Proposer that knows the answer, and drafts it with the given skill.
struct Oracle<F> {
    skill: Skill,
    next: F,
    n_vocab: u32,
    n_calls: u32,
}

/// An oracle with a function that continues a text.
pub(crate) fn knowing(
    skill: Skill,
    n_vocab: usize,
    next: impl FnMut(&[u32]) -> u32 + Send + 'static,
) -> Box<dyn Proposer> {
    Box::new(Oracle { skill, next, n_vocab: n_vocab as u32, n_calls: 0 })
}

impl<F: FnMut(&[u32]) -> u32 + Send> Proposer for Oracle<F> {
    fn propose(
        &mut self,
        _: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> Result<()> {
        assert!(draft.is_empty() && draft.capacity() >= n);
        self.n_calls += 1;
        let mut text = tokens.to_vec();
        for i in 0..n {
            let right = (self.next)(&text);
            let wrong = (right + 1) % self.n_vocab;
            let guess = match self.skill {
                Skill::Right => right,
                Skill::Wrong => wrong,
                Skill::Partly => [right, wrong][usize::from(i as u32 >= self.n_calls % 5)],
                Skill::Random => (self.n_calls * 31 + i as u32 * 7) % self.n_vocab,
            };
            text.push(guess);
            draft.push(guess);
        }
        Ok(())
    }
}

/// An oracle for the device [`History`].
fn oracle(model: &Model, skill: Skill) -> Box<dyn Proposer> {
    let (windows, n_vocab) = (windows(model), model.n_vocab());
    let next = move |tokens: &[u32]| next_token(&windows, tokens, n_vocab);
    knowing(skill, n_vocab, next)
}

/// An oracle that knows an answer; beyond it every draft token is 0.
pub(crate) fn informed(answer: Vec<u32>, n_vocab: usize, skill: Skill) -> Box<dyn Proposer> {
    let next = move |tokens: &[u32]| answer.get(tokens.len()).copied().unwrap_or(0);
    knowing(skill, n_vocab, next)
}

pub(crate) fn always(max_draft: usize, options: LoadOptions) -> LoadOptions {
    LoadOptions { speculate: Speculate::Always, max_draft, ..options }
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap())
}

#[test]
fn guesses_of_any_skill_change_nothing_but_the_number_of_steps() {
    for name in MODELS {
        for (max_draft, chunk) in [(1, 7), (3, 2), (8, 500)] {
            for skill in SKILLS {
                let history = History::default();
                let n_runs = history.n_runs.clone();
                let device: Arc<dyn Device> = Arc::new(history);
                let mut engine =
                    Engine::new(model(name), &device, &always(max_draft, options(160, chunk, 1))).unwrap();
                engine.set_proposer(oracle(&model(name), skill));
                for (n_prompt, reuse) in [(5, false), (75, true), (75, true)] {
                    let prompt = prompt(n_prompt);
                    let want = continuation(engine.model(), &prompt, 60);
                    let before = n_runs.load(Ordering::Relaxed);
                    let got = engine.complete(Request { reuse, ..greedy(&prompt, 60) }).unwrap();
                    assert_eq!(got.tokens, want, "{name}, {skill:?}, {max_draft} guesses");
                    engine.kv().check().unwrap();
                    let t = got.finished.timings;
                    let n_steps = n_runs.load(Ordering::Relaxed) - before;
                    match skill {
                        Skill::Right => {
                            assert_eq!(t.accepted_tokens, t.drafted_tokens);
                            assert!(
                                n_steps <= 75 / 2 + 1 + 60_usize.div_ceil(max_draft + 1) + 1,
                                "{n_steps}"
                            );
                        }
                        Skill::Wrong => {
                            assert!(t.accepted_tokens == 0 && t.drafted_tokens >= 58 * max_draft.min(2))
                        }
                        _ => assert!(t.accepted_tokens < t.drafted_tokens),
                    }
                }
            }
        }
    }
}

/// Proposer of too many draft tokens, and of ids that do not exist.
struct Babbler;

impl Proposer for Babbler {
    fn propose(
        &mut self,
        _: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> Result<()> {
        draft.extend((0..2 * n as u32).map(|i| [i, u32::MAX, 160][(tokens.len() + i as usize) % 3]));
        Ok(())
    }
}

#[test]
fn guesses_that_cannot_be_are_left_out() {
    for speculate in [Speculate::Always, Speculate::Auto] {
        let device: Arc<dyn Device> = Arc::new(History::default());
        let options = LoadOptions { speculate, max_draft: 3, ..options(128, 4, 1) };
        let mut engine = Engine::new(model("llama"), &device, &options).unwrap();
        engine.set_proposer(Box::new(Babbler));
        let got = engine.complete(greedy(&prompt(20), 108)).unwrap();
        assert_eq!(got.tokens, continuation(engine.model(), &prompt(20), 108));
    }
}

#[test]
fn sequences_that_share_steps_keep_their_own_answers() {
    for name in MODELS {
        for skill in SKILLS {
            let device: Arc<dyn Device> = Arc::new(History::default());
            let mut engine = Engine::new(model(name), &device, &always(4, options(128, 16, 3))).unwrap();
            engine.set_proposer(oracle(&model(name), skill));
            let mut want = HashMap::new();
            for i in 0..7 {
                let prompt: Vec<u32> = prompt(5 + 9 * i).iter().map(|t| (t + i as u32 / 2) % 160).collect();
                let n = 30 - 3 * i;
                want.insert(
                    engine.add(greedy(&prompt, n)).unwrap(),
                    continuation(engine.model(), &prompt, n),
                );
            }
            let mut got: HashMap<SequenceId, Vec<u32>> = HashMap::new();
            while engine
                .step(&mut |event| {
                    if let Event::Token { sequence, id, .. } = event {
                        got.entry(sequence).or_default().push(id);
                    }
                })
                .unwrap()
            {
                engine.kv().check().unwrap();
            }
            assert_eq!(got, want, "{name}, {skill:?}");
        }
    }
}

#[test]
fn the_end_of_the_context_inside_a_run() {
    for name in MODELS {
        for (max_draft, skill) in [(3, Skill::Right), (8, Skill::Right), (8, Skill::Partly)] {
            let run = |speculate: Speculate, overflow: Overflow, n: Option<usize>| {
                let device: Arc<dyn Device> = Arc::new(History::default());
                let options = LoadOptions { speculate, max_draft, ..options(64, 16, 1) };
                let mut engine = Engine::new(model(name), &device, &options).unwrap();
                engine.set_proposer(oracle(&model(name), skill));
                let got =
                    engine.complete(Request { overflow, max_tokens: n, ..greedy(&prompt(41), 0) }).unwrap();
                engine.kv().check().unwrap();
                (got.tokens, got.finished.reason)
            };
            for (overflow, n) in
                [(Overflow::Stop, None), (Overflow::Slide { keep: 5 }, Some(150)), (Overflow::Stop, Some(0))]
            {
                let want = run(Speculate::Off, overflow, n);
                assert_eq!(run(Speculate::Always, overflow, n), want, "{name} {overflow:?}");
            }
            assert_eq!(run(Speculate::Always, Overflow::Stop, None).1, FinishReason::ContextFull);
        }
    }
}

#[test]
fn stop_strings_and_end_tokens_inside_a_run() {
    let device: Arc<dyn Device> = Arc::new(History::default());
    let model = model_with_text("gemma3");
    let engine = |speculate| {
        let options = LoadOptions { speculate, max_draft: 8, ..options(256, 32, 1) };
        let mut engine = Engine::new(model.clone(), &device, &options).unwrap();
        engine.set_proposer(oracle(&model, Skill::Right));
        engine
    };
    let (mut plain, mut fast) = (engine(Speculate::Off), engine(Speculate::Always));
    let mut both = |request: Request| {
        let mut events = [Vec::new(), Vec::new()];
        let mut done = Vec::new();
        for (engine, events) in [&mut plain, &mut fast].into_iter().zip(&mut events) {
            let keep = |event: &Event<'_>| {
                events.push((matches!(event, Event::Token { .. }), event.text().to_owned()))
            };
            done.push(engine.generate(request.clone(), keep).unwrap());
            engine.kv().check().unwrap();
        }
        assert_eq!(events[0], events[1]);
        assert_eq!(done[0].reason, done[1].reason);
        assert_eq!(done[0].timings.generated_tokens, done[1].timings.generated_tokens);
        done.pop().unwrap().reason
    };
    let mut reasons = Vec::new();
    for first in 0..60u32 {
        let request = greedy(&[first, 7, 9], 60);
        reasons.push(both(request.clone()));
        // A stop string that begins and ends anywhere in the text.
        let text = continuation(&model, &request.tokens, 30);
        let text = tokenizer().decode(&text, false);
        let chars: Vec<char> = text.chars().collect();
        let from = first as usize % 20;
        let stop: String = chars[from..from + 1 + first as usize % 5].iter().collect();
        reasons.push(both(Request { stop: text::Stops::new(&[stop]).unwrap(), ignore_end: true, ..request }));
    }
    let count = |of: fn(&FinishReason) -> bool| reasons.iter().filter(|r| of(r)).count();
    assert!(count(|r| matches!(r, FinishReason::EndToken(_))) > 5, "{reasons:?}");
    assert!(count(|r| matches!(r, FinishReason::StopString(_))) > 50);
}

#[test]
fn cancelling_inside_a_run_ends_it_there() {
    let device: Arc<dyn Device> = Arc::new(History::default());
    let mut engine = Engine::new(model("mistral"), &device, &always(8, options(128, 16, 1))).unwrap();
    engine.set_proposer(oracle(&model("mistral"), Skill::Right));
    let flag = CancelFlag::default();
    let mut n = 0;
    let request = Request { cancel: flag.clone(), ..greedy(&prompt(20), 50) };
    let done = engine.generate(request, |event| {
        n += usize::from(matches!(event, Event::Token { .. }));
        if n == 5 {
            flag.cancel();
        }
    });
    assert_eq!((done.unwrap().reason, n), (FinishReason::Cancelled, 5));
    let again = engine.complete(greedy(&prompt(20), 50)).unwrap();
    assert_eq!(again.tokens, continuation(engine.model(), &prompt(20), 50));
}

#[test]
fn a_failed_step_with_guesses_can_be_run_again() {
    for fail_at in 3..8 {
        let device: Arc<dyn Device> = Arc::new(History { fail_at, ..History::default() });
        let mut engine = Engine::new(model("gemma3"), &device, &always(4, options(128, 16, 2))).unwrap();
        engine.set_proposer(oracle(&model("gemma3"), Skill::Partly));
        let ids = [prompt(30), prompt(23)].map(|p| engine.add(greedy(&p, 20)).unwrap());
        let (got, n_failed) = drain_with_failures(&mut engine);
        assert_eq!(n_failed, 1);
        assert_eq!(got[&ids[0]], continuation(engine.model(), &prompt(30), 20));
        assert_eq!(got[&ids[1]], continuation(engine.model(), &prompt(23), 20));
    }
}

/// Requests that use every part of the sampler; the last three draw random numbers.
fn samplings() -> [SamplingParams; 5] {
    let seeded = SamplingParams { seed: Some(5), logprobs: true, ..SamplingParams::default() };
    [
        SamplingParams::greedy(),
        SamplingParams {
            repeat_penalty: 1.3,
            frequency_penalty: 0.2,
            logprobs: true,
            ..SamplingParams::greedy()
        },
        seeded.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.9, min_p: 0.02, ..seeded.clone() },
        SamplingParams {
            temperature: 1.3,
            repeat_penalty: 1.2,
            presence_penalty: 0.3,
            penalty_window: 9,
            logit_bias: [(3, 1.0), (4, f32::NEG_INFINITY)].into(),
            ..seeded
        },
    ]
}

/// Every second family; all of them in runs of more cases.
fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().chain(RECURRENT).step_by(every(2))
}

/// The reference computes every row alone, and so does the CPU with deterministic numerics: not one
/// bit may differ. The families include windows, experts and recurrent states.
#[test]
fn real_models_answer_the_same_to_the_bit() {
    let devices: [Arc<dyn Device>; 2] = [Arc::new(Reference::new(1)), cpu()];
    for (number, name) in families().enumerate() {
        let input = expected(name).input;
        let load = LoadOptions { numerics: Numerics::Deterministic, ..options(64, 24, 1) };
        for device in &devices {
            let mut plain = Engine::new(model(name), device, &load).unwrap();
            for (i, skill) in SKILLS.into_iter().enumerate() {
                let sampling = &samplings()[(number + i) % 5];
                let request =
                    || Request { sampling: sampling.clone(), ignore_end: true, ..greedy(&input[..29], 21) };
                let want = plain.complete(request()).unwrap();
                let mut engine = Engine::new(model(name), device, &always(5, load.clone())).unwrap();
                let all = [&input[..29], &want.tokens].concat();
                engine.set_proposer(informed(all, engine.model().n_vocab(), skill));
                let got = engine.complete(request()).unwrap();
                let what = format!("{name}, {}, {skill:?}, {sampling:?}", device.name());
                assert_eq!((got.tokens, got.logprobs), (want.tokens, want.logprobs), "{what}");
                let t = got.finished.timings;
                assert!(skill != Skill::Right || (t.accepted_tokens, t.drafted_tokens) == (16, 16), "{t:?}");
            }
        }
    }
}

/// With fast numerics another token may be chosen only if the best two are as close as rounding.
/// The weights are BF16 and keys F32, so two orders of the same sums differ by less than 1e-3 in
/// the logits (tests/cpu.rs).
#[test]
fn fast_numerics_differ_by_rounding_only() {
    let device = cpu();
    for name in families() {
        let input = expected(name).input;
        let load = LoadOptions { kv_type: Some(device::KvType::F32), ..options(96, 24, 1) };
        let request = || Request { ignore_end: true, ..greedy(&input[..29], 40) };
        let want = Engine::new(model(name), &device, &load).unwrap().complete(request()).unwrap().tokens;
        let all = [&input[..29], &want].concat();
        let mut engine = Engine::new(model(name), &device, &always(6, load)).unwrap();
        engine.set_proposer(informed(all.clone(), engine.model().n_vocab(), Skill::Partly));
        let got = engine.complete(request()).unwrap().tokens;
        if let Some(at) = (0..want.len()).find(|&i| got[i] != want[i]) {
            let mut gap = f32::MAX;
            let mut visit = |_, logits: &[f32]| {
                gap = (logits[got[at] as usize] - logits[want[at] as usize]).abs();
                Ok(())
            };
            engine.evaluate(&all[..29 + at], 1, Prefill::Batched, &mut visit).unwrap();
            assert!(gap < 2e-3, "{name}: token {at} differs, and the two are {gap} apart");
        }
    }
}

/// The distribution of the second token is the same with draft tokens and without. A test of
/// homogeneity compares two samples of 4,000 answers with different seeds. (Equal seeds give equal
/// answers, as tested above; this test does not depend on that.)
#[test]
fn sampled_answers_have_the_same_distribution() {
    const N: u64 = 4000;
    let device: Arc<dyn Device> = Arc::new(History::default());
    let prompt = prompt(3);
    let sampling = SamplingParams {
        temperature: 4.0,
        top_k: 12,
        top_p: 0.95,
        repeat_penalty: 1.1,
        ..SamplingParams::default()
    };
    let sample = |speculate: Speculate, first_seed: u64| {
        let options = LoadOptions { speculate, max_draft: 3, ..options(64, 16, 1) };
        let mut engine = Engine::new(model("mistral"), &device, &options).unwrap();
        // The best token is a good draft token, and often not the one that is drawn.
        engine.set_proposer(oracle(&model("mistral"), Skill::Right));
        let (mut counts, mut accepted) = (HashMap::<[u32; 2], f64>::new(), 0);
        for seed in first_seed..first_seed + N {
            let sampling = SamplingParams { seed: Some(seed), ..sampling.clone() };
            let got = engine.complete(Request { sampling, ..greedy(&prompt, 4) }).unwrap();
            *counts.entry([got.tokens[1], got.tokens[2]]).or_default() += 1.0;
            accepted += got.finished.timings.accepted_tokens;
        }
        (counts, accepted)
    };
    let ((with, accepted), (without, _)) = (sample(Speculate::Always, 0), sample(Speculate::Off, 1 << 32));
    assert!(
        (N as usize / 4..N as usize * 3 / 2).contains(&accepted),
        "guesses are right and wrong: {accepted}"
    );
    // Pairs that are rare in both go into one bin.
    let (mut statistic, mut n_bins, mut rare) = (0.0, 0, (0.0, 0.0));
    let mut add = |a: f64, b: f64| {
        statistic += (a - b) * (a - b) / (a + b);
        n_bins += 1;
    };
    let get = |of: &HashMap<[u32; 2], f64>, key: &[u32; 2]| of.get(key).copied().unwrap_or(0.0);
    let mut keys: Vec<_> = with.keys().chain(without.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (a, b) = (get(&with, key), get(&without, key));
        if a + b >= 10.0 { add(a, b) } else { rare = (rare.0 + a, rare.1 + b) }
    }
    if rare.0 + rare.1 > 0.0 {
        add(rare.0, rare.1);
    }
    // Chi-square with f degrees of freedom has mean f and variance 2f; five deviations.
    let f = f64::from(n_bins - 1);
    assert!(n_bins > 20 && statistic < f + 5.0 * (2.0 * f).sqrt(), "{statistic} in {n_bins} bins");
}

#[test]
fn a_text_that_repeats_itself_is_guessed_from_itself() {
    // Only four tokens are allowed, so that texts soon repeat.
    let device: Arc<dyn Device> = Arc::new(History::default());
    let forbidden = (4..160).map(|t| (t, f32::NEG_INFINITY)).collect();
    let sampling = SamplingParams { logit_bias: forbidden, ..SamplingParams::greedy() };
    let request = || Request { sampling: sampling.clone(), ..greedy(&prompt(9), 200) };
    let run = |speculate| {
        let options = LoadOptions { speculate, ..options(256, 32, 1) };
        Engine::new(model("mistral"), &device, &options).unwrap().complete(request()).unwrap()
    };
    let (off, always) = (run(Speculate::Off), run(Speculate::Always));
    assert_eq!(off.tokens, always.tokens);
    assert_eq!(off.finished.timings.drafted_tokens, 0);
    let t = always.finished.timings;
    assert!(t.drafted_tokens > 200 && t.accepted_tokens > 20, "{t:?}");
}

#[test]
fn guessing_stops_where_no_guess_is_right() {
    for name in MODELS {
        let device: Arc<dyn Device> = Arc::new(History::default());
        let options = LoadOptions { speculate: Speculate::Auto, ..options(512, 32, 1) };
        let mut engine = Engine::new(model(name), &device, &options).unwrap();
        engine.set_proposer(oracle(&model(name), Skill::Wrong));
        let got = engine.complete(greedy(&prompt(9), 400)).unwrap();
        assert_eq!(got.tokens, continuation(engine.model(), &prompt(9), 400));
        // A wrong draft token lowers the rate of one half by an eighth, and at a tenth no cost is
        // low enough.
        let n = got.finished.timings.drafted_tokens;
        assert!(n <= 8 * 24, "{n} of 400 tokens' guesses were verified");
    }
}

fn with_draft_model(target: &str, draft: &str, device: &Arc<dyn Device>, options: &LoadOptions) -> Engine {
    let mut engine = Engine::new(model(target), device, options).unwrap();
    engine.set_proposer(Box::new(DraftModel::new(model(draft), &engine, options).unwrap()));
    engine
}

#[test]
fn a_model_that_guesses_for_itself_is_always_right() {
    for device in [Arc::new(History::default()) as Arc<dyn Device>, Arc::new(Reference::new(1))] {
        for name in MODELS {
            let mut engine = with_draft_model(name, name, &device, &always(4, options(128, 16, 1)));
            let want = Engine::new(model(name), &device, &options(128, 16, 1))
                .unwrap()
                .complete(greedy(&prompt(50), 40))
                .unwrap();
            for _ in 0..2 {
                let got = engine.complete(greedy(&prompt(50), 40)).unwrap();
                assert_eq!(got.tokens, want.tokens, "{name}");
                let t = got.finished.timings;
                assert_eq!((t.drafted_tokens, t.accepted_tokens), (31, 31), "{name}: 8 steps of 5 tokens");
            }
        }
    }
}

/// Rejected draft tokens leave nothing behind in the draft model, whose windows move too: it
/// continues with the chosen tokens, as a fresh one would.
#[test]
fn a_draft_model_follows_what_was_chosen() {
    let device: Arc<dyn Device> = Arc::new(History::default());
    for draft in MODELS {
        for sampling in [
            SamplingParams::greedy(),
            SamplingParams { temperature: 2.0, seed: Some(3), ..Default::default() },
        ] {
            for speculate in [Speculate::Always, Speculate::Auto] {
                let load = LoadOptions { speculate, max_draft: 5, ..options(96, 16, 2) };
                let mut engine = with_draft_model("llama", draft, &device, &load);
                let mut plain = Engine::new(model("llama"), &device, &options(96, 16, 2)).unwrap();
                for (n_prompt, n) in [(30, 60), (33, 20), (3, 50), (90, 40)] {
                    let request = || Request {
                        sampling: sampling.clone(),
                        overflow: Overflow::Slide { keep: 7 },
                        ..greedy(&prompt(n_prompt), n)
                    };
                    let got = engine.complete(request()).unwrap();
                    assert_eq!(got.tokens, plain.complete(request()).unwrap().tokens, "{draft} {sampling:?}");
                    if speculate == Speculate::Always && draft == "llama" && sampling.temperature == 0.0 {
                        assert_eq!(got.finished.timings.accepted_tokens, got.finished.timings.drafted_tokens);
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_guess_is_refused_with_words() {
    let device: Arc<dyn Device> = Arc::new(History::default());
    let engine = |options: LoadOptions| Engine::new(model("llama"), &device, &options);
    for max_draft in [0, MAX_DRAFT + 1] {
        let error = engine(always(max_draft, options(64, 16, 1))).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, format!("draft length is {max_draft}, expected a number from 1 to 64"));
    }
    // The option's value is not checked without speculation.
    assert!(engine(LoadOptions { max_draft: 0, ..options(64, 16, 1) }).is_ok());
    let target = engine(always(2, options(64, 16, 1))).unwrap();
    let memory = target.memory();
    assert_eq!(target.limits().max_outputs, 3);
    assert!(memory.items.iter().any(|i| i.what == "logits" && i.bytes == 4 * 3 * 160), "{memory}");
    // Both models together do not fit, though each does alone.
    let small = platform::SystemMemory { total: 1 << 30, free: memory.total + memory.reserved / 2 };
    let tight: Arc<dyn Device> = Arc::new(History { memory: small, ..History::default() });
    let target = Engine::new(model("llama"), &tight, &always(2, options(64, 16, 1))).unwrap();
    let error = DraftModel::new(model("llama"), &target, &options(64, 16, 1)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("the model that it drafts for"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    /// Random requests over texts that share starts, with draft tokens that are sometimes right.
    /// The books balance after every step, and every answer is the one that its prompt gives alone.
    #[test]
    fn random_scheduling_with_guesses_keeps_integrity_and_answers(
        which in 0..3usize,
        chunk in 1..40usize,
        max_draft in 1..9usize,
        skill in 0..4usize,
        actions in prop::collection::vec((0..6u8, 1..90usize, 0..4u32, 1..40usize), 1..40),
    ) {
        let device: Arc<dyn Device> = Arc::new(History::default());
        let load = always(max_draft, options(96, chunk, 3));
        let mut engine = Engine::new(model(MODELS[which]), &device, &load).unwrap();
        engine.set_proposer(oracle(&model(MODELS[which]), SKILLS[skill]));
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
                    let prompt: Vec<u32> =
                        (0..len as u32).map(|i| (i * 3 + if i < shared { 0 } else { 10 * text }) % 160).collect();
                    let id = engine.add(Request { reuse: n % 5 != 0, ..greedy(&prompt, n) }).unwrap();
                    prompts.insert(id, (prompt, n));
                    last = Some(id);
                }
                2 if n > 35 => if let Some(id) = last { engine.cancel(id) },
                _ => for _ in 0..n.min(8) { step(&mut engine); },
            }
        }
        while step(&mut engine) {}
        for (id, tokens) in &got {
            let (prompt, n) = &prompts[id];
            prop_assert!(continuation(engine.model(), prompt, *n).starts_with(tokens), "{:?}", id);
        }
    }
}
