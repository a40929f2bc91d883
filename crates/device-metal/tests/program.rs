//! Promises of a program other than its numbers, on the emulated GPU. Orders of lanes, and of the
//! dispatches between two barriers, change no bit. Deterministic rows do not depend on the other
//! rows of their step. Steps in flight have the results of steps one by one. The outputs of nodes
//! can be read. Bad steps are refused.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use device::{
    Choose, Device, KvType, Limits, Link, Numerics, OpKind, OutputRef, OwnedStep, PAGE_NONE, Plan, Program,
    Sampling, Slice, Ticket, ValueId, Want,
};
use device_lower::fusion;
use device_lower::sampling::{self, Chooser};
use device_testing::{
    Sequences, check_op_cases, committed, compare_chunks, limits, mini_transformer, one_sequence,
};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::selftest;
use metal_emulator::LaneOrder;
use weights::BlockType;

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

/// Lanes, threadgroups and the dispatches of a group in any order: a race, or a barrier that is
/// missing, would show.
#[test]
fn no_order_changes_a_bit() {
    let mut first = None;
    for order in [LaneOrder::Forward, LaneOrder::Reverse, LaneOrder::Random(7)] {
        let device = device_in(order);
        let (plan, limits) = fused(&device, BlockType::Q4_0);
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let mut all = Vec::new();
        for spans in [&[(0, 40), (1, 3)][..], &[(0, 1), (1, 1)], &[(1, 1)], &[(0, 5)]] {
            program.run(&sequences.step(spans).borrow()).unwrap();
            all.push(bits(&*program));
        }
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{order:?}");
    }
}

/// One sequence and three, greedy, sampled and with penalties, in any order of lanes: tokens equal
/// those of steps that run one by one, whose tokens the host chooses.
#[test]
fn steps_in_flight_give_the_tokens_of_single_steps() {
    for (order, every) in [(LaneOrder::Forward, 1), (LaneOrder::Reverse, 5), (LaneOrder::Random(7), 6)] {
        for (what, result) in selftest::check_ahead(&device_in(order), every) {
            assert_eq!(result, Ok(()), "{what}, {order:?}");
        }
    }
}

fn link(row: u32, ticket: Ticket, output: u32) -> Link {
    Link { row, from: OutputRef { ticket, output } }
}

/// A sequence that ended while its later step is in flight is dropped. The other one continues, and
/// a third one gets the free pages.
#[test]
fn a_sequence_that_ends_early_disturbs_nobody() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::Q8_0);
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let (mut alone, mut program) = (compile(), compile());
    let mut sequences = Sequences::new(2, &plan.kv, &limits, 50);
    let prompt = sequences.step(&[(0, 9), (1, 5)]).with_outputs(vec![8, 13], Want::BEST);
    let [second, third] = [0, 1].map(|_| sequences.step(&[(0, 1), (1, 1)]));
    let fourth = sequences.step(&[(0, 1)]);
    let tokens = |program: &dyn Program| Vec::from_iter(program.chosen().iter().map(|c| c.token.unwrap()));

    // Results of sequence 0, step by step.
    let mut expected = vec![];
    alone.run(&prompt.borrow()).unwrap();
    for step in [&second, &third, &fourth] {
        expected.push(tokens(&*alone)[0]);
        let mut step = OwnedStep { wants: vec![Want::BEST; step.outputs.len()], ..step.clone() };
        step.tokens = tokens(&*alone)[..step.tokens.len()].to_vec();
        alone.run(&step.borrow()).unwrap();
    }
    expected.push(tokens(&*alone)[0]);

    let first = program.submit(&prompt.borrow()).unwrap();
    let mut last = first;
    let mut tickets = vec![first];
    for step in [&second, &third] {
        let links = vec![link(0, last, 0), link(1, last, 1)];
        let step = OwnedStep { links, wants: vec![Want::BEST; 2], ..step.clone() };
        last = program.submit(&step.borrow()).unwrap();
        tickets.push(last);
    }
    // The caller finds that sequence 1 is over; its third step is in flight, and is not looked at.
    program.wait(first).unwrap();
    let mut found = vec![tokens(&*program)[0]];
    let step = OwnedStep { links: vec![link(0, last, 0)], wants: vec![Want::BEST], ..fourth };
    tickets.push(program.submit(&step.borrow()).unwrap());
    for ticket in &tickets[1..] {
        program.wait(*ticket).unwrap();
        found.push(tokens(&*program)[0]);
    }
    assert_eq!(found, expected);
}

