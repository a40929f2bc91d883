//! A test device that shows every mistake of the engine in its answers.
//!
//! Its KV pages hold the tokens themselves. The "logits" of a row are a hash of all tokens that the
//! row attends to, found through the page tables as by a real device. So a wrong page, a lost
//! position, a written shared page or a misplaced token changes the answer, and [`next_token`]
//! computes the right answer.
#![allow(dead_code, clippy::unwrap_used)]

pub mod pictures;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use device::{
    Arithmetic, CommandInfo, Device, Error, FusedKind, Item, KvType, Limits, MemoryPlan, PAGE_NONE, Peaks,
    Plan, Program, Residence, Step, Timing, ValueId, Want, Weight,
};
use device_lower::hosted::{HostProgram, Hosted};
use ingle_engine::{
    Engine, Event, FinishReason, LoadOptions, Model, Overflow, Prefill, Request, SamplingParams, SequenceId,
    TokenizerSource,
};
use serde_json::Value as Json;
use text::Tokenizer;
use weights::{Access, Array, Bytes, Metadata, Value};

/// A fixture folder.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// The Metal device on the emulator; `None` where the emulator does not run.
pub fn emulated_metal() -> Option<Arc<dyn Device>> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        use device_metal::gpu::emulated::{EmulatedGpu, Options};
        let gpu = EmulatedGpu::new(&Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"))).unwrap();
        Some(Arc::new(device_metal::MetalDevice::new(gpu)))
    }
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

/// A fixture model without a tokenizer.
pub fn model(name: &str) -> Arc<Model> {
    Arc::new(
        Model::from_opened(
            &fixture(name),
            formats::open(&fixture(name), Access::Map).unwrap(),
            &TokenizerSource::None,
        )
        .unwrap(),
    )
}

/// A byte-level vocabulary of 160 tokens: bytes, some of them parts of characters, and a few words.
/// Token 159 ends an answer.
pub fn tokenizer() -> Tokenizer {
    let mut metadata = Metadata::default();
    let mut bytes = String::new();
    let mut spans = Vec::new();
    for id in 0..160u32 {
        let token = match id {
            0..=93 => char::from(b'!' + id as u8).to_string(),
            94 => "!!".to_string(),
            95..=120 => format!("Ġword{id}"),
            // bytes above 0xa0: halves of characters
            _ => char::from_u32(0xa1 + id - 121).unwrap().to_string(),
        };
        spans.push((bytes.len() as u32, token.len() as u32));
        bytes.push_str(&token);
    }
    let strings =
        |bytes: &str, spans| Value::Array(Array::Str { bytes: Bytes::from_slice(bytes.as_bytes()), spans });
    metadata.insert("tokenizer.ggml.model".into(), Value::Str("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre".into(), Value::Str("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens".into(), strings(&bytes, spans));
    metadata.insert("tokenizer.ggml.merges".into(), strings("! !", vec![(0, 3)]));
    metadata.insert("tokenizer.ggml.token_type".into(), Value::Array(Array::Int(vec![1; 160])));
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }}!{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
    metadata.insert("tokenizer.chat_template".into(), Value::Str(template.into()));
    metadata.insert("tokenizer.ggml.eos_token_id".into(), Value::Int(159));
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// A fixture model with [`tokenizer`].
pub fn model_with_text(name: &str) -> Arc<Model> {
    let path = fixture(name);
    let checkpoint = formats::open(&path, Access::Map).unwrap();
    Arc::new(Model::from_checkpoint(&path, checkpoint, Some(tokenizer())).unwrap())
}

/// Run until nothing is left, whatever fails. Returns the tokens of each sequence, and the number
/// of failed steps.
pub fn drain_with_failures(engine: &mut Engine) -> (HashMap<SequenceId, Vec<u32>>, usize) {
    let mut got: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    let mut n_failed = 0;
    loop {
        let stepped = engine.step(&mut |event| {
            if let Event::Token { id, sequence, .. } = event {
                got.entry(sequence).or_default().push(id);
            }
        });
        match stepped {
            Ok(true) => {}
            Ok(false) => return (got, n_failed),
            Err(_) => n_failed += 1,
        }
    }
}

/// A greedy request for `max_tokens`.
pub fn greedy(tokens: &[u32], max_tokens: usize) -> Request {
    Request {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        ..Request::new(tokens.to_vec())
    }
}

/// Small sizes, with which pages and chunks matter.
pub fn options(n_ctx: usize, chunk: usize, n_sequences: usize) -> LoadOptions {
    LoadOptions {
        n_ctx: Some(n_ctx),
        chunk: Some(chunk),
        n_sequences,
        page_len: Some(16),
        ..LoadOptions::default()
    }
}

/// An engine over [`History`].
pub fn engine(name: &str, options: &LoadOptions) -> Engine {
    let device: Arc<dyn Device> = Arc::new(History::default());
    Engine::new(model(name), &device, options).unwrap()
}

/// The windows of a model's KV groups.
pub fn windows(model: &Model) -> Vec<Option<usize>> {
    model.plan().kv.groups.iter().map(|g| g.window).collect()
}

/// Answer of [`History`] after `tokens`, from first principles.
pub fn next_token(windows: &[Option<usize>], tokens: &[u32], n_vocab: usize) -> u32 {
    let mut hash = Hash::new();
    for window in windows {
        let first = window.map_or(0, |w| tokens.len().saturating_sub(w));
        tokens[first..].iter().enumerate().for_each(|(i, t)| hash.add((first + i) as u32, *t));
    }
    (hash.0 % n_vocab as u64) as u32
}

/// The next `n` tokens after a prompt.
pub fn continuation(model: &Model, prompt: &[u32], n: usize) -> Vec<u32> {
    let windows = windows(model);
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(next_token(&windows, &tokens, model.n_vocab()));
    }
    tokens.split_off(prompt.len())
}

/// FNV-1a over positions and tokens.
struct Hash(u64);

impl Hash {
    fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, position: u32, token: u32) {
        for word in [position, token] {
            self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
        }
        self.0 ^= self.0 >> 29;
    }
}

