//! Progress of a download on stderr: a bar on a terminal, and lines for notes.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::tell::tell;

/// Time between two redraws of a bar without progress.
const TICK: Duration = Duration::from_millis(120);

/// Writes the rate and the remaining time; before the first byte, the elapsed time.
fn pace(state: &ProgressState, out: &mut dyn Write) {
    // Writing to memory cannot fail.
    _ = match state.pos() {
        0 => write!(out, "waiting {:#}", HumanDuration(state.elapsed())),
        _ if state.len().is_none() => write!(out, "{}/s", BinaryBytes(state.per_sec() as u64)),
        _ => write!(out, "{}/s, {:#} left", BinaryBytes(state.per_sec() as u64), HumanDuration(state.eta())),
    };
}

/// A progress bar for [`hub::fetch`]. If stderr is not a terminal, only notes are printed.
#[derive(Default)]
pub struct Bar {
    bar: Option<ProgressBar>,
}

impl hub::Progress for Bar {
    fn start(&mut self, name: &str, total_bytes: Option<u64>) {
        let bar = ProgressBar::with_draw_target(total_bytes, ProgressDrawTarget::stderr());
        let template = match total_bytes {
            Some(_) => "{spinner} {wide_msg}  {bar:20}  {bytes} of {total_bytes}  {pace}",
            None => "{spinner} {wide_msg}  {bytes}  {pace}",
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("pace", pace));
        bar.set_message(name.to_owned());
        // The spinner turns without progress, too: pip needs seconds before its first byte.
        bar.enable_steady_tick(TICK);
        self.bar = Some(bar);
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn detail(&mut self, text: &str) {
        tracing::info!("{text}");
    }

    fn note(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{text}")),
            None => tell!("{text}"),
        }
    }
}
