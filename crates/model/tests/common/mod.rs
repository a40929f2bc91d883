//! What the tests of this crate share: fixtures, and running a plan on the reference interpreter.
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

/// The fixtures, each a Hugging Face checkpoint with what transformers answers: those of one dense stack of layers, ...
pub const DENSE: [&str; 10] =
    ["llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3", "phi3", "gemma2", "granite", "olmo2"];

/// ... those whose layers, norms or names are arranged otherwise, ...
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

/// ... and those with experts, or with layers that share keys and values and have inputs of their own, or several residual streams.
pub const MIXED: [&str; 6] =
    ["qwen2_moe", "qwen3_moe", "gemma4_e2b", "gemma4_moe", "gemma3n", "gemma3n_beyond"];

/// ... and those with recurrent layers, whose prompts are longer than the chunks of kernels.
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

/// ... and those with other routers, gates, windows or caches.
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

/// All of these.
pub fn all() -> impl Iterator<Item = &'static str> {
    DENSE.into_iter().chain(OTHER).chain(MIXED).chain(LATER).chain(RECURRENT)
}

/// f32 arithmetic in another order than the reference's, over logits of magnitude 10.
pub const TOLERANCE: f32 = 1e-3;

/// The same of a device that rounds what it multiplies to halves, as CUDA's does, which is only on Linux.
#[cfg(target_os = "linux")]
pub const HALVES: f32 = 0.1;

/// Models whose logits such a rounding changes more, with a bound for each: another expert is chosen where two scores are nearly equal,
/// or a norm divides by small numbers. The interpreter's own logits change by up to 1.9, 0.67 and 0.81 when the weights of norms change
/// by 2^-12 (the last: 2^-11) of their size.
const SENSITIVE: [(&str, f32); 3] = [("deepseek_v3", 2.5), ("gemma4_e2b", 1.0), ("qwen3_5_moe", 1.0)];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

pub fn open(name: &str) -> Checkpoint {
    formats::open(&folder(name), Access::Map).unwrap()
}

/// What transformers answers.
pub struct Expected {
    pub input_ids: Vec<u32>,
    pub positions: Vec<usize>,
    /// `(positions, n_vocab)`
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

/// One sequence on the reference interpreter, with all its pages.
pub struct Runner {
    program: Box<dyn Program>,
    n_vocab: usize,
    n_groups: usize,
    has_states: bool,
    /// The adapter of the sequence, where the plan has any; the first unless a test says otherwise.
    adapter: Option<u32>,
    /// The state after the last step.
    state: u32,
    position: u32,
}

const PAGES: usize = 16;
const PAGE_LEN: usize = 16;

impl Runner {
    /// The same with this adapter; 0 is none.
    pub fn with_adapter(self, adapter: u32) -> Runner {
        Runner { adapter: Some(adapter), ..self }
    }

    pub fn new(plan: &Plan) -> Runner {
        Runner::on(&Reference::new(2), plan, Numerics::Deterministic)
    }

    pub fn on(device: &dyn Device, plan: &Plan, numerics: Numerics) -> Runner {
        Runner::try_on(device, plan, numerics).unwrap()
    }

    /// The same, if the device runs the plan.
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

    /// The names of the kernels of a step of one row.
    pub fn kernels(&self) -> Vec<String> {
        self.program.commands(0, 1).into_iter().map(|command| command.kernel).collect()
    }

    /// Run tokens in one step: the logits of every row, and the best token of the last.
    pub fn step(&mut self, tokens: &[u32]) -> (Vec<Vec<f32>>, u32) {
        let n_rows = tokens.len() as u32;
        let table: Vec<u32> = (0..self.n_groups).flat_map(|_| 0..PAGES as u32).collect();
        let outputs: Vec<u32> = (0..n_rows).collect();
        let span = Span { slot: 0, first_row: 0, n_rows, first_position: self.position };
        let wants = vec![BEST_AND_LOGITS; tokens.len()];
        // Two states in turn.
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

/// Tokens cut into steps of these lengths, the last of which is repeated.
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

/// Compare a plan with what transformers answers: the prompt in chunks of `chunk` rows, then the greedy continuation.
/// Returns the largest difference of a logit.
pub fn check(name: &str, plan: &Plan, chunk: usize) -> f32 {
    check_with(Runner::new(plan), name, &[chunk])
}

/// The largest difference of a logit of the prompt, in steps of these lengths, the last of which is repeated.
pub fn difference(mut runner: Runner, name: &str, lengths: &[usize]) -> f32 {
    let expected = expected(name);
    let steps = cut(&expected.input_ids, lengths);
    let rows: Vec<Vec<f32>> = steps.into_iter().flat_map(|tokens| runner.step(tokens).0).collect();
    let of = |(position, wanted): (&usize, &Vec<f32>)| {
        rows[*position].iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    expected.positions.iter().zip(&expected.logits).map(of).fold(0.0, f32::max)
}

/// As [`check_with`], on a device.
pub fn check_device(runner: Runner, name: &str, chunk: usize) -> f32 {
    check_within(runner, name, chunk, TOLERANCE)
}

/// As [`check_with`], on a device whose logits may differ by `bound`; beyond [`TOLERANCE`] its greedy answer may differ too. Experts in
/// MXFP4 are multiplied by activations in 8 bits, so the fixture that has them gets a wider bound, and the same model in BF16
/// says whether the rest is right.
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

/// The prompt in chunks of so many rows, with these numerics, held to this bound.
pub type Case = (usize, Numerics, f32);

/// A fixture in each of these cases, and the cases that failed: all run before a test fails, for time on a machine with a GPU is short.
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

/// As [`check`], on whatever device the runner is made for, the prompt in steps of these lengths, the last of which is repeated.
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
