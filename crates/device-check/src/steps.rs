//! Rules for steps, checked on any device: links, choices, refused steps, and readable values.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::{
    Activation, Chain, Choose, Chosen, Device, Error, KvType, Limits, Link, OutputRef, OwnedStep, Penalties,
    Plan, Program, Sampling, Slice, Stage, Step, Ticket, Value, ValueId, Want,
};
use device_lower::fusion::fuse;
use device_lower::sampling::Chooser;
use device_reference::Reference;
use weights::BlockType;

use super::compare::differ;
use super::{
    BEST_AND_LOGITS, PlanBuilder, Rng, Sequences, check_commits, committed, limits, mini_transformer,
};

type Outcome<T = ()> = Result<T, String>;

/// Sampling of most random tokens in these checks.
const SAMPLING: Sampling = Sampling { temperature: 0.9, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0.4 };

/// Runs [`check_links`], [`check_wants`], [`check_impossible_choices`], [`check_refusals`],
/// [`check_stops`], [`check_commits`] and [`check_reads`].
///
/// # Errors
/// The first rule that the device breaks.
pub fn check_steps(device: &dyn Device, tolerance: f32) -> Outcome<ReadValues> {
    check_links(device)?;
    check_wants(device)?;
    check_impossible_choices(device)?;
    check_refusals(device)?;
    check_stops(device)?;
    check_commits(device)?;
    check_reads(device, tolerance)
}

/// A program of two layers on a device.
struct Bench {
    plan: Plan,
    limits: Limits,
    program: Box<dyn Program>,
}

impl Bench {
    fn new(device: &dyn Device) -> Outcome<Bench> {
        let plan = fuse(&mini_transformer(3, BlockType::F32), device.fusion());
        let kv_types = device.kv_types();
        let kv_type = if kv_types.contains(&KvType::F32) { KvType::F32 } else { kv_types[0] };
        let limits = Limits { kv_type, ..limits(&plan.kv) };
        let program =
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(words)?;
        Ok(Bench { plan, limits, program })
    }

    fn sequences(&self) -> Sequences {
        Sequences::new(7, &self.plan.kv, &self.limits, self.n_vocab() as u32)
    }

    fn n_vocab(&self) -> usize {
        self.plan.value(self.plan.output).cols
    }

    fn run(&mut self, step: &OwnedStep) -> Outcome {
        self.program.run(&step.borrow()).map_err(words)
    }

    /// Tokens that the last step chose; each output must have one.
    fn tokens(&self) -> Outcome<Vec<u32>> {
        let tokens = self.program.chosen().iter().map(|chosen| chosen.token);
        tokens.map(|token| token.ok_or_else(|| "an output without a token".to_owned())).collect()
    }

    /// Checks that the step is refused with a message that contains `part`.
    fn refuses(&mut self, step: &OwnedStep, part: &str) -> Outcome {
        match self.program.submit(&step.borrow()) {
            Ok(_) => Err(format!("a step was accepted that should be refused: {part}")),
            Err(error) => says(error, part),
        }
    }
}

fn words(error: Error) -> String {
    error.to_string()
}

