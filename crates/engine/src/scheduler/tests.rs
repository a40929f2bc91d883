//! Tests of the scheduler without an engine, on a simulated device and clock.

mod background;
mod elastic;

use std::time::{Duration, Instant};

use device::{BackgroundProgress, Device, KvLayer, KvType, Limits, Numerics, Plan, Program};
use device_testing::null::{self, NullDevice};

use super::Scheduler;
use crate::kv::{KvCache, pool_sizes};
use crate::output::TextStream;
use crate::sampling::{Sampler, SamplingParams};
use crate::sequence::Sequence;
use crate::{Event, LoadOptions, Request, SequenceId};

const N_VOCAB: usize = 100;

struct Simulation {
    scheduler: Scheduler,
    program: Box<dyn Program>,
    now: Instant,
    n_added: u64,
    /// Tokens that were chosen for each sequence.
    tokens: Vec<Vec<u32>>,
    /// Duration of a part of the chunk in the background.
    part: Duration,
    /// Slowdown of a step after such a part, and true if it applies to the next step.
    slowdown: f64,
    is_slow: bool,
    /// Time at which the last step was done, and the seconds between two such times.
    done: Option<Instant>,
    gaps: Vec<f64>,
}

/// Background rows for which the device is compiled, if it supports them.
const BACKGROUND_ROWS: usize = 16;

impl Simulation {
    fn new(n_ctx: usize, chunk: usize, n_slots: usize, options: &LoadOptions) -> Simulation {
        Simulation::ahead(1, n_ctx, chunk, n_slots, options)
    }

    /// A simulation whose device accepts `depth` steps at once, and computes them in order.
    fn ahead(depth: usize, n_ctx: usize, chunk: usize, n_slots: usize, options: &LoadOptions) -> Simulation {
        let layer = KvLayer {
            n_kv_heads: 1,
            head_dim: 32,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        };
        Simulation::of(&null::plan(N_VOCAB, &[layer]), depth, n_ctx, chunk, n_slots, 0, options)
    }

    /// A simulation whose device computes up to `background_rows` rows of a chunk in the
    /// background.
    fn of(
        plan: &Plan,
        depth: usize,
        n_ctx: usize,
        chunk: usize,
        n_slots: usize,
        background_rows: usize,
        options: &LoadOptions,
    ) -> Simulation {
        let limits = Limits {
            max_rows: chunk,
            max_outputs: n_slots,
            max_spans: n_slots,
            n_ctx,
            page_len: 16,
            n_pages: pool_sizes(&plan.kv, n_ctx, chunk, n_slots, 16),
            n_states: if plan.kv.states.is_empty() { 0 } else { 8 * n_slots },
            background_rows: background_rows.min(chunk),
            kv_type: KvType::F16,
            numerics: Numerics::Fast,
        };
        let device = NullDevice::default().with_steps_in_flight(depth);
        let program = device.compile(std::slice::from_ref(plan), &limits).unwrap();
        let kv = KvCache::new(&plan.kv, &limits);
        let scheduler = Scheduler::new(&limits, N_VOCAB, depth, kv, options, None);
        Simulation {
            scheduler,
            program,
            now: Instant::now(),
            n_added: 0,
            tokens: vec![],
            part: Duration::from_micros(200),
            slowdown: 1.0,
            is_slow: false,
            done: None,
            gaps: vec![],
        }
    }

    fn add(&mut self, mut request: Request) -> SequenceId {
        let id = SequenceId(self.n_added);
        self.n_added += 1;
        self.tokens.push(vec![]);
        let sampler = Sampler::new(&SamplingParams::greedy(), N_VOCAB, None).unwrap();
        let text = TextStream::of(&mut request, None);
        self.scheduler.add(Sequence::new(id, request, sampler, text, [].into(), 8, 0));
        id
    }

