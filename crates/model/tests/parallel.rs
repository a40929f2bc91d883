//! Every family's plan, divided among the ranks of a group, gives what transformers gives. Ranks are interpreters of one process, which
//! exchange numbers in memory; and, where there are NVIDIA GPUs, two and four of them (`cargo xtask gpu-test` bundles these).
#![allow(clippy::unwrap_used)]

use crate::common::{HALVES, Runner, TOLERANCE, all, check_within, open};
use device::{Device, Error, Numerics};
use device_parallel::ParallelDevice;
use device_reference::Reference;
use model::ModelSpec;
use std::sync::Arc;

fn parallel<D: Device + 'static>(ranks: Vec<D>) -> ParallelDevice {
    let ranks = ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>);
    ParallelDevice::new(ranks.collect()).unwrap()
}

/// Every fixture; which are refused, since the ranks do not divide their heads.
fn agree(device: &ParallelDevice, numerics: Numerics, bound: f32, chunks: &[usize]) -> Vec<&'static str> {
    let (mut refused, mut failed) = (Vec::new(), Vec::new());
    for name in all() {
        let checkpoint = open(name);
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        let heads =
            |error: &Error| matches!(error, Error::Unsupported { what, .. } if what.contains("heads"));
        if Runner::try_on(device, &plan, numerics).is_err_and(|e| heads(&e)) {
            refused.push(name);
            continue;
        }
        for chunk in chunks {
            // All are looked at before the test fails: time on a machine with a GPU is short.
            let check = || check_within(Runner::on(device, &plan, numerics), name, *chunk, bound);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
                Ok(worst) => println!("{name}: {numerics:?}, chunks of {chunk}: {worst:.1e}"),
                Err(_) => failed.push(name),
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    refused
}

#[test]
fn all_fixtures_agree_on_two_ranks() {
    let refused = agree(&parallel(Reference::group(2, 1)), Numerics::Fast, TOLERANCE, &[40]);
    assert!(refused.len() <= 2, "{refused:?}");
}

#[test]
fn fixtures_agree_on_four_ranks() {
    let refused = agree(&parallel(Reference::group(4, 1)), Numerics::Fast, TOLERANCE, &[7]);
    assert!(all().count() - refused.len() >= 40, "{refused:?}");
}

/// Each of several GPUs is a rank, directly and through the host's memory. Two ranks on one GPU wait for each other, which does not run both at once.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn all_fixtures_agree_on_ranks_on_cuda() {
    use device_cuda::{CudaDevice, Reach};
    let n_gpus = (0..4).take_while(|index| CudaDevice::new(*index).is_ok()).count();
    if n_gpus < 2 {
        println!("SKIPPED: ranks need two GPUs, and there are {n_gpus}");
        return;
    }
    let group = |gpus: &[usize], reach| {
        println!("ranks on GPUs {gpus:?}, {reach:?}");
        parallel(CudaDevice::group(gpus, reach).unwrap())
    };
    let gpus = [0, 1];
    let device = group(&gpus, Reach::Any);
    agree(&device, Numerics::Fast, HALVES, &[32]);
    agree(&device, Numerics::Fast, TOLERANCE, &[1]);
    agree(&device, Numerics::Deterministic, TOLERANCE, &[40]);
    agree(&group(&gpus, Reach::Host), Numerics::Deterministic, TOLERANCE, &[40, 7]);
    if n_gpus == 4 {
        agree(&group(&[0, 1, 2, 3], Reach::Any), Numerics::Deterministic, TOLERANCE, &[40, 1]);
    }
}
