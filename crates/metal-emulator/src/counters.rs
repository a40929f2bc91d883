//! Counters of a dispatch.

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

impl Counters {
    /// Bytes of distinct 32-byte sectors read from and written to buffers, without by-value
    /// arguments.
    pub fn device_bytes(&self) -> (u64, u64) {
        let buffers = self.buffers.iter().filter(|b| !b.by_value).chain(&self.resources);
        buffers.fold((0, 0), |(r, w), b| (r + b.read_once, w + b.written_once))
    }
}
