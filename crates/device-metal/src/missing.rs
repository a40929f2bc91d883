//! What this device cannot run yet.

use device::{Op, Plan};

/// Something of a plan for which there is no kernel yet; such plans are refused with these words.
pub(crate) fn missing_kernels(plan: &Plan) -> Option<&'static str> {
    if plan.kv.layers.iter().any(|layer| layer.values_are_keys) {
        return Some("a cache whose values are its keys");
    }
    let of = |op: &Op| {
        if matches!(op, Op::Attention { chunked: true, .. }) {
            return Some("attention in chunks");
        }
        if matches!(op, Op::Attention { both_ways: true, .. }) {
            return Some("rows of images that see each other both ways");
        }
        if let Op::SelfAttention { q, k, window, .. } = op
            && (window.is_some() || plan.value(*q).cols != plan.value(*k).cols)
        {
            return Some("attention to both sides within a window, or whose heads share keys");
        }
        None
    };
    plan.primitives().find_map(of)
}
