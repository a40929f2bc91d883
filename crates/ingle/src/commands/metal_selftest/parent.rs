//! The parent process of the report: it runs the stages, writes their output, and notes how each
//! ended.
//!
//! A stage prints lines. Lines with `@` are for this file: `@item N NAME` before each item,
//! `@defect TEXT` for a defect, and `@value NAME JSON` for the JSON block at the end. All other
//! lines are part of the report.

use super::MetalSelftest;
use crate::output;
use anyhow::Context;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The stages in order, each with its share of the remaining time.
const STAGES: [(&str, f64); 8] = [
    ("machine", 0.2),
    ("compile", 0.3),
    ("probes", 0.3),
    ("cases", 0.5),
    ("ahead", 0.4),
    ("timings", 0.5),
    ("sweep", 0.6),
    ("tokens", 1.0),
];

/// Stages that measure times; the machine's state is printed between them.
const TIMED: [&str; 3] = ["timings", "sweep", "tokens"];

/// Number of items of a stage that may hang or crash before the rest is skipped.
const MOST_RESTARTS: usize = 20;

/// The report's file and the results so far.
struct ReportFile {
    file: File,
    defects: Vec<String>,
    values: serde_json::Map<String, serde_json::Value>,
}

impl ReportFile {
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.file, "{line}")?;
        self.file.flush()?;
        output::print_line(line)
    }

    fn defect(&mut self, text: String) -> anyhow::Result<()> {
        self.line(&format!("DEFECT {text}"))?;
        self.defects.push(text);
        Ok(())
    }
}

/// Runs all stages and writes the report.
///
/// # Errors
/// The report cannot be written, or it has defects.
pub(super) fn run(options: &MetalSelftest) -> anyhow::Result<()> {
    // A missing GPU is an error before the report starts.
    super::stages::open(options)?;
    let path = &options.report;
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut report = ReportFile { file, defects: vec![], values: serde_json::Map::new() };
    report.line(&format!("ingle {} metal-selftest", env!("CARGO_PKG_VERSION")))?;
    let begun = Instant::now();
    let end = options.minutes.map(|minutes| begun + Duration::from_secs_f64(60.0 * minutes.max(0.0)));
    for (stage, share) in STAGES {
        let skipped = match stage {
            "machine" | "compile" => false,
            "ahead" if options.only.is_some() => true,
            _ => options.compile_only || options.no_times && TIMED.contains(&stage),
        };
        if skipped {
            continue;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left < Duration::from_secs(1)) {
            report.line(&format!("\n== {stage}: no time left"))?;
            continue;
        }
        report.line(&format!("\n== {stage}"))?;
        let until = left.map(|left| Instant::now() + left.mul_f64(share));
        if TIMED.contains(&stage) {
            let before = throttling();
            run_stage(options, stage, until, &mut report)?;
            let after = throttling();
            report.line(&format!("state before: {before}; after: {after}"))?;
            if after.contains("throttled") {
                report.line("throttled: the stage is repeated after a minute's pause")?;
                std::thread::sleep(Duration::from_secs(60));
                run_stage(options, stage, until, &mut report)?;
            }
        } else {
            run_stage(options, stage, until, &mut report)?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    report.line(&format!("\n== end, after {seconds:.0} s: {} defects", report.defects.len()))?;
    for defect in report.defects.clone() {
        report.line(&format!("  {defect}"))?;
    }
    let mut json = std::mem::take(&mut report.values);
    json.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    json.insert("seconds".into(), seconds.into());
    json.insert("defects".into(), report.defects.clone().into());
    report.line(&serde_json::to_string(&json)?)?;
    anyhow::ensure!(
        report.defects.is_empty(),
        "{} defects; please send {} back",
        report.defects.len(),
        path.display()
    );
    Ok(())
}

/// Runs a stage; starts it again after each item that hangs or crashes.
fn run_stage(
    options: &MetalSelftest,
    stage: &str,
    until: Option<Instant>,
    report: &mut ReportFile,
) -> anyhow::Result<()> {
    let mut first = 0;
    for _ in 0..MOST_RESTARTS {
        let (item, ended) = run_once(options, stage, first, until, report)?;
        let (index, name) = item.clone().unwrap_or((first, "its start".to_owned()));
        let problem = match ended {
            Ended::Well => return Ok(()),
            Ended::OutOfTime => {
                return report.line(&format!("{stage}: out of time at item {index}, {name}"));
            }
            Ended::Silent => format!("no output for {} s", options.patience),
            Ended::Badly(status, message) => format!("crashes: {status} {message}"),
        };
        report.defect(format!("{stage}: {name} {}", problem.trim_end()))?;
        first = index + 1;
        if item.is_none() {
            return Ok(());
        }
    }
    report.defect(format!("{stage}: {MOST_RESTARTS} items hung or crashed; the rest was skipped"))
}

/// The end of a stage's process.
enum Ended {
    Well,
    OutOfTime,
    Silent,
    Badly(ExitStatus, String),
}

/// Runs a stage's process; returns its last item.
fn run_once(
    options: &MetalSelftest,
    stage: &str,
    first: usize,
    until: Option<Instant>,
    report: &mut ReportFile,
) -> anyhow::Result<(Option<(usize, String)>, Ended)> {
    let mut child = start(options, stage, first, until)?;
    let lines = lines_of(&mut child)?;
    let mut item = None;
    let ended = loop {
        let patience = Duration::from_secs(options.patience.max(1));
        match lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
                Some(("item", text)) => {
                    let (index, name) = text.split_once(' ').unwrap_or((text, ""));
                    item = Some((index.parse().unwrap_or(0), name.to_owned()));
                }
                Some(("defect", text)) => report.defect(text.to_owned())?,
                Some(("value", text)) => {
                    let (name, json) = text.split_once(' ').unwrap_or((text, "null"));
                    let value = serde_json::from_str(json).unwrap_or(serde_json::Value::Null);
                    let list = report.values.entry(name.to_owned()).or_insert_with(|| serde_json::json!([]));
                    if let Some(list) = list.as_array_mut() {
                        list.push(value);
                    }
                }
                Some(_) | None => report.line(&line)?,
            },
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => break Some(Ended::Silent),
        }
        // A stage checks its own time limit between items; this limit also ends long items.
        if until.is_some_and(|until| Instant::now() > until + patience) {
            break Some(Ended::OutOfTime);
        }
    };
    if ended.is_some() {
        // The process may have ended in the meantime.
        let _ = child.kill();
    }
    let mut message = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut message)?;
    }
    let status = child.wait()?;
    let last = message.lines().last().unwrap_or("").to_owned();
    Ok((item, ended.unwrap_or(if status.success() { Ended::Well } else { Ended::Badly(status, last) })))
}

