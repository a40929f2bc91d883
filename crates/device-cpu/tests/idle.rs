//! Idle workers use no CPU time. The test is alone in its process, since it measures the process's
//! CPU time.
#![cfg(unix)]

use std::time::Duration;

use device::Device;
use device_lower::fusion;
use device_testing::{Sequences, committed, limits, mini_transformer};
use ingle_device_cpu::{CpuDevice, Options};
use weights::BlockType;

/// CPU time of this process so far.
#[allow(unsafe_code)]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn workers_park_between_steps() {
    let device = CpuDevice::new(Options { threads: Some(4), isa: None }).unwrap();
    let plan = fusion::fuse(&mini_transformer(1, BlockType::Q4_0), device.fusion());
    let limits = limits(&plan.kv);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    program.run(&sequences.step(&[(0, 30)]).borrow()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time();
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(5), "{used:?} of processor time in half a second of idleness");
    program.run(&sequences.step(&[(0, 1)]).borrow()).unwrap();
}
