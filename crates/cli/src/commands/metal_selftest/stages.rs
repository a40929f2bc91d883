//! The stages of the report. They print results line by line for the parent process.

use super::MetalSelftest;
use ingle::device::metal;

#[cfg(target_os = "macos")]
mod gpu {
    pub use device_metal::gpu::apple::AppleGpu as TheGpu;
}
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod gpu {
    pub use device_metal::gpu::emulated::EmulatedGpu as TheGpu;
}

/// Opens the GPU, as a check that the report can run here.
#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
pub(super) fn open(options: &MetalSelftest) -> anyhow::Result<()> {
    here::gpu(options, None, false).map(|_| ())
}

#[cfg(not(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64"))))]
pub(super) fn open(options: &MetalSelftest) -> anyhow::Result<()> {
    Ok(metal::apple(options.tensors, options.metal_encoder.into()).map(|_| ())?)
}

/// Runs a stage, starting at an item.
#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
pub(super) fn run(options: &MetalSelftest, stage: &str, first: usize) -> anyhow::Result<()> {
    here::Stage::new(options, stage, first)?.run()
}

#[cfg(not(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64"))))]
pub(super) fn run(options: &MetalSelftest, stage: &str, first: usize) -> anyhow::Result<()> {
    anyhow::bail!("stage {stage} (from item {first}) needs a Mac or Linux; {}", options.report.display())
}

#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
mod here {
    use super::gpu::TheGpu;
    use super::*;
    use crate::output::{self, print_line};
    use anyhow::Context;
    use device::Device;
    use device_check::Case;
    use device_metal::gpu::{Gpu, MetalGpu, Request};
    use device_metal::selftest::{self, Decoder, Effort, Measurement, Order, Progress, Trial, Variant};
    use device_metal::{MetalDevice, Profile, kernels};
    use serde_json::json;
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// Opens the GPU, in a variant of the bisection if one is given. With `keeps`, compiled
    /// pipelines are read from the archive of an earlier start, and written for the next.
    pub fn gpu(options: &MetalSelftest, variant: Option<Variant>, keeps: bool) -> anyhow::Result<TheGpu> {
        #[cfg(target_os = "macos")]
        {
            use device_metal::gpu::EncoderMode;
            use device_metal::gpu::apple::Options;
            if options.emulated {
                metal::emulated(None)?;
            }
            let cache = keeps.then(metal::cache).transpose()?;
            let encoder = match variant {
                Some(Variant::Serial) => EncoderMode::Serial,
                Some(_) | None => ingle::device::MetalEncoder::from(options.metal_encoder).mode(),
            };
            let any_family = options.compile_only;
            let open = |tensors| TheGpu::new(&Options { cache: cache.clone(), tensors, any_family, encoder });
            // A compiler without tensors is what `compile-only` is to show.
            let wanted = options.tensors && !options.compile_only;
            let (gpu, refused) = match wanted {
                true => device_metal::tensors::open(open)?,
                false => (open(options.tensors)?, None),
            };
            if let Some(error) = refused {
                print_line(&format!("--tensors has no effect: the tensor units fail their probe: {error}"))?;
            }
            Ok(gpu)
        }
        #[cfg(not(target_os = "macos"))]
        {
            use device_metal::gpu::emulated::Options;
            // The emulator's archive is its cache, and its dispatches are always in order.
            let _ = (variant, keeps);
            if !options.emulated {
                metal::apple(options.tensors, options.metal_encoder.into())?;
            }
            let mut settings = Options::new(metal::cache()?);
            settings.threads = device_cpu::default_threads();
            for replace in &options.replace {
                let (path, file) = replace.split_once('=').context("expected PATH=FILE")?;
                let known = kernels::FILES.iter().map(|(path, _)| *path).find(|known| *known == path);
                let path = known.with_context(|| format!("found no kernel file {path}"))?;
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                settings.replaced.push((path, text));
            }
            Ok(TheGpu::new(&settings)?)
        }
    }

