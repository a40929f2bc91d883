//! `ingle metal-selftest`: compares every Metal kernel with the CPU, times it, and prints a report to send back.

use std::fmt::Write as _;

use clap::Args;

use crate::load;
use crate::output;

/// Compare every Metal kernel with the CPU, time it, and print a report
#[derive(Args)]
#[command(after_help = "\
Examples:
  ingle metal-selftest                 (on a Mac with Apple Silicon: some minutes)
  ingle metal-selftest > report.txt    (to send back: no file of yours is read, and nothing is sent by itself)
  ingle metal-selftest --emulated --every 50   (on Linux: the shaders in the emulator; times mean nothing)")]
pub struct MetalSelftest {
    /// Run the shaders in the emulator on Linux instead
    #[arg(long)]
    emulated: bool,

    /// Only each n-th case
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,

    /// Multiply tiles on the tensor units of an M5 (macOS 26): written, but not tried by anybody
    #[arg(long, conflicts_with = "emulated")]
    tensors: bool,

    /// Leave the times out
    #[arg(long)]
    no_times: bool,
}

/// Sizes of what is timed.
#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
struct Sizes {
    /// Rows and columns of a matrix.
    product: (usize, usize),
    /// Columns of a model.
    hidden: usize,
    /// Positions that its one row sees.
    n_positions: usize,
}

impl MetalSelftest {
    pub fn run(self) -> anyhow::Result<()> {
        match self.emulated {
            true => self.on_emulator(),
            false => self.on_apple(),
        }
    }

    #[cfg(target_os = "macos")]
    fn on_apple(&self) -> anyhow::Result<()> {
        self.report(
            load::metal::apple(self.tensors)?.as_ref(),
            &Sizes { product: (16384, 4096), hidden: 2048, n_positions: 4096 },
        )
    }

    #[cfg(not(target_os = "macos"))]
    fn on_apple(&self) -> anyhow::Result<()> {
        load::metal::apple(self.tensors).map(|_| ())
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn on_emulator(&self) -> anyhow::Result<()> {
        self.report(
            load::metal::emulated(None)?.as_ref(),
            &Sizes { product: (256, 512), hidden: 256, n_positions: 128 },
        )
    }

    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    fn on_emulator(&self) -> anyhow::Result<()> {
        load::metal::emulated(None).map(|_| ())
    }

    /// Check, time, print; an error where a kernel differs.
    #[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
    fn report<G: device_metal::gpu::Gpu>(
        &self,
        device: &device_metal::MetalDevice<G>,
        sizes: &Sizes,
    ) -> anyhow::Result<()> {
        use device::Device;
        use device_metal::selftest;

        let facts = device.gpu().facts();
        let memory = device.memory();
        let mut text = format!(
            "ingle {} metal-selftest\n{}, family {}, {} GPU cores, {} usable, {} free, {}\nshaders {}, profile {}\n\n",
            env!("CARGO_PKG_VERSION"),
            facts.name,
            facts.family,
            facts.n_cores,
            output::bytes(memory.total),
            output::bytes(memory.free),
            std::env::consts::OS,
            device_metal::kernels::fingerprint(&[]),
            device.profile().chip,
        );
        let checked = selftest::check(device, self.every, &mut |index, n, name| {
            eprint!("\r\x1b[K{}/{n} {name}", index + 1);
        });
        eprint!("\r\x1b[K");
        let mut n_failures = 0;
        for kind in &checked {
            let word = if kind.failures.is_empty() { "agree" } else { "DIFFER" };
            writeln!(
                text,
                "{:16} {:4} cases, {:3} {word}",
                kind.kind.to_string(),
                kind.n_cases,
                match word {
                    "agree" => kind.n_cases,
                    _ => kind.failures.len(),
                }
            )?;
            for failure in &kind.failures {
                writeln!(text, "    {failure}")?;
            }
            n_failures += kind.failures.len();
        }
        let ahead = selftest::check_ahead(device, self.every);
        let n_differ = ahead.iter().filter(|(_, result)| result.is_err()).count();
        writeln!(
            text,
            "{:16} {:4} cases, {:3} agree",
            "steps in flight",
            ahead.len(),
            ahead.len() - n_differ
        )?;
        for (what, result) in &ahead {
            if let Err(difference) = result {
                writeln!(text, "    DIFFER: {what}: {difference}")?;
            }
        }
        n_failures += n_differ;
        if !self.no_times {
            let peaks = device.peaks();
            writeln!(
                text,
                "\nmeasured: {:.0} GB/s read, {:.2} TFLOP/s in f32{}",
                peaks.read_bytes_per_second / 1e9,
                peaks.f32_ops_per_second / 1e12,
                if facts.is_emulated { " (emulated: times mean nothing)" } else { "" },
            )?;
            let (n_out, n_in) = sizes.product;
            for timed in selftest::time(device, n_out, n_in, &[1, 4, 64])? {
                writeln!(
                    text,
                    "{:36} {:3} rows {:9.1} µs {:7.1} GB/s {:5.1} % of bandwidth {:6.2} TFLOP/s {:5.1} % of f32",
                    timed.kernel,
                    timed.n_rows,
                    timed.seconds * 1e6,
                    timed.bytes as f64 / timed.seconds / 1e9,
                    100.0 * timed.of_bandwidth(&peaks),
                    timed.ops as f64 / timed.seconds / 1e12,
                    100.0 * timed.of_ops(&peaks),
                )?;
            }
            writeln!(text, "\na layer of {} columns, its embedding and its head:", sizes.hidden)?;
            for timed in selftest::time_steps(device, sizes.hidden, sizes.n_positions, 512)? {
                writeln!(
                    text,
                    "{:60} {:3} rows {:9.1} µs {:7.1} GB/s",
                    timed.kernel,
                    timed.n_rows,
                    timed.seconds * 1e6,
                    timed.bytes as f64 / timed.seconds / 1e9,
                )?;
            }
        }
        output::print_line(text.trim_end())?;
        anyhow::ensure!(
            n_failures == 0,
            "{n_failures} cases differ from the CPU; please report the lines above"
        );
        Ok(())
    }
}
