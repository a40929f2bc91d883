//! What differs between chips: rules of fusion, passes, thresholds. Data.

use crate::driver::Facts;
use crate::products::{Products, WGMMA_SHARED};
use device::{KvType, Rule};
use device_lower::fusion::{
    GATE_UP, LINEAR_ADD, NORM_ADD, NORM_GATE_UP, NORM_LINEAR, QK_NORM_ROPE_KV_ATTENTION,
    QK_NORM_ROPE_KV_WRITE,
};
use device_lower::passes::{self, Pass};
use device_lower::table::RowClass;

/// KV types, the default first.
pub const KV_TYPES: &[KvType] = &[KvType::F16, KvType::Q8_0, KvType::Fp8, KvType::F32];

/// By how many positions the longest sequence of a step of several rows in one launch may be longer
/// than their mean. Each row has as many of the kernel's blocks as any other, where a launch for
/// each unit shares them by positions.
const MOST_UNEVEN: usize = 16_384;

/// Rows of a step that runs in one launch, at most.
const PERSISTENT_ROWS: usize = 8;

/// Steps that one launch computes, at most.
const CHAINED_STEPS: usize = 4;

/// Bytes of weights that such a launch reads, about: a millisecond and a half. Of larger models the
/// time between launches is a small part.
const CHAINED_BYTES: u64 = 4 << 30;

const RULES: &[Rule] = &[
    NORM_GATE_UP,
    NORM_LINEAR,
    GATE_UP,
    LINEAR_ADD,
    NORM_ADD,
    QK_NORM_ROPE_KV_ATTENTION,
    QK_NORM_ROPE_KV_WRITE,
];

/// Those whose units have kernels here.
const PASSES: &[Pass] =
    &[passes::LINEARS, passes::QUERIES, passes::EXPERT_PRODUCTS, passes::FACTORS, passes::INNER_NORMS];

/// The choices for a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Fusion rules.
    pub rules: &'static [Rule],
    /// Passes from fused nodes to units, in order.
    pub passes: &'static [Pass],
    /// Multiprocessors.
    pub n_processors: usize,
    /// What multiplies several rows.
    pub products: Products,
    /// From how many rows on that is so.
    pub packed_rows: RowClass,
    /// The only tile of packed products, to test it; `None`: each launch takes the fastest.
    pub only_tile: Option<usize>,
    /// Bytes of packed weights beside those that few rows are multiplied by, at most; of a model
    /// that needs more there are none.
    pub most_packed: u64,
    /// Warps that keep the chip busy: a product of one row is spread over at least so many, if it
    /// has as many columns.
    pub n_warps: usize,
    /// Blocks of attention that keep the chip busy, those of rows of few positions included, which
    /// end at once.
    pub n_blocks: usize,
    /// Positions from which a sequence is long: its positions are split over blocks.
    pub long: usize,
    /// Positions of a split, at least.
    pub split_len: usize,
    /// Blocks that share a row's positions, at most.
    pub most_splits: usize,
    /// Rows of a step whose positions are split, at most.
    pub most_split_rows: usize,
    /// Whether a step of one row runs in one launch, where the plan allows it (`persistent.rs`).
    pub persistent: bool,
    /// Rows of a step of several that does, at most; 0 and 1: never.
    pub persistent_rows: usize,
    /// By how many positions the longest sequence of such a step may be longer than their mean.
    pub most_uneven: usize,
    /// Whether the kernels of such steps are compiled for a model's table where NVRTC is there
    /// (`persistent/fixed.rs`).
    pub fixed_tables: bool,
    /// Whether there are such steps where the kernels of the shape of heads are no files: NVRTC,
    /// which is there, compiles them.
    pub other_shapes: bool,
    /// Steps of one row, each of which goes on with the token that the one before chose, that such
    /// a kernel computes in one launch, at most.
    pub chained_steps: usize,
    /// Bytes of weights that such a launch reads, at most, if it has more than one step.
    pub chained_bytes: u64,
    /// Bytes of packed weights that a token reads up to which that was measured to be faster than a
    /// launch for each unit.
    pub most_persistent: u64,
    /// The same where matrices are in F16 or BF16.
    pub most_halves: u64,
    /// Bytes of packed weights of all kinds up to which those of the persistent kernel are among
    /// them.
    pub most_copies: u64,
    /// Bytes of shared memory that a block may ask for.
    pub shared_bytes: u32,
    /// Bytes of shared memory of attention by tiles, at most; 0: there is none.
    pub flash_bytes: u32,
    /// Rows of a prompt that are computed together where nothing else limits them.
    pub prompt_chunk: usize,
    /// Steps that may be in flight.
    pub in_flight: usize,
    /// Steps that are worth having in flight, but for chained ones.
    pub steps_ahead: usize,
    /// Graphs that are kept.
    pub n_graphs: usize,
}

impl Profile {
    /// For a GPU.
    pub fn new(facts: &Facts) -> Profile {
        let products = match facts.capability {
            (9, 0) if facts.shared_bytes >= WGMMA_SHARED => Products::Wgmma,
            (8.., _) => Products::Mma,
            _ => Products::Planes,
        };
        Profile {
            rules: RULES,
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
            // Tiles of fewer rows do not keep all multiprocessors busy.
            prompt_chunk: if products == Products::Wgmma { 2048 } else { 512 },
            // While a launch runs, the next one is waiting.
            in_flight: 2 * CHAINED_STEPS,
            steps_ahead: 4,
            n_graphs: 64,
        }
    }
}

#[cfg(test)]
impl Profile {
    /// Of an H100, for tests without a GPU.
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
