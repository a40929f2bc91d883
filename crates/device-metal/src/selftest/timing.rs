//! Timings of kernels, by many repetitions in one command buffer over matrices that no cache holds.
//! Other timings are of dispatches, barriers, command buffers and steps of a whole model. A search
//! goes over the fields of a profile.

use super::{model_of, product};
use crate::arguments::PeakArguments;
use crate::gpu::{Dispatch, Encoder, Memory, MetalGpu, Request, Window};
use crate::{MetalDevice, Profile};
use device::{
    Device, KvType, Limits, Link, OutputRef, OwnedStep, Plan, Program, Result, STATE_NONE, Span, StateUse,
    Want,
};
use device_check::{PlanBuilder, RecurrentShape, limits, one_sequence};
use device_lower::fusion;
use device_lower::table::{Location, Operand};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weights::BlockType;

/// The amount of work that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Repetitions in a command buffer.
    pub repetitions: usize,
    /// Bytes of a matrix, at least; more than caches hold.
    pub matrix_bytes: usize,
    /// Columns and layers of the model.
    pub model: (usize, usize),
    /// Tokens of a run.
    pub n_tokens: usize,
    /// Rows of a step of a small batch, and of a step of recurrent layers.
    pub rows: [usize; 2],
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Positions of attentions that are timed.
    pub positions: [usize; 3],
    /// Heads of a recurrent layer.
    pub scan: RecurrentShape,
}

impl Effort {
    /// Repetitions for a GPU, or for the emulator, where the times do not matter.
    pub fn of(is_emulated: bool) -> Effort {
        match is_emulated {
            // The shape of a model of 0.6 billion weights.
            false => Effort {
                repetitions: 200,
                matrix_bytes: 256 << 20,
                model: (1024, 28),
                n_tokens: 64,
                rows: [8, 512],
                prompt: 2048,
                positions: [256, 1024, 4096],
                // Shape of the linear layers of a hybrid model with four billion weights.
                scan: RecurrentShape { n_shared: 16, n_heads: 32, rows: 128, cols: 128 },
            },
            true => Effort {
                repetitions: 2,
                matrix_bytes: 1 << 16,
                model: (256, 1),
                n_tokens: 2,
                rows: [6, 40],
                prompt: 80,
                positions: [16, 32, 48],
                scan: RecurrentShape { n_shared: 1, n_heads: 1, rows: 16, cols: 16 },
            },
        }
    }
}

/// Seconds for one repetition of a product of rows with weights, and the bytes of weights that it
/// reads.
///
/// # Errors
/// The device refused or failed.
pub fn time_product<G: MetalGpu>(
    device: &MetalDevice<G>,
    block: BlockType,
    n_rows: usize,
    n_in: usize,
    effort: &Effort,
) -> Result<(f64, u64)> {
    let a_row = block.row_bytes(n_in) + block.row_scale_bytes(n_in) + block.row_bias_bytes(n_in);
    let n_out = (effort.matrix_bytes / a_row.max(1)).next_multiple_of(64);
    let plan = product(block, n_out, n_in);
    let limits = Limits { max_rows: n_rows, max_outputs: n_rows, kv_type: KvType::F16, ..limits(&plan.kv) };
    let mut program = device.compile_program(std::slice::from_ref(&plan), &limits)?;
    program.commit_all()?;
    let step = OwnedStep {
        tokens: (0..n_rows as u32).map(|row| row % 64).collect(),
        spans: vec![Span { slot: 0, first_row: 0, n_rows: n_rows as u32, first_position: 0 }],
        outputs: vec![0],
        wants: vec![Want::LOGITS],
        ..OwnedStep::default()
    };
    let commands = program.commands(0, n_rows);
    let Some(index) = commands.iter().position(|command| command.kernel.contains("linear")) else {
        return Ok((f64::INFINITY, 0));
    };
    let begun = program.begin_alone(&step.borrow())?;
    let seconds = program.machine().time_command(&begun, index, effort.repetitions)?;
    Ok((seconds, commands[index].weight_bytes))
}

