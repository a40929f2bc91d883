//! AltUp: several residual streams, of which a layer computes one (Baykal et al., "Alternating
//! Updates for Efficient Transformers", 2023). Before a layer each stream is predicted from all
//! streams. After it each is corrected by the layer's change of the first. A low-rank residual runs
//! beside the layer (LAuReL: Menghani, Kumar and Kumar, 2024).
//!
//! The streams of a row are one value `(n, n_streams * hidden)`. Factors on streams differ between
//! rows, so a sum of streams is an [`Op::ExpertSum`].

use device::{Activation, KvLayerId, Op, ValueId, Weight};

use super::Builder;
use crate::error::Result;
use crate::names::TensorRole;
use crate::spec::LayerSpec;

/// Epsilon added to a mean of squares. It keeps a row of zeros at zero and is negligible for other
/// rows.
const TINY: f32 = 1e-12;

impl Builder<'_, '_> {
    /// Builds the streams from the embedding: the embedding, and projections of it scaled to its
    /// magnitude.
    pub fn streams(&mut self, x: ValueId) -> Result<ValueId> {
        let others = self.other_streams(x, TensorRole::StreamsIn, "other streams")?;
        let others = self.scaled_to(others, x, "other streams of the embedding's magnitude");
        Ok(self.join_heads(x, others, 1, "streams"))
    }

    /// `(n, hidden)`: the mean of the first stream and of projections of the others, scaled to its
    /// magnitude.
    pub fn mean_of_streams(&mut self, streams: ValueId) -> Result<ValueId> {
        let (n, hidden) = (self.spec.n_streams, self.spec.hidden);
        let first = self.part(streams, (0, hidden), n * hidden, "first stream")?;
        let others = self.part(streams, (hidden, (n - 1) * hidden), n * hidden, "other streams")?;
        let others = self.other_streams(others, TensorRole::StreamsOut, "other streams out")?;
        let others = self.scaled_to(others, first, "other streams of the first's magnitude");
        let mut sum = first;
        for i in 0..n - 1 {
            let other = self.part(others, (i * hidden, hidden), (n - 1) * hidden, "other stream")?;
            sum = self.sum(sum, other, "sum of streams");
        }
        Ok(self.scale(sum, 1.0 / n as f32, "mean of streams"))
    }

    /// Builds a layer over the streams. `inputs` are the per-layer inputs; `ends` is that of
    /// [`mix`](Self::mix).
    pub fn layer_over_streams(
        &mut self,
        streams: ValueId,
        inputs: ValueId,
        (l, kv_layer): (usize, KvLayerId),
        layer: &LayerSpec,
        ends: bool,
    ) -> Result<ValueId> {
        let mut predicted = self.predictions(streams)?;
        let input = self.norm(predicted[0], TensorRole::AttnNorm, self.spec.hidden, "attention norm")?;
        let attended = self.attention_branch(input, kv_layer, layer, ends)?;
        let (mut input, mut inputs) = (input, inputs);
        if ends {
            for x in predicted.iter_mut().chain([&mut input, &mut inputs]) {
                *x = self.output_rows(*x, "output rows");
            }
        }
        let hidden = self.spec.hidden;
        let attended = self.norm(attended, TensorRole::PostAttnNorm, hidden, "post-attention norm")?;
        let attended = self.sum(predicted[0], attended, "attention residual");
        let low_rank = self.low_rank_residual(input)?;
        let x = self.sum(attended, low_rank, "attention and low-rank residual");
        let x = self.scale(x, std::f32::consts::FRAC_1_SQRT_2, "attention and low-rank residual scaled");
        let x = self.feed_forward(x, layer)?;

        let corrected = self.corrections(x, &predicted)?;
        let addition = self.addition(corrected[0], inputs, l)?;
        let mut joined = corrected[0];
        for stream in &corrected[1..] {
            let stream = self.sum(*stream, addition, "stream");
            joined = self.join_heads(joined, stream, 1, "streams");
        }
        Ok(joined)
    }

    /// Predicts each stream from all: `stream_j + sum over i of c[j, i] * stream_i`, with `c` for
    /// each row.
    fn predictions(&mut self, streams: ValueId) -> Result<Vec<ValueId>> {
        let (n, hidden) = (self.spec.n_streams, self.spec.hidden);
        let first = self.part(streams, (0, hidden), n * hidden, "first stream")?;
        let routed = self.stream_router(first, "router of predictions")?;
        let identity: Vec<f32> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
        let identity = Weight::vector(format!("identity ({n})"), &identity);
        let factors = self.coefficients(routed, TensorRole::StreamPredictions, identity, "predictions")?;
        (0..n)
            .map(|j| {
                let own = self.part(factors, (j * n, n), n * n, "factors of a prediction")?;
                Ok(self.weighted_sum(streams, own, "prediction"))
            })
            .collect()
    }

    /// Corrects each stream by the layer's change of the first: `prediction_j + (1 + c[j]) * (x -
    /// prediction_0)`, with `c` for each row.
    fn corrections(&mut self, x: ValueId, predicted: &[ValueId]) -> Result<Vec<ValueId>> {
        let n = predicted.len();
        let routed = self.stream_router(x, "router of corrections")?;
        let ones = Weight::vector(format!("ones ({n})"), &vec![1.0; n]);
        let factors = self.coefficients(routed, TensorRole::StreamCorrections, ones, "corrections")?;
        let minus = self.scale(predicted[0], -1.0, "minus the prediction");
        let change = self.sum(x, minus, "change");
        predicted
            .iter()
            .enumerate()
            .map(|(j, prediction)| {
                let own = self.part(factors, (j, 1), n, "factor of a correction")?;
                let correction = self.weighted_sum(change, own, "correction");
                Ok(self.sum(*prediction, correction, "corrected"))
            })
            .collect()
    }

