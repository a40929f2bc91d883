//! Tests of constraints: every answer meets its own, and is the same as alone, whatever shares the
//! engine.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::*;
use device::Device;
use device_testing::cases;
use device_testing::null::NullDevice;
use ingle_engine::*;
use proptest::prelude::*;

/// Allows tokens whose remainder by `modulus` is that of the number of tokens so far plus `salt`.
/// It is over after `n` tokens.
#[derive(Clone)]
pub struct Counting {
    pub modulus: u32,
    pub salt: u32,
    pub n: usize,
    pub n_vocab: usize,
    pub accepted: Vec<u32>,
    /// Fault at the constraint's `n`th mask.
    pub fault: Option<(usize, Fault)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Error,
    Panic,
    Nothing,
}

impl Counting {
    pub fn new(modulus: u32, salt: u32, n: usize, n_vocab: usize) -> Counting {
        Counting { modulus, salt, n, n_vocab, accepted: Vec::with_capacity(500), fault: None }
    }

    fn allows(&self, n_before: usize, token: u32) -> bool {
        (token as usize) < self.n_vocab
            && token % self.modulus == (n_before as u32 + self.salt) % self.modulus
    }
}

impl Constraint for Counting {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        assert_eq!(words.len(), self.n_vocab.div_ceil(32));
        assert!(words.iter().all(|word| *word == 0));
        match self.fault {
            Some((at, Fault::Error)) if at == self.accepted.len() => return Err("as asked".into()),
            Some((at, Fault::Panic)) if at == self.accepted.len() => panic!("as asked"),
            Some((at, Fault::Nothing)) if at == self.accepted.len() => return Ok(true),
            _ => {}
        }
        if self.modulus == 1 {
            return Ok(false);
        }
        for token in (0..self.n_vocab as u32).filter(|t| self.allows(self.accepted.len(), *t)) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(true)
    }

    fn accept(&mut self, token: u32) -> ConstraintResult<()> {
        if !self.allows(self.accepted.len(), token) {
            return Err(format!("token {token} after {} tokens", self.accepted.len()).into());
        }
        self.accepted.push(token);
        Ok(())
    }

    fn roll_back(&mut self, n_tokens: usize) -> ConstraintResult<()> {
        let n = self.accepted.len().checked_sub(n_tokens).ok_or("nothing to roll back")?;
        self.accepted.truncate(n);
        Ok(())
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        let n = self.accepted.len();
        tokens.iter().enumerate().take_while(|(i, t)| self.allows(n + i, **t)).count()
    }

    fn is_over(&self) -> bool {
        self.accepted.len() >= self.n
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let mut accepted = Vec::with_capacity(500);
        accepted.extend_from_slice(&self.accepted);
        Box::new(Counting { accepted, ..self.clone() })
    }
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

fn counted(prompt: &[u32], n: usize, modulus: u32, salt: u32, n_vocab: usize) -> Request {
    let constraint = Counting::new(modulus, salt, usize::MAX, n_vocab);
    Request { constraint: Some(Box::new(constraint)), ..greedy(prompt, n) }
}

fn devices() -> Vec<Arc<dyn Device>> {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    vec![
        Arc::new(History::default()),
        Arc::new(History { ahead: 3, ..History::default() }),
        Arc::new(NullDevice::default()),
        Arc::new(NullDevice::default().with_steps_in_flight(4)),
        Arc::new(cpu),
    ]
}

fn drain(engine: &mut Engine) -> Answers {
    let mut all = Answers::new();
    while engine.step(&mut |event| note(&mut all, &event)).unwrap() {}
    all
}

#[test]
fn each_answer_keeps_to_its_own_constraint_and_is_what_it_is_alone() {
    for device in devices().into_iter().chain(emulated_metal()) {
        let deterministic = LoadOptions { numerics: device::Numerics::Deterministic, ..options(200, 16, 3) };
        let mut engine = Engine::new(model("llama"), &device, &deterministic).unwrap();
        let n_vocab = engine.model().n_vocab();
        let request = |i: u32| {
            let prompt = prompt(5 + 17 * i as usize);
            if i == 2 { greedy(&prompt, 30) } else { counted(&prompt, 30, i + 2, i, n_vocab) }
        };
        let alone: Vec<Vec<u32>> = (0..5).map(|i| engine.complete(request(i)).unwrap().tokens).collect();
        let ids: Vec<SequenceId> = (0..5).map(|i| engine.add(request(i)).unwrap()).collect();
        let got = drain(&mut engine);
        for (i, id) in ids.iter().enumerate() {
            let (tokens, reason) = &got[id];
            assert_eq!((tokens, reason), (&alone[i], &Some(FinishReason::MaxTokens)), "{}", device.name());
            assert_eq!(tokens.len(), 30);
            let fits =
                tokens.iter().enumerate().all(|(n, t)| t % (i as u32 + 2) == (n + i) as u32 % (i as u32 + 2));
            assert!(fits || i == 2, "{i}: {tokens:?}");
        }
    }
}

