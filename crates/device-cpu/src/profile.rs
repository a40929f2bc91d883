//! Which rules fuse on this device.
//!
//! Fusing saves barriers (about a microsecond each) and passes over activations. Attention stays apart from the KvWrite
//! before it: its workers read keys that other workers write, so a barrier stands between them in any case.

use device::{KvType, Rule};
use device_lower::fusion;

/// Tried in this order at every node; each before those that it contains.
pub const RULES: &[Rule] = &[
    fusion::NORM_GATE_UP,
    fusion::NORM_LINEAR,
    fusion::GATE_UP,
    fusion::LINEAR_ADD,
    fusion::NORM_ADD,
    fusion::QK_NORM_ROPE_KV_WRITE,
];

/// KV types that run, the default first.
pub const KV_TYPES: &[KvType] = &[KvType::I16, KvType::F16, KvType::F32, KvType::I8];
