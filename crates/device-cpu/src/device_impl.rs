//! [`CpuDevice`]: the CPU as a [`Device`].

use crate::background;
use crate::isa::Isa;
use crate::kernels::linear::{ActivationKind, linear_kernel};
use crate::layout::{IN_FLIGHT, LaidOut};
use crate::pool::Pool;
use crate::program::CpuProgram;
use crate::tables::Kept;
use crate::weights::ToInterleave;
use crate::{NAME, cpu, peaks, profile};
use device::key_bias::KnownKeys;
use device::{
    Arithmetic, Device, Error, FusedKind, Item, KvType, Limits, MemoryPlan, Peaks, Plan, Program, Residence,
    Result, Weight,
};
use device_lower::hosted::Hosted;
use std::sync::Arc;
use std::time::Duration;

/// Options of the CPU device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Worker threads, including the calling thread; `None` for [`cpu::default_threads`].
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best available one.
    pub isa: Option<Isa>,
}

/// Rows of a background step. They share one read of the weights, whose cost is small beside the
/// rows' own with even a quarter as many.
const BACKGROUND_ROWS: usize = 64;

/// Largest number of worker threads.
const MAX_THREADS: usize = 1024;

/// The CPU. All programs of a device share its workers, one job at a time.
pub struct CpuDevice {
    isa: Isa,
    pool: Arc<Pool>,
}

impl CpuDevice {
    /// Starts the workers.
    ///
    /// # Errors
    /// The processor lacks the instruction set, the number of threads is out of range, or the
    /// system cannot start them.
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

    /// Keeps workers awake for `time` after a job, which helps if another device computes between a
    /// step's parts. Waking them costs about 50 microseconds. No effect if there are more workers
    /// than processors.
    pub fn staying_awake(self, time: Duration) -> CpuDevice {
        self.pool.stay_awake(time);
        self
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn laid_out<'a>(&self, plans: &'a [Plan], limits: &Limits) -> Result<LaidOut<'a>> {
        limits.check(self, plans)?;
        Ok(LaidOut::new(plans, limits, self.isa, self.pool.n_workers()))
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

    fn fusion(&self) -> &[FusedKind] {
        profile::RULES
    }

    fn page_len(&self) -> usize {
        // With this length a block's keys and values are one contiguous stream for the hardware
        // prefetcher. (Measured: kernels/attention/NOTES.md.)
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
        let mut memory = self.laid_out(plans, limits)?.shared.memory_plan(plans, limits, &interleaved);
        if let Some(limits) = background::limits(limits) {
            let shared = LaidOut::new(plans, &limits, self.isa, self.pool.n_workers()).shared;
            let (what, bytes) = ("steps in the background".to_owned(), shared.bytes(&limits) as u64);
            memory.items.push(Item { what, bytes, residence: Residence::Committed });
        }
        Ok(memory)
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        let laid_out = self.laid_out(plans, limits)?;
        let weights = ToInterleave::new(plans, self.isa).make(&self.pool)?;
        let kept = Kept::new(&laid_out, limits, KnownKeys::of_layers(plans, limits), weights)?;
        let program = CpuProgram::new(plans, &laid_out, limits, kept, self.isa, self.pool.clone())?;
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, IN_FLIGHT, self.pool.n_workers())))
    }

    /// Arithmetic of the kernel, which follows from the form of its activations.
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
