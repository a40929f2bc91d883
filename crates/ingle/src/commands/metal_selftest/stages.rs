//! The stages of the report. They print results line by line for the parent process.

use super::MetalSelftest;

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
    here::gpu(options, None).map(|_| ())
}

#[cfg(not(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64"))))]
pub(super) fn open(options: &MetalSelftest) -> anyhow::Result<()> {
    crate::devices::metal::apple(options.tensors, options.metal_encoder).map(|_| ())
}

/// Runs a stage, starting at an item.
#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
pub(super) fn run(options: &MetalSelftest, stage: &str, first: usize) -> anyhow::Result<()> {
    here::Stage::new(options, first)?.run(stage)
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
    use device_check::{Case, block_types, check_op_cases};
    use device_metal::gpu::{Gpu, MetalGpu};
    use device_metal::selftest::{self, Effort, Variant};
    use device_metal::{MetalDevice, Profile, kernels};
    use serde_json::json;
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// Opens the GPU, in a variant of the bisection if one is given.
    pub fn gpu(options: &MetalSelftest, variant: Option<Variant>) -> anyhow::Result<TheGpu> {
        #[cfg(target_os = "macos")]
        {
            use device_metal::gpu::EncoderMode;
            use device_metal::gpu::apple::Options;
            if options.emulated {
                crate::devices::metal::emulated(None)?;
            }
            let cache =
                (variant != Some(Variant::NoArchive)).then(crate::devices::metal::cache).transpose()?;
            let encoder = match variant {
                Some(Variant::Serial) => EncoderMode::Serial,
                Some(_) | None => options.metal_encoder.mode(),
            };
            let any_family = options.compile_only;
            let open = |tensors| TheGpu::new(&Options { cache: cache.clone(), tensors, any_family, encoder });
            // A compiler without tensors is what `compile-only` is to show.
            let wanted = options.tensors && !options.compile_only;
            let (gpu, refused) = match wanted {
                true => device_metal::tensors::open(&open)?,
                false => (open(options.tensors)?, None),
            };
            if let Some(error) = refused {
                crate::tell::tell!(
                    "--tensors has no effect, since the tensor units fail their probe: {error}"
                );
            }
            Ok(gpu)
        }
        #[cfg(not(target_os = "macos"))]
        {
            use device_metal::gpu::emulated::Options;
            // The emulator has no archive, and its dispatches are always in order.
            let _ = variant;
            if !options.emulated {
                crate::devices::metal::apple(options.tensors, options.metal_encoder)?;
            }
            let mut settings = Options::new(crate::devices::metal::cache()?);
            settings.threads = device_cpu::default_threads();
            if let Some((path, file)) = options.replace.as_ref().and_then(|text| text.split_once('=')) {
                let known = kernels::FILES.iter().map(|(path, _)| *path).find(|known| *known == path);
                let path = known.with_context(|| format!("found no kernel file {path}"))?;
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                settings.replaced = Some((path, text));
            }
            Ok(TheGpu::new(&settings)?)
        }
    }

    /// A running stage.
    pub struct Stage<'a> {
        options: &'a MetalSelftest,
        first: usize,
        until: Option<Instant>,
        device: MetalDevice<TheGpu>,
        effort: Effort,
    }

    impl<'a> Stage<'a> {
        pub fn new(options: &'a MetalSelftest, first: usize) -> anyhow::Result<Stage<'a>> {
            let until = options.until.map(|at| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Instant::now() + Duration::from_secs(at).saturating_sub(now)
            });
            let gpu = gpu(options, None)?;
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
            Ok(Stage { options, first, until, device: MetalDevice::with_profile(gpu, profile), effort })
        }

        pub fn run(&self, stage: &str) -> anyhow::Result<()> {
            match stage {
                "machine" => self.machine(),
                "compile" => self.compile(),
                "probes" => self.probes(),
                "cases" => self.cases(),
                "ahead" => self.ahead(),
                "timings" => self.timings(),
                "sweep" => self.sweep(),
                "tokens" => self.tokens(),
                other => anyhow::bail!("no stage {other}"),
            }
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
            print_line(&format!("shaders {}, profile:", kernels::fingerprint(&[])))?;
            print_line(self.device.profile().to_text().trim_end())?;
            let (name, family, n_cores) = (&facts.name, facts.family, facts.n_cores);
            value("machine", &json!({ "gpu": name, "family": family, "cores": n_cores, "system": system() }))
        }

        /// Compiles every file alone, and prints the compiler's messages.
        fn compile(&self) -> anyhow::Result<()> {
            for (index, (file, _)) in kernels::FILES.iter().enumerate() {
                if !self.begins(index, file)? {
                    continue;
                }
                let begun = Instant::now();
                let made = self.device.gpu().compile_file(file);
                let ms = begun.elapsed().as_secs_f64() * 1e3;
                match made {
                    Ok(functions) => {
                        print_line(&format!("{file:28} {:3} functions {ms:8.1} ms", functions.len()))?
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
            Ok(())
        }

        fn probes(&self) -> anyhow::Result<()> {
            if !self.begins(0, "numeric probes")? {
                return Ok(());
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

        /// The cases that this device supports, the smallest first.
        fn all_cases(&self) -> Vec<Case> {
            let cases = check_op_cases().into_iter().filter(|case| case.runs_on(&self.device));
            let only = self.options.only.as_deref().unwrap_or("").to_lowercase();
            let cases =
                cases.filter(|case| format!("{} {}", case.kind, case.name).to_lowercase().contains(&only));
            let mut cases: Vec<Case> = cases.step_by(self.options.every.max(1)).collect();
            let work = |case: &Case| -> u64 {
                let rows: usize = case.steps.iter().map(|step| step.tokens.len()).sum();
                case.plans.iter().map(|plan| plan.ops_per_token()).sum::<u64>() * rows as u64
            };
            cases.sort_by_key(work);
            cases
        }

        fn cases(&self) -> anyhow::Result<()> {
            let (mut n_run, mut n_agree) = (0, 0);
            let cases = self.all_cases();
            for (index, case) in cases.iter().enumerate() {
                if !self.begins(index, &case.name)? {
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
                            gpu(self.options, Some(variant)).map_err(|error| device::Error::Failed {
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
                        print_line(&format!("@defect cases: {}: {failure}; {agrees}", case.kind))?;
                    }
                }
            }
            print_line(&format!("{n_agree} of {n_run} cases agree, {} in all", cases.len()))?;
            value("cases", &json!({ "run": n_run, "agree": n_agree, "all": cases.len() }))?;
            for note in self.device.gpu().notes() {
                print_line(&note)?;
            }
            Ok(())
        }

        fn ahead(&self) -> anyhow::Result<()> {
            if !self.begins(0, "steps in flight")? {
                return Ok(());
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
            let effort = &self.effort;
            if self.begins(0, "overheads")? {
                let seconds = selftest::time_overheads(self.device.gpu(), effort)?;
                let [dispatch, barrier, following, waited] = seconds.map(|seconds| seconds * 1e6);
                print_line(&format!(
                    "a dispatch {dispatch:.2} µs, with a barrier {barrier:.2} µs, a command buffer that follows another \
                     {following:.1} µs, one that is waited for {waited:.1} µs"
                ))?;
                value("overheads", &json!(seconds))?;
            }
            if self.begins(1, "peaks")? {
                let peaks = self.device.peaks();
                print_line(&format!(
                    "{:.0} GB/s read, {:.2} TFLOP/s in f32",
                    peaks.read_bytes_per_second / 1e9,
                    peaks.f32_ops_per_second / 1e12
                ))?;
            }
            let mut index = 2;
            for position in effort.positions {
                if self.begins(index, "attention")? {
                    let [whole, split] = selftest::time_attention(&self.device, position, effort)?;
                    print_line(&format!(
                        "attention at position {position}: {:.1} µs, split {:.1} µs",
                        whole * 1e6,
                        split * 1e6
                    ))?;
                    value("attention", &json!([position, whole, split]))?;
                }
                index += 1;
            }
            for block in block_types().into_iter().step_by(self.options.every.min(8)) {
                // Sizes of a small and of a large model: rows of x, and columns of the weights.
                for (n_rows, n_in) in
                    [(1, 1024), (2, 1024), (4, 1024), (8, 1024), (64, 1024), (1, 8192), (8, 8192)]
                {
                    if self.begins(index, &format!("product of {block}, {n_rows} rows of {n_in}"))? {
                        let (seconds, bytes) =
                            selftest::time_product(&self.device, block, n_rows, n_in, effort)?;
                        let rate = bytes as f64 / seconds;
                        print_line(&format!(
                            "{:10} {n_rows:3} rows of {n_in:4} {:10.1} µs {:7.1} GB/s",
                            block.to_string(),
                            seconds * 1e6,
                            rate / 1e9
                        ))?;
                        value("products", &json!([block.to_string(), n_rows, n_in, seconds, bytes]))?;
                    }
                    index += 1;
                }
            }
            Ok(())
        }

        fn sweep(&self) -> anyhow::Result<()> {
            if !self.begins(0, "sweep")? {
                return Ok(());
            }
            let base = self.device.profile();
            let mut n = 0;
            // Times of the emulator are meaningless, so there only the procedure is tested.
            let most = if self.device.gpu().facts().is_emulated { 3 } else { usize::MAX };
            let mut tell = |field: &str, tried: &Profile, speed: Option<f64>| {
                n += 1;
                let changed: Vec<String> = tried
                    .to_text()
                    .lines()
                    .zip(base.to_text().lines())
                    .filter(|(tried, base)| tried != base)
                    .map(|(tried, _)| tried.to_owned())
                    .collect();
                let speed = speed.map_or("does not run".to_owned(), |speed| format!("{speed:.1} rows/s"));
                print_line(&format!("{field}: {} {speed}", changed.join(", "))).is_ok()
                    && !self.is_late()
                    && n < most
            };
            let (best, speed) = selftest::sweep(self.device.shared_gpu(), base, &self.effort, &mut tell)?;
            print_line(&format!("the fastest, {speed:.1} tok/s, to paste into a file for --chip-profile:"))?;
            print_line(best.to_text().trim_end())?;
            value("profile", &json!({ "text": best.to_text(), "tokens_per_second": speed }))
        }

        fn tokens(&self) -> anyhow::Result<()> {
            if !self.begins(0, "tokens per second")? {
                return Ok(());
            }
            let mut decoder = selftest::Decoder::new(&self.device, &self.effort)?;
            let n = self.effort.n_tokens;
            let first = decoder.tokens_per_second(n, Duration::ZERO)?;
            let warm = decoder.tokens_per_second(n, Duration::ZERO)?;
            let idle = decoder.tokens_per_second(n, Duration::from_secs(2))?;
            print_line(&format!(
                "a synthetic model of {} columns and {} layers: {first:.1} tok/s cold, {warm:.1} warm, {idle:.1} after two \
                 seconds of idleness",
                self.effort.model.0, self.effort.model.1
            ))?;
            value("tokens_per_second", &json!({ "cold": first, "warm": warm, "after_idleness": idle }))
        }
    }

    /// Prints a value for the JSON block.
    fn value(name: &str, value: &serde_json::Value) -> anyhow::Result<()> {
        print_line(&format!("@value {name} {value}"))
    }

    /// The version of the system.
    fn system() -> String {
        let output = std::process::Command::new(if cfg!(target_os = "macos") { "sw_vers" } else { "uname" })
            .args(if cfg!(target_os = "macos") { &["-productVersion"] } else { &["-r"] })
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    }
}
