//! Checks for the owner of a Mac: every kernel against the CPU, and each kernel's rate against the
//! memory's bandwidth. The command is `ingle metal-selftest`.

mod ahead;
mod bisect;
mod cases;
mod decoder;
mod measure;
mod models;
mod order;
mod probes;
mod sweep;
mod times;

pub use ahead::check_ahead;
pub use bisect::{MakeGpu, Variant, bisect, check_case};
pub use cases::{further_cases, report_cases};
pub use decoder::Decoder;
pub use measure::{Effort, unslowed};
pub use models::{Shape, model};
pub use order::Order;
pub use probes::{Probed, probe};
pub use sweep::{Judge, Progress, Trial, is_confirmed, sweep};
pub use times::{Measured, Measurement, measurements};

use device::{Op, OpKind, Plan};
use device_check::Case;

/// Ops that multiply in tiles.
const TILES: [OpKind; 5] =
    [OpKind::Linear, OpKind::ExpertLinear, OpKind::Attention, OpKind::CrossAttention, OpKind::SelfAttention];

/// The largest difference of a case from the interpreter.
///
/// Sums in other orders stay within a few times the rounding of f32. So do exponentials and roots
/// that are exact to a few units in the last place. Tiles of matrices multiply in halves. A
/// rounding step is 2^-11 of a number, and a product has two factors, so an element may be off by
/// 2^-10 of its size. That size may be six times the one by which differences are measured. Several
/// tiles in sequence accumulate this error.
pub fn tolerance(case: &Case) -> f32 {
    let ops = case.plans.iter().flat_map(Plan::primitives);
    let n_tiles = ops.filter(|op| TILES.contains(&op.kind())).count();
    4.0 * case.tolerance + 6e-3 * (n_tiles as f32).min(4.0)
}

/// Positions after which sequences are split, in tests of splitting.
pub const SHORTEST_SPLIT: usize = 7;

/// Returns true if a case has attentions that split long sequences.
pub fn may_split(case: &Case) -> bool {
    let splits = |op: &Op| matches!(op.kind(), OpKind::Attention | OpKind::CrossAttention);
    case.plans.iter().flat_map(Plan::primitives).any(splits)
}
