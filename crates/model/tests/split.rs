//! Every family's plan on two devices, split at experts and at layers, gives transformers' results.
#![allow(clippy::unwrap_used)]

use crate::common::{Runner, all, check_device, open};
use device::{Device, Error, Numerics, Op, Plan};
use device_cpu::{CpuDevice, Options};
use device_reference::Reference;
use device_split::{Share, SplitDevice};
use model::ModelSpec;
use std::sync::Arc;

fn n_layers(plan: &Plan) -> usize {
    plan.nodes.iter().filter_map(|node| node.layer).max().map_or(0, |last| last as usize + 1)
}

fn plans() -> impl Iterator<Item = (&'static str, Plan)> {
    all().map(|name| {
        let checkpoint = open(name);
        (name, ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap())
    })
}

fn mixtures() -> impl Iterator<Item = (&'static str, Plan)> {
    plans().filter(|(_, plan)| plan.primitives().any(|op| matches!(op, Op::Route { .. })))
}

fn split(first: Arc<dyn Device>, share: Share) -> SplitDevice {
    SplitDevice::new(first, Arc::new(Reference::new(1)), share).unwrap()
}

/// Three splits: the experts of all layers on the first device, of some layers, and of all layers
/// with some whole layers.
fn shares(plan: &Plan) -> [Share; 3] {
    let n_layers = n_layers(plan);
    [(0, n_layers), (0, n_layers - 1), (1, n_layers)].map(|(first_layers, expert_layers)| Share {
        n_layers,
        first_layers,
        expert_layers,
    })
}

#[test]
fn experts_of_all_mixtures_may_be_on_another_device() {
    let mut n = 0;
    for (name, plan) in mixtures() {
        for (share, chunk) in shares(&plan).into_iter().zip([40, 7, 1]) {
            let device = split(Arc::new(Reference::new(1)), share);
            let worst = check_device(Runner::on(&device, &plan, Numerics::Fast), name, chunk);
            println!("{name}: {share:?}, chunks of {chunk}: {worst:.1e}");
        }
        n += 1;
    }
    assert!(n >= 25, "{n} mixtures");
}

/// The CPU's results are not rounded like the interpreter's, so they are checked as in its own
/// tests.
#[test]
fn experts_of_all_mixtures_may_be_on_the_cpu() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap());
    for (name, plan) in mixtures() {
        let device = split(cpu.clone(), shares(&plan)[0]);
        check_device(Runner::on(&device, &plan, Numerics::Fast), name, 40);
    }
}

/// Dense models and mixtures are cut after their first layer, or refused because later layers share
/// its keys and values.
#[test]
fn layers_of_all_fixtures_may_be_on_two_devices() {
    let (mut n, mut refused) = (0, Vec::new());
    for (name, plan) in plans().filter(|(_, plan)| n_layers(plan) > 1) {
        let device = split(
            Arc::new(Reference::new(1)),
            Share { n_layers: n_layers(&plan), first_layers: 1, expert_layers: 0 },
        );
        match Runner::try_on(&device, &plan, Numerics::Fast) {
            Ok(runner) => {
                check_device(runner, name, 40);
                n += 1;
            }
            Err(Error::Unsupported { .. }) => refused.push(name),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert!(n > 50 && refused.len() <= 2, "{n}, refused {refused:?}");
}
