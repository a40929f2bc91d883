//! Guarantees of a program besides its numbers. Steps are repeatable, sequences do not affect each
//! other, pages can be copied and decommitted, and bad steps are refused.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::{Choose, Sampling, Step};
use device::{Device, KvLayer, KvType, Limits, Numerics, OwnedStep, Plan, Program, Span, Timing, Want};
use device_lower::fusion;
use device_testing::{
    AttentionOptions, PlanBuilder, Sequences, check_background, check_commits, check_replaced_plans,
    check_shortage, check_steps, committed, limits, mini_transformer, one_sequence,
};
use ingle_device_cpu::{CpuDevice, Isa, Options};
use weights::BlockType;

fn device(threads: usize) -> CpuDevice {
    CpuDevice::new(Options { threads: Some(threads), isa: None }).unwrap()
}

fn fused(device: &CpuDevice, block: BlockType) -> (Plan, Limits) {
    let plan = fusion::fuse(&mini_transformer(3, block), device.fusion());
    let limits = Limits { kv_type: KvType::I16, ..limits(&plan.kv) };
    (plan, limits)
}

fn bits(program: &dyn Program) -> Vec<u32> {
    program.logits().iter().map(|v| v.to_bits()).collect()
}

#[test]
fn the_same_steps_give_the_same_bits_for_any_number_of_threads() {
    let mut first = None;
    for threads in [1, 2, 3] {
        let device = device(threads);
        let (plan, limits) = fused(&device, BlockType::Q4_1);
        for _ in 0..2 {
            let mut program =
                device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
            let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
            let mut all = Vec::new();
            for spans in [&[(0, 50), (1, 3)][..], &[(0, 1), (1, 1)], &[(1, 1)], &[(0, 33)]] {
                program.run(&sequences.step(spans).borrow()).unwrap();
                all.push(bits(&*program));
            }
            assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{threads} threads");
        }
    }
}

#[test]
fn a_step_in_the_background_is_as_good_as_one_that_is_submitted() {
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let device = CpuDevice::new(Options { threads: Some(threads), isa: Some(isa) }).unwrap();
            check_background(&device).unwrap_or_else(|what| panic!("{isa}, {threads} threads: {what}"));
        }
    }
}

/// The place of keys and values does not change bits. The pages have any length, and the heads
/// whole and partial strips. Workers share positions by chunks (a step of one row) and by tiles.
#[test]
fn pages_of_any_length_give_the_same_bits() {
    let device = device(2);
    for head_dim in [32, 64, 80, 96, 128, 160] {
        let mut b = PlanBuilder::new(4, 50);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: 2,
            head_dim,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        });
        let x = b.embed(64);
        let [q, k, v] = [6, 2, 2].map(|n_heads| b.linear(x, n_heads * head_dim, BlockType::F32, false));
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 6, AttentionOptions::default());
        let y = b.linear(y, 50, BlockType::F32, false);
        let plan = fusion::fuse(&b.finish(y), device.fusion());
        for kv_type in [KvType::F32, KvType::F16, KvType::I16, KvType::I8] {
            let mut first = None;
            for page_len in [16, 32, 64, 128, 256] {
                let n_pages = vec![2 * 512 / page_len];
                let limits = Limits { page_len, n_pages, kv_type, ..limits(&plan.kv) };
                let mut program =
                    device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
                let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
                let mut all = Vec::new();
                for spans in [(0, 64), (0, 64), (0, 1), (0, 64), (0, 63), (0, 33), (0, 1), (1, 5), (1, 1)] {
                    let mut step = sequences.step(&[spans]);
                    let token = |i: usize| ((64 * all.len() + i) * 7 % 50) as u32;
                    step.tokens = (0..step.tokens.len()).map(token).collect();
                    program.run(&step.borrow()).unwrap();
                    all.push(bits(&*program));
                }
                assert!(all.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
                let what = format!("{head_dim} columns, {kv_type:?}, pages of {page_len}");
                assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{what}");
            }
        }
    }
}

