//! [`CudaProgram`] and its machine: memory, tables, and the launches of steps.
//!
//! The host writes a step into a pinned region of its own. The first kernel of the step copies the
//! region to the GPU's step buffer, in the order of the stream. All steps share that buffer, so
//! that tables hold constant addresses and steps of the same sizes share a graph. Chosen tokens are
//! stored in pinned memory, and in a GPU buffer that embeddings and penalties of later steps read.

mod chain;
mod launch;
mod lookup;
mod memory;
mod noted;
mod pages;
mod whole;

use crate::CudaDevice;
use crate::compile::{Commands, Compiler, KernelList, Places};
use crate::driver::{Address, Buffer, Context, Event, Function, Module, NAME, Pinned, Pool};
use crate::group::Rank;
use crate::kernels::Kernels;
use crate::layout::{ALIGN, Scratch, StepLayout};
use crate::packs::{PackPlan, Packs};
use crate::persistent::{Persistent, PersistentWeights, persistent_of};
use crate::profile::Profile;
use crate::weights::{WeightPlan, Weights};
use device::{CommittedPages, Error, KvLayout, Limits, Plan, Result, Step, Timing};
use device_gpu::compiled::{CompiledPlan, HasTable};
use device_gpu::inputs::Begun;
use device_gpu::machine::{HostPart, Machine, ResultPart};
use device_gpu::pools::no_pages;
use device_gpu::program::GpuProgram;
use device_lower::lifetimes::value_bytes;
use device_lower::placed::LoweredPlan;
use device_lower::table::Table;
use launch::Graphs;
use lookup::Lookup;
use memory::Memory;
use noted::Noted;
use std::ops::Range;
use std::sync::Arc;
use whole::Whole;

/// Compiled plans on one of NVIDIA's GPUs.
pub type CudaProgram = GpuProgram<CudaMachine>;

/// The sizes of a program.
pub struct Sizes {
    /// Bytes of the arena.
    pub arena: usize,
    /// Layout of a step.
    pub step: StepLayout,
    /// Bytes of the parts of scratch.
    pub scratch: Scratch,
    /// Bytes of the largest logits.
    pub logits: usize,
    /// Maximum number of bytes of the kept values of a plan.
    pub kept: usize,
}

impl HasTable for Commands {
    fn table(&self) -> &Table {
        &self.table
    }
}

/// A GPU with the memory and the tables of one program.
pub struct CudaMachine {
    context: Arc<Context>,
    plans: Vec<CompiledPlan<Commands>>,
    /// Steps in one launch, by plan.
    wholes: Vec<Whole>,
    functions: Functions,
    kv: KvLayout,
    limits: Limits,
    step: StepLayout,
    /// Number of positions from which a sequence is long.
    long: usize,
    /// Notes on steps, by ticket modulo the steps in flight.
    noted: Vec<Noted>,
    /// Events of launched steps, by ticket modulo the steps in flight. `None`: the step is held
    /// back, shares the launch of an earlier step, or was waited for.
    running: Vec<Option<Event>>,
    /// The newest steps in flight that are not launched yet. One launch will compute them.
    held: Vec<Begun>,
    /// Events that no step uses.
    events: Vec<Event>,
    /// Pages that have memory.
    committed: CommittedPages,
    /// Number of committed ranges that touch a chunk, by group and chunk.
    users: Vec<Vec<u32>>,
    graphs: Graphs,
    memory: Memory,
    steps_address: u64,
    /// Copies to `results`: the source, and the range of bytes in `results`. Reserved at load.
    downloads: Vec<(Address, Range<usize>)>,
    pools: Vec<Pool>,
    kernels: Arc<Kernels>,
    profile: Profile,
    /// The GPU's place in a group. It owns memory whose addresses commands contain.
    rank: Option<Arc<Rank>>,
    _lookup: Lookup,
    weights: Weights,
    packs: Packs,
    _persistent: Option<PersistentWeights>,
    /// The phases of the plans that the persistent kernels run.
    _phases: Vec<Buffer>,
    /// Number of multiprocessors.
    n_processors: usize,
}

/// The kernels of a program, and the modules that keep them loaded.
struct Functions {
    /// The kernels that commands name by number.
    by_number: Vec<Function>,
    step_load: Function,
    _modules: Vec<Arc<Module>>,
}

