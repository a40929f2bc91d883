//! The common checks of devices, on layers and experts split over two devices; and the models that
//! such a device refuses.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::sync::Arc;

use device::{
    Activation, Device, Error, KvLayer, KvType, Limits, Op, Plan, Program, RopeStyle, RouterGroups, Timing,
    ValueId, WeightId,
};
use device_cpu::{CpuDevice, Options};
use device_reference::Reference;
use device_testing::{
    AttentionOptions, PlanBuilder, Sequences, check_commits, check_steps, chosen_tokens, committed, limits,
    mini_transformer, truncate,
};
use ingle_device_split::{Share, SplitDevice};
use weights::BlockType;

fn reference() -> Arc<dyn Device> {
    Arc::new(Reference::new(1))
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).expect("a CPU"))
}

fn split(first: Arc<dyn Device>, second: Arc<dyn Device>) -> SplitDevice {
    sharing(first, second, Share { n_layers: 2, first_layers: 1, expert_layers: 0 })
}

fn sharing(first: Arc<dyn Device>, second: Arc<dyn Device>, share: Share) -> SplitDevice {
    SplitDevice::new(first, second, share).expect("two devices")
}

/// Output of the last Op of a layer that satisfies `is`.
fn of_layer(plan: &Plan, layer: u32, is: fn(&Op) -> bool) -> ValueId {
    let at = plan.nodes.iter().rposition(|node| node.layer == Some(layer) && is(&node.op));
    plan.nodes[at.expect("such a node")].op.writes()[0]
}

/// A mixture of four layers with different routers and experts. Nodes between the experts' products
/// depend on them or not. The second layer's keys are windowed, heads of all layers are multiplied
/// by matrices of their own, and the last layer computes output rows only.
fn mixture(seed: u64, block: BlockType) -> Plan {
    const HIDDEN: usize = 64;
    const N_EXPERTS: usize = 6;
    let mut b = PlanBuilder::new(seed, 97);
    let mut x = b.embed(HIDDEN);
    let heads = b.ordinals(4);
    for index in 0..4 {
        b.layer(Some(index));
        let window = (index == 1).then_some(20);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: 2,
            head_dim: 16,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let is_last = index == 3;
        let norm = b.rms_norm(x, HIDDEN);
        let q = b.linear(norm, HIDDEN, block, false);
        let q = b.expert_linear((q, true), heads, (4, 16), BlockType::F32);
        let [k, v] = [(); 2].map(|()| b.linear(norm, 32, block, false));
        let q = b.rope(q, 16, 16, RopeStyle::Half);
        let k = b.rope(k, 16, 16, RopeStyle::Half);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 4, AttentionOptions { window, ..AttentionOptions::default() });
        let [y, residual] = [y, x].map(|value| b.select_rows_of_last(value, is_last));
        let y = b.linear(y, HIDDEN, block, false);
        x = b.add(residual, y);
        let norm = b.rms_norm(x, HIDDEN);
        let router = b.linear(norm, N_EXPERTS, BlockType::F32, false);
        let experts = |b: &mut PlanBuilder, (x, own): (ValueId, bool), ids: ValueId| {
            b.expert_linear((x, own), ids, (N_EXPERTS, HIDDEN), block)
        };
        let shared_open = b.linear(norm, 1, BlockType::F32, false);
        x = match index {
            // Experts only.
            0 => {
                let (ids, weights) = b.route(router, 3, true, 1.0, true);
                let [gate, up] = [(); 2].map(|()| experts(&mut b, (norm, false), ids));
                let y = b.gate(gate, up, Activation::Silu);
                let y = experts(&mut b, (y, true), ids);
                let y = b.expert_sum(y, weights);
                b.add(x, y)
            }
            // A shared network between the products of experts; one part of it needs the first
            // experts' result.
            1 => {
                let groups = RouterGroups { n: 2, n_used: 1, n_best: 2 };
                let (ids, weights) = b.route_by_sigmoids(router, 2, Some(groups));
                let up = experts(&mut b, (norm, false), ids);
                let inner = b.activate(up, Activation::ReluSquared);
                let shared = b.linear(norm, HIDDEN, block, false);
                let open = b.activate(shared_open, Activation::Sigmoid);
                let shared = b.expert_sum(shared, open);
                let beside = b.linear(inner, HIDDEN, block, false);
                x = b.add(x, shared);
                let y = experts(&mut b, (inner, true), ids);
                let y = b.expert_sum(y, weights);
                let y = b.add(y, beside);
                b.add(x, y)
            }
            // Biases and clamped gates; the input of the experts is computed after their choice.
            2 => {
                let (ids, weights) = b.route(router, 2, false, 0.7, false);
                let norm = b.rms_norm(x, HIDDEN);
                let [gate, up] = [(); 2].map(|()| experts(&mut b, (norm, false), ids));
                let [gate, up] = [gate, up].map(|y| b.expert_bias(y, ids, N_EXPERTS));
                let y = b.gate_clamped(gate, up, 1.702, 7.0);
                let y = experts(&mut b, (y, true), ids);
                let y = b.expert_bias(y, ids, N_EXPERTS);
                let y = b.expert_sum(y, weights);
                b.add(x, y)
            }
            // One expert, which weights its input.
            _ => {
                let (ids, weights) = b.route(router, 1, false, 1.0, false);
                let y = b.expert_sum(norm, weights);
                let [gate, up] = [(); 2].map(|()| experts(&mut b, (y, false), ids));
                let y = b.gate(gate, up, Activation::GeluTanh);
                let y = experts(&mut b, (y, true), ids);
                b.add(x, y)
            }
        };
    }
    b.layer(None);
    let x = b.rms_norm(x, HIDDEN);
    let logits = b.linear(x, 97, block, false);
    let mut plan = b.finish(logits);
    // The residual stream after the first layer, with a row for each token, and the result of
    // experts in the middle of the second.
    plan.kept = vec![
        of_layer(&plan, 0, |op| matches!(op, Op::Add { .. })),
        of_layer(&plan, 1, |op| matches!(op, Op::ExpertLinear { .. })),
    ];
    plan.check().expect("a plan");
    plan
}