/// Seconds of a nearly empty dispatch: without a barrier, with one, in a command buffer of its own,
/// and in one that is waited for. Command buffers follow each other as steps in flight do (by
/// tracked hazards or a fence, as `--metal-encoder` says).
///
/// # Errors
/// The device refused or failed.
pub fn time_overheads<G: MetalGpu>(gpu: &G, effort: &Effort) -> Result<[f64; 4]> {
    let pipeline = gpu.pipeline(&Request::plain("peaks.metal", "multiply_add", 256))?;
    let buffers = [gpu.allocate(Memory::Device, "sums", 4096)?];
    let operands = [Operand { index: 2, location: Location { buffer: 0, offset: 0 }, len: 0 }];
    let arguments = PeakArguments { n_vectors: 0, ..Default::default() };
    let submit = |n: usize, barriers: bool| {
        gpu.submit(&mut |encoder| {
            for _ in 0..n {
                let dispatch = Dispatch {
                    pipeline: &pipeline,
                    window: Window::NONE,
                    operands: &operands,
                    arguments: bytemuck::bytes_of(&arguments),
                    threadgroup_bytes: 0,
                    threadgroups: [1; 3],
                    threads: [32, 1, 1],
                };
                encoder.dispatch(&dispatch, &buffers);
                if barriers {
                    encoder.barrier();
                }
            }
        })
    };
    let run = |n: usize, barriers: bool| submit(n, barriers).and_then(|ticket| gpu.wait(&ticket));
    let n = effort.repetitions;
    run(n, true)?;
    let per = |barriers: bool| run(n, barriers).map(|seconds| seconds / n as f64);
    let (plain, ordered) = (per(false)?, per(true)?);
    let begun = Instant::now();
    let mut in_flight = VecDeque::new();
    for _ in 0..n {
        in_flight.push_back(submit(1, false)?);
        if in_flight.len() > 4
            && let Some(first) = in_flight.pop_front()
        {
            gpu.wait(&first)?;
        }
    }
    for ticket in in_flight {
        gpu.wait(&ticket)?;
    }
    let following = begun.elapsed().as_secs_f64() / n as f64;
    let begun = Instant::now();
    for _ in 0..n {
        run(1, false)?;
    }
    Ok([plain, ordered, following, begun.elapsed().as_secs_f64() / n as f64])
}

/// Seconds of decode attention at a position, unsplit and split.
///
/// # Errors
/// The device refused or failed.
pub fn time_attention<G: MetalGpu>(
    device: &MetalDevice<G>,
    position: usize,
    effort: &Effort,
) -> Result<[f64; 2]> {
    let mut seconds = [0.0; 2];
    for (split, seconds) in [usize::MAX, 1].into_iter().zip(&mut seconds) {
        let device = device.splitting(split);
        let plan = fusion::fuse(&model_of(effort.model.0, 1), device.fusion());
        let (mut program, limits) = program_of(&device, &plan, position + 1, 32)?;
        let step = one_sequence(&plan, &limits, &[1], position as u32);
        let commands = program.commands(0, 1);
        let wanted =
            |name: &str| name.contains("attention_decode") && name.contains("(split)") == (split == 1);
        if let Some(index) = commands.iter().position(|command| wanted(&command.kernel)) {
            let begun = program.begin_alone(&step.borrow())?;
            *seconds = program.machine().time_command(&begun, index, effort.repetitions)?;
        }
    }
    Ok(seconds)
}

/// A program with one sequence of committed positions, and its limits, for steps of a given number
/// of rows.
fn program_of<G: MetalGpu>(
    device: &MetalDevice<G>,
    plan: &Plan,
    n_positions: usize,
    max_rows: usize,
) -> Result<(crate::device_impl::MetalProgram<G>, Limits)> {
    let page_len = 16;
    let n_ctx = n_positions.next_multiple_of(page_len);
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
    let mut program = device.compile_program(std::slice::from_ref(plan), &limits)?;
    program.commit_all()?;
    Ok((program, limits))
}

/// Tokens per second of the synthetic model, each chosen by the step before, with as many steps in
/// flight as the profile allows. After `idle`, only the first few are timed.
pub struct Decoder<G: MetalGpu> {
    program: crate::device_impl::MetalProgram<G>,
    plan: Plan,
    limits: Limits,
    /// Rows of a chunk of a prompt, and tokens of all of it.
    chunk: usize,
    n_prompt: usize,
}