    /// Run a step that takes `cost(rows, attended positions)` seconds. Returns its seconds; `None`
    /// if there is no step.
    fn step(&mut self, cost: &dyn Fn(usize, u64) -> f64) -> Option<f64> {
        let Simulation { scheduler, program, now, tokens, .. } = self;
        while scheduler.schedule(*now, true, program.as_mut(), &mut |_| {}).unwrap() {
            let submitted = program.submit(&scheduler.buffers.step(&scheduler.kv, scheduler.masks(), None));
            let ticket = scheduler.kv.note_submitted(submitted).unwrap();
            scheduler.note_submitted(*now, Some(ticket));
        }
        let flight = scheduler.oldest_in_flight();
        if flight.is_none() && !scheduler.pacing.background.is_busy() {
            return None;
        }
        let seconds = flight.map_or(0.0, |flight| cost(flight.load.n_rows, flight.load.n_attended));
        if let Some(flight) = flight {
            program.wait(flight.ticket.unwrap()).unwrap();
        }
        let seconds = if std::mem::take(&mut self.is_slow) { self.slowdown * seconds } else { seconds };
        *now += Duration::from_secs_f64(seconds);
        scheduler.postprocess(*now, program.as_mut(), &mut |event| {
            if let Event::Token { sequence, id, .. } = event {
                tokens[sequence.0 as usize].push(id);
            }
        });
        scheduler.kv.check().unwrap();
        let before = self.done.replace(self.now);
        self.gaps.extend(before.map(|before| (self.now - before).as_secs_f64()));
        self.go_on_in_background();
        self.scheduler.kv.check().unwrap();
        Some(seconds)
    }

    /// Compute as many parts of the chunk as there is time for.
    fn go_on_in_background(&mut self) {
        let Simulation { scheduler, program, now, part, .. } = self;
        let Some(until) = scheduler.background_until(*now, program.as_mut()) else { return };
        self.is_slow = true;
        loop {
            let progress = program.advance_background(until).unwrap();
            *now += *part;
            if progress.is_done || until.is_some_and(|until| *now + *part > until) {
                let progress = BackgroundProgress { longest_part: *part, ..progress };
                return scheduler.note_background(progress, *now, &mut |_| {});
            }
        }
    }
}

fn request(seed: u32, n_prompt: usize, max_tokens: usize) -> Request {
    let tokens = (0..n_prompt as u32).map(|i| (i * 37 + seed * 11) % N_VOCAB as u32).collect();
    Request { max_tokens: Some(max_tokens), ..Request::new(tokens) }
}

#[test]
fn prompts_leave_the_answers_their_latency() {
    // A device that computes 2,500 rows a second, with some cost of attention.
    let cost = |rows: usize, attended: u64| 0.01_f64.max(0.0004 * rows as f64) + 2e-8 * attended as f64;
    let latency = |seconds| LoadOptions { token_latency: seconds, ..LoadOptions::default() };
    let run = |seconds: Option<f64>| {
        let mut s = Simulation::new(16_384, 1024, 4, &latency(seconds.map(Duration::from_secs_f64)));
        (0..3).for_each(|i| _ = s.add(request(i, 100, 2000)));
        (0..3).for_each(|_| _ = s.step(&cost));
        s.add(request(9, 12_000, 5));
        s.add(request(8, 9_000, 5));
        let mut steps = Vec::new();
        while s.scheduler.slots.iter().flatten().any(|s| s.in_prompt) || s.scheduler.n_waiting() > 0 {
            steps.push(s.step(&cost).unwrap());
            assert!(steps.len() < 10_000, "the prompt goes on");
        }
        steps
    };
    let alone = run(None);
    assert!(alone.iter().any(|step| *step > 0.35), "without a limit, chunks are whole");
    for seconds in [0.05, 0.15] {
        let steps = run(Some(seconds));
        let late = steps.iter().skip(8).filter(|step| **step > 1.15 * seconds).count();
        assert!(late <= steps.len() / 50, "{late} of {} steps took longer than {seconds}", steps.len());
        let mean = steps.iter().sum::<f64>() / steps.len() as f64;
        assert!(mean > 0.75 * seconds, "steps of {mean} where {seconds} are allowed");
    }
    // Prompts go on even if only a few rows fit.
    assert!(run(Some(0.001)).len() > 100);
}