    /// A running stage.
    pub struct Stage<'a> {
        options: &'a MetalSelftest,
        name: &'a str,
        first: usize,
        until: Option<Instant>,
        device: MetalDevice<TheGpu>,
        effort: Effort,
    }

    impl<'a> Stage<'a> {
        pub fn new(options: &'a MetalSelftest, name: &'a str, first: usize) -> anyhow::Result<Stage<'a>> {
            let until = options.until.map(|at| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Instant::now() + Duration::from_secs(at).saturating_sub(now)
            });
            // The archive is read and written by ordinary runs, and by one stage.
            let gpu = gpu(options, None, name == "tokens")?;
            let profile = Profile::new(gpu.facts());
            let profile = Profile { tensor: gpu.facts().has_tensors, ..profile };
            let profile = match &options.chip_profile {
                None => profile,
                Some(file) => {
                    let text = std::fs::read_to_string(file)
                        .with_context(|| format!("cannot read {}", file.display()))?;
                    profile.with_text(&text).map_err(|what| anyhow::anyhow!("{}: {what}", file.display()))?
                }
            };
            let effort = Effort::of(gpu.facts().is_emulated);
            let device = MetalDevice::with_profile(gpu, profile);
            Ok(Stage { options, name, first, until, device, effort })
        }

        pub fn run(&self) -> anyhow::Result<()> {
            match self.name {
                "machine" => self.machine(),
                "compile" => self.compile(),
                "pipelines" => self.pipelines(),
                "probes" => self.probes(),
                "cover" | "cases" => self.cases(),
                "ahead" => self.ahead(),
                "timings" => self.between_peaks(Self::timings),
                "sweep" => self.between_peaks(Self::sweep),
                "tokens" => self.between_peaks(Self::tokens),
                other => anyhow::bail!("no stage {other}"),
            }
        }

        /// Runs a stage of times, between two measurements of the peak of arithmetic. It falls when
        /// the chip slows down.
        fn between_peaks(&self, run: fn(&Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
            let state = || {
                let about = self.device.gpu().about();
                let heat = about.into_iter().find(|(what, _)| *what == "thermal state");
                (self.device.peaks().f32_ops_per_second / 1e12, heat.map_or(String::new(), |(_, heat)| heat))
            };
            let before = state();
            run(self)?;
            let after = state();
            let text = |(peak, heat): &(f64, String)| format!("{peak:.2} TFLOP/s {heat}");
            print_line(&format!(
                "peak and thermal state before: {}; after: {}",
                text(&before),
                text(&after)
            ))?;
            value("states", &json!([self.name, before, after]))
        }

        /// Prints the next item; returns true if it must run: it is not before the first item, and
        /// time is left.
        fn begins(&self, index: usize, name: &str) -> anyhow::Result<bool> {
            if index < self.first || self.is_late() {
                return Ok(false);
            }
            print_line(&format!("@item {index} {name}"))?;
            Ok(true)
        }

        fn is_late(&self) -> bool {
            self.until.is_some_and(|until| Instant::now() > until)
        }

        /// Notes items that were not run for lack of time.
        fn cut(&self, n: usize, all: usize, what: &str) -> anyhow::Result<()> {
            if n > 0 {
                print_line(&format!("@cut {}: {n} of {all} {what}", self.name))?;
            }
            Ok(())
        }

        /// The cases that this device supports and the options select, in the order of the report.
        fn order(&self) -> anyhow::Result<Order> {
            let only: Vec<String> = self.options.only.iter().map(|text| text.to_lowercase()).collect();
            let is_selected = |case: &Case| {
                let name = format!("{} {}", case.kind, case.name).to_lowercase();
                only.is_empty() || only.iter().any(|text| name.contains(text))
            };
            let cases = selftest::report_cases().into_iter().filter(is_selected);
            let cases = cases.filter(|case| case.runs_on(&self.device)).step_by(self.options.every.max(1));
            Ok(Order::new(self.device.gpu().facts(), self.device.profile(), cases.collect())?)
        }

        fn machine(&self) -> anyhow::Result<()> {
            let (facts, memory) = (self.device.gpu().facts(), self.device.memory());
            print_line(&format!(
                "{}, family {}, {} GPU cores, {} usable, {} free, {} {}",
                facts.name,
                facts.family,
                facts.n_cores,
                output::bytes(memory.total),
                output::bytes(memory.free),
                std::env::consts::OS,
                system(),
            ))?;
            for (what, fact) in self.device.gpu().about() {
                print_line(&format!("{what}: {fact}"))?;
            }
            print_line(&format!("shaders {}, profile:", kernels::fingerprint(&[])))?;
            print_line(self.device.profile().to_text().trim_end())?;
            let (name, family, n_cores) = (&facts.name, facts.family, facts.n_cores);
            let about: serde_json::Map<_, _> = self
                .device
                .gpu()
                .about()
                .into_iter()
                .map(|(what, fact)| (what.to_string(), json!(fact)))
                .collect();
            value(
                "machine",
                &json!({
                    "gpu": name, "family": family, "cores": n_cores, "system": system(),
                    "tensors": facts.has_tensors, "about": about,
                }),
            )
        }

        /// Compiles every file alone, and prints the compiler's messages. With `--only`, the files
        /// of the selected cases.
        fn compile(&self) -> anyhow::Result<()> {
            let mut files: Vec<&'static str> = kernels::FILES.iter().map(|(path, _)| *path).collect();
            if !self.options.only.is_empty() {
                let order = self.order()?;
                files.retain(|file| order.requests.iter().any(|request| request.kernel.file == *file));
            }
            let mut n_cut = 0;
            for (index, file) in files.iter().copied().enumerate() {
                if !self.begins(index, file)? {
                    n_cut += usize::from(index >= self.first);
                    continue;
                }
                let begun = Instant::now();
                let made = self.device.gpu().compile_file(file);
                let ms = begun.elapsed().as_secs_f64() * 1e3;
                match made {
                    Ok(functions) => {
                        print_line(&format!("{file:28} {:3} functions {ms:8.1} ms", functions.len()))?;
                        for line in self.device.gpu().warnings(file).lines() {
                            print_line(&format!("    {line}"))?;
                        }
                    }
                    Err(words) => {
                        print_line(&format!("{file:28} DOES NOT COMPILE:"))?;
                        for line in words.lines() {
                            print_line(&format!("    {line}"))?;
                        }
                        let first = words.lines().find(|line| line.contains("error")).unwrap_or("").trim();
                        print_line(&format!("@defect compile: {file} does not compile: {first}"))?;
                    }
                }
                value("compile", &json!({ "file": file, "ms": ms }))?;
            }
            self.cut(n_cut, files.len(), "files")
        }

        /// Builds each pipeline of the cases without a limit of its threads, one of each function
        /// first. The compiler then gives a kernel the registers that it wants, and the maximum
        /// number of threads falls with them.
        fn pipelines(&self) -> anyhow::Result<()> {
            let plain = Request::plain("probes.metal", "numeric_probes", 32);
            if matches!(self.device.gpu().unlimited(&plain), Ok(None)) {
                return print_line("this GPU has no registers, so nothing is built");
            }
            let requests = self.order()?.requests;
            let mut n_cut = 0;
            for (index, request) in requests.iter().enumerate() {
                let function = &request.kernel.function;
                if !self.begins(index, function)? {
                    n_cut += usize::from(index >= self.first);
                    continue;
                }
                let limits = match self.device.gpu().unlimited(request) {
                    Ok(Some(limits)) => limits,
                    Ok(None) => continue,
                    Err(error) => {
                        print_line(&format!("@defect pipelines: {error}"))?;
                        continue;
                    }
                };
                let (most, bytes, asked) = (limits.max_threads, limits.threadgroup_bytes, request.threads);
                let fewer = if most < asked { ", FEWER THAN REQUESTED" } else { "" };
                print_line(&format!(
                    "{function:40} {most:4} threads, {asked:4} requested, {bytes:5} bytes{fewer}"
                ))?;
                let constants = format!("{:?}", request.constants);
                value("pipelines", &json!([function, constants, most, asked, bytes]))?;
            }
            self.cut(n_cut, requests.len(), "pipelines")
        }

        fn probes(&self) -> anyhow::Result<()> {
            if !self.begins(0, "numeric probes")? {
                return self.cut(1 - self.first.min(1), 1, "probes");
            }
            let probed = match selftest::probe(self.device.gpu()) {
                Ok(probed) => probed,
                Err(error) => return print_line(&format!("@defect probes: {error}")),
            };
            for probe in probed {
                let (found, expected) = (f32::from_bits(probe.found), f32::from_bits(probe.expected));
                let word = match (probe.is_expected(), probe.is_needed) {
                    (true, _) => "as expected",
                    (false, false) => "otherwise, which no kernel minds",
                    (false, true) => "WRONG",
                };
                print_line(&format!(
                    "{:70} {:08x} {found:e} expected {:08x} {expected:e}: {word}",
                    probe.what, probe.found, probe.expected
                ))?;
                if word == "WRONG" {
                    print_line(&format!("@defect probes: {}: {found:e}, expected {expected:e}", probe.what))?;
                }
                value(
                    "probes",
                    &json!({ "what": probe.what, "found": probe.found, "expected": probe.expected }),
                )?;
            }
            Ok(())
        }

        /// Compares cases with the interpreter: those that cover every function, or the others.
        fn cases(&self) -> anyhow::Result<()> {
            let (mut n_run, mut n_agree, mut n_cut) = (0, 0, 0);
            let order = self.order()?;
            let (cases, n_cover) = (&order.cases, order.n_cover);
            let part = match self.name {
                "cover" => 0..n_cover,
                _ => n_cover..cases.len(),
            };
            if self.name == "cover" {
                let n_functions = order.functions().len();
                print_line(&format!("{n_cover} of {} cases run all {n_functions} functions", cases.len()))?;
            }
            for (index, case) in cases.iter().enumerate().take(part.end).skip(part.start) {
                if !self.begins(index, &case.name)? {
                    n_cut += usize::from(index >= self.first);
                    continue;
                }
                n_run += 1;
                match selftest::check_case(&self.device, case) {
                    Ok(()) => {
                        n_agree += 1;
                        print_line(&format!("{:16} {}: agrees", case.kind.to_string(), case.name))?;
                    }
                    Err(failure) => {
                        print_line(&format!("{:16} {}: DIFFERS", case.kind.to_string(), case.name))?;
                        print_line(&format!("    {failure}"))?;
                        let make = |variant: Variant| {
                            gpu(self.options, Some(variant), false).map_err(|error| device::Error::Failed {
                                device: "metal",
                                reason: output::message(&error),
                            })
                        };
                        let tried = selftest::bisect(case, self.device.profile(), &make);
                        for (variant, result) in &tried {
                            let words = result.as_ref().err().map_or("agrees", String::as_str);
                            print_line(&format!("    {variant}: {words}"))?;
                        }
                        let agrees = tried.iter().find(|(_, result)| result.is_ok());
                        let agrees = agrees.map_or("no variant agrees".to_owned(), |(variant, _)| {
                            format!("it agrees {variant}")
                        });
                        print_line(&format!("@defect {}: {}: {failure}; {agrees}", self.name, case.kind))?;
                    }
                }
            }
            print_line(&format!("{n_agree} of {n_run} cases agree"))?;
            value(self.name, &json!({ "run": n_run, "agree": n_agree, "all": part.len() }))?;
            for note in self.device.gpu().notes() {
                print_line(&note)?;
            }
            self.cut(n_cut, part.len(), "cases")
        }

        fn ahead(&self) -> anyhow::Result<()> {
            if !self.begins(0, "steps in flight")? {
                return self.cut(1 - self.first.min(1), 1, "checks of steps in flight");
            }
            for (what, result) in selftest::check_ahead(&self.device, self.options.every) {
                match result {
                    Ok(()) => print_line(&format!("steps in flight, {what}: agree"))?,
                    Err(difference) => {
                        print_line(&format!("@defect ahead: {what}: {difference}"))?;
                    }
                }
            }
            Ok(())
        }

        fn timings(&self) -> anyhow::Result<()> {
            if self.device.gpu().facts().is_emulated {
                print_line("emulated: times are meaningless")?;
            }
            let mut n_cut = 0;
            let all: Vec<Measurement> = selftest::measurements(&self.effort, self.options.every);
            for (index, measurement) in all.iter().enumerate() {
                let name = measurement.name();
                if !self.begins(index, &name)? {
                    n_cut += usize::from(index >= self.first);
                    continue;
                }
                let mut run = || measurement.run(&self.device, &self.effort);
                let (measured, is_slowed) = match selftest::unslowed(self.device.gpu(), &mut run) {
                    Ok(measured) => measured,
                    Err(error) => {
                        print_line(&format!("@defect timings: {name}: {error}"))?;
                        continue;
                    }
                };
                measured.lines.iter().try_for_each(|line| print_line(line))?;
                if is_slowed {
                    print_line("    slowed down by heat, three times")?;
                }
                value("timings", &json!([name, measured.numbers, is_slowed]))?;
            }
            self.cut(n_cut, all.len(), "measurements")
        }

        fn sweep(&self) -> anyhow::Result<()> {
            if !self.begins(0, "sweep")? {
                return self.cut(1 - self.first.min(1), 1, "searches");
            }
            let base = self.device.profile();
            let mut n = 0;
            // Times of the emulator are meaningless, so there only the procedure is tested.
            let most = if self.device.gpu().facts().is_emulated { 3 } else { usize::MAX };
            let mut is_cut = false;
            let changed = |trial: &Trial| {
                let (tried, base) = (trial.profile.to_text(), base.to_text());
                let lines = tried.lines().zip(base.lines()).filter(|(tried, base)| tried != base);
                lines.map(|(tried, _)| tried).collect::<Vec<_>>().join(", ")
            };
            let mut tell = |progress: Progress<'_>| match progress {
                // The parent names the candidate if this process hangs.
                Progress::Begins(trial) => print_line(&format!("@item 0 {}", changed(trial))).is_ok(),
                Progress::Ended(trial) => {
                    n += 1;
                    is_cut = self.is_late() || n >= most;
                    print_line(&format!("{}: {}", changed(trial), rates(trial))).is_ok() && !is_cut
                }
            };
            let (best, compared) = selftest::sweep(self.device.shared_gpu(), base, &self.effort, &mut tell)?;
            for trial in &compared {
                print_line(&format!("{}: {}", trial.judge.name(), rates(trial)))?;
                value("compared", &json!([trial.judge.name(), trial.incumbent, trial.candidate]))?;
            }
            let best = if selftest::is_confirmed(&compared) { best } else { base.clone() };
            if best == *base {
                print_line("no profile is surely faster than the chip's own:")?;
            } else {
                print_line("the fastest, to paste into a file for --chip-profile:")?;
            }
            print_line(best.to_text().trim_end())?;
            value("profile", &json!(best.to_text()))?;
            if is_cut {
                print_line(&format!("@cut sweep: the fields after {n} trials"))?;
            }
            Ok(())
        }

        fn tokens(&self) -> anyhow::Result<()> {
            if !self.begins(0, "tokens per second")? {
                return self.cut(1 - self.first.min(1), 1, "measurements of tokens");
            }
            let (n, shape) = (self.effort.n_tokens, &self.effort.model);
            let mut decoder = Decoder::new(&self.device, &selftest::model(shape), &self.effort)?;
            let first = decoder.tokens_per_second(n, 0, Duration::ZERO)?;
            let warm = decoder.tokens_per_second(n, 0, Duration::ZERO)?;
            let idle = decoder.tokens_per_second(n, 0, Duration::from_secs(2))?;
            print_line(&format!(
                "random weights in the shape of {}, {} layers: {first:.1} tok/s cold, {warm:.1} warm, {idle:.1} after two \
                 seconds of idleness",
                shape.name, shape.n_layers,
            ))?;
            value("tokens_per_second", &json!({ "cold": first, "warm": warm, "after_idleness": idle }))
        }
    }

    /// Rates of a trial in turns, and its result.
    fn rates(trial: &Trial) -> String {
        let list =
            |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.1}")).collect::<Vec<_>>().join(" ");
        if let Some(error) = &trial.error {
            return format!("does not run: {error}");
        }
        let result = if trial.is_accepted { ", faster" } else { "" };
        format!("{} rows/s, before {}{result}", list(&trial.candidate), list(&trial.incumbent))
    }

    /// Prints a value for the JSON block.
    fn value(name: &str, value: &serde_json::Value) -> anyhow::Result<()> {
        print_line(&format!("@value {name} {value}"))
    }

    /// The version and the build of the system.
    fn system() -> String {
        let words = |program: &str, argument: &str| {
            let output = std::process::Command::new(program).arg(argument).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        match cfg!(target_os = "macos") {
            true => format!("{} {}", words("sw_vers", "-productVersion"), words("sw_vers", "-buildVersion")),
            false => words("uname", "-r"),
        }
    }
}