/// Deterministic numerics have the same bits chunked or whole, alone or in a batch of three, on
/// every instruction set.
#[test]
fn deterministic_steps_do_not_depend_on_their_company() {
    for isa in Isa::available() {
        let device = CpuDevice::new(Options { threads: Some(2), isa: Some(isa) }).unwrap();
        for block in [BlockType::Q4_1, BlockType::Q6_K, BlockType::F16] {
            let (plan, limits) = fused(&device, block);
            let limits = Limits { numerics: Numerics::Deterministic, ..limits };
            let tokens: Vec<u32> = (0..61).map(|i| i * 7 % 50).collect();
            let run = |chunks: &[usize]| {
                let mut program =
                    device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
                let mut at = 0;
                for len in chunks {
                    program
                        .run(&one_sequence(&plan, &limits, &tokens[at..at + len], at as u32).borrow())
                        .unwrap();
                    at += len;
                }
                bits(&*program)
            };
            let whole = run(&[61]);
            assert_eq!(run(&[20, 17, 23, 1]), whole, "{isa} {block} in chunks");
            assert_eq!(run(&[1; 61]), whole, "{isa} {block} one by one");

            // The sequence gives the same bits between two others.
            let mut program =
                device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
            let alone = one_sequence(&plan, &limits, &tokens, 0);
            let n_tables = plan.kv.groups.len();
            let span = |slot: u32, first_row: u32, n_rows: u32, first_position: u32| Span {
                slot,
                first_row,
                n_rows,
                first_position,
            };
            let others = |n: u32, shift: u32| (0..n).map(move |i| (i * 3 + shift) % 50);
            let mut batch = |first: std::ops::Range<usize>, before: u32, after: u32, rows_at: [u32; 2]| {
                let mine = &tokens[first.clone()];
                let tokens: Vec<u32> =
                    others(before, 1).chain(mine.iter().copied()).chain(others(after, 2)).collect();
                let n = mine.len() as u32;
                let entries = 48 / 3;
                let table = |slot: u32| {
                    (0..n_tables).flat_map(move |_| {
                        (0..32).map(move |e| if e < entries { slot * entries + e } else { device::PAGE_NONE })
                    })
                };
                let step = OwnedStep {
                    tokens,
                    spans: vec![
                        span(0, 0, before, rows_at[0]),
                        span(1, before, n, first.start as u32),
                        span(2, before + n, after, rows_at[1]),
                    ],
                    page_tables: (0..3).flat_map(table).collect(),
                    outputs: vec![before + n - 1],
                    ..alone.clone()
                };
                program.run(&step.borrow()).unwrap();
                bits(&*program)
            };
            batch(0..30, 5, 1, [0, 0]);
            batch(30..60, 1, 33, [5, 1]);
            assert_eq!(batch(60..61, 1, 1, [6, 34]), whole, "{isa} {block} in a batch");
        }
    }
}

/// Steps of a few rows read every tile once, in pieces of several tiles, and steps of more rows in
/// blocks. All results have the bits of one row. The cases have matrices that end within a tile,
/// several matrices, biases, residuals and gates, and workers with one piece and with many.
#[test]
fn few_rows_have_the_bits_of_one() {
    for block in [BlockType::Q4_1, BlockType::Q8_0, BlockType::Q6_K] {
        let mut b = PlanBuilder::new(7, 97);
        let x = b.embed(1280);
        let norm = b.rms_norm(x, 1280);
        let q = b.linear(norm, 333, block, true);
        let k = b.linear(norm, 16, block, false);
        let v = b.linear(norm, 40, block, true);
        let [q, k, v] =
            [(q, 333), (k, 16), (v, 40)].map(|(x, cols)| b.linear(x, cols, BlockType::F32, false));
        let sum = [q, k, v].map(|x| b.linear(x, 1280, BlockType::F32, false));
        let sum = sum.iter().fold(x, |a, x| b.add(a, *x));
        let norm = b.rms_norm(sum, 1280);
        let gate = b.linear(norm, 1280, block, true);
        let up = b.linear(norm, 1280, block, false);
        let gated = b.gate(gate, up, device::Activation::Silu);
        let down = b.linear(gated, 1280, block, true);
        let x = b.add(sum, down);
        let norm = b.rms_norm(x, 1280);
        let plan = b.linear(norm, 97, block, false);
        let plan = b.finish(plan);
        for isa in Isa::available() {
            // Plain numbers accumulate in another order in tiles, unless numerics are
            // deterministic.
            let limits = Limits { numerics: Numerics::Deterministic, ..limits(&plan.kv) };
            for threads in [1, 3] {
                let device = CpuDevice::new(Options { threads: Some(threads), isa: Some(isa) }).unwrap();
                let plan = fusion::fuse(&plan, device.fusion());
                let mut program =
                    device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
                let mut run = |tokens: &[u32]| {
                    let step = one_sequence(&plan, &limits, tokens, 0);
                    let step = step.with_outputs((0..tokens.len() as u32).collect(), Want::LOGITS);
                    program.run(&step.borrow()).unwrap();
                    bits(&*program)
                };
                let tokens: Vec<u32> = (0..41).map(|i| i * 13 % 97).collect();
                let alone: Vec<u32> = tokens.iter().flat_map(|token| run(&[*token])).collect();
                for n in [2, 3, 4, 5, 8, 9, 10, 12, 13, 16, 23, 24, 25, 26, 41] {
                    assert!(
                        run(&tokens[..n]) == alone[..97 * n],
                        "{isa} {block}, {threads} threads, {n} rows"
                    );
                }
            }
        }
    }
}

