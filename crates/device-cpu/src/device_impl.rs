//! [`CpuDevice`]: the CPU as a [`Device`].

use crate::isa::Isa;
use crate::kernels::linear::{ActivationKind, linear_kernel};
use crate::layout::{Layout, Shared};
use crate::lower::lower;
use crate::pool::Pool;
use crate::program::{CpuProgram, IN_FLIGHT, LoweredPlan};
use crate::weights::ToInterleave;
use crate::{NAME, cpu, peaks, profile};
use device::key_bias::{self, KnownKeys};
use device::{
    Arithmetic, Device, Error, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Result, Rule, Weight,
};
use device_lower::hosted::Hosted;
use std::sync::Arc;

/// How to use the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Worker threads, the calling thread included; `None`: [`cpu::default_threads`].
    pub threads: Option<usize>,
    /// Instruction set; `None`: the best there is.
    pub isa: Option<Isa>,
}

/// Most worker threads.
const MAX_THREADS: usize = 1024;

/// The CPU. Programs of one device share its workers and take turns.
pub struct CpuDevice {
    isa: Isa,
    pool: Arc<Pool>,
}

impl CpuDevice {
    /// Start the workers.
    ///
    /// # Errors
    /// The processor lacks the instruction set, the number of threads is impossible, or the system refuses them.
    pub fn new(options: Options) -> Result<CpuDevice> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
            return Err(Error::Unsupported {
                device: NAME,
                what: format!("instruction set {isa}"),
                hint: format!("this processor has {}", names.join(", ")),
            });
        }
        let n = options.threads.unwrap_or_else(cpu::default_threads);
        if n == 0 || n > MAX_THREADS {
            return Err(Error::Unsupported {
                device: NAME,
                what: format!("{n} threads"),
                hint: format!("use 1 to {MAX_THREADS}"),
            });
        }
        let pool = Pool::new(n, &cpu::pinning(n), n > cpu::available())
            .map_err(|e| Error::Failed { device: NAME, reason: format!("{n} threads: {e}") })?;
        Ok(CpuDevice { isa, pool: Arc::new(pool) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn layouts<'a>(&self, plans: &'a [Plan], limits: &Limits) -> Result<(Vec<LoweredPlan<'a>>, Shared)> {
        limits.check(self, plans)?;
        let n_terms = key_bias::n_terms(plans, limits);
        let lowered: Vec<_> = plans.iter().map(|plan| self.lower(plan, limits, &n_terms)).collect();
        let layouts: Vec<Layout> = lowered.iter().map(|plan| plan.layout.clone()).collect();
        Ok((lowered, Shared::new(&layouts, limits, self.pool.n_workers())))
    }

    fn lower<'a>(&self, plan: &'a Plan, limits: &Limits, n_terms: &[usize]) -> LoweredPlan<'a> {
        let units = lower(plan);
        let layout = Layout::new(plan, &units, limits, n_terms, self.isa, self.pool.n_workers());
        LoweredPlan { plan, units, layout }
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        cpu::describe(self.isa, self.n_threads())
    }

    fn n_threads(&self) -> usize {
        self.pool.n_workers()
    }

    fn memory(&self) -> platform::SystemMemory {
        platform::system_memory()
    }

    fn fusion(&self) -> &[Rule] {
        profile::RULES
    }

    fn page_len(&self) -> usize {
        // A block's keys and values are then one stream, which the processor follows by itself (kernels/attention/NOTES.md).
        device::kv_words::MAX_POSITIONS
    }

    fn kv_types(&self) -> &[KvType] {
        profile::KV_TYPES
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let interleaved = ToInterleave::new(plans, self.isa);
        Ok(self.layouts(plans, limits)?.1.memory_plan(plans, limits, &interleaved))
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let (lowered, shared) = self.layouts(plans, limits)?;
        let weights = ToInterleave::new(plans, self.isa).make(&self.pool)?;
        let known = KnownKeys::of_layers(plans, limits);
        let program =
            CpuProgram::new(&lowered, &shared, limits, known, self.isa, self.pool.clone(), weights)?;
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, IN_FLIGHT, shared.n_workers)))
    }

    /// As the kernel of its type takes activations.
    fn arithmetic(&self, weight: &Weight) -> Arithmetic {
        match linear_kernel(weight.block, weight.n_cols(), self.isa).activation {
            ActivationKind::Q8 => Arithmetic::Int8,
            ActivationKind::Bf16 => Arithmetic::Bf16,
            ActivationKind::F32 => Arithmetic::F32,
        }
    }

    fn peaks(&self) -> Peaks {
        peaks::measure(&self.pool, self.isa)
    }
}