#[test]
fn it_ends_where_only_the_end_may_follow() {
    for device in devices() {
        let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 2)).unwrap();
        let n_vocab = engine.model().n_vocab();
        let constraint = Some(Box::new(Counting::new(3, 0, 7, n_vocab)) as Box<dyn Constraint>);
        let got = engine.complete(Request { constraint, ..greedy(&prompt(20), 7) }).unwrap();
        assert_eq!((got.tokens.len(), got.finished.reason), (7, FinishReason::ConstraintMet));
    }
}

#[test]
fn a_constraint_that_allows_all_changes_nothing() {
    for device in devices() {
        let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 2)).unwrap();
        let n_vocab = engine.model().n_vocab();
        let free = engine.complete(greedy(&prompt(20), 30)).unwrap();
        let got = engine.complete(counted(&prompt(20), 30, 1, 0, n_vocab)).unwrap();
        assert_eq!(got.tokens, free.tokens);
    }
}

#[test]
fn a_constraint_that_fails_ends_its_sequence_only() {
    for device in devices() {
        for (fault, words) in
            [(Fault::Error, "as asked"), (Fault::Panic, "panicked: as asked"), (Fault::Nothing, "no token")]
        {
            let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 3)).unwrap();
            let n_vocab = engine.model().n_vocab();
            let other = engine.complete(counted(&prompt(9), 20, 5, 0, n_vocab)).unwrap();
            let bad = Counting { fault: Some((4, fault)), ..Counting::new(3, 0, 99, n_vocab) };
            let bad = Request { constraint: Some(Box::new(bad)), ..greedy(&prompt(12), 20) };
            let (bad, good) = (engine.add(bad), engine.add(counted(&prompt(9), 20, 5, 0, n_vocab)));
            let got = drain(&mut engine);
            let (tokens, reason) = &got[&bad.unwrap()];
            assert_eq!(tokens.len(), 4);
            match reason {
                // The client is told a constraint's error; its panic is a defect of the engine.
                Some(FinishReason::ConstraintFailed(reason)) if fault == Fault::Error => {
                    assert!(reason.contains(words), "{reason}");
                }
                Some(FinishReason::Failed(reason)) if fault == Fault::Panic => {
                    assert!(reason.contains(words), "{reason}");
                }
                Some(FinishReason::ConstraintUnmet) if fault == Fault::Nothing => {}
                reason => panic!("{reason:?}"),
            }
            assert_eq!(got[&good.unwrap()].0, other.tokens);
            engine.kv().check().unwrap();
        }
    }
}

/// Meets the device at every mask, as side 1.
#[derive(Clone)]
struct Meets(Arc<Meeting>);

impl Constraint for Meets {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        match self.0.come(1) {
            true => words.fill(u32::MAX),
            false => return Err("the device does not work beside the masks".into()),
        }
        Ok(true)
    }

    fn accept(&mut self, _: u32) -> ConstraintResult<()> {
        Ok(())
    }

    fn roll_back(&mut self, _: usize) -> ConstraintResult<()> {
        Ok(())
    }

    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        tokens.len()
    }

    fn is_over(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn masks_are_computed_while_the_device_computes() {
    let meeting = Arc::new(Meeting::default());
    let device: Arc<dyn Device> = Arc::new(History { meeting: Some(meeting.clone()), ..History::default() });
    let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 1)).unwrap();
    let request = Request { constraint: Some(Box::new(Meets(meeting))), ..greedy(&prompt(9), 8) };
    let done = engine.complete(request).unwrap();
    assert_eq!((done.tokens.len(), done.finished.reason), (8, FinishReason::MaxTokens));
}

/// Proposer that knows the answer, with occasional mistakes.
struct Prophet {
    answer: Vec<u32>,
    n_prompt: usize,
}

