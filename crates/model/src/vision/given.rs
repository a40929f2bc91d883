//! Rows that are given to the text model instead of tokens: what a row of the input of its second plan is.

use device::Weight;

use super::VisionSpec;

/// A row of the input: the embedding; what taps add after the first layers; cosines and sines of its turns, for every head.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// Columns of the embedding.
    pub hidden: usize,
    /// Additions, each of as many columns.
    pub n_taps: usize,
    /// Heads; 0: the plan turns rows by their position itself.
    pub n_heads: usize,
    /// Radians a position, by pair of a head.
    pub frequencies: Vec<f32>,
    /// By pair, which of a row's three positions turns it.
    pub axes: Vec<u8>,
    /// Factor on cosines and sines.
    pub turn_scale: f32,
    /// The table of tokens' embeddings.
    pub embeddings: Weight,
    /// Factor on its rows.
    pub embedding_scale: f32,
    /// Rows of an image see each other both ways: it must be whole in a step, as a span of its own.
    pub both_ways: bool,
    /// Where layers have inputs of tokens, the token whose inputs a row of an image has: it is the row's in the step.
    pub layer_input: Option<u32>,
}

impl GivenRows {
    /// Columns of the input.
    pub fn cols(&self) -> usize {
        self.hidden * (1 + self.n_taps) + 2 * self.n_heads * self.frequencies.len()
    }

    /// Whether rows have positions on three axes.
    pub fn has_axes(&self) -> bool {
        self.n_heads > 0
    }

    /// Append the row of a token.
    pub fn push_token(&self, token: u32, positions: [u32; 3], out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + self.hidden, 0.0);
        let row = token as usize;
        if row < self.embeddings.n_rows() {
            self.embeddings.decode_rows(row..row + 1, &mut out[start..]);
        }
        out[start..].iter_mut().for_each(|value| *value *= self.embedding_scale);
        out.resize(start + self.hidden * (1 + self.n_taps), 0.0);
        self.push_turns(positions, out);
    }

    /// Append a row of an image: its embedding and what taps add.
    pub fn push_image<'a>(
        &self,
        row: &[f32],
        taps: impl Iterator<Item = &'a [f32]>,
        positions: [u32; 3],
        out: &mut Vec<f32>,
    ) {
        out.extend_from_slice(row);
        taps.for_each(|tap| out.extend_from_slice(tap));
        self.push_turns(positions, out);
    }

    fn push_turns(&self, positions: [u32; 3], out: &mut Vec<f32>) {
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
    /// By pair of a head, of `n`, which axis turns it.
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
