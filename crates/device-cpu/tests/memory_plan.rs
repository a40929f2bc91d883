//! Compilation allocates what the memory plan states, as counted by the allocator. The test is
//! alone in its process, since other tests allocate.

use device::{Device, Limits, Plan, Residence};
use device_lower::fusion;
use device_testing::{CountingAllocator, Sequences, check_op_cases, committed, limits, mini_transformer};
use ingle_device_cpu::{CpuDevice, Options};
use weights::BlockType;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn compiling_takes_what_the_memory_plan_says() {
    let device = CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap();
    // Threads allocate as they start, and after the first step all of them are running.
    let plan = mini_transformer(1, BlockType::Q8_0);
    let mut sequences = Sequences::new(1, &plan.kv, &limits(&plan.kv), 50);
    device
        .compile(std::slice::from_ref(&plan), &limits(&plan.kv))
        .and_then(committed)
        .unwrap()
        .run(&sequences.step(&[(0, 5)]).borrow())
        .unwrap();
    let mut compiled: Vec<(String, Vec<Plan>, Limits)> = vec![];
    for max_rows in [1, 64, 512] {
        let plan = fusion::fuse(&mini_transformer(1, BlockType::Q8_0), device.fusion());
        let limits = Limits { max_rows, max_outputs: max_rows, ..limits(&plan.kv) };
        let with = Limits { background_rows: max_rows.min(64), ..limits.clone() };
        compiled.push((format!("max_rows {max_rows}"), vec![plan.clone()], limits));
        compiled.push((format!("max_rows {max_rows}, some in the background"), vec![plan], with));
    }
    // Plans of one program share their buffers: adding the same plans again allocates nothing.
    let case = check_op_cases().into_iter().find(|case| case.name.starts_with("50 encoder states")).unwrap();
    let twice = [case.plans.clone(), case.plans.clone()].concat();
    let once = device.memory_plan(&case.plans, &case.limits).unwrap();
    assert_eq!(device.memory_plan(&twice, &case.limits).unwrap(), once);
    assert!(once.items.iter().any(|item| item.what == "KV pages (50 encoder states)"));
    compiled.push((case.name, case.plans, case.limits));

    // The constant terms of keys are an item.
    let biased = |case: &device_testing::Case| case.name.starts_with("key biases 1x8x128");
    let case = check_op_cases().into_iter().find(biased).unwrap();
    let memory = device.memory_plan(&case.plans, &case.limits).unwrap();
    assert!(memory.items.iter().any(|item| item.what == "biases of keys" && item.bytes > 60_000));
    compiled.push((case.name, case.plans, case.limits));

    for (name, plans, limits) in compiled {
        let memory = device.memory_plan(&plans, &limits).unwrap();
        let weights: u64 = memory.items.iter().filter(|i| i.what.contains("weights")).map(|i| i.bytes).sum();
        let planned = (memory.total(Residence::Committed) - weights) as usize;
        let before = CountingAllocator::bytes();
        let program = device.compile(&plans, &limits).and_then(committed).unwrap();
        let taken = CountingAllocator::bytes() - before;
        // Besides the buffers there are two tables a plan, a few hundred bytes a command, and names
        // for profiles.
        let commands =
            (0..plans.len()).flat_map(|plan| [program.commands(plan, 1), program.commands(plan, 2)]);
        let n_tables = if limits.background_rows > 0 { 2 } else { 1 };
        let tables = n_tables * (commands.flatten().count() * 1024 + 4096);
        assert!(
            (planned..planned + tables).contains(&taken),
            "{name}: planned {planned}, took {taken}, tables {tables}"
        );
    }
}