/// Log-probabilities and the best k: the host does what has no kernel, in the company of outputs
/// that have one, masks and biases among them. What it chose can be linked to.
#[test]
fn the_host_chooses_what_has_no_kernel() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::Q4_0);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let n_vocab = plan.value(plan.output).cols;
    let mut sequences = Sequences::new(2, &plan.kv, &limits, 50);
    let step = sequences.step(&[(0, 7), (1, 4)]);
    let sampling = Sampling { temperature: 0.9, top_k: 20, top_p: 0.9, min_p: 0.0, random: 0.4 };
    let words = n_vocab.div_ceil(32) as u32;
    let wants = [
        Want { logits: true, ..Want::BEST },
        Want { mask: Some(Slice { start: 0, len: words }), ..Want::BEST },
        Want { biases: Slice { start: 0, len: 1 }, ..Want::BEST },
        Want { logprob: true, n_best: 3, choose: Choose::Sample(sampling), ..Want::default() },
        Want { n_best: 2, ..Want::LOGITS },
        Want { choose: Choose::Sample(sampling), ..Want::default() },
        Want::LOGITS,
    ];
    for (index, want) in wants.iter().enumerate() {
        assert_eq!(program.chooses_in_flight(want), [1, 2, 5].contains(&index), "{want:?}");
    }
    let mut masks = vec![0; words as usize];
    (masks[0], masks[1]) = (1 << 9, 1 << 3);
    let step = OwnedStep {
        outputs: vec![0, 2, 3, 6, 7, 9, 10],
        wants: wants.to_vec(),
        masks,
        biases: vec![(17, 1e6)],
        ..step
    };
    let ticket = program.submit(&step.borrow()).unwrap();
    program.wait(ticket).unwrap();
    let mut chooser = Chooser::new(n_vocab);
    let rows: Vec<Vec<f32>> = program.logits().chunks(n_vocab).map(<[f32]>::to_vec).collect();
    for (output, (row, want)) in rows.iter().zip(&wants).enumerate() {
        let expected = chooser.choose(row, want, &step.borrow(), std::iter::empty());
        let found = program.chosen()[output];
        assert_eq!(found.token, expected.token, "output {output}");
        assert_eq!(found.logprob.to_bits(), expected.logprob.to_bits(), "output {output}");
        let best: Vec<_> = chooser.best(row, want).collect();
        assert_eq!(program.best(output), best, "output {output}");
    }
    let token = |output: usize| program.chosen()[output].token;
    assert!([Some(9), Some(35)].contains(&token(1)) && token(2) == Some(17) && token(6).is_none());
    // Linked or given, it is the same token.
    let next = sequences.step(&[(0, 1)]);
    let given = OwnedStep { tokens: vec![17], ..next.clone() };
    program.run(&OwnedStep { links: vec![link(0, ticket, 2)], ..next }.borrow()).unwrap();
    let linked = bits(&*program);
    program.run(&given.borrow()).unwrap();
    assert_eq!(bits(&*program), linked);
}

#[test]
fn links_that_cannot_be_are_refused() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::F32);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let good = one_sequence(&plan, &limits, &[1], 0);
    let linked = |ticket, output| OwnedStep { links: vec![link(0, ticket, output)], ..good.clone() };
    assert!(program.submit(&linked(Ticket(0), 0).borrow()).is_err(), "there is none");
    program.run(&good.borrow()).unwrap();
    assert!(program.submit(&linked(Ticket(0), 1).borrow()).is_err(), "an output that it has not");
    assert!(program.submit(&linked(Ticket(1), 0).borrow()).is_err(), "a step to come");
    program.run(&linked(Ticket(0), 0).borrow()).unwrap();
    assert!(program.submit(&linked(Ticket(0), 0).borrow()).is_err(), "another was waited for since");
    let pending = vec![OutputRef { ticket: Ticket(0), output: 0 }];
    assert!(program.submit(&OwnedStep { pending, ..good.clone() }.borrow()).is_err());
    program.run(&good.borrow()).unwrap();
}

