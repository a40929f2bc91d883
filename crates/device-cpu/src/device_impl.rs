//! [`CpuDevice`]: the CPU as a [`Device`].

use crate::background;
use crate::isa::Isa;
use crate::kernels::linear::{ActivationKind, linear_kernel};
use crate::pool::Pool;
use crate::program::{CpuProgram, IN_FLIGHT, Kept, Lowered};
use crate::weights::ToInterleave;
use crate::{NAME, cpu, peaks, profile};
use device::key_bias::KnownKeys;
use device::{
    Arithmetic, Device, Error, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence, Result,
    Rule, Weight,
};
use device_lower::hosted::Hosted;
use std::sync::Arc;
use std::time::Duration;

/// How to use the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Worker threads, the calling thread included; `None`: [`cpu::default_threads`].
    pub threads: Option<usize>,
    /// Instruction set; `None`: the best there is.
    pub isa: Option<Isa>,
}

/// Rows of a step in the background. Weights are read once for all of them, which even a quarter as many makes cheap beside what the
/// rows themselves cost.
const BACKGROUND_ROWS: usize = 64;

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

    /// The same with workers that stay awake so long after a job: for steps that come in parts, with work of another device between them.
    /// Waking them costs some 50 microseconds. (Unless there are more of them than processors, where they never wait so.)
    pub fn staying_awake(self, time: Duration) -> CpuDevice {
        self.pool.stay_awake(time);
        self
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn lowered<'a>(&self, plans: &'a [Plan], limits: &Limits) -> Result<Lowered<'a>> {
        limits.check(self, plans)?;
        Ok(Lowered::new(plans, limits, self.isa, self.pool.n_workers()))
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

    fn background_rows(&self) -> usize {
        BACKGROUND_ROWS
    }

    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        let interleaved = ToInterleave::new(plans, self.isa);
        let mut memory = self.lowered(plans, limits)?.shared.memory_plan(plans, limits, &interleaved);
        if let Some(limits) = background::limits(limits) {
            let shared = Lowered::new(plans, &limits, self.isa, self.pool.n_workers()).shared;
            let (what, bytes) = ("steps in the background".to_owned(), shared.bytes(&limits) as u64);
            memory.items.push(Item { what, bytes, residence: Residence::Committed });
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let lowered = self.lowered(plans, limits)?;
        let weights = ToInterleave::new(plans, self.isa).make(&self.pool)?;
        let kept = Kept::new(&lowered, limits, KnownKeys::of_layers(plans, limits), weights)?;
        let program = CpuProgram::new(plans, &lowered, limits, kept, self.isa, self.pool.clone())?;
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, IN_FLIGHT, self.pool.n_workers())))
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