/// Meeting point of two threads that should work at the same time: each waits until the other has
/// come as often.
#[derive(Default)]
pub struct Meeting {
    came: Mutex<[usize; 2]>,
    changed: Condvar,
}

impl Meeting {
    /// Come, and wait for the other. Returns true if it came in time.
    pub fn come(&self, side: usize) -> bool {
        let mut came = self.came.lock().unwrap();
        came[side] += 1;
        let mine = came[side];
        self.changed.notify_all();
        let waited = Duration::from_secs(10);
        let (came, _) = self.changed.wait_timeout_while(came, waited, |came| came[1 - side] < mine).unwrap();
        came[1 - side] >= mine
    }
}

/// The test device.
pub struct History {
    /// Memory that the source reports.
    pub memory: platform::SystemMemory,
    /// Step that fails, counted from 0.
    pub fail_at: usize,
    /// Interval of steps that fail; 0: none fails.
    pub fail_every: usize,
    /// Panic instead of failing.
    pub panics: bool,
    /// Attend to one position too many in steps of several rows, like a broken batched kernel.
    pub broken_batches: bool,
    /// Steps submitted so far.
    pub n_runs: Arc<AtomicUsize>,
    /// Steps that may be in flight, less one.
    pub ahead: usize,
    /// Meeting point, as side 0, at every step.
    pub meeting: Option<Arc<Meeting>>,
}

impl Default for History {
    fn default() -> History {
        let memory = platform::SystemMemory { total: 1 << 40, free: 1 << 40 };
        History {
            memory,
            fail_at: usize::MAX,
            fail_every: 0,
            panics: false,
            broken_batches: false,
            n_runs: Arc::default(),
            ahead: 0,
            meeting: None,
        }
    }
}

