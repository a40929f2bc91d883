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

/// A stage, and its share of the time.
type Share = (&'static str, f64);

/// The stages in order. Earlier stages leave each its share of the time.
const STAGES: [Share; 10] = [
    ("machine", 0.01),
    ("compile", 0.1),
    ("pipelines", 0.1),
    ("probes", 0.01),
    ("cover", 0.25),
    ("ahead", 0.03),
    ("timings", 0.22),
    ("sweep", 0.2),
    ("tokens", 0.03),
    ("cases", 0.05),
];

/// Stages that measure times.
const TIMED: [&str; 3] = ["timings", "sweep", "tokens"];

/// Seconds that a stage may need to compile or to begin, at least.
const COMPILING: u64 = 120;

/// Number of items of a stage that may hang or crash before the rest is skipped.
const MOST_RESTARTS: usize = 20;

/// The report's file and the results so far.
struct ReportFile {
    file: File,
    defects: Vec<String>,
    /// Work that was cut for lack of time.
    cut: Vec<String>,
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

    fn cut(&mut self, text: String) -> anyhow::Result<()> {
        self.line(&format!("CUT {text}"))?;
        self.cut.push(text);
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
    let mut report = ReportFile { file, defects: vec![], cut: vec![], values: serde_json::Map::new() };
    report.line(&format!("ingle {} metal-selftest", env!("CARGO_PKG_VERSION")))?;
    let begun = Instant::now();
    let budget = 60.0 * options.minutes.max(0.0);
    let is_wanted = |stage: &str| match stage {
        "machine" | "compile" => true,
        "ahead" if !options.only.is_empty() => false,
        _ => !(options.compile_only || options.no_times && TIMED.contains(&stage)),
    };
    let stages: Vec<Share> = STAGES.into_iter().filter(|(stage, _)| is_wanted(stage)).collect();
    for (index, (stage, _)) in stages.iter().copied().enumerate() {
        let seconds = time_of(&stages, index, budget, begun.elapsed().as_secs_f64());
        if seconds < 1.0 {
            report.cut(format!("{stage}: all of it"))?;
            continue;
        }
        report.line(&format!("\n== {stage}"))?;
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        run_stage(options, stage, until, &mut report)?;
        if TIMED.contains(&stage) {
            report.line(&format!("power: {}", power()))?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    report.line(&format!("\n== end, after {seconds:.0} s: {} defects", report.defects.len()))?;
    for line in report.defects.iter().map(|d| format!("  {d}")).collect::<Vec<_>>() {
        report.line(&line)?;
    }
    for line in report
        .cut
        .iter()
        .map(|cut| format!("  not run in {} minutes: {cut}", options.minutes))
        .collect::<Vec<_>>()
    {
        report.line(&line)?;
    }
    let mut json = std::mem::take(&mut report.values);
    json.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    json.insert("seconds".into(), seconds.into());
    json.insert("defects".into(), report.defects.clone().into());
    json.insert("cut".into(), report.cut.clone().into());
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
    until: Instant,
    report: &mut ReportFile,
) -> anyhow::Result<()> {
    let mut first = 0;
    for _ in 0..MOST_RESTARTS {
        let (item, ended) = run_once(options, stage, first, until, report)?;
        let (index, name) = item.clone().unwrap_or((first, "its start".to_owned()));
        let problem = match ended {
            Ended::Well => return Ok(()),
            Ended::OutOfTime => {
                return report.cut(format!("{stage}: from item {index} on, {name}"));
            }
            Ended::Silent(seconds) => format!("no output for {seconds} s"),
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
    /// Seconds without output.
    Silent(u64),
    Badly(ExitStatus, String),
}

/// Runs a stage's process; returns its last item.
fn run_once(
    options: &MetalSelftest,
    stage: &str,
    first: usize,
    until: Instant,
    report: &mut ReportFile,
) -> anyhow::Result<(Option<(usize, String)>, Ended)> {
    let mut child = start(options, stage, first, until)?;
    let lines = lines_of(&mut child)?;
    let mut item = None;
    let ended = loop {
        let runs_kernels = item.is_some() && !["compile", "pipelines"].contains(&stage);
        let seconds = if runs_kernels { options.patience.max(1) } else { options.patience.max(COMPILING) };
        let patience = Duration::from_secs(seconds);
        match lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
                Some(("item", text)) => {
                    let (index, name) = text.split_once(' ').unwrap_or((text, ""));
                    item = Some((index.parse().unwrap_or(0), name.to_owned()));
                }
                Some(("defect", text)) => report.defect(text.to_owned())?,
                Some(("cut", text)) => report.cut(text.to_owned())?,
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
            Err(RecvTimeoutError::Timeout) => break Some(Ended::Silent(seconds)),
        }
        // A stage checks its own time limit between items; this limit also ends long items.
        if Instant::now() > until + patience {
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

fn start(options: &MetalSelftest, stage: &str, first: usize, until: Instant) -> anyhow::Result<Child> {
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
    for only in &options.only {
        command.args(["--only", only]);
    }
    for replace in &options.replace {
        command.args(["--replace", replace]);
    }
    let encoder = clap::ValueEnum::to_possible_value(&options.metal_encoder);
    if let Some(encoder) = encoder {
        command.args(["--metal-encoder", encoder.get_name()]);
    }
    let left = until.saturating_duration_since(Instant::now());
    let at = SystemTime::now().duration_since(UNIX_EPOCH)? + left;
    command.args(["--until", &at.as_secs().to_string()]);
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

/// Power source and power mode, as the system prints them.
fn power() -> String {
    if !cfg!(target_os = "macos") {
        return "unknown on this system".to_owned();
    }
    let words = |arguments: &[&str]| {
        let output = Command::new("pmset").args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let (battery, settings) = (words(&["-g", "batt"]), words(&["-g"]));
    let source = battery.lines().next().unwrap_or("").trim().to_owned();
    let mode = settings.lines().map(str::trim).find(|line| line.starts_with("lowpowermode")).unwrap_or("");
    format!("{source}, {mode}")
}

/// Seconds of a stage, when `spent` of `budget` are over: all that is left but for the shares of
/// later stages. If earlier stages took more than theirs, the rest is divided by the shares.
fn time_of(stages: &[Share], index: usize, budget: f64, spent: f64) -> f64 {
    let sum = |stages: &[Share]| stages.iter().map(|(_, share)| share).sum::<f64>();
    let (left, share, later) = ((budget - spent).max(0.0), stages[index].1, sum(&stages[index + 1..]));
    (left - budget * later / sum(stages)).max(left * share / (share + later))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(stage: &str) -> usize {
        STAGES.iter().position(|(name, _)| *name == stage).unwrap_or_default()
    }

    /// A stage that is done early leaves its time to later ones; one that takes long leaves each
    /// later one a part. The last one has all that is left.
    #[test]
    fn ten_minutes_are_shared() {
        let all: f64 = STAGES.iter().map(|(_, share)| share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        let about =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
        // On time, a stage has its share.
        about(time_of(&STAGES, index("cover"), 600.0, 600.0 * 0.22), 150.0);
        about(time_of(&STAGES, index("cases"), 600.0, 570.0), 30.0);
        // A cover that began at once has the time of the stages before it too.
        about(time_of(&STAGES, index("cover"), 600.0, 20.0), 600.0 - 20.0 - 600.0 * 0.53);
        about(time_of(&STAGES, index("cases"), 600.0, 200.0), 400.0);
        // A late sweep shares what is left with the tokens and the cases.
        about(time_of(&STAGES, index("sweep"), 600.0, 500.0), 100.0 * 0.2 / 0.28);
        about(time_of(&STAGES, index("sweep"), 600.0, 700.0), 0.0);
        // Without the others, two stages have all the time.
        about(time_of(&STAGES[..2], 1, 600.0, 1.0), 599.0);
    }
}
