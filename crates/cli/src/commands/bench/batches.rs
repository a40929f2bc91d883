//! `ingle bench --parallel`: several sequences at once, like llama-batched-bench.

use std::collections::HashSet;
use std::time::Instant;

use engine::{Engine, Event, FinishReason, Prefill, Request, SamplingParams, SequenceId};
use serde::Serialize;

use super::memory::Taken;
use super::warm;
use crate::output::{Style, Table};

/// Sizes of a test.
#[derive(Clone, Copy)]
pub struct Batch {
    /// Tokens of each prompt.
    pub n_prompt: usize,
    /// Tokens that each sequence generates after its first one.
    pub n_gen: usize,
    /// Sequences that run at once.
    pub n_parallel: usize,
    /// True if all sequences share a prompt, which differs only in its last token and is computed
    /// once.
    pub shared_prompt: bool,
    /// Tokens of a prompt that arrives while the sequences generate; 0 if none does.
    pub n_arriving: usize,
}

/// Times of one repetition, in seconds.
#[derive(Clone, Copy, Default)]
struct Seconds {
    prefill: f64,
    decode: f64,
    /// The arriving prompt alone.
    arriving: f64,
    /// Decode and the arriving prompt together, until both are done.
    together: f64,
}

/// Results of a test, as means. Names up to `speed` are llama-batched-bench's; the others are
/// Ingle's.
#[derive(Serialize)]
pub struct Row {
    /// Capacity of all sequences together, in positions.
    n_kv_max: usize,
    n_batch: usize,
    n_ubatch: usize,
    is_pp_shared: bool,
    n_threads: usize,
    n_threads_batch: usize,
    /// Tokens of each prompt.
    pp: usize,
    /// Tokens that each sequence generates.
    tg: usize,
    /// Sequences that run at once.
    pl: usize,
    /// Positions that are filled at the end; a shared prompt counts once.
    n_kv: usize,
    /// Seconds of the prompts.
    t_pp: f64,
    /// Prompt tokens a second, all sequences together.
    speed_pp: f64,
    /// Seconds of the generated tokens.
    t_tg: f64,
    /// Generated tokens a second, all sequences together.
    speed_tg: f64,
    /// Seconds of the prompts and the generated tokens.
    t: f64,
    /// Tokens a second, of prompts and generated tokens together.
    speed: f64,
    /// Tokens of the arriving prompt; 0 if there is none.
    n_arriving: usize,
    /// Seconds of the arriving prompt alone.
    t_arriving: f64,
    /// Seconds until the arriving prompt is computed and all sequences have their tokens.
    t_together: f64,
    /// Added seconds of the arriving prompt as a share of its seconds alone: `(t_together - t_tg) /
    /// t_arriving`.
    arriving_cost: Option<f64>,
    /// Number of repetitions; the times are means over them.
    n_repetitions: usize,
    backends: &'static str,
    cpu_info: String,
    build_commit: &'static str,
    model_filename: String,
    type_kv: &'static str,
    /// Peak resident bytes of the process, over all tests.
    peak_resident_bytes: Option<u64>,
    /// Memory of each device, over all tests.
    pub memory: Vec<Taken>,
}

impl Batch {
    /// Every combination of the sizes; the number of sequences changes fastest.
    pub fn all(
        n_prompt: &[usize],
        n_gen: &[usize],
        n_parallel: &[usize],
        shared_prompt: bool,
        n_arriving: usize,
    ) -> Vec<Batch> {
        let mut batches = Vec::new();
        for &n_prompt in n_prompt {
            for &n_gen in n_gen {
                let batch =
                    |&n_parallel: &usize| Batch { n_prompt, n_gen, n_parallel, shared_prompt, n_arriving };
                batches.extend(n_parallel.iter().map(batch));
            }
        }
        batches
    }

    /// Number of sequences that the engine needs, with that of the arriving prompt.
    pub fn n_sequences(&self) -> usize {
        self.n_parallel + usize::from(self.n_arriving > 0)
    }

    /// Context that each sequence needs, in positions. One page is added: the prefix cache keeps
    /// the last page of a prompt, and the sequence writes to a copy of it.
    pub fn n_positions(&self, page_len: usize) -> usize {
        (self.n_prompt + self.n_gen).max(self.n_arriving) + 2 + page_len
    }

