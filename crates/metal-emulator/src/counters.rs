//! Counters of a dispatch.

use std::time::Duration;

/// Counters of a dispatch. Threads, barriers and simdgroup instructions are always counted; bytes
/// only by libraries compiled with [`crate::Options::counting`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Threadgroups run.
    pub threadgroups: u64,
    /// Threads run.
    pub threads: u64,
    /// Threadgroup barriers, counted once per threadgroup.
    pub threadgroup_barriers: u64,
    /// Simdgroup instructions, counted once per simdgroup.
    pub simdgroup: SimdgroupInstructions,
    /// Bytes read from threadgroup memory.
    pub threadgroup_read: u64,
    /// Bytes written to threadgroup memory.
    pub threadgroup_written: u64,
    /// Loads and stores of all threads, and their simdgroup instructions and barriers. 0 under a
    /// sanitizer.
    pub steps: u64,
    /// Traffic of each bound buffer and by-value argument, in the order of the dispatch, buffers
    /// first. Empty without counting.
    pub buffers: Vec<BufferTraffic>,
    /// Traffic of each buffer that was reached through addresses, in the order of
    /// [`crate::Dispatch::resources`]; the index is the position there. Empty without counting.
    pub resources: Vec<BufferTraffic>,
}

/// Simdgroup instructions by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimdgroupInstructions {
    /// Shuffles and broadcasts.
    pub shuffles: u64,
    /// Reductions and prefix sums.
    pub reductions: u64,
    /// Votes: any, all, ballot, first.
    pub votes: u64,
    /// 8x8x8 matrix multiply-accumulates.
    pub matrix_multiplies: u64,
    /// Simdgroup barriers.
    pub barriers: u64,
    /// Products of tensors, of any size.
    pub tensor_products: u64,
}

/// Traffic of device memory through one binding, or of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferTraffic {
    /// `[[buffer(index)]]`, or the position among the resources.
    pub index: u32,
    /// True if it was passed by value.
    pub by_value: bool,
    /// Bytes loaded, with repetition.
    pub read: u64,
    /// Bytes stored, with repetition.
    pub written: u64,
    /// Bytes of the 32-byte sectors that were read at least once: the memory traffic with a perfect
    /// cache.
    pub read_once: u64,
    /// Bytes of the 32-byte sectors that were written at least once.
    pub written_once: u64,
}

/// Threads that the slowest GPU runs at once: an M1 with 8 cores.
const RESIDENT_THREADS: u64 = 8 * 1024;
/// Seconds between two steps of a thread when all these threads run, which access their caches 164
/// billion times in a second. A thread alone is no faster.
const STEP: f64 = 50e-9;
/// 8x8x8 matrix products of that GPU in a second.
const MATRIX_MULTIPLIES: f64 = 2e9;
/// Bytes of memory of that GPU in a second.
const BYTES: f64 = 68e9;

/// Seconds of the slowest GPU for each step of a grid of this many threads.
pub(crate) fn seconds_of_step(threads: u64) -> f64 {
    STEP / threads.clamp(1, RESIDENT_THREADS) as f64
}

/// Steps of such a grid in that time.
pub(crate) fn most_steps(time: Duration, threads: u64) -> u64 {
    (time.as_secs_f64() / seconds_of_step(threads)) as u64
}

impl Counters {
    /// A lower bound on the time of this dispatch on the slowest GPU, in seconds, from the work
    /// that was counted: steps, matrix products, and bytes if they were counted. It serves to find
    /// work that a watchdog would end, not to predict speed.
    pub fn seconds(&self) -> f64 {
        let steps = self.steps as f64 * seconds_of_step(self.threads);
        let (read, written) = self.device_bytes();
        let matrices = self.simdgroup.matrix_multiplies as f64 / MATRIX_MULTIPLIES;
        steps.max(matrices).max((read + written) as f64 / BYTES)
    }

    /// Bytes of distinct 32-byte sectors read from and written to buffers, without by-value
    /// arguments.
    pub fn device_bytes(&self) -> (u64, u64) {
        let buffers = self.buffers.iter().filter(|b| !b.by_value).chain(&self.resources);
        buffers.fold((0, 0), |(r, w), b| (r + b.read_once, w + b.written_once))
    }
}
