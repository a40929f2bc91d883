//! `ingle bench`: measure tokens a second like llama-bench, and the share of the machine's peak.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use device::{Device, Op, Peaks, Plan, RowCount};
use engine::{Engine, Model, Request, SamplingParams};
use serde::Serialize;
use weights::BlockType;

mod batches;
mod memory;
mod warm;

use self::batches::Batch;
use self::memory::{Taken, Watch};
use crate::args::{ModelArgs, PrefillArgs, SpeculateArgs, SpeculateName};
use crate::load;
use crate::output::{self, Style, Table};

/// Measure the speed of prefill and decode, and the share of the machine's peak
#[derive(Args)]
#[command(after_help = "\
pp N computes a prompt of N tokens. tg N generates N tokens, one by one unless --speculate is given;
the text is meaningless and tends to repeat itself. @ D means that the context holds D tokens
already.

The share of the machine is, for tg, bytes of weights read a second over the read bandwidth. For pp
it is operations a second over the peak of the arithmetic that multiplies each type of weights. Both
limits are measured in the same run.

With --parallel, B sequences run at once, each with its own prompt unless --shared-prompt is given.
PP and TG are tokens of each sequence, T_PP and T_TG are seconds, and S_PP, S_TG and S are tokens a
second of all sequences together. With --arriving, another prompt arrives when the sequences begin
to generate. The table then has the seconds of this prompt alone, the seconds of all together, and
the cost: the added seconds as a share of the seconds alone.

Each test runs untimed first, until two runs in a row take about the same time. The last table is
the memory of each device. planned is the plan of `ingle plan`, with keys and values of one
sequence. pools are the keys and values of all sequences and cached prompts at their largest. taken
is the memory that is resident in the process, or no longer free on a GPU.

Examples:
  ingle bench smollm2:135m
  ingle bench model.gguf -p 128,512 -n 128 -r 5 -t 2 --md
  ingle bench model.gguf -p 0 -n 64 -d 0,4096 --json
  ingle bench model.gguf --parallel 1,2,4,8 -p 128 -n 128
  ingle bench model.gguf --parallel 8 -p 128 -n 32 --arriving 2048")]
pub struct Bench {
    /// Prompt lengths, one test each; 0 for none
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", value_name = "N,…")]
    n_prompt: Vec<usize>,

    /// Numbers of tokens to generate, one test each; 0 for none
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", value_name = "N,…")]
    n_gen: Vec<usize>,

    /// Tokens in the context before a test
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0", value_name = "N,…")]
    n_depth: Vec<usize>,

    /// Numbers of sequences that run at once, one test each
    #[arg(long, value_delimiter = ',', value_name = "N,…", conflicts_with = "n_depth")]
    parallel: Vec<usize>,

    /// Use one prompt for all sequences, computed once
    #[arg(long, requires = "parallel")]
    shared_prompt: bool,

    /// Measure a prompt of N tokens that arrives during generation
    #[arg(long, requires = "parallel", value_name = "N", default_value_t = 0, hide_default_value = true)]
    arriving: usize,

    /// Repetitions of each test, all tests in turn
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,

    /// Do not measure the machine's limits
    ///
    /// With --parallel they are never measured.
    #[arg(long)]
    no_peaks: bool,

    /// Print JSON with llama-bench's field names
    ///
    /// With --parallel, the names are those of llama-batched-bench.
    #[arg(long, group = "format")]
    json: bool,

    /// Print comma-separated values
    #[arg(long, group = "format")]
    csv: bool,

    /// Print a Markdown table
    #[arg(long, group = "format")]
    md: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    prefill: PrefillArgs,

    #[command(flatten)]
    speculate: SpeculateArgs,
}

