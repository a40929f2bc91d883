//! Chains: steps that follow each other on the GPU, each with the token that was chosen after the one before.
//!
//! Two command buffers are on their way, each of a few steps; the host writes the next one while the GPU works at the second.
//! After every step the GPU raises a signal, and so the host waits for a token, never for a command buffer that is not done.

use super::{ARENA, MetalProgram, Output, STEP, write};
use crate::arguments;
use crate::compile::linear::BEST_BYTES;
use crate::gpu::{Binding, Buffer, Constant, Dispatch, Encoder, Gpu, Place};
use crate::kernels::{Kernel, constant};
use crate::layout::{MOST_CHAINED, MOST_RECENT, StepLayout};
use crate::profile::Profile;
use crate::table::Sizes;
use device::{Error, Penalties, Result, Sampling, Step, Want};
use std::mem::offset_of;

/// Where the kernel `sample` found nothing to choose (`sampling/arguments.h`).
const NO_TOKEN: u32 = u32::MAX;

/// Threads of a threadgroup of `penalties`.
const PENALTY_THREADS: u32 = 256;

/// The kernels behind a step: penalties, and what chooses the token and makes it the next step's.
pub(super) struct Kernels<G: Gpu> {
    penalties: G::Pipeline,
    sample: Chooser<G>,
    /// The best of the logits, or of what the head left of them.
    argmax: [Chooser<G>; 2],
}

/// A kernel that chooses, in one threadgroup of so many threads.
struct Chooser<G: Gpu> {
    pipeline: G::Pipeline,
    n_threads: u32,
}

impl<G: Gpu> Kernels<G> {
    /// Compiled.
    ///
    /// # Errors
    /// In the compiler's words.
    pub(super) fn new(gpu: &G, profile: &Profile) -> Result<Kernels<G>> {
        let chooser = |file, constants: &[(u16, Constant)], most: u32| -> Result<Chooser<G>> {
            let pipeline = gpu.pipeline(&Kernel::of(file), constants)?;
            let n_threads = gpu.max_threads(&pipeline).min(most) / 32 * 32;
            Ok(Chooser { pipeline, n_threads })
        };
        let argmax = |bests| {
            let constants =
                [(constant::BESTS, Constant::Bool(bests)), (constant::CHAINED, Constant::Bool(true))];
            chooser("argmax.metal", &constants, profile.argmax_threads)
        };
        Ok(Kernels {
            penalties: gpu.pipeline(&Kernel::of("sampling/penalties.metal"), &[])?,
            sample: chooser("sampling/sample.metal", &[], 1024)?,
            argmax: [argmax(false)?, argmax(true)?],
        })
    }
}

/// What they are bound to for a plan.
pub(super) struct Bindings {
    penalties: Vec<Binding>,
    sample: Vec<Binding>,
    argmax: Vec<Binding>,
    argmax_arguments: arguments::ArgmaxArguments,
    /// Whether the head leaves the largest of each of its parts.
    has_bests: bool,
}

impl Bindings {
    /// With the logits of one row, the place of its best token, and where the head left the largest of each of so many parts.
    pub(super) fn new(
        step: &StepLayout,
        logits: Output,
        argmax: Output,
        bests: Option<(Place, usize)>,
    ) -> Bindings {
        let at = |buffer: usize, offset: usize, len: usize| {
            let place = Place { buffer: buffer as u16, offset: offset as u64 };
            move |index: u8| Binding { index, place, len: len as u64 }
        };
        let of_step = |offset: usize, len: usize| at(STEP, offset, len);
        let header = of_step(0, size_of::<arguments::Step>());
        let sampling = of_step(step.sampling, size_of::<arguments::Sampling>());
        let recent = of_step(step.recent, (MOST_RECENT + MOST_CHAINED) * 4);
        let logits_cols = logits.cols;
        let (logits, best) = (at(ARENA, logits.offset, logits.cols * 4), at(ARENA, argmax.offset, 4));
        let randoms = of_step(step.randoms, MOST_CHAINED * 8);
        let (tokens, positions) = (of_step(step.tokens, 4), of_step(step.positions, 4));
        let spans = of_step(step.spans, size_of::<arguments::Span>());
        let chosen = of_step(step.chosen, MOST_CHAINED * 4);
        // Those of `advance.h`.
        let next = |first: u8| {
            [tokens(first), positions(first + 1), spans(first + 2), chosen(first + 3), recent(first + 4)]
        };
        let bests_at = match bests {
            Some((place, n)) => Binding { index: 4, place, len: (n * BEST_BYTES) as u64 },
            None => header(4),
        };
        let cols = bests.map_or(logits_cols, |(_, n)| n) as u32;
        Bindings {
            penalties: vec![header(1), sampling(2), recent(3), logits(4)],
            sample: [&[header(1), sampling(2), logits(3), randoms(4), best(5)], &next(6)[..]].concat(),
            argmax: [&[header(1), logits(2), best(3), bests_at], &next(5)[..]].concat(),
            argmax_arguments: arguments::ArgmaxArguments { cols, ..Default::default() },
            has_bests: bests.is_some(),
        }
    }
}