fn says(error: Error, part: &str) -> Outcome {
    let error = error.to_string();
    if error.contains(part) { Ok(()) } else { Err(format!("{error:?} should say {part:?}")) }
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// Makes the last row of each span an output, in a step of two sequences.
fn last_rows(step: OwnedStep, wants: &[Want]) -> OwnedStep {
    let outputs = step.spans.iter().map(|span| span.first_row + span.n_rows - 1).collect();
    OwnedStep { outputs, wants: wants.to_vec(), ..step }
}

/// Checks that a row linked to an earlier choice equals the row with that token, after a wait. If
/// the device chooses in flight, the link is also checked before a wait.
///
/// # Errors
/// The step that differs.
pub fn check_links(device: &dyn Device) -> Outcome {
    let sample = Want { choose: Choose::Sample(SAMPLING), ..Want::BEST };
    for wants in [[Want::BEST, Want::BEST], [Want::BEST, sample], [sample, Want::BEST]] {
        let (mut given, mut linked) = (Bench::new(device)?, Bench::new(device)?);
        let mut sequences = given.sequences();
        let prompt = last_rows(sequences.step(&[(0, 5), (1, 3)]), &wants);
        // First, rows 0 and 1 are linked to outputs 1 and 0; then only row 1 is linked; then both
        // rows are.
        let turns: [[Option<u32>; 2]; 3] = [[Some(1), Some(0)], [None, Some(1)], [Some(0), Some(1)]];
        let steps: Vec<OwnedStep> =
            turns.iter().map(|_| last_rows(sequences.step(&[(0, 1), (1, 1)]), &wants)).collect();

        given.run(&prompt)?;
        let (mut tokens, mut expected) = (given.tokens()?, vec![]);
        for (step, turn) in steps.iter().zip(&turns) {
            let mut step = step.clone().with_outputs(vec![0, 1], BEST_AND_LOGITS);
            (0..2).for_each(|row| step.wants[row].choose = wants[row].choose);
            for (token, from) in step.tokens.iter_mut().zip(turn) {
                *token = from.map_or(*token, |output| tokens[output as usize]);
            }
            given.run(&step)?;
            tokens = given.tokens()?;
            expected.push((tokens.clone(), given.program.logits().to_vec()));
        }

        let with_links = |step: &OwnedStep, turn: &[Option<u32>; 2], ticket: Ticket| {
            let link = |(row, output): (usize, &Option<u32>)| {
                let from = OutputRef { ticket, output: (*output)? };
                Some(Link { row: row as u32, from })
            };
            let links: Vec<Link> = turn.iter().enumerate().filter_map(link).collect();
            let mut step = OwnedStep { links, ..step.clone() };
            // The token of a linked row is ignored.
            step.links.iter().for_each(|link| step.tokens[link.row as usize] = u32::MAX);
            step
        };
        let mut ticket = linked.program.submit(&prompt.borrow()).map_err(words)?;
        linked.program.wait(ticket).map_err(words)?;
        for ((step, turn), (tokens, logits)) in steps.iter().zip(&turns).zip(&expected) {
            let mut step = with_links(step, turn, ticket);
            step.wants.iter_mut().for_each(|want| want.logits = true);
            ticket = linked.program.submit(&step.borrow()).map_err(words)?;
            linked.program.wait(ticket).map_err(words)?;
            expect(linked.program.logits() == logits, || format!("logits of linked rows differ: {turn:?}"))?;
            expect(linked.tokens()? == *tokens, || format!("tokens of linked rows differ: {turn:?}"))?;
        }

        let ahead = &mut linked.program;
        if ahead.max_in_flight() < 2 || !wants.iter().all(|want| ahead.chooses_in_flight(want)) {
            continue;
        }
        // Step by step again, each submitted before the step that it links to is waited for.
        let mut last = ahead.submit(&prompt.borrow()).map_err(words)?;
        for ((step, turn), (tokens, _)) in steps.iter().zip(&turns).zip(&expected) {
            let next = ahead.submit(&with_links(step, turn, last).borrow()).map_err(words)?;
            ahead.wait(last).map_err(words)?;
            last = next;
            if turn == &turns[2] {
                ahead.wait(last).map_err(words)?;
                let found: Vec<_> = ahead.chosen().iter().filter_map(|chosen| chosen.token).collect();
                expect(found == *tokens, || format!("steps in flight chose {found:?}, expected {tokens:?}"))?;
            }
        }
    }
    Ok(())
}

/// Lists for wants of several kinds, for a vocabulary of `n_vocab`.
struct Lists {
    recent: Vec<u32>,
    pending: Vec<OutputRef>,
    biases: Vec<(u32, f32)>,
    stages: Vec<Stage>,
    masks: Vec<u32>,
}

impl Lists {
    fn new(n_vocab: usize, ticket: Ticket) -> Lists {
        let mut rng = Rng::new(11);
        let words = n_vocab.div_ceil(32);
        let mut masks: Vec<u32> = (0..words).map(|_| rng.bits() as u32).collect();
        masks.extend(vec![0; words]);
        Lists {
            recent: (0..20).map(|_| rng.below(n_vocab) as u32).collect(),
            pending: (0..4).map(|output| OutputRef { ticket, output }).collect(),
            biases: (0..30).map(|_| (rng.below(n_vocab) as u32, 3.0 * rng.normal())).collect(),
            stages: vec![
                Stage::TopNSigma(2.0),
                Stage::TopK(40),
                Stage::Typical(0.9),
                Stage::TopP(0.95),
                Stage::MinP(0.01),
                Stage::Xtc { probability: 0.5, threshold: 0.02, random: 0.1 },
                Stage::Temperature(0.8),
                Stage::Dynamic { low: 0.3, high: 1.4, exponent: 1.0 },
                Stage::MostSurprise { mu: 6.0 },
                Stage::MirostatTopK { mu: 8.0 },
            ],
            masks,
        }
    }

    /// Every kind of want, all with logits.
    fn wants(&self, n_vocab: usize) -> Vec<Want> {
        let slice = |start: usize, len: usize| Slice { start: start as u32, len: len as u32 };
        let words = n_vocab.div_ceil(32);
        let (some, none) = (Some(slice(0, words)), Some(slice(words, words)));
        let sample = |sampling: Sampling| Want { choose: Choose::Sample(sampling), ..BEST_AND_LOGITS };
        let plain = sample(SAMPLING);
        let penalties = Some(Penalties { repeat: 1.3, presence: 0.4, frequency: 0.2 });
        let (recent, pending) = (slice(0, self.recent.len()), slice(0, self.pending.len()));
        let biases = slice(0, self.biases.len());
        let chain = |stages: Slice| {
            let chain = Chain { stages, random: 0.7 };
            Want { choose: Choose::Chain(chain), ..BEST_AND_LOGITS }
        };
        vec![
            BEST_AND_LOGITS,
            Want::LOGITS,
            plain,
            sample(Sampling { top_k: 5, ..SAMPLING }),
            sample(Sampling { top_p: 0.6, random: 0.9, ..SAMPLING }),
            sample(Sampling { min_p: 0.2, temperature: 1.7, random: 0.999, ..SAMPLING }),
            Want { biases, ..BEST_AND_LOGITS },
            Want { mask: some, ..BEST_AND_LOGITS },
            Want { mask: none, ..BEST_AND_LOGITS },
            Want { mask: none, logprob: true, ..plain },
            Want { mask: some, biases: slice(3, 9), ..plain },
            Want { penalties, recent, ..BEST_AND_LOGITS },
            Want { penalties, recent: slice(4, 8), pending, ..plain },
            Want { penalties, pending: slice(1, 2), biases, mask: some, logprob: true, ..plain },
            Want { logprob: true, ..BEST_AND_LOGITS },
            Want { logprob: true, n_best: 5, ..plain },
            Want { n_best: device::MAX_BEST as u32, ..Want::LOGITS },
            Want { n_best: 1, logprob: true, mask: some, ..BEST_AND_LOGITS },
            chain(slice(0, 0)),
            chain(slice(0, 7)),
            Want { penalties, recent, pending, mask: some, biases, ..chain(slice(1, 6)) },
            Want { logprob: true, ..chain(slice(7, 2)) },
            chain(slice(9, 1)),
            Want { mask: none, ..chain(slice(0, 7)) },
        ]
    }
}

/// Checks that outputs choose what [`Chooser`] chooses from the same logits. One step has all kinds
/// of wants, and steps of one row have each alone, with and without logits.
///
/// # Errors
/// The want whose choice differs.
pub fn check_wants(device: &dyn Device) -> Outcome {
    let mut bench = Bench::new(device)?;
    let n_vocab = bench.n_vocab();
    let mut sequences = bench.sequences();
    let prompt = sequences.step(&[(0, 4)]);
    let ticket = bench.program.submit(&prompt.borrow()).map_err(words)?;
    bench.program.wait(ticket).map_err(words)?;
    let pending = bench.tokens()?;

    let lists = Lists::new(n_vocab, ticket);
    let wants = lists.wants(n_vocab);
    let step = sequences.step(&[(0, wants.len())]);
    let Lists { recent, biases, stages, masks, .. } = &lists;
    let with = |step: OwnedStep, ticket: Ticket, wants: &[Want]| OwnedStep {
        wants: wants.to_vec(),
        recent: recent.clone(),
        pending: lists.pending.iter().map(|from| OutputRef { ticket, ..*from }).collect(),
        biases: biases.clone(),
        stages: stages.clone(),
        masks: masks.clone(),
        ..step
    };
    let together = with(step, ticket, &wants);
    bench.run(&together)?;
    let chosen = agree(&bench, &together, &pending)?;

    // Without logits a device may choose itself; equal random numbers give equal choices.
    let quiet: Vec<Want> = wants.iter().map(|want| Want { logits: false, ..*want }).collect();
    let prompted = |bench: &mut Bench| -> Outcome<Ticket> {
        let ticket = bench.program.submit(&prompt.borrow()).map_err(words)?;
        bench.program.wait(ticket).map_err(words)?;
        Ok(ticket)
    };
    let ticket = prompted(&mut bench)?;
    bench.run(&with(together.clone(), ticket, &quiet))?;
    for (output, (found, expected)) in bench.program.chosen().iter().zip(&chosen).enumerate() {
        expect(found.token == expected.token, || {
            format!("output {output} without logits chose {found:?}, with them {expected:?}")
        })?;
    }

    let after = sequences.step(&[(0, 1)]);
    for want in wants {
        let ticket = prompted(&mut bench)?;
        // `prompted` rewrites the prompt's positions only; the step also reads the later positions
        // of the sequence.
        let alone = with(after.clone(), ticket, &[want]);
        bench.run(&alone)?;
        agree(&bench, &alone, &pending).map_err(|e| format!("alone: {e}"))?;
    }
    Ok(())
}

/// Checks that no token is chosen if every logit is NaN, or minus infinity.
///
/// # Errors
/// The output that chose a token.
pub fn check_impossible_choices(device: &dyn Device) -> Outcome {
    for what in ["minus infinity", "NaN"] {
        let mut b = PlanBuilder::new(1, 97);
        let x = b.embed(97);
        // Sigmoids are above 0, and the products overflow f32.
        let x = b.activate(x, Activation::Sigmoid);
        let x = b.scale(x, -3e38);
        let infinite = b.scale(x, 3e38);
        let positive = b.scale(infinite, -1.0);
        let x = if what == "NaN" { b.add(infinite, positive) } else { infinite };
        let plan = fuse(&b.finish(x), device.fusion());
        let limits = Limits { kv_type: device.kv_types()[0], ..limits(&plan.kv) };
        let mut program =
            device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).map_err(words)?;
        let sample = Want { choose: Choose::Sample(SAMPLING), ..Want::BEST };
        let wants = [Want::BEST, BEST_AND_LOGITS, sample];
        let mut step = Sequences::new(1, &plan.kv, &limits, 97).step(&[(0, 3)]);
        step.wants = wants.to_vec();
        program.run(&step.borrow()).map_err(words)?;
        let chosen: Vec<Option<u32>> = program.chosen().iter().map(|chosen| chosen.token).collect();
        expect(chosen == [None; 3], || format!("of logits that are all {what}, {chosen:?} were chosen"))?;
    }
    Ok(())
}

