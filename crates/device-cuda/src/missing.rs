//! What this device cannot run yet.

use device::{Op, Plan};

/// Something of a plan for which there is no kernel yet; such plans are refused with these words.
pub(crate) fn missing_kernels(plan: &Plan) -> Option<&'static str> {
    plan.primitives().find_map(|op| match op {
        Op::Adapters { .. } => Some("adapters (LoRA)"),
        Op::Attention { both_ways: true, .. } => Some("rows of images that see each other both ways"),
        _ => None,
    })
}