#[test]
fn a_copied_page_serves_in_place_of_the_original() {
    let device = device(2);
    let (plan, limits) = fused(&device, BlockType::Q8_0);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let tokens: Vec<u32> = (0..20).collect();
    program.run(&one_sequence(&plan, &limits, &tokens, 0).borrow()).unwrap();
    let next = one_sequence(&plan, &limits, &[7], 20);
    program.run(&next.borrow()).unwrap();
    let expected = bits(&*program);
    for group in 0..plan.kv.groups.len() {
        program.copy_page(group, 0, 40).unwrap();
        program.copy_page(group, 1, 41).unwrap();
        // The original pages become NaN.
        let bytes = vec![0xff; plan.kv.page_bytes(group, limits.kv_type, limits.page_len)];
        program.write_page(group, 0, &bytes).unwrap();
        program.write_page(group, 1, &bytes).unwrap();
    }
    let mut moved = next.clone();
    for table in moved.page_tables.chunks_mut(next.pages_per_table) {
        (table[0], table[1]) = (40, 41);
    }
    program.run(&moved.borrow()).unwrap();
    assert_eq!(bits(&*program), expected);
    assert!(program.copy_page(0, 0, 1 << 20).is_err());
}

#[test]
fn pages_are_committed_and_given_back() {
    for threads in [1, 2] {
        check_commits(&device(threads)).unwrap();
    }
    check_shortage(Arc::new(device(1))).unwrap();
}

#[test]
fn plans_are_replaced_while_sequences_go_on() {
    for isa in Isa::available() {
        let device = CpuDevice::new(Options { threads: Some(2), isa: Some(isa) }).unwrap();
        check_replaced_plans(&device).unwrap();
    }
}

/// The memory after the last page of a granule is inaccessible, and no kernel touches it.
#[test]
fn nothing_is_read_beyond_the_pages_of_a_step() {
    for isa in Isa::available() {
        let device = CpuDevice::new(Options { threads: Some(2), isa: Some(isa) }).unwrap();
        let plan = fusion::fuse(&mini_transformer(3, BlockType::F32), device.fusion());
        for &kv_type in device.kv_types() {
            if kv_type == KvType::Q8_0 {
                continue; // its heads are multiples of 32
            }
            let page_len = device.page_len();
            let limits = Limits { kv_type, page_len, n_pages: vec![1 << 14; 2], ..limits(&plan.kv) };
            let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
            let tokens: Vec<u32> = (0..page_len as u32).map(|token| token % 90).collect();
            let mut found = vec![];
            for first in [false, true] {
                for group in 0..plan.kv.groups.len() {
                    let granule = program.committed().granule_of(group, 0);
                    if !program.committed().contains(group, 0) {
                        program.commit(group, granule).unwrap();
                    }
                }
                // All positions of one page, in chunks and as a single row.
                for chunk in [0..60, 60..120, 120..page_len - 1, page_len - 1..page_len] {
                    let mut step = one_sequence(&plan, &limits, &tokens[chunk.clone()], chunk.start as u32);
                    for (group, table) in step.page_tables.chunks_mut(step.pages_per_table).enumerate() {
                        let last = program.committed().granule_of(group, 0).end - 1;
                        table[0] = if first { 0 } else { last };
                    }
                    program.run(&step.borrow()).unwrap();
                }
                found.push(bits(&*program));
            }
            assert_eq!(found[0], found[1], "{isa} {kv_type:?}");
        }
    }
}

