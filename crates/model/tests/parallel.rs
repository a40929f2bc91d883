//! Every family's plan, divided among ranks, gives transformers' results. Ranks are interpreters of
//! one process, which exchange numbers in memory. With NVIDIA GPUs, two and four of them are ranks
//! too (`cargo xtask gpu-test` bundles these tests).
#![allow(clippy::unwrap_used)]

use crate::common::{Case, Runner, TOLERANCE, all, failures, open};
use device::{Device, Error, Numerics};
use device_parallel::ParallelDevice;
use device_reference::Reference;
use model::ModelSpec;
use std::sync::Arc;

fn parallel<D: Device + 'static>(ranks: Vec<D>) -> ParallelDevice {
    let ranks = ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>);
    ParallelDevice::new(ranks.collect()).unwrap()
}

/// Runs every fixture. Returns those that are refused because the ranks do not divide their heads.
fn agree(device: &ParallelDevice, cases: &[Case]) -> Vec<&'static str> {
    let (mut refused, mut failed) = (Vec::new(), Vec::new());
    for name in all() {
        let checkpoint = open(name);
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        let heads =
            |error: &Error| matches!(error, Error::Unsupported { what, .. } if what.contains("heads"));
        if Runner::try_on(device, &plan, cases[0].1).is_err_and(|e| heads(&e)) {
            refused.push(name);
            continue;
        }
        failed.extend(failures(device, &plan, name, cases));
    }
    assert!(failed.is_empty(), "{failed:#?}");
    refused
}

#[test]
fn all_fixtures_agree_on_two_ranks() {
    let refused = agree(&parallel(Reference::group(2, 1)), &[(40, Numerics::Fast, TOLERANCE)]);
    assert!(refused.len() <= 2, "{refused:?}");
}

#[test]
fn fixtures_agree_on_four_ranks() {
    let refused = agree(&parallel(Reference::group(4, 1)), &[(7, Numerics::Fast, TOLERANCE)]);
    assert!(all().count() - refused.len() >= 40, "{refused:?}");
}

/// Each of several GPUs is a rank, with direct transfers or through host memory. One GPU is not
/// enough, because ranks wait for each other and a GPU need not run the kernels of two ranks at
/// once.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn all_fixtures_agree_on_ranks_on_cuda() {
    use crate::common::HALVES;
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
    let one_row = (1, Numerics::Fast, TOLERANCE);
    let deterministic = |chunk| (chunk, Numerics::Deterministic, TOLERANCE);
    agree(&device, &[(32, Numerics::Fast, HALVES), one_row, deterministic(40)]);
    agree(&group(&gpus, Reach::Host), &[deterministic(40), deterministic(7)]);
    if n_gpus == 4 {
        agree(&group(&[0, 1, 2, 3], Reach::Any), &[deterministic(40), deterministic(1)]);
    }
}
