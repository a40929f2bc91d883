//! The steps that a transcription is made of: encode a window, evaluate a prompt, go on with beams, look back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Limits, Plan, Program, Span, Step, Want};
use engine::{CancelFlag, KvCache, Turns, WeightFiles};
use model::SpeechPlans;

use crate::alignment::Scores;
use crate::math;
use crate::search::Beams;
use crate::{Error, Result};

/// Where the time of a transcription went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeechTimings {
    /// Reading the sound and making features of it.
    pub features: Duration,
    /// Encoding windows.
    pub encode: Duration,
    /// Evaluating prompts.
    pub prompt: Duration,
    /// Going on with beams.
    pub decode: Duration,
    /// Choosing among logits.
    pub search: Duration,
    /// Looking for the times of words.
    pub align: Duration,
    /// Windows encoded.
    pub n_windows: usize,
    /// Steps of beams.
    pub n_steps: usize,
}

/// A program of the three plans, with its page tables and the buffers of its steps.
pub(crate) struct Runner {
    program: Box<dyn Program>,
    kv: KvCache,
    n_vocab: usize,
    /// Positions that the encoder writes.
    n_positions: usize,
    /// Heads of each kept value of the plan that looks back.
    kept_heads: Vec<usize>,
    /// Most rows of a step that looks back.
    align_rows: usize,
    /// Token ids that mean nothing, one for each position of the encoder.
    no_tokens: Vec<u32>,
    tokens: Vec<u32>,
    spans: Vec<Span>,
    outputs: Vec<u32>,
    wants: Vec<Want>,
    /// `(n_outputs, n_vocab)` of the last step of text; the search writes to it.
    logits: Vec<f32>,
    pub(crate) timings: SpeechTimings,
    /// Shared with the engines that compute on the same processors.
    pub(crate) turns: Option<Arc<Turns>>,
    /// Told before each step.
    pub(crate) on_step: Option<Box<dyn FnMut() + Send>>,
    /// What is read where it lies.
    pub(crate) weight_files: WeightFiles,
}

/// One sequence in a step.
fn span(slot: usize, first_row: usize, n_rows: usize, first_position: usize) -> Span {
    Span {
        slot: slot as u32,
        first_row: first_row as u32,
        n_rows: n_rows as u32,
        first_position: first_position as u32,
    }
}

impl Runner {
    /// Of a compiled program of encoder, decoder and alignment, in this order.
    pub(crate) fn new(
        program: Box<dyn Program>,
        decoder: &Plan,
        limits: &Limits,
        n_positions: usize,
        kept_heads: Vec<usize>,
        align_rows: usize,
    ) -> Runner {
        Runner {
            program,
            kv: KvCache::new(&decoder.kv, limits),
            n_vocab: decoder.value(decoder.output).cols,
            n_positions,
            kept_heads,
            align_rows,
            no_tokens: vec![0; n_positions],
            tokens: Vec::with_capacity(limits.max_rows),
            spans: Vec::with_capacity(limits.max_spans),
            outputs: Vec::with_capacity(limits.max_outputs),
            wants: Vec::with_capacity(limits.max_outputs),
            logits: Vec::new(),
            timings: SpeechTimings::default(),
            turns: None,
            on_step: None,
            weight_files: WeightFiles::default(),
        }
    }

    /// Columns of the logits.
    pub(crate) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn run(&mut self, plan: usize) -> Result<()> {
        self.wants.clear();
        self.wants.resize(self.outputs.len(), Want::LOGITS);
        let step = Step {
            tokens: &self.tokens,
            spans: &self.spans,
            page_tables: self.kv.tables(),
            table_changes: self.kv.table_changes(),
            pages_per_table: self.kv.pages_per_table(),
            outputs: &self.outputs,
            wants: &self.wants,
            plan,
            ..Step::default()
        };
        if let Some(on_step) = &mut self.on_step {
            on_step();
        }
        let _turn = self.turns.as_ref().map(|turns| turns.take());
        let ran = self.program.run(&step);
        self.kv.note_submitted(ran)?;
        self.weight_files.check_whole()?;
        self.logits.clear();
        self.logits.extend_from_slice(self.program.logits());
        Ok(())
    }

    /// A window's features, `(n_positions * stride, n_features)`, become the encoder states that all sequences attend to.
    pub(crate) fn encode(&mut self, features: &[f32]) -> Result<()> {
        let begun = Instant::now();
        let step = Step {
            tokens: &self.no_tokens,
            spans: &[span(0, 0, self.n_positions, 0)],
            page_tables: self.kv.tables(),
            table_changes: self.kv.table_changes(),
            pages_per_table: self.kv.pages_per_table(),
            plan: SpeechPlans::ENCODER,
            input: features,
            ..Step::default()
        };
        if let Some(on_step) = &mut self.on_step {
            on_step();
        }
        let _turn = self.turns.as_ref().map(|turns| turns.take());
        let ran = self.program.run(&step);
        self.kv.note_submitted(ran)?;
        self.weight_files.check_whole()?;
        self.timings.encode += begun.elapsed();
        self.timings.n_windows += 1;
        Ok(())
    }

