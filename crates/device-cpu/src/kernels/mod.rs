//! The kernels of the CPU device.
//!
//! Each kernel is one file. Its body is written once over [`Simd`](crate::simd::Simd) and
//! instantiated for each instruction set. A function with the kernel's name selects the variant
//! when the command table is written. Activations are f32 `(n, cols)`, row-major, without gaps; `n`
//! is known when a step runs.

pub mod adapters;
pub mod linear;

pub mod activate;
pub mod activation_rows;
pub mod add;
pub mod argmax;
pub mod attention;
pub mod clamped;
pub mod columns;
pub mod cross_attention;
pub mod cross_scores;
pub mod elementwise;
pub mod embed;
pub mod embed_positions;
pub mod expert_bias;
pub mod expert_groups;
pub mod expert_linear;
pub mod expert_sum;
pub mod gate;
pub mod gate_clamped;
pub mod input;
pub mod join;
pub mod kv_write;
pub mod layer_norm;
pub mod ordinals;
pub mod pool;
pub mod projection;
pub mod qk_rope_kv;
pub mod recurrence;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod scale;
pub mod select_rows;
pub mod self_attention;
pub mod short_conv;
pub mod softcap;
pub mod unfold;

/// Rounds up to a multiple of 64 bytes.
pub const fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}