impl Proposer for Prophet {
    fn propose(
        &mut self,
        _: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> Result<()> {
        let next = self.answer.iter().enumerate().skip(tokens.len() - self.n_prompt).take(n);
        draft.extend(next.map(|(i, t)| if i % 5 == 3 { t + 1 } else { *t }));
        Ok(())
    }
}

#[test]
fn guesses_have_masks_of_their_own() {
    for device in devices() {
        let numerics = device::Numerics::Deterministic;
        let guessing =
            LoadOptions { speculate: Speculate::Always, max_draft: 4, numerics, ..options(200, 16, 1) };
        let mut engine = Engine::new(model("llama"), &device, &guessing).unwrap();
        let n_vocab = engine.model().n_vocab();
        let request = || counted(&prompt(20), 40, 3, 1, n_vocab);
        let alone = engine.complete(Request { speculate: false, ..request() }).unwrap();
        engine.set_proposer(Box::new(Prophet { answer: alone.tokens.clone(), n_prompt: 20 }));
        let got = engine.complete(request()).unwrap();
        assert_eq!(got.tokens, alone.tokens, "{}", device.name());
        let timings = got.finished.timings;
        assert!(timings.accepted_tokens > 15, "{timings:?}");
        // The constraint refuses every wrong guess before it is computed.
        assert_eq!(timings.accepted_tokens, timings.drafted_tokens);
    }
}

#[test]
fn a_fork_goes_on_from_the_state_of_the_first() {
    let mut engine = Engine::new(model("llama"), &devices()[0], &options(200, 16, 3)).unwrap();
    let n_vocab = engine.model().n_vocab();
    let id = engine.add(counted(&prompt(20), 30, 4, 0, n_vocab)).unwrap();
    let mut all = Answers::new();
    for _ in 0..9 {
        engine.step(&mut |event| note(&mut all, &event)).unwrap();
    }
    let n_before = all[&id].0.len();
    let fork = engine.fork(id, &SamplingParams::greedy()).unwrap();
    while engine.step(&mut |event| note(&mut all, &event)).unwrap() {}
    assert!(n_before > 3 && all[&id].0.len() == 30);
    assert_eq!(all[&fork].0, all[&id].0[n_before..]);
}

#[test]
fn stop_tokens_end_and_too_early_ends_are_not_chosen() {
    for device in devices() {
        let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 2)).unwrap();
        let free = engine.complete(greedy(&prompt(20), 30)).unwrap().tokens;
        let stop = free[12];
        let first = free.iter().position(|t| *t == stop).unwrap();
        let request = Request { stop_tokens: [stop].into(), ..greedy(&prompt(20), 30) };
        let got = engine.complete(request.clone()).unwrap();
        assert_eq!((&got.tokens[..], got.finished.reason), (&free[..first], FinishReason::StopToken(stop)));
        let got = engine.complete(Request { min_tokens: first + 5, ..request.clone() }).unwrap();
        assert_eq!(got.tokens[..first], free[..first]);
        assert!(got.tokens.len() >= first + 5 && !got.tokens[..first + 5].contains(&stop), "{got:?}");
        // The limit is exact: the token may come right after `min_tokens` tokens, but not as the
        // last of them.
        let got = engine.complete(Request { min_tokens: first, ..request.clone() }).unwrap();
        assert_eq!((got.tokens.len(), got.finished.reason), (first, FinishReason::StopToken(stop)));
        let got = engine.complete(Request { min_tokens: first + 1, ..request.clone() }).unwrap();
        assert!(got.tokens.len() > first && got.tokens[first] != stop);
        let bad = engine.add(Request { stop_tokens: [5, 1 << 30].into(), ..request }).unwrap_err();
        assert!(bad.to_string().starts_with("stop_tokens is 1073741824"), "{bad}");
    }
}

#[test]
fn the_likeliest_tokens_come_with_each_token() {
    for device in devices() {
        let mut engine = Engine::new(model("llama"), &device, &options(200, 16, 2)).unwrap();
        let sampling = SamplingParams { logprobs: true, n_best_logprobs: 100, ..SamplingParams::greedy() };
        let mut n = 0;
        engine
            .generate(Request { sampling, ..greedy(&prompt(20), 5) }, |event| {
                let Event::Token { id, logprob, best, .. } = event else { return };
                assert_eq!((best.len(), best[0]), (100, (*id, logprob.unwrap())));
                assert!(best.is_sorted_by(|a, b| a.1 >= b.1));
                n += 1;
            })
            .unwrap();
        assert_eq!(n, 5);
        let sampling = SamplingParams { n_best_logprobs: 129, ..SamplingParams::greedy() };
        let error = engine.add(Request { sampling, ..greedy(&prompt(20), 5) }).unwrap_err();
        assert!(error.to_string().contains("n_best_logprobs is 129, expected at most 128"), "{error}");
    }
}

