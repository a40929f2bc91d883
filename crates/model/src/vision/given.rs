//! Input rows of the text model's second plan, with embeddings instead of tokens.

use device::Weight;

use super::VisionSpec;

/// The layout of an input row: the embedding, the additions of taps after the first layers, and the
/// cosines and sines for every head.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// Columns of the embedding.
    pub hidden: usize,
    /// Additions of taps, each with `hidden` columns.
    pub n_taps: usize,
    /// Heads with cosines and sines; 0 if the plan computes RoPE from positions.
    pub n_heads: usize,
    /// RoPE frequency of each pair of a head, in radians a position.
    pub frequencies: Vec<f32>,
    /// Position axis of each pair of a head, 0 to 2.
    pub axes: Vec<u8>,
    /// Factor on cosines and sines.
    pub turn_scale: f32,
    /// The token embeddings.
    pub embeddings: Weight,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// True if the rows of an image attend to each other both ways. They must then be one span of a
    /// single step.
    pub both_ways: bool,
    /// The token whose per-layer inputs an image row has, if layers have such inputs. The step must
    /// have this token for the row.
    pub layer_input: Option<u32>,
}

impl GivenRows {
    /// Columns of the input.
    pub fn cols(&self) -> usize {
        self.hidden * (1 + self.n_taps) + 2 * self.n_heads * self.frequencies.len()
    }

    /// True if positions have three axes.
    pub fn has_axes(&self) -> bool {
        self.n_heads > 0
    }

    /// Appends the row of a token.
    pub fn push_token(&self, token: u32, positions: [u32; 3], out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + self.hidden, 0.0);
        let row = token as usize;
        if row < self.embeddings.n_rows() {
            self.embeddings.decode_rows(row..row + 1, &mut out[start..]);
        }
        out[start..].iter_mut().for_each(|value| *value *= self.embedding_scale);
        out.resize(start + self.hidden * (1 + self.n_taps), 0.0);
        self.push_rotations(positions, out);
    }

    /// Appends a row of an image: its embedding and the additions of taps.
    pub fn push_image<'a>(
        &self,
        row: &[f32],
        taps: impl Iterator<Item = &'a [f32]>,
        positions: [u32; 3],
        out: &mut Vec<f32>,
    ) {
        out.extend_from_slice(row);
        taps.for_each(|tap| out.extend_from_slice(tap));
        self.push_rotations(positions, out);
    }

    fn push_rotations(&self, positions: [u32; 3], out: &mut Vec<f32>) {
        for function in [f32::cos, f32::sin] {
            let start = out.len();
            for head in 0..self.n_heads {
                if head == 0 {
                    let angle = |(axis, f): (&u8, &f32)| positions[usize::from(*axis)] as f32 * f;
                    let turns = self.axes.iter().zip(&self.frequencies).map(angle);
                    out.extend(turns.map(|angle| function(angle) * self.turn_scale));
                } else {
                    out.extend_from_within(start..start + self.frequencies.len());
                }
            }
        }
    }
}

impl VisionSpec {
    /// Position axis of each of the `n` pairs of a head.
    pub(crate) fn axes(&self, n: usize) -> Vec<u8> {
        let [time, height, width] = self.sections;
        let in_turns = self.tower.axes == Some(true);
        let axis = |i: usize| match (in_turns, i % 3) {
            (true, 1) if i < 3 * height => 1,
            (true, 2) if i < 3 * width => 2,
            (true, _) => 0,
            (false, _) => u8::from(i >= time) + u8::from(i >= time + height),
        };
        (0..n).map(axis).collect()
    }
}