    /// Low-rank residual: `x + norm(up(down(x)))`.
    fn low_rank_residual(&mut self, x: ValueId) -> Result<ValueId> {
        let low = self.linear(x, TensorRole::LaurelDown, "low-rank down")?;
        let y = self.linear(low, TensorRole::LaurelUp, "low-rank up")?;
        let y = self.norm(y, TensorRole::LaurelNorm, self.spec.hidden, "low-rank norm")?;
        Ok(self.sum(x, y, "low-rank residual"))
    }

    /// The contribution of the per-layer input to the other streams: `norm(out(f(gate(scale * x)) *
    /// input))`.
    fn addition(&mut self, x: ValueId, inputs: ValueId, l: usize) -> Result<ValueId> {
        let weight = self.tensors.columns_scaled(
            self.spec,
            TensorRole::PerLayerGate,
            TensorRole::StreamScale,
            self.layer,
        )?;
        let gate = self.product_with(x, weight, None, "input gate");
        self.per_layer_output(gate, inputs, l)
    }

    /// Sparse gates: `relu(gate - mean - cutoff * deviation)`, with the mean and standard deviation
    /// of each row. It is computed as `deviation * relu((gate - mean) / deviation - cutoff)`. The
    /// deviation is the mean of `gate * (gate - mean) / deviation`.
    pub fn cut_off(&mut self, gate: ValueId, cutoff: f32) -> ValueId {
        let cols = self.cols(gate);
        let ones = self.weight(Weight::vector(format!("ones ({cols})"), &vec![1.0; cols]));
        let minus = Weight::vector(format!("minus {cutoff} ({cols})"), &vec![-cutoff; cols]);
        let minus = self.weight(minus);
        let mut normed = |bias, name: &str| {
            let out = self.like(gate, name);
            self.push(Op::LayerNorm { x: gate, weight: ones, bias, eps: TINY, out });
            out
        };
        let even = normed(None, "gate of deviation 1");
        let above = normed(Some(minus), "gate above the cutoff");
        let deviation = self.mean_of_product(gate, even, "deviation of the gate");
        let positive = self.like(above, "gate cut off");
        self.push(Op::Activate { x: above, kind: Activation::Relu, out: positive });
        self.weighted_sum(positive, deviation, "gate cut off and scaled")
    }

    /// `tanh(router(norm(x) / hidden))`, `(n, n_streams)`.
    fn stream_router(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let hidden = self.spec.hidden;
        let factor = (hidden as f32).recip();
        let weight = self.tensors.scaled(self.spec, TensorRole::StreamNorm, self.layer, factor)?;
        let weight = self.weight(weight);
        let normed = self.plain_norm(x, Some(weight), hidden, &format!("{name} norm"));
        let routed = self.linear(normed, TensorRole::StreamRouter, name)?;
        let out = self.like(routed, &format!("{name} tanh"));
        self.push(Op::Softcap { x: routed, cap: 1.0, out });
        Ok(out)
    }

    /// The product with a small matrix in f32, plus a bias.
    fn coefficients(&mut self, x: ValueId, role: TensorRole, bias: Weight, name: &str) -> Result<ValueId> {
        let matrix = self.tensors.flat(self.spec, role, self.layer, 1.0)?;
        Ok(self.product_with(x, matrix, Some(bias), &format!("factors of {name}")))
    }

    /// Products with the matrices of all streams but the first. Each reads the whole row, or its
    /// own part of it.
    fn other_streams(&mut self, x: ValueId, role: TensorRole, name: &str) -> Result<ValueId> {
        let weight = self.tensors.experts(self.spec, role, None)?;
        let weight = self.weight(weight);
        Ok(self.each_head(x, weight, self.spec.n_streams - 1, self.spec.hidden, name))
    }

    /// Scales each stream of `x` to the root mean square of the row `like`.
    fn scaled_to(&mut self, x: ValueId, like: ValueId, name: &str) -> ValueId {
        let hidden = self.spec.hidden;
        let mut even = |x: ValueId, name: &str| {
            let out = self.like(x, name);
            self.push(Op::RmsNorm { x, weight: None, eps: TINY, group: hidden, out });
            out
        };
        let (of_like, of_x) = (even(like, "row of magnitude 1"), even(x, "streams of magnitude 1"));
        let magnitude = self.mean_of_product(like, of_like, "magnitude");
        self.weighted_sum(of_x, magnitude, name)
    }

    /// `(n, 1)`: the mean of `a * b` over the columns.
    fn mean_of_product(&mut self, a: ValueId, b: ValueId, name: &str) -> ValueId {
        let cols = self.cols(a);
        let product = self.like(a, &format!("{name}, product"));
        self.push(Op::Gate { gate: a, up: b, kind: Activation::Identity, out: product });
        let mean = vec![(cols as f32).recip(); cols];
        let mean = Weight { shape: vec![1, cols], ..Weight::vector(format!("mean of {cols}"), &mean) };
        self.product_with(product, mean, None, name)
    }

    /// The product with a matrix computed at load.
    fn product_with(&mut self, x: ValueId, matrix: Weight, bias: Option<Weight>, name: &str) -> ValueId {
        let out = self.value(name, self.rows(x), matrix.n_rows());
        let weight = self.weight(matrix);
        let bias = bias.map(|bias| self.weight(bias));
        self.push(Op::Linear { x, weight, bias, out });
        out
    }

    /// The sum of a row's parts, each times its factor.
    fn weighted_sum(&mut self, x: ValueId, weights: ValueId, name: &str) -> ValueId {
        let out = self.value(name, self.rows(x), self.cols(x) / self.cols(weights).max(1));
        self.push(Op::ExpertSum { x, weights, out });
        out
    }
}
