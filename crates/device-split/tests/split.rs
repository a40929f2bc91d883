//! What every device is tested with, of layers on two devices; and what such a model is refused for.

use std::sync::Arc;

use device::{Device, Error, KvType, Limits, Plan};
use device_cpu::{CpuDevice, Options};
use device_reference::Reference;
use device_testing::{
    Sequences, check_commits, check_steps, chosen_tokens, committed, limits, mini_transformer, truncate,
};
use ingle_device_split::SplitDevice;
use weights::BlockType;

fn reference() -> Arc<dyn Device> {
    Arc::new(Reference::new(1))
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).expect("a CPU"))
}

fn split(first: Arc<dyn Device>, second: Arc<dyn Device>) -> SplitDevice {
    SplitDevice::new(first, second, 1, 2).expect("two devices")
}

#[test]
fn steps_keep_what_devices_promise() {
    for (first, second) in [(reference(), reference()), (cpu(), reference()), (reference(), cpu())] {
        let device = split(first, second);
        // The CPU multiplies F32 in f32.
        let values = check_steps(&device, 2e-4).unwrap_or_else(|e| panic!("{}: {e}", device.describe()));
        assert!(values.n_read > 0);
        check_commits(&device).unwrap();
    }
}

/// Prompts in chunks, several sequences and single tokens, past the window: as one device computes them, to the bit where it is the same.
#[test]
fn logits_are_those_of_one_device() {
    let plan = mini_transformer(5, BlockType::Q4_0);
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let split = split(reference(), reference());
    let compile =
        |device: &dyn Device| device.compile(std::slice::from_ref(&plan), &limits).and_then(committed);
    let (mut whole, mut parts) = (compile(reference().as_ref()).unwrap(), compile(&split).unwrap());
    let mut sequences = Sequences::new(3, &plan.kv, &limits, 97);
    for spans in [&[(0, 30)][..], &[(0, 5), (1, 40)], &[(0, 1)], &[(0, 1), (1, 1)], &[(1, 17)]] {
        let step = sequences.step(spans);
        whole.run(&step.borrow()).unwrap();
        parts.run(&step.borrow()).unwrap();
        assert!(!whole.logits().is_empty() && whole.logits() == parts.logits(), "{spans:?}");
        assert_eq!(chosen_tokens(whole.as_ref()), chosen_tokens(parts.as_ref()), "{spans:?}");
    }
    // A page that is copied has both devices' layers.
    let mut other = sequences.step(&[(0, 1)]);
    whole.run(&other.borrow()).unwrap();
    let (page, copy) = (other.page_tables[0], limits.n_pages[0] as u32 - 1);
    for program in [&mut whole, &mut parts] {
        program.copy_page(0, page, copy).unwrap();
    }
    other.page_tables[0] = copy;
    parts.run(&other.borrow()).unwrap();
    assert!(whole.logits() == parts.logits(), "after a page was copied");
}

#[test]
fn both_devices_memory_is_planned() {
    let plan = mini_transformer(5, BlockType::Q4_0);
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let device = split(cpu(), reference());
    let memory = device.memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
    let of = |prefix: &str| {
        let items = memory.items.iter().filter(|item| item.what.starts_with(prefix));
        items.map(|item| item.bytes).sum::<u64>()
    };
    let pages = |prefix: &str| {
        let items = memory.items.iter().filter(|item| item.what.starts_with(&format!("{prefix}: KV pages")));
        items.map(|item| item.bytes).sum::<u64>()
    };
    assert!(of("cpu: ") > 0 && of("reference: ") > 0, "{memory:?}");
    let whole: usize = (0..plan.kv.groups.len())
        .map(|group| limits.n_pages[group] * plan.kv.page_bytes(group, limits.kv_type, limits.page_len))
        .sum();
    assert_eq!(pages("cpu") + pages("reference"), whole as u64, "every layer's pages are on one device");
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let refused = |device: Result<SplitDevice, Error>| match device {
        Err(Error::Unsupported { what, .. }) => what,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    };
    let one = |first, n| SplitDevice::new(reference(), cpu(), first, n);
    assert!(refused(one(0, 2)).contains("0 of 2 layers"));
    assert!(refused(one(2, 2)).contains("2 of 2 layers"));

    // A plan that ends within its first layer has nothing for the second device, and shares pages with one that has.
    let plan = mini_transformer(5, BlockType::F32);
    let early = plan.nodes.iter().find(|node| node.layer == Some(0)).expect("a layer");
    let short: Plan = truncate(&plan, early.op.writes()[0]).expect("a shorter plan");
    let limits = limits(&plan.kv);
    let device = split(reference(), cpu());
    assert!(device.compile(std::slice::from_ref(&short), &limits).is_ok(), "on the second device alone");
    let error = device.compile(&[plan, short], &limits).err().expect("nothing to cut");
    assert!(error.to_string().contains("without layers before and after layer 1"), "{error}");
}
