//! Tests with fewer pages than the sequences need: the youngest are parked and resumed, nothing
//! fails, and no answer changes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::*;
use device::{Device, Numerics};
use device_testing::null::NullDevice;
use device_testing::{Scarce, cases};
use ingle_engine::*;
use proptest::prelude::*;
use weights::{Access, BlockType, Bytes, codec};

fn engine_with(name: &str, depth: usize, budget: Option<u64>, options: LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(NullDevice::default().with_steps_in_flight(depth));
    let options = LoadOptions { kv_budget: budget, ..options };
    Engine::new(model_with_text(name), &device, &options).unwrap()
}

/// Bytes of pages for one sequence of the whole context.
fn one_sequence(engine: &Engine) -> u64 {
    bytes_of_sequence(&engine.plan().kv, engine.limits(), engine.limits().n_ctx)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    #[test]
    fn no_answer_changes_and_nothing_fails(
        kinds in prop::collection::vec(0u64..1000, 1..10), depth in 1usize..5, n_slots in 1usize..6, chunk in 8usize..40,
        more in 0.0f64..2.0, family in 0usize..3, cancelled in 0u64..9,
    ) {
        let name = ["llama", "mistral", "gemma3"][family];
        let load = || options(96, chunk, n_slots);
        let mut plenty = engine_with(name, 1, None, load());
        let budget = (one_sequence(&plenty) as f64 * (1.0 + more)) as u64;
        let cancel = |kind: u64| (kind % 9 == cancelled).then_some((kind % 5) as usize);
        let expected = answers(&mut plenty, &kinds, &cancel);
        let mut short = engine_with(name, depth, Some(budget), load());
        let found = answers(&mut short, &kinds, &cancel);
        prop_assert!(short.kv().held_bytes() <= budget);
        for (a, b) in expected.iter().zip(&found) {
            prop_assert!(!matches!(b.1, FinishReason::Failed(_)), "{:?}", b.1);
            let n = a.0.len().min(b.0.len());
            prop_assert_eq!(&a.0[..n], &b.0[..n]);
            prop_assert!(a == b || a.1 == FinishReason::Cancelled || b.1 == FinishReason::Cancelled);
        }
        prop_assert_eq!(plenty.n_parked(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40)))]

    /// A device with memory for little more than one sequence, in granules, behaves like an
    /// exhausted budget.
    #[test]
    fn a_device_without_memory_is_as_good_as_a_budget(
        kinds in prop::collection::vec(0u64..1000, 1..10), depth in 1usize..5, n_slots in 1usize..6, chunk in 8usize..40,
        more in 0usize..20, family in 0usize..3, granule in 1usize..6,
    ) {
        let name = ["llama", "mistral", "gemma3"][family];
        let load = || options(96, chunk, n_slots);
        let never = |_: u64| None;
        let mut plenty = engine_with(name, 1, None, load());
        let expected = answers(&mut plenty, &kinds, &never);
        let null = NullDevice::default().with_steps_in_flight(depth).with_granule(granule);
        let scarce = Scarce::new(Arc::new(null));
        let device: Arc<dyn Device> = Arc::new(scarce.clone());
        let mut short = Engine::new(model_with_text(name), &device, &load()).unwrap();
        let (kv, limits) = (&short.plan().kv, short.limits());
        let of_group = |group: &device::KvGroup| {
            let n = pages_of_sequence(group.window, limits.n_ctx, limits.max_rows, limits.page_len) + 1;
            n.next_multiple_of(granule)
        };
        let least: usize = kv.groups.iter().map(of_group).sum();
        scarce.allow(least + more);
        prop_assert_eq!(&answers(&mut short, &kinds, &never), &expected);
        short.kv().check().unwrap();
        prop_assert!(scarce.n_committed() <= least + more);
        short.clear_prefix_cache();
        short.give_back_memory().unwrap();
        prop_assert_eq!(scarce.n_committed(), 0);
    }
}