/// A named latency is kept by single rows if these and the answers alone allow it. If the answers
/// alone take longer, prompts do not wait in vain.
#[test]
fn a_latency_that_is_named_is_kept_at_the_price_of_the_prompt() {
    let cost = |rows: usize, attended: u64| 0.01 + 1e-4 * rows as f64 + 4e-7 * attended as f64;
    let run = |seconds: f64| {
        let options =
            LoadOptions { token_latency: Some(Duration::from_secs_f64(seconds)), ..LoadOptions::default() };
        let mut s = Simulation::new(16_384, 1024, 4, &options);
        s.add(request(0, 10, 12_000));
        (0..3).for_each(|_| _ = s.step(&cost));
        s.add(request(9, 8_000, 5));
        let mut steps = Vec::new();
        while s.scheduler.slots.iter().flatten().any(|s| s.in_prompt) || s.scheduler.n_waiting() > 0 {
            steps.push(s.step(&cost).unwrap());
            assert!(steps.len() < 10_000, "the prompt goes on");
        }
        steps
    };
    // Eight rows at 8,000 take 36 ms; a step with one of them takes 13 and more for the answer's
    // own positions.
    let steps = run(0.018);
    let late = steps.iter().skip(8).filter(|step| **step > 1.15 * 0.018).count();
    assert!(late <= steps.len() / 50, "{late} of {} steps were late", steps.len());
    assert!(steps.len() > 1200, "{} steps: the prompt goes on by few rows", steps.len());
    assert!(run(0.005).len() <= 1000, "eight rows a step");
}

/// Time between two tokens of eight streams beside a prompt of 16k tokens, for any number of steps
/// in flight. The device reads weights for 10 ms or computes 2,500 rows a second. The time is twice
/// a step of the streams alone, but for the first steps, from which costs are learnt.
#[test]
fn a_long_intruder_leaves_eight_streams_twice_a_step_of_theirs() {
    let cost = |rows: usize, attended: u64| 0.01_f64.max(0.0004 * rows as f64) + 2e-8 * attended as f64;
    let run = |latency_steps: Option<f64>, depth: usize| {
        let options = LoadOptions { token_latency: None, latency_steps, ..LoadOptions::default() };
        let mut s = Simulation::ahead(depth, 20_000, 512, 9, &options);
        (0..8).for_each(|i| _ = s.add(request(i, 300, 4000)));
        while s.scheduler.slots.iter().flatten().any(|s| s.in_prompt) || s.scheduler.n_waiting() > 0 {
            s.step(&cost);
        }
        let alone: Vec<f64> = (0..50).map(|_| s.step(&cost).unwrap()).collect();
        s.add(request(99, 16_384, 5));
        let mut beside = Vec::new();
        while s.scheduler.slots.iter().flatten().any(|s| s.in_prompt) || s.scheduler.n_waiting() > 0 {
            beside.push(s.step(&cost).unwrap());
            assert!(beside.len() < 5000, "the prompt goes on");
        }
        beside.sort_by(f64::total_cmp);
        let p99 = beside[(beside.len() - 1) * 99 / 100];
        (p99 / (alone.iter().sum::<f64>() / alone.len() as f64), beside.len())
    };
    let (without, _) = run(None, 1);
    assert!(without > 5.0, "without a limit, the streams wait {without} steps");
    for depth in [1, 4] {
        let (ratio, n_steps) = run(Some(2.0), depth);
        assert!(ratio < 2.2, "{depth} steps in flight: p99 is {ratio} steps");
        assert!(n_steps < 1500, "{depth} steps in flight: the prompt took {n_steps} steps");
    }
}

