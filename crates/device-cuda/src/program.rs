//! [`CudaProgram`]: the memory, the tables, and the steps that are written, launched and waited for.
//!
//! A step's numbers are written into a pinned region of its own; the first work of a step copies them
//! to the one step buffer of the GPU, in the order of the stream, so that tables have constant
//! addresses and a table of the same sizes is the same graph. The tokens that outputs choose go to a
//! buffer of their own, where embeddings and penalties of later steps find them, and to pinned memory.

mod chain;
mod inputs;
mod launch;
mod lookup;
mod results;
mod whole;

use crate::CudaDevice;
use crate::compile::{Commands, Compiler, KernelList, Places};
use crate::driver::{Address, Buffer, Context, Event, Function, Module, NAME, Pinned, Pool};
use crate::group::Rank;
use crate::kernels::Kernels;
use crate::layout::{ALIGN, Scratch, StepLayout};
use crate::packs::{PackPlan, Packs};
use crate::persistent::{PersistentWeights, persistent_of};
use crate::profile::Profile;
use crate::weights::{WeightPlan, Weights};
use device::{
    Chosen, CommandInfo, CommittedPages, Error, KvLayout, Limits, Needs, Plan, Program, Result, Step, Ticket,
    Timing, ValueId, Want,
};
use device_lower::ahead::{self, Ahead, Done, InFlight};
use device_lower::lifetimes::value_bytes;
use device_lower::placed::{LoweredPlan, PlacedValue};
use device_lower::sampling::Chooser;
use device_lower::table::{Location, Region, RowClass, StepSizes};
use inputs::Begun;
use launch::Graphs;
use lookup::{head_lists, known_keys};
use std::ops::Range;
use std::sync::Arc;
use whole::Whole;

/// The sizes of a program.
pub struct Sizes {
    /// Of the arena.
    pub arena: usize,
    /// Of a step.
    pub step: StepLayout,
    /// Of scratch.
    pub scratch: Scratch,
    /// Of the largest logits.
    pub logits: usize,
    /// Of the values that plans keep, the largest sum of a plan.
    pub kept: usize,
}

/// A plan ready to run.
struct Compiled {
    /// By class of tokens, then of outputs, which are no more.
    tables: Vec<Vec<Commands>>,
    /// By id.
    values: Vec<PlacedValue>,
    output: ValueId,
    kept: Vec<ValueId>,
    /// Whether its tables choose tokens.
    chooses: bool,
    /// Of steps in one launch.
    whole: Whole,
}

impl Compiled {
    fn table(&self, sizes: &StepSizes) -> &Commands {
        if let Some(commands) = self.whole.table(sizes.n_rows).filter(|_| sizes.whole) {
            return commands;
        }
        let tokens = RowClass::of(sizes.n_rows) as usize;
        let outputs = (RowClass::of(sizes.n_outputs) as usize).min(tokens);
        &self.tables[tokens][outputs]
    }
}

/// Compiled plans and their memory.
pub struct CudaProgram {
    context: Arc<Context>,
    plans: Vec<Compiled>,
    /// The kernels that commands name by number.
    functions: Vec<Function>,
    step_load: Function,
    needs: Vec<Needs>,
    kv: KvLayout,
    limits: Limits,
    step: StepLayout,
    /// Positions from which a sequence is long.
    long: usize,
    ahead: Ahead<Event>,
    /// The last steps in flight, where these are not launched yet: one launch will compute them.
    held: Vec<Begun>,
    /// Events that no step uses.
    events: Vec<Event>,
    /// Chooses what has no kernel.
    chooser: Chooser,
    /// Of which pages have memory.
    committed: CommittedPages,
    /// By group and chunk: pages that lie in it, whole or in part, and have memory.
    users: Vec<Vec<u32>>,
    graphs: Graphs,
    arena: Buffer,
    step_buffer: Buffer,
    chosen: Buffer,
    /// A region for each step that may be in flight.
    steps: Pinned,
    steps_address: u64,
    /// The masks of each step that may be in flight; `None`: no plan chooses tokens.
    masks: Option<Pinned>,
    /// By ticket modulo the number of steps that are kept: whether logits are wanted.
    wants_logits: Vec<bool>,
    /// The chosen tokens, as the GPU reports them.
    host_chosen: Pinned,
    /// The logits of the last step that was waited for, then what its plan keeps.
    results: Pinned,
    logits_bytes: usize,
    /// Room for what is copied to the results: where from, and the bytes there.
    downloads: Vec<(Address, Range<usize>)>,
    pools: Vec<Pool>,
    kernels: Arc<Kernels>,
    profile: Profile,
    /// The GPU's place in a group, whose memory commands name.
    rank: Option<Arc<Rank>>,
    _scratch: Buffer,
    _heads: Buffer,
    _known: Vec<Buffer>,
    /// Of recurrent layers.
    states: Option<Buffer>,
    weights: Weights,
    packs: Packs,
    _persistent: Option<PersistentWeights>,
    /// The phases of the plans that the persistent kernels run.
    _phases: Vec<Buffer>,
    /// Multiprocessors.
    n_processors: usize,
    _modules: Vec<Arc<Module>>,
}