    /// Measures one repetition. The prompts run first, alone, and stay in the prefix cache; then
    /// sequences continue from there. So no step mixes prompt tokens with generated tokens.
    fn measure(&self, engine: &mut Engine, how: Prefill) -> anyhow::Result<Seconds> {
        engine.clear_prefix_cache();
        let mut seconds = Seconds { prefill: self.prefill(engine, how)?, ..Seconds::default() };
        if self.n_gen == 0 {
            return Ok(seconds);
        }
        seconds.decode = self.decode(engine, how, false)?;
        if self.n_arriving > 0 {
            seconds.together = self.decode(engine, how, true)?;
            engine.clear_prefix_cache();
            engine.add(self.arriving(engine, how))?;
            seconds.arriving = run(engine, &mut Observed::default())?;
        }
        Ok(seconds)
    }

    /// Measures the seconds of the prompts.
    fn prefill(&self, engine: &mut Engine, how: Prefill) -> anyhow::Result<f64> {
        for sequence in 0..if self.shared_prompt { 1 } else { self.n_parallel } {
            let request = self.request(engine, sequence, 0, how);
            engine.add(request)?;
        }
        run(engine, &mut Observed::default())
    }

    /// Measures the seconds in which all sequences generate their tokens after cached prompts. If
    /// `beside` is true, the time ends when the arriving prompt is computed, too.
    fn decode(&self, engine: &mut Engine, how: Prefill, beside: bool) -> anyhow::Result<f64> {
        for sequence in 0..self.n_parallel {
            let request = self.request(engine, sequence, self.n_gen + 1, how);
            engine.add(request)?;
        }
        // The first token of a sequence needs the prompt's last row again, so the clock starts
        // after it.
        let mut observed = Observed::default();
        while observed.has_token.len() < self.n_parallel && observed.step(engine)? {}
        let n_before = observed.n_tokens;
        if beside {
            engine.add(self.arriving(engine, how))?;
        }
        let seconds = run(engine, &mut observed)?;
        let n_timed = observed.n_tokens - n_before;
        anyhow::ensure!(
            n_timed > 0,
            "all tokens were generated before the last sequence had its first token; -n must be larger"
        );
        if beside {
            return Ok(seconds);
        }
        // A sequence that was ahead of the last one has generated tokens before the clock started.
        Ok(seconds * (self.n_parallel * self.n_gen) as f64 / n_timed as f64)
    }

    /// The request of the arriving prompt, which shares no prefix with other prompts.
    fn arriving(&self, engine: &Engine, prefill: Prefill) -> Request {
        let n_vocab = engine.model().n_vocab();
        let token = |i: usize| ((i * 6007 + 29) % n_vocab) as u32;
        Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(0),
            prefill,
            ..Request::new((0..self.n_arriving).map(token).collect())
        }
    }

    fn request(&self, engine: &Engine, sequence: usize, max_tokens: usize, prefill: Prefill) -> Request {
        let n_vocab = engine.model().n_vocab();
        let token = |i: usize| (((sequence * self.n_prompt + i) * 7919 + 13) % n_vocab) as u32;
        let mut tokens = match self.shared_prompt {
            true => crate::load::arbitrary_tokens(self.n_prompt, n_vocab),
            false => (0..self.n_prompt).map(token).collect(),
        };
        // With the same last token all sequences of a shared prompt would generate the same text.
        if let Some(last) = tokens.last_mut() {
            *last = token(self.n_prompt - 1);
        }
        Request {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(max_tokens),
            ignore_end: true,
            prefill,
            ..Request::new(tokens)
        }
    }
}

/// Runs the engine until it is idle; returns the seconds.
fn run(engine: &mut Engine, observed: &mut Observed) -> anyhow::Result<f64> {
    let begun = Instant::now();
    while observed.step(engine)? {}
    Ok(begun.elapsed().as_secs_f64())
}

/// Counts of the events so far.
#[derive(Default)]
struct Observed {
    n_tokens: usize,
    has_token: HashSet<SequenceId>,
    failed: Option<String>,
}

impl Observed {
    /// Runs one step of the engine; returns true if there is more to do.
    fn step(&mut self, engine: &mut Engine) -> anyhow::Result<bool> {
        let more = engine.step(&mut |event| match event {
            Event::Token { sequence, .. } => {
                self.n_tokens += 1;
                self.has_token.insert(sequence);
            }
            Event::PromptToken { .. } | Event::Progress { .. } => {}
            Event::Done { reason, .. } => {
                if let FinishReason::Failed(reason) = reason {
                    self.failed = Some(reason.clone());
                }
            }
        })?;
        match self.failed.take() {
            Some(reason) => anyhow::bail!("a sequence failed: {reason}"),
            None => Ok(more),
        }
    }
}

