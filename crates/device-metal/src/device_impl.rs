//! [`MetalDevice`]: a [`Device`] for any [`MetalGpu`].

use crate::compile::{Compiler, Pipelines};
use crate::gpu::MetalGpu;
use crate::layout::{Scratch, scratch_of};
use crate::peaks;
use crate::profile::{self, Profile};
use crate::weights::{LookupTables, WeightPlan};
use device::key_bias;
use device::{
    Arithmetic, Device, FusedKind, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence, Result,
    Weight,
};
use device_gpu::compiled::CompiledPlan;
use device_gpu::layout::{ALIGN, StepLayout};
use device_gpu::program::GpuProgram;
use device_gpu::replayer::{self, ClassTable, Replayer, Sizes, TABLES};
use device_lower::arena::Arena;
use device_lower::lifetimes::{arena_of, value_bytes};
use device_lower::passes::lower;
use device_lower::placed::LoweredPlan;
use device_lower::sampling::Chooser;
use device_lower::units::LoweredUnit;
use std::sync::Arc;

/// A GPU, Apple's or an emulated one.
pub struct MetalDevice<G: MetalGpu> {
    gpu: Arc<G>,
    profile: Profile,
}

/// Lowered plans, and the sizes of the memory that a program of them allocates.
struct ProgramSizes {
    parts: Vec<(Vec<LoweredUnit>, Arena)>,
    logits_bytes: usize,
    buffers: Sizes,
    scratch: Scratch,
    tables: LookupTables,
}

/// Compiled plans on a GPU of this crate.
pub(crate) type MetalProgram<G> = GpuProgram<Replayer<G>>;

impl<G: MetalGpu> MetalDevice<G> {
    /// A device with the profile of the chip.
    pub fn new(gpu: G) -> MetalDevice<G> {
        let profile = Profile::new(gpu.facts());
        MetalDevice::with_profile(gpu, profile)
    }

    /// A device with another profile, for tests and predictions.
    pub fn with_profile(gpu: G, profile: Profile) -> MetalDevice<G> {
        MetalDevice { gpu: Arc::new(gpu), profile }
    }

    /// A device for the same GPU that splits sequences after `split_positions` positions, for tests
    /// without long ones.
    pub fn splitting(&self, split_positions: usize) -> MetalDevice<G> {
        MetalDevice { gpu: self.gpu.clone(), profile: Profile { split_positions, ..self.profile.clone() } }
    }

    /// A device with another profile, on a GPU that other devices share.
    pub fn sharing(gpu: Arc<G>, profile: Profile) -> MetalDevice<G> {
        MetalDevice { gpu, profile }
    }

    /// The GPU, to be shared.
    pub fn shared_gpu(&self) -> &Arc<G> {
        &self.gpu
    }