/// Granules of a sequence as long as the context.
const GRANULES: usize = 4;

/// Graphs for each plan at least: the segments of a model on two devices are many plans, and a step needs a graph of each.
const GRAPHS_A_PLAN: usize = 4;

/// Most bytes of a granule.
const MOST_GRANULE_BYTES: usize = 128 << 20;

impl CudaProgram {
    /// Take the memory and write the tables. What `before` has and this needs is shared with it: pages and states, which it must
    /// be given when the other goes ([`Self::replace`]), and weights.
    ///
    /// # Errors
    /// Memory was refused, a kernel does not compile, or something has no kernel.
    pub fn new(
        device: &CudaDevice,
        plans: &[Plan],
        parts: &[LoweredPlan],
        limits: &Limits,
        sizes: &Sizes,
        before: Option<&CudaProgram>,
    ) -> Result<CudaProgram> {
        let (context, kernels, profile) =
            (device.context().clone(), device.shared_kernels(), device.profile());
        context.enter()?;
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let Sizes { step, scratch, .. } = *sizes;
        let take = |what: &str, bytes: usize| Buffer::new(&context, what, bytes);
        let arena = take("activations", sizes.arena)?;
        let step_buffer = take("steps", step.buffer_bytes(profile.chained_steps))?;
        let scratch_buffer = take("scratch", scratch.total())?;
        let chosen = take("chosen tokens", step.chosen_bytes())?;
        let states = match before {
            Some(_) => None,
            None => Some(take("states of recurrent layers", 4 * limits.n_states * kv.state_len())?),
        };
        let states_at =
            states.as_ref().or(before.and_then(|before| before.states.as_ref())).map_or(0, Buffer::start);
        let steps = Pinned::new(&context, "steps", step.total())?;
        let host_chosen = Pinned::new(&context, "chosen tokens", step.chosen_bytes())?;
        let results = Pinned::new(&context, "results", sizes.logits + sizes.kept)?;
        let masks = match step.mask_bytes() {
            0 => None,
            bytes => Some(Pinned::new(&context, "masks", bytes)?),
        };
        let mut pools = Vec::new();
        for (group, n_pages) in limits.n_pages.iter().enumerate().filter(|_| before.is_none()) {
            pools.push(Pool::new(&context, n_pages * kv.page_bytes(group, limits.kv_type, limits.page_len))?);
        }
        let (lists, words) = head_lists(plans);
        let heads = take("tables", words.len() * 4)?;
        context.upload(heads.start(), bytemuck::cast_slice(&words))?;
        let (mut known, mut known_at) = (Vec::new(), Vec::new());
        for layer in known_keys(plans, limits) {
            let Some(words) = layer else {
                known_at.push(0);
                continue;
            };
            let buffer = take("biases of keys", words.len() * 4)?;
            context.upload(buffer.start(), bytemuck::cast_slice(&words))?;
            known_at.push(buffer.start());
            known.push(buffer);
        }
        let (no_weights, no_packs) = (Weights::default(), Packs::default());
        let loaded = before.map_or(&no_weights, |before| &before.weights);
        let weights = WeightPlan::beside(plans, loaded)?.load(&context)?;
        let units = || parts.iter().map(|part| (part.plan, part.units));
        let packed = before.map_or(&no_packs, |before| &before.packs);
        let packs = PackPlan::beside(units(), limits, profile, packed);
        let (persistent, third) = persistent_of(units(), limits, profile, packs.total());
        let packs = packs.load(&context, kernels)?;
        let third = third.load(&context, kernels)?;
        let places = Places {
            arena: arena.start(),
            step: step_buffer.start(),
            chosen: chosen.start(),
            host_chosen: host_chosen.address()?,
            masks: masks.as_ref().map_or(Ok(0), Pinned::address)?,
            scratch: scratch_buffer.start(),
            heads: heads.start(),
            states: states_at,
            known: known_at,
            pools: before.map_or(&pools, |before| &before.pools).iter().map(Pool::start).collect(),
            rank: device.rank().cloned(),
        };
        let (mut compiled, mut list) = (Vec::with_capacity(parts.len()), KernelList::default());
        let mut phases = Vec::new();
        for (index, (part, persistent)) in parts.iter().zip(&persistent).enumerate() {
            let compiler = Compiler {
                profile,
                plan: part.plan,
                units: part.units,
                arena: part.arena,
                limits,
                step,
                scratch,
                places: &places,
                weights: &weights,
                packs: &packs,
                heads: &lists,
            };
            let most = RowClass::of(limits.max_rows);
            let classes = RowClass::ALL.into_iter().filter(|class| *class <= most);
            let tables = classes
                .map(|tokens| {
                    let outputs = RowClass::ALL.into_iter().filter(|class| *class <= tokens);
                    outputs.map(|outputs| compiler.table(tokens, outputs, &mut list)).collect()
                })
                .collect::<Result<Vec<Vec<_>>>>()?;
            let whole = match (persistent, &third) {
                (Ok(persistent), Some(third)) => {
                    let table = compiler.phases(persistent, &third.phases(index), &third.biases(index))?;
                    let buffer = take("phases", size_of_val(&table[..]))?;
                    context.upload(buffer.start(), bytemuck::cast_slice(&table))?;
                    let placed = (&table[..], buffer.start());
                    phases.push(buffer);
                    Whole::new(&compiler, persistent, placed, third, kernels, &mut list)?
                }
                _ => Whole::default(),
            };
            compiled.push(Compiled {
                tables,
                values: part.values(limits),
                output: part.plan.output,
                kept: part.plan.kept.clone(),
                chooses: part.chooses(),
                whole,
            });
        }
        let first = ("step_load.cu".to_owned(), "step_load".to_owned(), 0);
        kernels.prepare(&list.names.iter().chain([&first]).map(|(file, ..)| file.clone()).collect())?;
        let (step_load, module) = kernels.function(&first.0, &first.1, 0)?;
        let (mut functions, mut modules) = (Vec::new(), vec![module]);
        for (file, name, shared) in &list.names {
            let (function, module) = kernels.function(file, name, *shared)?;
            functions.push(function);
            modules.push(module);
        }
        let refused = kernels.refused();
        compiled.iter_mut().for_each(|plan: &mut Compiled| plan.whole.refuse(&refused));
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let committed = CommittedPages::new(limits, |group| {
            let of_context = limits.n_ctx.div_ceil(limits.page_len).div_ceil(GRANULES);
            let page_bytes = kv.page_bytes(group, limits.kv_type, limits.page_len);
            of_context.min(MOST_GRANULE_BYTES / page_bytes.max(1)).max(1)
        });
        let users = before.map_or(&pools, |before| &before.pools).iter().zip(0..).map(
            |(pool, group): (&Pool, usize)| {
                let bytes = limits.n_pages[group] * kv.page_bytes(group, limits.kv_type, limits.page_len);
                vec![0; bytes.div_ceil(pool.chunk().max(1)).max(1)]
            },
        );
        let users = users.collect();
        let events = (0..=step.in_flight).map(|_| context.event(false)).collect::<Result<_>>()?;
        context.finish()?;
        Ok(CudaProgram {
            needs: plans.iter().map(|plan| Needs::new(plan, limits)).collect(),
            plans: compiled,
            functions,
            step_load,
            users,
            kv,
            limits: limits.clone(),
            step,
            long: profile.long,
            ahead: Ahead::new(step.n_kept(), limits.max_outputs),
            held: Vec::with_capacity(step.in_flight),
            events,
            chooser: Chooser::new(n_logits),
            committed,
            graphs: Graphs::new(profile.n_graphs.max(GRAPHS_A_PLAN * plans.len())),
            arena,
            step_buffer,
            chosen,
            steps_address: steps.address()?,
            steps,
            wants_logits: vec![false; step.n_kept()],
            masks,
            host_chosen,
            results,
            logits_bytes: sizes.logits,
            downloads: Vec::with_capacity(1 + plans.iter().map(|plan| plan.kept.len()).max().unwrap_or(0)),
            pools,
            context,
            _scratch: scratch_buffer,
            _heads: heads,
            _known: known,
            states,
            weights,
            packs,
            kernels: kernels.clone(),
            profile: profile.clone(),
            rank: device.rank().cloned(),
            _persistent: third,
            _phases: phases,
            n_processors: profile.n_processors,
            _modules: modules,
        })
    }

