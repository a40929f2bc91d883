//! What this device cannot run yet.

use device::{Op, Plan};

/// Something of a plan for which there is no kernel yet; such plans are refused with these words.
pub(crate) fn missing_kernels(plan: &Plan) -> Option<&'static str> {
    if plan.kv.layers.iter().any(|layer| layer.values_are_keys) {
        return Some("a cache whose values are its keys");
    }
    let of = |op: &Op| {
        None
    };
    plan.primitives().find_map(of)
}
