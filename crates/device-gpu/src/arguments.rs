//! Parts of a step that every GPU's kernels read: the structs of `kernels/step_parts.h`, which
//! `build.rs` translates. Their docs are the header's comments.

use bytemuck::{Pod, Zeroable};

include!(concat!(env!("OUT_DIR"), "/arguments.rs"));

/// Choices of how a token is chosen (`CHOOSE_*`).
pub(crate) const CHOOSE_BEST: u32 = 1;
pub(crate) const CHOOSE_SAMPLE: u32 = 2;

/// A struct's name and size, and its fields with their offsets.
#[cfg(test)]
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

#[cfg(test)]
mod tests {
    /// The kernels' comments say the same sizes; Metal reads spans and choices in whole vectors.
    #[test]
    fn sizes_are_those_of_the_header() {
        let sizes: Vec<_> = super::layouts().into_iter().map(|(name, size, _)| (name, size)).collect();
        assert_eq!(sizes, [("Step", 32), ("Span", 32), ("Bias", 8), ("Choice", 80)]);
    }
}