impl Device for History {
    fn name(&self) -> &'static str {
        "history"
    }
    fn describe(&self) -> String {
        self.name().into()
    }
    fn n_threads(&self) -> usize {
        // With 0 threads it leaves a processor free on any machine.
        0
    }
    fn memory(&self) -> platform::SystemMemory {
        self.memory
    }
    fn fusion(&self) -> &[FusedKind] {
        &[]
    }
    fn kv_types(&self) -> &[KvType] {
        &[KvType::F16, KvType::F32]
    }
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> device::Result<MemoryPlan> {
        let plan = &plans[0];
        let kv = (0..plan.kv.groups.len()).map(|g| {
            let bytes = limits.n_pages[g] * plan.kv.page_bytes(g, limits.kv_type, limits.page_len);
            Item { what: format!("KV pages {g}"), bytes: bytes as u64, residence: Residence::Reserved }
        });
        let logits = 4 * (limits.max_outputs * plan.value(plan.output).cols) as u64;
        let logits = Item { what: "logits".into(), bytes: logits, residence: Residence::Committed };
        Ok(MemoryPlan { items: kv.chain([logits]).collect(), notes: vec![] })
    }
    fn compile(&self, plans: &[Plan], limits: &Limits) -> device::Result<Box<dyn Program>> {
        let plan = &plans[0];
        let n_vocab = plan.value(plan.output).cols;
        let program = HistoryProgram {
            windows: plan.kv.groups.iter().map(|g| g.window).collect(),
            pages: limits.n_pages.iter().map(|n| vec![None; n * limits.page_len]).collect(),
            limits: limits.clone(),
            n_vocab,
            logits: vec![0.0; limits.max_outputs * n_vocab],
            n_outputs: 0,
            fail_at: self.fail_at,
            fail_every: self.fail_every,
            panics: self.panics,
            broken_batches: self.broken_batches,
            n_runs: self.n_runs.clone(),
            meeting: self.meeting.clone(),
        };
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, self.ahead + 1, 1)))
    }
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }
    fn peaks(&self) -> Peaks {
        Peaks {
            read_bytes_per_second: 1.0,
            int8_ops_per_second: 1.0,
            bf16_ops_per_second: 1.0,
            f32_ops_per_second: 1.0,
        }
    }
}

struct HistoryProgram {
    windows: Vec<Option<usize>>,
    /// `(n_groups, n_pages * page_len)` position and token.
    pages: Vec<Vec<Option<(u32, u32)>>>,
    limits: Limits,
    n_vocab: usize,
    logits: Vec<f32>,
    n_outputs: usize,
    fail_at: usize,
    fail_every: usize,
    panics: bool,
    broken_batches: bool,
    n_runs: Arc<AtomicUsize>,
    meeting: Option<Arc<Meeting>>,
}

impl HistoryProgram {
    fn at(&self, step: &Step, slot: u32, group: usize, position: usize) -> usize {
        let page = step.page_table(slot, group, self.windows.len())[position / self.limits.page_len];
        assert_ne!(page, PAGE_NONE, "group {group}, slot {slot}: no page for position {position}");
        page as usize * self.limits.page_len + position % self.limits.page_len
    }

