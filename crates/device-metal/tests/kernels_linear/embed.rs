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
            .arguments(&[n_in as u32, row, scale, 2.5f32.to_bits()])
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
