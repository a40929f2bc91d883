//! Some tests of `examples/gpu_test` on an emulated GPU. The host code and the kernels are
//! unchanged, and run on a CPU (`emulator/`).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use device::OpKind;
use device_testing::EmulatedGpu;
use ingle_device_cuda::{CudaDevice, Profile, selftest};

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn some_ops_agree_on_cuda() {
    let device = CudaDevice::new(0).unwrap();
    for kind in [OpKind::Rope, OpKind::Argmax, OpKind::SelfAttention] {
        selftest::check_kind(&device, kind).unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn steps_of_a_mixture_take_one_launch_on_cuda() {
    let device = CudaDevice::new(0).unwrap();
    let general = Profile { fixed_tables: false, ..Profile::new(device.context().facts()) };
    let decoder = selftest::decoders().into_iter().find(|decoder| decoder.experts.is_some()).unwrap();
    selftest::check_decoder(&device.with_profile(general), decoder, 1).unwrap();
}

#[test]
fn some_agree_on_an_emulated_gpu() {
    let tests = ["some_ops_agree_on_cuda", "steps_of_a_mixture_take_one_launch_on_cuda"];
    EmulatedGpu::build(env!("CARGO_TARGET_TMPDIR")).and_then(|gpu| gpu.test(16, &tests)).unwrap();
}
