//! The layer for multi-token prediction, after the last layer (DeepSeek-V3, arXiv:2412.19437,
//! section 2.2).
//!
//! `x_i = eh_proj [norm(embedding of token i + 1); norm(h_i)]`, where `h_i` is the state that the
//! main model's head reads. A layer of the family, a norm of its own and the main model's head
//! follow. The result predicts token `i + 2`. To draft further tokens, the layer's own normalised
//! result replaces `h_(i + 1)`.

use device::{Op, OutputKind, Plan, RowCount};

use super::{Builder, KvLayers};
use crate::error::Result;
use crate::names::TensorRole;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;

/// Builds the layer for contexts up to `n_ctx`, from tokens and an input `(n, hidden)` of the
/// states before them. Its keys and values are one more layer of the KV cache, beside the `states`
/// of the model's recurrent layers. The plan keeps the rows that its head reads, `(n_outputs,
/// hidden)`.
pub(crate) fn build_next(
    spec: &ModelSpec,
    tensors: &mut Tensors<'_>,
    n_ctx: usize,
    states: Vec<usize>,
) -> Result<Plan> {
    tensors.use_names_of(spec.family);
    let kv = KvLayers::of(spec);
    let mut builder = Builder::new(spec, tensors, n_ctx, None);
    builder.states = states;
    let (hidden, index) = (spec.hidden, spec.n_layers());
    let embedding = builder.embed()?;
    let state = builder.value("state", RowCount::Tokens, hidden);
    builder.push(Op::Input { out: state });
    builder.layer = Some(index);
    let embedding = builder.norm(embedding, TensorRole::NextEmbeddingNorm, hidden, "embedding norm")?;
    let state = builder.norm(state, TensorRole::NextHiddenNorm, hidden, "state norm")?;
    let both = builder.join_heads(embedding, state, 1, "embedding and state");
    let mut x = builder.linear(both, TensorRole::NextProjection, "projection")?;
    for layer in spec.layers.iter().skip(index) {
        x = builder.mix(x, kv.own(index), layer, true)?;
        x = builder.feed_forward(x, layer)?;
    }
    let normed = builder.norm(x, TensorRole::NextOutputNorm, hidden, "output norm")?;
    builder.kept.push(normed);
    builder.layer = None;
    let (output, argmax) = builder.logits(normed)?;
    builder.finish(kv, output, argmax, OutputKind::Logits)
}