/// Clients that send a request as soon as they are answered: most of them are being answered, and
/// few wait for their prompt.
#[test]
fn prompts_that_keep_coming_do_not_starve() {
    let cost = |rows: usize, attended: u64| 0.002 + 0.0005 * rows as f64 + 2e-8 * attended as f64;
    let options = LoadOptions { token_latency: None, latency_steps: Some(2.0), ..LoadOptions::default() };
    let mut s = Simulation::new(20_000, 512, 8, &options);
    (0..8).for_each(|i| _ = s.add(request(i, 200, 60)));
    let (mut n_added, mut seconds) = (8, 0.0);
    let mut n_answering = 0;
    for _ in 0..2000 {
        seconds += s.step(&cost).unwrap();
        let running: Vec<_> = s.scheduler.slots.iter().flatten().collect();
        n_answering += running.iter().filter(|s| !s.in_prompt).count();
        for _ in running.len() + s.scheduler.n_waiting()..8 {
            s.add(request(n_added, 200, 60));
            n_added += 1;
        }
    }
    let mean = n_answering as f64 / 2000.0;
    assert!(mean > 5.0, "{mean} of 8 clients are being answered, {n_added} in {seconds} s");
}

/// The time of a step of answers alone follows the growth of the answers. It does so even if more
/// than a thousand steps of a long prompt lie between. The device reads weights for 10 ms, and keys
/// and values.
#[test]
fn what_answers_alone_take_follows_their_growth_beside_a_prompt() {
    let cost = |rows: usize, attended: u64| 0.01 + 0.0004 * rows as f64 + 1e-6 * attended as f64;
    let options = LoadOptions { token_latency: None, latency_steps: Some(2.0), ..LoadOptions::default() };
    let mut s = Simulation::new(20_000, 512, 9, &options);
    // Weights as large as the device reads in 10 ms, if it reads a position in a microsecond.
    s.scheduler.set_weight_bytes(10_000 * s.scheduler.kv.bytes_per_token());
    (0..8).for_each(|i| _ = s.add(request(i, 20, 4000)));
    (0..100).for_each(|_| _ = s.step(&cost));
    let before = s.scheduler.alone();
    s.add(request(99, 12_000, 5));
    (0..1000).for_each(|_| _ = s.step(&cost));
    let running = || s.scheduler.slots.iter().flatten();
    assert!(running().any(|s| s.in_prompt));
    let attended: usize = running().filter(|s| !s.in_prompt).map(|s| s.tokens.len()).sum();
    let (found, expected) = (s.scheduler.alone(), cost(8, attended as u64));
    assert!(expected > 1.4 * before && (found / expected - 1.0).abs() < 0.15, "{found} s, {expected} s");
}

/// Short prompts that keep coming beside an answer are computed before a long one that came first,
/// but the long one ends.
#[test]
fn short_prompts_go_before_a_long_one_that_does_not_starve() {
    let cost = |rows: usize, _: u64| 0.002 + 0.0005 * rows as f64;
    let options = LoadOptions { token_latency: None, latency_steps: Some(2.0), ..LoadOptions::default() };
    let mut s = Simulation::new(20_000, 512, 6, &options);
    s.add(request(0, 100, 15_000));
    (0..50).for_each(|_| _ = s.step(&cost));
    let long = s.add(request(1, 2000, 1));
    let (mut waited, mut n_steps) = (Vec::new(), 0);
    while s.tokens[long.0 as usize].is_empty() {
        let short = s.add(request(2 + n_steps, 40, 1));
        let mut n = 0;
        while s.tokens[short.0 as usize].is_empty() {
            s.step(&cost);
            n += 1;
        }
        waited.push(n);
        n_steps += n;
        assert!(n_steps < 10_000, "the long prompt goes on");
    }
    // About eight rows fit beside the answer, so that 40 take some eight steps.
    assert!(waited.len() > 50 && waited[..50].iter().all(|n| *n < 16), "{waited:?}");
}