#[test]
fn pages_that_were_read_serve_in_another_program() {
    let device = device(2);
    let (plan, limits) = fused(&device, BlockType::Q8_0);
    let compile = || device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let (mut first, mut second) = (compile(), compile());
    let tokens: Vec<u32> = (0..20).collect();
    first.run(&one_sequence(&plan, &limits, &tokens, 0).borrow()).unwrap();
    for group in 0..plan.kv.groups.len() {
        for page in 0..2 {
            let n = plan.kv.page_bytes(group, limits.kv_type, limits.page_len);
            let mut bytes = vec![0; n];
            first.read_page(group, page, &mut bytes).unwrap();
            assert!(bytes.iter().any(|b| *b != 0));
            second.write_page(group, page, &bytes).unwrap();
            assert!(first.read_page(group, page, &mut bytes[1..]).is_err());
            assert!(second.write_page(group, page, &bytes[1..]).is_err());
            assert!(first.read_page(group, 1 << 20, &mut bytes).is_err());
            assert!(second.write_page(9, page, &bytes).is_err());
        }
    }
    let next = one_sequence(&plan, &limits, &[7], 20);
    first.run(&next.borrow()).unwrap();
    second.run(&next.borrow()).unwrap();
    assert_eq!(bits(&*second), bits(&*first));
}

#[test]
fn steps_that_would_leave_the_buffers_are_errors() {
    let device = device(2);
    let (plan, limits) = fused(&device, BlockType::F32);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let good = one_sequence(&plan, &limits, &[1, 2, 3], 0);
    program.run(&good.borrow()).unwrap();
    type Spoil<'a> = (&'a str, &'a dyn Fn(&mut OwnedStep));
    let spoil: [Spoil; 7] = [
        ("token", &|s| s.tokens[1] = 1 << 20),
        ("output", &|s| s.outputs = vec![3]),
        ("page", &|s| s.page_tables[0] = 1000),
        ("no page", &|s| s.page_tables[0] = device::PAGE_NONE),
        ("slot", &|s| s.spans[0].slot = 9),
        ("position", &|s| s.spans[0].first_position = 511),
        ("rows", &|s| s.spans[0].n_rows = 2),
    ];
    for (what, spoil) in spoil {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(program.run(&bad.borrow()).is_err(), "{what}");
        program.run(&good.borrow()).unwrap();
    }
    let many = one_sequence(&plan, &limits, &[0; 65], 0);
    assert!(program.run(&many.borrow()).is_err(), "too many rows");
}

#[test]
fn a_step_without_outputs_or_without_rows_is_fine() {
    let device = device(2);
    let (plan, limits) = fused(&device, BlockType::Q4_0);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    for tokens in [&[1, 2, 3][..], &[4]] {
        let quiet = one_sequence(&plan, &limits, tokens, 0).with_outputs(vec![], Want::LOGITS);
        program.run(&quiet.borrow()).unwrap();
        assert!(program.logits().is_empty() && program.chosen().is_empty());
    }
    let quiet = one_sequence(&plan, &limits, &[1], 0).with_outputs(vec![], Want::LOGITS);
    let empty = OwnedStep { tokens: vec![], spans: vec![], ..quiet };
    program.run(&empty.borrow()).unwrap();
}

#[test]
fn impossible_options_are_refused_with_words() {
    for options in [
        Options { threads: Some(0), isa: None },
        Options { threads: Some(1 << 20), isa: None },
        Options { threads: None, isa: Isa::ALL.into_iter().find(|i| !i.is_available()) },
    ] {
        if options.isa.is_none() && options.threads.is_none() {
            continue;
        }
        let error = CpuDevice::new(options).err().unwrap().to_string();
        assert!(error.contains("cpu") && error.contains(';'), "{error}");
    }
}

/// Profiles have every command once, in order, within the step's time.
#[test]
fn timings_belong_to_commands() {
    let device = device(2);
    let plan = fusion::fuse(&mini_transformer(1, BlockType::Q4_0), device.fusion());
    let limits = limits(&plan.kv);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
    for n in [5, 1] {
        let step = sequences.step(&[(0, n)]);
        let mut timings: Vec<Timing> = Vec::new();
        program.run_timed(&step.borrow(), &mut timings).unwrap();
        let commands = program.commands(0, n);
        assert_eq!(
            timings.iter().map(|t| t.command).collect::<Vec<_>>(),
            (0..commands.len()).collect::<Vec<_>>()
        );
        assert!(timings.windows(2).all(|pair| pair[0].start <= pair[1].start));
        assert!(
            commands
                .iter()
                .any(|c| c.kernel.contains("linear_q4_0") && c.weight_bytes > 0 && c.layer == Some(0))
        );
        assert_eq!(commands.iter().any(|c| c.kernel.contains("1 row")), n == 1);
    }
}

#[test]
fn steps_keep_the_contract() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
            // Sums of f32 are in another order, through two layers.
            let count =
                check_steps(&device, 1e-3).unwrap_or_else(|e| panic!("{isa}, {threads} threads: {e}"));
            // Other values are inside fused Ops.
            assert!(count.n_read * 3 > count.n_values, "{count:?}");
        }
    }
}

