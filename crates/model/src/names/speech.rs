//! Names of the numbers and tensors of speech models, encoder and decoder, in three kinds of files.

use super::{Key, KeyNames, TensorName, TensorRole, TensorRole::*};

const fn names(key: Key, hf: &'static str, ctranslate2: &'static str, whisper_cpp: &'static str) -> KeyNames {
    KeyNames { key, hf, ctranslate2, whisper_cpp }
}

/// Key names of the decoder's numbers. CTranslate2 stores few; the others are read from tensor
/// shapes.
#[rustfmt::skip]
pub const WHISPER_DECODER_KEYS: &[KeyNames] = &[
    names(Key::Layers, "decoder_layers", "", "n_text_layer"),
    names(Key::Hidden, "d_model", "", "n_text_state"),
    names(Key::Heads, "decoder_attention_heads", "decoder/num_heads", "n_text_head"),
    names(Key::Ffn, "decoder_ffn_dim", "", ""),
    names(Key::Vocab, "vocab_size", "", "n_vocab"),
    names(Key::Context, "max_target_positions", "", "n_text_ctx"),
    names(Key::Activation, "activation_function", "", ""),
    names(Key::TiedHead, "tie_word_embeddings", "", ""),
];

/// Key names of the encoder's numbers.
#[rustfmt::skip]
pub const WHISPER_ENCODER_KEYS: &[KeyNames] = &[
    names(Key::Layers, "encoder_layers", "", "n_audio_layer"),
    names(Key::Hidden, "d_model", "", "n_audio_state"),
    names(Key::Heads, "encoder_attention_heads", "encoder/num_heads", "n_audio_head"),
    names(Key::Ffn, "encoder_ffn_dim", "", ""),
    names(Key::Inputs, "num_mel_bins", "", "n_mels"),
    names(Key::Context, "max_source_positions", "", "n_audio_ctx"),
    names(Key::Activation, "activation_function", "", ""),
];

/// Settings that must have these values if the file has them. Embeddings are not scaled, norms
/// precede the branches, and activation 3 is GELU by the error function.
pub const WHISPER_SETTINGS: &[(&str, i128)] = &[
    ("scale_embedding", 0),
    ("decoder/scale_embeddings", 0),
    ("decoder/start_from_zero_embedding", 0),
    ("decoder/alibi", 0),
    ("decoder/pre_norm", 1),
    ("decoder/activation", 3),
];

/// Numbers that may be read from tensor shapes: the role of the tensor and its dimension, outermost
/// first. The number of layers is read from tensor names instead.
pub const KEYS_FROM_SHAPES: &[(Key, TensorRole, usize)] = &[
    (Key::Layers, AttnNorm, 0),
    (Key::Hidden, PositionEmbedding, 1),
    (Key::Context, PositionEmbedding, 0),
    (Key::Vocab, TokenEmbedding, 0),
    (Key::Ffn, FfnUp, 0),
    (Key::Inputs, Conv1, 1),
    (Key::LaurelRank, LaurelDown, 0),
];

const fn alone(
    role: TensorRole,
    hf: &'static str,
    ctranslate2: &'static str,
    whisper_cpp: &'static str,
) -> TensorName {
    TensorName {
        role,
        gguf: "",
        hf,
        ctranslate2,
        whisper_cpp,
        stacked: &[],
        transposed: false,
        interleaved: false,
    }
}

/// CTranslate2 stacks matrices that read the same input.
const fn stacked(ctranslate2: &'static str, stacked: &'static [TensorRole]) -> TensorName {
    TensorName { stacked, ..alone(stacked[0], "", ctranslate2, "") }
}

