//! Sizes of the scratch that the units of a program need.

use crate::packs::ExpertProducts;
use crate::products::{ExpertSizes, Products, k_tiles, partial_floats};
use crate::profile::Profile;
use device::{Limits, Op, Plan};
use device_gpu::layout::Parts;
pub use device_gpu::layout::{ALIGN, StepLayout};
use device_lower::lifetimes::{max_rows, value_bytes};
use device_lower::units::{LoweredUnit, Unit};

/// Parts of a row of logits whose best tokens are found in parallel (`BEST_PARTS`, arguments.h).
pub const BEST_PARTS: usize = 32;

/// Scratch that the units of all plans share: memory that belongs to no value.
pub type Scratch = Parts<9>;

/// The part of scratch with partial attention sums of rows whose positions are split.
pub const PARTIALS: usize = 0;
/// The part with the maxima and totals of the partial attention sums.
pub const TOTALS: usize = 1;
/// The part with the best token of each part of a row of logits.
pub const BESTS: usize = 2;
/// The part with input rows in F16, for products of many rows.
pub const HALVES: usize = 3;
/// The part with the scales of the rows in [`HALVES`].
pub const SCALES: usize = 4;
/// The part with partial sums of products whose K is split over blocks.
pub const SUMS: usize = 5;
/// The part with counters of the finished splits of each tile.
pub const COUNTERS: usize = 6;
/// The part with rows grouped by expert.
pub const PAIRS: usize = 7;
/// The part with the number of expert tiles, in [`TILES_AT`] bytes, then the tiles.
pub const TILES: usize = 8;

/// Offset of the tiles in [`TILES`], in bytes.
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
        // The input of packed products has whole groups of 8 rows and whole tiles of 64 columns.
        let mut raise_input = |rows: usize, cols: usize| {
            let (rows, cols) = (rows.next_multiple_of(8), 64 * k_tiles(cols));
            scratch.raise(HALVES, rows * cols * 2);
            scratch.raise(SCALES, rows * 4);
        };
        let experts = ExpertProducts::of(unit).filter(|_| profile.products != Products::Planes);
        if let Some(ExpertProducts { stacks, ids, .. }) = experts {
            let (weight, ids) = (plan.weight(stacks[0]), plan.value(ids));
            let (n, rows) = (weight.parts.len(), max_rows(limits, ids.rows));
            let packed = ExpertSizes::packed_rows(n, ids.cols, rows);
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