fn start(
    options: &MetalSelftest,
    stage: &str,
    first: usize,
    until: Option<Instant>,
) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["metal-selftest", "--stage", &format!("{stage}:{first}")]);
    command.args(["--every", &options.every.to_string()]);
    for (is_given, flag) in [
        (options.emulated, "--emulated"),
        (options.tensors, "--tensors"),
        (options.compile_only, "--compile-only"),
    ] {
        if is_given {
            command.arg(flag);
        }
    }
    if let Some(file) = &options.chip_profile {
        command.arg("--chip-profile").arg(file);
    }
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    if let Some(replace) = &options.replace {
        command.args(["--replace", replace]);
    }
    let encoder = clap::ValueEnum::to_possible_value(&options.metal_encoder);
    if let Some(encoder) = encoder {
        command.args(["--metal-encoder", encoder.get_name()]);
    }
    if let Some(until) = until {
        let left = until.saturating_duration_since(Instant::now());
        let at = SystemTime::now().duration_since(UNIX_EPOCH)? + left;
        command.args(["--until", &at.as_secs().to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start a stage of the report")
}

/// Receives the output of a process, line by line.
fn lines_of(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let out = child.stdout.take().context("a stage has no output")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

/// Thermal state, power mode and battery, as the system prints them.
fn throttling() -> String {
    if !cfg!(target_os = "macos") {
        return "unknown on this system".to_owned();
    }
    let words = |arguments: &[&str]| {
        let output = Command::new("pmset").args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let (thermal, battery, settings) = (words(&["-g", "therm"]), words(&["-g", "batt"]), words(&["-g"]));
    let limit = thermal
        .lines()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == "CPU_Speed_Limit");
    let limit = limit.and_then(|(_, value)| value.trim().parse::<u32>().ok());
    let state = match limit {
        Some(percent) if percent < 100 => format!("throttled to {percent} %"),
        Some(_) | None => "not limited".to_owned(),
    };
    let source = battery.lines().next().unwrap_or("").trim().to_owned();
    let mode = settings.lines().map(str::trim).find(|line| line.starts_with("lowpowermode")).unwrap_or("");
    format!("{state}, {source}, {mode}")
}
