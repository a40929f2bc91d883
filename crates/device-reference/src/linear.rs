//! Linear: `x W^T + bias`, the Op that takes most of the time.

use std::time::Instant;

use crate::parallel::{for_each_chunk, worth};
use device::Weight;

/// Rows of W that are decoded together, so that each row of x is loaded from the cache once for all
/// of them.
const TILE: usize = 8;

/// `out = x W^T + bias`
///
/// Each row of W is decoded to f32 once and multiplied with all rows of x, by [`dot`]. Each thread
/// computes tiles of W's rows. The results of a tile are columns of `out`, so they are first stored
/// in scratch `(n_out, n)`.
pub fn linear(
    n_threads: usize,     //
    x: &[f32],            // (n, n_in)
    weight: &Weight,      // (n_out, n_in)
    bias: Option<&[f32]>, // (n_out)
    out: &mut [f32],      // (n, n_out)
) {
    let (n_in, n_out) = (weight.n_cols(), weight.n_rows());
    let n = x.len() / n_in;
    if n == 0 {
        return;
    }
    let mut transposed = vec![0.0; out.len()];
    let tile = || vec![0.0; TILE * n_in];
    let n_threads = worth(n_threads, n * n_in * n_out);
    for_each_chunk(n_threads, &mut transposed, TILE * n, tile, |tile, index, products| {
        let n_rows = products.len() / n; // TILE, fewer in the last
        let tile = &mut tile[..n_rows * n_in];
        weight.decode_rows(index * TILE..index * TILE + n_rows, tile);
        for (column, x) in x.chunks_exact(n_in).enumerate() {
            for (row, w) in tile.chunks_exact(n_in).enumerate() {
                products[row * n + column] = dot(x, w);
            }
        }
    });
    for (row, out) in out.chunks_exact_mut(n_out).enumerate() {
        for (column, out) in out.iter_mut().enumerate() {
            *out = transposed[column * n + row] + bias.map_or(0.0, |bias| bias[column]);
        }
    }
}

/// `sum of a[i] * b[i]` in f32: sixteen sums of every sixteenth product, then halves added to
/// halves. The order is fixed. Short sums lose less precision than one long sum, and the compiler
/// can keep sixteen in vector registers.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const N: usize = 16;
    let mut sums = [0.0f32; N];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<N>(), b.as_chunks::<N>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..N {
            sums[i] += a[i] * b[i];
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// Bytes that [`dot`] reads from memory in a second, and operations that it does in the cache in a
/// second, over `n_threads`.
pub fn peaks(n_threads: usize) -> (f64, f64) {
    // Seconds of one pass over chunks of `chunk_len` values, each multiplied `repeat` times; the
    // best of three passes.
    let seconds = |data: &mut [f32], chunk_len: usize, repeat: usize| {
        let pass = |_| {
            let start = Instant::now();
            for_each_chunk(
                n_threads,
                data,
                chunk_len,
                || (),
                |_, _, chunk| {
                    for _ in 0..repeat {
                        let (a, b) = std::hint::black_box(&*chunk).split_at(chunk.len() / 2);
                        std::hint::black_box(dot(a, b));
                    }
                },
            );
            start.elapsed().as_secs_f64()
        };
        (0..3).map(pass).fold(f64::INFINITY, f64::min)
    };
    let mut large = vec![1.0f32; 1 << 26]; // 256 MiB, larger than the caches
    let bytes = (large.len() * 4) as f64 / seconds(&mut large, 1 << 16, 1);
    let repeat = 2000;
    let n_small = n_threads << 13; // 32 KiB a thread
    let ops = (n_small * repeat) as f64 / seconds(&mut large[..n_small], 1 << 13, repeat);
    (bytes, ops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_testing::{Rng, quantized};
    use weights::BlockType;

    #[test]
    fn a_product_by_hand() {
        let w = Weight { shape: vec![2, 3], ..Weight::vector("w", &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]) };
        let mut out = [0.0; 4];
        linear(1, &[1.0, 0.0, 2.0, -1.0, 2.0, 1.0], &w, Some(&[10.0, 0.25]), &mut out);
        assert_eq!(out, [17.0, 7.25, 16.0, 6.25]);
    }

    #[test]
    fn any_shape_and_number_of_threads_agrees_with_f64() {
        let mut rng = Rng::new(7);
        for (n, n_in, n_out) in [(1, 1, 1), (2, 15, 9), (5, 33, 100), (17, 100, 7), (3, 700, 129)] {
            let w = quantized(&mut rng, "w", n_out, n_in, BlockType::F32);
            let x: Vec<f32> = (0..n * n_in).map(|_| rng.normal()).collect();
            let mut values = vec![0.0; n_out * n_in];
            w.decode_rows(0..n_out, &mut values);
            let run = |n_threads| {
                let mut out = vec![0.0; n * n_out];
                linear(n_threads, &x, &w, None, &mut out);
                out
            };
            let out = run(1);
            assert_eq!(out, run(3), "threads change nothing");
            for (at, out) in out.iter().enumerate() {
                let (x, w) = (&x[at / n_out * n_in..][..n_in], &values[at % n_out * n_in..][..n_in]);
                let exact: f64 = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let size: f64 = x.iter().zip(w).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
                // Each product and each of at most n/16 + 4 additions rounds by 2^-24 of the sum of
                // magnitudes.
                let bound = size * (n_in as f64 / 16.0 + 6.0) * 2f64.powi(-24);
                assert!((f64::from(*out) - exact).abs() <= bound, "{n} {n_in} {n_out}: {out} {exact}");
            }
        }
    }

    #[test]
    fn a_row_is_the_same_whatever_shares_the_step() {
        let mut rng = Rng::new(8);
        let w = quantized(&mut rng, "w", 33, 64, BlockType::F16);
        let x: Vec<f32> = (0..6 * 64).map(|_| rng.normal()).collect();
        let mut all = vec![0.0; 6 * 33];
        linear(2, &x, &w, None, &mut all);
        let mut one = vec![0.0; 33];
        linear(1, &x[4 * 64..5 * 64], &w, None, &mut one);
        assert_eq!(one, all[4 * 33..5 * 33]);
    }
}
