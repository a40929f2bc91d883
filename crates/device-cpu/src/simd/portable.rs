//! [`Simd`] in plain Rust: four lanes, which the compiler maps to the baseline's vectors.

use super::{RowsOf, Simd, Sink, one_expression};

/// Vectors of the architecture's baseline.
#[derive(Clone, Copy)]
pub struct Portable;

type V = [f32; 4];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// Converts f16 to f32 without branches. The bits moved up by 13 are an f32 whose exponent is 112
/// too small, subnormals included, so one multiplication is exact. Infinities and NaN need the
/// exponent's remaining bits.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(value.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

// SAFETY (of every block): by the trait, pointers are valid for four values.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Portable {
    type V = V;
    type I = [i32; 4];
    const N: usize = 4;
    const VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V {
        unsafe { p.cast::<[u16; 4]>().read_unaligned() }.map(f16_to_f32)
    }
    one_expression! {
        fn store(p: *mut f32, v: V) = p.cast::<V>().write_unaligned(v);
        fn store_f16(p: *mut u16, v: V) =
            p.cast::<[u16; 4]>().write_unaligned(v.map(|x| half::f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| Self::fma_one(a[i], b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn abs(a: V) -> V {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn select_lt(a: V, b: V, yes: V, no: V) -> V {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    unsafe fn max_bits(a: V, b: V) -> V {
        map2(a, b, |a, b| f32::from_bits(a.to_bits().max(b.to_bits())))
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> [i32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> [i32; 4] {
        unsafe { p.cast::<[i32; 4]>().read_unaligned() }
    }
    one_expression! {
        fn store_i(p: *mut i32, v: [i32; 4]) = p.cast::<[i32; 4]>().write_unaligned(v);
        fn store_words(p: *mut i16, v: [i32; 4]) = p.cast::<[i16; 4]>().write_unaligned(v.map(|x| x as i16));
        fn store_bytes(p: *mut u8, v: [i32; 4]) = p.cast::<[u8; 4]>().write_unaligned(v.map(|x| x as u8));
    }
    #[inline(always)]
    unsafe fn add_i(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn dot_words(sum: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let low = |x: i32| i32::from(x as i16);
        let product = |a: i32, b: i32| (low(a) * low(b)).wrapping_add((a >> 16) * (b >> 16));
        std::array::from_fn(|i| sum[i].wrapping_add(product(a[i], b[i])))
    }
    #[inline(always)]
    unsafe fn dot_bytes(sum: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let products = |a: i32, b: i32| -> i32 {
            a.to_ne_bytes()
                .into_iter()
                .zip(b.to_ne_bytes())
                .map(|(a, b)| i32::from(a) * i32::from(b as i8))
                .sum()
        };
        std::array::from_fn(|i| sum[i].wrapping_add(products(a[i], b[i])))
    }
    #[inline(always)]
    unsafe fn to_f32(v: [i32; 4]) -> V {
        v.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn round(v: V) -> [i32; 4] {
        v.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn sum_i(v: [i32; 4]) -> i32 {
        v.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn exp2_biased(n: V) -> V {
        n.map(|n| f32::from_bits(n.to_bits().wrapping_add(127) << 23))
    }
    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    unsafe fn hadamard(v: V) -> V {
        let [a, b, c, d] = [v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]];
        [a + c, b + d, a - c, b - d]
    }
    #[inline(always)]
    unsafe fn max_lane(v: V) -> f32 {
        v[0].max(v[2]).max(v[1].max(v[3]))
    }
    #[inline(always)]
    unsafe fn transpose(rows: impl RowsOf, sink: &mut impl Sink<Self>) {
        let r =
            unsafe { [rows.row::<Self>(0), rows.row::<Self>(1), rows.row::<Self>(2), rows.row::<Self>(3)] };
        for (i, _) in r.iter().enumerate() {
            unsafe { sink.take(i, [r[0][i], r[1][i], r[2][i], r[3][i]]) }
        }
    }
    /// Fused only if the baseline has the instruction; otherwise it would be a call into the C
    /// library.
    #[inline(always)]
    fn fma_one(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
    }
}
