//! The loops of attention, each a separate function for each instruction set, since inlining them
//! into one another takes the compiler minutes. [`product`], [`integer_weights`] and
//! [`integer_products`] document them.

use super::integer_layout::IntegerWork;
use super::numbers::Numbers;
use super::pages::KvBlock;
use super::product::{self, Product};
use super::stored::StoredFloats;
use super::{integer_products, integer_weights};
use crate::simd::Simd;
use std::ops::Range;

/// Passes a macro its arguments and the loops. A loop has a name, a module and function, type
/// parameters as declared and as passed, and arguments.
macro_rules! with_loops {
    ($macro:ident, $($first:tt)*) => {
        $macro! {
            $($first)*
            direct_scores = product::direct_scores, [K: StoredFloats, const M: usize], [K, M],
                (block: &KvBlock<'_>, q: *const f32, s: *mut f32);
            direct_values = product::direct_values, [K: StoredFloats, const M: usize], [K, M],
                (block: &KvBlock<'_>, p: *const f32, o: *mut f32);
            product = product::product, [], [],
                (p: Product, a: *const f32, b: *const f32, c: *mut f32);
            integer_scores = integer_products::scores, [N: Numbers], [N],
                (block: &KvBlock<'_>, n: usize, work: IntegerWork);
            integer_weights = integer_weights::weights, [N: Numbers, const M: usize, const SCORED: bool], [N, M, SCORED],
                (work: IntegerWork, query: usize, shown: [Range<usize>; M], softcap: f32);
            integer_values = integer_products::add_values, [N: Numbers], [N],
                (block: &KvBlock<'_>, n: usize, work: IntegerWork, o: *mut f32);
        }
    };
}

/// Declares the trait that generic kernels call.
macro_rules! declare {
    ($($name:ident = $module:ident::$function:ident, [$($params:tt)*], [$($given:tt)*],
        ($($arg:ident: $type:ty),*);)*) => {
        /// The loops for an instruction set.
        pub trait Loops: Simd {
            $(
                #[doc = concat!("[`", stringify!($module), "::", stringify!($function), "`]")]
                ///
                /// # Safety
                /// As the function that it calls.
                unsafe fn $name<$($params)*>($($arg: $type),*);
            )*
        }
    };
}

with_loops!(declare,);

/// Implements the loops for an instruction set. The attribute is put on each loop, which is a
/// separate function. A `cfg_attr` with a true condition can hold several attributes.
macro_rules! implement {
    ($simd:ty, $attribute:tt $($name:ident = $module:ident::$function:ident, [$($params:tt)*], [$($given:tt)*],
        ($($arg:ident: $type:ty),*);)*) => {
        impl Loops for $simd {
            $(
                #[inline(always)]
                unsafe fn $name<$($params)*>($($arg: $type),*) {
                    # $attribute
                    unsafe fn run<$($params)*>($($arg: $type),*) {
                        // SAFETY: by the caller, the conditions of the loop are met; among them is
                        // that the instruction set, whose features this function has, is available.
                        unsafe { $module::$function::<$simd, $($given)*>($($arg),*) }
                    }
                    // SAFETY: by the caller, the conditions of the loop are met, and the
                    // instruction set of `$simd` is available.
                    unsafe { run::<$($given)*>($($arg),*) }
                }
            )*
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_loops!(
    implement,
    crate::simd::Avx512,
    [cfg_attr(
        target_arch = "x86_64",
        inline(never),
        target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
    )]
);
#[cfg(target_arch = "x86_64")]
with_loops!(
    implement,
    crate::simd::Avx2,
    [cfg_attr(target_arch = "x86_64", inline(never), target_feature(enable = "avx2,fma,f16c"))]
);
#[cfg(target_arch = "aarch64")]
with_loops!(implement, crate::simd::Neon, [inline(never)]);
with_loops!(implement, crate::simd::Portable, [inline(never)]);