    fn failed<T>(&self, reason: String) -> Result<T> {
        Err(Error::Failed { device: NAME, reason })
    }

    /// Become another program of the same pages, which was made beside this one.
    fn replace(&mut self, mut next: CudaProgram) {
        std::mem::swap(&mut next.pools, &mut self.pools);
        std::mem::swap(&mut next.users, &mut self.users);
        std::mem::swap(&mut next.committed, &mut self.committed);
        next.states = self.states.take();
        (next.ahead.next, next.ahead.failed_below) = (self.ahead.next, self.ahead.failed_below);
        *self = next;
    }
}

impl Drop for CudaProgram {
    /// Memory may not go before the work that uses it.
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // An error is reported nowhere: nobody waits for these steps.
            let _ = self.context.finish();
        }
    }
}

impl Program for CudaProgram {
    fn max_in_flight(&self) -> usize {
        self.step.in_flight
    }

    /// Those of two launches, where one launch computes several steps.
    fn steps_ahead(&self, n_sequences: usize) -> usize {
        let chained = self.plans.iter().map(|plan| plan.whole.chained_steps()).max().unwrap_or(1);
        let of_launches = if n_sequences == 1 { 2 * chained } else { 0 };
        of_launches.max(self.profile.steps_ahead).min(self.step.in_flight)
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        // Logits are gone with the next step.
        ahead::has_kernels(want) && !want.logits
    }