impl<G: MetalGpu> Decoder<G> {
    /// Builds the model with its weights.
    ///
    /// # Errors
    /// The device refused.
    pub fn new(device: &MetalDevice<G>, effort: &Effort) -> Result<Decoder<G>> {
        let (hidden, n_layers) = effort.model;
        Self::of(device, &model_of(hidden, n_layers), effort)
    }

    /// Decoder with one recurrent layer, computed by the gated delta rule.
    fn of_scan(device: &MetalDevice<G>, effort: &Effort) -> Result<Decoder<G>> {
        let mut b = PlanBuilder::new(7, 64);
        let x = b.embed(64);
        let x = b.gated_delta(x, effort.scan, false, false);
        let x = b.select_rows(x);
        let logits = b.linear(x, 64, BlockType::F32, false);
        Self::of(device, &b.finish(logits), effort)
    }

    fn of(device: &MetalDevice<G>, plan: &Plan, effort: &Effort) -> Result<Decoder<G>> {
        let plan = fusion::fuse(plan, device.fusion());
        let chunk = device.profile().prompt_chunk.min(effort.prompt);
        let n_positions = effort.prompt.max(effort.rows[1]).max(effort.n_tokens + 8);
        let (program, limits) = program_of(device, &plan, n_positions, chunk.max(effort.rows[1]))?;
        Ok(Decoder { program, plan, limits, chunk, n_prompt: effort.prompt })
    }

    /// Rows per second of `n_steps` steps of `n_rows` rows, one after the other, all at the start
    /// of one prompt.
    ///
    /// # Errors
    /// The device failed.
    pub fn rows_per_second(&mut self, n_rows: usize, n_steps: usize) -> Result<f64> {
        let mut step = self.rows(n_rows, 0);
        if !self.plan.kv.states.is_empty() {
            step.states = vec![StateUse { from: STATE_NONE, to: 0 }];
        }
        let begun = Instant::now();
        for _ in 0..n_steps {
            let ticket = self.program.submit(&step.borrow())?;
            self.program.wait(ticket)?;
        }
        Ok((n_rows * n_steps) as f64 / begun.elapsed().as_secs_f64().max(1e-9))
    }