/// A transient failure of one commit is not noticed while other sequences run.
#[test]
fn a_refused_commit_is_tried_again() {
    let expected =
        answers(&mut engine_with("llama", 1, None, options(96, 16, 4)), &[1, 2, 3, 4, 5], &|_| None);
    for refused in 1..12 {
        let scarce = Scarce::new(Arc::new(NullDevice::default()));
        scarce.refuse(refused);
        let device: Arc<dyn Device> = Arc::new(scarce.clone());
        let mut engine = Engine::new(model_with_text("llama"), &device, &options(96, 16, 4)).unwrap();
        assert_eq!(answers(&mut engine, &[1, 2, 3, 4, 5], &|_| None), expected, "commit {refused}");
        assert!(scarce.n_commits() > refused);
    }
}

/// Pages for the oldest sequence are committed before it starts, so it finishes although no more
/// memory is available.
#[test]
fn the_oldest_finishes_when_no_page_is_given_any_more() {
    for (name, granule) in [("llama", 1), ("gemma3", 3)] {
        let scarce = Scarce::new(Arc::new(NullDevice::default().with_granule(granule)));
        let device: Arc<dyn Device> = Arc::new(scarce.clone());
        let mut engine = Engine::new(model_with_text(name), &device, &options(256, 32, 4)).unwrap();
        let request = |seed: u32, max_tokens| Request {
            max_tokens: Some(max_tokens),
            ignore_end: true,
            sampling: SamplingParams::greedy(),
            ..Request::new((0..30).map(|i| (i * 7 + seed * 13) % 150).collect())
        };
        let oldest = engine.add(request(0, 200)).unwrap();
        let others: Vec<_> = (1..4).map(|seed| engine.add(request(seed, 150)).unwrap()).collect();
        let mut tokens = std::collections::HashMap::<SequenceId, Vec<u32>>::new();
        let mut on_event = |event: Event<'_>| match event {
            Event::Token { sequence, id, .. } => tokens.entry(sequence).or_default().push(id),
            Event::PromptToken { .. } | Event::Progress { .. } => {}
            Event::Done { reason, .. } => assert_eq!(*reason, FinishReason::MaxTokens, "{name}"),
        };
        engine.step(&mut on_event).unwrap();
        // From here on, another process has all other memory.
        scarce.allow(scarce.n_committed());
        while engine.step(&mut on_event).unwrap() {
            engine.kv().check().unwrap();
        }
        assert!(engine.n_parked() > 0, "{name}: the others had to wait");
        let n_vocab = engine.model().n_vocab();
        for (seed, id) in [oldest].into_iter().chain(others).enumerate() {
            let n = if id == oldest { 200 } else { 150 };
            let expected = device_testing::null::greedy(&request(seed as u32, n).tokens, n, n_vocab);
            assert_eq!(tokens[&id], expected, "{name}, sequence {seed}");
        }
    }
}

/// Without a free page, a cached page or a sequence to park, the sequence waits, and goes on when
/// there is memory.
#[test]
fn what_has_no_memory_waits_and_is_not_ended() {
    let scarce = Scarce::new(Arc::new(NullDevice::default()));
    let device: Arc<dyn Device> = Arc::new(scarce.clone());
    let mut engine = Engine::new(model_with_text("llama"), &device, &options(256, 16, 2)).unwrap();
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 150).collect();
    let request = || Request {
        max_tokens: Some(60),
        ignore_end: true,
        sampling: SamplingParams::greedy(),
        ..Request::new(prompt.clone())
    };
    scarce.allow(2);
    engine.add(request()).unwrap();
    let mut tokens = Vec::new();
    let (mut n_steps, mut is_done) = (0, false);
    while engine
        .step(&mut |event| match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::PromptToken { .. } | Event::Progress { .. } => {}
            Event::Done { reason, .. } => {
                assert_eq!(*reason, FinishReason::MaxTokens);
                is_done = true;
            }
        })
        .unwrap()
    {
        n_steps += 1;
        if n_steps % 10 == 0 {
            scarce.allow(2 + n_steps / 10);
        }
        assert!(n_steps < 1000);
    }
    assert!(is_done && n_steps > 70, "it waited");
    assert_eq!(tokens, device_testing::null::greedy(&prompt, 60, engine.model().n_vocab()));
    // A waiting sequence can be cancelled.
    engine.clear_prefix_cache();
    engine.give_back_memory().unwrap();
    scarce.allow(0);
    let id = engine.add(request()).unwrap();
    assert!(engine.step(&mut |_| {}).unwrap());
    engine.cancel(id);
    let mut reason = None;
    let mut on_event = |event: Event<'_>| {
        if let Event::Done { reason: why, .. } = event {
            reason = Some(why.clone());
        }
    };
    assert!(!engine.step(&mut on_event).unwrap());
    assert_eq!(reason, Some(FinishReason::Cancelled));
}

