//! After compiling, a step allocates nothing, counted by the allocator. The GPU is one that runs
//! nothing, for what a driver allocates is not this crate's. Alone in its process, for others
//! allocate.
#![allow(clippy::unwrap_used)]

use device::{
    Choose, Device, KvType, Limits, Link, OpKind, OutputRef, OwnedStep, Penalties, Sampling, Slice, Ticket,
    Want,
};
use device_lower::fusion;
use device_testing::{
    CountingAllocator, Sequences, check_op_cases, committed, limits, mini_transformer, one_sequence,
};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::null::NullGpu;
use weights::BlockType;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_step_allocates_nothing() {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    for block in [BlockType::F32, BlockType::Q4_1, BlockType::Q6_K] {
        let plan = fusion::fuse(&mini_transformer(1, block), device.fusion());
        let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let steps: Vec<_> = [&[(0, 40)][..], &[(0, 1)], &[(0, 1), (1, 17)], &[(1, 1)], &[(0, 1), (1, 1)]]
            .iter()
            .map(|spans| sequences.step(spans))
            .collect();
        // The first step of a class of rows writes its tables.
        for step in &steps {
            program.run(&step.borrow()).unwrap();
        }
        let before = CountingAllocator::calls();
        for step in &steps {
            program.run(&step.borrow()).unwrap();
        }
        assert_eq!(CountingAllocator::calls() - before, 0, "{block}");
        assert!(device.gpu().take().0 > 0);
        // Steps in flight with links too, greedy and sampled, and tokens that the host chooses.
        let penalties = Some(Penalties { repeat: 1.1, presence: 0.1, frequency: 0.1 });
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.1, random: 0.5 };
        let recent = Slice { start: 0, len: 30 };
        let sampled = Want { choose: Choose::Sample(sampling), penalties, recent, ..Want::default() };
        let on_host = Want { logprob: true, logits: true, ..sampled };
        for want in [Want::BEST, sampled, on_host] {
            let first = one_sequence(&plan, &limits, &[1], 40).with_outputs(vec![0], want);
            let mut step = OwnedStep { recent: (0..30).collect(), ..first };
            let first = program.submit(&step.borrow()).unwrap();
            step.links = vec![Link { row: 0, from: OutputRef { ticket: first, output: 0 } }];
            let before = CountingAllocator::calls();
            for index in 1..20 {
                if index >= program.max_in_flight() as u64 {
                    program.wait(Ticket(first.0 + index - program.max_in_flight() as u64)).unwrap();
                }
                let last = program.submit(&step.borrow()).unwrap();
                step.links[0].from.ticket = last;
            }
            assert_eq!(CountingAllocator::calls() - before, 0, "{block}: steps in flight, {want:?}");
            let left = (20 - program.max_in_flight() as u64..20).map(|index| Ticket(first.0 + index));
            left.for_each(|ticket| program.wait(ticket).unwrap());
        }
    }
    // Several plans, with encoder states that slots share; and recurrent layers.
    let mut n_cases = 0;
    for case in check_op_cases() {
        let is_recurrent =
            matches!(case.kind, OpKind::ShortConv | OpKind::GatedDelta | OpKind::SelectiveScan);
        let has_states = case.name.starts_with("50 encoder states") || is_recurrent;
        if !has_states || !device.kv_types().contains(&case.limits.kv_type) {
            continue;
        }
        let mut program = device.compile(&case.plans, &case.limits).and_then(committed).unwrap();
        for step in &case.steps {
            program.run(&step.borrow()).unwrap();
        }
        let before = CountingAllocator::calls();
        for step in &case.steps {
            program.run(&step.borrow()).unwrap();
        }
        assert_eq!(CountingAllocator::calls() - before, 0, "{}", case.name);
        n_cases += 1;
    }
    assert!(n_cases > 20, "{n_cases}");
}
