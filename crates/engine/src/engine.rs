//! The engine: a model on a device, and a scheduler of the sequences that it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{CommandInfo, Device, Limits, OutputKind, Plan, Program, Timing};

use crate::adapters::Adapters;
use crate::constraint::panic_message;
use crate::kv::KvCache;
use crate::memory::{self, MemoryReport, Settled};
use crate::prompt_cache::PrefixFolder;
use crate::scheduler::Scheduler;
use crate::speculate::OwnLayer;
use crate::vision::Vision;
use crate::{Error, Event, LoadOptions, Model, Proposer, Result, SequenceId, Turns, WeightFiles, load};

/// Times of the commands of one step, for profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimings {
    /// Number of rows of the step; [`Engine::commands`] with it names the commands.
    pub n_rows: usize,
    /// Time of each command that ran.
    pub timings: Vec<Timing>,
}

/// A model on a device, and the sequences that it runs.
///
/// `Send`, not `Sync`: a server moves it to one thread, which calls [`Self::add`] for each request
/// and [`Self::step`] while there is work, and passes the events on to the clients.
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) device: Arc<dyn Device>,
    plan: Plan,
    pub(crate) limits: Limits,
    memory: MemoryReport,
    pub(crate) program: Box<dyn Program>,
    pub(crate) scheduler: Scheduler,
    pub(crate) next_id: u64,
    recorded: Option<Vec<StepTimings>>,
    /// Folder in which the prefix cache is kept.
    pub(crate) prefixes: Option<PrefixFolder>,
    pub(crate) adapters: Adapters,
    /// Bytes in use outside KV pages.
    pub(crate) fixed: u64,
    pub(crate) options: LoadOptions,
    /// Number of the adapter that [`Self::evaluate`] uses; 0: the model alone.
    pub(crate) scored_adapter: u32,
    /// Turns shared with engines on the same processors.
    pub(crate) turns: Option<Arc<Turns>>,
    /// Reason for which images are refused although the model sees.
    pub(crate) blind: Option<String>,
    /// Files that are read while steps run.
    weight_files: WeightFiles,
    /// Time of the last check that these files have not changed.
    looked: Instant,
}

/// Time between two checks that mapped files have not changed.
const LOOK: Duration = Duration::from_secs(1);

