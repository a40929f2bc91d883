//! Comparison on cases: device against interpreter, fused against not fused, chunks against single
//! rows.

use super::{Case, cases, check_op_cases, committed};
use device::{
    Choose, Device, FromStep, FusedKind, KvAccess, Limits, Op, OwnedStep, Plan, RowCount, Span, StateUse,
    ValueId,
};
use device_lower::fusion::fuse;
use device_reference::Reference;

/// Results of a step: its logits, then the plan's kept values.
pub type Results = Vec<Vec<f32>>;

/// Runs the steps, and returns the results of each.
///
/// Also checks the number of results, and that the argmax matches the logits; neither needs a
/// reference.
///
/// # Errors
/// A description of the refusal, failure, or wrong result.
pub fn run(
    device: &dyn Device,
    plans: &[Plan],
    limits: &Limits,
    steps: &[OwnedStep],
) -> Result<Vec<Results>, String> {
    let mut program = device.compile(plans, limits).and_then(committed).map_err(|e| e.to_string())?;
    let mut results = vec![];
    for (index, step) in steps.iter().enumerate() {
        program.run(&step.borrow()).map_err(|e| format!("step {index}: {e}"))?;
        let plan = &plans[step.plan];
        let mut values = vec![program.logits().to_vec()];
        values.extend((0..plan.kept.len()).map(|kept| program.kept(kept).to_vec()));
        for (id, values) in results_of(plan).zip(&values) {
            let value = plan.value(id);
            let n = value.rows.count(step.tokens.len(), step.outputs.len());
            if values.len() != n * value.cols {
                let (found, cols) = (values.len(), value.cols);
                return Err(format!("step {index}: {found} numbers of {id} for {n} rows of {cols}"));
            }
        }
        if step.wants.iter().any(|want| want.choose == Choose::Best) {
            let best = |row: &[f32]| {
                let best = row
                    .iter()
                    .enumerate()
                    .fold(0, |best, (i, value)| if *value > row[best] { i } else { best });
                best as u32
            };
            let expected: Vec<u32> = values[0].chunks(plan.value(plan.output).cols).map(best).collect();
            let found: Vec<Option<u32>> = program.chosen().iter().map(|chosen| chosen.token).collect();
            if !found.iter().copied().eq(expected.iter().copied().map(Some)) {
                return Err(format!("step {index}: chosen {found:?}, the best of the logits {expected:?}"));
            }
        }
        results.push(values);
    }
    Ok(results)
}

/// Ids of the values in [`Results`].
fn results_of(plan: &Plan) -> impl Iterator<Item = ValueId> {
    std::iter::once(plan.output).chain(plan.kept.iter().copied())
}

/// Plans with at least this many nodes are not fused by each rule alone: they are layers, whose
/// parts are cases of their own.
const WHOLE_LAYERS: usize = 20;

/// Checks that a device agrees with the interpreter on a case. Plans are not fused, fused by each
/// rule of its profile alone (except whole layers), and fused by all rules.
///
/// Two results may differ by `tolerance` times the root mean square of the step's logits or kept
/// value. This size is at least 1, for which cases are made, so that sums that happen to cancel are
/// not compared too strictly.
///
/// # Errors
/// The first difference and its size, or the reason why the device did not run the case.
pub fn compare(device: &dyn Device, case: &Case, tolerance: f32) -> Result<(), String> {
    results(device, case, tolerance).map(drop)
}

