//! Embed: rows of a table.

use formats::codec::dequantize_row;

use crate::Weight;

/// `out[i] = scale * table[tokens[i]]`
pub fn embed(
    table: &Weight,  // (n_vocab, cols)
    tokens: &[u32],  // (n), each below n_vocab
    scale: f32,      //
    out: &mut [f32], // (n, cols)
) {
    let row_bytes = table.row_bytes();
    for (out, token) in out.chunks_exact_mut(table.n_cols()).zip(tokens) {
        let start = *token as usize * row_bytes;
        dequantize_row(table.block, &table.data[start..start + row_bytes], out);
        for value in out {
            *value *= scale;
        }
    }
}
