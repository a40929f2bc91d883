//! Profile of a step: random weights in the shape of common models of a given size, the time of
//! every kind of command, and the rates.
//!
//! `cargo run --release -p ingle-device-cpu --example profile_shape -- [135m | 270m | 600m | 1b]
//! [prompt] [threads] [type] [KV type] [answers]`
//!
//! With a number of answers it times steps of that many short sequences instead, alone and with a
//! few more rows of the prompt.

use device::{Activation, Device, KvLayer, KvType, Limits, Numerics, Plan, Program, RopeStyle, Timing, Want};
use device_lower::fusion;
use device_testing::{AttentionOptions, PlanBuilder, Sequences, block_types, committed};
use ingle_device_cpu::{CpuDevice, Options};
use std::collections::BTreeMap;
use std::time::Instant;
use weights::BlockType::{self, Q4_0, Q4_1, Q4_K, Q6_K, Q8_0};

struct Shape {
    hidden: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    n_layers: u32,
    n_vocab: usize,
    block: BlockType,
    head: BlockType,
    qk_norm: bool,
    window: Option<usize>,
}

fn shape(name: &str) -> Option<Shape> {
    let base = Shape {
        hidden: 576,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        n_layers: 30,
        n_vocab: 49152,
        block: Q4_1,
        head: Q8_0,
        qk_norm: false,
        window: None,
    };
    match name {
        "135m" => Some(base),
        "270m" => Some(Shape {
            hidden: 640,
            n_heads: 4,
            n_kv_heads: 1,
            head_dim: 256,
            ffn: 2048,
            n_layers: 18,
            n_vocab: 262_144,
            block: BlockType::Q5_0,
            qk_norm: true,
            window: Some(512),
            ..base
        }),
        "600m" => Some(Shape {
            hidden: 1024,
            n_heads: 16,
            n_kv_heads: 8,
            head_dim: 128,
            ffn: 3072,
            n_layers: 28,
            n_vocab: 151_936,
            block: Q4_0,
            qk_norm: true,
            ..base
        }),
        "1b" => Some(Shape {
            hidden: 2048,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 64,
            ffn: 8192,
            n_layers: 16,
            n_vocab: 128_256,
            block: Q4_K,
            head: Q6_K,
            ..base
        }),
        _ => None,
    }
}

fn plan(s: &Shape) -> Plan {
    let mut b = PlanBuilder::new(1, s.n_vocab);
    let mut x = b.embed_from(s.hidden, BlockType::Q8_0, 1.0);
    for index in 0..s.n_layers {
        b.layer(Some(index));
        let window = s.window.filter(|_| index % 6 != 5);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: s.n_kv_heads,
            head_dim: s.head_dim,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let is_last = index + 1 == s.n_layers;
        let residual = b.select_rows_of_last(x, is_last);
        let norm = b.rms_norm(x, s.hidden);
        let mut q = b.linear(norm, s.n_heads * s.head_dim, s.block, false);
        let mut k = b.linear(norm, s.n_kv_heads * s.head_dim, s.block, false);
        let v = b.linear(norm, s.n_kv_heads * s.head_dim, s.block, false);
        if s.qk_norm {
            q = b.rms_norm(q, s.head_dim);
            k = b.rms_norm(k, s.head_dim);
        }
        let q = b.rope(q, s.head_dim, s.head_dim, RopeStyle::Half);
        let k = b.rope(k, s.head_dim, s.head_dim, RopeStyle::Half);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, s.n_heads, AttentionOptions { window, ..Default::default() });
        let y = b.select_rows_of_last(y, is_last);
        let y = b.linear(y, s.hidden, s.block, false);
        x = b.add(residual, y);
        let norm = b.rms_norm(x, s.hidden);
        let gate = b.linear(norm, s.ffn, s.block, false);
        let up = b.linear(norm, s.ffn, s.block, false);
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.linear(y, s.hidden, s.block, false);
        x = b.add(x, y);
    }
    b.layer(None);
    let x = b.rms_norm(x, s.hidden);
    let logits = b.linear(x, s.n_vocab, s.head, false);
    b.finish(logits)
}

