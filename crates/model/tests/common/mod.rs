//! Shared helpers: fixtures, and a runner of plans.
#![allow(clippy::unwrap_used)]

pub mod base_rt;
pub mod speech;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use device::{Device, KvType, Limits, Numerics, Op, Plan, Program, STATE_NONE, Span, StateUse, Step};
use device_lower::fusion::fuse;
use device_reference::Reference;
use device_testing::{BEST_AND_LOGITS, committed};
use weights::{Access, Checkpoint};

/// The Metal device on the emulator.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn emulated_metal() -> device_metal::MetalDevice<device_metal::gpu::emulated::EmulatedGpu> {
    use device_metal::gpu::emulated::{EmulatedGpu, Options};
    let gpu = EmulatedGpu::new(&Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"))).unwrap();
    device_metal::MetalDevice::new(gpu)
}

/// Fixtures of dense models: Hugging Face checkpoints with transformers' results.
pub const DENSE: [&str; 10] =
    ["llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3", "phi3", "gemma2", "granite", "olmo2"];

/// Fixtures with other layers, norms or names.
pub const OTHER: [&str; 19] = [
    "glm4",
    "cohere2",
    "exaone4",
    "olmo3",
    "ministral3",
    "seed_oss",
    "ernie4_5",
    "starcoder2",
    "phi",
    "gpt2",
    "mixtral",
    "hunyuan_v1_dense",
    "glm",
    "olmoe",
    "granitemoe",
    "stablelm",
    "arcee",
    "nemotron",
    "cohere",
];

/// Fixtures with experts, shared keys and values, per-layer inputs, or several residual streams.
pub const MIXED: [&str; 6] =
    ["qwen2_moe", "qwen3_moe", "gemma4_e2b", "gemma4_moe", "gemma3n", "gemma3n_beyond"];

/// Fixtures with recurrent layers, whose prompts are longer than the kernels' chunks.
pub const RECURRENT: [&str; 15] = [
    "lfm2",
    "lfm2_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "granitemoehybrid",
    "granitemoehybrid_dense",
    "nemotron_h",
    "nemotron_h_moe",
    "nemotron_h_latent",
    "falcon_h1",
    "mamba2",
    "kimi_linear",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
];

/// Fixtures with other routers, gates, windows or caches.
pub const LATER: [&str; 13] = [
    "glm4_moe",
    "glm4_moe_plain",
    "glm4_moe_mtp",
    "llama4",
    "llama4_plain",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v3_mtp",
    "glm4_moe_lite",
    "ernie4_5_moe",
    "dots1",
];

/// All fixtures.
pub fn all() -> impl Iterator<Item = &'static str> {
    DENSE.into_iter().chain(OTHER).chain(MIXED).chain(LATER).chain(RECURRENT)
}

/// Tolerance for f32 arithmetic in another order than the reference's, over logits of magnitude 10.
pub const TOLERANCE: f32 = 1e-3;

/// Tolerance for a device that rounds factors to half precision, as CUDA does. Only Linux has it.
#[cfg(target_os = "linux")]
pub const HALVES: f32 = 0.1;

/// Models whose logits change more by such rounding, each with a bound. Another expert is chosen if
/// two scores are nearly equal, or a norm divides by small numbers. The interpreter's own logits
/// change by up to 1.9, 0.67 and 0.81 when norm weights change by 2^-12 (the last: 2^-11) of their
/// magnitude.
const SENSITIVE: [(&str, f32); 3] = [("deepseek_v3", 2.5), ("gemma4_e2b", 1.0), ("qwen3_5_moe", 1.0)];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

pub fn open(name: &str) -> Checkpoint {
    formats::open(&folder(name), Access::Map).unwrap()
}

/// The results of transformers.
pub struct Expected {
    pub input_ids: Vec<u32>,
    pub positions: Vec<usize>,
    /// `(positions, n_vocab)`: the logits of every position.
    pub logits: Vec<Vec<f32>>,
    pub greedy: Vec<u32>,
}

pub fn json(file: &str) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder(file)).unwrap()).unwrap()
}