/// Like [`compare`]; returns the results of the plans fused by all rules.
fn results(device: &dyn Device, case: &Case, tolerance: f32) -> Result<Vec<Results>, String> {
    let expected = run(&Reference::new(1), &case.plans, &case.limits, &case.steps)?;
    let fused =
        |rules: &[FusedKind]| -> Vec<Plan> { case.plans.iter().map(|plan| fuse(plan, rules)).collect() };
    let mut variants = vec![("not fused".to_owned(), case.plans.clone())];
    let rules = device.fusion();
    let is_small = case.plans.iter().all(|plan| plan.nodes.len() < WHOLE_LAYERS);
    let alone = rules.iter().filter(|_| is_small);
    let alone = alone.map(|rule| (format!("fused by {rule}"), fused(&[*rule])));
    let all = std::iter::once(("fused by all rules".to_owned(), fused(rules)));
    let mut of_all = 0;
    for (what, plans) in alone.chain(all) {
        let same = |other: &[Plan]| plans.iter().zip(other).all(|(a, b)| a.nodes == b.nodes);
        of_all = variants.iter().position(|(_, other)| same(other)).unwrap_or(variants.len());
        if of_all == variants.len() {
            variants.push((what, plans));
        }
    }
    let mut wanted = vec![];
    for (variant, (what, plans)) in variants.into_iter().enumerate() {
        let found = run(device, &plans, &case.limits, &case.steps)
            .map_err(|e| format!("{}, {what}: {e}", case.name))?;
        for (index, (step, (expected, found))) in
            case.steps.iter().zip(expected.iter().zip(&found)).enumerate()
        {
            let plan = &plans[step.plan];
            for (id, (expected, found)) in results_of(plan).zip(expected.iter().zip(found)) {
                differ(expected, found, plan.value(id).cols, tolerance)
                    .map_err(|e| format!("{}, {what}: step {index}, {id}, {e}", case.name))?;
            }
        }
        if variant == of_all {
            wanted = found;
        }
    }
    Ok(wanted)
}

/// Checks that a device computes the same results for a case's steps and for the same rows one by
/// one. With [`device::Numerics::Deterministic`] in the case's limits, the tolerance is 0.
///
/// # Errors
/// As [`compare`].
pub fn compare_chunks(device: &dyn Device, case: &Case, tolerance: f32) -> Result<(), String> {
    let plans: Vec<Plan> = case.plans.iter().map(|plan| fuse(plan, device.fusion())).collect();
    compare_rows(device, case, &plans, tolerance, || run(device, &plans, &case.limits, &case.steps))
}

/// Like [`compare_chunks`], for fused plans. `whole` returns the results of whole steps.
fn compare_rows(
    device: &dyn Device,
    case: &Case,
    plans: &[Plan],
    tolerance: f32,
    whole: impl FnOnce() -> Result<Vec<Results>, String>,
) -> Result<(), String> {
    if case.plans.iter().all(needs_whole_spans) {
        return Ok(());
    }
    // Longer steps are compared with the interpreter only. Row by row they would take most of the
    // time of a device's tests, so runs with more cases do that.
    let longest = if cases(1) > 1 { usize::MAX } else { 64 };
    let mut rows = vec![];
    for step in &case.steps {
        if needs_whole_spans(&plans[step.plan]) || step.tokens.len() > longest {
            rows.push(step.clone());
        } else {
            rows.extend(row_by_row(step, &case.limits));
        }
    }
    let chunks = by_value(plans, &case.steps, whole()?);
    let rows = by_value(plans, &rows, run(device, plans, &case.limits, &rows)?);
    for ((plan, chunks), rows) in plans.iter().zip(chunks).zip(rows) {
        for (id, (chunks, rows)) in results_of(plan).zip(chunks.iter().zip(&rows)) {
            differ(chunks, rows, plan.value(id).cols, tolerance)
                .map_err(|e| format!("{}, row by row: {id}, {e}", case.name))?;
        }
    }
    Ok(())
}

/// True if the rows of a span must run in one step, so that each row alone would have other
/// results.
fn needs_whole_spans(plan: &Plan) -> bool {
    plan.primitives().map(Op::facts).any(|facts| {
        let stores_states = |kv: KvAccess| kv.writes && plan.kv.layer(kv.layer).encoder_states.is_some();
        // Input of outputs has no row for each token.
        let reads_outputs = |out: ValueId| plan.value(out).rows == RowCount::Outputs;
        facts.needs_whole_spans
            || facts.kv.is_some_and(stores_states)
            || matches!(facts.from_step, FromStep::Input(out) if reads_outputs(out))
    })
}

/// The results of all steps of each plan, concatenated.
fn by_value(plans: &[Plan], steps: &[OwnedStep], results: Vec<Results>) -> Vec<Results> {
    let mut all: Vec<Results> = plans.iter().map(|plan| vec![vec![]; 1 + plan.kept.len()]).collect();
    for (step, values) in steps.iter().zip(results) {
        all[step.plan].iter_mut().zip(values).for_each(|(all, values)| all.extend(values));
    }
    all
}

