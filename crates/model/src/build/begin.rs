//! From the input, tokens or rows of numbers, to the residual stream.

use device::{DType, Op, RowCount, ValueId};

use super::Builder;
use crate::error::Result;
use crate::names::TensorRole;

impl Builder<'_, '_> {
    /// Embeds tokens: `(n, hidden)`.
    pub fn embed(&mut self) -> Result<ValueId> {
        let table = self.matrix(TensorRole::TokenEmbedding)?;
        let out = self.value("embedding", RowCount::Tokens, self.spec.hidden);
        self.push(Op::Embed { table, scale: self.spec.embedding_scale, out });
        let mut x = self.add_positions(out)?;
        if !self.spec.family.learned_positions
            && let Some(first) = self.tensors.first_type(self.spec)?
        {
            let bias = self.weight(first);
            let ids = self.new_value("token type", RowCount::Tokens, 1, DType::U32);
            self.push(Op::Ordinals { out: ids });
            let out = self.like(x, "embedding with type");
            self.push(Op::ExpertBias { x, ids, bias, out });
            x = out;
        }
        self.maybe_norm(self.spec.family.embedding_norm, x, TensorRole::EmbeddingNorm, "embedding norm")
    }

    /// `(n, hidden)`: convolutions over input rows of numbers, each followed by the activation.
    pub fn input(&mut self) -> Result<ValueId> {
        let family = self.spec.family;
        let mut per_token = family.input_stride();
        let mut cols = self.spec.n_inputs;
        let mut x = self.value("input", RowCount::PerToken(per_token), cols);
        self.push(Op::Input { out: x });
        for (i, convolution) in family.convolutions.iter().enumerate() {
            let (size, stride) = (convolution.size, convolution.stride);
            per_token /= stride;
            let unfolded =
                self.value(&format!("convolution {i} input"), RowCount::PerToken(per_token), cols * size);
            self.push(Op::Unfold { x, size, stride, out: unfolded });
            let y = self.linear(unfolded, convolution.role, &format!("convolution {i}"))?;
            x = self.like(y, &format!("convolution {i} activated"));
            self.push(Op::Activate { x: y, kind: self.spec.activation, out: x });
            cols = self.spec.hidden;
        }
        self.add_positions(x)
    }

    /// Adds the learned position embeddings, if the family has them.
    fn add_positions(&mut self, x: ValueId) -> Result<ValueId> {
        if !self.spec.family.learned_positions {
            return Ok(x);
        }
        let table = self.tensors.positions(self.spec)?;
        let table = self.weight(table);
        let positions = self.like(x, "position embedding");
        self.push(Op::EmbedPositions { table, out: positions });
        Ok(self.sum(x, positions, "embedding sum"))
    }

    /// `(n, n_layers * per layer)`: the per-layer inputs, from the token and its embedding.
    pub fn per_layer_inputs(&mut self, x: ValueId) -> Result<ValueId> {
        let (width, hidden) = (self.spec.per_layer_width, self.spec.hidden);
        let cols = width * self.spec.layers.len();
        let table = self.matrix(TensorRole::PerLayerEmbedding)?;
        let token = self.value("per-layer embedding", RowCount::Tokens, cols);
        self.push(Op::Embed { table, scale: (width as f32).sqrt(), out: token });
        let y = self.linear(x, TensorRole::PerLayerModel, "per-layer projection")?;
        let y = self.scale(y, (hidden as f32).sqrt().recip(), "per-layer projection scaled");
        let y = self.norm(y, TensorRole::PerLayerNorm, width, "per-layer norm")?;
        let y = self.sum(y, token, "per-layer sum");
        Ok(self.scale(y, std::f32::consts::FRAC_1_SQRT_2, "per-layer inputs"))
    }
}