/// Results of a test. Names up to `samples_ts` are llama-bench's; the others are Ingle's.
#[derive(Serialize)]
struct Row {
    /// Ingle's commit, from build.rs; `unknown` without git.
    build_commit: &'static str,
    cpu_info: String,
    backends: &'static str,
    model_filename: String,
    model_type: String,
    model_size: u64,
    model_n_params: u64,
    n_batch: usize,
    n_threads: usize,
    type_k: &'static str,
    type_v: &'static str,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    test_time: u64,
    avg_ns: u64,
    stddev_ns: u64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
    /// Bytes of weights that one generated token reads.
    weight_bytes_per_token: u64,
    /// Operations of one token's matrices; a multiply and an add are two.
    ops_per_token: u64,
    /// The machine's read bandwidth, measured in this run; absent with --no-peaks.
    peak_read_bytes_per_second: Option<f64>,
    /// Peak of the model's products, each at the peak of its own arithmetic; absent with
    /// --no-peaks.
    peak_ops_per_second: Option<f64>,
    /// Share of the read bandwidth for tg, of the arithmetic for pp.
    share_of_peak: Option<f64>,
    /// Peak resident bytes of the process, over all tests.
    peak_resident_bytes: Option<u64>,
    /// Memory of each device, over all tests.
    memory: Vec<Taken>,
}

#[derive(Clone, Copy)]
struct Test {
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
}