    fn run_step(&mut self, step: &Step) -> device::Result<()> {
        // The engine must check all lengths.
        assert!(!step.tokens.is_empty() && step.tokens.len() <= self.limits.max_rows);
        assert!(step.spans.len() <= self.limits.max_spans && step.outputs.len() <= self.limits.max_outputs);
        assert_eq!(step.spans.iter().map(|s| s.n_rows as usize).sum::<usize>(), step.tokens.len());
        assert!(step.outputs.is_sorted());
        self.n_outputs = step.outputs.len();
        for span in step.spans {
            for row in 0..span.n_rows {
                let position = (span.first_position + row) as usize;
                let token = step.tokens[(span.first_row + row) as usize];
                assert!(position < self.limits.n_ctx && (token as usize) < self.n_vocab);
                for group in 0..self.windows.len() {
                    let at = self.at(step, span.slot, group, position);
                    self.pages[group][at] = Some((position as u32, token));
                }
                let Ok(output) = step.outputs.binary_search(&(span.first_row + row)) else { continue };
                let mut hash = Hash::new();
                for group in 0..self.windows.len() {
                    let first = self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w));
                    for p in first..=position {
                        let (at, token) = self.pages[group][self.at(step, span.slot, group, p)]
                            .unwrap_or_else(|| panic!("position {p} is seen and was never written"));
                        assert_eq!(at as usize, p, "another position's keys");
                        hash.add(at, token);
                    }
                }
                if self.broken_batches && span.n_rows > 1 {
                    hash.add(0, 0);
                }
                let best = (hash.0 % self.n_vocab as u64) as u32;
                let logits = &mut self.logits[output * self.n_vocab..(output + 1) * self.n_vocab];
                for (id, logit) in logits.iter_mut().enumerate() {
                    *logit = ((hash.0 >> (id % 40)) & 0xff) as f32 / 256.0
                        + (id as u32 == best) as u32 as f32 * 9.0;
                }
            }
        }
        if let Some(meeting) = &self.meeting {
            assert!(meeting.come(0), "nobody works beside the device");
        }
        let run = self.n_runs.fetch_add(1, Ordering::Relaxed);
        if run == self.fail_at || self.fail_every > 0 && run % self.fail_every == self.fail_every - 1 {
            assert!(!self.panics, "as asked");
            return Err(Error::Failed { device: "history", reason: "as asked".into() });
        }
        Ok(())
    }
}

impl HostProgram for HistoryProgram {
    fn name(&self) -> &'static str {
        "history"
    }
    fn chooses_in_flight(&self, want: &Want) -> bool {
        !want.logits
    }
    fn compute(
        &mut self,
        step: &Step,
        _: Option<usize>,
        timings: Option<&mut Vec<Timing>>,
    ) -> device::Result<()> {
        self.run_step(step)?;
        if let Some(timings) = timings {
            timings.push(Timing { command: 0, start: 0.0, duration: 1e-6 });
        }
        Ok(())
    }
    fn read(&self, _: ValueId) -> Option<Vec<f32>> {
        None
    }
    fn logits(&self) -> &[f32] {
        &self.logits[..self.n_outputs * self.n_vocab]
    }
    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        let len = self.limits.page_len;
        self.pages[group].copy_within(from as usize * len..(from as usize + 1) * len, to as usize * len);
    }
    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> device::Result<()> {
        let len = self.limits.page_len;
        let page = &self.pages[group][page as usize * len..(page as usize + 1) * len];
        bytes.fill(0);
        for (bytes, position) in bytes.chunks_exact_mut(8).zip(page) {
            let (position, token) = position.unwrap_or((u32::MAX, 0));
            bytes[..4].copy_from_slice(&position.to_le_bytes());
            bytes[4..].copy_from_slice(&token.to_le_bytes());
        }
        Ok(())
    }
    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> device::Result<()> {
        let len = self.limits.page_len;
        assert!(bytes.len() >= 8 * len);
        let page = &mut self.pages[group][page as usize * len..(page as usize + 1) * len];
        for (bytes, position) in bytes.chunks_exact(8).zip(page) {
            let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            *position = (number(0) != u32::MAX).then(|| (number(0), number(4)));
        }
        Ok(())
    }
    fn granule(&self, _: usize) -> usize {
        3
    }
    fn decommit(&mut self, group: usize, pages: std::ops::Range<u32>) {
        let len = self.limits.page_len;
        self.pages[group][pages.start as usize * len..pages.end as usize * len].fill(None);
    }
    fn kept(&self, _: usize) -> &[f32] {
        &[]
    }
    fn commands(&self, _: usize, _: usize) -> Vec<CommandInfo> {
        vec![CommandInfo { kernel: "history".into(), node: 0, layer: None, weight_bytes: 0 }]
    }
}

/// Fixtures that the engine runs: dense and expert families, shared keys and values, windows,
/// several residual streams.
pub const FAMILIES: [&str; 10] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma4_e2b",
    "gemma4_moe",
    "gemma3n",
];

