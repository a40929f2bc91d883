//! Shapes of weights, computed from a model's numbers.

use crate::descriptor::{QkNorm, RecurrentKind};
use crate::names::TensorRole;
use crate::spec::{LayerSpec, ModelSpec};

/// The shape of a role's weight, outermost dimension first.
pub(crate) fn shape(spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Vec<usize> {
    use TensorRole::*;
    let none = LayerSpec::EMPTY;
    let layer = layer.and_then(|l| spec.layers.get(l)).unwrap_or(&none);
    let (hidden, head) = (spec.hidden, layer.head_dim);
    let (q, kv) = (layer.n_heads * head, layer.n_kv_heads * head);
    let latent = layer.latent;
    let whole_row = spec.family.qk_norm == QkNorm::WholeRow;
    let (n_experts, expert_ffn) = layer.experts.map_or((0, 0), |e| (e.n, e.ffn));
    let (n_layers, per_layer) = (spec.layers.len(), spec.per_layer_width);
    let (shared, inner) = layer.recurrent.map_or((0, 0), |r| (r.shared(), r.inner()));
    let (heads, conv) = layer.recurrent.map_or((0, 0), |r| (r.n_heads, r.conv_size));
    // Rows of a head's state and columns of a head, if each row has its own decay.
    let by_rows = layer.recurrent.filter(|r| r.by_rows).map(|r| (r.rows, r.head_dim));
    let expert_in = layer.experts.and_then(|e| e.latent).unwrap_or(hidden);
    let size = spec.family.convolutions.iter().find(|c| c.role == role).map_or(0, |c| c.size);
    match role {
        TokenEmbedding | Output => vec![spec.n_vocab, hidden],
        PositionEmbedding => vec![spec.n_ctx_train + spec.first_position, hidden],
        // The file may have further rows.
        TokenTypes => vec![1, hidden],
        EmbeddingNorm => vec![hidden],
        NextEmbeddingNorm | NextHiddenNorm | NextOutputNorm => vec![hidden],
        NextProjection => vec![hidden, 2 * hidden],
        OutputNorm | AttnNorm | PostAttnNorm | FfnNorm | PostFfnNorm => vec![hidden],
        RopeDivisors | RopeShort | RopeLong => vec![layer.rope.as_ref().map_or(0, |r| r.n_dims / 2)],
        AttnQ if spec.family.attention_gate => vec![2 * q, hidden],
        AttnQ => vec![latent.map_or(q, |l| layer.n_heads * (l.plain + l.turning)), hidden],
        AttnK | AttnV => vec![kv, hidden],
        AttnQNorm => vec![if whole_row { q } else { head }],
        AttnKNorm => vec![if whole_row { kv } else { head }],
        AttnOut => vec![hidden, latent.map_or(q, |l| layer.n_heads * l.value)],
        AttnSinks => vec![layer.n_heads],
        AttnQA => vec![latent.and_then(|l| l.query_rank).unwrap_or(0), hidden],
        AttnQANorm => vec![latent.and_then(|l| l.query_rank).unwrap_or(0)],
        AttnQB => vec![
            latent.map_or(0, |l| layer.n_heads * (l.plain + l.turning)),
            latent.and_then(|l| l.query_rank).unwrap_or(0),
        ],
        AttnKvA => vec![latent.map_or(0, |l| l.rank + l.turning), hidden],
        AttnKvANorm => vec![latent.map_or(0, |l| l.rank)],
        AttnKvB => latent.map_or(vec![0, 0], |l| vec![layer.n_heads * (l.plain + l.value), l.rank]),
        AttnKB => latent.map_or(vec![0; 3], |l| vec![layer.n_heads, l.rank, l.plain]),
        AttnVB => latent.map_or(vec![0; 3], |l| vec![layer.n_heads, l.value, l.rank]),
        RouterBias => vec![n_experts],
        ExpertGateBias | ExpertUpBias => vec![n_experts, expert_ffn],
        ExpertDownBias => vec![n_experts, hidden],
        FfnGate | FfnUp => vec![layer.ffn, hidden],
        FfnDown => vec![hidden, layer.ffn],
        ExpertNorm | PostDenseNorm | PostExpertNorm | RouterScale | PostPerLayerNorm => vec![hidden],
        LayerScale => vec![1],
        SharedWeight => vec![1, hidden],
        Router => vec![n_experts, hidden],
        ExpertScale => vec![n_experts],
        ExpertGate | ExpertUp => vec![n_experts, expert_ffn, expert_in],
        ExpertDown => vec![n_experts, expert_in, expert_ffn],
        PerLayerEmbedding => vec![spec.n_vocab, n_layers * per_layer],
        PerLayerModel => vec![n_layers * per_layer, hidden],
        PerLayerNorm => vec![per_layer],
        PerLayerGate => vec![per_layer, hidden],
        PerLayerOut => vec![hidden, per_layer],
        Conv1 => vec![hidden, spec.n_inputs, size],
        Conv2 => vec![hidden, hidden, size],
        CrossNorm => vec![hidden],
        CrossQ => vec![q, hidden],
        CrossK | CrossV => vec![kv, hidden],
        CrossOut => vec![hidden, q],
        RecurrentQ | RecurrentK => vec![shared, hidden],
        RecurrentV => vec![inner, hidden],
        RecurrentGate => vec![inner, by_rows.map_or(hidden, |(_, cols)| cols)],
        RecurrentBeta => vec![heads, hidden],
        RecurrentStep => by_rows.map_or(vec![heads, hidden], |(rows, cols)| vec![heads * rows, cols]),
        GateDown | StepDown => vec![by_rows.map_or(0, |(_, cols)| cols), hidden],
        RecurrentAll => vec![2 * (shared + inner), hidden],
        RecurrentBetaStep => vec![2 * heads, hidden],
        ConvQ | ConvK => vec![shared, conv],
        ConvV => vec![inner, conv],
        StepBias => vec![heads * by_rows.map_or(1, |(rows, _)| rows)],
        Rate | Skip => vec![heads],
        RecurrentNorm => vec![match layer.recurrent {
            Some(r) if r.kind == RecurrentKind::GatedDelta => r.head_dim,
            _ => inner,
        }],
        RecurrentOut => vec![hidden, inner],
        LatentDown => vec![expert_in, hidden],
        LatentUp => vec![hidden, expert_in],
        StreamsIn | StreamsOut => vec![spec.n_streams.saturating_sub(1), hidden, hidden],
        StreamNorm | StreamScale | LaurelNorm => vec![hidden],
        StreamRouter => vec![spec.n_streams, hidden],
        StreamPredictions => vec![spec.n_streams * spec.n_streams, spec.n_streams],
        StreamCorrections => vec![spec.n_streams, spec.n_streams],
        LaurelDown => vec![spec.laurel_rank, hidden],
        LaurelUp => vec![hidden, spec.laurel_rank],
    }
}
