//! What a program promises beside the numbers, on the emulated GPU: orders of lanes and of the dispatches between two barriers
//! change no bit; deterministic rows do not depend on their company; chains give what steps give; bad steps are refused.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::testing::{Sequences, check_op_cases, compare_chunks, limits, mini_transformer, one_sequence};
use device::{
    Device, KvType, Limits, Numerics, OpKind, OwnedStep, PAGE_NONE, Penalties, Plan, Program, Sampling, Want,
    fusion,
};
use engine::sampling::{Sampler, SamplingParams, Scratch};
use formats::BlockType;
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use metal_emulator::LaneOrder;

fn device_in(order: LaneOrder) -> MetalDevice<EmulatedGpu> {
    let options = Options { order, ..Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders")) };
    MetalDevice::new(EmulatedGpu::new(&options).unwrap())
}

fn device() -> MetalDevice<EmulatedGpu> {
    device_in(LaneOrder::Forward)
}

fn fused(device: &dyn Device, block: BlockType) -> (Plan, Limits) {
    let plan = fusion::fuse(&mini_transformer(3, block), device.fusion());
    let limits = Limits { kv_type: KvType::F16, ..limits(&plan.kv) };
    (plan, limits)
}

fn bits(program: &dyn Program) -> Vec<u32> {
    program.logits().iter().map(|v| v.to_bits()).collect()
}

/// Lanes, threadgroups and the dispatches of a group in any order: a race, or a barrier that is missing, would show.
#[test]
fn no_order_changes_a_bit() {
    let mut first = None;
    for order in [LaneOrder::Forward, LaneOrder::Reverse, LaneOrder::Random(7)] {
        let device = device_in(order);
        let (plan, limits) = fused(&device, BlockType::Q4_0);
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let mut all = Vec::new();
        for spans in [&[(0, 40), (1, 3)][..], &[(0, 1), (1, 1)], &[(1, 1)], &[(0, 5)]] {
            program.run(&sequences.step(spans).borrow()).unwrap();
            all.push(bits(&*program));
        }
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{order:?}");
    }
}

#[test]
fn a_chain_gives_the_tokens_of_single_steps() {
    let device = device();
    for block in [BlockType::F16, BlockType::Q4_0] {
        let (plan, limits) = fused(&device, block);
        let compile = || device.compile(std::slice::from_ref(&plan), &limits).unwrap();
        let (mut single, mut chained) = (compile(), compile());
        let prompt: Vec<u32> = (0..19).collect();
        let mut expected = vec![];
        single.run(&one_sequence(&plan, &limits, &prompt, 0).borrow()).unwrap();
        let mut token = single.argmax()[0];
        let first = token;
        for position in 19..33 {
            single.run(&one_sequence(&plan, &limits, &[token], position).borrow()).unwrap();
            token = single.argmax()[0];
            expected.push(token);
        }
        chained.run(&one_sequence(&plan, &limits, &prompt, 0).borrow()).unwrap();
        assert_eq!(chained.argmax()[0], first);
        // A chain that is stopped early, and one to its end.
        chained.start_chain(&one_sequence(&plan, &limits, &[first], 19).borrow(), 9, None).unwrap();
        let mut found: Vec<u32> = (0..5).map(|_| chained.next_chained().unwrap().unwrap()).collect();
        chained.stop_chain().unwrap();
        assert_eq!(chained.next_chained().unwrap(), None);
        chained.start_chain(&one_sequence(&plan, &limits, &found[4..], 24).borrow(), 9, None).unwrap();
        while let Some(token) = chained.next_chained().unwrap() {
            found.push(token);
        }
        assert_eq!(found, expected, "{block}");
        assert_eq!(bits(&*chained), bits(&*single), "the last step's logits");
    }
}

#[test]
fn chains_that_cannot_be_are_refused() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::F32);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let good = one_sequence(&plan, &limits, &[1], 0);
    assert!(program.most_chained(None) >= 64);
    let mut refused =
        |step: &OwnedStep, n: usize| assert!(program.start_chain(&step.borrow(), n, None).is_err());
    refused(&good, 0);
    refused(&good, 1 << 20);
    refused(&one_sequence(&plan, &limits, &[1, 2], 0), 4);
    refused(&OwnedStep { want: Want::Logits, ..good.clone() }, 4);
    refused(&one_sequence(&plan, &limits, &[1], 510), 4);
    let mut short = good.clone();
    short.page_tables[1] = PAGE_NONE;
    refused(&short, 40);
    program.run(&good.borrow()).unwrap();
}

