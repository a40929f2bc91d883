//! Reading of keys and values that are stored as floats, as f32.

use crate::simd::Simd;

/// A KV type that stores floats.
pub trait StoredFloats: Copy + 'static {
    /// Loads `S::N` columns of a vector from column `d` on, a multiple of `S::N`.
    ///
    /// # Safety
    /// The columns are within the vector; the instruction set is available.
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V;

    /// Loads column `d`.
    ///
    /// # Safety
    /// The vector has column `d`.
    unsafe fn load_one(vector: *const u8, d: usize) -> f32;
}

/// [`KvType::F32`]
#[derive(Clone, Copy)]
pub struct StoredF32;
/// [`KvType::F16`]
#[derive(Clone, Copy)]
pub struct StoredF16;

impl StoredFloats for StoredF32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V {
        // SAFETY: by the caller, the vector has the columns `d..d + S::N`, and the instruction set
        // is available; a load may be unaligned.
        unsafe { S::load(vector.cast::<f32>().add(d)) }
    }
    #[inline(always)]
    unsafe fn load_one(vector: *const u8, d: usize) -> f32 {
        // SAFETY: by the caller, the vector has column `d`; the read may be unaligned.
        unsafe { vector.cast::<f32>().add(d).read_unaligned() }
    }
}

impl StoredFloats for StoredF16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V {
        // SAFETY: by the caller, the vector has the columns `d..d + S::N`, and the instruction set
        // is available; a load may be unaligned.
        unsafe { S::load_f16(vector.cast::<u16>().add(d)) }
    }
    #[inline(always)]
    unsafe fn load_one(vector: *const u8, d: usize) -> f32 {
        // SAFETY: by the caller, the vector has column `d`; the read may be unaligned.
        half::f16::from_bits(unsafe { vector.cast::<u16>().add(d).read_unaligned() }).to_f32()
    }
}