impl Functions {
    /// Loads kernels. Those without machine code are compiled in parallel.
    fn load(kernels: &Kernels, list: &KernelList) -> Result<Functions> {
        let step_load = ("step_load.cu".to_owned(), "step_load".to_owned(), 0);
        kernels.prepare(&list.names.iter().chain([&step_load]).map(|(file, ..)| file.clone()).collect())?;
        let (step_load, module) = kernels.function(&step_load.0, &step_load.1, 0)?;
        let mut functions = Functions { by_number: Vec::new(), step_load, _modules: vec![module] };
        for (file, name, shared) in &list.names {
            let (function, module) = kernels.function(file, name, *shared)?;
            functions.by_number.push(function);
            functions._modules.push(module);
        }
        Ok(functions)
    }
}

/// The inputs that the tables of all plans share.
struct Inputs<'a> {
    device: &'a CudaDevice,
    limits: &'a Limits,
    sizes: &'a Sizes,
    places: &'a Places,
    weights: &'a Weights,
    packs: &'a Packs,
}

/// Compiled plans, while more are added.
#[derive(Default)]
struct Tables {
    plans: Vec<CompiledPlan<Commands>>,
    wholes: Vec<Whole>,
    /// Tables of phases of the persistent kernels.
    phases: Vec<Buffer>,
    list: KernelList,
}

impl Tables {
    /// Compiles a plan; with `persistent`, also the tables of steps in one launch.
    fn add(
        &mut self,
        inputs: &Inputs<'_>,
        lookup: &Lookup,
        part: &LoweredPlan<'_>,
        persistent: Option<(&Persistent, &PersistentWeights)>,
        index: usize,
    ) -> Result<()> {
        let (context, kernels) = (inputs.device.context(), inputs.device.shared_kernels());
        let compiler = Compiler {
            profile: inputs.device.profile(),
            plan: part.plan,
            units: part.units,
            arena: part.arena,
            limits: inputs.limits,
            step: inputs.sizes.step,
            scratch: inputs.sizes.scratch,
            places: inputs.places,
            weights: inputs.weights,
            packs: inputs.packs,
            heads: &lookup.lists,
        };
        let list = &mut self.list;
        let table = |tokens, outputs| compiler.table(tokens, outputs, list);
        self.plans.push(CompiledPlan::new(part, inputs.limits, table)?);
        let whole = match persistent {
            Some((persistent, weights)) => {
                let table = compiler.phases(persistent, &weights.phases(index), &weights.biases(index))?;
                let buffer = Buffer::new(context, "phases", size_of_val(&table[..]))?;
                context.upload(buffer.start(), bytemuck::cast_slice(&table))?;
                let placed = (&table[..], buffer.start());
                self.phases.push(buffer);
                Whole::new(&compiler, persistent, placed, weights, kernels, &mut self.list)?
            }
            None => Whole::default(),
        };
        self.wholes.push(whole);
        Ok(())
    }
}

/// Fewest graphs to keep per plan. The segments of a model on two devices are many plans, and each
/// step needs a graph of every segment.
const GRAPHS_A_PLAN: usize = 4;

