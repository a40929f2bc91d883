//! Tests of draft tokens for recurrent models: after a wrong one a sequence returns to the state
//! before it. Answers are those without draft tokens.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::*;
use crate::speculate::{SKILLS, Skill, always, informed, knowing};
use device::Device;
use device_reference::Reference;
use device_testing::null::{self, Event as Asked, NullDevice};
use device_testing::{Scarce, cases};
use ingle_engine::*;
use proptest::prelude::*;

/// An oracle for the null device.
fn null_oracle(skill: Skill, n_vocab: usize) -> Box<dyn Proposer> {
    knowing(skill, n_vocab, move |tokens| null::next_token(tokens, n_vocab))
}

fn null_engine(name: &str, skill: Skill, options: &LoadOptions) -> (Engine, NullDevice) {
    let null = NullDevice::default().recording();
    let device: Arc<dyn Device> = Arc::new(null.clone());
    let mut engine = Engine::new(model_with_text(name), &device, options).unwrap();
    engine.set_proposer(null_oracle(skill, engine.model().n_vocab()));
    (engine, null)
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

/// Rows of each step after those of the prompt.
fn rows(null: &NullDevice) -> Vec<usize> {
    let submitted = |event| if let Asked::Submit(step) = event { Some(step.tokens.len()) } else { None };
    null.take_events().into_iter().filter_map(submitted).skip(1).collect()
}

#[test]
fn behind_a_wrong_guess_rows_are_computed_again_and_never_many() {
    let request = || Request { ignore_end: true, ..greedy(&prompt(9), 40) };
    let run = |skill, max_draft| {
        let (mut engine, null) = null_engine("qwen3_5", skill, &always(max_draft, options(128, 16, 1)));
        let got = engine.complete(request()).unwrap();
        assert_eq!(got.tokens, null::greedy(&prompt(9), 40, engine.model().n_vocab()));
        (rows(&null), got.finished.timings)
    };
    // Rows of a step: the next token and its draft token; two accepted tokens and a draft token; or
    // three tokens without room for a draft token.
    let (wrong, t) = run(Skill::Wrong, 1);
    assert_eq!(wrong[..7], [2, 3, 3, 2, 3, 3, 2], "{wrong:?}");
    assert_eq!(t.accepted_tokens, 0);
    let (right, t) = run(Skill::Right, 4);
    assert_eq!(right, [5; 7].into_iter().chain([4]).collect::<Vec<_>>(), "nothing is computed again");
    assert_eq!(t.accepted_tokens, t.drafted_tokens);
    for max_draft in [1, 3, 8] {
        for skill in SKILLS {
            let (rows, _) = run(skill, max_draft);
            assert!(rows.iter().all(|n| *n <= 1 + 2 * max_draft), "{skill:?}, {max_draft}: {rows:?}");
        }
    }
}

/// An answer that ends within its draft tokens leaves the state before them in the cache.
#[test]
fn what_follows_an_answer_goes_on_from_its_last_state() {
    for name in RECURRENT {
        for (n, skill) in [(7, Skill::Right), (8, Skill::Right), (9, Skill::Partly), (10, Skill::Partly)] {
            let (mut engine, _) = null_engine(name, skill, &always(4, options(128, 16, 2)));
            let n_vocab = engine.model().n_vocab();
            let first =
                engine.complete(Request { ignore_end: true, ..greedy(&prompt(30), n) }).unwrap().tokens;
            let longer = [&prompt(30)[..], &first, &[5, 6, 7]].concat();
            let got = engine.complete(Request { ignore_end: true, ..greedy(&longer, 20) }).unwrap();
            assert_eq!(got.tokens, null::greedy(&longer, 20, n_vocab), "{name}, {n} tokens");
            let reused = got.finished.timings.reused_tokens;
            // The cached state is that of the answer, or of the step in which it ended.
            assert!(reused >= 30, "{name}, {n} tokens: {reused}");
            engine.kv().check().unwrap();
        }
    }
}

#[test]
fn a_fork_in_the_midst_of_guesses_has_the_same_answer() {
    for name in RECURRENT {
        for n_before in 1..9 {
            let (mut engine, _) = null_engine(name, Skill::Partly, &always(3, options(128, 16, 3)));
            let want = null::greedy(&prompt(40), 30, engine.model().n_vocab());
            let first = engine.add(Request { ignore_end: true, ..greedy(&prompt(40), 30) }).unwrap();
            let mut all: HashMap<SequenceId, Vec<u32>> = HashMap::new();
            let mut note = |event: Event<'_>| {
                if let Event::Token { sequence, id, .. } = event {
                    all.entry(sequence).or_default().push(id);
                }
            };
            for _ in 0..3 + n_before {
                engine.step(&mut note).unwrap();
            }
            let fork = engine.fork(first, &SamplingParams::greedy()).unwrap();
            while engine.step(&mut note).unwrap() {
                engine.kv().check().unwrap();
            }
            assert_eq!(all[&first], want, "{name}");
            assert!(want.ends_with(&all[&fork]) && !all[&fork].is_empty(), "{name}, {n_before}");
        }
    }
}