impl Engine {
    /// Fuse, plan the memory, compare it with the free memory, compile.
    ///
    /// # Errors
    /// An option outside its limits; [`Error::DoesNotFit`]; the model writes no text, or only
    /// transcripts; the device cannot run the plan; or the vocabulary is broken.
    pub fn new(model: Arc<Model>, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Engine> {
        model.need_text()?;
        if model.plan().output_kind == OutputKind::Hidden {
            return Err(Error::NoHead { file: model.path().to_owned() });
        }
        let Settled { options, mut plans, memory, blind } = memory::settle(&model, device.as_ref(), options)?;
        let options = &options;
        let limits = load::limits(&model, device.as_ref(), options)?;
        if options.check_memory && !memory.fits {
            return Err(Error::DoesNotFit(Box::new(memory)));
        }
        let fixed = memory.committed + memory.mapped;
        let account = options.governor.as_ref().map(|governor| governor.account(device.as_ref(), fixed));
        let program = device.compile(&plans, &limits)?;
        let weight_files = model.weight_files().clone();
        weight_files.check_whole()?;
        let adapters = model.adapters().clone();
        let is_adapted = !adapters.as_slice().is_empty();
        // The next-token layer, if it is used, has a plan of its own.
        let n_text = 1 + usize::from(is_adapted) + model.spec().n_next;
        let vision = match model.vision() {
            Some(spec) if plans.len() > n_text => {
                let (tower, _, given) = model.vision_parts(limits.n_ctx)?;
                Some(Vision::new(spec.clone(), tower, given, device.clone(), limits.numerics))
            }
            Some(_) | None => None,
        };
        let plan = plans.swap_remove(0);
        model.tokenizer()?;
        let depth = program.max_in_flight();
        let mut kv = KvCache::new(&plan.kv, &limits);
        kv.set_budget(kv_budget(&plan, &limits, &memory, options)?);
        if let Some(account) = account {
            kv.set_account(account);
        }
        let mut scheduler = Scheduler::new(&limits, model.n_vocab(), depth, kv, options, vision);
        scheduler.set_adapted(is_adapted, limits.numerics);
        scheduler.set_weight_bytes(model.file_bytes());
        if model.spec().n_next > 0 {
            let (hidden, max_draft) = (model.spec().hidden, scheduler.max_draft());
            scheduler.set_proposer(Box::new(OwnLayer::new(
                hidden,
                limits.max_rows,
                limits.max_spans,
                max_draft,
            )));
        }
        Ok(Engine {
            adapters,
            fixed,
            options: options.clone(),
            device: device.clone(),
            scheduler,
            scored_adapter: 0,
            blind,
            plan,
            memory,
            program,
            next_id: 0,
            recorded: None,
            prefixes: None,
            turns: options.turns.clone(),
            weight_files,
            looked: Instant::now(),
            limits,
            model,
        })
    }

    /// Files that the engine reads while it runs.
    pub fn weight_files(&self) -> &WeightFiles {
        &self.weight_files
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The plan as it runs: fused by the device's rules.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sizes that the program was compiled for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The memory plan at load.
    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    /// Bookkeeping of the KV cache, for statistics and checks.
    pub fn kv(&self) -> &KvCache {
        &self.scheduler.kv
    }

    /// Score with an adapter from now on ([`Self::evaluate`] and its callers); `None`: with the
    /// model alone.
    ///
    /// # Errors
    /// There is no such adapter.
    pub fn set_scored_adapter(&mut self, name: Option<&str>) -> Result<()> {
        self.scored_adapter = match name {
            Some(name) => self.adapters.find(name)?.0,
            None => 0,
        };
        Ok(())
    }

    /// The command table for a step of `n_rows` rows.
    pub fn commands(&self, n_rows: usize) -> Vec<CommandInfo> {
        self.program.commands(0, n_rows)
    }

    /// Start or stop recording the times of every step.
    pub fn record_timings(&mut self, on: bool) {
        self.recorded = on.then(Vec::new);
    }

    /// The times recorded since the last call.
    pub fn take_timings(&mut self) -> Vec<StepTimings> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Replace the proposer of draft tokens. No effect with [`crate::Speculate::Off`].
    pub fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        self.scheduler.set_proposer(proposer);
    }

    /// Return the memory of free KV pages to the system, moving pages together if that helps.
    /// Returns true if there was any. For engines that have been idle for a while; on a shortage
    /// the engine does it itself.
    ///
    /// # Errors
    /// The device failed.
    pub fn give_back_memory(&mut self) -> Result<bool> {
        self.scheduler.kv.give_back(self.program.as_mut())
    }

    /// Release the memory that the governor demands, as far as cached prefixes suffice, and report
    /// what is held. For idle engines; [`Self::step`] does it itself.
    ///
    /// # Errors
    /// The device failed.
    pub fn follow_memory(&mut self) -> Result<()> {
        self.scheduler.follow_memory(self.program.as_mut())?;
        Ok(())
    }

    /// Evict all cached prefixes and release their memory. Running sequences keep their pages.
    pub fn clear_prefix_cache(&mut self) {
        self.scheduler.kv.clear_prefixes();
    }

    /// Number of sequences that wait for a slot.
    pub fn n_waiting(&self) -> usize {
        self.scheduler.n_waiting()
    }

    /// Number of times that a sequence was parked for lack of memory.
    pub fn n_parked(&self) -> u64 {
        self.scheduler.n_parked()
    }

    /// Number of sequences in slots.
    pub fn n_running(&self) -> usize {
        self.scheduler.n_running()
    }

    /// Returns true if nothing runs or waits.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        match tokens.iter().position(|t| *t as usize >= n_vocab) {
            Some(position) => Err(Error::TokenOutOfRange { token: tokens[position], position, n_vocab }),
            None if tokens.is_empty() => Err(Error::EmptyPrompt),
            None => Ok(()),
        }
    }

    /// Cancel a sequence: it ends before its next step with [`crate::FinishReason::Cancelled`]. A
    /// sequence that has ended already is ignored.
    pub fn cancel(&mut self, id: SequenceId) {
        if let Some(s) = self.scheduler.sequences().find(|s| s.id == id) {
            s.cancel.cancel();
        }
    }

    /// Submit as many steps as the device accepts ahead, wait for the oldest, and accept the tokens
    /// that it chose. Returns true while there is more to do.
    ///
    /// # Errors
    /// The device failed, or panicked. The steps in flight chose no token; another call computes
    /// the same rows again, unless [`Self::end_failed`] ends their sequences. Or
    /// [`weights::Error::Changed`]: the model's file has changed, and every sequence ends with the
    /// next call.
    pub fn step(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        let may_run_ahead = self.recorded.is_none();
        let turns = self.turns.clone();
        let _turn = turns.as_ref().map(|turns| turns.take());
        while self.scheduler.schedule(Instant::now(), may_run_ahead, self.program.as_mut(), on_event)? {
            if let Err(error) = self.submit() {
                self.scheduler.forget_failed(self.program.as_mut());
                return match error {
                    // The step's sequence was cancelled; the rows of others are submitted again.
                    Error::Device(device::Error::Stopped { .. }) => Ok(true),
                    error => Err(error),
                };
            }
        }
        let mut done = Instant::now();
        if let Some(flight) = self.scheduler.oldest_in_flight() {
            if let Some(ticket) = flight.ticket
                && let Err(error) = guarded(|| self.program.wait(ticket))
            {
                self.scheduler.forget_failed(self.program.as_mut());
                return Err(error);
            }
            done = Instant::now();
            self.check_weights(done)?;
            self.scheduler.postprocess(done, self.program.as_mut(), on_event);
        }
        self.advance_background(done, on_event)?;
        self.release_adapters()?;
        if self.scheduler.is_starved() {
            self.scheduler.wait_for_memory(self.program.as_mut())?;
        }
        let idle = self.is_idle();
        if idle {
            // Steps still in flight were computed for answers that have ended.
            self.scheduler.forget_in_flight(self.program.as_mut());
            if cfg!(debug_assertions) {
                self.scheduler.kv.check()?;
            }
        }
        Ok(!idle)
    }

    /// Compute a part of the chunk in the background, after a step that was done at `now`.
    fn advance_background(&mut self, now: Instant, on_event: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let Engine { scheduler, program, .. } = self;
        let Some(until) = scheduler.background_until(now, program.as_mut()) else { return Ok(()) };
        let progress = guarded(|| program.advance_background(until))
            .inspect_err(|_| scheduler.forget_failed_background(program.as_mut()))?;
        self.check_weights(now)?;
        self.scheduler.note_background(progress, Instant::now(), on_event);
        Ok(())
    }

    /// Check that a step was computed with the weights that were loaded.
    fn check_weights(&mut self, now: Instant) -> Result<()> {
        let is_due = now.saturating_duration_since(self.looked) >= LOOK;
        let checked = match is_due {
            true => self.weight_files.check_unchanged(),
            false => self.weight_files.check_whole(),
        };
        if is_due {
            self.looked = now;
        }
        let Err(error) = checked else { return Ok(()) };
        self.scheduler.forget_failed(self.program.as_mut());
        self.scheduler.kv.clear_prefixes();
        for sequence in self.scheduler.sequences_mut() {
            // Rows computed so far may be wrong too.
            sequence.reuse = false;
            sequence.failed.get_or_insert_with(|| crate::FinishReason::Failed(error.to_string()));
        }
        Err(error)
    }

    /// End the sequences with rows in the steps that failed, after [`Self::step`] returned an
    /// error, with [`crate::FinishReason::Failed`]. Others go on. Pages of the ended sequences are
    /// freed, and the failed steps do not enter the prefix cache.
    pub fn end_failed(&mut self, reason: &str, on_event: &mut dyn FnMut(Event<'_>)) {
        self.scheduler.end_failed(reason, on_event);
    }

    /// Submit the step that the scheduler filled.
    fn submit(&mut self) -> Result<()> {
        let Engine { scheduler, program, recorded, .. } = self;
        let now = Instant::now();
        scheduler.begin_masks();
        let step = scheduler.buffers.step(&scheduler.kv, scheduler.masks(), scheduler.stop_flag());
        let submitted = match recorded {
            None => guarded(|| program.submit(&step).map(Some)),
            Some(recorded) => {
                let mut timings = Vec::new();
                let n_rows = step.tokens.len();
                guarded(|| program.run_timed(&step, &mut timings)).map(|()| {
                    recorded.push(StepTimings { n_rows, timings });
                    None
                })
            }
        };
        scheduler.end_masks();
        let ticket = scheduler.kv.note_submitted(submitted)?;
        scheduler.note_submitted(now, ticket);
        Ok(())
    }

    /// Run the step in the buffers on its own.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.scheduler.forget_in_flight(self.program.as_mut());
        let Scheduler { kv, buffers, .. } = &mut self.scheduler;
        let ran = self.program.run(&buffers.step(kv, device::Masks::default(), None));
        kv.note_submitted(ran)?;
        self.weight_files.check_whole()
    }

    /// A slot without a sequence, for scoring.
    pub(crate) fn free_slot(&self, what: &'static str) -> Result<usize> {
        let busy = Error::Busy { what, n_sequences: self.scheduler.n_slots() };
        self.scheduler.free_slot().ok_or(busy)
    }
}

/// Call the device, and turn its panic into an error.
fn guarded<T>(call: impl FnOnce() -> device::Result<T>) -> Result<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => Ok(result?),
        Err(panic) => Err(Error::Panicked(panic_message(panic.as_ref()).to_owned())),
    }
}

/// Maximum number of bytes of KV pages: the option, or the memory that is free beside everything
/// else of the model, but at least what one sequence needs.
fn kv_budget(plan: &Plan, limits: &Limits, memory: &MemoryReport, options: &LoadOptions) -> Result<u64> {
    let least = memory::check_budget(&plan.kv, limits, options)?;
    Ok(match options.kv_budget {
        Some(bytes) => bytes,
        None if options.governor.is_some() || !options.check_memory || memory.installed == 0 => u64::MAX,
        None => memory.free.saturating_sub(memory.mapped + memory.committed).max(least),
    })
}