impl CudaMachine {
    /// Allocates the memory and writes the tables. Weights of `before` are shared. Its pages and
    /// states are used in place, until [`Machine::adopt`] moves them to this machine.
    ///
    /// # Errors
    /// Memory was refused, a kernel does not compile, or something has no kernel.
    pub fn new(
        device: &CudaDevice,
        plans: &[Plan],
        parts: &[LoweredPlan],
        limits: &Limits,
        sizes: &Sizes,
        before: Option<&CudaMachine>,
    ) -> Result<CudaMachine> {
        let (context, kernels, profile) =
            (device.context().clone(), device.shared_kernels(), device.profile());
        context.enter()?;
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let step = sizes.step;
        let memory = Memory::new(&context, &kv, limits, sizes, profile.chained_steps, before.is_none())?;
        let states = memory.states.as_ref().or(before.and_then(|before| before.memory.states.as_ref()));
        let mut pools = Vec::new();
        for (group, n_pages) in limits.n_pages.iter().enumerate().filter(|_| before.is_none()) {
            pools.push(Pool::new(&context, n_pages * kv.page_bytes(group, limits.kv_type, limits.page_len))?);
        }
        let lookup = Lookup::load(&context, plans, limits)?;
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
            arena: memory.arena.start(),
            step: memory.step_buffer.start(),
            chosen: memory.chosen.start(),
            host_chosen: memory.host_chosen.address()?,
            masks: memory.masks.as_ref().map_or(Ok(0), Pinned::address)?,
            scratch: memory.scratch.start(),
            heads: lookup.heads.start(),
            states: states.map_or(0, Buffer::start),
            known: lookup.known_at.clone(),
            pools: before.map_or(&pools, |before| &before.pools).iter().map(Pool::start).collect(),
            rank: device.rank().cloned(),
        };
        let inputs = Inputs { device, limits, sizes, places: &places, weights: &weights, packs: &packs };
        let mut tables = Tables::default();
        for (index, (part, persistent)) in parts.iter().zip(&persistent).enumerate() {
            tables.add(&inputs, &lookup, part, persistent.as_ref().ok().zip(third.as_ref()), index)?;
        }
        let Tables { plans: compiled, mut wholes, phases, list } = tables;
        let functions = Functions::load(kernels, &list)?;
        let refused = kernels.refused();
        wholes.iter_mut().for_each(|whole: &mut Whole| whole.refuse(&refused));
        let committed = no_pages(&kv, limits, usize::MAX);
        let users = before.map_or(&pools, |before| &before.pools).iter().zip(0..).map(
            |(pool, group): (&Pool, usize)| {
                let bytes = limits.n_pages[group] * kv.page_bytes(group, limits.kv_type, limits.page_len);
                vec![0; bytes.div_ceil(pool.chunk().max(1)).max(1)]
            },
        );
        let users = users.collect();
        let events = (0..=step.in_flight).map(|_| context.event(false)).collect::<Result<_>>()?;
        context.finish()?;
        Ok(CudaMachine {
            plans: compiled,
            wholes,
            functions,
            users,
            kv,
            limits: limits.clone(),
            step,
            long: profile.long,
            noted: vec![Noted::default(); step.in_flight],
            running: (0..step.in_flight).map(|_| None).collect(),
            held: Vec::with_capacity(step.in_flight),
            events,
            committed,
            graphs: Graphs::new(profile.n_graphs.max(GRAPHS_A_PLAN * plans.len())),
            steps_address: memory.steps.address()?,
            memory,
            downloads: Vec::with_capacity(1 + plans.iter().map(|plan| plan.kept.len()).max().unwrap_or(0)),
            pools,
            context,
            _lookup: lookup,
            weights,
            packs,
            kernels: kernels.clone(),
            profile: profile.clone(),
            rank: device.rank().cloned(),
            _persistent: third,
            _phases: phases,
            n_processors: profile.n_processors,
        })
    }

    fn failed<T>(&self, reason: String) -> Result<T> {
        Err(Error::Failed { device: NAME, reason })
    }

    /// Index of a step in flight in `noted` and `running`.
    fn place(&self, ticket: u64) -> usize {
        (ticket % self.step.in_flight as u64) as usize
    }
}

impl Machine for CudaMachine {
    type Table = Commands;
    /// The step's ticket.
    type Work = u64;

    const NAME: &'static str = NAME;
    const COPIES_IN_ORDER: bool = true;
    /// False, since graphs are found by the sizes of steps.
    const COUNTS_SPANS: bool = false;

    fn plans(&self) -> &[CompiledPlan<Commands>] {
        &self.plans
    }

    fn long(&self) -> usize {
        self.long
    }

    fn whole(&self, plan: usize, n_rows: usize) -> Option<&Commands> {
        self.wholes[plan].table(n_rows)
    }

    fn takes_whole(&self, step: &Step) -> bool {
        self.wholes[step.plan].takes(step)
    }

    /// The steps of two launches, if a launch computes several steps; else those of the profile.
    fn steps_ahead(&self, n_sequences: usize) -> Option<usize> {
        let chained = self.wholes.iter().map(Whole::chained_steps).max().unwrap_or(1);
        let of_launches = if n_sequences == 1 { 2 * chained } else { 0 };
        Some(of_launches.max(self.profile.steps_ahead))
    }

    fn enter(&self) -> Result<()> {
        self.context.enter()
    }

    fn write(&mut self, part: HostPart, offset: usize, bytes: &[u8]) {
        match part {
            HostPart::Steps => self.memory.steps.write(offset, bytes),
            HostPart::Chosen => self.memory.host_chosen.write(offset, bytes),
            HostPart::Masks => {
                if let Some(masks) = &mut self.memory.masks {
                    masks.write(offset, bytes);
                }
            }
        }
    }

    fn write_pages(&mut self, offset: usize, _group: usize, pages: &[u32]) {
        self.memory.steps.write(offset, pages);
    }

    fn begin(&mut self, _step: &Step, _begun: &Begun) -> Result<()> {
        Ok(())
    }

    fn written(&mut self, step: &Step, begun: &Begun) {
        let place = self.place(begun.ticket);
        self.noted[place] = self.note(step, begun);
    }

