//! Integers that keys, queries, values and weights are stored as, with their products: [`Words`]
//! and [`Bytes`].

use crate::simd::Simd;
use device::kv_bytes::ScaleSearch;
use device::{kv_bytes, kv_words};

/// Integers of one width.
pub trait Numbers: Copy + 'static {
    /// A number as it is stored.
    type Number: Copy;
    /// Numbers in a lane of 32 bits.
    const IN_LANE: usize = 4 / size_of::<Self::Number>();
    /// Largest weight of a value.
    const MAX_WEIGHT: f32;

    /// Quantises a key: returns its scale, and passes its integers to `put` by column.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn key<S: Simd>(x: &[f32], put: impl FnMut(usize, Self::Number)) -> f32;

    /// Quantises a query: returns its scale and the initial value of its products with keys, and
    /// passes its integers to `put` by column.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn query<S: Simd>(x: &[f32], put: impl FnMut(usize, Self::Number)) -> (f32, i32);

    /// Quantises a value: returns its scale, and passes its integers to `put` by column.
    fn value(x: &[f32], put: impl FnMut(usize, Self::Number)) -> f32;

    /// `sum + a b` in each lane, for a query and a key, or weights and values.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn dot<S: Simd>(sum: S::I, a: S::I, b: S::I) -> S::I;

    /// Stores `factor w`, rounded to weights, for the positions from `at` on of a block's row.
    ///
    /// # Safety
    /// The row has the positions `at..at + S::N`; the instruction set is available.
    unsafe fn store_weights<S: Simd>(row: *mut i32, at: usize, w: S::V, factor: S::V);
}

/// Numbers of [`device::KvType::I16`], defined in [`kv_words`].
#[derive(Clone, Copy)]
pub struct Words;

/// Numbers of [`device::KvType::I8`], defined in [`kv_bytes`]. Keys are stored unsigned, with 128
/// added, since the instruction that multiplies four bytes needs one unsigned operand. The initial
/// value of a sum compensates the offset.
#[derive(Clone, Copy)]
pub struct Bytes;

/// Passes the integers of a vector at this scale to `put`.
#[inline(always)]
fn words(x: &[f32], scale: f32, mut put: impl FnMut(usize, i16)) {
    let factor = kv_words::factor(scale);
    x.iter().enumerate().for_each(|(d, x)| put(d, kv_words::to_word(*x, factor)));
}

impl Numbers for Words {
    type Number = i16;
    const MAX_WEIGHT: f32 = kv_words::MAX_WEIGHT;

    #[inline(always)]
    unsafe fn key<S: Simd>(x: &[f32], put: impl FnMut(usize, i16)) -> f32 {
        let scale = kv_words::key_scale(x);
        words(x, scale, put);
        scale
    }

    #[inline(always)]
    unsafe fn query<S: Simd>(x: &[f32], put: impl FnMut(usize, i16)) -> (f32, i32) {
        // SAFETY: by the caller, the instruction set is available.
        (unsafe { Self::key::<S>(x, put) }, 0)
    }

    #[inline(always)]
    fn value(x: &[f32], put: impl FnMut(usize, i16)) -> f32 {
        let scale = kv_words::value_scale(x);
        words(x, scale, put);
        scale
    }

    #[inline(always)]
    unsafe fn dot<S: Simd>(sum: S::I, a: S::I, b: S::I) -> S::I {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::dot_words(sum, a, b) }
    }

    #[inline(always)]
    unsafe fn store_weights<S: Simd>(row: *mut i32, at: usize, w: S::V, factor: S::V) {
        // SAFETY: by the caller, the row has the positions `at..at + S::N`, and the instruction set
        // is available; i16 take half of the room of i32.
        unsafe { S::store_words(row.cast::<i16>().add(at), S::round(S::mul(w, factor))) }
    }
}