#[test]
fn an_answer_of_its_own_latency_is_heeded_and_ends_with_it() {
    let cost = |rows: usize, _: u64| 0.001 * rows as f64;
    let mut s = Simulation::new(4096, 512, 3, &LoadOptions { token_latency: None, ..LoadOptions::default() });
    s.add(Request { token_latency: Some(Duration::from_millis(50)), ..request(0, 20, 30) });
    s.step(&cost);
    s.add(request(1, 4000, 2));
    let steps: Vec<f64> = std::iter::from_fn(|| s.step(&cost)).collect();
    assert!(steps[5..25].iter().all(|step| *step < 0.06), "{steps:?}");
    assert!(steps[29..].iter().any(|step| *step > 0.5), "whole chunks again: {steps:?}");
}

#[test]
fn the_same_events_at_the_same_times_give_the_same_steps() {
    let cost = |rows: usize, attended: u64| 0.002 + 0.0007 * rows as f64 + 1e-8 * attended as f64;
    let run = || {
        let mut s = Simulation::new(2048, 256, 5, &LoadOptions::default());
        let mut steps = Vec::new();
        for i in 0..40 {
            let asked = Request {
                tenant: u64::from(i % 3),
                priority: i32::from(i % 7 == 0),
                ..request(i, 30 + 37 * i as usize % 900, 40)
            };
            s.add(asked);
            (0..9).for_each(|_| steps.extend(s.step(&cost)));
        }
        steps.extend(std::iter::from_fn(|| s.step(&cost)));
        steps
    };
    assert_eq!(run(), run());
}

/// States belong to the positions before them, through chunks, shared prompts, steps in flight,
/// failures and parking.
#[test]
fn recurrent_layers_have_the_state_of_their_position() {
    let layer = |window| KvLayer {
        n_kv_heads: 1,
        head_dim: 32,
        window,
        encoder_states: None,
        values_are_keys: false,
    };
    let mut rng = crate::sampling::Rng::new(5);
    let mut below = |n: usize| (rng.uniform() * n as f64) as usize;
    for (layers, depth) in [
        (vec![], 1),
        (vec![layer(None)], 1),
        (vec![layer(None)], 4),
        (vec![layer(Some(24)), layer(None)], 3),
        (vec![], 3),
    ] {
        let plan = null::plan_with_states(N_VOCAB, &layers, 2);
        let mut s = Simulation::of(&plan, depth, 160, 40, 3, BACKGROUND_ROWS, &LoadOptions::default());
        s.scheduler.pacing.background.always = below(2) == 0;
        let (mut asked, mut n_reused) = (Vec::new(), 0);
        for turn in 0..60 {
            let n_shared = [0, 33, 64, 100][below(4)];
            let mut tokens: Vec<u32> = (0..n_shared as u32).map(|i| i % 90).collect();
            tokens.extend((0..1 + below(30)).map(|_| below(N_VOCAB) as u32));
            let request =
                Request { max_tokens: Some(1 + below(20)), ignore_end: true, ..Request::new(tokens) };
            asked.push((s.add(request.clone()), request));
            (0..below(6)).for_each(|_| _ = s.step(&|_, _| 0.01));
            match turn % 11 {
                3 => s.scheduler.forget_in_flight(s.program.as_mut()),
                7 => {
                    n_reused += s.scheduler.slots.iter().flatten().map(|s| s.n_reused).sum::<usize>();
                    let slot = s.scheduler.slots.iter().position(Option::is_some);
                    slot.into_iter().for_each(|slot| s.scheduler.park(slot));
                }
                _ => {}
            }
        }
        while s.step(&|_, _| 0.01).is_some() {}
        for (id, request) in &asked {
            let expected = null::greedy(&request.tokens, request.max_tokens.unwrap(), N_VOCAB);
            assert_eq!(s.tokens[id.0 as usize], expected, "{id:?} of {layers:?}, {depth} in flight");
        }
        assert!(n_reused > 100, "{n_reused} tokens were not computed again");
        s.scheduler.kv.clear_prefixes();
        assert_eq!(s.scheduler.kv.held_bytes(), 0);
    }
}
