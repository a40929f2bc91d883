//! Placement of a value on the ranks, and the whole value from its parts.

/// Placement of a value on the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each rank has the whole value.
    Whole,
    /// Each rank has its part of each of this many equal groups of neighbouring columns.
    Columns(usize),
    /// Each rank has a term of the value's sum.
    Partial,
}

/// A whole value from `parts`, each rank's `(rows, cols of the rank)`.
pub fn joined(spread: Spread, cols: usize, mut parts: Vec<Vec<f32>>) -> Vec<f32> {
    match spread {
        Spread::Whole => parts.swap_remove(0),
        Spread::Partial => {
            let mut sum = vec![0.0; parts.first().map_or(0, Vec::len)];
            parts.iter().for_each(|part| sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x));
            sum
        }
        Spread::Columns(groups) => {
            let len = cols / parts.len() / groups.max(1);
            let n_rows = parts.first().map_or(0, Vec::len) / (len * groups).max(1);
            let pieces = (0..n_rows * groups).flat_map(|piece| parts.iter().map(move |part| (piece, part)));
            pieces.flat_map(|(piece, part)| part[piece * len..][..len].iter().copied()).collect()
        }
    }
}
