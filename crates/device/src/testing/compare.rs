//! Running cases: device against interpreter, fused against not, chunks against single rows.

use super::{Case, check_op_cases};
use crate::fusion::fuse;
use crate::interpreter::Reference;
use crate::{Device, Limits, OpKind, OwnedStep, Plan, Span, Want};

/// The logits of each step, one after another.
///
/// Checks on the way what needs no reference: the number of logits, and that the argmax is that of the logits.
///
/// # Errors
/// The device refused or failed, or broke such a promise, in words.
pub fn run(
    device: &dyn Device,
    plan: &Plan,
    limits: &Limits,
    steps: &[OwnedStep],
) -> Result<Vec<Vec<f32>>, String> {
    let mut program = device.compile(plan, limits).map_err(|e| e.to_string())?;
    let cols = plan.value(plan.logits).cols;
    let mut results = vec![];
    for (index, step) in steps.iter().enumerate() {
        program.run(&step.borrow()).map_err(|e| format!("step {index}: {e}"))?;
        let logits = program.logits().to_vec();
        if logits.len() != step.outputs.len() * cols {
            return Err(format!(
                "step {index}: {} logits for {} rows of {cols}",
                logits.len(),
                step.outputs.len()
            ));
        }
        if step.want == Want::Argmax {
            let best = |row: &[f32]| {
                let best = row
                    .iter()
                    .enumerate()
                    .fold(0, |best, (i, value)| if *value > row[best] { i } else { best });
                best as u32
            };
            let expected: Vec<u32> = logits.chunks(cols).map(best).collect();
            if program.argmax() != expected {
                return Err(format!(
                    "step {index}: argmax {:?}, of the logits {expected:?}",
                    program.argmax()
                ));
            }
        }
        results.push(logits);
    }
    Ok(results)
}

/// Whether a device agrees with the interpreter on a case: as it is, fused by each rule of its profile alone, and fused by
/// all of them.
///
/// The difference of two logits may be `tolerance` times the root mean square of the step's logits (at least 1, the size
/// that cases are made for, so that sums that happen to cancel are not held to more than their parts).
///
/// # Errors
/// Where they differ and by how much, or why the device did not run it.
pub fn compare(device: &dyn Device, case: &Case, tolerance: f32) -> Result<(), String> {
    let expected = run(&Reference::new(1), &case.plan, &case.limits, &case.steps)?;
    let mut plans = vec![("not fused".to_owned(), case.plan.clone())];
    let rules = device.fusion();
    let alone = rules.iter().map(|rule| (format!("fused by {}", rule.kind), fuse(&case.plan, &[*rule])));
    let all = std::iter::once(("fused by all rules".to_owned(), fuse(&case.plan, rules)));
    for (what, plan) in alone.chain(all) {
        if plans.iter().all(|(_, other)| other.nodes != plan.nodes) {
            plans.push((what, plan));
        }
    }
    for (what, plan) in plans {
        let found = run(device, &plan, &case.limits, &case.steps)
            .map_err(|e| format!("{}, {what}: {e}", case.name))?;
        differ(&expected, &found, &plan, tolerance).map_err(|e| format!("{}, {what}: {e}", case.name))?;
    }
    Ok(())
}

/// Whether a device gives the same for a case's steps and for the same rows one by one. With
/// [`crate::Numerics::Deterministic`] in the case's limits, the tolerance is 0.
///
/// # Errors
/// As [`compare`].
pub fn compare_chunks(device: &dyn Device, case: &Case, tolerance: f32) -> Result<(), String> {
    // What looks at a whole sequence in one step has other answers for its rows alone.
    if matches!(case.kind, OpKind::SelfAttention | OpKind::Pool) {
        return Ok(());
    }
    let plan = fuse(&case.plan, device.fusion());
    let chunks = run(device, &plan, &case.limits, &case.steps)?.concat();
    let rows = run(device, &plan, &case.limits, &case.steps.iter().flat_map(row_by_row).collect::<Vec<_>>())?
        .concat();
    differ(&[chunks], &[rows], &plan, tolerance).map_err(|e| format!("{}, row by row: {e}", case.name))
}

/// The rows of a step as steps of their own.
fn row_by_row(step: &OwnedStep) -> Vec<OwnedStep> {
    let row = |span: &Span, row: u32| OwnedStep {
        tokens: vec![step.tokens[(span.first_row + row) as usize]],
        spans: vec![Span { first_row: 0, n_rows: 1, first_position: span.first_position + row, ..*span }],
        outputs: if step.outputs.contains(&(span.first_row + row)) { vec![0] } else { vec![] },
        ..step.clone()
    };
    step.spans.iter().flat_map(|span| (0..span.n_rows).map(move |r| row(span, r))).collect()
}

fn differ(expected: &[Vec<f32>], found: &[Vec<f32>], plan: &Plan, tolerance: f32) -> Result<(), String> {
    let cols = plan.value(plan.logits).cols;
    for (step, (expected, found)) in expected.iter().zip(found).enumerate() {
        if expected.len() != found.len() {
            return Err(format!("step {step}: {} values, expected {}", found.len(), expected.len()));
        }
        let squares: f32 = expected.iter().map(|v| v * v).sum();
        let size = (squares / expected.len().max(1) as f32).sqrt().max(1.0);
        for (at, (a, b)) in expected.iter().zip(found).enumerate() {
            let difference = (a - b).abs() / size;
            // Written so that NaN fails.
            let close = a == b || difference <= tolerance;
            if !close {
                return Err(format!(
                    "step {step}, row {}, column {}: {b}, expected {a}: {difference:.2e} of the logits' size, allowed \
                     {tolerance:.2e}",
                    at / cols,
                    at % cols
                ));
            }
        }
    }
    Ok(())
}

/// [`check_cases`] over all of [`check_op_cases`].
///
/// # Errors
/// As [`check_cases`].
pub fn check_device(device: &dyn Device, tolerance: impl Fn(&Case) -> f32) -> Result<usize, String> {
    check_cases(device, check_op_cases(), tolerance)
}

/// [`compare`] and [`compare_chunks`] on every case whose KV type the device has. `tolerance` gives the bound of a case,
/// usually [`Case::tolerance`] times what the device's arithmetic needs.
///
/// Returns the number of cases.
///
/// # Errors
/// All cases that failed, a line each.
pub fn check_cases(
    device: &dyn Device,
    cases: impl IntoIterator<Item = Case>,
    tolerance: impl Fn(&Case) -> f32,
) -> Result<usize, String> {
    let mut failures = vec![];
    let mut n_cases = 0;
    for case in cases {
        if !device.kv_types().contains(&case.limits.kv_type) && !case.plan.kv.layers.is_empty() {
            continue;
        }
        let limits = Limits {
            kv_type: if case.plan.kv.layers.is_empty() { device.kv_types()[0] } else { case.limits.kv_type },
            ..case.limits.clone()
        };
        let case = Case { limits, ..case };
        n_cases += 1;
        let tolerance = tolerance(&case);
        let result =
            compare(device, &case, tolerance).and_then(|()| compare_chunks(device, &case, tolerance));
        failures.extend(result.err());
    }
    match failures.len() {
        0 => Ok(n_cases),
        n => Err(format!("{n} of {n_cases} cases failed on {}:\n{}", device.name(), failures.join("\n"))),
    }
}