    fn follows(&self, begun: &Begun) -> bool {
        self.held.last().is_none_or(|last| self.chains(last, begun))
    }

    fn launch(&mut self, step: &Step, begun: &Begun, is_busy: bool) -> Result<u64> {
        // While the GPU is busy, a step is held back for later ones that can share its launch.
        if self.noted(begun).chained.is_some() && is_busy {
            self.held.push(*begun);
        } else {
            let event = self.launch_whole(step, begun)?;
            let place = self.place(begun.ticket);
            self.running[place] = Some(event);
        }
        Ok(begun.ticket)
    }

    fn flush(&mut self) -> Result<()> {
        self.launch_held()
    }

    fn is_full(&self, plan: usize) -> bool {
        self.held.len() >= self.wholes[plan].chained_steps()
    }

    fn is_launched(&self, work: &u64) -> bool {
        self.running[self.place(*work)].is_some()
    }

    fn run(&mut self, begun: &Begun, range: Range<usize>) -> Result<()> {
        self.launch_range(begun, range)?;
        self.context.finish()
    }

    fn run_timed(&mut self, begun: &Begun, first: usize, timings: &mut Vec<Timing>) -> Result<()> {
        self.launch_timed(begun, first, timings)
    }

    fn wait(&mut self, work: u64) -> Result<()> {
        let place = self.place(work);
        // Waiting for the first step of a launch waits for all of them.
        let Some(event) = self.running[place].take() else { return Ok(()) };
        let result = event.wait();
        self.events.push(event);
        result
    }

    fn settle<'a>(&'a self, _works: impl Iterator<Item = &'a u64>) -> Result<()> {
        self.context.finish()
    }

    fn chosen(&self, index: u32) -> u32 {
        self.memory.host_chosen.word(index as usize)
    }

    fn publish_chosen(&mut self, first: u32, n: usize) -> Result<()> {
        let bytes = self.memory.host_chosen.bytes(first as usize * 4, n * 4);
        self.context.upload(self.memory.chosen.start() + u64::from(first) * 4, bytes)
    }

    fn fetch(&mut self, parts: &[ResultPart]) -> Result<()> {
        self.downloads.clear();
        for part in parts.iter().filter(|part| part.bytes > 0) {
            let from = self.memory.arena.start() + part.offset as u64;
            self.downloads.push((from, part.at..part.at + part.bytes));
        }
        if self.downloads.is_empty() {
            return Ok(());
        }
        let end = self.downloads.iter().map(|(_, range)| range.end).max().unwrap_or(0);
        self.context.download_all(&self.downloads, self.memory.results.bytes_mut(0, end))
    }

    fn result(&self, part: &ResultPart) -> &[f32] {
        bytemuck::cast_slice(self.memory.results.bytes(part.at, part.bytes))
    }

    fn read(&self, offset: usize, words: &mut [u32]) -> Option<()> {
        self.context.download(self.memory.arena.start() + offset as u64, bytemuck::cast_slice_mut(words)).ok()
    }

    fn committed(&self) -> &CommittedPages {
        &self.committed
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.map_pages(group, pages)
    }

    fn decommit(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        self.committed.set(group, pages.clone(), false);
        self.release(group, self.chunks(group, &pages))
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<()> {
        self.context.copy(self.page(group, to), self.page(group, from), self.page_bytes(group))
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.context.download(self.page(group, page), bytes)
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.context.upload(self.page(group, page), bytes)?;
        self.context.finish()
    }

    fn beside(&self, plans: &[Plan], limits: &Limits) -> Result<CudaProgram> {
        let (context, kernels) = (self.context.clone(), self.kernels.clone());
        let device = CudaDevice::sharing(context, kernels, self.profile.clone(), self.rank.clone());
        device.compile_program(plans, limits, Some(self))
    }

    fn adopt(&mut self, before: &mut CudaMachine) {
        std::mem::swap(&mut self.pools, &mut before.pools);
        std::mem::swap(&mut self.users, &mut before.users);
        std::mem::swap(&mut self.committed, &mut before.committed);
        self.memory.states = before.memory.states.take();
    }

    fn close(&mut self) {
        if self.context.enter().is_ok() {
            // The error is dropped, since nobody waits for these steps any more.
            let _ = self.context.finish();
        }
    }
}

/// Bytes of the kept values of a plan.
pub fn kept_bytes(plan: &Plan, limits: &Limits) -> usize {
    plan.kept.iter().map(|id| value_bytes(plan.value(*id), limits).next_multiple_of(ALIGN)).sum()
}
