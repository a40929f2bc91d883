//! Tests of the scheduler under a governor with a scripted source: histories of arrivals, and of
//! another process that takes memory, returns it and takes it again. Time, device and machine are
//! simulated.

use std::sync::Arc;
use std::time::Duration;

use device::KvLayer;
use device_testing::null::{self, NullDevice};
use platform::{MemorySource, Pressure, Reading, Script};

use super::{BACKGROUND_ROWS, N_VOCAB, Simulation, request};
use crate::governor::{Governor, MemoryCap, reserve};
use crate::sampling::Rng;
use crate::{LoadOptions, Request};

const TOTAL: u64 = 1 << 29;
const TICK: Duration = Duration::from_millis(100);

/// A machine of [`TOTAL`] bytes, with `elastic` bytes beside the reserve and everything fixed.
struct Machine {
    script: Script,
    governor: Arc<Governor>,
    elastic: u64,
    hog: u64,
}

impl Machine {
    fn new(elastic: u64) -> Machine {
        let script = Script::new(TOTAL, reserve(TOTAL) + elastic);
        let governor = Governor::of(Box::new(script.clone()), MemoryCap::Max);
        Machine { script, governor, elastic, hog: 0 }
    }

    fn govern(&self, s: &mut Simulation) {
        let account = self.governor.account(&NullDevice::default(), 0);
        s.scheduler.kv.set_account(account);
        self.governor.observe(s.now);
    }

    /// Let the governor read the machine now.
    fn observe(&self, s: &Simulation) {
        let taken = s.scheduler.kv.resident_bytes() + self.hog;
        let free = (reserve(TOTAL) + self.elastic).saturating_sub(taken);
        self.script.set(Reading { total: TOTAL, free, ..Reading::default() });
        self.governor.observe(s.now);
    }
}

/// Outcome of a history.
#[derive(Debug, Default)]
struct Outcome {
    n_parked: u64,
    /// Number of parks in the second half of a long time without changes.
    n_parked_late: u64,
    n_shrunk: usize,
    longest_over: Duration,
}

/// A process that takes a share of what is elastic.
struct Hog {
    /// Seconds at which the process starts to allocate memory.
    from: f64,
    /// Seconds that the process needs to allocate its whole share.
    takes: f64,
    /// Seconds at which the process frees the memory.
    until: f64,
    share: f64,
}

/// One to three hogs, the last one first.
fn hogs(below: &mut impl FnMut(usize) -> usize) -> Vec<Hog> {
    let mut hogs: Vec<Hog> = (0..1 + below(3))
        .map(|turn| {
            let from = turn as f64 * 12.0 + below(40) as f64 * 0.1;
            let takes = [0.0, 1.0][below(2)];
            let until = from + 2.0 + below(60) as f64 * 0.1;
            Hog { from, takes, until, share: [0.25, 0.5, 0.75][below(3)] }
        })
        .collect();
    hogs.reverse();
    hogs
}

impl Machine {
    /// Let the next hog take or return memory at this time. Returns true if that changed anything.
    fn follow(&mut self, hogs: &mut Vec<Hog>, seconds: f64) -> bool {
        let Some(&Hog { from, takes, until, share }) = hogs.last() else { return false };
        if seconds >= until {
            hogs.pop();
            self.hog = 0;
            return true;
        }
        if seconds < from {
            return false;
        }
        let part = if takes > 0.0 { ((seconds - from) / takes).min(1.0) } else { 1.0 };
        let size = (self.elastic as f64 * share) as u64;
        let hog = (size as f64 * part) as u64;
        let is_changed = hog != self.hog;
        self.hog = hog.max(1);
        is_changed
    }
}

/// A random simulation, and the number of its steps in flight.
fn any_simulation(seed: u64, below: &mut impl FnMut(usize) -> usize) -> (Simulation, usize) {
    let layer = |window| KvLayer {
        n_kv_heads: 1,
        head_dim: 32,
        window,
        encoder_states: None,
        values_are_keys: false,
    };
    let layers = [vec![layer(None)], vec![layer(Some(40)), layer(None)]][below(2)].clone();
    let depth = [1, 1, 3][below(3)];
    let n_slots = 2 + below(6);
    let plan = null::plan(N_VOCAB, &layers);
    let chunk = 32 + below(64);
    let options = LoadOptions::default();
    let mut s = Simulation::of(&plan, depth, 320, chunk, n_slots, BACKGROUND_ROWS, &options);
    s.scheduler.pacing.background.always = seed % 2 == 1;
    (s, depth)
}

