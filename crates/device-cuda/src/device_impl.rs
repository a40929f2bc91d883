//! [`CudaDevice`]: a GPU as a [`Device`].

use crate::driver::{Context, NAME};
use crate::group::Rank;
use crate::kernels::Kernels;
use crate::layout::{ALIGN, Scratch, StepLayout, logits_bytes, scratch_of};
use crate::packs::PackPlan;
use crate::persistent::persistent_of;
use crate::profile::{self, Profile};
use crate::program::{CudaMachine, CudaProgram, Sizes, kept_bytes};
use crate::weights::WeightPlan;
use device::{
    Arithmetic, Device, FusedKind, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence, Result,
    Weight,
};
use device_lower::arena::Arena;
use device_lower::lifetimes::arena_of;
use device_lower::passes::lower;
use device_lower::placed::LoweredPlan;
use device_lower::sampling::Chooser;
use device_lower::units::LoweredUnit;
use std::sync::Arc;

/// Prefix of the note in a memory plan that tells why no step of a plan runs in one launch.
pub(crate) const NOT_WHOLE: &str = "no tokens in one launch: ";

/// Prefix of the note in a memory plan if only one-row steps run in one launch.
pub(crate) const ONE_ROW_WHOLE: &str = "no steps of several rows in one launch: ";

/// Units and places of values, by plan.
type Parts = Vec<(Vec<LoweredUnit>, Arena)>;

/// One of NVIDIA's GPUs.
pub struct CudaDevice {
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    profile: Profile,
    /// The GPU's place in a group.
    rank: Option<Arc<Rank>>,
}

impl CudaDevice {
    /// The GPU with this index.
    ///
    /// # Errors
    /// There is no driver, no such GPU, or neither kernels for it nor a compiler.
    pub fn new(index: usize) -> Result<CudaDevice> {
        let context = Context::new(index)?;
        let profile = Profile::new(context.facts());
        let kernels = Arc::new(Kernels::new(context.clone()));
        Ok(CudaDevice::sharing(context, kernels, profile, None))
    }

    /// A device that shares `kernels` with other devices.
    pub(crate) fn sharing(
        context: Arc<Context>,
        kernels: Arc<Kernels>,
        profile: Profile,
        rank: Option<Arc<Rank>>,
    ) -> CudaDevice {
        // The compiler's library is loaded only where it may be needed.
        let other_shapes = profile.persistent && profile.other_shapes && kernels.can_compile();
        CudaDevice { context, kernels, profile: Profile { other_shapes, ..profile }, rank }
    }

    /// The GPU's place in a group.
    pub(crate) fn rank(&self) -> Option<&Arc<Rank>> {
        self.rank.as_ref()
    }

    /// This device with another profile. Both share compiled kernels.
    pub fn with_profile(&self, profile: Profile) -> CudaDevice {
        CudaDevice::sharing(self.context.clone(), self.kernels.clone(), profile, self.rank.clone())
    }

    /// The profile of this chip.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The GPU's context and stream.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The GPU's kernels.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The GPU's kernels, which programs keep alive.
    pub(crate) fn shared_kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    /// Compiles a program. It will adopt the pages of `before`, if one is given.
    pub(crate) fn compile_program(
        &self,
        plans: &[Plan],
        limits: &Limits,
        before: Option<&CudaMachine>,
    ) -> Result<CudaProgram> {
        let (parts, sizes) = self.sizes(plans, limits)?;
        let parts: Vec<LoweredPlan> = plans
            .iter()
            .zip(&parts)
            .map(|(plan, (units, arena))| LoweredPlan { plan, units, arena })
            .collect();
        let machine = CudaMachine::new(self, plans, &parts, limits, &sizes, before)?;
        Ok(CudaProgram::new(machine, plans, limits, sizes.step))
    }

