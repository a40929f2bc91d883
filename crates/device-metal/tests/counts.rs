//! Number of dispatches in a step, counted where they are encoded, however long the sequence and in
//! chains too. A dense model has at most 5 a layer and 3 more, a mixture of experts 8 a layer.
//! Steps of many rows have at most 13 a layer.
#![allow(clippy::unwrap_used)]

use device::{
    Activation, Choose, Device, KvLayer, KvType, Limits, Link, OutputRef, OwnedStep, Penalties, Plan,
    RopeStyle, Sampling, Slice, ValueId, Want,
};
use device_lower::fusion;
use device_testing::{
    AttentionOptions, Norms, PlanBuilder, Sequences, committed, layers_with_norms, limits, one_sequence,
};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::null::NullGpu;
use std::sync::atomic::Ordering::Relaxed;
use weights::BlockType;

const HIDDEN: usize = 64;

/// Norm, q, k, v, norms of heads, Rope, cache, attention, output, residual.
fn attention(
    b: &mut PlanBuilder,
    x: ValueId,
    [block, v_block]: [BlockType; 2],
    qk_norm: bool,
    is_last: bool,
) -> ValueId {
    let layer = b.kv_layer(KvLayer {
        n_kv_heads: 2,
        head_dim: 16,
        window: None,
        encoder_states: None,
        values_are_keys: false,
    });
    let residual = b.select_rows_of_last(x, is_last);
    let norm = b.rms_norm(x, HIDDEN);
    let mut q = b.linear(norm, 64, block, false);
    let mut k = b.linear(norm, 32, block, false);
    let v = b.linear(norm, 32, v_block, false);
    if qk_norm {
        q = b.rms_norm(q, 16);
        k = b.rms_norm(k, 16);
    }
    let q = b.rope(q, 16, 16, RopeStyle::Half);
    let k = b.rope(k, 16, 16, RopeStyle::Half);
    b.kv_write(k, v, layer);
    let y = b.attention(q, layer, 4, AttentionOptions::default());
    let y = b.select_rows_of_last(y, is_last);
    let y = b.linear(y, HIDDEN, block, false);
    b.add(residual, y)
}

fn dense(n_layers: u32, [block, v_block]: [BlockType; 2], qk_norm: bool, softcap: bool) -> Plan {
    let mut b = PlanBuilder::new(1, 97);
    let mut x = b.embed_from(HIDDEN, block, 1.0);
    for index in 0..n_layers {
        b.layer(Some(index));
        x = attention(&mut b, x, [block, v_block], qk_norm, index + 1 == n_layers);
        let norm = b.rms_norm(x, HIDDEN);
        let (gate, up) = (b.linear(norm, 128, block, false), b.linear(norm, 128, block, false));
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.linear(y, HIDDEN, block, false);
        x = b.add(x, y);
    }
    head(b, x, block, softcap)
}

fn mixture(n_layers: u32, block: BlockType) -> Plan {
    let mut b = PlanBuilder::new(1, 97);
    let mut x = b.embed_from(HIDDEN, block, 1.0);
    for index in 0..n_layers {
        b.layer(Some(index));
        x = attention(&mut b, x, [block; 2], true, index + 1 == n_layers);
        let norm = b.rms_norm(x, HIDDEN);
        let router = b.linear(norm, 9, BlockType::F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, false);
        let gate = b.expert_linear((norm, false), ids, (9, 64), block);
        let up = b.expert_linear((norm, false), ids, (9, 64), block);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (9, HIDDEN), block);
        let y = b.expert_sum(y, weights);
        x = b.add(x, y);
    }
    head(b, x, block, false)
}

fn head(mut b: PlanBuilder, x: ValueId, block: BlockType, softcap: bool) -> Plan {
    b.layer(None);
    let x = b.rms_norm(x, HIDDEN);
    let logits = b.linear(x, 97, block, false);
    let logits = if softcap { b.softcap(logits, 30.0) } else { logits };
    b.finish(logits)
}