/// Random requests and the seconds at which they arrive, the last one first.
fn arrivals(below: &mut impl FnMut(usize) -> usize) -> Vec<(f64, Request)> {
    let mut arrivals: Vec<(f64, Request)> = (0..3 + below(8))
        .map(|i| {
            let asked = request(i as u32 * 7 + 3, 5 + below(120), 1 + below(160));
            let priority = i32::from(below(6) == 0);
            (below(80) as f64 * 0.1, Request { ignore_end: true, reuse: below(4) > 0, priority, ..asked })
        })
        .collect();
    arrivals.sort_by(|a, b| b.0.total_cmp(&a.0));
    arrivals
}

/// Run random sequences beside other processes that take a share of the memory, at once or in ten
/// steps, keep it and return it.
fn history(seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut below = |n: usize| (rng.uniform() * n as f64) as usize;
    let (mut s, depth) = any_simulation(seed, &mut below);
    let mut machine = Machine::new((150 + below(900) as u64) << 10);
    machine.govern(&mut s);
    let step_seconds = 0.02 + below(60) as f64 * 1e-3;
    let cost = move |rows: usize, _: u64| step_seconds + 1e-4 * rows as f64;
    let (mut arrivals, mut hogs) = (arrivals(&mut below), hogs(&mut below));

    let (begun, mut asked, mut outcome) = (s.now, Vec::new(), Outcome::default());
    let (mut next_tick, mut over_since) = (s.now, None);
    let mut last_change = s.now;
    for turn in 0.. {
        assert!(turn < 40_000, "seed {seed}: it never ends");
        let seconds = (s.now - begun).as_secs_f64();
        while arrivals.last().is_some_and(|(at, _)| *at <= seconds) {
            let (_, request) = arrivals.pop().unwrap();
            asked.push((s.add(request.clone()), request));
        }
        if s.scheduler.is_idle() && arrivals.is_empty() && hogs.is_empty() {
            break;
        }
        while s.now >= next_tick {
            next_tick += TICK;
            if machine.follow(&mut hogs, seconds) {
                last_change = s.now;
            }
            machine.observe(&s);
        }
        let before = s.scheduler.kv.resident_bytes();
        let parked = s.scheduler.n_parked();
        if s.step(&cost).is_none() {
            s.scheduler.follow_memory(s.program.as_mut()).unwrap();
            s.now += Duration::from_millis(20);
        }
        outcome.n_shrunk += usize::from(s.scheduler.kv.resident_bytes() < before);
        let n_new = s.scheduler.n_parked() - parked;
        if s.now - last_change > Duration::from_secs(15) {
            outcome.n_parked_late += n_new;
        }
        let status = &machine.governor.status()[0];
        // The oldest sequence may hold what is committed for it, and alone all that it needs.
        let most = status.budget.max(s.scheduler.kv.floor_bytes());
        let is_over = status.held > most && s.scheduler.n_running() > 1;
        over_since = if is_over { over_since.or(Some(s.now)) } else { None };
        if let Some(since) = over_since {
            outcome.longest_over = outcome.longest_over.max(s.now - since);
        }
    }
    outcome.n_parked = s.scheduler.n_parked();
    for (id, request) in &asked {
        let expected = null::greedy(&request.tokens, request.max_tokens.unwrap(), N_VOCAB);
        assert_eq!(s.tokens[id.0 as usize], expected, "seed {seed}, {id:?}");
    }
    let reaction = TICK + Duration::from_secs_f64(depth as f64 * 2.0 * (step_seconds + 0.01));
    assert!(outcome.longest_over <= reaction, "seed {seed}: {outcome:?}, depth {depth}, step {step_seconds}");
    // Each sequence may be parked once or twice for each change, but not again and again.
    let most = (asked.len() * 2 * 8) as u64;
    assert!(
        outcome.n_parked <= most && outcome.n_parked_late <= asked.len() as u64,
        "seed {seed}: {outcome:?}"
    );
    s.scheduler.kv.clear_prefixes();
    s.scheduler.kv.give_back(s.program.as_mut()).unwrap();
    assert_eq!((s.scheduler.kv.resident_bytes(), machine.governor.status()[0].held), (0, 0), "seed {seed}");
    outcome
}

