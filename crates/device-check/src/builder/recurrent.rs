//! Recurrent layers.

use device::{Activation, Op, StateId, ValueId, Weight, WeightId};
use weights::BlockType;

use super::PlanBuilder;

/// Heads of a recurrent layer, each with a state of `rows` by `cols`. The `n_shared` heads are
/// those that several heads share.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The struct's comment describes them.
pub struct RecurrentShape {
    pub n_shared: usize,
    pub n_heads: usize,
    pub rows: usize,
    pub cols: usize,
}

impl PlanBuilder {
    /// A ShortConv with random taps and a state of its own.
    pub fn short_conv(&mut self, x: ValueId, size: usize, bias: bool) -> ValueId {
        let cols = self.plan.value(x).cols;
        let weight = self.matrix(cols, size, BlockType::F32);
        let bias = bias.then(|| self.vector("bias", cols, 0.0, 0.5));
        let state = self.state((size - 1) * cols);
        self.like(x, |out| Op::ShortConv { x, weight, bias, state, out })
    }

    /// A GatedDelta with keys of length 1, random rates and a state of its own. With `per_row`,
    /// each row of the state has its own step.
    pub fn gated_delta(&mut self, x: ValueId, shape: RecurrentShape, tiled: bool, per_row: bool) -> ValueId {
        let RecurrentShape { n_shared, n_heads, rows, cols } = shape;
        let norm = self.weight(Weight::vector("length 1", &vec![(rows as f32).sqrt().recip(); rows]));
        let unit = |b: &mut PlanBuilder| {
            let y = b.linear(x, n_shared * rows, BlockType::F32, false);
            b.like(y, |out| Op::RmsNorm { x: y, weight: Some(norm), eps: 1e-6, group: rows, out })
        };
        let (q, k) = (unit(self), unit(self));
        let v = self.linear(x, n_heads * cols, BlockType::F32, false);
        let step = self.linear(x, n_heads * if per_row { rows } else { 1 }, BlockType::F32, true);
        let step = self.activate(step, Activation::Softplus);
        let beta = self.linear(x, n_heads, BlockType::F32, false);
        let beta = self.activate(beta, Activation::Sigmoid);
        let rate = self.rates(n_heads);
        let state = self.state(n_heads * rows * cols);
        let (n_key_heads, scale) = (n_shared, 0.7);
        self.like(v, |out| Op::GatedDelta {
            q,
            k,
            v,
            step,
            beta,
            rate,
            n_key_heads,
            n_heads,
            tiled,
            scale,
            state,
            out,
        })
    }

    /// A SelectiveScan with random rates and a state of its own.
    pub fn selective_scan(&mut self, x: ValueId, shape: RecurrentShape, skip: bool) -> ValueId {
        let RecurrentShape { n_shared, n_heads, rows, cols } = shape;
        let b = self.linear(x, n_shared * rows, BlockType::F32, false);
        let c = self.linear(x, n_shared * rows, BlockType::F32, false);
        let step = self.linear(x, n_heads, BlockType::F32, true);
        let step = self.activate(step, Activation::Softplus);
        let x = self.linear(x, n_heads * cols, BlockType::F32, false);
        let skip = skip.then(|| self.vector("skip", n_heads, 1.0, 0.5));
        let rate = self.rates(n_heads);
        let state = self.state(n_heads * rows * cols);
        let n_groups = n_shared;
        self.like(x, |out| Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out })
    }

    /// Rates from slow to fast decay.
    fn rates(&mut self, n_heads: usize) -> WeightId {
        let rates: Vec<f32> = (0..n_heads).map(|h| -0.01 * 3f32.powi(h as i32 % 7)).collect();
        self.weight(Weight::vector("rates", &rates))
    }

    /// Adds a state of `len` numbers.
    fn state(&mut self, len: usize) -> StateId {
        self.states.push(len);
        StateId(self.states.len() as u32 - 1)
    }
}
