//! Rules for replacing plans while sequences continue, checked on any device.

use device::{Device, Error, Limits, OwnedStep, Plan, Program};
use device_lower::fusion::fuse;
use weights::BlockType;

use super::{PlanBuilder, Sequences, committed, limits, mini_transformer};

type Outcome = Result<(), String>;

fn words(error: Error) -> String {
    error.to_string()
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks that pages keep their content while plans are added and removed beside the first: each
/// step gives the same bits as without. Steps run the plan that they name, and plans of another KV
/// layout are refused.
///
/// # Errors
/// The first rule that the device breaks.
pub fn check_replaced_plans(device: &dyn Device) -> Outcome {
    // Two plans of one layout; the second has other weights.
    let plans = [3, 4].map(|seed| fuse(&mini_transformer(seed, BlockType::Q8_0), device.fusion()));
    let [own, other] = &plans;
    let limits = Limits { kv_type: device.kv_types()[0], ..limits(&own.kv) };
    let compile = |plans: &[Plan]| device.compile(plans, &limits).and_then(committed).map_err(words);
    let mut sequences = Sequences::new(5, &own.kv, &limits, own.value(own.output).cols as u32);
    let spans = [&[(0, 20), (1, 3)][..], &[(0, 1), (1, 1)], &[(0, 5), (2, 9)], &[(0, 1), (1, 1), (2, 1)]];
    let steps: Vec<OwnedStep> = spans.map(|spans| sequences.step(spans)).into();
    let logits = |program: &mut dyn Program, step: &OwnedStep, plan: usize| -> Result<Vec<f32>, String> {
        program.run(&OwnedStep { plan, ..step.clone() }.borrow()).map_err(words)?;
        Ok(program.logits().to_vec())
    };

    // Results without replaced plans; the third step runs the other plan.
    let mut both = compile(&plans)?;
    let mut expected = vec![];
    for (index, step) in steps.iter().enumerate() {
        expected.push(logits(both.as_mut(), step, usize::from(index == 2))?);
    }

    let mut program = compile(std::slice::from_ref(own))?;
    let program = program.as_mut();
    let changes: [(&[Plan], usize); 4] =
        [(&plans[..1], 0), (&plans, 0), (&[own.clone(), own.clone(), other.clone()], 2), (&plans[..1], 0)];
    for (index, (plans, plan)) in changes.into_iter().enumerate() {
        program.replace_plans(plans).map_err(words)?;
        let found = logits(program, &steps[index], plan)?;
        expect(found == expected[index], || {
            format!("step {index} with {} plans: other logits", plans.len())
        })?;
    }

    let mut builder = PlanBuilder::new(1, 97);
    let x = builder.embed(64);
    let foreign = fuse(&builder.finish(x), device.fusion());
    expect(program.replace_plans(std::slice::from_ref(&foreign)).is_err(), || {
        "plans of another KV layout were taken".to_owned()
    })?;
    let again = logits(program, &steps[3], 0)?;
    expect(again == expected[3], || "after a refusal: other logits".to_owned())
}