/// Shares: experts of all layers; of some; of all, and the first layer as a whole; layers alone.
const SHARES: [Share; 4] = [
    Share { n_layers: 4, first_layers: 0, expert_layers: 4 },
    Share { n_layers: 4, first_layers: 0, expert_layers: 2 },
    Share { n_layers: 4, first_layers: 1, expert_layers: 4 },
    Share { n_layers: 4, first_layers: 2, expert_layers: 0 },
];

fn compile(device: &dyn Device, plan: &Plan, limits: &Limits) -> Box<dyn Program> {
    device.compile(std::slice::from_ref(plan), limits).and_then(committed).expect("a program")
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

#[test]
fn logits_are_those_of_one_device() {
    same_logits(&mini_transformer(5, BlockType::Q4_0), &split(reference(), reference()));
    let plan = mixture(5, BlockType::Q4_0);
    for share in SHARES {
        same_logits(&plan, &sharing(reference(), reference(), share));
    }
}

/// Prompts in chunks, several sequences and single tokens, past the window. The logits equal one
/// device's, bit by bit if both devices are alike.
fn same_logits(plan: &Plan, split: &SplitDevice) {
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let (mut whole, mut parts) =
        (compile(reference().as_ref(), plan, &limits), compile(split, plan, &limits));
    let mut sequences = Sequences::new(3, &plan.kv, &limits, 97);
    for spans in [&[(0, 30)][..], &[(0, 5), (1, 40)], &[(0, 1)], &[(0, 1), (1, 1)], &[(1, 17)]] {
        let step = sequences.step(spans);
        whole.run(&step.borrow()).unwrap();
        parts.run(&step.borrow()).unwrap();
        assert!(!whole.logits().is_empty() && whole.logits() == parts.logits(), "{spans:?}");
        for index in 0..plan.kept.len() {
            assert!(!whole.kept(index).is_empty() && whole.kept(index) == parts.kept(index), "{spans:?}");
        }
        assert_eq!(chosen_tokens(whole.as_ref()), chosen_tokens(parts.as_ref()), "{spans:?}");
    }
    // A copied page holds both devices' layers.
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

/// Experts on the CPU beside an interpreter. The bound is the one for cut layers, because the CPU
/// multiplies F32 in f32.
#[test]
fn experts_on_the_cpu_agree() {
    let plan = mixture(9, BlockType::F32);
    let limits = Limits { kv_type: KvType::F32, ..limits(&plan.kv) };
    for share in SHARES {
        let mut whole = compile(reference().as_ref(), &plan, &limits);
        let mut parts = compile(&sharing(cpu(), reference(), share), &plan, &limits);
        let mut sequences = Sequences::new(3, &plan.kv, &limits, 97);
        for spans in [&[(0, 30)][..], &[(0, 1)], &[(0, 1), (1, 9)], &[(0, 1), (1, 1)]] {
            let step = sequences.step(spans);
            whole.run(&step.borrow()).unwrap();
            parts.run(&step.borrow()).unwrap();
            let pairs = || whole.logits().iter().zip(parts.logits());
            let largest = whole.logits().iter().fold(1.0, |most: f32, x| most.max(x.abs()));
            let worst = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
            assert!(pairs().count() > 0 && worst < 2e-4, "{share:?}, {spans:?}: {worst}");
        }
    }
}

/// After any node of a mixture, values equal one device's; commands name the nodes that they
/// compute, and each is timed.
#[test]
fn segments_can_be_stopped_read_and_timed() {
    let plan = mixture(7, BlockType::F32);
    let limits = Limits { kv_type: KvType::F32, ..limits(&plan.kv) };
    for share in SHARES {
        let mut whole = compile(reference().as_ref(), &plan, &limits);
        let mut parts = compile(&sharing(reference(), reference(), share), &plan, &limits);
        let step = Sequences::new(3, &plan.kv, &limits, 97).step(&[(0, 5), (1, 3)]);
        for (index, node) in plan.nodes.iter().enumerate() {
            whole.run_until(&step.borrow(), index).unwrap();
            parts.run_until(&step.borrow(), index).unwrap();
            for id in node.op.writes() {
                let (found, name) = (parts.read(id), &plan.value(id).name);
                assert!(found.is_some(), "{share:?}, node {index}: {name} cannot be read");
                assert_eq!(found, whole.read(id), "{share:?}, node {index}: {name}");
            }
        }
        assert!(parts.read(ValueId(plan.values.len() as u32)).is_none());

        let mut timings: Vec<Timing> = Vec::new();
        parts.run_timed(&step.borrow(), &mut timings).unwrap();
        let commands = parts.commands(0, step.tokens.len());
        assert_eq!(timings.iter().map(|t| t.command).collect::<Vec<_>>(), Vec::from_iter(0..commands.len()));
        assert!(timings.windows(2).all(|pair| pair[0].start <= pair[1].start));
        let mut computed = vec![false; plan.nodes.len()];
        for command in &commands {
            let op = &plan.nodes[command.node].op;
            computed[command.node] |= command.kernel.split("_f32").next() == Some(&op.kind().to_string());
        }
        assert!(computed.iter().all(|done| *done), "{share:?}: {computed:?}");
    }
}

/// The first device has the experts' matrices only, and no pages.
#[test]
fn experts_are_planned_on_their_device() {
    let plan = mixture(5, BlockType::Q4_0);
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let device = sharing(cpu(), reference(), SHARES[0]);
    let memory = device.memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
    let bytes = |what: &str| {
        let items = memory.items.iter().filter(|item| item.what.starts_with(what));
        items.map(|item| item.bytes).sum::<u64>()
    };
    let routed =
        plan.primitives().filter_map(|op| if let Op::Route { ids, .. } = op { Some(ids) } else { None });
    let routed: Vec<&ValueId> = routed.collect();
    let of_experts = |op: &&Op| match op {
        Op::ExpertLinear { ids, .. } | Op::ExpertBias { ids, .. } | Op::Route { ids, .. } => {
            routed.contains(&ids)
        }
        _ => false,
    };
    let sum = |weights: Vec<WeightId>| weights.into_iter().map(|id| plan.weight(id).n_bytes()).sum::<u64>();
    let experts = sum(plan.primitives().filter(of_experts).flat_map(Op::weights).collect());
    let whole: u64 = plan.weights.iter().map(|weight| weight.n_bytes()).sum();
    let on_cpu = bytes("cpu: weights in memory");
    assert_eq!(on_cpu, experts, "{memory:?}");
    assert_eq!(bytes("reference: weights") + on_cpu, whole, "every weight is on one device");
    assert!(bytes("cpu: KV pages") == 0 && bytes("reference: KV pages") > 0, "{memory:?}");
    assert!(memory.notes.iter().any(|note| note.contains("the experts of layers 0 to 3")), "{memory:?}");

    // The KV type may therefore be one that only the second device has.
    assert!(!cpu().kv_types().contains(&KvType::Fp8) && device.kv_types().contains(&KvType::Fp8));
    compile(&device, &plan, &Limits { kv_type: KvType::Fp8, ..limits });
    assert!(!sharing(cpu(), reference(), SHARES[2]).kv_types().contains(&KvType::Fp8));
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
fn plans_that_cannot_be_cut_are_refused() {
    let refused = |device: Result<SplitDevice, Error>| match device {
        Err(Error::Unsupported { what, .. }) => what,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    };
    let one = |first_layers, n_layers| {
        SplitDevice::new(reference(), cpu(), Share { n_layers, first_layers, expert_layers: 0 })
    };
    assert!(refused(one(0, 2)).contains("0 of 2 layers"));
    assert!(refused(one(2, 2)).contains("2 of 2 layers"));

    // Layers that share a router's choice cannot be on two devices.
    let mut plan = mixture(5, BlockType::F32);
    let chosen = plan.nodes.iter().position(|node| matches!(node.op, Op::Route { .. })).expect("a router");
    plan.nodes[..=chosen].iter_mut().for_each(|node| node.layer = Some(0));
    plan.nodes[chosen + 1..].iter_mut().for_each(|node| node.layer = Some(1));
    let device = split(reference(), cpu());
    let limits = limits(&plan.kv);
    let error = device.compile(&[plan], &limits).err().expect("ids between the devices");
    assert!(
        error.to_string().contains("between the devices") && error.to_string().contains("U32"),
        "{error}"
    );
}

/// A plan with all nodes on one device, alone and beside a plan that needs both devices.
#[test]
fn a_plan_may_need_one_device_only() {
    let plan = mini_transformer(5, BlockType::F32);
    let early = plan.nodes.iter().find(|node| node.layer == Some(0)).expect("a layer");
    let short: Plan = truncate(&plan, early.op.writes()[0]).expect("a shorter plan");
    let limits = limits(&plan.kv);
    let device = split(reference(), reference());
    let mut alone = compile(&device, &short, &limits);
    let mut both = device.compile(&[plan, short.clone()], &limits).and_then(committed).unwrap();
    let mut whole = compile(reference().as_ref(), &short, &limits);
    let mut step = Sequences::new(3, &short.kv, &limits, 64).step(&[(0, 5), (1, 3)]);
    whole.run(&step.borrow()).unwrap();
    alone.run(&step.borrow()).unwrap();
    step.plan = 1;
    both.run(&step.borrow()).unwrap();
    assert!(!whole.logits().is_empty() && whole.logits() == alone.logits());
    assert!(whole.logits() == both.logits());
}
