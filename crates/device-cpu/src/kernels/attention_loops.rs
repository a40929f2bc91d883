//! The loops of attention, each a function of its own for each instruction set: inlined into one another they take the compiler
//! minutes. What they compute is in [`attention_product`], [`attention_integers`] and
//! [`attention_integer_products`].

use super::attention_integer_products;
use super::attention_integers::{self, Work};
use super::attention_numbers::Numbers;
use super::attention_product::{self, Place, Product};
use super::kv_write::Stored;
use crate::simd::Simd;
use std::ops::Range;

/// Pass a macro its arguments and the loops: name, where it is, parameters beside the instruction set as they are declared and as they
/// are given, arguments.
macro_rules! with_loops {
    ($macro:ident, $($first:tt)*) => {
        $macro! {
            $($first)*
            direct_scores = attention_product::direct_scores, [K: Stored, const M: usize], [K, M],
                (place: &Place<'_>, q: *const f32, s: *mut f32);
            direct_values = attention_product::direct_values, [K: Stored, const M: usize], [K, M],
                (place: &Place<'_>, p: *const f32, o: *mut f32);
            product = attention_product::product, [], [],
                (p: Product, a: *const f32, b: *const f32, c: *mut f32);
            integer_scores = attention_integer_products::scores, [N: Numbers], [N],
                (place: &Place<'_>, n: usize, work: Work);
            integer_weights = attention_integers::weights, [N: Numbers, const M: usize], [N, M],
                (work: Work, query: usize, shown: [Range<usize>; M], softcap: f32);
            integer_values = attention_integer_products::add_values, [N: Numbers], [N],
                (place: &Place<'_>, n: usize, work: Work, o: *mut f32);
        }
    };
}

/// The trait that generic kernels call.
macro_rules! declare {
    ($($name:ident = $module:ident::$function:ident, [$($params:tt)*], [$($given:tt)*],
        ($($arg:ident: $type:ty),*);)*) => {
        /// The loops for an instruction set.
        pub trait Loops: Simd {
            $(
                #[doc = concat!("[`", stringify!($module), "::", stringify!($function), "`]")]
                ///
                /// # Safety
                /// As there.
                unsafe fn $name<$($params)*>($($arg: $type),*);
            )*
        }
    };
}

with_loops!(declare,);

/// The loops for an instruction set; the attribute is of each, which is a function by itself. One attribute stands for several where it is
/// a `cfg_attr` whose condition holds.
macro_rules! implement {
    ($simd:ty, $attribute:tt $($name:ident = $module:ident::$function:ident, [$($params:tt)*], [$($given:tt)*],
        ($($arg:ident: $type:ty),*);)*) => {
        impl Loops for $simd {
            $(
                #[inline(always)]
                unsafe fn $name<$($params)*>($($arg: $type),*) {
                    # $attribute
                    unsafe fn run<$($params)*>($($arg: $type),*) {
                        // SAFETY: the caller's promises are those of the loop.
                        unsafe { $module::$function::<$simd, $($given)*>($($arg),*) }
                    }
                    // SAFETY: the caller's promise.
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
