//! Test that a token after the prompt costs no allocation: scheduling, the step, sampling with
//! every stage, detokenising, stop strings and the event. The allocator itself counts. It is a test
//! binary of its own, so that nothing else counts.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::*;
use device::Device;
use device_testing::CountingAllocator;
use ingle_engine::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Check steps of one row of each sequence.
fn check(device: Arc<dyn Device>, name: &str, sampling: SamplingParams, n_sequences: usize) {
    let engine = Engine::new(model_with_text(name), &device, &options(400, 32, n_sequences)).unwrap();
    check_engine(engine, sampling, n_sequences, 256);
}

/// Check steps with draft tokens, from the text or from a second model, verified always or if it
/// pays.
fn check_guesses(device: Arc<dyn Device>, name: &str, sampling: SamplingParams, n_sequences: usize) {
    for (speculate, has_model) in [
        (Speculate::Always, false),
        (Speculate::Auto, false),
        (Speculate::Always, true),
        (Speculate::Auto, true),
    ] {
        // A step gives at most three tokens, so all sequences go on.
        let options = LoadOptions { speculate, max_draft: 2, ..options(400, 32, n_sequences) };
        let mut engine = Engine::new(model_with_text(name), &device, &options).unwrap();
        if has_model {
            let draft = DraftModel::new(model_with_text("mistral"), &engine, &options).unwrap();
            engine.set_proposer(Box::new(draft));
        }
        check_engine(engine, sampling.clone(), n_sequences, 80);
    }
}

/// A constraint that allows three of four tokens, and allocates nothing.
struct ThreeOfFour;

impl Constraint for ThreeOfFour {
    fn mask(&mut self, words: &mut [u32]) -> ConstraintResult<bool> {
        words.fill(0x7777_7777);
        Ok(true)
    }
    fn accept(&mut self, _: u32) -> ConstraintResult<()> {
        Ok(())
    }
    fn roll_back(&mut self, _: usize) -> ConstraintResult<()> {
        Ok(())
    }
    fn n_valid(&mut self, tokens: &[u32]) -> usize {
        tokens.iter().take_while(|token| **token % 4 != 3).count()
    }
    fn is_over(&self) -> bool {
        false
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(ThreeOfFour)
    }
}

fn check_engine(mut engine: Engine, sampling: SamplingParams, n_sequences: usize, n_steps: usize) {
    // Every second sequence has a constraint, if sampling alone leaves enough tokens.
    let is_constrained = |seed: u32| seed % 2 == 1 && sampling.logit_bias.len() < 10;
    let request = |seed: u32| Request {
        constraint: is_constrained(seed).then(|| Box::new(ThreeOfFour) as Box<dyn Constraint>),
        stop_tokens: [159].into(),
        min_tokens: 1000,
        sampling: SamplingParams { seed: Some(seed.into()), ..sampling.clone() },
        stop: text::Stops::new(&["never, never", " word95!word96"]).unwrap(),
        ignore_end: true,
        max_tokens: Some(340),
        ..Request::new((0..50).map(|i| (i * 7 + seed) % 150).collect())
    };
    // Fill the prefix cache, so that decoding also evicts.
    for seed in 10..16 {
        engine.complete(request(seed)).unwrap();
    }
    for seed in 0..n_sequences as u32 {
        engine.add(request(seed)).unwrap();
    }
    let (mut n_tokens, mut text) = (0, String::with_capacity(1 << 16));
    let mut steps = |engine: &mut Engine, n: usize| {
        for _ in 0..n {
            engine
                .step(&mut |event| {
                    n_tokens += 1;
                    text.push_str(event.text());
                })
                .unwrap();
        }
    };
    steps(&mut engine, 16 + 2 * n_sequences); // the prompts, and a few tokens to warm up
    let before = CountingAllocator::calls();
    steps(&mut engine, n_steps);
    let counted = CountingAllocator::calls() - before;
    assert!(n_tokens >= n_steps * n_sequences && text.len() > n_steps, "{n_tokens} tokens, {text:?}");
    assert_eq!(engine.n_running(), n_sequences, "all go on");
    let (name, device) = (engine.model().path().display(), engine.device().name());
    assert_eq!(counted, 0, "{counted} allocations over {n_steps} decode steps on {device} ({name})");
}