    fn sizes(&self, plans: &[Plan], limits: &Limits) -> Result<(Parts, Sizes)> {
        limits.check(self, plans)?;
        let parts: Parts = plans
            .iter()
            .map(|plan| {
                let units = lower(plan, self.profile.passes);
                let arena = arena_of(plan, &units, limits, ALIGN);
                (units, arena)
            })
            .collect();
        let scratch =
            plans.iter().zip(&parts).map(|(plan, (units, _))| scratch_of(plan, units, limits, &self.profile));
        let sizes = Sizes {
            arena: parts.iter().map(|(_, arena)| arena.total).max().unwrap_or(0).max(ALIGN),
            step: StepLayout::new(plans, limits, self.profile.in_flight.max(1)),
            scratch: scratch.fold(Scratch::default(), Scratch::max),
            logits: plans.iter().map(|plan| logits_bytes(plan, limits)).max().unwrap_or(0),
            kept: plans.iter().map(|plan| kept_bytes(plan, limits)).max().unwrap_or(0),
        };
        Ok((parts, sizes))
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let facts = self.context.facts();
        let (major, minor) = facts.capability;
        format!("{}, compute capability {major}.{minor}, {} multiprocessors", facts.name, facts.n_processors)
    }

    /// One thread, since the GPU does the rest.
    fn n_threads(&self) -> usize {
        1
    }

    /// The GPU's memory. Memory of other processes is not free.
    fn memory(&self) -> platform::SystemMemory {
        let (free, total) = self.context.memory().unwrap_or((0, 0));
        platform::SystemMemory { total, free }
    }

    fn memory_source(&self) -> Option<Box<dyn platform::MemorySource>> {
        Some(Box::new(Source(self.context.clone())))
    }

    fn n_ranks(&self) -> usize {
        self.rank.as_ref().map_or(1, |rank| rank.n)
    }

    fn fusion(&self) -> &[FusedKind] {
        self.profile.rules
    }

    fn prompt_chunk(&self) -> usize {
        self.profile.prompt_chunk
    }

    fn kv_types(&self) -> &[KvType] {
        profile::KV_TYPES
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let (parts, sizes) = self.sizes(plans, limits)?;
        let units = plans.iter().zip(&parts).map(|(plan, (units, _))| (plan, &units[..]));
        let packs = PackPlan::new(units.clone(), limits, &self.profile);
        let (persistent, third) = persistent_of(units, limits, &self.profile, packs.total());
        let weights = WeightPlan::new(plans)?;
        let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, |_| false);
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let step_bytes = sizes.step.total()
            + sizes.step.buffer_bytes(self.profile.chained_steps)
            + 2 * sizes.step.chosen_bytes();
        for (what, bytes) in [
            ("weights on the GPU", weights.total()),
            ("weights again, for tensor cores", packs.total()),
            ("weights again, for tokens in one launch", third.total()),
            ("activations", sizes.arena - sizes.logits.min(sizes.arena)),
            ("logits", sizes.logits),
            ("results, in pinned memory", sizes.logits + sizes.kept),
            ("steps", step_bytes),
            ("masks of tokens, in pinned memory", sizes.step.mask_bytes()),
            ("scratch", sizes.scratch.total()),
            ("choice of tokens by the host", Chooser::bytes(n_logits) as usize),
        ] {
            if bytes > 0 {
                let (what, bytes) = (what.to_owned(), bytes as u64);
                memory.items.push(Item { what, bytes, residence: Residence::Committed });
            }
        }
        let may_have_several = self.profile.persistent_rows > 1 && limits.max_outputs > 1;
        for found in persistent.iter().filter(|_| self.profile.persistent) {
            let note = match found.as_ref().map(|found| &found.several) {
                Err(reason) => format!("{NOT_WHOLE}{reason}"),
                Ok(Err(reason)) if may_have_several => format!("{ONE_ROW_WHOLE}{reason}"),
                Ok(_) => continue,
            };
            if !memory.notes.contains(&note) {
                memory.notes.push(note);
            }
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.compile_program(plans, limits, None)?))
    }

    /// With few rows, quantised weights are multiplied by activations in 8 bits.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        match crate::stored::Stored::new(weight.block, weight.n_cols()).kind.is_float() {
            true => Arithmetic::F32,
            false => Arithmetic::Int8,
        }
    }

    fn peaks(&self) -> Peaks {
        crate::peaks::measure(self)
    }
}

/// The GPU's memory as its driver reports it. Memory of other processes is not free.
struct Source(Arc<Context>);

impl platform::MemorySource for Source {
    fn name(&self) -> String {
        format!("cuda, {}", self.0.facts().name)
    }

    fn read(&mut self) -> platform::Reading {
        // A lost GPU reports no memory.
        let (free, total) = self.0.memory().unwrap_or((0, 0));
        platform::Reading { total, free, bound: platform::Bound::Device, ..platform::Reading::default() }
    }
}