#[test]
fn prompts_tell_their_log_probabilities_cached_or_not() {
    for device in devices() {
        for n_outputs in [3, 8] {
            let numerics = device::Numerics::Deterministic;
            let sizes = LoadOptions { n_outputs: Some(n_outputs), numerics, ..options(200, 16, 3) };
            let mut engine = Engine::new(model("gemma3"), &device, &sizes).unwrap();
            let prompt = prompt(50);
            let want = engine.score(&prompt, 0, Prefill::Batched).unwrap();
            // Neither cached rows nor other sequences in the step may matter.
            let plain = engine.complete(greedy(&prompt, 9)).unwrap().tokens;
            let other = engine.add(greedy(&prompt[..20], 12)).unwrap();
            let ids = [4, 0]
                .map(|n| engine.add(Request { prompt_logprobs: Some(n), ..greedy(&prompt, 9) }).unwrap());
            let mut told: HashMap<SequenceId, Vec<(usize, u32, f32, usize)>> = HashMap::new();
            let mut all = Answers::new();
            let mut more = true;
            while more {
                more = engine
                    .step(&mut |event| {
                        note(&mut all, &event);
                        if let Event::PromptToken { sequence, position, id, logprob, best } = event {
                            told.entry(sequence).or_default().push((position, id, logprob, best.len()));
                        }
                    })
                    .unwrap();
            }
            assert!(!told.contains_key(&other) && all[&other].0.len() == 12);
            for (id, n_best) in ids.into_iter().zip([4, 0]) {
                assert_eq!((told[&id].len(), &all[&id].0), (49, &plain));
                for (i, (position, token, logprob, n)) in told[&id].iter().enumerate() {
                    assert_eq!((*position, *token, *n), (i + 1, prompt[i + 1], n_best));
                    assert!(
                        (f64::from(*logprob) - want[i].next.as_ref().unwrap().logprob).abs() < 1e-4,
                        "{}: {i}",
                        device.name()
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(30)))]

    /// Random requests, with constraints and without, forks, steps and cancels, in little memory.
    #[test]
    fn random_schedules_keep_every_answer(
        ahead in 0..3usize,
        chunk in 1..40usize,
        speculates in any::<bool>(),
        actions in prop::collection::vec((0..6u8, 1..60usize, 1..5u32, 1..30usize), 1..40),
    ) {
        let device: Arc<dyn Device> = Arc::new(History { ahead, ..History::default() });
        let speculate = if speculates { Speculate::Always } else { Speculate::Off };
        let options = LoadOptions { speculate, max_draft: 3, ..options(96, chunk, 3) };
        let mut engine = Engine::new(model("gemma3"), &device, &options).unwrap();
        let mut solo = Engine::new(model("gemma3"), &device, &self::options(96, 32, 1)).unwrap();
        let n_vocab = engine.model().n_vocab();
        let mut requests: HashMap<SequenceId, Request> = HashMap::new();
        let mut all = Answers::new();
        let mut last = None;
        for (kind, len, modulus, n) in actions {
            match kind {
                0..=2 => {
                    let priority = (n % 3) as i32;
                    let base = if n % 4 == 0 { greedy(&prompt(len), n) } else { counted(&prompt(len), n, modulus, modulus / 2, n_vocab) };
                    let request = Request { priority, ..base };
                    let id = engine.add(request.clone()).unwrap();
                    requests.insert(id, request);
                    last = Some(id);
                }
                3 if n > 22 => if let Some(id) = last { engine.cancel(id) },
                _ => for _ in 0..n.min(8) {
                    engine.step(&mut |event| note(&mut all, &event)).unwrap();
                    engine.kv().check().unwrap();
                },
            }
        }
        while engine.step(&mut |event| note(&mut all, &event)).unwrap() {}
        for (id, request) in requests {
            let (tokens, reason) = &all[&id];
            let want = solo.complete(Request { cancel: CancelFlag::default(), ..request }).unwrap();
            prop_assert!(want.tokens.starts_with(tokens), "{:?}", id);
            prop_assert!(want.tokens.len() == tokens.len() || reason == &Some(FinishReason::Cancelled));
        }
    }
}