/// Unused models are unloaded before a sequence is parked.
#[test]
fn idle_models_go_before_anybody_is_parked() {
    for n_idle in [0usize, 1, 5] {
        let scarce = Scarce::new(Arc::new(NullDevice::default()));
        let governor = Governor::of(Box::new(platform::Script::default()), MemoryCap::Max);
        let idle = Arc::new(std::sync::atomic::AtomicUsize::new(n_idle));
        let (left, allowed) = (idle.clone(), scarce.clone());
        governor.set_unload_idle(Arc::new(move || {
            use std::sync::atomic::Ordering::Relaxed;
            let is_any = left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
            if is_any {
                allowed.allow(allowed.n_committed() + 12);
            }
            is_any
        }));
        let device: Arc<dyn Device> = Arc::new(scarce.clone());
        let load = LoadOptions { governor: Some(governor), ..options(96, 16, 6) };
        let mut engine = Engine::new(model_with_text("llama"), &device, &load).unwrap();
        scarce.allow(8);
        let kinds = [1, 2, 3, 4, 5, 6];
        let expected = answers(&mut engine_with("llama", 1, None, options(96, 16, 6)), &kinds, &|_| None);
        assert_eq!(answers(&mut engine, &kinds, &|_| None), expected);
        let left = idle.load(std::sync::atomic::Ordering::Relaxed);
        match n_idle {
            0 => assert!(engine.n_parked() > 0),
            1 => assert_eq!(left, 0),
            _ => assert!(engine.n_parked() == 0 && left < n_idle, "{n_idle}: {left} left"),
        }
    }
}

#[test]
fn sixty_four_slots_run_where_three_whole_contexts_fit() {
    let load = || options(256, 64, 64);
    let budget = 3 * one_sequence(&engine_with("llama", 1, None, load()));
    let mut engine = engine_with("llama", 1, Some(budget), load());
    let request = |i: u32| {
        let prompt = (0..40).map(|t| (t * 7 + i * 13) % 150).collect();
        Request {
            max_tokens: Some(150),
            ignore_end: true,
            reuse: i.is_multiple_of(2),
            ..Request::new(prompt)
        }
    };
    let greedy = |i| Request { sampling: SamplingParams::greedy(), ..request(i) };
    let ids: Vec<_> = (0..64).map(|i| engine.add(greedy(i)).unwrap()).collect();
    let mut tokens = std::collections::HashMap::<SequenceId, Vec<u32>>::new();
    let mut ended = Vec::new();
    while engine
        .step(&mut |event| match event {
            Event::Token { sequence, id, .. } => tokens.entry(sequence).or_default().push(id),
            Event::PromptToken { .. } | Event::Progress { .. } => {}
            Event::Done { sequence, reason, .. } => {
                assert_eq!(*reason, FinishReason::MaxTokens);
                ended.push(sequence);
            }
        })
        .unwrap()
    {
        engine.kv().check().unwrap();
        assert!(engine.kv().held_bytes() <= budget);
    }
    assert!(engine.n_parked() > 0, "there was a shortage");
    assert_eq!(ended[0], ids[0], "the oldest was never parked");
    for (i, id) in ids.iter().enumerate() {
        let prompt = greedy(i as u32).tokens;
        let n_vocab = engine.model().n_vocab();
        assert_eq!(tokens[id], device_testing::null::greedy(&prompt, 150, n_vocab), "sequence {i}");
    }
}