/// Check steps whose tokens only the host can choose, on a GPU that runs nothing and so leaves
/// zeros. (Steps in flight are checked by the device's own test, and on the devices above.)
fn check_metal(name: &str) {
    let metal =
        Arc::new(device_metal::MetalDevice::new(device_metal::gpu::null::NullGpu::new("Apple M4 Pro")));
    let device: Arc<dyn Device> = metal.clone();
    for sampling in [every_stage(), SamplingParams { top_k: 40, ..every_stage() }] {
        let options = LoadOptions { kv_type: Some(device::KvType::F16), ..options(128, 32, 1) };
        let mut engine = Engine::new(model_with_text(name), &device, &options).unwrap();
        let request = Request {
            sampling: SamplingParams { seed: Some(1), ..sampling },
            ignore_end: true,
            max_tokens: Some(50),
            reuse: false,
            ..Request::new((0..50).map(|i| i * 7 % 150).collect())
        };
        // Committing pages allocates a buffer, and they stay committed for the next sequence.
        engine.generate(request.clone(), |_| {}).unwrap();
        let mut counts = Vec::with_capacity(100);
        engine.generate(request, |_| counts.push(CountingAllocator::calls())).unwrap();
        assert_eq!(counts.len(), 51, "50 tokens and the end");
        assert_eq!(counts[48] - counts[5], 0, "allocations of 43 tokens on Metal ({name})");
    }
}

fn every_stage() -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_k: 0,
        top_p: 0.95,
        min_p: 0.01,
        repeat_penalty: 1.1,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        logit_bias: [(3, 1.0), (4, f32::NEG_INFINITY)].into(),
        logprobs: true,
        ..SamplingParams::default()
    }
}

/// Only four tokens, so that texts repeat and can be drafted.
fn few_tokens() -> SamplingParams {
    let logit_bias = (0..160).filter(|t| *t < 95 || *t > 98).map(|t| (t, f32::NEG_INFINITY)).collect();
    SamplingParams { logit_bias, ..every_stage() }
}

/// The only test of this binary: another one would count too.
#[test]
fn decoding_allocates_nothing() {
    let before = CountingAllocator::calls();
    std::hint::black_box(vec![1u8; 100]);
    assert!(CountingAllocator::calls() > before, "the counter counts");
    for name in ["llama", "mistral", "gemma3"] {
        for n_sequences in [1, 3] {
            let null = device_testing::null::NullDevice::default();
            let devices: [Arc<dyn Device>; 4] = [
                Arc::new(History::default()),
                Arc::new(History { ahead: 3, ..History::default() }),
                Arc::new(null.clone()),
                Arc::new(null.with_steps_in_flight(4)),
            ];
            for device in devices {
                check(device.clone(), name, SamplingParams::greedy(), n_sequences);
                check(device.clone(), name, every_stage(), n_sequences);
                check(device.clone(), name, SamplingParams { top_k: 40, ..every_stage() }, n_sequences);
                if n_sequences > 1 {
                    check_guesses(device, name, few_tokens(), n_sequences);
                }
            }
            // Created only now, since its workers allocate while they start.
            let cpu =
                device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
            let cpu: Arc<dyn Device> = Arc::new(cpu);
            check(cpu.clone(), name, every_stage(), n_sequences);
            if n_sequences == 1 && name == "llama" {
                check(cpu.clone(), name, every_stage(), 16);
            }
            if n_sequences == 1 {
                check_guesses(cpu, name, few_tokens(), n_sequences);
            }
        }
        check_metal(name);
    }
    // Experts on one device, everything else on another.
    for n_sequences in [1, 3] {
        let cpu = || {
            Arc::new(device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(1), isa: None }).unwrap())
        };
        let share = device_split::Share { n_layers: 4, first_layers: 1, expert_layers: 3 };
        let split: Arc<dyn Device> = Arc::new(device_split::SplitDevice::new(cpu(), cpu(), share).unwrap());
        check(split.clone(), "qwen3_moe", every_stage(), n_sequences);
        check_guesses(split, "qwen3_moe", few_tokens(), n_sequences);
    }
}