#[test]
fn a_failed_step_with_guesses_is_run_again_from_the_same_state() {
    for fail_at in 1..9 {
        let (mut plain, _) = null_engine("lfm2", Skill::Right, &options(128, 16, 2));
        let kinds = [4, 8, 12];
        let want = answers(&mut plain, &kinds, &|_| None);
        let scarce = Scarce::new(Arc::new(NullDevice::default()));
        scarce.fail(fail_at);
        let device: Arc<dyn Device> = Arc::new(scarce);
        let mut engine =
            Engine::new(model_with_text("lfm2"), &device, &always(4, options(128, 16, 2))).unwrap();
        engine.set_proposer(null_oracle(Skill::Partly, engine.model().n_vocab()));
        assert_eq!(answers(&mut engine, &kinds, &|_| None), want, "step {fail_at}");
    }
}

/// On real arithmetic, three sequences at once have the answers that each has alone without draft
/// tokens.
#[test]
fn sequences_that_share_steps_keep_their_own_answers() {
    crate::recurrent::each(|what, engine| {
        let input = expected(crate::recurrent::fixture(what)).input;
        let prompts = [&input[..29], &input[..17], &input[5..40]];
        let request = |p: &[u32]| Request { ignore_end: true, ..greedy(p, 14) };
        let mut plain = engine(options(128, 24, 1));
        let want: Vec<_> = prompts.iter().map(|p| plain.complete(request(p)).unwrap().tokens).collect();
        for skill in [Skill::Partly, Skill::Right] {
            let mut together = engine(always(3, options(128, 24, 3)));
            let known: Vec<Vec<u32>> =
                prompts.iter().zip(&want).map(|(p, answer)| [p, &answer[..]].concat()).collect();
            let next = move |tokens: &[u32]| {
                let all = known.iter().find(|all| all.starts_with(tokens));
                all.and_then(|all| all.get(tokens.len())).copied().unwrap_or(0)
            };
            together.set_proposer(knowing(skill, together.model().n_vocab(), next));
            let ids: Vec<_> = prompts.iter().map(|p| together.add(request(p)).unwrap()).collect();
            let all = crate::recurrent::drain(&mut together);
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(&all[id], want, "{what}, {skill:?}");
            }
            // The prompt's cached prefix is used again.
            let all = [prompts[0], &want[0]].concat();
            together.set_proposer(informed(all, together.model().n_vocab(), skill));
            let again = together.complete(request(prompts[0])).unwrap();
            assert_eq!(again.tokens, want[0], "{what}, {skill:?}, again");
            let t = again.finished.timings;
            assert!(t.reused_tokens >= 16 && t.accepted_tokens > 0, "{what}, {skill:?}: {t:?}");
        }
    });
}