#[test]
fn a_context_that_nobody_asked_for_fits_the_budget() {
    let device: Arc<dyn Device> = Arc::new(NullDevice::default());
    let load = |kv_budget| LoadOptions { n_ctx: None, kv_budget, ..options(256, 64, 3) };
    for name in ["llama", "gemma3", "mistral"] {
        let whole = Engine::new(model_with_text(name), &device, &load(None)).unwrap();
        assert_eq!(whole.limits().n_ctx, whole.model().spec().n_ctx_train, "{name}");
        assert_eq!(whole.memory().n_ctx_reduced_from, None);
        let budget = bytes_of_sequence(&whole.plan().kv, whole.limits(), 40);
        let short = Engine::new(model_with_text(name), &device, &load(Some(budget))).unwrap();
        let n_ctx = short.limits().n_ctx;
        let one = |n| bytes_of_sequence(&short.plan().kv, short.limits(), n);
        assert!(one(n_ctx) <= budget, "{name}: {n_ctx}");
        if n_ctx < whole.limits().n_ctx {
            assert!(n_ctx >= 32, "{name}: {n_ctx}");
            assert_eq!(short.memory().n_ctx_reduced_from, Some(whole.limits().n_ctx));
        }
    }
}

#[test]
fn a_budget_holds_one_sequence_at_least() {
    let device: Arc<dyn Device> = Arc::new(NullDevice::default());
    let options = LoadOptions { kv_budget: Some(1000), ..options(256, 64, 2) };
    let error = Engine::new(model_with_text("llama"), &device, &options).err().unwrap().to_string();
    assert!(
        error.contains("KV budget is 1000 bytes") && error.contains("one sequence of 256 tokens"),
        "{error}"
    );
}

/// A fixture whose matrices are stored in blocks of this type.
fn quantised(name: &str, block: BlockType) -> Arc<Model> {
    let mut checkpoint = formats::open(&fixture(name), Access::Map).unwrap();
    let mut n_quantised = 0;
    for tensor in &mut checkpoint.tensors {
        let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
        if tensor.shape.len() != 2 || !n_cols.is_multiple_of(block.block_len()) {
            continue;
        }
        let mut values = vec![0f32; n_cols];
        let mut data = vec![0u8; n_rows * block.row_bytes(n_cols)];
        let rows = tensor.data.chunks_exact(tensor.block.row_bytes(n_cols));
        for (row, out) in rows.zip(data.chunks_exact_mut(block.row_bytes(n_cols))) {
            codec::dequantize_row(tensor.block, row, &mut values);
            codec::quantize_row(block, &values, out);
        }
        (tensor.block, tensor.data) = (block, Bytes::from_slice(&data));
        n_quantised += 1;
    }
    assert!(n_quantised > 10, "{name}: {n_quantised} matrices have rows of {}", block.block_len());
    Arc::new(Model::from_checkpoint(&fixture(name), checkpoint, Some(tokenizer())).unwrap())
}

/// Four requests with little memory give the same tokens, and the same bits of requested
/// log-probabilities, as alone. Parking and resuming recomputes positions in other chunks and
/// beside other sequences.
fn parked_sequences_answer_as_undisturbed(
    name: &str,
    model: &Arc<Model>,
    device: &Arc<dyn Device>,
    numerics: Numerics,
    request: impl Fn(u32) -> Request,
) {
    let load = |n, budget| LoadOptions { numerics, kv_budget: budget, ..options(96, 24, n) };
    let mut alone = Engine::new(model.clone(), device, &load(1, None)).unwrap();
    let budget = one_sequence(&Engine::new(model.clone(), device, &load(4, None)).unwrap()) * 3 / 2;
    let mut short = Engine::new(model.clone(), device, &load(4, Some(budget))).unwrap();
    let ids: Vec<_> = (0..4).map(|seed| short.add(request(seed)).unwrap()).collect();
    let mut found = std::collections::HashMap::<SequenceId, Vec<(u32, Option<u32>)>>::new();
    while short
        .step(&mut |event| {
            if let Event::Token { sequence, id, logprob, .. } = event {
                found.entry(sequence).or_default().push((id, logprob.map(f32::to_bits)));
            }
        })
        .unwrap()
    {}
    assert!(short.n_parked() > 0, "{name} on {}: there was a shortage", device.name());
    for (seed, id) in ids.iter().enumerate() {
        let expected = alone.complete(Request { reuse: false, ..request(seed as u32) }).unwrap();
        let mut bits = expected.logprobs.iter().map(|logprob| logprob.to_bits());
        let expected: Vec<_> = expected.tokens.iter().map(|token| (*token, bits.next())).collect();
        assert_eq!(found[id], expected, "{name} on {}, sequence {seed}", device.name());
    }
}

