//! Rules for background steps, checked on any device that has them.

use std::time::Instant;

use device::{Device, Error, KvType, Limits, OwnedStep, Plan, Program, STATE_NONE, StateUse, Want};
use device_lower::fusion::fuse;
use weights::BlockType;

use super::{Sequences, committed, limits, mini_transformer, null};

type Outcome<T = ()> = Result<T, String>;

/// Rows of the background step.
const N_ROWS: usize = 9;

/// Steps of another sequence during it.
const N_STEPS: usize = 8;

fn words(error: Error) -> String {
    error.to_string()
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// Steps of two sequences: the first uses states 0 to 8, the second the others.
struct Steps {
    /// The first sequence: a prompt, and single rows.
    first: Vec<OwnedStep>,
    /// The second sequence: the start of its prompt, the background step, and the last row.
    second: [OwnedStep; 3],
}

impl Steps {
    fn new(plan: &Plan, limits: &Limits) -> Steps {
        let mut sequences = Sequences::new(5, &plan.kv, limits, plan.value(plan.output).cols as u32);
        let mut states = [STATE_NONE; 2];
        let mut step = |spans: &[(usize, usize)], n: usize| {
            let mut step = sequences.step(spans);
            if !step.states.is_empty() {
                let slot = spans[0].0;
                let to = (9 * slot + n % 9) as u32;
                step.states = vec![StateUse { from: std::mem::replace(&mut states[slot], to), to }];
            }
            step
        };
        // Interleaved steps release no page, so that no page has two owners.
        let before = step(&[(1, 21)], 0);
        let mut first = vec![step(&[(0, 40)], 0)];
        first.extend((1..=N_STEPS).map(|n| step(&[(0, 1)], n)));
        let of_background = step(&[(1, N_ROWS)], 1).with_outputs(vec![], Want::default());
        Steps { first, second: [before, of_background, step(&[(1, 1)], 2)] }
    }
}

/// Logits of all output rows.
type Logits = Vec<Vec<f32>>;

/// Checks background steps between steps of another sequence. A background step writes the same
/// bytes as a submitted step, and does not change other steps. An abandoned one leaves no trace,
/// and calls that would corrupt one are refused.
///
/// # Errors
/// The first rule that the device breaks.
pub fn check_background(device: &dyn Device) -> Outcome {
    let layers = [null::layer(Some(20)), null::layer(None)];
    let plans = [
        ("quantised", mini_transformer(3, BlockType::Q8_0)),
        ("plain numbers", mini_transformer(4, BlockType::F32)),
        ("windows and states", null::plan_with_states(50, &layers, 2)),
    ];
    for (name, plan) in plans {
        let plan = fuse(&plan, device.fusion());
        for kv_type in device.kv_types() {
            let background_rows = N_ROWS.min(device.background_rows());
            let limits = Limits { kv_type: *kv_type, background_rows, ..limits(&plan.kv) };
            let is_possible = limits.check(device, std::slice::from_ref(&plan)).is_ok();
            if is_possible {
                check(device, &plan, &limits).map_err(|what| format!("{name}, {kv_type:?}: {what}"))?;
            } else {
                expect(*kv_type == KvType::Q8_0, || format!("{name}: a limit is wrong"))?;
            }
        }
    }
    Ok(())
}

fn check(device: &dyn Device, plan: &Plan, limits: &Limits) -> Outcome {
    let steps = Steps::new(plan, limits);
    let [before, of_background, last] = &steps.second;
    let new = || {
        device.compile(std::slice::from_ref(plan), limits).and_then(committed).map_err(words).and_then(
            |mut program| {
                program.run(&before.borrow()).map_err(words)?;
                program.run(&steps.first[0].borrow()).map_err(words)?;
                Ok(program)
            },
        )
    };
    let run = |program: &mut dyn Program, step: &OwnedStep, all: &mut Logits| {
        program.run(&step.borrow()).map_err(words)?;
        all.push(program.logits().to_vec());
        Ok::<(), String>(())
    };

    let (mut program, mut expected) = (new()?, Logits::new());
    run(program.as_mut(), of_background, &mut vec![])?;
    for step in steps.first[1..].iter().chain([last]) {
        run(program.as_mut(), step, &mut expected)?;
    }

    // Computes one part after each step, then all remaining parts. Before that, `n_abandoned` parts
    // of an abandoned step run.
    for n_abandoned in [None, Some(0), Some(3)] {
        let (mut program, mut found) = (new()?, Logits::new());
        let program = program.as_mut();
        if let Some(n) = n_abandoned {
            program.begin_background(&of_background.borrow()).map_err(words)?;
            (0..n).try_for_each(|_| part(program).map(|_| ())).map_err(words)?;
            program.abandon_background();
        }
        program.begin_background(&of_background.borrow()).map_err(words)?;
        let mut is_done = false;
        for step in &steps.first[1..] {
            run(program, step, &mut found)?;
            let logits = program.logits().to_vec();
            if !is_done {
                is_done = part(program).map_err(words)?;
            }
            expect(program.logits() == logits, || "the logits of the last step are gone".to_owned())?;
        }
        expect(!is_done, || format!("{} parts are all", N_STEPS))?;
        let progress = program.advance_background(None).map_err(words)?;
        expect(progress.is_done && !progress.longest_part.is_zero(), || format!("{progress:?}"))?;
        run(program, last, &mut found)?;
        let other = expected.iter().zip(&found).position(|(a, b)| a != b);
        expect(other.is_none(), || format!("after {n_abandoned:?} parts: step {other:?} differs"))?;
    }
    check_refusals(new()?.as_mut(), &steps, limits)
}

/// Computes the next part only; returns true if it was the last.
fn part(program: &mut dyn Program) -> Result<bool, Error> {
    program.advance_background(Some(Instant::now())).map(|progress| progress.is_done)
}

fn check_refusals(program: &mut dyn Program, steps: &Steps, limits: &Limits) -> Outcome {
    let [_, of_background, _] = &steps.second;
    let refused = |result: Result<(), Error>, part: &str| match result {
        Ok(()) => Err(format!("{part:?} was not refused")),
        Err(error) => expect(error.to_string().contains(part), || format!("{error} should say {part:?}")),
    };
    refused(program.advance_background(None).map(|_| ()), "no step is in the background")?;
    let with_output = of_background.clone().with_outputs(vec![1], Want::BEST);
    refused(program.begin_background(&with_output.borrow()), "outputs of a step in the background")?;
    let long = &steps.first[0].clone().with_outputs(vec![], Want::default());
    refused(program.begin_background(&long.borrow()), "rows of a step in the background")?;

    program.begin_background(&of_background.borrow()).map_err(words)?;
    refused(program.begin_background(&of_background.borrow()), "expected none")?;
    let group = limits.n_pages.len() - 1;
    let page = of_background.borrow().page_table(1, group, limits.n_pages.len())[0];
    let granule = program.committed().granule_of(group, page);
    refused(program.decommit(group, granule), "in use by the step in the background")?;
    if cfg!(debug_assertions) {
        refused(program.run(&of_background.borrow()), "which the step in the background writes")?;
    }
    program.abandon_background();
    refused(program.advance_background(None).map(|_| ()), "no step is in the background")?;
    program.run(&of_background.borrow()).map_err(words)
}
