//! Every family's plan, divided among the ranks of a group, gives what transformers gives. Ranks are interpreters of one process, which
//! exchange numbers in memory; and, where there is an NVIDIA GPU, two ranks on it, or two GPUs (`cargo xtask gpu-test` bundles these).
#![allow(clippy::unwrap_used)]

use crate::common::{Runner, all, check_device, open};
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
fn agree(device: &ParallelDevice, numerics: Numerics, chunks: &[usize]) -> Vec<&'static str> {
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
            let check = || check_device(Runner::on(device, &plan, numerics), name, *chunk);
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
    let refused = agree(&parallel(Reference::group(2, 1)), Numerics::Fast, &[40]);
    assert!(refused.len() <= 2, "{refused:?}");
}

#[test]
fn fixtures_agree_on_four_ranks() {
    let refused = agree(&parallel(Reference::group(4, 1)), Numerics::Fast, &[7]);
    assert!(refused.len() <= 16, "{refused:?}");
}

/// With two GPUs, one a rank; with one, both ranks on it, once through the host's memory.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn all_fixtures_agree_on_ranks_on_cuda() {
    use device_cuda::{CudaDevice, Reach};
    let two = CudaDevice::new(1).is_ok();
    let gpus = if two { [0, 1] } else { [0, 0] };
    println!("ranks on GPUs {gpus:?}");
    let device = parallel(CudaDevice::group(&gpus, Reach::Any).unwrap());
    agree(&device, Numerics::Fast, &[32, 7, 1]);
    let device = parallel(CudaDevice::group(&gpus, Reach::Host).unwrap());
    agree(&device, Numerics::Deterministic, &[40]);
}
