//! A step allocates nothing after compilation, as counted by the allocator. The test is alone in
//! its process, since other tests allocate.

#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::sync::atomic::AtomicBool;

use device::{
    Choose, Device, KvType, Limits, Link, Numerics, OutputRef, Penalties, Sampling, Slice, Step, Ticket, Want,
};
use device_lower::fusion;
use device_testing::{CountingAllocator, Sequences, check_op_cases, committed, limits, mini_transformer};
use ingle_device_cpu::{CpuDevice, Options};
use weights::BlockType;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_step_allocates_nothing() {
    let device = CpuDevice::new(Options { threads: Some(3), isa: None }).unwrap();
    for numerics in [Numerics::Fast, Numerics::Deterministic] {
        for block in [BlockType::F32, BlockType::Q4_1, BlockType::Q6_K] {
            let plan = fusion::fuse(&mini_transformer(1, block), device.fusion());
            let limits = Limits { numerics, kv_type: KvType::I16, ..limits(&plan.kv) };
            let mut program =
                device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
            let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
            let steps: Vec<_> = [&[(0, 40)][..], &[(0, 1)], &[(0, 1), (1, 17)], &[(1, 1)], &[(0, 1), (1, 1)]]
                .iter()
                .map(|spans| sequences.step(spans))
                .collect();
            // Threads allocate as they start, and after the first step all of them are running.
            program.run(&sequences.step(&[(2, 5)]).borrow()).unwrap();
            let before = CountingAllocator::calls();
            for step in &steps {
                program.run(&step.borrow()).unwrap();
            }
            assert_eq!(CountingAllocator::calls() - before, 0, "{block} {numerics:?}");
        }
    }
    sampling_allocates_nothing(&device);
    // Several plans run with encoder states that slots share.
    let cases = check_op_cases();
    let cases =
        cases.iter().filter(|case| case.name.starts_with("50 encoder states") && case.runs_on(&device));
    assert!(cases.clone().count() > 0);
    for case in cases {
        for numerics in [Numerics::Fast, Numerics::Deterministic] {
            let limits = Limits { numerics, ..case.limits.clone() };
            let mut program = device.compile(&case.plans, &limits).and_then(committed).unwrap();
            program.run(&case.steps[0].borrow()).unwrap();
            let before = CountingAllocator::calls();
            for step in &case.steps {
                program.run(&step.borrow()).unwrap();
            }
            assert_eq!(CountingAllocator::calls() - before, 0, "{}", case.name);
        }
    }
}

/// Runs sixteen sequences, each sampled with penalties, a bias, a mask and log-probabilities, with
/// its token from the step before.
fn sampling_allocates_nothing(device: &CpuDevice) {
    const N: u32 = 16;
    let plan = fusion::fuse(&mini_transformer(1, BlockType::Q8_0), device.fusion());
    let limits = Limits { max_spans: N as usize, kv_type: KvType::I16, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    let spans: Vec<(usize, usize)> = (0..N as usize).map(|slot| (slot, 1)).collect();
    let slice = |start, len| Slice { start, len };
    let want = |row: u32, sampling: Sampling| Want {
        choose: if row % 5 == 4 { Choose::Best } else { Choose::Sample(sampling) },
        logprob: true,
        n_best: 5,
        penalties: Some(Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 }),
        recent: slice(row, 8),
        pending: slice(row, 1),
        biases: slice(0, 3),
        mask: row.is_multiple_of(2).then_some(slice(0, 4)),
        ..Want::BEST
    };
    let from = |output: u32, ticket: u64| OutputRef { ticket: Ticket(ticket), output };
    let steps: Vec<_> = (0..6u64)
        .map(|turn| {
            let mut step = sequences.step(&spans);
            if turn > 0 {
                step.links = (0..N).map(|row| Link { row, from: from(row, turn - 1) }).collect();
                step.pending = (0..N).map(|row| from(row, turn - 1)).collect();
                step.recent = (0..N + 8).collect();
                step.biases = vec![(3, 1.0), (5, -2.0), (90, f32::NEG_INFINITY)];
                step.masks = vec![0x5555_ffff; 4];
                for (row, want_of_row) in (0..N).zip(&mut step.wants) {
                    let random = f64::from(row) / f64::from(N);
                    let top_k = if row % 3 == 0 { 0 } else { 20 };
                    let sampling = Sampling { temperature: 0.8, top_k, top_p: 0.95, min_p: 0.02, random };
                    *want_of_row = want(row, sampling);
                }
            }
            step
        })
        .collect();
    program.run(&steps[0].borrow()).unwrap();
    let before = CountingAllocator::calls();
    for step in &steps[1..] {
        program.run(&step.borrow()).unwrap();
    }
    assert_eq!(CountingAllocator::calls() - before, 0, "sixteen sampled outputs");
    assert!(program.chosen().iter().all(|chosen| chosen.token.is_some() && chosen.logprob < 0.0));
    // A stopped step allocates nothing either.
    let stop = AtomicBool::new(true);
    let before = CountingAllocator::calls();
    assert!(program.run(&Step { links: &[], stop: Some(&stop), ..steps[0].borrow() }).is_err());
    assert_eq!(CountingAllocator::calls() - before, 0, "a stopped step");
}
