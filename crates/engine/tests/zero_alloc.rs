//! After the prompt, a token costs no allocation: scheduling, the step, sampling with every stage, detokenising, stop
//! strings and the event included. Counted by the allocator itself. Its own test binary, so that nothing else counts.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use device::Device;
use ingle_engine::*;

/// Of all threads: a device's workers count too.
static COUNT: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator with what was given; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

fn check(device: Arc<dyn Device>, name: &str, sampling: SamplingParams, n_sequences: usize) {
    let mut engine = Engine::new(model_with_text(name), &device, &options(400, 32, n_sequences)).unwrap();
    let request = |seed: u32| Request {
        sampling: SamplingParams { seed: Some(seed.into()), ..sampling.clone() },
        stop: vec!["never, never".into(), " word95!word96".into()],
        ignore_end: true,
        max_tokens: Some(300),
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
    steps(&mut engine, 16); // the prompts, and a few tokens to warm up
    let before = allocations();
    steps(&mut engine, 256);
    let counted = allocations() - before;
    assert!(n_tokens >= 256 * n_sequences && text.len() > 256, "{n_tokens} tokens, {text:?}");
    assert_eq!(counted, 0, "{counted} allocations over 256 decode steps on {} ({name})", device.name());
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
        logit_bias: vec![(3, 1.0), (4, f32::NEG_INFINITY)],
        logprobs: true,
        ..SamplingParams::default()
    }
}

/// The only test of this binary: another would count too.
#[test]
fn decoding_allocates_nothing() {
    let before = allocations();
    std::hint::black_box(vec![1u8; 100]);
    assert!(allocations() > before, "the counter counts");
    for name in ["llama", "mistral", "gemma3"] {
        for n_sequences in [1, 3] {
            let devices: [Arc<dyn Device>; 2] =
                [Arc::new(History::default()), Arc::new(device::null::NullDevice::default())];
            for device in devices {
                check(device.clone(), name, SamplingParams::greedy(), n_sequences);
                check(device.clone(), name, every_stage(), n_sequences);
                check(device, name, SamplingParams { top_k: 40, ..every_stage() }, n_sequences);
            }
            // Made only now: its workers allocate while they start.
            let cpu =
                device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
            check(Arc::new(cpu), name, every_stage(), n_sequences);
        }
    }
}