/// Without fusion every value can be read right after its node, except attention of rows that are
/// not read.
#[test]
fn every_value_of_a_plain_plan_can_be_read() {
    let device = device(2);
    let plan = mini_transformer(3, BlockType::F32);
    let limits = limits(&plan.kv);
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let step = Sequences::new(1, &plan.kv, &limits, 50).step(&[(0, 9), (1, 2)]);
    let last = step.clone().with_outputs(vec![8, 10], Want::BEST);
    for (step, n_missing) in [(step, 0), (last, 1)] {
        let mut missing = vec![];
        for (node, n) in plan.nodes.iter().enumerate() {
            program.run_until(&step.borrow(), node).unwrap();
            missing.extend(n.op.writes().into_iter().filter(|id| program.read(*id).is_none()));
        }
        assert_eq!(missing.len(), n_missing, "{missing:?}");
        program.run(&step.borrow()).unwrap();
        let best = program.chosen().iter().map(|chosen| chosen.token.unwrap() as f32);
        assert!(program.read(plan.argmax).unwrap().into_iter().eq(best));
        // The first values were overwritten by later ones.
        assert!(program.read(plan.nodes[0].op.writes()[0]).is_none());
        // This step does not compute the best tokens.
        program.run(&step.clone().with_outputs(step.outputs.clone(), Want::LOGITS).borrow()).unwrap();
        assert!(program.read(plan.argmax).is_none() && program.read(plan.output).is_some());
    }
}

/// A stopped step ends between two commands, on every worker, and does not affect the next step.
#[test]
fn a_step_can_be_stopped_while_it_runs() {
    for threads in [1, 2, 4] {
        let device = device(threads);
        let (plan, limits) = fused(&device, BlockType::Q4_0);
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let step = sequences.step(&[(0, 50), (1, 3)]);
        program.run(&step.borrow()).unwrap();
        let expected = bits(&*program);
        let stop = AtomicBool::new(true);
        let stopped = Step { stop: Some(&stop), ..step.borrow() };
        assert!(matches!(program.submit(&stopped), Err(device::Error::Stopped { device: "cpu" })));
        assert!(matches!(program.run_until(&stopped, 0), Err(device::Error::Stopped { .. })));
        assert!(program.read(plan.output).is_none(), "values of a stopped step are not there");

        // Another thread stops the step, at any command.
        let mut n_stopped = 0;
        for turn in 0..60 {
            let (stop, started) = (AtomicBool::new(false), AtomicBool::new(false));
            let result = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !started.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    std::thread::sleep(Duration::from_micros(turn * 10));
                    stop.store(true, Ordering::Release);
                });
                started.store(true, Ordering::Release);
                program.run(&Step { stop: Some(&stop), ..step.borrow() })
            });
            match result {
                Ok(()) => assert_eq!(bits(&*program), expected),
                Err(device::Error::Stopped { .. }) => n_stopped += 1,
                Err(error) => panic!("{error}"),
            }
            program.run(&step.borrow()).unwrap();
            assert_eq!(bits(&*program), expected, "{threads} threads");
        }
        println!("{n_stopped} of 60 steps were stopped on {threads} threads");
    }
}

/// Choosing tokens is shared among the workers; their number does not change the result.
#[test]
fn any_number_of_workers_chooses_the_same() {
    let mut first = None;
    for threads in [1, 2, 5] {
        let device = device(threads);
        let (plan, limits) = fused(&device, BlockType::F32);
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 50);
        let mut all = vec![];
        for n in [33, 2, 1] {
            let mut step = sequences.step(&[(0, n)]);
            for (row, want) in step.wants.iter_mut().enumerate() {
                let random = row as f64 / 40.0;
                let sampling = Sampling { temperature: 1.0, top_k: 20, top_p: 0.9, min_p: 0.01, random };
                let choose = if row % 4 == 3 { Choose::Best } else { Choose::Sample(sampling) };
                *want = Want { choose, n_best: row as u32 % 3, ..Want::BEST };
            }
            program.run(&step.borrow()).unwrap();
            let tokens: Vec<_> = program.chosen().iter().map(|chosen| chosen.token).collect();
            let best: Vec<_> = (0..n).map(|output| program.best(output).to_vec()).collect();
            assert!(best.iter().enumerate().all(|(row, best)| best.len() == row % 3));
            all.push((tokens, best));
        }
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{threads} threads");
    }
}
