//! Times of steps in a speech model's shape with random weights, by kernel. An encoder runs over
//! one window of sound. Then steps decode one row for each of five slots that share the encoder's
//! keys and values.
//!
//! `cargo run --release -p ingle-device-cpu --example speech_shape [threads]`

use device::{
    Activation, Device, KvLayer, KvLayerId, KvType, Limits, Numerics, OutputKind, OwnedStep, Plan, Program,
    Timing, ValueId,
};
use device_testing::{AttentionOptions, PlanBuilder, Sequences, committed};
use ingle_device_cpu::{CpuDevice, Options};
use std::collections::BTreeMap;
use weights::BlockType;

const N_LAYERS: usize = 6;
const HIDDEN: usize = 512;
const N_HEADS: usize = 8;
const POSITIONS: usize = 1500;
const N_MELS: usize = 80;
const N_VOCAB: usize = 51_865;
const BEAMS: usize = 5;

fn kv_layers(b: &mut PlanBuilder) -> Vec<(KvLayerId, KvLayerId)> {
    let layer = |encoder_states| KvLayer {
        n_kv_heads: N_HEADS,
        head_dim: HIDDEN / N_HEADS,
        window: None,
        encoder_states,
        values_are_keys: false,
    };
    (0..N_LAYERS).map(|_| (b.kv_layer(layer(None)), b.kv_layer(layer(Some(POSITIONS))))).collect()
}

fn linear(b: &mut PlanBuilder, x: ValueId, n_out: usize) -> ValueId {
    b.linear(x, n_out, BlockType::F16, true)
}

fn mlp(b: &mut PlanBuilder, x: ValueId) -> ValueId {
    let y = b.layer_norm(x, true);
    let y = linear(b, y, 4 * HIDDEN);
    let y = b.activate(y, Activation::GeluErf);
    let y = linear(b, y, HIDDEN);
    b.add(x, y)
}

fn encoder() -> Plan {
    let mut b = PlanBuilder::new(1, N_VOCAB);
    let encoder_states = kv_layers(&mut b);
    let mut x = b.input(N_MELS, 2);
    for stride in [1, 2] {
        let y = b.unfold(x, 3, stride);
        let y = linear(&mut b, y, HIDDEN);
        x = b.activate(y, Activation::GeluErf);
    }
    for _ in 0..N_LAYERS {
        let y = b.layer_norm(x, true);
        let [q, k, v] = [(); 3].map(|()| linear(&mut b, y, HIDDEN));
        let y = b.self_attention(q, k, v, N_HEADS);
        let y = linear(&mut b, y, HIDDEN);
        x = b.add(x, y);
        x = mlp(&mut b, x);
    }
    let x = b.layer_norm(x, true);
    for (_, states) in encoder_states {
        let (k, v) = (linear(&mut b, x, HIDDEN), linear(&mut b, x, HIDDEN));
        b.kv_write(k, v, states);
    }
    Plan { output_kind: OutputKind::Hidden, ..b.finish(x) }
}

fn decoder() -> Plan {
    let mut b = PlanBuilder::new(2, N_VOCAB);
    let layers = kv_layers(&mut b);
    let mut x = b.embed(HIDDEN);
    for (own, states) in layers {
        let y = b.layer_norm(x, true);
        let [q, k, v] = [(); 3].map(|()| linear(&mut b, y, HIDDEN));
        b.kv_write(k, v, own);
        let y = b.attention(q, own, N_HEADS, AttentionOptions::default());
        let y = linear(&mut b, y, HIDDEN);
        x = b.add(x, y);
        let y = b.layer_norm(x, true);
        let q = linear(&mut b, y, HIDDEN);
        let y = b.cross_attention(q, states, N_HEADS);
        let y = linear(&mut b, y, HIDDEN);
        x = b.add(x, y);
        x = mlp(&mut b, x);
    }
    let x = b.select_rows(x);
    let x = b.layer_norm(x, true);
    let logits = b.linear(x, N_VOCAB, BlockType::F16, false);
    b.finish(logits)
}

/// Runs a step several times, and prints the fastest run and its time by kernel.
fn time(program: &mut dyn Program, what: &str, step: &OwnedStep, n_times: usize) {
    let mut best: Option<Vec<Timing>> = None;
    let total = |timings: &[Timing]| timings.iter().map(|t| t.duration).sum::<f64>();
    for _ in 0..n_times {
        let mut timings = Vec::new();
        program.run_timed(&step.borrow(), &mut timings).expect("the step runs");
        if best.as_ref().is_none_or(|best| total(&timings) < total(best)) {
            best = Some(timings);
        }
    }
    let (best, commands) = (best.unwrap_or_default(), program.commands(step.plan, step.tokens.len()));
    let mut kernels: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for timing in &best {
        let entry = kernels.entry(&commands[timing.command].kernel).or_default();
        *entry = (entry.0 + 1, entry.1 + timing.duration);
    }
    println!("{what}: {:.2} ms", total(&best) * 1e3);
    for (kernel, (n, seconds)) in kernels {
        println!("  {:9.3} ms  {n:4} x {kernel}", seconds * 1e3);
    }
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let device = CpuDevice::new(Options { threads, isa: None }).expect("a device");
    println!("{}; {:.1} Gop/s in f32", device.describe(), device.peaks().f32_ops_per_second / 1e9);
    let plans = [encoder(), decoder()];
    let limits = Limits {
        max_rows: POSITIONS,
        max_outputs: BEAMS,
        max_spans: BEAMS,
        n_ctx: 448,
        page_len: 64,
        n_pages: vec![BEAMS * 7, POSITIONS.div_ceil(64)],
        n_states: 0,
        background_rows: 0,
        kv_type: KvType::I16,
        numerics: Numerics::Fast,
    };
    for item in device.memory_plan(&plans, &limits).expect("a memory plan").items {
        println!("{:9.1} MB  {} ({:?})", item.bytes as f64 / 1e6, item.what, item.residence);
    }
    let mut program = device.compile(&plans, &limits).and_then(committed).expect("a program");
    let mut sequences = Sequences::new(1, &plans[0].kv, &limits, 50);
    let write = sequences.write_encoder_states(0, &[0], POSITIONS, 2 * N_MELS);
    (1..BEAMS).for_each(|slot| sequences.share_encoder_states(0, slot));
    time(program.as_mut(), "encoder, 1500 rows", &write, 3);
    let beams: Vec<(usize, usize)> = (0..BEAMS).map(|slot| (slot, 1)).collect();
    for (what, spans) in [("decoder, 1 row", &beams[..1]), ("decoder, 5 beams", &beams[..])] {
        let step = OwnedStep { plan: 1, ..sequences.step(spans) };
        time(program.as_mut(), what, &step, 10);
    }
    let n = POSITIONS as f64;
    println!("one self_attention: {:.2} Gop", 4.0 * n * n * HIDDEN as f64 / 1e9);
}