/// Checks that the last step chose what the host would choose from its logits. Returns the choices.
fn agree(bench: &Bench, step: &OwnedStep, pending: &[u32]) -> Outcome<Vec<Chosen>> {
    // A device may add the weights of tokens in another order. A random number this close to the
    // border between two tokens may choose either.
    const BORDER: f64 = 1e-5;
    // Rounding of a sum of some hundred exponentials in f32.
    const LOGPROB: f32 = 1e-4;
    let n_vocab = bench.n_vocab();
    let mut chooser = Chooser::new(n_vocab);
    let program = &bench.program;
    expect(program.chosen().len() == step.outputs.len(), || "a choice for each output".to_owned())?;
    let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= LOGPROB;
    for (output, (want, found)) in step.wants.iter().zip(program.chosen()).enumerate() {
        let logits = &program.logits()[output * n_vocab..][..n_vocab];
        let pending = want.pending.of(pending).iter().copied();
        let mut choose = |random: f64| {
            let choose = match want.choose {
                Choose::Sample(sampling) => Choose::Sample(Sampling { random, ..sampling }),
                Choose::Chain(chain) => Choose::Chain(Chain { random, ..chain }),
                Choose::Best | Choose::Nothing => want.choose,
            };
            chooser.choose(logits, &Want { choose, ..*want }, &step.borrow(), pending.clone())
        };
        let random = match want.choose {
            Choose::Sample(sampling) => sampling.random,
            Choose::Chain(chain) => chain.random,
            Choose::Best | Choose::Nothing => 0.0,
        };
        let near = [random, (random - BORDER).max(0.0), (random + BORDER).min(1.0 - BORDER)];
        let expected = near.map(&mut choose);
        let agrees = |e: &Chosen| {
            e.token == found.token && same(e.logprob, found.logprob) && same(e.surprise, found.surprise)
        };
        expect(expected.iter().any(agrees), || {
            format!("output {output} chose {found:?}, expected {:?}: {want:?}", expected[0])
        })?;
        let best: Vec<(u32, f32)> = chooser.best(logits, want).collect();
        let found = program.best(output);
        let alike = |(a, b): (&(u32, f32), &(u32, f32))| a.0 == b.0 && same(a.1, b.1);
        expect(found.len() == best.len() && found.iter().zip(&best).all(alike), || {
            format!("output {output}: best tokens {found:?}, expected {best:?}")
        })?;
    }
    expect(program.best(step.outputs.len()).is_empty(), || "best tokens of no output".to_owned())?;
    Ok(program.chosen().to_vec())
}

