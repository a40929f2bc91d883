//! Steps of a transcription: encoding a window, prefill of a prompt, decoding of beams, alignment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Limits, Plan, Program, Span, Step, Want};
use engine::{CancelFlag, KvCache, Turns, WeightFiles};
use model::SpeechPlans;

use crate::alignment::Scores;
use crate::math;
use crate::search::Beams;
use crate::{Error, Result};

/// Times of the parts of a transcription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeechTimings {
    /// Time of reading the sound and computing features.
    pub features: Duration,
    /// Time of encoding windows.
    pub encode: Duration,
    /// Time of the prefill of prompts.
    pub prompt: Duration,
    /// Time of decoding beams.
    pub decode: Duration,
    /// Time of choosing tokens by logits.
    pub search: Duration,
    /// Time of aligning words.
    pub align: Duration,
    /// Number of windows that were encoded.
    pub n_windows: usize,
    /// Number of decode steps of beams.
    pub n_steps: usize,
}

/// The compiled program of the three plans, with its page tables and the buffers of its steps.
pub(crate) struct Runner {
    program: Box<dyn Program>,
    kv: KvCache,
    n_vocab: usize,
    /// Positions of the encoder's output.
    n_positions: usize,
    /// Number of heads of each stored score of the alignment plan.
    kept_heads: Vec<usize>,
    /// Maximum number of rows of an alignment step.
    align_rows: usize,
    /// Token ids for the encoder's positions, whose values are ignored.
    no_tokens: Vec<u32>,
    tokens: Vec<u32>,
    spans: Vec<Span>,
    outputs: Vec<u32>,
    wants: Vec<Want>,
    /// Logits `(n_outputs, n_vocab)` of the last text step; the search writes to them.
    logits: Vec<f32>,
    pub(crate) timings: SpeechTimings,
    /// Turns that are shared with the engines on the same processors.
    pub(crate) turns: Option<Arc<Turns>>,
    /// Callback before each step.
    pub(crate) on_step: Option<Box<dyn FnMut() + Send>>,
    /// Files of the weights that are read in place.
    pub(crate) weight_files: WeightFiles,
}

/// A step's span of one sequence.
fn span(slot: usize, first_row: usize, n_rows: usize, first_position: usize) -> Span {
    Span {
        slot: slot as u32,
        first_row: first_row as u32,
        n_rows: n_rows as u32,
        first_position: first_position as u32,
    }
}

impl Runner {
    /// Creates a runner for a compiled program of encoder, decoder and alignment, in this order.
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

    /// Encodes a window's features, `(n_positions * stride, n_features)`, to the states that all
    /// sequences attend to.
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

    /// Starts a new sequence with `tokens`. Returns logits `(outputs.len(), n_vocab)` of the rows
    /// in `outputs`, ascending.
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

    /// Starts beams after a prompt of `n_tokens` tokens, whose last row was the last of
    /// `n_outputs`.
    pub(crate) fn beams<'a>(
        &'a mut self,
        n_tokens: usize,
        n_outputs: usize,
        cancel: &'a CancelFlag,
    ) -> RunnerBeams<'a> {
        RunnerBeams { position: n_tokens, n_before: n_outputs - 1, cancel, runner: self }
    }

    /// Runs `tokens`, of which the range `text` is text. Returns the scores of the alignment heads
    /// over the first `n_positions` positions, and the probability of each text token among the
    /// first `n_text_ids` ids.
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
            // The logits of a token are those of the row before it.
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

/// Beams that continue one prompt.
pub(crate) struct RunnerBeams<'a> {
    runner: &'a mut Runner,
    /// Position of the next row of every beam.
    position: usize,
    /// Number of rows of logits before those of the beams.
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
