//! The common checks of devices, on ranks of the interpreter in one process that communicate in
//! memory. They must compute the same as one interpreter.

use std::sync::Arc;

use device::{Device, Error, KvType, Limits, MemoryPlan, Op, Plan};
use device_reference::Reference;
use device_testing::{
    PlanBuilder, Sequences, check_commits, check_op_cases, check_steps, chosen_tokens, committed, compare,
    limits, mini_transformer,
};
use ingle_device_parallel::ParallelDevice;
use weights::BlockType;

fn ranks(n: usize) -> ParallelDevice {
    let ranks = Reference::group(n, 1).into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>);
    ParallelDevice::new(ranks.collect()).expect("a group")
}

#[test]
fn steps_keep_what_devices_promise() {
    for n in [2, 4] {
        let device = ranks(n);
        // Sums over the ranks are in another order than on one device.
        let values = check_steps(&device, 2e-4).unwrap_or_else(|e| panic!("{n} ranks: {e}"));
        assert!(values.n_read > 0);
        check_commits(&device).unwrap();
    }
}

/// The cases of every Op have odd shapes; values that cannot be divided are whole on each rank.
#[test]
fn every_op_agrees() {
    // Three ranks divide little of most cases, so some cases are enough.
    for (n, every) in [(2, 1), (3, 8)] {
        let device = ranks(n);
        let (mut n_ran, mut n_refused) = (0, 0);
        for case in check_op_cases().into_iter().step_by(every) {
            let refused =
                |error: &Error| matches!(error, Error::Unsupported { what, .. } if what.contains("heads"));
            if !case.runs_on(&device) {
                continue;
            }
            if device.compile(&case.plans, &case.limits).is_err_and(|error| refused(&error)) {
                n_refused += 1;
                continue;
            }
            compare(&device, &case, case.tolerance).unwrap_or_else(|e| panic!("{n} ranks: {e}"));
            n_ran += 1;
        }
        assert!(n_ran > n_refused && n_ran > 200 / every, "{n} ranks: {n_ran} ran, {n_refused} were refused");
    }
}

/// Prompts in chunks, several sequences and single tokens, past the window; and a copied page.
#[test]
fn logits_are_those_of_one_device() {
    for (n, block) in [(2, BlockType::F32), (2, BlockType::Q4_0), (4, BlockType::Q8_0)] {
        let plan = mini_transformer(5, block);
        let limits = Limits { kv_type: KvType::F32, ..limits(&plan.kv) };
        let (one, several) = (Reference::new(1), ranks(n));
        let compile =
            |device: &dyn Device| device.compile(std::slice::from_ref(&plan), &limits).and_then(committed);
        let (mut whole, mut parts) = (compile(&one).unwrap(), compile(&several).unwrap());
        let agree = |whole: &[f32], parts: &[f32]| {
            !whole.is_empty()
                && whole.len() == parts.len()
                && whole.iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-3)
        };
        let mut sequences = Sequences::new(3, &plan.kv, &limits, 97);
        for spans in [&[(0, 30)][..], &[(0, 5), (1, 40)], &[(0, 1)], &[(0, 1), (1, 1)], &[(1, 17)]] {
            let step = sequences.step(spans);
            whole.run(&step.borrow()).unwrap();
            parts.run(&step.borrow()).unwrap();
            assert!(agree(whole.logits(), parts.logits()), "{n} ranks, {block}, {spans:?}");
            assert_eq!(chosen_tokens(whole.as_ref()), chosen_tokens(parts.as_ref()), "{spans:?}");
            // Every value that can be read equals the whole plan's, wherever its parts are.
            for id in (0..plan.values.len() as u32).map(device::ValueId) {
                let (Some(a), Some(b)) = (whole.read(id), parts.read(id)) else { continue };
                assert!(agree(&a, &b), "{n} ranks, {block}: {}", plan.value(id).name);
            }
        }
        let mut other = sequences.step(&[(0, 1)]);
        parts.run(&other.borrow()).unwrap();
        let before = parts.logits().to_vec();
        let (page, copy) = (other.page_tables[0], limits.n_pages[0] as u32 - 1);
        parts.copy_page(0, page, copy).unwrap();
        other.page_tables[0] = copy;
        parts.run(&other.borrow()).unwrap();
        assert!(parts.logits() == before, "after a page was copied");
    }
}

fn bytes(memory: &MemoryPlan, rank: &str, what: &str) -> u64 {
    let items = memory.items.iter().filter(|item| item.what.starts_with(rank) && item.what.contains(what));
    items.map(|item| item.bytes).sum()
}

/// Each rank allocates its part of the weights and pages, as its memory plan says.
#[test]
fn memory_is_divided() {
    let plan = mini_transformer(5, BlockType::Q4_0);
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let memory = ranks(2).memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
    let whole: usize = (0..plan.kv.groups.len())
        .map(|group| limits.n_pages[group] * plan.kv.page_bytes(group, limits.kv_type, limits.page_len))
        .sum();
    for rank in ["rank 0", "rank 1"] {
        assert_eq!(bytes(&memory, rank, "KV pages"), whole as u64 / 2, "{memory:?}");
        let all = plan.weights.iter().map(|weight| weight.n_bytes()).sum::<u64>();
        let embedding = plan.weights[0].n_bytes();
        let mine = bytes(&memory, rank, "weights");
        // The embedding and the head, of 97 rows, are whole.
        assert!(mine < (all - embedding) * 3 / 4 + embedding, "{mine} of {all}");
    }
    // Large weights that must be whole are noted.
    let mut b = PlanBuilder::new(1, 97);
    let x = b.embed(64);
    let x = b.linear(x, 98, BlockType::F32, false);
    let x = b.rms_norm(x, 98);
    let x = b.linear(x, 97, BlockType::F32, false);
    let plan = b.finish(x);
    let device = ranks(2);
    let memory = device.memory_plan(std::slice::from_ref(&plan), &device_testing::limits(&plan.kv)).unwrap();
    assert!(memory.notes.iter().any(|note| note.contains("whole on each of the 2 devices")), "{memory:?}");
}

#[test]
fn models_that_cannot_be_divided_are_refused() {
    let plan = mini_transformer(5, BlockType::F32);
    let limits = limits(&plan.kv);
    let error = ranks(3).compile(std::slice::from_ref(&plan), &limits).err().expect("4 heads on 3 ranks");
    let message = error.to_string();
    assert!(message.contains("2 KV heads on 3 devices (expected a multiple or a divisor of 3)"), "{message}");
    let error = ranks(8).compile(std::slice::from_ref(&plan), &limits).err().expect("4 heads on 8 ranks");
    assert!(error.to_string().contains("4 query heads on 8 devices (expected a multiple of 8)"), "{error}");
    let alone: Arc<dyn Device> = Arc::new(Reference::new(1));
    assert!(
        ParallelDevice::new(vec![alone.clone(), alone.clone()]).is_err(),
        "two devices that are no group"
    );

    // A collective needs a device of a group.
    let mut b = PlanBuilder::new(1, 97);
    let x = b.embed(64);
    let out = b.add(x, x);
    let logits = b.linear(out, 97, BlockType::F32, false);
    let mut plan: Plan = b.finish(logits);
    for node in &mut plan.nodes {
        if let Op::Add { a, out, .. } = node.op {
            node.op = Op::Collective { kind: device::CollectiveKind::AllReduce, x: a, out };
        }
    }
    let limits = device_testing::limits(&plan.kv);
    let error = alone.compile(std::slice::from_ref(&plan), &limits).err().expect("no group");
    assert!(error.to_string().contains("all_reduce"), "{error}");
}
