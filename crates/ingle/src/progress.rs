//! Progress of a download on stderr: a bar on a terminal, plain lines for notes, nothing else.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::tell::tell;

/// Draws what [`hub::fetch`] tells. Silent, notes excepted, when stderr is no terminal.
#[derive(Default)]
pub struct Bar {
    bar: Option<ProgressBar>,
}

impl hub::Progress for Bar {
    fn start(&mut self, name: &str, total_bytes: Option<u64>) {
        let bar = ProgressBar::with_draw_target(total_bytes, ProgressDrawTarget::stderr());
        let template = match total_bytes {
            Some(_) => "{msg}  {bar:30}  {bytes} of {total_bytes}  {bytes_per_sec}  {eta}",
            None => "{msg}  {bytes}  {bytes_per_sec}",
        };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(name.to_owned());
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

    fn note(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{text}")),
            None => tell!("{text}"),
        }
    }
}
