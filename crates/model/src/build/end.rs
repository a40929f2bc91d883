//! From the residual stream to what the caller wants: logits, hidden states, an embedding, encoder states.

use device::{DType, Op, RowCount, ValueId};

use super::{Builder, KvLayers};
use crate::embedding::EmbeddingSpec;
use crate::error::Result;
use crate::names::TensorRole;
use crate::spec::ModelSpec;

impl<'a> Builder<'a, '_> {
    /// The hidden states of the output rows `(n_outputs, hidden)`, and the largest column of each.
    pub fn hidden(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let selected = self.output_rows(x, "output rows");
        let out = self.final_norm(selected)?;
        Ok((out, self.argmax(out)))
    }

    /// Keys and values of the encoder's states, for each layer of the decoder; and the states of the output rows
    /// `(n_outputs, hidden)`, with the largest column of each.
    pub fn encoder_states(
        &mut self,
        x: ValueId,
        decoder: &'a ModelSpec,
        kv: &KvLayers,
    ) -> Result<(ValueId, ValueId)> {
        let states = self.final_norm(x)?;
        self.spec = decoder;
        self.tensors.turn_to(decoder.family);
        for l in 0..decoder.layers.len() {
            self.layer = Some(l);
            let k = self.linear(states, TensorRole::CrossK, "cross k")?;
            let v = self.linear(states, TensorRole::CrossV, "cross v")?;
            self.push(Op::KvWrite { k, v, layer: kv.encoder_states(l) });
        }
        self.layer = None;
        let selected = self.output_rows(states, "output rows");
        Ok((selected, self.argmax(selected)))
    }

    /// One vector for the sequence of each output `(n_outputs, hidden)`, and its largest column.
    pub fn embedding(&mut self, x: ValueId, embedding: &EmbeddingSpec) -> Result<(ValueId, ValueId)> {
        let x = self.final_norm(x)?;
        let hidden = self.spec.hidden;
        let mut out = self.value("pooled", RowCount::Outputs, hidden);
        self.push(Op::Pool { x, kind: embedding.pooling, out });
        if embedding.normalize {
            // x / sqrt(sum x^2) is x / sqrt(mean x^2) / sqrt(n). A vector of zeros stays one.
            let even = self.like(out, "evened");
            self.push(Op::RmsNorm {
                x: out,
                weight: None,
                eps: 1e-24 / hidden as f32,
                group: hidden,
                out: even,
            });
            out = self.like(even, "of length 1");
            self.push(Op::Scale { x: even, factor: 1.0 / (hidden as f32).sqrt(), out });
        }
        Ok((out, self.argmax(out)))
    }

    fn final_norm(&mut self, x: ValueId) -> Result<ValueId> {
        self.maybe_norm(self.spec.family.final_norm, x, TensorRole::OutputNorm, "output norm")
    }

    fn argmax(&mut self, x: ValueId) -> ValueId {
        let out = self.new_value("best token", RowCount::Outputs, 1, DType::U32);
        self.push(Op::Argmax { x, out });
        out
    }

    /// Logits `(n_outputs, n_vocab)` and the best of each row.
    pub fn head(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let n_vocab = self.spec.n_vocab;
        let selected = self.output_rows(x, "output rows");
        let normed = self.final_norm(selected)?;
        let role = if self.spec.tied_head { TensorRole::TokenEmbedding } else { TensorRole::Output };
        let mut logits = self.linear(normed, role, "logits")?;
        if self.spec.logit_scale != 1.0 {
            let out = self.value("scaled logits", RowCount::Outputs, n_vocab);
            self.push(Op::Scale { x: logits, factor: self.spec.logit_scale, out });
            logits = out;
        }
        if let Some(cap) = self.spec.logit_softcap {
            let out = self.value("capped logits", RowCount::Outputs, n_vocab);
            self.push(Op::Softcap { x: logits, cap, out });
            logits = out;
        }
        Ok((logits, self.argmax(logits)))
    }
}