/// Write a dispatch of so many threadgroups of so many threads, in a group of its own.
fn behind<G: Gpu>(
    encoder: &mut G::Encoder,
    buffers: &[G::Buffer],
    (pipeline, bindings, arguments): (&G::Pipeline, &[Binding], &[u8]),
    [n_groups, n_threads]: [u32; 2],
) {
    encoder.barrier();
    let dispatch = Dispatch {
        pipeline,
        bindings,
        arguments,
        threadgroup_bytes: 0,
        threadgroups: [n_groups, 1, 1],
        threads: [n_threads, 1, 1],
    };
    encoder.dispatch(&dispatch, buffers);
}

/// Steps that are on their way.
pub(super) struct Chain<T> {
    /// Tokens asked for.
    n: usize,
    /// Of these, in command buffers that were submitted.
    n_submitted: usize,
    /// In command buffers that were waited for.
    n_retired: usize,
    /// Given to the caller.
    n_given: usize,
    /// Position of the first row.
    first_position: usize,
    /// Whether tokens are sampled; otherwise the best is taken.
    sampled: bool,
    /// Most tokens that have penalties; 0: there are none.
    window: usize,
    /// Command buffers that are on their way, the older first, and the tokens of each.
    tickets: [Option<(T, usize)>; 2],
}

impl<T> Default for Chain<T> {
    fn default() -> Chain<T> {
        Chain {
            n: 0,
            n_submitted: 0,
            n_retired: 0,
            n_given: 0,
            first_position: 0,
            sampled: false,
            window: 0,
            tickets: [None, None],
        }
    }
}

impl<G: Gpu> MetalProgram<G> {
    /// As [`device::Program::most_chained`].
    pub(super) fn most_in_chain(sampling: Option<&Sampling>) -> usize {
        let n_recent = sampling.and_then(|s| s.penalties).map_or(0, |penalties| penalties.recent.len());
        if n_recent > MOST_RECENT { 0 } else { MOST_CHAINED }
    }

    /// As [`device::Program::start_chain`].
    pub(super) fn begin_chain(&mut self, step: &Step, n: usize, sampling: Option<&Sampling>) -> Result<()> {
        let failed = |reason: String| Error::Failed { device: G::NAME, reason };
        let one_row = step.tokens.len() == 1 && step.outputs.len() == 1;
        let fits = one_row && (sampling.is_some() || step.want == Want::Argmax);
        let end = step.spans.first().map_or(0, device::Span::end);
        let most = Self::most_in_chain(sampling);
        if !fits || n == 0 || n > most || end + n - 1 > self.limits.n_ctx {
            return Err(failed(format!(
                "a chain of {n} tokens from a step of {} rows at position {end}, expected one row whose token is wanted and at \
                 most {most} tokens within {} positions",
                step.tokens.len(),
                self.limits.n_ctx
            )));
        }
        let n_vocab = self.plans.get(step.plan).map_or(0, |plan| plan.logits.cols);
        sampling.map_or(Ok(()), |sampling| sampling.check(n, n_vocab)).map_err(failed)?;
        self.begin(step, n - 1)?;
        let window = sampling.map_or(0, |sampling| self.write_sampling(sampling, n, n_vocab));
        (self.sizes.argmax, self.sizes.chained) = (sampling.is_none(), true);
        let sampled = sampling.is_some();
        self.chain = Chain { n, first_position: end - 1, sampled, window, ..Chain::default() };
        self.submit_chained()?;
        self.submit_chained()
    }

