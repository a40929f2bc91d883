//! Sizes of the scratch that the units of a program need.

use crate::packs::experts;
use crate::products::{Experts, Products, k_tiles, partial_floats};
use crate::profile::Profile;
use device::{Limits, Op, Plan};
use device_gpu::layout::Parts;
pub use device_gpu::layout::{ALIGN, StepLayout};
use device_lower::lifetimes::{max_rows, value_bytes};
use device_lower::units::{LoweredUnit, Unit};

/// Parts of a row of logits whose bests are found side by side (`BEST_PARTS`, arguments.h).
pub const BEST_PARTS: usize = 32;

/// Scratch of the units of all plans: bytes that no value has.
pub type Scratch = Parts<9>;

/// The part of scratch with partial sums of rows whose positions are split.
pub const PARTIALS: usize = 0;
/// The part with the totals of these sums.
pub const TOTALS: usize = 1;
/// The part with the best of each part of a row of logits.
pub const BESTS: usize = 2;
/// The part with rows in halves, for the products of many rows.
pub const HALVES: usize = 3;
/// The part with the scales of these rows.
pub const SCALES: usize = 4;
/// The part with partial sums of products that are split over K.
pub const SUMS: usize = 5;
/// The part that counts how many parts of a tile are there.
pub const COUNTERS: usize = 6;
/// The part with rows in the order of their experts.
pub const PAIRS: usize = 7;
/// The part with the number of the experts' tiles, in [`TILES_AT`] bytes, and the tiles.
pub const TILES: usize = 8;

/// Offset of the tiles of experts after their number, in bytes.
pub const TILES_AT: usize = 16;

/// The scratch that the units of a plan need.
pub fn scratch_of(plan: &Plan, units: &[LoweredUnit], limits: &Limits, profile: &Profile) -> Scratch {
    let mut scratch = Scratch::default();
    for LoweredUnit { unit, .. } in units {
        if let Some((n_heads, layer)) = unit.attention() {
            let head_dim = plan.kv.layer(layer).head_dim;
            let n = profile.most_split_rows.min(limits.max_rows) * n_heads * profile.most_splits;
            scratch.raise(PARTIALS, n * head_dim * 4);
            scratch.raise(TOTALS, n * 8);
        }
        if let Unit::Primitive(Op::Argmax { x, .. }) = unit {
            scratch.raise(BESTS, max_rows(limits, plan.value(*x).rows) * BEST_PARTS * 8);
        }
        // Whole groups of 8 rows and tiles of 64 columns, as the input of packed products is laid
        // out.
        let mut raise_input = |rows: usize, cols: usize| {
            let (rows, cols) = (rows.next_multiple_of(8), 64 * k_tiles(cols));
            scratch.raise(HALVES, rows * cols * 2);
            scratch.raise(SCALES, rows * 4);
        };
        if let Some((stacks, ids)) = experts(unit).filter(|_| profile.products != Products::Planes) {
            let (weight, ids) = (plan.weight(stacks[0]), plan.value(ids));
            let (n, rows) = (weight.parts.len(), max_rows(limits, ids.rows));
            let packed = Experts::packed_rows(n, ids.cols, rows);
            raise_input(packed, weight.n_cols());
            scratch.raise(PAIRS, 4 * packed);
            // The narrowest tile has 8 rows.
            scratch.raise(TILES, TILES_AT + 16 * (rows * ids.cols / 8 + n));
        } else if let Unit::Projection(p) = unit {
            let value = plan.value(p.x);
            raise_input(max_rows(limits, value.rows), value.cols);
            if profile.products != Products::Planes {
                scratch.raise(SUMS, 4 * partial_floats(profile.n_processors));
                scratch.raise(COUNTERS, 4 * profile.n_processors);
            }
        }
    }
    scratch
}

/// Bytes of a plan's logits.
pub fn logits_bytes(plan: &Plan, limits: &Limits) -> usize {
    value_bytes(plan.value(plan.output), limits)
}