/// Dispatches and barriers of a decode step, of a prompt's chunk, and of a decode step at a late
/// position.
fn counts(plan: &Plan) -> [(usize, usize); 3] {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let plan = fusion::fuse(plan, device.fusion());
    let long = device.profile().split_positions;
    let limits =
        Limits { kv_type: KvType::F16, max_rows: long, n_ctx: 2 * long, page_len: 64, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    let [decode, prefill, _, late] = [1, 50, long, 1].map(|n| {
        let step = sequences.step(&[(0, n)]).with_outputs(vec![n as u32 - 1], Want::BEST);
        device.gpu().take();
        program.run(&step.borrow()).unwrap();
        device.gpu().take()
    });
    [decode, prefill, late]
}

#[test]
fn a_dense_model_has_five_dispatches_a_layer_and_three_beside() {
    for qk_norm in [true, false] {
        // Files that mix types store v with more bits than q and k.
        for blocks in [[BlockType::Q4_0; 2], [BlockType::F16; 2], [BlockType::Q5_0, BlockType::Q8_0]] {
            // Bounded logits cost nothing more.
            let counts = [2, 5].map(|n| counts(&dense(n, blocks, qk_norm, qk_norm)));
            for (n, [decode, (prefill, _), long]) in [2, 5].into_iter().zip(counts) {
                for (dispatches, barriers) in [decode, long] {
                    assert!(dispatches <= 5 * n + 3, "{dispatches} dispatches of {n} layers");
                    // Each dispatch reads the result of the one before.
                    assert_eq!(barriers, dispatches - 1);
                }
                assert!(prefill <= 12 * n + 5, "{prefill} dispatches of {n} layers");
            }
            let a_layer = (counts[1][1].0 - counts[0][1].0) / 3;
            assert!(a_layer <= 12, "{a_layer} dispatches a layer for many rows");
            println!("{blocks:?}: decode {:?}, many rows {a_layer} a layer", counts[1][0]);
        }
    }
}

/// Dispatches and barriers of a decode step with this request, its token chosen by an earlier step.
fn wanting(want: Want) -> (usize, usize) {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let plan = fusion::fuse(&dense(2, [BlockType::Q4_0; 2], true, false), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let first = one_sequence(&plan, &limits, &[1], 0).with_outputs(vec![0], Want::BEST);
    let ticket = program.submit(&first.borrow()).unwrap();
    device.gpu().take();
    let step = OwnedStep {
        links: vec![Link { row: 0, from: OutputRef { ticket, output: 0 } }],
        recent: vec![1, 2],
        pending: vec![OutputRef { ticket, output: 0 }],
        ..one_sequence(&plan, &limits, &[1], 1).with_outputs(vec![0], want)
    };
    program.submit(&step.borrow()).unwrap();
    device.gpu().take()
}

/// After the head: the choice; with penalties one more. A linked token costs nothing.
#[test]
fn sampling_adds_a_dispatch_only_for_penalties() {
    let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.1, random: 0.5 };
    let sampled = Want { choose: Choose::Sample(sampling), ..Want::default() };
    let penalised = |want: Want| Want {
        penalties: Some(Penalties { repeat: 1.1, presence: 0.0, frequency: 0.0 }),
        recent: Slice { start: 0, len: 2 },
        pending: Slice { start: 0, len: 1 },
        ..want
    };
    // Embedding and head, 5 a layer, and one that chooses the token.
    let (greedy, barriers) = wanting(Want::BEST);
    assert!(greedy <= 5 * 2 + 3, "{greedy}");
    assert_eq!(wanting(sampled), (greedy, barriers));
    for want in [sampled, Want::BEST] {
        assert_eq!(wanting(penalised(want)), (greedy + 1, barriers + 1));
    }
    assert_eq!(wanting(Want::LOGITS), (greedy - 1, barriers - 1));
}

/// Each step is one submission, and waiting for one waits for no later one. Too many are refused,
/// and so is waiting out of turn. A failure ends the steps in flight, not the program.
#[test]
fn steps_are_waited_for_one_by_one() {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let plan = fusion::fuse(&dense(1, [BlockType::F16; 2], true, true), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let gpu = device.gpu();
    let most = device.profile().in_flight;
    assert_eq!(program.max_in_flight(), most);
    let step = one_sequence(&plan, &limits, &[1], 0).with_outputs(vec![0], Want::BEST);
    let linked = |ticket| OwnedStep {
        links: vec![Link { row: 0, from: OutputRef { ticket, output: 0 } }],
        ..step.clone()
    };
    let mut tickets = vec![program.submit(&step.borrow()).unwrap()];
    for index in 1..20 {
        if tickets.len() - gpu.waits.load(Relaxed) == most {
            assert!(program.submit(&step.borrow()).is_err(), "too many in flight");
            assert!(program.wait(tickets[index - 1]).is_err(), "out of turn");
            program.wait(tickets[gpu.waits.load(Relaxed)]).unwrap();
            assert_eq!(program.chosen().len(), 1);
            assert!(program.logits().is_empty(), "a later step writes them");
        }
        tickets.push(program.submit(&linked(tickets[index - 1]).borrow()).unwrap());
        assert_eq!(gpu.submissions.load(Relaxed), tickets.len());
        assert_eq!(gpu.waits.load(Relaxed), tickets.len().saturating_sub(most));
    }
    gpu.fails.store(true, Relaxed);
    let mut left = tickets[gpu.waits.load(Relaxed)..].iter();
    assert!(program.wait(*left.next().unwrap()).is_err());
    gpu.fails.store(false, Relaxed);
    assert!(program.submit(&linked(*tickets.last().unwrap()).borrow()).is_err(), "a link to what failed");
    left.for_each(|ticket| assert!(program.wait(*ticket).is_err(), "after a failure"));
    program.run(&step.borrow()).unwrap();
}

#[test]
fn a_mixture_of_experts_has_seven_dispatches_a_layer() {
    let counts = [2, 5].map(|n| counts(&mixture(n, BlockType::Q4_0)));
    for (n, [(decode, _), (prefill, _), (long, _)]) in [2, 5].into_iter().zip(counts) {
        assert!(decode <= 7 * n + 3 && long <= 7 * n + 3, "{decode} and {long} dispatches of {n} layers");
        assert!(prefill <= 11 * n + 6, "{prefill} dispatches of {n} layers");
    }
}

/// Norms after attention and network, of values and of whole rows cost no dispatch with one row.
/// With many rows they cost one for each part of a layer, which computes the norms before the next
/// part too. Next to a dense network, experts cost no more than in its place. A layer's own input
/// costs its two products. Reading what another layer wrote costs as much as writing. A shared
/// expert costs one dispatch more than the chosen ones. A prompt has one output row, so all
/// commands after the last attention have one row. Its selection is two dispatches, and one for
/// inputs.
#[test]
fn what_stands_behind_and_beside_costs_few_dispatches() {
    for block in [BlockType::Q4_0, BlockType::F16, BlockType::Q8_0] {
        for (norms, a_layer, a_layer_of_many, beside_many) in [
            (Norms::Around, 5, 8, 6),
            (Norms::After, 5, 8, 5),
            (Norms::AroundExperts, 8, 13, 4),
            (Norms::AroundInputs, 7, 11, 8),
            (Norms::SharedExpert, 8, 13, 2),
        ] {
            let counts = [2, 5].map(|n| counts(&layers_with_norms(3, n, HIDDEN, block, norms)));
            for (n, [decode, (prefill, _), long]) in [2, 5].into_iter().zip(counts) {
                for (dispatches, barriers) in [decode, long] {
                    // The inputs of all layers are made before the first one.
                    let beside = if norms == Norms::AroundInputs { 4 } else { 3 };
                    assert_eq!(dispatches, a_layer * n + beside, "{norms:?} {block} of {n} layers");
                    assert!(barriers < dispatches);
                }
                assert_eq!(
                    prefill,
                    a_layer_of_many * n + beside_many,
                    "{norms:?} {block} of {n} layers, many rows"
                );
            }
        }
    }
}

/// Loading compiles the kernels of a single row. The first step with another number of rows
/// compiles the kernels of that number. Each file and kernel is compiled once, and tables that name
/// no new kernel compile nothing.
#[test]
fn kernels_are_compiled_when_a_step_first_needs_them() {
    let device = MetalDevice::new(NullGpu::new("Apple M4 Pro"));
    let plan = fusion::fuse(&dense(2, [BlockType::Q4_0; 2], true, true), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut program = compile();
    let gpu = device.gpu();
    let compiled = || gpu.pipelines.swap(0, Relaxed);
    let of_one = compiled();
    assert!((5..=13).contains(&of_one), "{of_one}");
    let files = std::mem::take(&mut *gpu.prepared.lock().unwrap());
    assert!(
        files
            .iter()
            .all(|file| ["q4_0", "attention.metal", "argmax", "sampling"].iter().any(|of| file.contains(of))),
        "{files:?}"
    );
    let step = |n: u32| one_sequence(&plan, &limits, &(0..n).collect::<Vec<_>>(), 0);
    program.run(&step(1).borrow()).unwrap();
    assert_eq!(compiled(), 0);
    program.run(&step(40).borrow()).unwrap();
    assert!(compiled() > 5);
    program.run(&step(40).borrow()).unwrap();
    program.run(&step(50).borrow()).unwrap();
    assert_eq!(compiled(), 0);
}

/// A request for tensor units is an error, not another path, if shaders are not compiled for them.
#[test]
fn tensor_units_that_are_not_there_are_an_error() {
    let gpu = NullGpu::new("Apple M5");
    let profile = ingle_device_metal::Profile::new(ingle_device_metal::gpu::Gpu::facts(&gpu));
    let device = MetalDevice::with_profile(gpu, ingle_device_metal::Profile { tensor: true, ..profile });
    let plan = fusion::fuse(&dense(1, [BlockType::Q4_0; 2], true, true), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    let error = device.compile(std::slice::from_ref(&plan), &limits).err().unwrap().to_string();
    assert!(error.contains("tensor units") && error.contains("--tensors"), "{error}");
}
