//! [`MetalDevice`]: a GPU behind the seam as a [`Device`].

use crate::gpu::Gpu;
use crate::layout::{ALIGN, Scratch, StepLayout, arena_of};
use crate::lower::{Lowered, lower};
use crate::peaks;
use crate::profile::{self, Profile};
use crate::program::{MetalProgram, Part};
use crate::weights::{Tables, WeightPlan};
use device::arena::Arena;
use device::{
    Arithmetic, Device, Item, KvType, Limits, Memory, MemoryPlan, Peaks, Plan, Program, Residence, Result,
    Rule, Weight,
};
use std::sync::Arc;

/// A GPU, Apple's or an emulated one.
pub struct MetalDevice<G: Gpu> {
    gpu: Arc<G>,
    profile: Profile,
}

/// The sizes of everything that a program takes.
struct Sizes {
    parts: Vec<(Vec<Lowered>, Arena)>,
    arena_bytes: usize,
    logits_bytes: usize,
    step: StepLayout,
    scratch: Scratch,
    tables: Tables,
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

    /// The same GPU, whose sequences are split over threadgroups after so many positions: to test without long ones.
    pub fn splitting(&self, split_positions: usize) -> MetalDevice<G> {
        MetalDevice { gpu: self.gpu.clone(), profile: Profile { split_positions, ..self.profile.clone() } }
    }

    /// The GPU.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// The choices made for this chip.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn sizes(&self, plans: &[Plan], limits: &Limits) -> Result<Sizes> {
        limits.check(self, plans)?;
        let parts: Vec<(Vec<Lowered>, Arena)> = plans
            .iter()
            .map(|plan| {
                let lowered = lower(plan);
                let arena = arena_of(plan, &lowered, limits);
                (lowered, arena)
            })
            .collect();
        let logits = |plan: &Plan| crate::layout::value_bytes(plan.value(plan.logits), limits);
        let scratch =
            plans.iter().zip(&parts).map(|(plan, (lowered, _))| Scratch::new(plan, lowered, limits));
        Ok(Sizes {
            arena_bytes: parts.iter().map(|(_, arena)| arena.total).max().unwrap_or(0).max(ALIGN),
            logits_bytes: plans.iter().map(logits).max().unwrap_or(0),
            step: StepLayout::new(plans, limits),
            scratch: scratch.fold(Scratch::default(), Scratch::max),
            tables: Tables::new(plans),
            parts,
        })
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

    fn memory(&self) -> Memory {
        self.gpu.memory()
    }

    fn fusion(&self) -> &[Rule] {
        self.profile.rules
    }

    fn kv_types(&self) -> &[KvType] {
        profile::KV_TYPES
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let sizes = self.sizes(plans, limits)?;
        let weights = WeightPlan::new(plans, self.gpu.as_ref());
        let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, |view| weights.is_in_place(view));
        // What a GPU uses stays in memory as a whole.
        for item in memory.items.iter_mut().filter(|item| item.residence == Residence::Reserved) {
            item.residence = Residence::Committed;
        }
        for (what, bytes) in [
            ("weights, copied", weights.copied_bytes()),
            ("activations", sizes.arena_bytes - sizes.logits_bytes),
            ("logits", sizes.logits_bytes),
            ("steps", sizes.step.total),
            ("scratch", sizes.scratch.total()),
            ("tables", sizes.tables.n_bytes()),
        ] {
            if bytes > 0 {
                let (what, bytes) = (what.to_owned(), bytes as u64);
                memory.items.push(Item { what, bytes, residence: Residence::Committed });
            }
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let sizes = self.sizes(plans, limits)?;
        let parts: Vec<Part> = plans
            .iter()
            .zip(&sizes.parts)
            .map(|(plan, (lowered, arena))| Part { plan, lowered, arena })
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
        Ok(Box::new(program))
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