/// Chunked or whole, alone or not: deterministic numerics give the same bits.
#[test]
fn deterministic_steps_do_not_depend_on_their_company() {
    let device = device();
    let wanted = |kind: OpKind, name: &str| match kind {
        OpKind::Linear => name.contains("33x"),
        OpKind::Fused => name.contains("two layers") || name.contains("mixture"),
        OpKind::Attention => name.contains("2x3x32") || name.contains("shared"),
        _ => false,
    };
    let of_blocks = [BlockType::F32, BlockType::Q4_0, BlockType::Q6_K];
    let mut n_cases = 0;
    for mut case in check_op_cases() {
        if wanted(case.kind, &case.name)
            && of_blocks.contains(&case.block)
            && matches!(case.limits.kv_type, KvType::F32 | KvType::F16)
        {
            case.limits.numerics = Numerics::Deterministic;
            compare_chunks(&device, &case, 0.0).unwrap();
            n_cases += 1;
        }
    }
    assert!(n_cases > 5, "{n_cases}");
}

#[test]
fn pages_that_were_copied_or_read_serve_elsewhere() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::Q8_0);
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let (mut first, mut second) = (compile(), compile());
    let tokens: Vec<u32> = (0..20).collect();
    first.run(&one_sequence(&plan, &limits, &tokens, 0).borrow()).unwrap();
    for group in 0..plan.kv.groups.len() {
        for page in 0..2 {
            let mut bytes = vec![0; plan.kv.page_bytes(group, limits.kv_type, limits.page_len)];
            first.read_page(group, page, &mut bytes).unwrap();
            assert!(bytes.iter().any(|b| *b != 0));
            second.write_page(group, page, &bytes).unwrap();
            first.copy_page(group, page, 40 + page).unwrap();
            first.release_page(group, page);
            assert!(first.read_page(group, page, &mut bytes[1..]).is_err());
            assert!(second.write_page(9, page, &bytes).is_err());
            assert!(first.copy_page(group, page, 1 << 20).is_err());
        }
    }
    let next = one_sequence(&plan, &limits, &[7], 20);
    first.run(&next.borrow()).unwrap();
    second.run(&next.borrow()).unwrap();
    assert_eq!(bits(&*second), bits(&*first));
    let mut moved = next.clone();
    for table in moved.page_tables.chunks_mut(next.pages_per_table) {
        (table[0], table[1]) = (40, 41);
    }
    first.run(&moved.borrow()).unwrap();
    assert_eq!(bits(&*first), bits(&*second));
}

#[test]
fn steps_that_would_leave_the_buffers_are_errors() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::F32);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let good = one_sequence(&plan, &limits, &[1, 2, 3], 0);
    program.run(&good.borrow()).unwrap();
    type Spoil<'a> = (&'a str, &'a dyn Fn(&mut OwnedStep));
    let spoil: [Spoil; 6] = [
        ("token", &|s| s.tokens[1] = 1 << 20),
        ("output", &|s| s.outputs = vec![3]),
        ("page", &|s| s.page_tables[0] = 1000),
        ("no page", &|s| s.page_tables[0] = PAGE_NONE),
        ("position", &|s| s.spans[0].first_position = 511),
        ("rows", &|s| s.spans[0].n_rows = 2),
    ];
    for (what, spoil) in spoil {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(program.run(&bad.borrow()).is_err(), "{what}");
        program.run(&good.borrow()).unwrap();
    }
    for tokens in [&[1, 2, 3][..], &[4]] {
        let quiet = OwnedStep { outputs: vec![], ..one_sequence(&plan, &limits, tokens, 0) };
        program.run(&quiet.borrow()).unwrap();
        assert!(program.logits().is_empty() && program.argmax().is_empty());
    }
    let empty = OwnedStep { tokens: vec![], spans: vec![], outputs: vec![], ..good };
    program.run(&empty.borrow()).unwrap();
}