fn numbers(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

pub fn expected(name: &str) -> Expected {
    let json = json(&format!("{name}/expected.json"));
    Expected {
        input_ids: numbers(&json["input_ids"]).into_iter().map(|v| v as u32).collect(),
        positions: numbers(&json["positions"]).into_iter().map(|v| v as usize).collect(),
        logits: json["logits"].as_array().unwrap().iter().map(numbers).collect(),
        greedy: numbers(&json["greedy"]).into_iter().map(|v| v as u32).collect(),
    }
}

/// One sequence on a device, with all its pages.
pub struct Runner {
    program: Box<dyn Program>,
    n_vocab: usize,
    n_groups: usize,
    has_states: bool,
    /// The adapter of the sequence, if the plan has any; by default the first.
    adapter: Option<u32>,
    /// The recurrent state after the last step.
    state: u32,
    position: u32,
}

const PAGES: usize = 16;
const PAGE_LEN: usize = 16;

impl Runner {
    /// The runner with another adapter; 0 is none.
    pub fn with_adapter(self, adapter: u32) -> Runner {
        Runner { adapter: Some(adapter), ..self }
    }

    pub fn new(plan: &Plan) -> Runner {
        Runner::on(&Reference::new(2), plan, Numerics::Deterministic)
    }

    pub fn on(device: &dyn Device, plan: &Plan, numerics: Numerics) -> Runner {
        Runner::try_on(device, plan, numerics).unwrap()
    }

    /// A runner on a device, or `None` if it does not run the plan.
    pub fn try_on(device: &dyn Device, plan: &Plan, numerics: Numerics) -> device::Result<Runner> {
        let n_groups = plan.kv.groups.len();
        let learned = plan.primitives().filter_map(|op| match op {
            Op::EmbedPositions { table, .. } => Some(plan.weight(*table).n_rows()),
            _ => None,
        });
        let limits = Limits {
            max_rows: PAGES * PAGE_LEN,
            max_outputs: PAGES * PAGE_LEN,
            max_spans: 1,
            n_ctx: learned.min().unwrap_or(usize::MAX).min(PAGES * PAGE_LEN),
            page_len: PAGE_LEN,
            n_pages: vec![PAGES; n_groups],
            n_states: if plan.kv.states.is_empty() { 0 } else { 2 },
            background_rows: 0,
            kv_type: KvType::F32,
            numerics,
        };
        let program = device.compile(&[fuse(plan, device.fusion())], &limits).and_then(committed)?;
        let has_states = !plan.kv.states.is_empty();
        let adapter = plan.primitives().any(|op| matches!(op, Op::Adapters { .. })).then_some(1);
        Ok(Runner {
            adapter,
            program,
            n_vocab: plan.value(plan.output).cols,
            n_groups,
            has_states,
            state: 0,
            position: 0,
        })
    }

    /// The names of the kernels of a step with one row.
    pub fn kernels(&self) -> Vec<String> {
        self.program.commands(0, 1).into_iter().map(|command| command.kernel).collect()
    }

    /// Runs tokens in one step. Returns the logits of every row, and the best token of the last.
    pub fn step(&mut self, tokens: &[u32]) -> (Vec<Vec<f32>>, u32) {
        let n_rows = tokens.len() as u32;
        let table: Vec<u32> = (0..self.n_groups).flat_map(|_| 0..PAGES as u32).collect();
        let outputs: Vec<u32> = (0..n_rows).collect();
        let span = Span { slot: 0, first_row: 0, n_rows, first_position: self.position };
        let wants = vec![BEST_AND_LOGITS; tokens.len()];
        // Two states are used alternately.
        let (from, to) = match self.position {
            0 => (STATE_NONE, 0),
            _ => (self.state, 1 - self.state),
        };
        self.state = to;
        let states = if self.has_states { vec![StateUse { from, to }] } else { vec![] };
        let adapters: Vec<u32> = self.adapter.into_iter().collect();
        let step = Step {
            adapters: &adapters,
            tokens,
            spans: &[span],
            states: &states,
            page_tables: &table,
            pages_per_table: PAGES,
            outputs: &outputs,
            wants: &wants,
            ..Step::default()
        };
        self.program.run(&step).unwrap();
        self.position += n_rows;
        let logits = self.program.logits()[..tokens.len() * self.n_vocab]
            .chunks(self.n_vocab)
            .map(<[f32]>::to_vec)
            .collect();
        (logits, self.program.chosen()[tokens.len() - 1].token.unwrap())
    }
}

/// Tokens cut into steps of these lengths; the last length repeats.
pub fn cut<'t>(mut tokens: &'t [u32], lengths: &[usize]) -> Vec<&'t [u32]> {
    let mut lengths = lengths.iter().copied();
    let mut length = usize::MAX;
    let mut steps = vec![];
    while !tokens.is_empty() {
        length = lengths.next().unwrap_or(length);
        let (step, rest) = tokens.split_at(length.min(tokens.len()));
        steps.push(step);
        tokens = rest;
    }
    steps
}