    /// A new sequence begins with `tokens`; logits `(outputs.len(), n_vocab)` of the rows in `outputs`, ascending.
    pub(crate) fn prompt(&mut self, tokens: &[u32], outputs: &[usize]) -> Result<&mut [f32]> {
        let begun = Instant::now();
        self.kv.rearrange(&[]);
        self.kv.reserve(0, 0, tokens.len(), self.program.as_mut())?;
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.spans.clear();
        self.spans.push(span(0, 0, tokens.len(), 0));
        self.outputs.clear();
        self.outputs.extend(outputs.iter().map(|row| *row as u32));
        self.run(SpeechPlans::DECODER)?;
        self.timings.prompt += begun.elapsed();
        Ok(&mut self.logits)
    }

    /// Go on from a prompt of `n_tokens` tokens whose last row was the last of `n_outputs`.
    pub(crate) fn beams<'a>(
        &'a mut self,
        n_tokens: usize,
        n_outputs: usize,
        cancel: &'a CancelFlag,
    ) -> RunnerBeams<'a> {
        RunnerBeams { position: n_tokens, n_before: n_outputs - 1, cancel, runner: self }
    }

    /// Run `tokens`, of which those of `text` are text, and see what the chosen heads look at over the first
    /// `n_positions` positions; and the probability of each token of `text` among the first `n_text_ids` ids.
    pub(crate) fn align(
        &mut self,
        tokens: &[u32],
        text: std::ops::Range<usize>,
        n_text_ids: usize,
        n_positions: usize,
    ) -> Result<(Scores, Vec<f32>)> {
        self.kv.rearrange(&[]);
        self.kv.reserve(0, 0, tokens.len(), self.program.as_mut())?;
        let mut scores = Scores::new(self.kept_heads.iter().sum(), tokens.len(), n_positions);
        let mut probabilities = Vec::with_capacity(text.len());
        for first in (0..tokens.len()).step_by(self.align_rows) {
            let rows = tokens.get(first..).unwrap_or_default();
            let rows = rows.get(..self.align_rows).unwrap_or(rows);
            self.tokens.clear();
            self.tokens.extend_from_slice(rows);
            self.spans.clear();
            self.spans.push(span(0, 0, rows.len(), first));
            // The row before a token says how likely it is.
            self.outputs.clear();
            let said = (first..first + rows.len()).filter(|row| text.contains(&(row + 1)));
            self.outputs.extend(said.map(|row| (row - first) as u32));
            self.run(SpeechPlans::ALIGN)?;
            for (output, logits) in self.outputs.iter().zip(self.logits.chunks(self.n_vocab)) {
                let logits = logits.get(..n_text_ids).unwrap_or(logits);
                let token = tokens.get(first + *output as usize + 1).copied().unwrap_or_default();
                let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
                probabilities.push((logit - math::log_sum_exp(logits)).exp());
            }
            let mut head = 0;
            for (index, n_heads) in self.kept_heads.iter().enumerate() {
                let kept = self.program.kept(index).chunks(n_heads * self.n_positions);
                for (row, of_heads) in kept.take(rows.len()).enumerate() {
                    for (at, values) in of_heads.chunks(self.n_positions).enumerate() {
                        let to = scores.row_mut(head + at, first + row);
                        to.iter_mut().zip(values).for_each(|(to, value)| *to = *value);
                    }
                }
                head += n_heads;
            }
        }
        Ok((scores, probabilities))
    }
}

/// Sequences that go on from one prompt.
pub(crate) struct RunnerBeams<'a> {
    runner: &'a mut Runner,
    /// Of the next row of every beam.
    position: usize,
    /// Rows of logits before the beams' own.
    n_before: usize,
    cancel: &'a CancelFlag,
}

impl Beams for RunnerBeams<'_> {
    fn logits(&mut self) -> &mut [f32] {
        let from = self.n_before * self.runner.n_vocab;
        self.runner.logits.get_mut(from..).unwrap_or_default()
    }

    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let begun = Instant::now();
        let runner = &mut *self.runner;
        runner.kv.rearrange(parents);
        runner.tokens.clear();
        runner.tokens.extend_from_slice(tokens);
        runner.spans.clear();
        runner.outputs.clear();
        for slot in 0..tokens.len() {
            runner.kv.reserve(slot, self.position, 1, runner.program.as_mut())?;
            runner.spans.push(span(slot, slot, 1, self.position));
            runner.outputs.push(slot as u32);
        }
        runner.run(SpeechPlans::DECODER)?;
        self.position += 1;
        self.n_before = 0;
        runner.timings.decode += begun.elapsed();
        runner.timings.n_steps += 1;
        Ok(())
    }
}