/// Weights of a mapped file are used where they lie; what is not aligned is copied, and the memory plan says so.
#[test]
fn the_memory_plan_says_what_is_copied() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::Q4_0);
    let memory = device.memory_plan(std::slice::from_ref(&plan), &limits).unwrap();
    let item = |what: &str| memory.items.iter().find(|item| item.what == what).map(|item| item.bytes);
    // The test's weights are in memory, not in a file.
    assert!(item("weights, copied").unwrap() >= plan.weights.iter().map(|w| w.n_bytes()).sum::<u64>());
    assert!(item("activations").is_some() && item("KV pages").is_some());
}

/// A chain chooses, takes over and counts as single steps with the same random numbers and penalties do, whatever the order of
/// lanes and the lengths of the chains.
#[test]
fn sampled_chains_choose_what_single_steps_choose() {
    let params = SamplingParams {
        temperature: 1.5,
        top_k: 30,
        top_p: 0.95,
        min_p: 0.01,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        penalty_window: 12,
        seed: Some(3),
        ..SamplingParams::default()
    };
    let greedy = SamplingParams { temperature: 0.0, ..params.clone() };
    for order in [LaneOrder::Forward, LaneOrder::Reverse, LaneOrder::Random(7)] {
        let device = device_in(order);
        let (plan, limits) = fused(&device, BlockType::Q4_0);
        let n_vocab = plan.value(plan.logits).cols;
        let compile = || device.compile(std::slice::from_ref(&plan), &limits).unwrap();
        let prompt: Vec<u32> = (0..19).collect();
        for params in [&params, &greedy] {
            let (mut single, mut chained) = (compile(), compile());
            let mut scratch = Scratch::new(n_vocab);
            let mut sampler = Sampler::new(params, n_vocab).unwrap();
            let mut tokens = prompt.clone();
            let mut first = 0;
            for _ in 0..14 {
                let step = one_sequence(&plan, &limits, &tokens[first..], first as u32);
                single.run(&step.borrow()).unwrap();
                first = tokens.len();
                let choice = sampler.sample(single.logits_mut(), &tokens, &mut scratch).unwrap();
                tokens.push(choice.id);
            }
            let mut sampler = Sampler::new(params, n_vocab).unwrap();
            let step = one_sequence(&plan, &limits, &prompt[..18], 0);
            chained.run(&step.borrow()).unwrap();
            let mut found = prompt.clone();
            for n_taken in [3, 11] {
                let last = found.len() - 1;
                let step = one_sequence(&plan, &limits, &found[last..], last as u32);
                let before = found.clone();
                let sampling = sampler.ahead(&before, &mut scratch).unwrap();
                assert!(chained.most_chained(Some(&sampling)) >= 64);
                chained.start_chain(&step.borrow(), 11, Some(&sampling)).unwrap();
                for _ in 0..n_taken {
                    found.push(chained.next_chained().unwrap().unwrap());
                    sampler.took_one();
                }
                chained.stop_chain().unwrap();
            }
            assert_eq!(found, tokens, "{order:?} {params:?}");
        }
    }
}

#[test]
fn samplings_that_cannot_be_are_refused() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::F32);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let step = one_sequence(&plan, &limits, &[1], 0);
    let long = vec![1; 1 << 14];
    let penalties = Penalties { repeat: 1.1, presence: 0.0, frequency: 0.0, window: 0, recent: &[1] };
    let good = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        penalties: Some(penalties),
        randoms: &[0.5; 4],
    };
    let too_long = Sampling { penalties: Some(Penalties { recent: &long, ..penalties }), ..good };
    assert_eq!(program.most_chained(Some(&too_long)), 0);
    let mut start =
        |sampling: &Sampling, n: usize| program.start_chain(&step.borrow(), n, Some(sampling)).is_ok();
    assert!(!start(&too_long, 4));
    assert!(!start(&good, 5));
    assert!(!start(&Sampling { temperature: 0.0, ..good }, 4));
    assert!(!start(&Sampling { penalties: Some(Penalties { recent: &[1 << 20], ..penalties }), ..good }, 4));
    assert!(start(&good, 4));
}