    /// Write how tokens are chosen into the step buffer; how many of them have penalties at most.
    fn write_sampling(&self, sampling: &Sampling, n: usize, n_vocab: usize) -> usize {
        let (at, buffer) = (self.step, &self.buffers[STEP]);
        let none = Penalties { repeat: 1.0, presence: 0.0, frequency: 0.0, window: 1, recent: &[] };
        let penalties = sampling.penalties.unwrap_or(none);
        // The last token has none to follow it.
        let all = penalties.recent.len() + n - 1;
        let window = if penalties.window == 0 { all } else { penalties.window.min(all) };
        let nucleus = (f64::from(sampling.top_p) * 2f64.powi(32)) as u32;
        let header = arguments::Sampling {
            n_vocab: n_vocab as u32,
            top_k: u32::try_from(sampling.top_k).unwrap_or(0),
            nucleus: if sampling.top_p < 1.0 { nucleus.max(1) } else { 0 },
            window: window as u32,
            temperature: sampling.temperature,
            floor: sampling.min_p.ln(),
            repeat: penalties.repeat,
            presence: penalties.presence,
            frequency: penalties.frequency,
            ..Default::default()
        };
        write(buffer, at.sampling, &[header]);
        for (index, u) in sampling.randoms[..n].iter().enumerate() {
            // Exact: 53 bits.
            write(buffer, at.randoms + index * 8, &[(u * 2f64.powi(64)) as u64]);
        }
        write(buffer, at.recent, penalties.recent);
        write(buffer, offset_of!(arguments::Step, n_recent), &[penalties.recent.len() as u32]);
        if sampling.penalties.is_some() { window } else { 0 }
    }

    /// Submit the next command buffer of the chain, if there is more to do and room for it.
    fn submit_chained(&mut self) -> Result<()> {
        let Some(free) = self.chain.tickets.iter().position(Option::is_none) else { return Ok(()) };
        let first = self.chain.n_submitted;
        let n = (self.chain.n - first).min(self.chain_tokens);
        if n == 0 {
            return Ok(());
        }
        let plan = &self.plans[self.current];
        let (kernels, bindings) = (&self.kernels, &plan.bindings);
        let (buffers, table, signal) = (&self.buffers, plan.table(&self.sizes), &self.signal);
        let (position, long, sizes) = (self.chain.first_position, self.long, self.sizes);
        let (window, sampled, value) = (self.chain.window as u32, self.chain.sampled, self.n_signalled);
        let ticket = self.gpu.submit(&mut |encoder| {
            for index in first..first + n {
                let sizes = Sizes { long: position + index + 1 > long, ..sizes };
                table.encode(encoder, buffers, &sizes);
                if window > 0 {
                    let grid = [window.div_ceil(PENALTY_THREADS), PENALTY_THREADS];
                    behind::<G>(encoder, buffers, (&kernels.penalties, &bindings.penalties, &[]), grid);
                }
                let (chooser, bound, arguments): (_, &[Binding], &[u8]) = match sampled {
                    true => (&kernels.sample, &bindings.sample, &[]),
                    false => {
                        let chooser = &kernels.argmax[usize::from(bindings.has_bests)];
                        (chooser, &bindings.argmax, bytemuck::bytes_of(&bindings.argmax_arguments))
                    }
                };
                let grid = [1, chooser.n_threads];
                behind::<G>(encoder, buffers, (&chooser.pipeline, bound, arguments), grid);
                encoder.signal(signal, value + index as u64 + 1);
            }
        })?;
        self.chain.tickets[free] = Some((ticket, n));
        self.chain.n_submitted += n;
        Ok(())
    }

    /// As [`device::Program::next_chained`], but after an error the chain is still there.
    pub(super) fn next_in_chain(&mut self) -> Result<Option<u32>> {
        if self.chain.n_given == self.chain.n {
            return Ok(None);
        }
        // When all tokens of the older command buffer are given, the GPU works at the other; the caller had its token before
        // the host writes the next one.
        let first_n = self.chain.tickets[0].as_ref().map_or(0, |(_, n)| *n);
        if self.chain.n_given == self.chain.n_retired + first_n {
            if let Some((ticket, n)) = self.chain.tickets[0].take() {
                self.chain.n_retired += n;
                self.gpu.wait(ticket)?;
            }
            self.chain.tickets.swap(0, 1);
            self.submit_chained()?;
        }
        let Some((ticket, _)) = &mut self.chain.tickets[0] else { return Ok(None) };
        let value = self.n_signalled + self.chain.n_given as u64 + 1;
        self.gpu.wait_for(&self.signal, value, ticket)?;
        let at = self.step.chosen + self.chain.n_given * 4;
        // SAFETY: the step buffer has room for the tokens of a chain; the step that wrote this one is done, and those that are
        // on their way write others.
        let token = unsafe { self.buffers[STEP].start().add(at).cast::<u32>().read_volatile() };
        if token == NO_TOKEN {
            self.end_chain()?;
            return Ok(None);
        }
        self.chain.n_given += 1;
        Ok(Some(token))
    }

    /// As [`device::Program::stop_chain`].
    pub(super) fn end_chain(&mut self) -> Result<()> {
        let chain = std::mem::take(&mut self.chain);
        // Also where the signal was not raised so far: later values are larger.
        self.n_signalled += chain.n_submitted as u64;
        for (ticket, _) in chain.tickets.into_iter().flatten() {
            self.gpu.wait(ticket)?;
        }
        Ok(())
    }
}