/// A recurrent draft model: for itself it is always right, for another model it follows the chosen
/// tokens.
#[test]
fn a_recurrent_model_guesses_too() {
    let devices = [Arc::new(NullDevice::default()) as Arc<dyn Device>, Arc::new(Reference::new(1))];
    for device in devices {
        for (target, draft) in
            [("lfm2", "lfm2"), ("llama", "qwen3_5"), ("qwen3_5", "llama"), ("mamba2", "mamba2")]
        {
            let what = format!("{draft} for {target} on {}", device.name());
            let load = always(4, options(128, 16, 2));
            let mut engine = Engine::new(model(target), &device, &load).unwrap();
            engine.set_proposer(Box::new(DraftModel::new(model(draft), &engine, &load).unwrap()));
            let mut plain = Engine::new(model(target), &device, &options(128, 16, 2)).unwrap();
            let greedy = SamplingParams::greedy();
            let random = SamplingParams { temperature: 1.0, seed: Some(3), ..SamplingParams::default() };
            for (n_prompt, n, sampling) in
                [(50, 40, &greedy), (50, 40, &greedy), (30, 40, &random), (33, 20, &greedy)]
            {
                let request = || Request {
                    sampling: sampling.clone(),
                    ignore_end: true,
                    max_tokens: Some(n),
                    ..Request::new(prompt(n_prompt))
                };
                let (got, want) = (engine.complete(request()).unwrap(), plain.complete(request()).unwrap());
                assert_eq!(got.tokens, want.tokens, "{what}");
                let t = got.finished.timings;
                assert!(t.drafted_tokens > 10, "{what}: {t:?}");
                if (target == draft || device.name() == "null") && sampling.temperature == 0.0 {
                    assert_eq!(t.accepted_tokens, t.drafted_tokens, "{what}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60)))]

    /// Random requests, greedy and sampled, some of which slide, end early or are cancelled, with
    /// draft tokens of any skill and perhaps too little memory. Every answer is the one without
    /// draft tokens and with enough memory.
    #[test]
    fn no_answer_changes_under_random_schedules_with_guesses(
        kinds in prop::collection::vec(0u64..1000, 1..10), n_slots in 1usize..6, chunk in 8usize..40,
        more in 0.0f64..2.0, family in 0usize..RECURRENT.len(), cancelled in 0u64..9, max_draft in 1usize..9,
        skill in 0usize..4, measured in any::<bool>(),
    ) {
        let name = RECURRENT[family];
        let cancel = |kind: u64| (kind % 9 == cancelled).then_some((kind % 5) as usize);
        let (mut plenty, _) = null_engine(name, Skill::Right, &options(96, chunk, n_slots));
        let want = answers(&mut plenty, &kinds, &cancel);
        let one = bytes_of_sequence(&plenty.plan().kv, plenty.limits(), 96);
        let speculate = if measured { Speculate::Auto } else { Speculate::Always };
        let load = LoadOptions {
            kv_budget: Some((one as f64 * (1.5 + more)) as u64),
            speculate,
            ..always(max_draft, options(96, chunk, n_slots))
        };
        let (mut engine, null) = null_engine(name, SKILLS[skill], &load);
        let got = answers(&mut engine, &kinds, &cancel);
        for ((tokens, reason), (wanted, end)) in got.iter().zip(&want) {
            let is_cancelled = [reason, end].contains(&&FinishReason::Cancelled);
            let n = if is_cancelled { tokens.len().min(wanted.len()) } else { usize::MAX };
            prop_assert_eq!(tokens.iter().take(n).collect::<Vec<_>>(), wanted.iter().take(n).collect::<Vec<_>>());
            prop_assert!(is_cancelled || reason == end, "{:?}, expected {:?}", reason, end);
        }
        for event in null.take_events() {
            if let Asked::Submit(step) = event {
                prop_assert!(step.tokens.len() <= engine.limits().max_rows);
            }
        }
    }
}
