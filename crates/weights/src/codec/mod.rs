//! Block codecs: the storage of each [`BlockType`](crate::BlockType)'s values, one file a type.
//!
//! Every file has a struct for a block, such as `Q4KBlock`, whose fields are the bytes in file
//! order. It has alignment 1, so `bytemuck::cast_slice` turns a row's bytes into a slice of blocks.
//! Every file also has the scalar decoding, and a quantiser. Decoding is the definition that every
//! device's kernels are tested against. It is exact to the bit, without fused multiply-adds and in
//! the documented order of operations.
//!
//! The types of [`BlockType::GGUF_EXTRA`](crate::BlockType::GGUF_EXTRA) are only decoded.
//! [`affine`] and [`int_rows`] contain the types whose scales are stored apart from the values.
//! [`repack`] converts between types with the same values.
//!
//! All quantisers minimise the plain squared error and are deterministic. [`fit`] documents their
//! treatment of inputs that are not finite or too large.

pub mod affine;
pub mod bf16;
mod block;
mod dispatch;
pub mod f16;
pub mod f32;
pub mod fit;
pub mod grid;
pub mod int_rows;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod k_scales;
pub mod mxfp4;
pub mod nvfp4;
pub mod q1_0;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod repack;
pub mod tq1_0;
pub mod tq2_0;

pub use block::{Blocked, Decoded, f16_to_f32};
pub use dispatch::{NoQuantizer, dequantize_row, dequantize_rows, quantize_row, try_quantize_row};
pub use iq4_nl::KVALUES_IQ4NL;
pub use mxfp4::{KVALUES_MXFP4, e8m0_half};
