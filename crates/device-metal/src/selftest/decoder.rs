//! A model with filled caches, and the rates of its steps.

use super::Effort;
use crate::MetalDevice;
use crate::device_impl::MetalProgram;
use crate::gpu::MetalGpu;
use device::{
    Device, KvType, Limits, Link, OutputRef, OwnedStep, Plan, Program, Result, STATE_NONE, StateUse, Want,
};
use device_check::{Rng, limits, one_sequence};
use device_lower::fusion;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A program with one sequence, whose pages are written up to the last position.
pub struct Decoder<G: MetalGpu> {
    pub(super) program: MetalProgram<G>,
    pub(super) plan: Plan,
    limits: Limits,
    /// Tokens of a prompt, and rows of its chunks.
    n_prompt: usize,
    chunk: usize,
    /// Tokens of a run.
    n_tokens: usize,
}

impl<G: MetalGpu> Decoder<G> {
    /// Compiles a plan, and fills the pages of a sequence.
    ///
    /// # Errors
    /// The device refused.
    pub fn new(device: &MetalDevice<G>, plan: &Plan, effort: &Effort) -> Result<Decoder<G>> {
        let plan = fusion::fuse(plan, device.fusion());
        let [_, _, last] = effort.positions;
        let chunk = device.profile().prompt_chunk.min(effort.prompt);
        let max_rows = effort.rows.into_iter().fold(chunk, usize::max);
        let page_len = 16;
        let n_ctx = (last + max_rows.max(effort.n_tokens)).max(effort.prompt).next_multiple_of(page_len);
        let limits = Limits {
            max_rows,
            max_outputs: 1,
            max_spans: 1,
            n_ctx,
            page_len,
            n_pages: vec![n_ctx / page_len; plan.kv.groups.len()],
            n_states: plan.kv.states.len().min(1),
            background_rows: 0,
            kv_type: KvType::F16,
            ..limits(&plan.kv)
        };
        let mut program = device.compile_program(std::slice::from_ref(&plan), &limits)?;
        program.commit_all()?;
        fill(&mut program, &plan, &limits)?;
        let (n_prompt, n_tokens) = (effort.prompt, effort.n_tokens);
        Ok(Decoder { program, plan, limits, n_prompt, chunk, n_tokens })
    }

    /// A step of `n_rows` rows from `position` on.
    pub(super) fn rows(&self, n_rows: usize, position: usize) -> OwnedStep {
        let tokens: Vec<u32> = (0..n_rows as u32).map(|row| row % 64).collect();
        let mut step = one_sequence(&self.plan, &self.limits, &tokens, position as u32);
        step.wants = vec![Want::BEST];
        if !self.plan.kv.states.is_empty() {
            step.states = vec![StateUse { from: STATE_NONE, to: 0 }];
        }
        step
    }

    /// Rows per second of `n_steps` steps of `n_rows` rows, one after the other, all from
    /// `position` on.
    ///
    /// # Errors
    /// The device failed.
    pub fn rows_per_second(&mut self, n_rows: usize, position: usize, n_steps: usize) -> Result<f64> {
        let step = self.rows(n_rows, position);
        let begun = Instant::now();
        for _ in 0..n_steps {
            let ticket = self.program.submit(&step.borrow())?;
            self.program.wait(ticket)?;
        }
        Ok((n_rows * n_steps) as f64 / begun.elapsed().as_secs_f64().max(1e-9))
    }

    /// Rows per second of `n_prompts` prompts, each in chunks of the profile's size.
    ///
    /// # Errors
    /// The device failed.
    pub fn prompt_rows_per_second(&mut self, n_prompts: usize) -> Result<f64> {
        let chunks: Vec<OwnedStep> = (0..self.n_prompt)
            .step_by(self.chunk)
            .map(|first| self.rows(self.chunk.min(self.n_prompt - first), first))
            .collect();
        let begun = Instant::now();
        for _ in 0..n_prompts {
            for chunk in &chunks {
                let ticket = self.program.submit(&chunk.borrow())?;
                self.program.wait(ticket)?;
            }
        }
        Ok((self.n_prompt * n_prompts) as f64 / begun.elapsed().as_secs_f64().max(1e-9))
    }

    /// Tokens per second of `n_tokens` tokens from `position` on, after a pause of `idle`. Each is
    /// chosen by the step before, with as many steps in flight as the profile allows.
    ///
    /// # Errors
    /// The device failed.
    pub fn tokens_per_second(&mut self, n_tokens: usize, position: usize, idle: Duration) -> Result<f64> {
        std::thread::sleep(idle);
        let begun = Instant::now();
        let mut tickets = VecDeque::new();
        for index in 0..n_tokens {
            let mut step = self.rows(1, position + index % self.n_tokens);
            if let Some(ticket) = tickets.back() {
                step.links = vec![Link { row: 0, from: OutputRef { ticket: *ticket, output: 0 } }];
            }
            if tickets.len() == self.program.max_in_flight()
                && let Some(first) = tickets.pop_front()
            {
                self.program.wait(first)?;
            }
            tickets.push_back(self.program.submit(&step.borrow())?);
        }
        for ticket in tickets {
            self.program.wait(ticket)?;
        }
        Ok(n_tokens as f64 / begun.elapsed().as_secs_f64().max(1e-9))
    }
}

/// Writes random halves of a size below 1 into all pages.
fn fill(program: &mut impl Program, plan: &Plan, limits: &Limits) -> Result<()> {
    let mut rng = Rng::new(11);
    for (group, n_pages) in limits.n_pages.iter().enumerate() {
        let n = plan.kv.page_bytes(group, limits.kv_type, limits.page_len);
        // A sign, the exponent of 0.5 to 1, a fraction.
        let half = |bits: u64| (0x3800 | (bits as u16 & 0x83ff)).to_le_bytes();
        let page: Vec<u8> = (0..n / 2).flat_map(|_| half(rng.bits())).collect();
        (0..*n_pages as u32).try_for_each(|index| program.write_page(group, index, &page))?;
    }
    Ok(())
}