    /// A step of `n_rows` rows of a prompt, from `position` on.
    fn rows(&self, n_rows: usize, position: usize) -> OwnedStep {
        let tokens: Vec<u32> = (0..n_rows as u32).map(|row| row % 64).collect();
        let mut step = one_sequence(&self.plan, &self.limits, &tokens, position as u32);
        step.wants = vec![Want::BEST];
        step
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

    /// Tokens per second over `n_tokens` tokens, after a pause of `idle`.
    ///
    /// # Errors
    /// The device failed.
    pub fn tokens_per_second(&mut self, n_tokens: usize, idle: Duration) -> Result<f64> {
        std::thread::sleep(idle);
        let begun = Instant::now();
        let mut tickets = VecDeque::new();
        for position in 0..n_tokens as u32 {
            let mut step = one_sequence(&self.plan, &self.limits, &[1], position);
            step.wants = vec![Want::BEST];
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

/// The measure by which a field is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judge {
    /// Tokens per second of one sequence.
    Token,
    /// Rows per second of a small batch.
    Batch,
    /// Rows per second of a prompt, chunk after chunk.
    Prompt,
    /// Rows per second of a recurrent layer.
    Scan,
}

/// A field of a profile, the measure that judges it, and the profiles to try.
type Field = (&'static str, Judge, fn(&Profile) -> Vec<Profile>);

/// A profile with one field changed.
fn with<T: Copy>(profile: &Profile, values: &[T], set: fn(&mut Profile, T)) -> Vec<Profile> {
    let change = |value: &T| {
        let mut profile = profile.clone();
        set(&mut profile, *value);
        profile
    };
    values.iter().map(change).collect()
}

/// The fields that are searched, one after the other.
const FIELDS: [Field; 15] = [
    ("gemv_simdgroups", Judge::Token, |p| {
        let n = p.gemv_simdgroups;
        with(p, &[n / 2, n * 2, n * 4], |p, n| p.gemv_simdgroups = n.max(1))
    }),
    ("gemv_threadgroup", Judge::Token, |p| with(p, &[1, 2, 4, 8], |p, n| p.gemv_threadgroup = n)),
    ("weight_rows", Judge::Token, |p| with(p, &[4, 8], |p, n| p.weight_rows = n)),
    ("attention_simdgroups", Judge::Token, |p| with(p, &[2, 4, 8], |p, n| p.attention_simdgroups = n)),
    ("merged_simdgroups", Judge::Token, |p| with(p, &[4, 8, 16], |p, n| p.merged_simdgroups = n)),
    ("split_positions", Judge::Token, |p| with(p, &[256, 512, 1024, 2048], |p, n| p.split_positions = n)),
    ("key_lanes", Judge::Token, |p| with(p, &[4, 8, 16], |p, n| p.key_lanes = n as u32)),
    ("split_threadgroups", Judge::Token, |p| {
        let n = p.split_threadgroups;
        with(p, &[n / 2, n * 2, n * 4], |p, n| p.split_threadgroups = n.max(1))
    }),
    ("in_flight", Judge::Token, |p| with(p, &[1, 2, 4, 8], |p, n| p.in_flight = n)),
    ("rules", Judge::Token, |p| {
        let without = |skipped: usize| {
            let rules = p.rules.iter().enumerate().filter(|(index, _)| *index != skipped);
            // A search makes a handful of lists, which stay.
            let rules: Vec<_> = rules.map(|(_, rule)| *rule).collect();
            Profile { rules: Vec::leak(rules), ..p.clone() }
        };
        (0..p.rules.len()).map(without).collect()
    }),
    ("product_rows", Judge::Batch, |p| with(p, &[2, 4, 8], |p, n| p.product_rows = n)),
    ("tile_rows", Judge::Prompt, |p| with(p, &[32, 64], |p, n| p.tile_rows = n)),
    ("prompt_chunk", Judge::Prompt, |p| with(p, &[256, 512, 1024, 2048], |p, n| p.prompt_chunk = n)),
    ("norm_threads", Judge::Prompt, |p| with(p, &[128, 256, 512], |p, n| p.norm_threads = n)),
    ("scan_rows", Judge::Scan, |p| with(p, &[12, usize::MAX], |p, n| p.scan_rows = n)),
];

/// Search over the fields of a profile; the time of the steps that a field affects decides. `tell`
/// is called after each trial, with its tokens or rows per second; false ends the search. The best
/// profile, and its tokens per second.
///
/// # Errors
/// The device failed with the profile that it began with.
pub fn sweep<G: MetalGpu>(
    gpu: &Arc<G>,
    profile: &Profile,
    effort: &Effort,
    tell: &mut dyn FnMut(&str, &Profile, Option<f64>) -> bool,
) -> Result<(Profile, f64)> {
    let speed = |profile: &Profile, judge: Judge| -> Result<f64> {
        let device = MetalDevice::sharing(gpu.clone(), profile.clone());
        let mut decoder = match judge {
            Judge::Scan => Decoder::of_scan(&device, effort)?,
            Judge::Token | Judge::Batch | Judge::Prompt => Decoder::new(&device, effort)?,
        };
        let mut run = |n: usize| match judge {
            Judge::Token => decoder.tokens_per_second(n, Duration::ZERO),
            Judge::Batch => decoder.rows_per_second(effort.rows[0], n),
            Judge::Prompt => decoder.prompt_rows_per_second(n.div_ceil(32)),
            Judge::Scan => decoder.rows_per_second(effort.rows[1], n.div_ceil(8)),
        };
        run(effort.n_tokens.min(8))?;
        run(effort.n_tokens)
    };
    let mut best = profile.clone();
    let mut tokens_per_second = speed(&best, Judge::Token)?;
    if !tell("as it is", &best, Some(tokens_per_second)) {
        return Ok((best, tokens_per_second));
    }
    let (mut judge, mut fastest) = (Judge::Token, tokens_per_second);
    for (field, judged_by, values) in FIELDS {
        if judge != judged_by {
            (judge, fastest) = (judged_by, speed(&best, judged_by)?);
        }
        for tried in values(&best.clone()) {
            if tried == best {
                continue;
            }
            let speed = speed(&tried, judge).ok();
            let goes_on = tell(field, &tried, speed);
            // A percent is noise.
            if let Some(speed) = speed.filter(|speed| *speed > fastest * 1.01) {
                (best, fastest) = (tried, speed);
                if judge == Judge::Token {
                    tokens_per_second = speed;
                }
            }
            if !goes_on {
                return Ok((best, tokens_per_second));
            }
        }
    }
    Ok((best, tokens_per_second))
}