/// Checks that steps that break a rule are refused with a reason, and leave the program unchanged.
///
/// # Errors
/// The step that was accepted, or the changed result.
pub fn check_refusals(device: &dyn Device) -> Outcome {
    let mut bench = Bench::new(device)?;
    let good = bench.sequences().step(&[(0, 3), (1, 2)]);
    let first = bench.program.submit(&good.borrow()).map_err(words)?;
    expect(first == Ticket(0), || format!("the first step is {first:?}"))?;
    bench.program.wait(first).map_err(words)?;
    let expected = bench.program.logits().to_vec();

    let link =
        |row: u32, ticket: u64, output: u32| Link { row, from: OutputRef { ticket: Ticket(ticket), output } };
    let slice = |start: u32, len: u32| Slice { start, len };
    let cold = Sampling { temperature: f32::NAN, ..SAMPLING };
    type Spoil<'a> = (&'a str, &'a dyn Fn(&mut OwnedStep));
    let spoils: [Spoil; 16] = [
        ("token", &|s| s.tokens[1] = 1 << 20),
        ("output", &|s| s.outputs[4] = 5),
        ("page", &|s| s.page_tables[0] = 1000),
        ("wants of 5 outputs", &|s| s.wants.truncate(4)),
        ("a link of row", &|s| s.links = vec![link(5, 0, 0)]),
        ("a link to step 9", &|s| s.links = vec![link(0, 9, 0)]),
        ("output 5", &|s| s.links = vec![link(0, 0, 5)]),
        ("a mask of 1 words", &|s| (s.masks, s.wants[0].mask) = (vec![0; 9], Some(slice(0, 1)))),
        ("words of masks", &|s| s.wants[1].mask = Some(slice(0, 4))),
        ("biases", &|s| s.wants[1].biases = slice(0, 1)),
        ("token 97", &|s| (s.recent, s.wants[1].recent) = (vec![97], slice(0, 1))),
        ("step 9", &|s| {
            let from = OutputRef { ticket: Ticket(9), output: 0 };
            (s.pending, s.wants[1].pending) = (vec![from], slice(0, 1));
        }),
        ("temperature", &|s| s.wants[2].choose = Choose::Sample(cold)),
        ("of 0 stages", &|s| s.wants[2].choose = Choose::Chain(Chain { stages: slice(0, 1), random: 0.5 })),
        ("outside its limits", &|s| {
            s.stages = vec![Stage::Typical(2.0)];
            s.wants[2].choose = Choose::Chain(Chain { stages: slice(0, 1), random: 0.5 });
        }),
        ("best tokens", &|s| s.wants[2].n_best = device::MAX_BEST as u32 + 1),
    ];
    for (part, spoil) in spoils {
        let mut bad = good.clone();
        spoil(&mut bad);
        bench.refuses(&bad, part)?;
        // Results of the last step remain, and its ticket can be linked to.
        expect(bench.program.logits() == expected, || format!("logits are gone after {part:?}"))?;
        expect(bench.program.chosen().len() == 5, || format!("choices are gone after {part:?}"))?;
    }
    let mut again = good.clone();
    again.links = vec![link(0, 0, 4)];
    again.tokens[0] = u32::MAX;
    let second = bench.program.submit(&again.borrow()).map_err(words)?;
    expect(second == Ticket(1), || format!("refused steps took tickets: {second:?}"))?;
    bench.program.wait(second).map_err(words)?;

    // Steps in flight must be waited for in order.
    let waits = |program: &mut dyn Program, ticket: u64, part: &str| match program.wait(Ticket(ticket)) {
        Ok(()) => Err(format!("step {ticket} was waited for: {part}")),
        Err(error) => says(error, part),
    };
    waits(bench.program.as_mut(), 2, "none is in flight")?;
    waits(bench.program.as_mut(), 1, "none is in flight")?;
    let n = bench.program.max_in_flight();
    let quiet = good.clone().with_outputs(vec![4], Want::BEST);
    for _ in 0..n {
        bench.program.submit(&quiet.borrow()).map_err(words)?;
    }
    bench.refuses(&quiet, "in flight")?;
    if n > 1 {
        waits(bench.program.as_mut(), 3, "before step 2")?;
    }
    for ticket in 0..n as u64 {
        bench.program.wait(Ticket(2 + ticket)).map_err(words)?;
    }
    bench.run(&good)?;
    expect(bench.program.logits() == expected, || "a good step after refused ones differs".to_owned())
}

