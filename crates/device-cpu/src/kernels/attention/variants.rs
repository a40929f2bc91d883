//! Variants of an attention kernel: one for each instruction set and KV type.

use super::chunk::ChunkScratch;
use super::floats::Floats;
use super::integers::Integers;
use super::numbers::Words;
use super::pages::HeadSize;
use super::stored::StoredF32;

/// Bytes of [`ChunkScratch`] for tiles of `n` queries of any KV type.
pub fn scratch_bytes(n: usize, size: HeadSize) -> usize {
    ChunkScratch::<Floats<StoredF32>>::bytes(n, size).max(ChunkScratch::<Integers<Words>>::bytes(n, size))
}

/// Defines `$name(isa, kind)`, which returns `$body::<S, K>`, an `#[inline(always)]` function
/// generic over [`Loops`](super::loops::Loops) and [`Attend`](super::attend::Attend). There is one
/// instance for each pair of the two.
macro_rules! kv_type_variants {
    ($(#[$doc:meta])* $name:ident, $body:ident, $params:ty) => {
        $(#[$doc])*
        pub fn $name(isa: $crate::isa::Isa, kind: device::KvType) -> $crate::command::Kernel<$params> {
            use $crate::kernels::attention::loops::Loops;
            use $crate::kernels::attention::floats::Floats;
            use $crate::kernels::attention::integers::Integers;
            use $crate::kernels::attention::numbers::{Bytes, Words};
            use $crate::kernels::attention::stored::{StoredF16, StoredF32};

            macro_rules! over {
                ($over:ident, $of_kind:ident, $attend:ty) => {
                    /// # Safety
                    /// As [`crate::command::Kernel`].
                    #[inline(always)]
                    unsafe fn $of_kind<S: Loops>(p: &$params, worker: &$crate::command::Worker<'_>) {
                        // SAFETY: by the caller, the parameters' pointers are valid for the rows of
                        // the step, and no one else writes what the kernel reads. The caller
                        // checked the instruction set.
                        unsafe { $body::<S, $attend>(p, worker) }
                    }
                    $crate::simd::variants!($over, $of_kind, $params);
                };
            }

            over!(over_f32, f32_body, Floats<StoredF32>);
            over!(over_f16, f16_body, Floats<StoredF16>);
            over!(over_i16, i16_body, Integers<Words>);
            over!(over_i8, i8_body, Integers<Bytes>);
            match kind {
                device::KvType::F32 => over_f32(isa),
                device::KvType::F16 => over_f16(isa),
                device::KvType::I16 => over_i16(isa),
                device::KvType::I8 => over_i8(isa),
                device::KvType::Q8_0 | device::KvType::Fp8 => unreachable!("not one of `profile::KV_TYPES`"),
            }
        }
    };
}
pub(in crate::kernels) use kv_type_variants;
