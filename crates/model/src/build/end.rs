//! From the residual stream to the result: logits, hidden states, an embedding, or encoder states.

use device::{Activation, DType, Op, RowCount, ValueId, Weight};

use super::{Builder, KvLayers};
use crate::embedding::{Answers, DenseSpec, EmbeddingSpec};
use crate::error::{Error, Result};
use crate::names::TensorRole;
use crate::spec::ModelSpec;

impl<'a> Builder<'a, '_> {
    /// The hidden states of the output rows `(n_outputs, hidden)`, and the argmax of each row.
    pub fn hidden(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let selected = self.output_rows(x, "output rows");
        let out = self.final_norm(selected)?;
        Ok((out, self.argmax(out)))
    }

    /// Writes keys and values of the encoder's states for each decoder layer. Returns the states of
    /// the output rows `(n_outputs, hidden)` and the argmax of each row.
    pub fn encoder_states(
        &mut self,
        x: ValueId,
        decoder: &'a ModelSpec,
        kv: &KvLayers,
    ) -> Result<(ValueId, ValueId)> {
        let states = self.final_norm(x)?;
        self.spec = decoder;
        self.tensors.use_names_of(decoder.family);
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

    /// One vector for the sequence of each output, `(n_outputs, hidden)`, and its argmax.
    pub fn embedding(&mut self, x: ValueId, embedding: &EmbeddingSpec) -> Result<(ValueId, ValueId)> {
        let x = self.final_norm(x)?;
        if !embedding.pools {
            let out = self.output_rows(x, "output rows");
            return Ok((out, self.argmax(out)));
        }
        let hidden = self.spec.hidden;
        let mut out = self.value("pooled", RowCount::Outputs, hidden);
        self.push(Op::Pool { x, kind: embedding.pooling, out });
        if let Some(answers) = &embedding.answers {
            let out = self.answer_probability(out, answers)?;
            return Ok((out, self.argmax(out)));
        }
        for dense in &embedding.dense {
            out = self.dense(out, dense)?;
        }
        let hidden = self.values.get(out.0 as usize).map_or(hidden, |v| v.cols);
        if embedding.normalize {
            // x / sqrt(sum x^2) is x / sqrt(mean x^2) / sqrt(n). The epsilon keeps a vector of
            // zeros at zero.
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

    /// The first answer's probability among the two, `(n_outputs, 1)`. The softmax of two logits is
    /// the sigmoid of their difference, and the difference is one product with the difference of
    /// their rows.
    fn answer_probability(&mut self, x: ValueId, answers: &Answers) -> Result<ValueId> {
        let hidden = self.spec.hidden;
        let missing = |name: &str| Error::MissingTensor {
            name: name.to_owned(),
            naming: self.spec.naming,
            role: "rows of the answers".to_owned(),
            shape: vec![2, hidden],
        };
        let matrix = match &answers.tensor {
            Some(name) => self.tensors.by_its_name(name)?.ok_or_else(|| missing(name))?,
            None => {
                let tied = self.spec.tied_head;
                let role = if tied { TensorRole::TokenEmbedding } else { TensorRole::Output };
                self.tensors.matrix(self.spec, role, None)?
            }
        };
        if matrix.n_cols() != hidden || answers.rows.iter().any(|row| *row >= matrix.n_rows()) {
            return Err(Error::BadTensor {
                name: matrix.name.clone(),
                found: format!("shape {:?}", matrix.shape),
                expected: format!("rows of {hidden} for the answers {:?}", answers.rows),
            });
        }
        let [yes, no] = answers.rows.map(|row| {
            let mut values = vec![0.0; hidden];
            matrix.decode_rows(row..row + 1, &mut values);
            values
        });
        let difference: Vec<f32> = yes.iter().zip(&no).map(|(yes, no)| yes - no).collect();
        let weight = Weight { shape: vec![1, hidden], ..Weight::vector("yes less no", &difference) };
        let weight = self.weight(weight);
        let logit = self.value("yes over no", RowCount::Outputs, 1);
        self.push(Op::Linear { x, weight, bias: None, out: logit });
        let scaled = self.scaled(logit, self.spec.logit_scale, "scaled logit");
        let out = self.like(scaled, "probability of yes");
        self.push(Op::Activate { x: scaled, kind: Activation::Sigmoid, out });
        Ok(out)
    }

    /// A layer after pooling, with tensors named by the file.
    fn dense(&mut self, x: ValueId, dense: &DenseSpec) -> Result<ValueId> {
        let missing = || Error::MissingTensor {
            name: format!("{}.weight", dense.name),
            naming: self.spec.naming,
            role: "layer after pooling".to_owned(),
            shape: vec![],
        };
        let weight = self.tensors.by_its_name(&format!("{}.weight", dense.name))?.ok_or_else(missing)?;
        let n_out = weight.n_rows();
        let weight = self.weight(weight);
        let bias = self.tensors.by_its_name(&format!("{}.bias", dense.name))?;
        let bias = bias.map(|bias| self.weight(bias));
        let out = self.value("dense", RowCount::Outputs, n_out);
        self.push(Op::Linear { x, weight, bias, out });
        if !dense.tanh {
            return Ok(out);
        }
        let bent = self.like(out, "dense tanh");
        self.push(Op::Softcap { x: out, cap: 1.0, out: bent });
        Ok(bent)
    }

    fn final_norm(&mut self, x: ValueId) -> Result<ValueId> {
        self.maybe_norm(self.spec.family.final_norm, x, TensorRole::OutputNorm, "output norm")
    }

    fn argmax(&mut self, x: ValueId) -> ValueId {
        let out = self.new_value("best token", RowCount::Outputs, 1, DType::U32);
        self.push(Op::Argmax { x, out });
        out
    }

    /// Logits `(n_outputs, n_vocab)`, and the argmax of each row.
    pub fn head(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let normed = if self.spec.n_next > 0 {
            // The layer for multi-token prediction reads this state of every row.
            let normed = self.final_norm(x)?;
            self.kept.push(normed);
            self.output_rows(normed, "output rows")
        } else {
            let selected = self.output_rows(x, "output rows");
            self.final_norm(selected)?
        };
        self.logits(normed)
    }

    /// Logits of normalised states `(n_outputs, hidden)`, and the argmax of each row.
    pub fn logits(&mut self, normed: ValueId) -> Result<(ValueId, ValueId)> {
        let n_vocab = self.spec.n_vocab;
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
