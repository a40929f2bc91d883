//! The report of a run.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Answer, Outcome};

/// Exact percentiles (nearest rank) in milliseconds; `None` without samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Percentiles {
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times.get(rank.saturating_sub(1)).map(|time| time.as_secs_f64() * 1e3)
        };
        Percentiles { p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// The report of a run. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of clients of a closed loop.
    pub clients: Option<usize>,
    pub requests: usize,
    pub done: usize,
    /// Requests that were refused with status 429.
    pub refused: usize,
    pub first_refusal: Option<String>,
    /// Answers in which the client hung up, as planned.
    pub hung_up: usize,
    /// Answers that ended without `finish_reason`.
    pub killed: usize,
    pub errors: usize,
    pub first_error: Option<String>,
    /// Answers that differ from the answer to the same request alone; `None` without --check-solo.
    pub different: Option<usize>,
    pub seconds: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub output_tokens_per_second: f64,
    /// Time from the planned start to the first text.
    pub ttft_ms: Percentiles,
    /// Time between two chunks with text.
    pub itl_ms: Percentiles,
    /// Time from the first text to the end, divided by the tokens after the first; one sample a
    /// request.
    pub tpot_ms: Percentiles,
    /// Time from the planned start to the end.
    pub e2e_ms: Percentiles,
}

impl Report {
    pub fn new(clients: Option<usize>, begun: Instant, answers: &[Answer]) -> Report {
        let count = |outcome: Outcome| answers.iter().filter(|answer| answer.outcome == outcome).count();
        let errors: Vec<&String> = answers
            .iter()
            .filter_map(|answer| match &answer.outcome {
                Outcome::Failed(message) => Some(message),
                Outcome::Done | Outcome::Refused(_) | Outcome::HungUp | Outcome::Killed => None,
            })
            .collect();
        let refusals: Vec<&String> = answers
            .iter()
            .filter_map(|answer| match &answer.outcome {
                Outcome::Refused(message) => Some(message),
                Outcome::Done | Outcome::HungUp | Outcome::Killed | Outcome::Failed(_) => None,
            })
            .collect();
        let done: Vec<&Answer> = answers.iter().filter(|answer| answer.outcome == Outcome::Done).collect();
        let ended = answers.iter().map(|answer| answer.ended).max().unwrap_or(begun);
        let seconds = ended.saturating_duration_since(begun).as_secs_f64();
        let sum = |of: fn(&Answer) -> u64| done.iter().map(|answer| of(answer)).sum::<u64>();
        let output_tokens = sum(|answer| answer.n_generated);
        let first = |answer: &Answer| answer.chunks.first().copied();
        let ttft = done.iter().filter_map(|a| Some(first(a)?.saturating_duration_since(a.scheduled)));
        let itl = done.iter().flat_map(|a| a.chunks.windows(2).map(|pair| pair[1] - pair[0]));
        let tpot = done.iter().filter_map(|a| {
            let after = u32::try_from(a.n_generated.checked_sub(1)?).ok()?;
            a.ended.saturating_duration_since(first(a)?).checked_div(after)
        });
        let e2e = done.iter().map(|a| a.ended.saturating_duration_since(a.scheduled));
        Report {
            clients,
            requests: answers.len(),
            done: done.len(),
            refused: refusals.len(),
            first_refusal: refusals.first().map(|message| (*message).clone()),
            hung_up: count(Outcome::HungUp),
            killed: count(Outcome::Killed),
            errors: errors.len(),
            first_error: errors.first().map(|message| (*message).clone()),
            different: None,
            seconds,
            prompt_tokens: sum(|answer| answer.n_prompt),
            cached_tokens: sum(|answer| answer.n_cached),
            output_tokens,
            output_tokens_per_second: if seconds > 0.0 { output_tokens as f64 / seconds } else { 0.0 },
            ttft_ms: Percentiles::of(ttft.collect()),
            itl_ms: Percentiles::of(itl.collect()),
            tpot_ms: Percentiles::of(tpot.collect()),
            e2e_ms: Percentiles::of(e2e.collect()),
        }
    }

    /// The report as a table.
    pub fn table(&self) -> String {
        let clients = self.clients.map_or(String::new(), |n| format!("{n} clients: "));
        let different =
            self.different.map_or(String::new(), |n| format!(", {n} differ from the solo answer"));
        let mut text = format!(
            "{clients}{} requests in {:.2} s: {} done, {} refused (429), {} hung up, {} killed, {} errors{different}\n\
             {} tokens of prompts ({} cached), {} of answers: {:.1} tok/s\n",
            self.requests,
            self.seconds,
            self.done,
            self.refused,
            self.hung_up,
            self.killed,
            self.errors,
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            self.output_tokens_per_second,
        );
        if let Some(refusal) = &self.first_refusal {
            text += &format!("first refusal: {refusal}\n");
        }
        if let Some(error) = &self.first_error {
            text += &format!("first error: {error}\n");
        }
        text += &format!("{:<28}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "p50", "p90", "p99", "max");
        for (name, times) in [
            ("time to first token", &self.ttft_ms),
            ("between chunks (ITL)", &self.itl_ms),
            ("per token (TPOT)", &self.tpot_ms),
            ("whole answer", &self.e2e_ms),
        ] {
            text += &format!("{name:<28}");
            for time in [times.p50, times.p90, times.p99, times.max] {
                text += &format!("{:>10}", time.map_or("-".to_owned(), |ms| format!("{ms:.1}")));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let of = |n: u64| Percentiles::of((1..=n).rev().map(Duration::from_millis).collect());
        let hundred = of(100);
        assert_eq!((hundred.p50, hundred.p99, hundred.max), (Some(50.0), Some(99.0), Some(100.0)));
        assert_eq!((of(1).p50, of(1).p99), (Some(1.0), Some(1.0)));
        assert_eq!(of(0), Percentiles::default());
    }
}