/// Whisper's encoder: convolutions, positions, and layers with bidirectional attention.
#[rustfmt::skip]
pub const WHISPER_ENCODER: &[TensorName] = &[
    alone(Conv1, "{model}encoder.conv1", "encoder/conv1", "encoder.conv1"),
    alone(Conv2, "{model}encoder.conv2", "encoder/conv2", "encoder.conv2"),
    alone(PositionEmbedding, "{model}encoder.embed_positions", "encoder/position_encodings/encodings$", "encoder.positional_embedding$"),
    alone(OutputNorm, "{model}encoder.layer_norm", "encoder/layer_norm", "encoder.ln_post"),
    alone(AttnNorm, "{model}encoder.layers.{l}.self_attn_layer_norm", "encoder/layer_{l}/self_attention/layer_norm", "encoder.blocks.{l}.attn_ln"),
    alone(AttnQ, "{model}encoder.layers.{l}.self_attn.q_proj", "", "encoder.blocks.{l}.attn.query"),
    alone(AttnK, "{model}encoder.layers.{l}.self_attn.k_proj", "", "encoder.blocks.{l}.attn.key"),
    alone(AttnV, "{model}encoder.layers.{l}.self_attn.v_proj", "", "encoder.blocks.{l}.attn.value"),
    stacked("encoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "{model}encoder.layers.{l}.self_attn.out_proj", "encoder/layer_{l}/self_attention/linear_1", "encoder.blocks.{l}.attn.out"),
    alone(FfnNorm, "{model}encoder.layers.{l}.final_layer_norm", "encoder/layer_{l}/ffn/layer_norm", "encoder.blocks.{l}.mlp_ln"),
    alone(FfnUp, "{model}encoder.layers.{l}.fc1", "encoder/layer_{l}/ffn/linear_0", "encoder.blocks.{l}.mlp.0"),
    alone(FfnDown, "{model}encoder.layers.{l}.fc2", "encoder/layer_{l}/ffn/linear_1", "encoder.blocks.{l}.mlp.2"),
];

/// Whisper's decoder, whose layers also have cross-attention to the encoder's states.
#[rustfmt::skip]
pub const WHISPER_DECODER: &[TensorName] = &[
    alone(TokenEmbedding, "{model}decoder.embed_tokens", "decoder/embeddings", "decoder.token_embedding"),
    alone(PositionEmbedding, "{model}decoder.embed_positions", "decoder/position_encodings/encodings$", "decoder.positional_embedding$"),
    alone(OutputNorm, "{model}decoder.layer_norm", "decoder/layer_norm", "decoder.ln"),
    alone(Output, "proj_out", "decoder/projection", ""),
    alone(AttnNorm, "{model}decoder.layers.{l}.self_attn_layer_norm", "decoder/layer_{l}/self_attention/layer_norm", "decoder.blocks.{l}.attn_ln"),
    alone(AttnQ, "{model}decoder.layers.{l}.self_attn.q_proj", "", "decoder.blocks.{l}.attn.query"),
    alone(AttnK, "{model}decoder.layers.{l}.self_attn.k_proj", "", "decoder.blocks.{l}.attn.key"),
    alone(AttnV, "{model}decoder.layers.{l}.self_attn.v_proj", "", "decoder.blocks.{l}.attn.value"),
    stacked("decoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "{model}decoder.layers.{l}.self_attn.out_proj", "decoder/layer_{l}/self_attention/linear_1", "decoder.blocks.{l}.attn.out"),
    alone(CrossNorm, "{model}decoder.layers.{l}.encoder_attn_layer_norm", "decoder/layer_{l}/attention/layer_norm", "decoder.blocks.{l}.cross_attn_ln"),
    alone(CrossQ, "{model}decoder.layers.{l}.encoder_attn.q_proj", "decoder/layer_{l}/attention/linear_0", "decoder.blocks.{l}.cross_attn.query"),
    alone(CrossK, "{model}decoder.layers.{l}.encoder_attn.k_proj", "", "decoder.blocks.{l}.cross_attn.key"),
    alone(CrossV, "{model}decoder.layers.{l}.encoder_attn.v_proj", "", "decoder.blocks.{l}.cross_attn.value"),
    stacked("decoder/layer_{l}/attention/linear_1", &[CrossK, CrossV]),
    alone(CrossOut, "{model}decoder.layers.{l}.encoder_attn.out_proj", "decoder/layer_{l}/attention/linear_2", "decoder.blocks.{l}.cross_attn.out"),
    alone(FfnNorm, "{model}decoder.layers.{l}.final_layer_norm", "decoder/layer_{l}/ffn/layer_norm", "decoder.blocks.{l}.mlp_ln"),
    alone(FfnUp, "{model}decoder.layers.{l}.fc1", "decoder/layer_{l}/ffn/linear_0", "decoder.blocks.{l}.mlp.0"),
    alone(FfnDown, "{model}decoder.layers.{l}.fc2", "decoder/layer_{l}/ffn/linear_1", "decoder.blocks.{l}.mlp.2"),
];

/// Roles with a bias. Keys have none: it would shift all scores of a query equally.
pub const WHISPER_BIASES: &[TensorRole] = &[
    Conv1, Conv2, AttnNorm, AttnQ, AttnV, AttnOut, CrossNorm, CrossQ, CrossV, CrossOut, FfnNorm, FfnUp,
    FfnDown, OutputNorm,
];