/// Checks that a stopped step fails with [`Error::Stopped`] at most, and leaves later steps
/// unchanged.
///
/// # Errors
/// The step that differs.
pub fn check_stops(device: &dyn Device) -> Outcome {
    let mut bench = Bench::new(device)?;
    let step = bench.sequences().step(&[(0, 20), (1, 3)]);
    bench.run(&step)?;
    let expected = bench.program.logits().to_vec();
    let stop = AtomicBool::new(true);
    for _ in 0..3 {
        match bench.program.run(&Step { stop: Some(&stop), ..step.borrow() }) {
            Ok(()) | Err(Error::Stopped { .. }) => {}
            Err(error) => return Err(format!("a stopped step: {error}")),
        }
        bench.run(&step)?;
        expect(bench.program.logits() == expected, || "a step after a stopped one differs".to_owned())?;
    }
    // A step that nobody stops is like any other. A step that is stopped while it runs may already
    // be done.
    let stop = AtomicBool::new(false);
    bench.program.run(&Step { stop: Some(&stop), ..step.borrow() }).map_err(words)?;
    expect(bench.program.logits() == expected, || "a step that could be stopped differs".to_owned())?;
    for micros in [50, 500, 5000] {
        let stop = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(micros));
                stop.store(true, Ordering::Relaxed);
            });
            bench.program.run(&Step { stop: Some(&stop), ..step.borrow() })
        });
        match result {
            Ok(()) => expect(bench.program.logits() == expected, || "a step that ran to its end".to_owned())?,
            Err(Error::Stopped { .. }) => {}
            Err(error) => return Err(format!("a stopped step failed: {error}, expected the error Stopped")),
        }
        bench.run(&step)?;
        expect(bench.program.logits() == expected, || {
            "a step after one stopped on its way differs".to_owned()
        })?;
    }
    Ok(())
}

