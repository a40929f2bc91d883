//! Every family's plan on the CPU device gives transformers' logits.
//!
//! The fixtures have BF16 weights, which the device multiplies in f32, so the interpreter's bound
//! applies.
#![allow(clippy::unwrap_used)]

use crate::common::{Runner, all, check_device, open};
use device::Numerics;
use device_cpu::{CpuDevice, Isa, Options};
use model::ModelSpec;

fn fixtures_agree(isa: Isa, threads: usize, numerics: Numerics) {
    let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
    for name in all() {
        let checkpoint = open(name);
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        for chunk in [100, 40, 7, 1] {
            let runner = Runner::on(&device, &plan, numerics);
            let worst = check_device(runner, name, chunk);
            println!("{name} on {isa}: chunks of {chunk}: {worst:.1e}");
        }
    }
}

#[test]
fn all_fixtures_agree_on_every_instruction_set() {
    for isa in Isa::available() {
        fixtures_agree(isa, 2, Numerics::Fast);
    }
}

#[test]
fn all_fixtures_agree_with_deterministic_numerics() {
    fixtures_agree(Isa::detect(), 3, Numerics::Deterministic);
}