fn histories(seeds: std::ops::Range<u64>) {
    let n = seeds.end - seeds.start;
    let (mut n_parked, mut n_shrunk) = (0, 0);
    for seed in seeds {
        let outcome = history(seed);
        n_parked += outcome.n_parked;
        n_shrunk += outcome.n_shrunk;
    }
    assert!(
        n_parked > n / 4 && n_shrunk as u64 > n / 2,
        "{n_parked} parked, {n_shrunk} times shrunk: nothing was short"
    );
}

#[test]
fn no_sequence_is_lost_to_a_hog() {
    histories(0..200);
}

#[test]
#[ignore = "thousands of histories: a minute"]
fn no_sequence_is_lost_in_thousands_of_histories() {
    histories(1000..7000);
}

/// The budget falls at once when memory is taken, and recovers in time.
#[test]
fn memory_goes_to_a_hog_and_comes_back() {
    let layer =
        KvLayer { n_kv_heads: 1, head_dim: 32, window: None, encoder_states: None, values_are_keys: false };
    let mut s = Simulation::of(&null::plan(N_VOCAB, &[layer]), 1, 1024, 128, 8, 0, &LoadOptions::default());
    let mut machine = Machine::new(600 << 10);
    machine.govern(&mut s);
    for i in 0..8 {
        s.add(Request { ignore_end: true, ..request(i, 100, 800) });
    }
    let cost = |_: usize, _: u64| 0.05;
    let run = |s: &mut Simulation, machine: &Machine, steps: usize| {
        for _ in 0..steps {
            s.step(&cost).unwrap();
            machine.observe(s);
        }
    };
    run(&mut s, &machine, 250);
    let before = s.scheduler.kv.resident_bytes();
    assert!(s.scheduler.n_running() == 8 && before > 300 << 10, "{before}");
    machine.hog = before / 4 * 3;
    machine.observe(&s);
    s.step(&cost).unwrap();
    let held = s.scheduler.kv.resident_bytes();
    assert!(s.scheduler.n_running() < 8, "some are parked after one step");
    assert!(held + machine.hog <= machine.elastic, "{held} and {} of {}", machine.hog, machine.elastic);
    machine.hog = 0;
    run(&mut s, &machine, 400);
    assert!(s.scheduler.n_running() >= 5, "{} run again", s.scheduler.n_running());
}

/// Steps before parking: pressure alone stops new sequences, and prefixes are evicted before a
/// sequence is parked.
#[test]
fn prefixes_go_first_and_nothing_new_begins_while_the_system_complains() {
    let layer =
        KvLayer { n_kv_heads: 1, head_dim: 32, window: None, encoder_states: None, values_are_keys: false };
    let mut s = Simulation::of(&null::plan(N_VOCAB, &[layer]), 1, 1024, 128, 4, 0, &LoadOptions::default());
    let mut machine = Machine::new(1 << 20);
    machine.govern(&mut s);
    let cost = |_: usize, _: u64| 0.05;
    for i in 0..3 {
        s.add(request(i, 400, 2));
    }
    while s.step(&cost).is_some() {
        machine.observe(&s);
    }
    let cached = s.scheduler.kv.resident_bytes();
    s.add(Request { ignore_end: true, ..request(7, 60, 300) });
    s.step(&cost);
    machine.observe(&s);
    machine.hog = machine.elastic - cached / 2;
    machine.observe(&s);
    s.step(&cost);
    assert!(s.scheduler.kv.resident_bytes() <= cached / 2 + 4096, "prefixes went");
    assert_eq!((s.scheduler.n_parked(), s.scheduler.n_running()), (0, 1));
    machine.hog = 0;
    let mut source = machine.script.clone();
    machine.script.set(Reading { total: TOTAL, free: TOTAL / 2, pressure: Pressure::Some, ..source.read() });
    machine.governor.observe(s.now);
    s.add(request(8, 20, 2));
    s.step(&cost);
    assert_eq!((s.scheduler.n_waiting(), s.scheduler.n_running()), (1, 1), "it waits");
    let mut steps = 0;
    while s.scheduler.n_waiting() > 0 {
        s.step(&cost).unwrap();
        machine.observe(&s);
        steps += 1;
        assert!(steps < 200, "it begins when all is calm");
    }
    assert!(steps >= 10, "{steps}");
}
