//! Choices that differ between chips: fusion rules, passes, thresholds. This file holds data only.

use crate::driver::Facts;
use crate::products::{Products, WGMMA_SHARED};
use device::{FusedKind, KvType};
use device_lower::fusion;
use device_lower::passes::{self, Pass};
use device_lower::table::RowClass;

/// Supported KV types, the default first.
pub const KV_TYPES: &[KvType] = &[KvType::F16, KvType::Q8_0, KvType::Fp8, KvType::F32];

/// Maximum number of positions by which the longest sequence may exceed the mean, in a step of
/// several rows that runs in one launch. The persistent kernel assigns the same number of blocks to
/// each row, while separate launches share blocks by positions.
const MOST_UNEVEN: usize = 16_384;

/// Maximum number of rows of a step that runs in one launch.
const PERSISTENT_ROWS: usize = 8;

/// Maximum number of steps that one launch computes.
const CHAINED_STEPS: usize = 4;

/// Maximum number of bytes of weights that a launch of several steps reads, about 1.5 ms. For
/// larger models the time between launches matters little.
const CHAINED_BYTES: u64 = 4 << 30;

/// Passes whose units have CUDA kernels.
const PASSES: &[Pass] =
    &[passes::LINEARS, passes::QUERIES, passes::EXPERT_PRODUCTS, passes::FACTORS, passes::INNER_NORMS];

/// The choices for a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Fusion rules.
    pub rules: &'static [FusedKind],
    /// Passes from fused nodes to units, in order.
    pub passes: &'static [Pass],
    /// Number of multiprocessors.
    pub n_processors: usize,
    /// The family of kernels that multiply several rows.
    pub products: Products,
    /// Smallest class of rows that uses packed weights.
    pub packed_rows: RowClass,
    /// The only tile of packed products, in tests; `None`: each launch uses the fastest.
    pub only_tile: Option<usize>,
    /// Maximum number of bytes of packed weights, in addition to the planes. A model that needs
    /// more has none.
    pub most_packed: u64,
    /// Number of warps that keep the chip busy. A one-row product uses at least that many, if it
    /// has enough output columns.
    pub n_warps: usize,
    /// Number of attention blocks that keep the chip busy. It allows for blocks of short rows,
    /// which end at once.
    pub n_blocks: usize,
    /// Number of positions from which a sequence is long, so that blocks share its positions.
    pub long: usize,
    /// Fewest positions of a split.
    pub split_len: usize,
    /// Maximum number of blocks that share a row's positions.
    pub most_splits: usize,
    /// Maximum number of rows of a step whose positions are split.
    pub most_split_rows: usize,
    /// True if a one-row step runs in one launch of a persistent kernel, if the plan allows it
    /// (`persistent.rs`).
    pub persistent: bool,
    /// Maximum number of rows of a step that runs in one launch; 0 or 1: no step of several rows
    /// does.
    pub persistent_rows: usize,
    /// Maximum number of positions by which the longest sequence of such a step may exceed the
    /// mean.
    pub most_uneven: usize,
    /// True if NVRTC, where it is installed, compiles persistent kernels for a model's own table
    /// (`persistent/fixed.rs`).
    pub fixed_tables: bool,
    /// True if persistent kernels also run head shapes without a kernel file. NVRTC, which must be
    /// installed, compiles their kernels.
    pub other_shapes: bool,
    /// Maximum number of chained steps of one launch: one-row steps, each of which reads the token
    /// that the previous one chose.
    pub chained_steps: usize,
    /// Maximum number of bytes of weights that a launch of several steps reads.
    pub chained_bytes: u64,
    /// Maximum number of bytes of packed weights that a token reads in a persistent kernel. With
    /// more bytes, a launch for each unit was measured to be faster.
    pub most_persistent: u64,
    /// Like [`Self::most_persistent`], for plans with F16 or BF16 matrices.
    pub most_halves: u64,
    /// Maximum number of bytes of packed weights of all kinds, with those of the persistent kernel.
    /// If they exceed it, the persistent kernel is not used.
    pub most_copies: u64,
    /// Maximum number of bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Maximum number of bytes of shared memory of tiled attention; 0: the chip has no tiled
    /// attention.
    pub flash_bytes: u32,
    /// Prompt rows of a step, if nothing else limits them.
    pub prompt_chunk: usize,
    /// Maximum number of steps in flight.
    pub in_flight: usize,
    /// Number of steps worth having in flight, if they are not chained.
    pub steps_ahead: usize,
    /// Maximum number of graphs to keep.
    pub n_graphs: usize,
}

impl Profile {
    /// The profile of a GPU.
    pub fn new(facts: &Facts) -> Profile {
        let products = match facts.capability {
            (9, 0) if facts.shared_bytes >= WGMMA_SHARED => Products::Wgmma,
            (8.., _) => Products::Mma,
            _ => Products::Planes,
        };
        Profile {
            rules: fusion::ALL,
            passes: PASSES,
            n_processors: facts.n_processors,
            products,
            packed_rows: RowClass::Two,
            only_tile: None,
            most_packed: facts.memory / 3,
            n_warps: 8 * facts.n_processors,
            n_blocks: 8 * facts.n_processors,
            long: 256,
            split_len: 128,
            most_splits: 32,
            most_split_rows: 32,
            persistent: products == Products::Wgmma,
            persistent_rows: PERSISTENT_ROWS,
            most_uneven: MOST_UNEVEN,
            fixed_tables: true,
            other_shapes: true,
            chained_steps: CHAINED_STEPS,
            chained_bytes: CHAINED_BYTES,
            most_persistent: 16 << 30,
            most_halves: 8 << 30,
            most_copies: facts.memory / 2,
            shared_bytes: facts.shared_bytes,
            flash_bytes: if facts.capability >= (8, 0) { facts.shared_bytes } else { 0 },
            // Chunks of fewer rows do not keep all multiprocessors busy.
            prompt_chunk: if products == Products::Wgmma { 2048 } else { 512 },
            // The next launch is queued while one runs.
            in_flight: 2 * CHAINED_STEPS,
            steps_ahead: 4,
            n_graphs: 64,
        }
    }
}

#[cfg(test)]
impl Profile {
    /// The profile of an H100, for tests without a GPU.
    pub(crate) fn hopper() -> Profile {
        Profile::new(&Facts {
            name: "test".to_owned(),
            capability: (9, 0),
            n_processors: 132,
            driver: 13000,
            shared_bytes: WGMMA_SHARED,
            memory: 80 << 30,
        })
    }
}