impl Test {
    fn name(&self) -> String {
        let name = if self.n_gen == 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) };
        if self.n_depth > 0 { format!("{name} @ d{}", self.n_depth) } else { name }
    }

    fn n_positions(&self) -> usize {
        self.n_depth + self.n_prompt + self.n_gen + 2
    }
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        if self.parallel.is_empty() { self.run_alone() } else { self.run_batches() }
    }

    /// The format of the tables.
    fn style(&self) -> Style {
        if self.md {
            Style::Markdown
        } else if self.csv {
            Style::Csv
        } else {
            Style::Plain
        }
    }

    /// `--parallel`: several sequences at once.
    fn run_batches(self) -> anyhow::Result<()> {
        let batches =
            Batch::all(&self.n_prompt, &self.n_gen, &self.parallel, self.shared_prompt, self.arriving);
        anyhow::ensure!(
            self.n_prompt.iter().chain(&self.parallel).all(|&n| n > 0),
            "--parallel is {:?} and -p is {:?}; each number must be at least 1",
            self.parallel,
            self.n_prompt
        );
        anyhow::ensure!(
            self.arriving == 0 || self.n_gen.iter().all(|&n| n > 0),
            "--arriving needs sequences that generate, but -n is {:?}",
            self.n_gen
        );
        let mut options = self.model.options()?;
        self.speculate.set(&mut options, SpeculateName::Off)?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let watch = Watch::begin(device.as_ref());
        let page_len = device.page_len();
        let needed = batches.iter().map(|batch| batch.n_positions(page_len)).max().unwrap_or(0);
        options.n_ctx = Some(options.n_ctx.unwrap_or(needed).max(needed));
        options.n_sequences = Some(batches.iter().map(Batch::n_sequences).max().unwrap_or(1));
        let mut engine = load::engine(model, &device, &options)?;
        let n_prompt = self.n_prompt.iter().copied().max().unwrap_or(1);
        let tokens = load::arbitrary_tokens(n_prompt, engine.model().n_vocab());
        load::validate(&mut engine, &self.prefill, &tokens)?;
        let prefill = load::prefill(&self.prefill);
        let name = self.model.model.to_string();
        let mut rows = batches::measure(&mut engine, &batches, prefill, self.repetitions, &name)?;
        let taken = watch.end(&engine);
        rows.iter_mut().for_each(|row| row.memory.clone_from(&taken));
        if self.json {
            return output::print_json(&rows);
        }
        batches::print(&rows, self.style())?;
        memory::print(&taken, self.style())
    }

    /// One sequence at a time.
    fn run_alone(self) -> anyhow::Result<()> {
        let mut tests = Vec::new();
        for &n_depth in &self.n_depth {
            tests.extend(self.n_prompt.iter().map(|&n| Test { n_prompt: n, n_gen: 0, n_depth }));
            tests.extend(self.n_gen.iter().map(|&n| Test { n_prompt: 0, n_gen: n, n_depth }));
        }
        tests.retain(|t| t.n_prompt + t.n_gen > 0);
        anyhow::ensure!(!tests.is_empty(), "nothing to measure: -p or -n must be above 0");
        let mut options = self.model.options()?;
        self.speculate.set(&mut options, SpeculateName::Off)?;
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let watch = Watch::begin(device.as_ref());
        let needed = tests.iter().map(Test::n_positions).max().unwrap_or(0);
        options.n_ctx = Some(options.n_ctx.unwrap_or(needed).max(needed));
        let mut engine = load::engine(model.clone(), &device, &options)?;
        let n_prompt = tests.iter().map(|t| t.n_depth + t.n_prompt.max(1)).max().unwrap_or(1);
        load::validate(&mut engine, &self.prefill, &load::arbitrary_tokens(n_prompt, model.n_vocab()))?;
        for test in &tests {
            warm::until_steady(&mut || self.measure(&mut engine, *test))?;
        }
        // Tests are repeated in turn, because the speed of a machine varies from second to second.
        let mut seconds = vec![Vec::new(); tests.len()];
        for _ in 0..self.repetitions {
            for (test, seconds) in tests.iter().zip(&mut seconds) {
                seconds.push(self.measure(&mut engine, *test)?);
            }
        }
        let (memory, resident) = (watch.end(&engine), platform::peak_resident_memory());
        // Measuring the peaks needs memory, so the memory is read before.
        let peaks = (!self.no_peaks).then(|| device.peaks());
        let of_test = |(test, seconds): (&Test, &Vec<f64>)| {
            let row = row(&self.model.model.to_string(), &engine, device.as_ref(), *test, seconds, peaks);
            Row { memory: memory.clone(), peak_resident_bytes: resident, ..row }
        };
        let rows: Vec<_> = tests.iter().zip(&seconds).map(of_test).collect();
        if self.json {
            return output::print_json(&rows);
        }
        print(&rows, self.style())?;
        if let (Some(peaks), false) = (peaks, self.csv) {
            output::print_line(&format!("\n{}: {}", device.describe(), known(peaks)))?;
        }
        memory::print(&memory, self.style())
    }

    /// Seconds of one repetition.
    fn measure(&self, engine: &mut Engine, test: Test) -> anyhow::Result<f64> {
        // A prompt must be computed. The context of a generation may be cached by the repetition
        // before.
        if test.n_prompt > 0 {
            engine.clear_prefix_cache();
        }
        // Tokens of the context are computed first; the test then finds them in the prefix cache.
        if test.n_depth > 0 {
            self.generate(engine, test.n_depth, 0)?;
        }
        Ok(match test.n_gen {
            0 => self.generate(engine, test.n_depth + test.n_prompt, 0)?.prefill_seconds,
            // The first of n + 1 tokens comes from the prompt, the others from n decode steps.
            n => self.generate(engine, test.n_depth + 1, n + 1)?.decode_seconds,
        })
    }

    fn generate(
        &self,
        engine: &mut Engine,
        n_prompt: usize,
        n_gen: usize,
    ) -> anyhow::Result<engine::Timings> {
        let n_vocab = engine.model().n_vocab();
        let request = Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(n_gen),
            ignore_end: true,
            prefill: load::prefill(&self.prefill),
            ..Request::new(load::arbitrary_tokens(n_prompt, n_vocab))
        };
        Ok(engine.generate(request, |_| {})?.timings)
    }
}