/// Number of values that [`check_reads`] could read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadValues {
    /// Values that were read right after their node.
    pub n_read: usize,
    /// Values that nodes write, in all steps.
    pub n_values: usize,
}

/// Checks that every value that can be read equals the interpreter's, after [`Program::run_until`]
/// its node and after a whole step, within `tolerance` as in [`super::compare()`].
///
/// # Errors
/// The first value that differs.
pub fn check_reads(device: &dyn Device, tolerance: f32) -> Outcome<ReadValues> {
    let mut bench = Bench::new(device)?;
    let plan = bench.plan.clone();
    let reference = Reference::new(1);
    let mut reference =
        reference.compile(std::slice::from_ref(&plan), &bench.limits).and_then(committed).map_err(words)?;
    let mut sequences = bench.sequences();
    let mut count = ReadValues::default();
    let steps = [
        sequences.step(&[(0, 5)]),
        sequences.step(&[(0, 12), (1, 3)]),
        sequences.step(&[(0, 1)]),
        last_rows(sequences.step(&[(0, 7), (1, 1)]), &[BEST_AND_LOGITS; 2]),
    ];
    for (index, step) in steps.iter().enumerate() {
        let mut expected: Vec<Option<Vec<f32>>> = vec![None; plan.values.len()];
        for (node, n) in plan.nodes.iter().enumerate() {
            bench.program.run_until(&step.borrow(), node).map_err(words)?;
            reference.run_until(&step.borrow(), node).map_err(words)?;
            for id in n.op.writes() {
                count.n_values += 1;
                let values = reference.read(id).ok_or_else(|| format!("the interpreter lacks {id}"))?;
                if let Some(found) = bench.program.read(id) {
                    count.n_read += 1;
                    same_value(plan.value(id), &values, &found, tolerance)
                        .map_err(|e| format!("step {index}, after node {node}: {id}, {e}"))?;
                }
                expected[id.0 as usize] = Some(values);
            }
        }
        let words = |e: Error| format!("step {index}: {e}");
        let n = plan.nodes.len();
        expect(bench.program.run_until(&step.borrow(), n).is_err(), || format!("there is no node {n}"))?;
        bench.program.run(&step.borrow()).map_err(words)?;
        for (value, expected) in expected.iter().enumerate() {
            let id = ValueId(value as u32);
            if let (Some(values), Some(found)) = (expected, bench.program.read(id)) {
                same_value(plan.value(id), values, &found, tolerance)
                    .map_err(|e| format!("step {index}, after all nodes: {id}, {e}"))?;
            }
        }
        let logits = bench.program.read(plan.output);
        expect(logits.as_deref() == Some(bench.program.logits()), || "logits can be read".to_owned())?;
    }
    let unknown = ValueId(plan.values.len() as u32);
    expect(bench.program.read(unknown).is_none(), || "a value that is not of the plan was read".to_owned())?;
    expect(count.n_read > 0, || "no value could be read".to_owned())?;
    Ok(count)
}

fn same_value(value: &Value, expected: &[f32], found: &[f32], tolerance: f32) -> Outcome {
    differ(expected, found, value.cols, tolerance)
}