/// Runs all tests: first until their times are steady, then repeatedly in turn, because the speed
/// of a machine varies from second to second.
///
/// # Errors
/// A step of the engine fails.
pub fn measure(
    engine: &mut Engine,
    batches: &[Batch],
    how: Prefill,
    n_repetitions: u32,
    name: &str,
) -> anyhow::Result<Vec<Row>> {
    let mut sums = vec![Seconds::default(); batches.len()];
    for batch in batches {
        warm::until_steady(&mut || {
            batch.measure(engine, how).map(|seconds| seconds.prefill + seconds.decode)
        })?;
    }
    for _ in 0..n_repetitions {
        for (batch, sum) in batches.iter().zip(&mut sums) {
            let seconds = batch.measure(engine, how)?;
            sum.prefill += seconds.prefill;
            sum.decode += seconds.decode;
            sum.arriving += seconds.arriving;
            sum.together += seconds.together;
        }
    }
    let n = f64::from(n_repetitions);
    let mean = |sum: &Seconds| Seconds {
        prefill: sum.prefill / n,
        decode: sum.decode / n,
        arriving: sum.arriving / n,
        together: sum.together / n,
    };
    let peak = platform::peak_resident_memory();
    let row = |(batch, sum): (&Batch, &Seconds)| Row {
        n_repetitions: n_repetitions as usize,
        peak_resident_bytes: peak,
        ..Row::new(batch, mean(sum), engine, name)
    };
    Ok(batches.iter().zip(&sums).map(row).collect())
}

impl Row {
    fn new(batch: &Batch, seconds: Seconds, engine: &Engine, name: &str) -> Row {
        let (device, limits) = (engine.device(), engine.limits());
        let Batch { n_prompt: pp, n_gen: tg, n_parallel: pl, shared_prompt, n_arriving } = *batch;
        let n_computed = if shared_prompt { pp } else { pl * pp };
        let n_tokens = n_computed + pl * tg;
        let t = seconds.prefill + seconds.decode;
        // 0 / 0 would be NaN, which JSON does not have.
        let speed = |n: usize, seconds: f64| if n == 0 { 0.0 } else { n as f64 / seconds };
        Row {
            n_kv_max: limits.n_ctx * limits.max_spans,
            n_batch: limits.max_rows,
            n_ubatch: limits.max_rows,
            is_pp_shared: shared_prompt,
            n_threads: device.n_threads(),
            n_threads_batch: device.n_threads(),
            pp,
            tg,
            pl,
            n_kv: n_tokens,
            t_pp: seconds.prefill,
            speed_pp: speed(n_computed, seconds.prefill),
            t_tg: seconds.decode,
            speed_tg: speed(pl * tg, seconds.decode),
            t,
            speed: speed(n_tokens, t),
            n_arriving,
            t_arriving: seconds.arriving,
            t_together: seconds.together,
            arriving_cost: (seconds.arriving > 0.0)
                .then(|| (seconds.together - seconds.decode) / seconds.arriving),
            n_repetitions: 1,
            backends: device.name(),
            cpu_info: device.describe(),
            build_commit: env!("INGLE_COMMIT"),
            model_filename: name.to_owned(),
            type_kv: engine.memory().kv_type,
            peak_resident_bytes: None,
            memory: Vec::new(),
        }
    }
}

/// Prints llama-batched-bench's table, and the cost of an arriving prompt.
///
/// # Errors
/// Stdout cannot be written.
pub fn print(rows: &[Row], style: Style) -> anyhow::Result<()> {
    let mut columns =
        vec!["PP>", "TG>", "B>", "N_KV>", "T_PP s>", "S_PP t/s>", "T_TG s>", "S_TG t/s>", "T s>", "S t/s>"];
    if rows.iter().any(|r| r.arriving_cost.is_some()) {
        columns.extend(["arriving>", "alone s>", "together s>", "cost>"]);
    }
    let mut table = Table::new(&columns);
    for r in rows {
        let mut row = vec![
            r.pp.to_string(),
            r.tg.to_string(),
            r.pl.to_string(),
            r.n_kv.to_string(),
            format!("{:.3}", r.t_pp),
            format!("{:.2}", r.speed_pp),
            format!("{:.3}", r.t_tg),
            format!("{:.2}", r.speed_tg),
            format!("{:.3}", r.t),
            format!("{:.2}", r.speed),
        ];
        if let Some(cost) = r.arriving_cost {
            row.extend([
                r.n_arriving.to_string(),
                format!("{:.3}", r.t_arriving),
                format!("{:.3}", r.t_together),
                format!("{cost:.2}"),
            ]);
        }
        table.row(row);
    }
    table.print(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_the_innermost_dimension() {
        let batches = Batch::all(&[1, 2], &[3], &[4, 5], false, 0);
        let found: Vec<_> = batches.iter().map(|b| (b.n_prompt, b.n_gen, b.n_parallel)).collect();
        assert_eq!(found, [(1, 3, 4), (1, 3, 5), (2, 3, 4), (2, 3, 5)]);
    }
}