/// Fixtures with recurrent layers: short convolutions; the gated delta rule, whole and by rows;
/// scans instead of attention, as one mixer a layer, beside it, and alone.
pub const RECURRENT: [&str; 7] =
    ["lfm2", "qwen3_5", "kimi_linear", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2"];

/// Reference answers for a fixture (`expected.json`).
pub struct Expected {
    pub input: Vec<u32>,
    pub positions: Vec<usize>,
    /// `(n_positions, n_vocab)`
    pub logits: Vec<Vec<f64>>,
    pub greedy: Vec<u32>,
}

pub fn expected(name: &str) -> Expected {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    let json: Json = serde_json::from_str(&text).unwrap();
    let ids = |v: &Json| v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect::<Vec<_>>();
    let floats = |v: &Json| v.as_array().unwrap().iter().map(|f| f.as_f64().unwrap()).collect::<Vec<_>>();
    Expected {
        input: ids(&json["input_ids"]),
        positions: ids(&json["positions"]).into_iter().map(|p| p as usize).collect(),
        logits: json["logits"].as_array().unwrap().iter().map(floats).collect(),
        greedy: ids(&json["greedy"]),
    }
}

/// Logits of all positions.
pub fn all_logits(engine: &mut Engine, tokens: &[u32], prefill: Prefill) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    engine
        .evaluate(tokens, tokens.len(), prefill, &mut |position, logits| {
            assert_eq!(position, all.len());
            all.push(logits.to_vec());
            Ok(())
        })
        .unwrap();
    all
}

/// Parameters with every stage of sampling and all penalties.
pub fn sampled(seed: u64, window: usize) -> SamplingParams {
    SamplingParams {
        temperature: 4.0,
        top_k: 40,
        top_p: 0.97,
        min_p: 0.001,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.1,
        penalty_window: window,
        seed: Some(seed),
        ..SamplingParams::default()
    }
}

/// Requests of every kind, chosen by `i`.
pub fn request(i: u64) -> Request {
    let prompt = (0..3 + 17 * (i % 5) as u32).map(|t| (t * 31 + i as u32 * 7 + 1) % 150).collect();
    let sampling = match i % 4 {
        0 => SamplingParams::greedy(),
        1 => sampled(i, 0),
        2 => sampled(i, 5),
        _ => SamplingParams { logprobs: i % 8 == 3, ..sampled(i, 64) },
    };
    Request {
        sampling,
        max_tokens: Some(1 + (i * 11 % 45) as usize),
        overflow: if i.is_multiple_of(3) { Overflow::Slide { keep: 4 } } else { Overflow::Stop },
        ignore_end: i.is_multiple_of(2),
        ..Request::new(prompt)
    }
}

/// Tokens and reason of each sequence.
pub type Answers = HashMap<SequenceId, (Vec<u32>, Option<FinishReason>)>;

/// Add an event; nothing may follow a sequence's end.
pub fn note(all: &mut Answers, event: &Event<'_>) {
    let entry = all.entry(event.sequence()).or_default();
    assert!(entry.1.is_none(), "an event after Done");
    match event {
        Event::Token { id, .. } => entry.0.push(*id),
        Event::PromptToken { .. } | Event::Progress { .. } => {}
        Event::Done { reason, .. } => entry.1 = Some((*reason).clone()),
    }
}

/// Run all requests to their end, and cancel some of them after a number of tokens.
pub fn answers(
    engine: &mut Engine,
    kinds: &[u64],
    cancel: &dyn Fn(u64) -> Option<usize>,
) -> Vec<(Vec<u32>, FinishReason)> {
    let ids: Vec<_> = kinds.iter().map(|i| engine.add(request(*i)).unwrap()).collect();
    let mut all = Answers::new();
    let mut failures = 0;
    loop {
        let more = engine.step(&mut |event| note(&mut all, &event));
        engine.kv().check().unwrap();
        for (id, kind) in ids.iter().zip(kinds) {
            if let (Some(n), Some((tokens, None))) = (cancel(*kind), all.get(id))
                && tokens.len() >= n
            {
                engine.cancel(*id);
            }
        }
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                failures += 1;
                assert!(failures < 3, "{error}");
            }
        }
    }
    ids.iter().map(|id| all.remove(id).map(|(tokens, reason)| (tokens, reason.unwrap())).unwrap()).collect()
}