/// Compares a plan with transformers' results: the prompt in chunks of `chunk` rows, then the
/// greedy continuation. Returns the largest difference of a logit.
pub fn check(name: &str, plan: &Plan, chunk: usize) -> f32 {
    check_with(Runner::new(plan), name, &[chunk])
}

/// The largest difference of a prompt's logits, in steps of these lengths; the last length repeats.
pub fn difference(mut runner: Runner, name: &str, lengths: &[usize]) -> f32 {
    let expected = expected(name);
    let steps = cut(&expected.input_ids, lengths);
    let rows: Vec<Vec<f32>> = steps.into_iter().flat_map(|tokens| runner.step(tokens).0).collect();
    let of = |(position, wanted): (&usize, &Vec<f32>)| {
        rows[*position].iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    expected.positions.iter().zip(&expected.logits).map(of).fold(0.0, f32::max)
}

/// Like [`check_with`], in chunks of `chunk` rows.
pub fn check_device(runner: Runner, name: &str, chunk: usize) -> f32 {
    check_within(runner, name, chunk, TOLERANCE)
}

/// Like [`check_with`], for a device whose logits may differ by `bound`; beyond [`TOLERANCE`] the
/// greedy continuation may differ too. Experts in MXFP4 are multiplied by 8-bit activations, so
/// their fixture needs a wider bound. The same model in BF16 tests the rest.
pub fn check_within(runner: Runner, name: &str, chunk: usize, bound: f32) -> f32 {
    let sensitive = SENSITIVE.iter().find(|(sensitive, _)| *sensitive == name);
    let bound = match (name, sensitive) {
        ("gpt_oss_mxfp4", _) => 1.0,
        _ if bound <= TOLERANCE => return check_with(runner, name, &[chunk]),
        (_, Some((_, of_its_own))) => *of_its_own,
        (_, None) => bound,
    };
    let worst = difference(runner, name, &[chunk]);
    assert!(worst < bound, "{name}, chunks of {chunk}: logits differ by {worst}");
    worst
}

/// Rows of a prompt's chunks, the numerics, and the bound.
pub type Case = (usize, Numerics, f32);

/// Runs all cases of a fixture and returns those that failed. All run before the test fails,
/// because time on a GPU machine is limited.
pub fn failures(device: &dyn Device, plan: &Plan, name: &str, cases: &[Case]) -> Vec<String> {
    let mut failed = Vec::new();
    for &(chunk, numerics, bound) in cases {
        let what = format!("{name}: {numerics:?}, chunks of {chunk}");
        let check = || check_within(Runner::on(device, plan, numerics), name, chunk, bound);
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok(worst) => println!("{what}: {worst:.1e}"),
            Err(_) => failed.push(what),
        }
    }
    failed
}

/// Like [`check`], on the runner's device, with the prompt in steps of these lengths; the last
/// length repeats.
pub fn check_with(mut runner: Runner, name: &str, lengths: &[usize]) -> f32 {
    let expected = expected(name);
    let mut logits = Vec::new();
    let mut best = 0;
    for tokens in cut(&expected.input_ids, lengths) {
        let (rows, last) = runner.step(tokens);
        logits.extend(rows);
        best = last;
    }
    let mut worst = 0.0f32;
    for (position, row) in expected.positions.iter().zip(&expected.logits) {
        assert_eq!(row.len(), logits[*position].len(), "{name}: width of the logits");
        for (found, wanted) in logits[*position].iter().zip(row) {
            assert!(found.is_finite(), "{name}: position {position}: {found}");
            worst = worst.max((found - wanted).abs());
        }
    }
    let mut greedy = Vec::new();
    while greedy.len() < expected.greedy.len() {
        greedy.push(best);
        best = runner.step(&[best]).1;
    }
    assert!(worst < TOLERANCE, "{name}, steps of {lengths:?}: logits differ by {worst}");
    assert_eq!(greedy, expected.greedy, "{name}, steps of {lengths:?}");
    worst
}
