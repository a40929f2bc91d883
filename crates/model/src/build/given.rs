//! Rows that are given instead of tokens: embeddings, what is added after the first layers, and cosines and sines where positions have
//! three axes.

use device::{Activation, Op, RowCount, ValueId};

use super::Builder;
use crate::error::Result;
use crate::spec::LayerSpec;
use crate::vision::BothWays;

/// What a row of the input holds besides its embedding, and how rows see each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenShape {
    /// Additions, each as wide as the embedding.
    pub n_taps: usize,
    /// Heads for which there are cosines and sines; 0: none.
    pub n_heads: usize,
    /// Of each head.
    pub n_pairs: usize,
    /// Rows of a span that see each other both ways.
    pub both_ways: BothWays,
}

/// The parts of the input.
pub(super) struct Given {
    taps: Vec<ValueId>,
    /// Cosines and sines `(n, n_heads * n_pairs)`.
    pub turns: Option<(ValueId, ValueId)>,
    both_ways: BothWays,
}

impl Given {
    /// Whether rows of a span see each other both ways in a layer.
    pub fn sees_both_ways(&self, layer: &LayerSpec) -> bool {
        match self.both_ways {
            BothWays::Never => false,
            BothWays::Always => true,
            BothWays::InWindowsIfSaid => layer.window.is_some(),
        }
    }
}

impl Builder<'_, '_> {
    /// `(n, hidden)`
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

    /// What is given to be added after a layer, added.
    pub fn add_tap(&mut self, x: ValueId, layer: usize) -> ValueId {
        let Some(tap) = self.given.as_ref().and_then(|given| given.taps.get(layer).copied()) else {
            return x;
        };
        // After the last layer that mixes rows only those of outputs are left.
        let tap = if self.rows(x) == RowCount::Outputs {
            self.output_rows(tap, "addition of output rows")
        } else {
            tap
        };
        self.sum(x, tap, "sum with addition")
    }

    /// Turn the first columns of each head by cosines and sines of its pairs, which are the same for all heads.
    pub fn turn(
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
        let first = self.sum(a_cos, negative, "first turned");
        let second = self.sum(b_cos, a_sin, "second turned");
        let mut out = self.join_heads(first, second, n_heads, name);
        if n_dims < head_dim {
            let rest = self.part(x, (n_dims, head_dim - n_dims), head_dim, "rest of heads")?;
            out = self.join_heads(out, rest, n_heads, name);
        }
        Ok(out)
    }
}