/// After each node, the value that it wrote is readable or absent. A readable value equals that of
/// the interpreter of the whole step, within the rounding of F16 pages.
#[test]
fn values_can_be_read_after_every_node() {
    let device = device();
    let plan = mini_transformer(3, BlockType::F32);
    let limits = Limits { kv_type: KvType::F32, ..limits(&plan.kv) };
    let reference = device_reference::Reference::new(1);
    let compile = |device: &dyn Device| {
        device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap()
    };
    let (mut program, mut expected) = (compile(&device), compile(&reference));
    for tokens in [&[1, 2, 3, 4, 5][..], &[7]] {
        let step = one_sequence(&plan, &limits, tokens, 0);
        let (mut n_read, mut n_values) = (0, 0);
        for (node, op) in plan.nodes.iter().map(|node| &node.op).enumerate() {
            program.run_until(&step.borrow(), node).unwrap();
            expected.run_until(&step.borrow(), node).unwrap();
            assert!(program.chosen().is_empty() && program.logits().is_empty());
            for id in op.writes() {
                n_values += 1;
                let (Some(found), Some(expected)) = (program.read(id), expected.read(id)) else { continue };
                n_read += 1;
                assert_eq!(found.len(), expected.len(), "{id} of node {node}");
                for (found, expected) in found.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= 2e-2 * expected.abs().max(1.0),
                        "{id} of node {node}"
                    );
                }
            }
        }
        assert!(2 * n_read > n_values, "{n_read} of {n_values} values could be read");
    }
    let step = one_sequence(&plan, &limits, &[1], 0);
    assert!(program.run_until(&step.borrow(), plan.nodes.len()).is_err());
    program.run(&step.borrow()).unwrap();
    assert_eq!(program.read(plan.output).unwrap(), program.logits());
    assert_eq!(program.read(ValueId(0)), None, "its memory holds another value by now");
    let ticket = program.submit(&step.borrow()).unwrap();
    assert_eq!(program.read(plan.output), None, "a later step writes there");
    assert!(program.run_until(&step.borrow(), 0).is_err(), "a step is in flight");
    program.wait(ticket).unwrap();
    assert_eq!(program.chosen()[0].token, sampling::argmax(program.logits()));
}

/// Deterministic numerics have the same bits for whole and chunked prompts, alone or with other
/// rows.
#[test]
fn deterministic_steps_do_not_depend_on_their_company() {
    let device = device();
    let wanted = |kind: OpKind, name: &str| match kind {
        OpKind::Linear => name.contains("33x"),
        // Every type of blocks with one type of keys and values; attention alone has each.
        OpKind::Fused => match name.strip_prefix("two layers ") {
            Some(name) => name.ends_with(if name.starts_with("Q4_0") { "kv F16" } else { "kv F32" }),
            None => name.contains("mixture"),
        },
        OpKind::Attention => name.contains("2x3x32") || name.contains("shared"),
        _ => false,
    };
    let of_blocks = [BlockType::F32, BlockType::Q4_0, BlockType::Q6_K];
    let mut n_cases = 0;
    for mut case in check_op_cases() {
        if wanted(case.kind, &case.name)
            && of_blocks.contains(&case.block)
            && matches!(case.limits.kv_type, KvType::F32 | KvType::F16)
            // The device refuses attention in chunks, and attention of images.
            && case.runs_on(&device)
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
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
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
            first.write_page(group, page, &vec![0xff; bytes.len()]).unwrap();
            assert!(first.read_page(group, page, &mut bytes[1..]).is_err());
            assert!(second.write_page(9, page, &bytes).is_err());
            assert!(first.copy_page(group, page, 1 << 20).is_err());
        }
    }
    let next = one_sequence(&plan, &limits, &[7], 20);
    second.run(&next.borrow()).unwrap();
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
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let good = one_sequence(&plan, &limits, &[1, 2, 3], 0);
    program.run(&good.borrow()).unwrap();
    type Spoil<'a> = (&'a str, &'a dyn Fn(&mut OwnedStep));
    let spoil: [Spoil; 7] = [
        ("token", &|s| s.tokens[1] = 1 << 20),
        ("output", &|s| s.outputs = vec![3]),
        ("wants", &|s| s.wants.clear()),
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
        let quiet = one_sequence(&plan, &limits, tokens, 0).with_outputs(vec![], Want::BEST);
        program.run(&quiet.borrow()).unwrap();
        assert!(program.logits().is_empty() && program.chosen().is_empty());
    }
    let empty = OwnedStep { tokens: vec![], spans: vec![], ..good.with_outputs(vec![], Want::BEST) };
    program.run(&empty.borrow()).unwrap();
}

/// Weights of a mapped file are used in place. Unaligned ones are copied, and the memory plan
/// counts them.
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

#[test]
fn steps_keep_the_contract() {
    // Sums of f32 in another order, through two layers.
    device_testing::check_steps(&device(), 1e-3).unwrap();
}

#[test]
fn plans_are_replaced_while_sequences_go_on() {
    device_testing::check_replaced_plans(&device()).unwrap();
}

