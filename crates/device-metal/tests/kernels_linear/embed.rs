//! Rows of a table.

use super::*;

/// Bit of a linked token, defined in `step.h`.
const LINKED: u32 = 1 << 31;

#[test]
fn embed_decodes_rows_of_every_type() {
    let mut rng = Rng::new(8);
    for (file, name, block, n_in) in types() {
        let w = stored(&mut rng, "w", 5, n_in, block, 0.3);
        // The last of them was chosen by an earlier output; one that chose nothing gives token 0.
        let (words, tokens) = ([4, LINKED | 2, LINKED | 3], [4, 0, 2]);
        let mut values = vec![0.0; 5 * n_in];
        w.decode_rows(0..5, &mut values);
        let (row, scale) = (block.row_bytes(n_in) as u32, block.row_scale_bytes(n_in) as u32);
        let launch = launch(file, format!("embed_{name}"), block, n_in)
            .arguments(&[n_in as u32, row, scale, 2.5f32.to_bits(), 0, 0, 0, 0])
            .words(1, &words)
            .words(2, &[9, 1, u32::MAX, 2])
            .output(16, 3 * n_in)
            .words(20, &step(3, 0, 1, 0, 0))
            .grid([1, 3, 1], 32);
        let out = bind(launch, 0, &w).run().floats(16);
        for (token, out) in tokens.iter().zip(out.chunks_exact(n_in)) {
            let row = &values[*token as usize * n_in..][..n_in];
            let most = row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (i, (out, value)) in out.iter().zip(row).enumerate() {
                // The factors of a value are multiplied in another order, and perhaps fused with
                // the offset.
                assert!(
                    (out - 2.5 * value).abs() <= 1e-6 * most,
                    "{name} column {i}: {out}, expected {}",
                    2.5 * value
                );
            }
        }
    }
}

/// Two tables: three pairs, and two with a factor of their own.
#[test]
fn embed_writes_the_cosines_and_sines_of_the_step() {
    let mut rng = Rng::new(9);
    let (n_in, max_rows) = (64, 5);
    let w = stored(&mut rng, "w", 5, n_in, BlockType::Q4_0, 0.3);
    let positions = [0u32, 7, 100_003];
    let tables = [(&[1.0f32, 0.3, 0.001][..], 1.0f32), (&[0.5, 1e-5], 1.25)];
    let mut pairs = vec![];
    let mut expected = vec![None; max_rows * 5];
    let mut start = 0;
    for (frequencies, scale) in tables {
        let stride = frequencies.len();
        for (pair, frequency) in frequencies.iter().enumerate() {
            pairs.extend([frequency.to_bits(), scale.to_bits(), (start + pair) as u32, stride as u32]);
            for (row, position) in positions.iter().enumerate() {
                let (angle, scale) = (f64::from(*position as f32 * frequency), f64::from(scale));
                expected[start + row * stride + pair] = Some([angle.cos() * scale, angle.sin() * scale]);
            }
        }
        start += max_rows * stride;
    }
    let (row, one) = (BlockType::Q4_0.row_bytes(n_in) as u32, 1f32.to_bits());
    // One threadgroup for a row, and three.
    for (groups, threads) in [(1, 32), (3, 64)] {
        let launch = launch("linear/q4_0.metal", "embed_q4_0".to_owned(), BlockType::Q4_0, n_in)
            .arguments(&[n_in as u32, row, 0, one, 5, 0, 0, 0])
            .words(1, &[1, 2, 3])
            .words(2, &[0])
            .words(4, &positions)
            .words(5, &pairs)
            .output(16, 3 * n_in)
            .output(17, 2 * 5 * max_rows)
            .words(20, &step(3, 0, 1, 0, 0))
            .grid([groups, 3, 1], threads);
        let found = bind(launch, 0, &w).run().floats(17);
        for (found, expected) in found.chunks_exact(2).zip(&expected) {
            match expected {
                // A few ulp.
                Some(expected) => found
                    .iter()
                    .zip(expected)
                    .for_each(|(f, e)| assert!((f64::from(*f) - e).abs() < 1e-6, "{f}, expected {e}")),
                None => {
                    assert!(found.iter().all(|v| v.is_nan()), "nothing is written for rows without a token")
                }
            }
        }
    }
}
