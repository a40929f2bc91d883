//! Input rows of embeddings instead of tokens. They also hold values added after the first layers,
//! and the cosines and sines of positions with three axes.

use device::{Activation, Op, RowCount, ValueId};

use super::{Builder, Given, GivenShape};
use crate::error::Result;

impl Builder<'_, '_> {
    /// `(n, hidden)`: the embeddings of the input rows.
    pub fn given(&mut self, shape: GivenShape) -> Result<ValueId> {
        let GivenShape { n_taps, n_heads, n_pairs, both_ways } = shape;
        let (hidden, n_turns) = (self.spec.hidden, n_heads * n_pairs);
        let cols = hidden * (1 + n_taps) + 2 * n_turns;
        let input = self.value("given rows", RowCount::Tokens, cols);
        self.push(Op::Input { out: input });
        let x = self.part(input, (0, hidden), cols, "given embedding")?;
        let mut taps = Vec::with_capacity(n_taps);
        for tap in 0..n_taps {
            taps.push(self.part(
                input,
                (hidden * (1 + tap), hidden),
                cols,
                &format!("given addition {tap}"),
            )?);
        }
        let turns = if n_turns > 0 {
            let cos = self.part(input, (cols - 2 * n_turns, n_turns), cols, "cosines")?;
            Some((cos, self.part(input, (cols - n_turns, n_turns), cols, "sines")?))
        } else {
            None
        };
        self.given = Some(Given { taps, turns, both_ways });
        Ok(x)
    }

    /// Adds the input's addition for a layer, if there is one.
    pub fn add_tap(&mut self, x: ValueId, layer: usize) -> ValueId {
        let Some(tap) = self.given.as_ref().and_then(|given| given.taps.get(layer).copied()) else {
            return x;
        };
        // After the last layer that mixes rows only the output rows remain.
        let tap = if self.rows(x) == RowCount::Outputs {
            self.output_rows(tap, "addition of output rows")
        } else {
            tap
        };
        self.sum(x, tap, "sum with addition")
    }

    /// Rotates the first columns of each head by the cosines and sines of its pairs, which all
    /// heads share.
    pub fn rotate(
        &mut self,
        x: ValueId,
        (cos, sin): (ValueId, ValueId),
        (n_dims, head_dim): (usize, usize),
        name: &str,
    ) -> Result<ValueId> {
        let half = n_dims / 2;
        let n_heads = self.values.get(x.0 as usize).map_or(0, |v| v.cols) / head_dim.max(1);
        let group = self.values.get(cos.0 as usize).map_or(0, |v| v.cols);
        let (cos, sin) = match n_heads * half == group {
            true => (cos, sin),
            false => (
                self.part(cos, (0, n_heads * half), group, "cosines of fewer heads")?,
                self.part(sin, (0, n_heads * half), group, "sines of fewer heads")?,
            ),
        };
        let a = self.part(x, (0, half), head_dim, "first of pairs")?;
        let b = self.part(x, (half, half), head_dim, "second of pairs")?;
        let product = |builder: &mut Self, gate: ValueId, up: ValueId| {
            let out = builder.like(gate, "product");
            builder.push(Op::Gate { gate, up, kind: Activation::Identity, out });
            out
        };
        let (a_cos, b_sin) = (product(self, a, cos), product(self, b, sin));
        let (b_cos, a_sin) = (product(self, b, cos), product(self, a, sin));
        let negative = self.scale(b_sin, -1.0, "negative");
        let first = self.sum(a_cos, negative, "first rotated");
        let second = self.sum(b_cos, a_sin, "second rotated");
        let mut out = self.join_heads(first, second, n_heads, name);
        if n_dims < head_dim {
            let rest = self.part(x, (n_dims, head_dim - n_dims), head_dim, "rest of heads")?;
            out = self.join_heads(out, rest, n_heads, name);
        }
        Ok(out)
    }
}
