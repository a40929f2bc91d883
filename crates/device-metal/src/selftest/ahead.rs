//! Check of steps in flight whose rows read the tokens that earlier outputs chose. Their tokens and
//! logits must equal those of steps that run one by one, with tokens that the host chooses.

use device::{
    Choose, Device, KvType, Limits, Link, OutputRef, OwnedStep, Penalties, Plan, Program, Sampling, Slice,
    Ticket, Want,
};
use device_check::{Rng, Sequences, mini_transformer};
use device_lower::fusion;
use device_lower::sampling::Chooser;
use std::collections::VecDeque;
use weights::BlockType;

/// Tokens of each prompt, and steps after it.
const N_PROMPT: usize = 19;
const N_STEPS: usize = 13;

/// Tokens of the model's vocabulary.
const N_VOCAB: u32 = 97;

/// Checks every `every`th case. Returns the name of each, and how its tokens differ if they do.
pub fn check_ahead(device: &dyn Device, every: usize) -> Vec<(String, Result<(), String>)> {
    let plan = fusion::fuse(&mini_transformer(3, BlockType::Q4_0), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..device_check::limits(&plan.kv) };
    let of = |(what, wants): (&str, Vec<Want>), n: usize| (format!("{what}, {n} at once"), wants, n);
    let mut cases: Vec<_> =
        wants().into_iter().flat_map(|case| [1, 3].map(|n| of(case.clone(), n))).collect();
    // 32 rows fill a tile; 8 are the most that kernels for few rows accept.
    cases.extend(wants().pop().into_iter().flat_map(|case| [32, 8].map(|n| of(case.clone(), n))));
    cases
        .into_iter()
        .step_by(every.max(1))
        .map(|(what, wants, n)| {
            let limits = match n > 3 {
                true => Limits {
                    max_rows: 512,
                    max_spans: n.max(limits.max_spans),
                    n_pages: vec![4 * n; plan.kv.groups.len()],
                    ..limits.clone()
                },
                false => limits.clone(),
            };
            (what, agree(device, &plan, &limits, &wants, n))
        })
        .collect()
}

/// Samplers with each stage alone, with all stages and with none; sequences use them in turn.
fn wants() -> Vec<(&'static str, Vec<Want>)> {
    let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0.0 };
    let sampled = |sampling| Want { choose: Choose::Sample(sampling), ..Want::default() };
    let penalties = Some(Penalties { repeat: 1.2, presence: 0.3, frequency: 0.2 });
    let everything =
        Want { penalties, ..sampled(Sampling { top_k: 30, top_p: 0.95, min_p: 0.01, ..sampling }) };
    let penalised_best = Want { penalties, ..Want::BEST };
    // `with_wants` writes the mask of each output.
    let masked = Want { mask: Some(Slice { start: 0, len: N_VOCAB.div_ceil(32) }), ..everything };
    vec![
        ("greedy", vec![Want::BEST]),
        ("temperature", vec![sampled(sampling)]),
        ("top-k", vec![sampled(Sampling { top_k: 30, ..sampling })]),
        ("top-p", vec![sampled(Sampling { top_p: 0.9, ..sampling })]),
        ("min-p", vec![sampled(Sampling { min_p: 0.05, ..sampling })]),
        ("penalties", vec![Want { penalties, ..sampled(sampling) }]),
        ("greedy with penalties", vec![penalised_best]),
        ("everything", vec![everything]),
        ("masks", vec![masked]),
        ("a mixture", vec![Want::BEST, everything, penalised_best, masked]),
    ]
}