/// [`kv_bytes::rotate`] of one piece; the rest of the array is zero.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn rotated<S: Simd>(x: &[f32]) -> [f32; kv_bytes::MAX_PIECE] {
    let mut out = [0f32; kv_bytes::MAX_PIECE];
    let n = x.len();
    out[..n].copy_from_slice(x);
    if !n.is_multiple_of(S::N) {
        kv_bytes::rotate(&mut out[..n]);
        return out;
    }
    let start = out.as_mut_ptr();
    // SAFETY: by the caller, the instruction set is available; `n` is a multiple of a vector and at
    // most the array's length, by the slice above.
    unsafe {
        let factor = S::splat(kv_bytes::rotation_factor(n));
        for i in (0..n).step_by(S::N) {
            S::store(start.add(i), S::hadamard(S::mul(S::load(start.add(i)), factor)));
        }
        let mut apart = S::N;
        while apart < n {
            for i in (0..n).step_by(S::N).filter(|i| i & apart == 0) {
                let (a, b) = (S::load(start.add(i)), S::load(start.add(i + apart)));
                S::store(start.add(i), S::add(a, b));
                S::store(start.add(i + apart), S::sub(a, b));
            }
            apart *= 2;
        }
    }
    out
}

/// Passes the integers of a vector at this scale to `put`, from column `first` on.
#[inline(always)]
fn bytes(x: &[f32], first: usize, scale: f32, put: &mut impl FnMut(usize, i8)) {
    let factor = kv_words::factor(scale);
    x.iter().enumerate().for_each(|(d, x)| put(first + d, kv_bytes::to_byte(*x, factor)));
}

impl Numbers for Bytes {
    type Number = i8;
    const MAX_WEIGHT: f32 = kv_bytes::MAX_WEIGHT;

    #[inline(always)]
    unsafe fn key<S: Simd>(x: &[f32], mut put: impl FnMut(usize, i8)) -> f32 {
        // SAFETY: by the caller, the instruction set is available.
        let (scale, _) = unsafe { Self::query::<S>(x, |d, number| put(d, number ^ i8::MIN)) };
        scale
    }

    #[inline(always)]
    unsafe fn query<S: Simd>(x: &[f32], mut put: impl FnMut(usize, i8)) -> (f32, i32) {
        let (piece, mut largest, mut sum) = (kv_bytes::piece(x.len()), 0f32, 0);
        let mut put = |d, number| {
            sum += i32::from(number);
            put(d, number);
        };
        // SAFETY: by the caller, the instruction set is available.
        unsafe {
            // Each piece is rotated three times, since a head may have too many pieces to store.
            for x in x.chunks_exact(piece) {
                let of_piece = kv_bytes::largest(&rotated::<S>(x)[..piece]);
                largest = if largest.is_nan() || of_piece < largest { largest } else { of_piece };
            }
            let mut search = ScaleSearch::new(largest);
            x.chunks_exact(piece).for_each(|x| search.add(&rotated::<S>(x)[..piece]));
            let scale = search.best();
            for (i, x) in x.chunks_exact(piece).enumerate() {
                bytes(&rotated::<S>(x)[..piece], i * piece, scale, &mut put);
            }
            (scale, -128 * sum)
        }
    }

    #[inline(always)]
    fn value(x: &[f32], mut put: impl FnMut(usize, i8)) -> f32 {
        let scale = kv_bytes::scale(x);
        bytes(x, 0, scale, &mut put);
        scale
    }

    #[inline(always)]
    unsafe fn dot<S: Simd>(sum: S::I, a: S::I, b: S::I) -> S::I {
        // SAFETY: by the caller, the instruction set is available.
        unsafe { S::dot_bytes(sum, a, b) }
    }