fn row(
    name: &str,
    engine: &Engine,
    device: &dyn Device,
    test: Test,
    seconds: &[f64],
    peaks: Option<Peaks>,
) -> Row {
    let model = engine.model();
    let n_tokens = (test.n_prompt + test.n_gen) as f64;
    let rates: Vec<f64> = seconds.iter().map(|s| n_tokens / s).collect();
    let (avg_s, stddev_s) = mean_and_deviation(seconds);
    let (avg_ts, stddev_ts) = mean_and_deviation(&rates);
    let plan = engine.plan();
    let (bytes, ops) = (plan.weight_bytes_per_token(), plan.ops_per_token());
    // Logits are computed for one row of a prompt only, so ops on output rows do not count.
    let of_prompt = |op: &&Op| op.writes().iter().all(|id| plan.value(*id).rows != RowCount::Outputs);
    let peak_ops = peaks.map(|peaks| match test.n_gen {
        0 => reachable(plan, device, &peaks, of_prompt),
        _ => reachable(plan, device, &peaks, |_| true),
    });
    // A device reports 0 for a peak that it does not know.
    let peak_ops = peak_ops.filter(|(_, peak)| *peak > 0.0);
    let peak_read = peaks.map(|p| p.read_bytes_per_second).filter(|peak| *peak > 0.0);
    let share = match test.n_gen {
        0 => peak_ops.map(|(ops, peak)| avg_ts * ops as f64 / peak),
        _ => peak_read.map(|peak| avg_ts * bytes as f64 / peak),
    };
    let kv_type = engine.memory().kv_type;
    Row {
        build_commit: env!("INGLE_COMMIT"),
        cpu_info: device.describe(),
        backends: device.name(),
        model_filename: name.to_owned(),
        model_type: model_type(model),
        model_size: plan_bytes(plan),
        model_n_params: model.spec().n_parameters,
        n_batch: engine.limits().max_rows,
        n_threads: device.n_threads(),
        type_k: kv_type,
        type_v: kv_type,
        n_prompt: test.n_prompt,
        n_gen: test.n_gen,
        n_depth: test.n_depth,
        test_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        avg_ns: (avg_s * 1e9) as u64,
        stddev_ns: (stddev_s * 1e9) as u64,
        avg_ts,
        stddev_ts,
        samples_ns: seconds.iter().map(|s| (s * 1e9) as u64).collect(),
        samples_ts: rates,
        weight_bytes_per_token: bytes,
        ops_per_token: ops,
        peak_read_bytes_per_second: peak_read,
        peak_ops_per_second: peak_ops.map(|(_, peak)| peak),
        share_of_peak: share,
        peak_resident_bytes: None,
        memory: Vec::new(),
    }
}

fn print(rows: &[Row], style: Style) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "model",
        "size>",
        "params>",
        "device",
        "threads>",
        "test>",
        "t/s>",
        "bytes/token>",
        "of the machine>",
    ]);
    for r in rows {
        let test = Test { n_prompt: r.n_prompt, n_gen: r.n_gen, n_depth: r.n_depth };
        let limit = if r.n_gen == 0 { "arithmetic" } else { "bandwidth" };
        table.row(vec![
            r.model_type.clone(),
            output::bytes(r.model_size),
            output::count(r.model_n_params),
            r.backends.into(),
            r.n_threads.to_string(),
            test.name(),
            format!("{:.2} ± {:.2}", r.avg_ts, r.stddev_ts),
            output::bytes(r.weight_bytes_per_token),
            r.share_of_peak.map_or_else(String::new, |s| format!("{:.0} % of {limit}", 100.0 * s)),
        ]);
    }
    table.print(style)
}

/// The family, the parameters, and the type with most of the bytes: `llama 135M Q4_1`.
fn model_type(model: &Model) -> String {
    let spec = model.spec();
    format!("{} {} {}", spec.family.title, output::count(spec.n_parameters), most_bytes(model.plan()))
}

fn most_bytes(plan: &Plan) -> BlockType {
    let bytes = |block| plan.weights.iter().filter(|w| w.block == block).map(|w| w.n_bytes()).sum::<u64>();
    plan.weights.iter().map(|w| w.block).max_by_key(|b| bytes(*b)).unwrap_or(BlockType::F32)
}

fn plan_bytes(plan: &Plan) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let views = plan.weights.iter().flat_map(|w| w.views());
    views.filter(|view| seen.insert(view.as_ptr())).map(|view| view.len() as u64).sum()
}