/// Chunks are committed and decommitted while steps run. A commit neither waits nor moves a page,
/// and a decommit frees exactly its own chunk. The tokens equal those of a program that has all its
/// memory from the start.
#[test]
fn pages_come_and_go_in_chunks() {
    let device = device();
    let plan = fusion::fuse(&mini_transformer(3, BlockType::Q8_0), device.fusion());
    let limits = Limits {
        kv_type: KvType::F16,
        n_ctx: 256,
        n_pages: vec![64; plan.kv.groups.len()],
        max_rows: 256,
        ..limits(&plan.kv)
    };
    let mut whole = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
    let groups = 0..plan.kv.groups.len();
    let granule = program.committed().granule(0) as u32;
    assert!(granule > 1 && granule < 64, "{granule}");
    // Pages from the middle of the pool, whose chunks are far apart, the last granule first.
    let place = |page: u32| if page < granule { 64 / granule * granule - granule + page } else { page };
    let tokens: Vec<u32> = (0..2 * granule * limits.page_len as u32 - 3).map(|t| t % 50).collect();
    let mut step = one_sequence(&plan, &limits, &tokens[..9], 0).with_outputs(vec![8], Want::BEST);
    let scatter = |step: &mut OwnedStep| {
        step.page_tables.iter_mut().filter(|page| **page != PAGE_NONE).for_each(|page| *page = place(*page));
    };
    whole.run(&step.borrow()).unwrap();
    let expected = bits(&*whole);
    scatter(&mut step);
    assert!(program.submit(&step.borrow()).is_err(), "no page is committed");
    for group in groups.clone() {
        program.commit(group, place(0)..place(0) + granule).unwrap();
        assert!(program.commit(group, place(0)..place(0) + granule).is_err(), "twice");
        assert!(program.commit(group, 1..granule + 1).is_err(), "across granules");
    }
    let ticket = program.submit(&step.borrow()).unwrap();
    // The step is in flight, and has not run yet on this GPU.
    for group in groups.clone() {
        program.commit(group, granule..2 * granule).unwrap();
    }
    program.wait(ticket).unwrap();
    assert_eq!(bits(&*program), expected);
    let mut next = one_sequence(&plan, &limits, &tokens[9..], 9);
    whole.run(&next.borrow()).unwrap();
    scatter(&mut next);
    program.run(&next.borrow()).unwrap();
    assert_eq!(bits(&*program), bits(&*whole));
    for group in groups.clone() {
        // Its chunks are not its neighbours'.
        let mut page = vec![0; plan.kv.page_bytes(group, limits.kv_type, limits.page_len)];
        program.copy_page(group, granule, place(1)).unwrap();
        program.decommit(group, granule..2 * granule).unwrap();
        assert!(program.read_page(group, granule, &mut page).is_err());
        program.read_page(group, place(1), &mut page).unwrap();
        assert!(page.iter().any(|byte| *byte != 0));
        assert_eq!(program.committed().n_committed(group), granule as usize);
    }
    let error = program.submit(&next.borrow()).unwrap_err().to_string();
    assert!(error.contains("not committed"), "{error}");
}

/// A decommit of pages that a step in flight reads waits for the step, and frees them after it.
#[test]
fn what_a_step_in_flight_reads_is_freed_after_it() {
    let device = device();
    let (plan, limits) = fused(&device, BlockType::Q4_0);
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let (mut expected, mut program) = (compile(), compile());
    let step = one_sequence(&plan, &limits, &[1, 2, 3], 0).with_outputs(vec![2], Want::BEST);
    expected.run(&step.borrow()).unwrap();
    let ticket = program.submit(&step.borrow()).unwrap();
    for group in 0..plan.kv.groups.len() {
        let granule = program.committed().granule_of(group, 0);
        program.decommit(group, granule).unwrap();
    }
    program.wait(ticket).unwrap();
    assert_eq!(bits(&*program), bits(&*expected));
}

/// Each value that the search over the profile tries runs, of each field that is judged by speed.
#[test]
fn the_search_goes_over_every_field() {
    let device = device();
    let effort = selftest::Effort { n_tokens: 1, ..selftest::Effort::of(true) };
    let mut tried = std::collections::BTreeSet::new();
    let mut begun = String::new();
    let mut tell = |progress: selftest::Progress<'_>| {
        let trial = match progress {
            selftest::Progress::Begins(trial) => {
                begun = trial.profile.to_text();
                return true;
            }
            selftest::Progress::Ended(trial) => trial,
        };
        assert_eq!(begun, trial.profile.to_text(), "a candidate is named before it runs");
        let runs = !trial.candidate.is_empty() && trial.candidate.iter().all(|rate| *rate > 0.0);
        assert!(runs, "{} does not run: {:?}", trial.field, trial.profile);
        assert_eq!(trial.incumbent.len(), trial.candidate.len(), "runs in turns");
        tried.insert(trial.field.to_owned());
        true
    };
    let (best, compared) =
        selftest::sweep(device.shared_gpu(), device.profile(), &effort, &mut tell).unwrap();
    // The winner is compared with the first profile by each judge.
    assert_eq!(compared.len(), if best == *device.profile() { 0 } else { 4 });
    let text = best.to_text();
    let fields = text.lines().filter_map(|line| Some(line.split_once(" = ")?.0));
    // A program has an argmax over a vocabulary only where no head left the best of its parts.
    for field in fields.filter(|field| *field != "argmax_threads") {
        assert!(tried.contains(field), "{field} is not searched");
    }
}