/// A request of the tests under a shortage.
fn request_of(seed: u32, logprobs: bool) -> Request {
    Request {
        sampling: SamplingParams { logprobs, ..sampled(u64::from(seed), 16) },
        max_tokens: Some(40),
        ignore_end: true,
        ..Request::new((0..45).map(|i| (i * 37 + seed * 11) % 150).collect())
    }
}

#[test]
fn on_the_cpu_not_a_bit_of_an_answer_changes() {
    let cases = [
        ("llama", Some(BlockType::Q8_0), Numerics::Fast),
        ("qwen3", Some(BlockType::Q4_0), Numerics::Fast),
        ("gemma3", Some(BlockType::Q8_0), Numerics::Fast),
        ("mistral", None, Numerics::Deterministic),
        ("qwen3_moe", None, Numerics::Deterministic),
        ("lfm2", None, Numerics::Deterministic),
        ("qwen3_5", None, Numerics::Deterministic),
        ("nemotron_h", None, Numerics::Deterministic),
        ("falcon_h1", None, Numerics::Deterministic),
    ];
    for (name, block, numerics) in cases {
        let model = block.map_or_else(|| model_with_text(name), |block| quantised(name, block));
        let device: Arc<dyn Device> = Arc::new(
            device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap(),
        );
        parked_sequences_answer_as_undisturbed(name, &model, &device, numerics, |seed| {
            request_of(seed, true)
        });
    }
}

/// Mixtures, also with recurrent layers, whose experts, or experts and first layer, are on another
/// device.
#[test]
fn on_two_devices_not_a_bit_of_an_answer_changes() {
    let cpu =
        || Arc::new(device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(1), isa: None }).unwrap());
    for name in ["qwen3_moe", "qwen3_5_moe", "granitemoehybrid", "gpt_oss"] {
        let model = model_with_text(name);
        let layers = model.plan().nodes.iter().filter_map(|node| node.layer);
        let n_layers = layers.max().map_or(0, |last| last as usize + 1);
        for first_layers in [0, 1] {
            let share = device_split::Share { n_layers, first_layers, expert_layers: n_layers };
            let device: Arc<dyn Device> =
                Arc::new(device_split::SplitDevice::new(cpu(), cpu(), share).unwrap());
            let request = |seed| request_of(seed, true);
            parked_sequences_answer_as_undisturbed(name, &model, &device, Numerics::Deterministic, request);
        }
    }
}

/// Metal, emulated: tokens that the CPU chooses from logits, and tokens that the GPU chooses, with
/// steps in flight when a sequence is parked. Runs of more cases have windows and short
/// convolutions.
#[test]
fn on_metal_not_a_bit_of_an_answer_changes() {
    let Some(device) = emulated_metal() else { return };
    let models = [("llama", Some(BlockType::Q8_0)), ("qwen3_5", None), ("gemma3", None), ("lfm2", None)];
    let n_models = if device_testing::cases(1) > 1 { 4 } else { 2 };
    for (name, block) in models.into_iter().take(n_models) {
        let model = block.map_or_else(|| model_with_text(name), |block| quantised(name, block));
        let request = |seed| request_of(seed, seed < 2);
        parked_sequences_answer_as_undisturbed(name, &model, &device, Numerics::Deterministic, request);
    }
}