    #[inline(always)]
    unsafe fn store_weights<S: Simd>(row: *mut i32, at: usize, w: S::V, factor: S::V) {
        // SAFETY: by the caller, the row has the positions `at..at + S::N`. The caller checked the
        // instruction set. A block has `MAX_POSITIONS` positions, and there is a threshold for
        // each.
        unsafe {
            let threshold = S::load(kv_bytes::THRESHOLDS.as_ptr().add(at));
            S::store_bytes(row.cast::<u8>().add(at), S::round(S::fma(w, factor, threshold)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Vectors};

    /// Results for a query and a key: their product by vectors and by single numbers, the rotated
    /// query, and some weights.
    struct Products {
        by_vectors: i32,
        by_numbers: i32,
        rotated: Vec<f32>,
        weights: [u8; 16],
        /// Lane of the largest bytes times the largest, then times the least.
        extremes: [i32; 2],
    }

    #[inline(always)]
    unsafe fn body<S: Simd>(query: &[f32], key: &[f32], weights: [f32; 16]) -> Products {
        let (mut q, mut k, mut rows) = ([0i8; 256], [0i8; 256], [0i32; 16]);
        // SAFETY: by the caller, the instruction set is available; 256 bytes and 16 floats are
        // whole vectors.
        unsafe {
            let (_, start) = Bytes::query::<S>(query, |d, number| q[d] = number);
            Bytes::key::<S>(key, |d, number| k[d] = number);
            let mut sums = S::splat_i(0);
            for at in (0..256).step_by(4 * S::N) {
                let (q, k) = (S::load_i(q.as_ptr().add(at).cast()), S::load_i(k.as_ptr().add(at).cast()));
                sums = Bytes::dot::<S>(sums, k, q);
            }
            for at in (0..16).step_by(S::N) {
                let (w, factor) = (S::load(weights.as_ptr().add(at)), S::splat(255.0));
                Bytes::store_weights::<S>(rows.as_mut_ptr(), at, w, factor);
            }
            let piece = kv_bytes::piece(query.len());
            let lane = |b| S::sum_i(S::dot_bytes(S::splat_i(0), S::splat_i(-1), S::splat_i(b))) / S::N as i32;
            Products {
                by_vectors: S::sum_i(sums) + start,
                by_numbers: q.iter().zip(k).map(|(q, k)| i32::from(*q) * i32::from(k ^ i8::MIN)).sum(),
                rotated: query.chunks_exact(piece).flat_map(|x| rotated::<S>(x)[..piece].to_vec()).collect(),
                weights: *rows.as_ptr().cast(),
                extremes: [lane(0x7f7f_7f7f), lane(i32::from_ne_bytes([128; 4]))],
            }
        }
    }

    fn on(isa: Isa, query: &[f32], key: &[f32], weights: [f32; 16]) -> Products {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        unsafe fn avx512(query: &[f32], key: &[f32], weights: [f32; 16]) -> Products {
            // SAFETY: this function has the features of `Avx512`.
            unsafe { body::<crate::simd::Avx512>(query, key, weights) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(query: &[f32], key: &[f32], weights: [f32; 16]) -> Products {
            // SAFETY: this function has the features of `Avx2`.
            unsafe { body::<crate::simd::Avx2>(query, key, weights) }
        }
        // SAFETY: the test gives only instruction sets of `Isa::available`.
        unsafe {
            match isa.vectors() {
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx512 => avx512(query, key, weights),
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx2 => avx2(query, key, weights),
                #[cfg(target_arch = "aarch64")]
                Vectors::Neon => body::<crate::simd::Neon>(query, key, weights),
                Vectors::Portable => body::<crate::simd::Portable>(query, key, weights),
            }
        }
    }

    #[test]
    fn bytes_are_the_same_on_every_instruction_set() {
        let weights = std::array::from_fn(|i| i as f32 / 15.0);
        let wanted =
            std::array::from_fn(|i| (weights[i] * 255.0 + kv_bytes::THRESHOLDS[i]).round_ties_even() as u8);
        for isa in Isa::available() {
            for n in [2, 8, 64, 80, 96, 256] {
                // Both signs and the largest numbers occur.
                let query: Vec<f32> =
                    (0..n).map(|i| if i % 3 == 0 { -1.0 } else { (i as f32).cos() }).collect();
                let key: Vec<f32> = query.iter().map(|x| -7.0 * x).collect();
                let found = on(isa, &query, &key, weights);
                // Columns after the head's size are undefined in a key and zero in a query.
                assert_eq!(found.by_vectors, found.by_numbers, "{isa} {n}");
                assert_eq!(found.weights, wanted, "{isa}");
                assert_eq!(found.extremes, [4 * 255 * 127, -4 * 255 * 128], "{isa}");
                let mut rotated = query.clone();
                kv_bytes::rotate(&mut rotated);
                let close = rotated.iter().zip(&found.rotated).all(|(want, got)| (want - got).abs() < 1e-5);
                assert!(close, "{isa} {n}: {:?} for {rotated:?}", found.rotated);
            }
        }
    }
}