/// Compares answers of `n` sequences computed step by step with those of the most steps in flight
/// that the device accepts.
fn agree(device: &dyn Device, plan: &Plan, limits: &Limits, wants: &[Want], n: usize) -> Result<(), String> {
    let wants: Vec<Want> = wants.iter().copied().cycle().take(n).collect();
    let mut rng = Rng::new(3);
    let randoms: Vec<f64> = (0..n * N_STEPS).map(|_| (rng.bits() >> 11) as f64 / 2f64.powi(53)).collect();
    let (prompt, steps) = steps(plan, limits, n);
    let compile = || {
        let mut program = device.compile(std::slice::from_ref(plan), limits).map_err(|e| e.to_string())?;
        program.commit_all().map_err(|e| e.to_string())?;
        Ok::<_, String>(program)
    };
    let want_of = |sequence: usize, step: usize| {
        let mut want = wants[sequence];
        if let Choose::Sample(sampling) = &mut want.choose {
            sampling.random = randoms[step * n + sequence];
        }
        want
    };

    let mut program = compile()?;
    let mut chooser = Chooser::new(plan.value(plan.output).cols);
    let mut expected: Vec<Vec<u32>> = vec![vec![]; n];
    run(program.as_mut(), &prompt)?;
    for (index, step) in steps.iter().enumerate() {
        let mut step = with_wants(step, |sequence| (want_of(sequence, index), &expected[sequence], &[]));
        step.tokens = (0..n).map(|sequence| expected[sequence].last().copied().unwrap_or(1)).collect();
        let wanted = std::mem::replace(&mut step.wants, vec![Want::LOGITS; n]);
        run(program.as_mut(), &step)?;
        let rows = program.logits().chunks(plan.value(plan.output).cols);
        for (row, (want, answer)) in rows.zip(wanted.iter().zip(&mut expected)) {
            let chosen = chooser.choose(row, want, &step.borrow(), std::iter::empty());
            answer.push(chosen.token.ok_or("the host chose nothing")?);
        }
    }
    let last: Vec<u32> = program.logits().iter().map(|v| v.to_bits()).collect();

    let mut program = compile()?;
    run(program.as_mut(), &prompt)?;
    let mut found: Vec<Vec<u32>> = vec![vec![]; n];
    let mut in_flight: VecDeque<Ticket> = VecDeque::new();
    let mut wait = |program: &mut dyn Program, in_flight: &mut VecDeque<Ticket>| -> Result<(), String> {
        let Some(ticket) = in_flight.pop_front() else { return Ok(()) };
        program.wait(ticket).map_err(|e| e.to_string())?;
        for (answer, chosen) in found.iter_mut().zip(program.chosen()) {
            answer.push(chosen.token.ok_or("the device chose nothing")?);
        }
        Ok(())
    };
    let mut n_waited = 0;
    for (index, step) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        if in_flight.len() == program.max_in_flight() || is_last {
            let n_left = if is_last { 0 } else { in_flight.len() - 1 };
            while in_flight.len() > n_left {
                wait(program.as_mut(), &mut in_flight)?;
                n_waited += 1;
            }
        }
        let known = &expected_prefix(&expected, n_waited);
        let pending: Vec<Vec<OutputRef>> = (0..n as u32)
            .map(|output| in_flight.iter().map(|ticket| OutputRef { ticket: *ticket, output }).collect())
            .collect();
        let mut step =
            with_wants(step, |sequence| (want_of(sequence, index), &known[sequence], &pending[sequence]));
        match in_flight.back() {
            Some(ticket) => {
                // The token of a linked row is ignored.
                step.tokens = vec![u32::MAX; n];
                step.links = (0..n as u32)
                    .map(|row| Link { row, from: OutputRef { ticket: *ticket, output: row } })
                    .collect();
            }
            None => {
                step.tokens = (0..n).map(|sequence| known[sequence].last().copied().unwrap_or(1)).collect();
            }
        }
        if is_last && step.wants.iter().all(|want| want.penalties.is_none()) {
            step.wants.iter_mut().for_each(|want| want.logits = true);
        }
        let all_in_flight = step.wants.iter().all(|want| want.logits || program.chooses_in_flight(want));
        if !all_in_flight {
            return Err("the device leaves a choice to the host".to_owned());
        }
        in_flight.push_back(program.submit(&step.borrow()).map_err(|e| e.to_string())?);
    }
    while !in_flight.is_empty() {
        wait(program.as_mut(), &mut in_flight)?;
    }
    if found != expected {
        return Err(format!("{found:?}, expected {expected:?}"));
    }
    let logits: Vec<u32> = program.logits().iter().map(|v| v.to_bits()).collect();
    match wants.iter().any(|want| want.penalties.is_some()) || logits == last {
        true => Ok(()),
        false => Err("the last step's logits differ".to_owned()),
    }
}

/// The first tokens of each answer, which must be those that were found.
fn expected_prefix(answers: &[Vec<u32>], n: usize) -> Vec<Vec<u32>> {
    answers.iter().map(|answer| answer[..n].to_vec()).collect()
}

/// A step that reads the prompts of `n` sequences, and the steps of a row each that follow.
fn steps(plan: &Plan, limits: &Limits, n: usize) -> (OwnedStep, Vec<OwnedStep>) {
    let mut sequences = Sequences::new(1, &plan.kv, limits, 50);
    let prompts: Vec<(usize, usize)> = (0..n).map(|slot| (slot, N_PROMPT - 4 * (slot % 4))).collect();
    let prompt = sequences.step(&prompts).with_outputs(vec![], Want::LOGITS);
    let rows: Vec<(usize, usize)> = (0..n).map(|slot| (slot, 1)).collect();
    (prompt, (0..N_STEPS).map(|_| sequences.step(&rows)).collect())
}

/// A step with the request of each output, the tokens that are known to have penalties, and those
/// that are not known yet.
fn with_wants<'a>(
    step: &OwnedStep,
    of: impl Fn(usize) -> (Want, &'a Vec<u32>, &'a [OutputRef]),
) -> OwnedStep {
    let mut step = OwnedStep { wants: vec![], ..step.clone() };
    for sequence in 0..step.outputs.len() {
        let (mut want, recent, pending) = of(sequence);
        if want.penalties.is_some() {
            want.recent = Slice { start: step.recent.len() as u32, len: recent.len() as u32 };
            want.pending = Slice { start: step.pending.len() as u32, len: pending.len() as u32 };
            step.recent.extend(recent);
            step.pending.extend(pending);
        }
        if let Some(mask) = &mut want.mask {
            // Two of three tokens are allowed.
            let words = std::iter::repeat_n(0xb6db_6db6, mask.len as usize);
            mask.start = step.masks.len() as u32;
            step.masks.extend(words);
        }
        step.wants.push(want);
    }
    step
}

fn run(program: &mut dyn Program, step: &OwnedStep) -> Result<(), String> {
    program.run(&step.borrow()).map_err(|e| e.to_string())
}
