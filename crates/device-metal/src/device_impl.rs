//! [`MetalDevice`]: a GPU behind the seam as a [`Device`].

use crate::gpu::Gpu;
use crate::layout::{ALIGN, Scratch, StepLayout};
use crate::peaks;
use crate::profile::{self, Profile};
use crate::program::MetalProgram;
use crate::weights::{LookupTables, WeightPlan};
use device::key_bias;
use device::{
    Arithmetic, Device, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence, Result, Rule,
    Weight,
};
use device_lower::arena::Arena;
use device_lower::lifetimes::{arena_of, value_bytes};
use device_lower::passes::lower;
use device_lower::placed::LoweredPlan;
use device_lower::sampling::Chooser;
use device_lower::units::LoweredUnit;
use std::sync::Arc;

/// A GPU, Apple's or an emulated one.
pub struct MetalDevice<G: Gpu> {
    gpu: Arc<G>,
    profile: Profile,
}

/// The sizes of everything that a program takes.
struct ProgramSizes {
    parts: Vec<(Vec<LoweredUnit>, Arena)>,
    arena_bytes: usize,
    logits_bytes: usize,
    step: StepLayout,
    scratch: Scratch,
    tables: LookupTables,
}

impl<G: Gpu> MetalDevice<G> {
    /// With the profile of the chip.
    pub fn new(gpu: G) -> MetalDevice<G> {
        let profile = Profile::new(gpu.facts());
        MetalDevice::with_profile(gpu, profile)
    }

    /// With another profile, for tests and predictions.
    pub fn with_profile(gpu: G, profile: Profile) -> MetalDevice<G> {
        MetalDevice { gpu: Arc::new(gpu), profile }
    }

    /// The same GPU, whose sequences are split over threadgroups after so many positions: to test
    /// without long ones.
    pub fn splitting(&self, split_positions: usize) -> MetalDevice<G> {
        MetalDevice { gpu: self.gpu.clone(), profile: Profile { split_positions, ..self.profile.clone() } }
    }

    /// With another profile, on a GPU that others have too.
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
                hint: "they came with the M5 and macOS 26; leave --tensors out".to_owned(),
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
        let scratch = plans.iter().zip(&parts).map(|(plan, (units, _))| Scratch::new(plan, units, limits));
        Ok(ProgramSizes {
            arena_bytes: parts.iter().map(|(_, arena)| arena.total).max().unwrap_or(0).max(ALIGN),
            logits_bytes: plans.iter().map(logits).max().unwrap_or(0),
            step: StepLayout::new(plans, limits, self.profile.in_flight.max(1)),
            scratch: scratch.fold(Scratch::default(), Scratch::max),
            tables: LookupTables::new(plans, limits),
            parts,
        })
    }
}

impl<G: Gpu> MetalDevice<G> {
    /// As [`Device::compile`].
    pub(crate) fn compile_program(&self, plans: &[Plan], limits: &Limits) -> Result<MetalProgram<G>> {
        let sizes = self.sizes(plans, limits)?;
        let parts: Vec<LoweredPlan> = plans
            .iter()
            .zip(&sizes.parts)
            .map(|(plan, (units, arena))| LoweredPlan { plan, units, arena })
            .collect();
        let program = MetalProgram::new(
            self.gpu.clone(),
            &self.profile,
            plans,
            &parts,
            limits,
            sizes.step,
            sizes.scratch,
            &sizes.tables,
            sizes.arena_bytes,
        )?;
        Ok(program)
    }
}

impl<G: Gpu> Device for MetalDevice<G> {
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

    /// One: the rest is the GPU's.
    fn n_threads(&self) -> usize {
        1
    }

    fn memory(&self) -> platform::SystemMemory {
        self.gpu.memory()
    }

    fn fusion(&self) -> &[Rule] {
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
            ("activations", sizes.arena_bytes - sizes.logits_bytes),
            ("logits", sizes.logits_bytes),
            ("steps", sizes.step.total() + sizes.step.chosen_bytes()),
            ("scratch", sizes.scratch.total()),
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

    /// Sums and activations are f32 whatever the type.
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