/// Prints the milliseconds of each kind of command, the slowest first.
fn print(program: &dyn Program, n_rows: usize, timings: &[Timing], n_steps: usize) {
    let infos = program.commands(0, n_rows);
    let mut kinds: BTreeMap<&str, (f64, usize, u64, f64)> = BTreeMap::new();
    for t in timings {
        let info = &infos[t.command];
        let kind = kinds.entry(&info.kernel).or_insert((0.0, 0, 0, f64::MAX));
        *kind = (kind.0 + t.duration, kind.1 + 1, kind.2 + info.weight_bytes, kind.3.min(t.duration));
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    for (kernel, (seconds, count, bytes, least)) in kinds {
        println!(
            "  {:8.3} ms {:5} x {:8.2} us (least {:8.2}, {:5.1} GB/s)  {kernel}",
            seconds * 1e3 / n_steps as f64,
            count / n_steps,
            seconds * 1e6 / count as f64,
            least * 1e6,
            bytes as f64 / count as f64 / least / 1e9
        );
    }
}

/// Prints the milliseconds of steps with answers and a few rows of a prompt, and of their
/// attention: the minimum of many runs.
fn print_chunks(program: &mut dyn Program, plan: &Plan, limits: &Limits, prompt: usize, n_answers: usize) {
    let mut sequences = Sequences::new(1, &plan.kv, limits, 1000);
    let mut done = 0;
    while done < prompt {
        let n = limits.max_rows.min(prompt - done);
        let step = sequences.step(&[(0, n)]).with_outputs(vec![n as u32 - 1], Want::BEST);
        program.run(&step.borrow()).expect("a step");
        done += n;
    }
    let answers: Vec<(usize, usize)> = (1..=n_answers).map(|slot| (slot, 1)).collect();
    let begun: Vec<(usize, usize)> = (1..=n_answers).map(|slot| (slot, 512 / n_answers)).collect();
    let step = sequences.step(&begun).with_outputs(vec![0], Want::BEST);
    program.run(&step.borrow()).expect("a step");
    for n in [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32] {
        let mut spans = answers.clone();
        spans.extend((n > 0).then_some((0, n)));
        // The step is the same each time, except for its rows' positions.
        let step = sequences.step(&spans).with_outputs((0..n_answers as u32).collect(), Want::BEST);
        let n_rows = step.tokens.len();
        let (mut whole, mut attention) = (vec![], vec![]);
        for _ in 0..25 {
            let mut timings = vec![];
            let start = Instant::now();
            program.run_timed(&step.borrow(), &mut timings).expect("a step");
            whole.push(start.elapsed().as_secs_f64() * 1e3);
            let infos = program.commands(0, n_rows);
            let of = timings.iter().filter(|t| infos[t.command].kernel.starts_with("attention"));
            attention.push(of.map(|t| t.duration).sum::<f64>() * 1e3);
        }
        let least = |of: Vec<f64>| of.into_iter().fold(f64::INFINITY, f64::min);
        println!("{n:3} rows: {:7.2} ms, {:7.2} of them attention", least(whole), least(attention));
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("135m", |s| s.as_str());
    let prompt: usize = args.get(1).map_or(512, |s| s.parse().expect("a number of prompt tokens"));
    let threads = args.get(2).map(|s| s.parse().expect("a number of threads"));
    let mut shape = shape(name).expect("a known shape");
    if let Some(name) = args.get(3) {
        shape.block = block_types().into_iter().find(|block| block.name() == name).expect("a known type");
    }
    let kv_type = match args.get(4).map_or("i16", |s| s.as_str()) {
        "i16" => KvType::I16,
        "i8" => KvType::I8,
        "f16" => KvType::F16,
        _ => panic!("a known KV type"),
    };
    let device = CpuDevice::new(Options { threads, isa: None }).expect("the device");
    println!("{}; {name}", device.describe());
    let plan = fusion::fuse(&plan(&shape), device.fusion());
    let n_answers: usize = args.get(5).map_or(0, |s| s.parse().expect("a number of answers"));
    let limits = Limits {
        max_rows: if n_answers == 0 { prompt.max(1) } else { 512 },
        max_outputs: 1 + n_answers,
        max_spans: 4 + n_answers,
        n_ctx: prompt + 256,
        page_len: device.page_len(),
        n_pages: vec![(prompt + 256) / device.page_len() + 2 + 4 * n_answers; plan.kv.groups.len()],
        n_states: 0,
        background_rows: 0,
        kv_type,
        numerics: Numerics::Fast,
    };
    for item in device.memory_plan(std::slice::from_ref(&plan), &limits).expect("a memory plan").items {
        println!("  {:10.3} MB {:?} {}", item.bytes as f64 / 1e6, item.residence, item.what);
    }
    let mut program =
        device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).expect("a program");
    if n_answers > 0 {
        return print_chunks(program.as_mut(), &plan, &limits, prompt, n_answers);
    }
    for round in 0..3 {
        let mut sequences = Sequences::new(1, &plan.kv, &limits, 1000);
        let mut timings = Vec::new();
        let step = sequences.step(&[(0, prompt)]).with_outputs(vec![prompt as u32 - 1], Want::BEST);
        let start = Instant::now();
        program.run_timed(&step.borrow(), &mut timings).expect("a step");
        let prefill = start.elapsed().as_secs_f64();
        println!(
            "round {round}: prefill {prompt}: {:.1} tok/s ({:.1} ms)",
            prompt as f64 / prefill,
            prefill * 1e3
        );
        if round == 2 {
            print(&*program, prompt, &timings, 1);
        }
        timings.clear();
        let n = 64;
        let steps: Vec<_> = (0..n).map(|_| sequences.step(&[(0, 1)])).collect();
        let start = Instant::now();
        for step in &steps {
            program.run_timed(&step.borrow(), &mut timings).expect("a step");
        }
        let decode = start.elapsed().as_secs_f64() / n as f64;
        let bytes = plan.weight_bytes_per_token() as f64;
        println!(
            "round {round}: decode: {:.1} tok/s ({:.3} ms, {:.1} GB/s of {:.1} MB)",
            1.0 / decode,
            decode * 1e3,
            bytes / decode / 1e9,
            bytes / 1e6
        );
        if round == 2 {
            print(&*program, 1, &timings, n);
        }
    }
    let peaks = device.peaks();
    println!(
        "read {:.1} GB/s, int8 {:.0} Gop/s, f32 {:.0} Gop/s",
        peaks.read_bytes_per_second / 1e9,
        peaks.int8_ops_per_second / 1e9,
        peaks.f32_ops_per_second / 1e9
    );
}
