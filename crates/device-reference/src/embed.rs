//! Embed: rows of a table.

use device::Weight;

/// `out[i] = scale * table[tokens[i]]`
pub fn embed(
    table: &Weight,  // (n_vocab, cols)
    tokens: &[u32],  // (n), each below n_vocab
    scale: f32,      //
    out: &mut [f32], // (n, cols)
) {
    for (out, token) in out.chunks_exact_mut(table.n_cols()).zip(tokens) {
        let row = *token as usize;
        table.decode_rows(row..row + 1, out);
        for value in out {
            *value *= scale;
        }
    }
}