/// Operations of one token in the products among these Ops, and the peak rate of the device for
/// them in operations a second. Products run one after the other, each at the peak of the
/// arithmetic that the device names for it. Types without an integer kernel are multiplied in f32.
fn reachable(plan: &Plan, device: &dyn Device, peaks: &Peaks, among: impl Fn(&&Op) -> bool) -> (u64, f64) {
    let (mut ops, mut seconds) = (0, 0.0);
    for op in plan.primitives().filter(among) {
        let Some(weight) = op.weights().first().copied() else { continue };
        let arithmetic = device.arithmetic(plan.weight(weight));
        ops += plan.ops_of(op);
        seconds += plan.ops_of(op) as f64 / peaks.ops_per_second(arithmetic);
    }
    (ops, ops as f64 / seconds)
}

/// The peaks that the device knows, as text. An unknown peak is zero.
fn known(peaks: Peaks) -> String {
    let rates = [
        ("reads", peaks.read_bytes_per_second, 1, "GB/s"),
        ("int8", peaks.int8_ops_per_second, 0, "Gop/s"),
        ("bf16", peaks.bf16_ops_per_second, 0, "Gop/s"),
        ("f32", peaks.f32_ops_per_second, 0, "Gop/s"),
    ];
    let known = rates.iter().filter(|(_, rate, ..)| *rate > 0.0);
    let texts: Vec<_> = known
        .map(|(name, rate, decimals, unit)| format!("{name} {:.decimals$} {unit}", rate / 1e9))
        .collect();
    if texts.is_empty() { "no peak is known".to_owned() } else { texts.join(", ") }
}

/// Mean and standard deviation of a sample (divisor n - 1).
fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use device_check::PlanBuilder;
    use weights::BlockType;

    use super::*;

    #[test]
    fn each_type_is_measured_against_the_arithmetic_that_multiplies_it() {
        let peaks = Peaks {
            read_bytes_per_second: 1.0,
            int8_ops_per_second: 1000.0,
            bf16_ops_per_second: 20.0,
            f32_ops_per_second: 10.0,
        };
        let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(1), isa: None }).unwrap();
        let reference = device_reference::Reference::new(1);
        let ops = 2 * 512 * 512;
        for (block, on_cpu) in [
            (BlockType::Q4_0, 1000.0),
            // Some processors multiply BF16, in rows of this length.
            (BlockType::BF16, if cpu.isa().multiplies_bf16() { 20.0 } else { 10.0 }),
            (BlockType::F16, 10.0),
            (BlockType::IQ2_XXS, 10.0),
            (BlockType::TQ1_0, 10.0),
        ] {
            let mut b = PlanBuilder::new(1, 100);
            let x = b.embed(512);
            let x = b.linear(x, 512, BlockType::Q8_0, false);
            let x = b.linear(x, 512, block, false);
            let plan = b.finish(x);
            let (found, peak) = reachable(&plan, &cpu, &peaks, |_| true);
            let seconds = ops as f64 / 1000.0 + ops as f64 / on_cpu;
            assert_eq!(found, 2 * ops, "{block}");
            assert!((peak * seconds / (2 * ops) as f64 - 1.0).abs() < 1e-9, "{block}: {peak}");
            let (_, peak) = reachable(&plan, &reference, &peaks, |_| true);
            assert!((peak - 10.0).abs() < 1e-9, "{block}: {peak}");
        }
    }

    #[test]
    fn an_unknown_peak_is_not_printed_as_zero() {
        let peaks = |read: f64, int8: f64| Peaks {
            read_bytes_per_second: read,
            int8_ops_per_second: int8,
            bf16_ops_per_second: 0.0,
            f32_ops_per_second: 0.0,
        };
        assert_eq!(known(peaks(12.34e9, 5e9)), "reads 12.3 GB/s, int8 5 Gop/s");
        assert_eq!(known(peaks(0.0, 0.0)), "no peak is known");
    }

    #[test]
    fn the_deviation_is_a_samples() {
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }
}
