//! Fusion rules and KV types of this device.
//!
//! Fusion saves barriers (about a microsecond each) and passes over activations. Attention is not
//! fused with the KvWrite before it: its workers read keys that other workers write, which needs a
//! barrier anyway.

use device::{FusedKind, KvType};

/// Rules in the order in which they are tried at every node; a rule precedes those that it
/// contains.
pub const RULES: &[FusedKind] = &[
    FusedKind::NormGateUp,
    FusedKind::NormLinear,
    FusedKind::GateUp,
    FusedKind::LinearAdd,
    FusedKind::NormAdd,
    FusedKind::QkNormRopeKvWrite,
];

/// Supported KV types, the default first.
pub const KV_TYPES: &[KvType] = &[KvType::I16, KvType::F16, KvType::F32, KvType::I8];