    /// The GPU.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// The choices made for this chip.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn sizes(&self, plans: &[Plan], limits: &Limits) -> Result<ProgramSizes> {
        limits.check(self, plans)?;
        if self.profile.tensor && !self.gpu.facts().has_tensors {
            return Err(device::Error::Unsupported {
                device: self.name(),
                what: "products on tensor units, which its shaders are not compiled for".to_owned(),
                hint: "they came with the M5 and macOS 26.2; leave --tensors out".to_owned(),
            });
        }
        let parts: Vec<(Vec<LoweredUnit>, Arena)> = plans
            .iter()
            .map(|plan| {
                let units = lower(plan, self.profile.passes);
                let arena = arena_of(plan, &units, limits, ALIGN);
                (units, arena)
            })
            .collect();
        let logits = |plan: &Plan| value_bytes(plan.value(plan.output), limits);
        let scratch = plans.iter().zip(&parts).map(|(plan, (units, _))| scratch_of(plan, units, limits));
        let scratch = scratch.fold(Scratch::default(), Scratch::max);
        let tables = LookupTables::new(plans, limits);
        let header = size_of::<device_gpu::arguments::Step>();
        let buffers = Sizes {
            arena: parts.iter().map(|(_, arena)| arena.total).max().unwrap_or(0).max(ALIGN),
            step: StepLayout::with_addresses(plans, limits, self.profile.in_flight.max(1), header),
            scratch: scratch.total(),
            tables: tables.n_bytes(),
        };
        let logits_bytes = plans.iter().map(logits).max().unwrap_or(0);
        Ok(ProgramSizes { parts, logits_bytes, buffers, scratch, tables })
    }

    /// Allocates the memory and writes the tables, as [`Device::compile`].
    pub(crate) fn compile_program(&self, plans: &[Plan], limits: &Limits) -> Result<MetalProgram<G>> {
        let sizes = self.sizes(plans, limits)?;
        let (gpu, profile, step) = (self.gpu.as_ref(), &self.profile, sizes.buffers.step);
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let mut buffers = replayer::allocate(gpu, &kv, limits, &sizes.buffers)?;
        let weights = WeightPlan::new(plans, gpu).make(gpu, &mut buffers)?;
        let entries = sizes.tables.entries(plans, &weights);
        device_gpu::gpu::write(&buffers[usize::from(TABLES)], 0, &entries);
        let (mut compiled, mut pipelines) = (Vec::with_capacity(plans.len()), Pipelines::default());
        for (index, (plan, (units, arena))) in plans.iter().zip(&sizes.parts).enumerate() {
            let compiler = Compiler {
                gpu,
                profile,
                index,
                plan,
                units,
                arena,
                limits,
                step,
                scratch: sizes.scratch,
                weights: &weights,
                tables: &sizes.tables,
            };
            let table =
                |tokens, outputs| Ok(ClassTable::new(compiler.table(tokens, outputs, &mut pipelines)?));
            compiled.push(CompiledPlan::new(&LoweredPlan { plan, units, arena }, limits, table)?);
        }
        let device = MetalDevice::sharing(self.gpu.clone(), profile.clone());
        let again = Arc::new(move |plans: &[Plan], limits: &Limits| device.compile_program(plans, limits));
        let layout = (step, profile.split_positions);
        let kernels = pipelines.into_list();
        let machine =
            Replayer::new(self.gpu.clone(), plans, limits, compiled, kernels, buffers, layout, again)?;
        Ok(GpuProgram::new(machine, plans, limits, step))
    }
}

impl<G: MetalGpu> Device for MetalDevice<G> {
    fn name(&self) -> &'static str {
        G::NAME
    }

    fn describe(&self) -> String {
        let facts = self.gpu.facts();
        match facts.n_cores {
            0 => facts.name.clone(),
            n => format!("{}, {n} GPU cores", facts.name),
        }
    }

    /// One thread, since the GPU does the rest.
    fn n_threads(&self) -> usize {
        1
    }

    fn memory(&self) -> platform::SystemMemory {
        self.gpu.memory()
    }

    fn fusion(&self) -> &[FusedKind] {
        self.profile.rules
    }

    fn kv_types(&self) -> &[KvType] {
        profile::KV_TYPES
    }

    fn prompt_chunk(&self) -> usize {
        self.profile.prompt_chunk
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let sizes = self.sizes(plans, limits)?;
        let weights = WeightPlan::new(plans, self.gpu.as_ref());
        let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, |view| weights.is_in_place(view));
        let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        for (what, bytes) in [
            ("weights, copied", weights.copied_bytes()),
            ("activations", sizes.buffers.arena - sizes.logits_bytes),
            ("logits", sizes.logits_bytes),
            ("steps", sizes.buffers.step.total() + sizes.buffers.step.chosen_bytes()),
            ("masks of tokens", sizes.buffers.step.mask_bytes()),
            ("scratch", sizes.buffers.scratch),
            ("choice of tokens by the host", Chooser::bytes(n_logits) as usize),
            // The biases of keys are an item by themselves.
            ("tables", sizes.tables.n_bytes().saturating_sub(key_bias::n_bytes(plans, limits) as usize)),
        ] {
            if bytes > 0 {
                let (what, bytes) = (what.to_owned(), bytes as u64);
                memory.items.push(Item { what, bytes, residence: Residence::Committed });
            }
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.compile_program(plans, limits)?))
    }

    /// Sums and activations are f32 for every type.
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }

    /// Zeros where the GPU fails.
    fn peaks(&self) -> Peaks {
        peaks::measure(self.gpu.as_ref()).unwrap_or(Peaks {
            read_bytes_per_second: 0.0,
            int8_ops_per_second: 0.0,
            bf16_ops_per_second: 0.0,
            f32_ops_per_second: 0.0,
        })
    }
}
