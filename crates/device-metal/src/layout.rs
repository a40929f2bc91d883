//! Sizes of the scratch that the units of a program need.

use crate::geometry::{BEST_BYTES, GEMV_ROWS, TILE_BYTES, n_tiles, partial_bytes};
use crate::turns::Turns;
use device::{Limits, Op, Plan};
use device_gpu::layout::Parts;
use device_lower::lifetimes::value_bytes;
use device_lower::units::{LoweredUnit, Unit};

/// Scratch of the units of all plans: bytes that no value has.
pub type Scratch = Parts<6>;

/// The part of scratch with pairs of rows and experts in the order of the experts, u32.
pub const ORDER: usize = 0;
/// The part of scratch with the tiles of the experts' pairs.
pub const TILES: usize = 1;
/// The part with partial sums of rows whose positions are split.
pub const PARTIALS: usize = 2;
/// The part with the totals of the partial sums.
pub const TOTALS: usize = 3;
/// The part with the largest product of each threadgroup of a head of one row, 8 bytes each.
pub const BESTS: usize = 4;
/// The part with the cosines and sines of the step's positions ([`crate::turns`]).
pub const TURNS: usize = 5;

/// The scratch that the units of a plan need.
pub fn scratch_of(plan: &Plan, units: &[LoweredUnit], limits: &Limits) -> Scratch {
    let mut scratch = Scratch::default();
    scratch.raise(TURNS, Turns::new(plan, limits).n_bytes());
    for LoweredUnit { unit, .. } in units {
        if let Some((n_heads, layer)) = unit.attention() {
            let head_dim = plan.kv.layer(layer).head_dim;
            let (partials, totals) = partial_bytes(limits.max_rows, n_heads, head_dim);
            scratch.raise(PARTIALS, partials);
            scratch.raise(TOTALS, totals);
        }
        if let Unit::Primitive(Op::Argmax { x, .. }) = unit {
            // Each SIMD-group writes at most one best logit.
            scratch.raise(BESTS, plan.value(*x).cols.div_ceil(GEMV_ROWS) * BEST_BYTES);
        }
        if let Some((ids, weight)) = unit.experts() {
            let order = value_bytes(plan.value(ids), limits);
            scratch.raise(ORDER, order);
            scratch.raise(TILES, n_tiles(plan.weight(weight).parts.len(), order / 4) * TILE_BYTES);
        }
    }
    scratch
}
