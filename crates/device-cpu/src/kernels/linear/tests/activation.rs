//! Activation rows in the forms that kernels read have the same bits on every instruction set of
//! this machine.

use super::super::activation::*;
use super::memory::Aligned;
use crate::isa::Isa;
use device_testing::Rng;

#[test]
fn activations_quantise_to_the_same_bits_everywhere() {
    let mut random = Rng::new(6);
    for n_cols in [32, 64, 96, 160, 1056] {
        let mut x: Vec<f32> = (0..n_cols).map(|_| random.normal()).collect();
        x[..32].fill(0.0);
        x[5] = 1e-37;
        x[n_cols - 1] = -1e6;
        // Ties: halves of the scale 1, which results from 127.
        if n_cols > 64 {
            for (i, v) in x[32..64].iter_mut().enumerate() {
                *v = i as f32 * 0.5 - 3.0;
            }
            x[63] = 127.0;
        }
        let mut reference: Option<Vec<u8>> = None;
        for isa in Isa::available() {
            let mut out = Aligned::new(q8_row_bytes(n_cols));
            // SAFETY: `out` has room for a row, and `isa` is available.
            let bytes = unsafe {
                quantize_row_q8(isa, x.as_ptr(), n_cols, out.as_mut_ptr());
                std::slice::from_raw_parts(out.as_mut_ptr(), q8_row_bytes(n_cols)).to_vec()
            };
            let first = reference.get_or_insert_with(|| bytes.clone());
            assert_eq!(*first, bytes, "{isa} {n_cols}");
        }
        let mut row = Aligned::new(q8_row_bytes(n_cols));
        let p = row.as_mut_ptr();
        // SAFETY: the reference is a Q8 row, and the copy has room for it.
        unsafe {
            p.copy_from_nonoverlapping(reference.unwrap().as_ptr(), q8_row_bytes(n_cols));
            let q8 = ActRow(p).q8(n_cols);
            for k in 0..n_cols {
                let error = f64::from(*q8.q.add(k)) * f64::from(*q8.scale.add(k / 32)) - f64::from(x[k]);
                assert!(error.abs() <= f64::from(*q8.scale.add(k / 32)) * 0.5001 + 1e-30);
            }
            for g in 0..n_cols / 16 {
                let of = |i: usize| i32::from(*q8.q.add(g * 16 + i));
                let sum: i32 = (0..16).map(of).sum();
                let first: i32 = (0..16).filter(|i| i % 4 < 2).map(of).sum();
                assert_eq!(*q8.pairs.add(g), (first & 0xffff) | ((sum - first) << 16));
                assert_eq!(*q8.sum16.add(g), *q8.scale.add(g / 2) * sum as f32);
                assert_eq!(*q8.centre16.add(g), -128 * sum);
                if g % 2 == 1 {
                    assert_eq!(*q8.centre32.add(g / 2), *q8.centre16.add(g - 1) + *q8.centre16.add(g));
                }
            }
        }
    }
}

#[test]
fn rows_are_rounded_to_bf16_alike_everywhere() {
    let mut random = Rng::new(41);
    for n_cols in [1usize, 31, 32, 33, 100] {
        let x: Vec<f32> = (0..n_cols).map(|_| random.normal() * 30.0).collect();
        let mut expected: Vec<u16> = x.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
        expected.resize(n_cols.next_multiple_of(32), 0);
        for isa in Isa::available() {
            let mut row = Aligned::new(ActivationKind::Bf16.row_bytes(n_cols));
            // SAFETY: the row has room for its form, and `isa` is available.
            unsafe { ActivationKind::Bf16.write_row(isa, x.as_ptr(), n_cols, row.as_mut_ptr()) };
            let found = row.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
            assert!(found.take(expected.len()).eq(expected.iter().copied()), "{isa}, {n_cols} columns");
        }
    }
}
