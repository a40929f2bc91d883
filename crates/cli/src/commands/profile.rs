//! `ingle profile`: measure the time of each kernel, op or layer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use device::CommandInfo;
use engine::{Engine, Event, FinishReason, Request, SamplingParams, StepTimings};
use serde_json::json;

use crate::args::{ModelArgs, PrefillArgs};
use crate::output::{Style, Table};
use crate::{load, output};

/// Measure the time of each kernel, op or layer
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle profile smollm2:135m
  ingle profile model.gguf -p 512 -n 32 --by layer
  ingle profile model.gguf --parallel 8 -p 128 -n 32
  ingle profile model.gguf --trace trace.json      (open it in chrome://tracing or ui.perfetto.dev)")]
pub struct Profile {
    /// Tokens of the prompt
    #[arg(short = 'p', long, default_value_t = 128, value_name = "N")]
    n_prompt: usize,

    /// Tokens to generate
    #[arg(short = 'n', long, default_value_t = 32, value_name = "N")]
    n_gen: usize,

    /// Sequences that run at once
    #[arg(long, default_value_t = 1, value_name = "N")]
    parallel: usize,

    /// Print a row for each of these
    #[arg(long, value_enum, default_value_t = By::Kernel)]
    by: By,

    /// Write every command as a Chrome trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    prefill: PrefillArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Kernel,
    Op,
    Layer,
}

/// Sums over the commands with the same key.
#[derive(Default)]
struct Sum {
    calls: usize,
    seconds: f64,
    weight_bytes: u64,
}

impl Profile {
    pub fn run(self) -> anyhow::Result<()> {
        let mut options = self.model.options()?;
        options.n_sequences = Some(self.parallel);
        let model = Arc::new(load::open(&self.model.model, &options)?);
        let device = load::device_for(&model, &options)?;
        let n_vocab = model.n_vocab();
        anyhow::ensure!(self.parallel > 0, "--parallel needs at least one sequence");
        let mut engine = Engine::new(model, &device, &options.engine_options())?;
        load::validate(&mut engine, &self.prefill, &load::arbitrary_tokens(self.n_prompt.max(1), n_vocab))?;
        let request = |n_prompt: usize, n_gen: usize| Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(n_gen),
            ignore_end: true,
            reuse: false,
            prefill: load::prefill(&self.prefill),
            ..Request::new(load::arbitrary_tokens(n_prompt.max(1), n_vocab))
        };
        // The first steps read the file for the first time, so they are not part of the profile.
        engine.generate(request(self.n_prompt, 2), |_| {})?;
        engine.record_timings(true);
        for _ in 0..self.parallel {
            engine.add(request(self.n_prompt, self.n_gen + 1))?;
        }
        let mut failed = None;
        while engine.step(&mut |event| {
            if let Event::Done { reason: FinishReason::Failed(reason), .. } = event {
                failed = Some(reason.clone());
            }
        })? {}
        if let Some(reason) = failed {
            anyhow::bail!("a sequence failed: {reason}");
        }
        let steps = engine.take_timings();
        // Steps that mix prompts with answers count as prefill.
        let (decode, prefill): (Vec<_>, Vec<_>) = steps.iter().partition(|s| s.n_rows == self.parallel);
        if let Some(file) = &self.trace {
            let trace = trace(&engine, &steps);
            std::fs::write(file, serde_json::to_vec(&trace)?)
                .with_context(|| format!("writing {}", file.display()))?;
        }
        let phases = [("prefill", prefill), ("decode", decode)];
        if self.json {
            let rows: Vec<_> = phases.iter().flat_map(|(phase, steps)| {
                self.sums(&engine, steps).into_iter().map(move |(name, s)| json!({
                    "phase": phase, "name": name, "calls": s.calls, "seconds": s.seconds, "weight_bytes": s.weight_bytes,
                }))
            }).collect();
            return output::print_json(&rows);
        }
        for (phase, steps) in &phases {
            if !steps.is_empty() {
                self.print(&engine, phase, steps)?;
            }
        }
        Ok(())
    }

    fn sums(&self, engine: &Engine, steps: &[&StepTimings]) -> BTreeMap<String, Sum> {
        let mut tables: BTreeMap<usize, Vec<CommandInfo>> = BTreeMap::new();
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for step in steps {
            let commands = tables.entry(step.n_rows).or_insert_with(|| engine.commands(step.n_rows));
            for timing in &step.timings {
                let Some(command) = commands.get(timing.command) else { continue };
                let sum = sums.entry(self.key(engine, command)).or_default();
                sum.calls += 1;
                sum.seconds += timing.duration;
                sum.weight_bytes += command.weight_bytes;
            }
        }
        sums
    }

    fn key(&self, engine: &Engine, command: &CommandInfo) -> String {
        match self.by {
            By::Kernel => command.kernel.clone(),
            By::Op => op_name(engine, command),
            By::Layer => command.layer.map_or("(no layer)".into(), |l| format!("layer {l:>3}")),
        }
    }

    fn print(&self, engine: &Engine, phase: &str, steps: &[&StepTimings]) -> anyhow::Result<()> {
        let mut rows: Vec<_> = self.sums(engine, steps).into_iter().collect();
        if self.by != By::Layer {
            rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        }
        let total: f64 = rows.iter().map(|(_, s)| s.seconds).sum();
        let n_rows: usize = steps.iter().map(|s| s.n_rows).sum();
        output::print_line(&format!(
            "{phase}: {} steps, {n_rows} rows, {} in commands, {:.1} rows/s",
            steps.len(),
            output::seconds(total),
            n_rows as f64 / total.max(1e-12)
        ))?;
        let name = match self.by {
            By::Kernel => "kernel",
            By::Op => "op",
            By::Layer => "layer",
        };
        let mut table = Table::new(&[name, "calls>", "time>", "share>", "each>", "weights read>"]);
        for (name, s) in rows {
            let rate = s.weight_bytes as f64 / s.seconds.max(1e-12) / 1e9;
            table.row(vec![
                name,
                s.calls.to_string(),
                output::seconds(s.seconds),
                format!("{:.1} %", 100.0 * s.seconds / total.max(1e-12)),
                output::seconds(s.seconds / s.calls.max(1) as f64),
                if s.weight_bytes > 0 { format!("{rate:.1} GB/s") } else { String::new() },
            ]);
        }
        table.print(Style::Plain)?;
        output::print_line("")
    }
}

fn op_name(engine: &Engine, command: &CommandInfo) -> String {
    engine.plan().nodes.get(command.node).map_or_else(String::new, |node| {
        if let device::Op::Fused { kind, .. } = &node.op {
            kind.to_string()
        } else {
            node.op.kind().to_string()
        }
    })
}

/// The trace event format: one complete event (`ph: X`, microseconds) for each command, with steps
/// in a row.
fn trace(engine: &Engine, steps: &[StepTimings]) -> serde_json::Value {
    let mut events = Vec::new();
    let mut offset = 0.0;
    for (index, step) in steps.iter().enumerate() {
        let commands = engine.commands(step.n_rows);
        let mut end = offset;
        for timing in &step.timings {
            let Some(command) = commands.get(timing.command) else { continue };
            let start = offset + timing.start;
            end = f64::max(end, start + timing.duration);
            events.push(json!({
                "name": command.kernel, "cat": op_name(engine, command), "ph": "X", "pid": 1, "tid": 1,
                "ts": start * 1e6, "dur": timing.duration * 1e6,
                "args": { "step": index, "rows": step.n_rows, "layer": command.layer, "weight_bytes": command.weight_bytes },
            }));
        }
        offset = end;
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}