    /// A step of which the host chooses something is computed before this returns.
    fn submit(&mut self, step: &Step) -> Result<Ticket> {
        let begun = self.begin(step, true)?;
        let Begun { ticket, sizes, plan, .. } = begun;
        let is_held = self.hold(&begun)?;
        let work = match sizes.n_rows {
            0 => None,
            _ if is_held => None,
            _ => Some(self.launch_whole(step, &begun)?),
        };
        self.ahead.next += 1;
        self.ahead.done.is_fresh = false;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work });
        if step.wants.iter().any(|want| begun.by_host(want)) {
            let chosen = self.context.finish().and_then(|()| self.choose_on_host(step, &begun));
            if let Err(error) = chosen {
                self.ahead.in_flight.pop_back();
                self.ahead.next = ticket;
                return Err(error);
            }
        }
        if self.held.len() >= self.plans[plan].whole.chained_steps()
            && let Err(error) = self.launch_held()
        {
            // As if it had not been submitted.
            self.ahead.in_flight.pop_back();
            (self.ahead.next, self.ahead.failed_below) = (ticket, ticket);
            return Err(error);
        }
        Ok(Ticket(ticket))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.wait_for(ticket.0)
    }

    fn chosen(&self) -> &[Chosen] {
        self.ahead.done.ticket.map_or(&[], |ticket| &self.ahead.outputs_of(ticket).chosen)
    }

    fn best(&self, output: usize) -> &[(u32, f32)] {
        self.ahead.done.ticket.map_or(&[], |ticket| self.ahead.outputs_of(ticket).best(output))
    }

    fn logits(&self) -> &[f32] {
        let done = &self.ahead.done;
        let is_there = done.is_fresh && done.until.is_none();
        let Some(plan) = self.plans.get(done.plan).filter(|_| is_there) else { return &[] };
        self.rows_of(plan.output).map_or(&[], |(_, bytes)| bytemuck::cast_slice(self.results.bytes(0, bytes)))
    }

    fn kept(&self, index: usize) -> &[f32] {
        let done = &self.ahead.done;
        let is_there = done.is_fresh && done.until.is_none();
        let Some(plan) = self.plans.get(done.plan).filter(|_| is_there) else { return &[] };
        let mut at = self.logits_bytes;
        for (i, id) in plan.kept.iter().enumerate() {
            let Some((_, bytes)) = self.rows_of(*id) else { continue };
            if i == index {
                return bytemuck::cast_slice(self.results.bytes(at, bytes));
            }
            at += bytes;
        }
        &[]
    }

    fn run_until(&mut self, step: &Step, last: usize) -> Result<()> {
        self.ahead.refuse_company().or_else(|reason| self.failed(reason))?;
        if let Err(reason) = step.check_node(&self.needs, last) {
            return self.failed(reason);
        }
        let begun = self.begin(step, false)?;
        let n = self.plans[begun.plan].table(&begun.sizes).table.until(last);
        self.ahead.done = Done::default();
        if begun.sizes.n_rows > 0 {
            self.launch_range(&begun, 0..n)?;
            self.context.finish()?;
        }
        let (plan, sizes) = (begun.plan, begun.sizes);
        self.ahead.done = Done { ticket: None, plan, sizes, is_fresh: true, until: Some(n) };
        Ok(())
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        let Done { plan, sizes, until, is_fresh, .. } = &self.ahead.done;
        let plan = self.plans.get(*plan).filter(|_| *is_fresh)?;
        let (offset, bytes) = self.rows_of(value)?;
        let view = plan.values[value.0 as usize];
        let region = Region::of(Location { buffer: 0, offset: offset as u64 }, view.bytes);
        if !plan.table(sizes).table.holds(value, &region, sizes, until.unwrap_or(usize::MAX)) {
            return None;
        }
        let mut words = vec![0u32; bytes / 4];
        if bytes > 0 {
            self.context.enter().ok()?;
            self.context
                .download(self.arena.start() + offset as u64, bytemuck::cast_slice_mut(&mut words))
                .ok()?;
        }
        Some(view.numbers(&words))
    }

    fn committed(&self) -> &CommittedPages {
        &self.committed
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, false).or_else(|reason| self.failed(reason))?;
        let chunks = self.chunks(group, &pages);
        for chunk in chunks.clone() {
            match self.pools[group].map(chunk) {
                Ok(true) => self.users[group][chunk] += 1,
                refused => {
                    self.release(group, chunks.start..chunk)?;
                    refused?;
                    let (n_pages, bytes) = (pages.len(), (pages.len() * self.page_bytes(group)) as u64);
                    return Err(Error::Shortage { device: NAME, group, n_pages, bytes });
                }
            }
        }
        self.committed.set(group, pages, true);
        Ok(())
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.check_range(group, &pages, true).or_else(|reason| self.failed(reason))?;
        self.launch_held()?;
        self.context.enter()?;
        // Steps that were submitted before may still read the pages.
        self.context.finish()?;
        self.committed.set(group, pages.clone(), false);
        self.release(group, self.chunks(group, &pages))
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        let ((from, bytes), (to, _)) = (self.page(group, from)?, self.page(group, to)?);
        self.launch_held()?;
        self.context.enter()?;
        if from == to { Ok(()) } else { self.context.copy(to, from, bytes) }
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        self.context.enter()?;
        self.context.download(start, bytes)
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        let start = self.page_of(group, page, bytes.len())?;
        self.launch_held()?;
        self.context.enter()?;
        self.context.upload(start, bytes)?;
        self.context.finish()
    }

    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        self.ahead.refuse_company().or_else(|reason| self.failed(reason))?;
        if plans.is_empty() || plans.iter().any(|plan| plan.kv != self.kv) {
            return self.failed("plans of another KV layout, or none".to_owned());
        }
        self.context.enter()?;
        self.context.finish()?;
        let (context, kernels) = (self.context.clone(), self.kernels.clone());
        let device = CudaDevice::sharing(context, kernels, self.profile.clone(), self.rank.clone());
        let next = device.compile_program(plans, &self.limits, Some(self))?;
        self.replace(next);
        Ok(())
    }

    /// Those of the table of single launches, then those of the table of steps in one launch, where there are such steps of so many rows.
    fn commands(&self, plan: usize, n_rows: usize) -> Vec<CommandInfo> {
        // Of the last step, if it was such a one; else as a sequence has them that goes on.
        let done = &self.ahead.done;
        let same = plan == done.plan && n_rows == done.sizes.n_rows;
        let n_outputs = if same { done.sizes.n_outputs } else { 1 };
        let sizes = StepSizes { n_rows, n_outputs, ..StepSizes::default() };
        let most = RowClass::of(self.limits.max_rows) as usize;
        let plan = self.plans.get(plan).filter(|_| RowClass::of(n_rows) as usize <= most);
        let Some(plan) = plan else { return Vec::new() };
        let whole = plan.whole.table(n_rows).map(|commands| commands.table.infos());
        plan.table(&sizes).table.infos().iter().chain(whole.unwrap_or_default()).cloned().collect()
    }

    fn run_timed(&mut self, step: &Step, timings: &mut Vec<Timing>) -> Result<()> {
        self.ahead.refuse_company().or_else(|reason| self.failed(reason))?;
        let begun = self.begin(step, true)?;
        self.ahead.done = Done::default();
        self.write_masks(step, &begun);
        self.launch_timed(&begun, timings)?;
        let Begun { ticket, sizes, plan, .. } = begun;
        self.ahead.next += 1;
        self.ahead.in_flight.push_back(InFlight { ticket, plan, sizes, work: None });
        if step.wants.iter().any(|want| begun.by_host(want)) {
            self.choose_on_host(step, &begun)?;
        }
        self.wait_for(ticket)
    }
}

/// Bytes of what a plan keeps.
pub fn kept_bytes(plan: &Plan, limits: &Limits) -> usize {
    plan.kept.iter().map(|id| value_bytes(plan.value(*id), limits).next_multiple_of(ALIGN)).sum()
}