/// The rows of a step as separate steps.
fn row_by_row(step: &OwnedStep, limits: &Limits) -> Vec<OwnedStep> {
    let per_row = step.input.len().checked_div(step.tokens.len()).unwrap_or(0);
    // Between two rows the state is in one of two slots that `Sequences` does not use.
    let between = |row: u32| limits.n_states as u32 - 1 - row % 2;
    let state = |index: usize, span: &Span, row: u32| {
        let whole = step.states.get(index)?;
        let from = if row == 0 { whole.from } else { between(row - 1) };
        Some(StateUse { from, to: if row + 1 == span.n_rows { whole.to } else { between(row) } })
    };
    let row = |index: usize, span: &Span, row: u32| {
        let at = (span.first_row + row) as usize;
        let output = step.outputs.iter().position(|row| *row as usize == at);
        OwnedStep {
            tokens: vec![step.tokens[at]],
            input: step.input[at * per_row..(at + 1) * per_row].to_vec(),
            spans: vec![Span { first_row: 0, n_rows: 1, first_position: span.first_position + row, ..*span }],
            states: state(index, span, row).into_iter().collect(),
            adapters: step.adapters.get(index).copied().into_iter().collect(),
            outputs: if output.is_some() { vec![0] } else { vec![] },
            wants: output.map(|output| step.wants[output]).into_iter().collect(),
            ..step.clone()
        }
    };
    let spans = step.spans.iter().enumerate();
    spans.flat_map(|(index, span)| (0..span.n_rows).map(move |r| row(index, span, r))).collect()
}

pub(super) fn differ(expected: &[f32], found: &[f32], cols: usize, tolerance: f32) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} numbers, expected {}", found.len(), expected.len()));
    }
    let squares: f32 = expected.iter().map(|v| v * v).sum();
    let size = (squares / expected.len().max(1) as f32).sqrt().max(1.0);
    for (at, (a, b)) in expected.iter().zip(found).enumerate() {
        let difference = (a - b).abs() / size;
        // Written so that NaN fails.
        let close = a == b || difference <= tolerance;
        if !close {
            return Err(format!(
                "row {}, column {}: {b}, expected {a}: {difference:.2e} of the size, allowed {tolerance:.2e}",
                at / cols,
                at % cols
            ));
        }
    }
    Ok(())
}

/// Runs [`check_cases`] on all of [`check_op_cases`].
///
/// # Errors
/// As [`check_cases`].
pub fn check_device(device: &dyn Device, tolerance: impl Fn(&Case) -> f32) -> Result<usize, String> {
    check_cases(device, check_op_cases(), tolerance)
}

/// Runs [`compare`] and [`compare_chunks`] on every case that the device supports. `tolerance`
/// returns the bound of a case, usually [`Case::tolerance`] times a factor for the device's
/// arithmetic.
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
        let cached = case.plans.iter().any(|plan| !plan.kv.layers.is_empty());
        let limits = Limits {
            kv_type: if cached { case.limits.kv_type } else { device.kv_types()[0] },
            ..case.limits.clone()
        };
        let case = Case { limits, ..case };
        if !case.runs_on(device) {
            continue;
        }
        n_cases += 1;
        let tolerance = tolerance(&case);
        let result = results(device, &case, tolerance).and_then(|whole| {
            let plans: Vec<Plan> = case.plans.iter().map(|plan| fuse(plan, device.fusion())).collect();
            compare_rows(device, &case, &plans, tolerance, || Ok(whole))
        });
        failures.extend(result.err());
    }
    match failures.len() {
        0 => Ok(n_cases),
        n => Err(format!("{n} of {n_cases} cases failed on {}:\n{}", device.name(), failures.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::WeightId;

    #[test]
    fn replaced_operands_are_what_an_op_reads() {
        let moved = |ids: Vec<ValueId>| ids.into_iter().map(|id| ValueId(id.0 + 1000)).collect::<Vec<_>>();
        for case in check_op_cases() {
            for op in case.plans.iter().flat_map(Plan::primitives) {
                let replaced =
                    op.with_operands(&mut |id| ValueId(id.0 + 1000), &mut |id| WeightId(id.0 + 1000));
                assert_eq!(replaced.reads(), moved(op.reads()), "{op}");
                assert_eq!(replaced.writes(), op.writes(), "{op}");
                let weights: Vec<_> = op.weights().into_iter().map(|id| WeightId(id.0 + 1000)).collect();
                assert_eq!(replaced.weights(), weights, "{op}");
            }
        }
    }
}
