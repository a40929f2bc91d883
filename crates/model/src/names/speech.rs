//! Names of the numbers and tensors of speech models, encoder and decoder, in three kinds of files.

use super::{Key, KeyNames, TensorName, TensorRole, TensorRole::*};

const fn names(key: Key, hf: &'static str, ctranslate2: &'static str, whisper_cpp: &'static str) -> KeyNames {
    KeyNames { key, hf, ctranslate2, whisper_cpp }
}

/// Numbers of the decoder. CTranslate2 says few: the shapes of tensors say the others.
#[rustfmt::skip]
pub const SPEECH_DECODER_KEYS: &[KeyNames] = &[
    names(Key::Layers, "decoder_layers", "", "n_text_layer"),
    names(Key::Hidden, "d_model", "", "n_text_state"),
    names(Key::Heads, "decoder_attention_heads", "decoder/num_heads", "n_text_head"),
    names(Key::Ffn, "decoder_ffn_dim", "", ""),
    names(Key::Vocab, "vocab_size", "", "n_vocab"),
    names(Key::Context, "max_target_positions", "", "n_text_ctx"),
    names(Key::Activation, "activation_function", "", ""),
    names(Key::TiedHead, "tie_word_embeddings", "", ""),
];

/// Numbers of the encoder.
#[rustfmt::skip]
pub const SPEECH_ENCODER_KEYS: &[KeyNames] = &[
    names(Key::Layers, "encoder_layers", "", "n_audio_layer"),
    names(Key::Hidden, "d_model", "", "n_audio_state"),
    names(Key::Heads, "encoder_attention_heads", "encoder/num_heads", "n_audio_head"),
    names(Key::Ffn, "encoder_ffn_dim", "", ""),
    names(Key::Inputs, "num_mel_bins", "", "n_mels"),
    names(Key::Context, "max_source_positions", "", "n_audio_ctx"),
    names(Key::Activation, "activation_function", "", ""),
];

/// Embeddings are not scaled, norms stand before the branches, the activation is number 3, GELU by the error function.
pub const SPEECH_SETTINGS: &[(&str, i128)] = &[
    ("scale_embedding", 0),
    ("decoder/scale_embeddings", 0),
    ("decoder/start_from_zero_embedding", 0),
    ("decoder/alibi", 0),
    ("decoder/pre_norm", 1),
    ("decoder/activation", 3),
];

/// Numbers that files may leave to the shapes of tensors: which dimension of which says each, outermost first. How many layers
/// there are, the names of the layers' tensors say.
pub const MEASURES: &[(Key, TensorRole, usize)] = &[
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

/// CTranslate2 keeps in one matrix what reads the same input.
const fn stacked(role: TensorRole, ctranslate2: &'static str, stacked: &'static [TensorRole]) -> TensorName {
    TensorName {
        role,
        gguf: "",
        hf: "",
        ctranslate2,
        whisper_cpp: "",
        stacked,
        transposed: false,
        interleaved: false,
    }
}

/// Convolutions, positions, and layers that see all of them.
#[rustfmt::skip]
pub const SPEECH_ENCODER: &[TensorName] = &[
    alone(Conv1, "{model}encoder.conv1", "encoder/conv1", "encoder.conv1"),
    alone(Conv2, "{model}encoder.conv2", "encoder/conv2", "encoder.conv2"),
    alone(PositionEmbedding, "{model}encoder.embed_positions", "encoder/position_encodings/encodings$", "encoder.positional_embedding$"),
    alone(OutputNorm, "{model}encoder.layer_norm", "encoder/layer_norm", "encoder.ln_post"),
    alone(AttnNorm, "{model}encoder.layers.{l}.self_attn_layer_norm", "encoder/layer_{l}/self_attention/layer_norm", "encoder.blocks.{l}.attn_ln"),
    alone(AttnQ, "{model}encoder.layers.{l}.self_attn.q_proj", "", "encoder.blocks.{l}.attn.query"),
    alone(AttnK, "{model}encoder.layers.{l}.self_attn.k_proj", "", "encoder.blocks.{l}.attn.key"),
    alone(AttnV, "{model}encoder.layers.{l}.self_attn.v_proj", "", "encoder.blocks.{l}.attn.value"),
    stacked(AttnQ, "encoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "encoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "encoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "{model}encoder.layers.{l}.self_attn.out_proj", "encoder/layer_{l}/self_attention/linear_1", "encoder.blocks.{l}.attn.out"),
    alone(FfnNorm, "{model}encoder.layers.{l}.final_layer_norm", "encoder/layer_{l}/ffn/layer_norm", "encoder.blocks.{l}.mlp_ln"),
    alone(FfnUp, "{model}encoder.layers.{l}.fc1", "encoder/layer_{l}/ffn/linear_0", "encoder.blocks.{l}.mlp.0"),
    alone(FfnDown, "{model}encoder.layers.{l}.fc2", "encoder/layer_{l}/ffn/linear_1", "encoder.blocks.{l}.mlp.2"),
];

/// Layers with a second attention, whose keys and values are made of the encoder's states.
#[rustfmt::skip]
pub const SPEECH_DECODER: &[TensorName] = &[
    alone(TokenEmbedding, "{model}decoder.embed_tokens", "decoder/embeddings", "decoder.token_embedding"),
    alone(PositionEmbedding, "{model}decoder.embed_positions", "decoder/position_encodings/encodings$", "decoder.positional_embedding$"),
    alone(OutputNorm, "{model}decoder.layer_norm", "decoder/layer_norm", "decoder.ln"),
    alone(Output, "proj_out", "decoder/projection", ""),
    alone(AttnNorm, "{model}decoder.layers.{l}.self_attn_layer_norm", "decoder/layer_{l}/self_attention/layer_norm", "decoder.blocks.{l}.attn_ln"),
    alone(AttnQ, "{model}decoder.layers.{l}.self_attn.q_proj", "", "decoder.blocks.{l}.attn.query"),
    alone(AttnK, "{model}decoder.layers.{l}.self_attn.k_proj", "", "decoder.blocks.{l}.attn.key"),
    alone(AttnV, "{model}decoder.layers.{l}.self_attn.v_proj", "", "decoder.blocks.{l}.attn.value"),
    stacked(AttnQ, "decoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    stacked(AttnK, "decoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    stacked(AttnV, "decoder/layer_{l}/self_attention/linear_0", &[AttnQ, AttnK, AttnV]),
    alone(AttnOut, "{model}decoder.layers.{l}.self_attn.out_proj", "decoder/layer_{l}/self_attention/linear_1", "decoder.blocks.{l}.attn.out"),
    alone(CrossNorm, "{model}decoder.layers.{l}.encoder_attn_layer_norm", "decoder/layer_{l}/attention/layer_norm", "decoder.blocks.{l}.cross_attn_ln"),
    alone(CrossQ, "{model}decoder.layers.{l}.encoder_attn.q_proj", "decoder/layer_{l}/attention/linear_0", "decoder.blocks.{l}.cross_attn.query"),
    alone(CrossK, "{model}decoder.layers.{l}.encoder_attn.k_proj", "", "decoder.blocks.{l}.cross_attn.key"),
    alone(CrossV, "{model}decoder.layers.{l}.encoder_attn.v_proj", "", "decoder.blocks.{l}.cross_attn.value"),
    stacked(CrossK, "decoder/layer_{l}/attention/linear_1", &[CrossK, CrossV]),
    stacked(CrossV, "decoder/layer_{l}/attention/linear_1", &[CrossK, CrossV]),
    alone(CrossOut, "{model}decoder.layers.{l}.encoder_attn.out_proj", "decoder/layer_{l}/attention/linear_2", "decoder.blocks.{l}.cross_attn.out"),
    alone(FfnNorm, "{model}decoder.layers.{l}.final_layer_norm", "decoder/layer_{l}/ffn/layer_norm", "decoder.blocks.{l}.mlp_ln"),
    alone(FfnUp, "{model}decoder.layers.{l}.fc1", "decoder/layer_{l}/ffn/linear_0", "decoder.blocks.{l}.mlp.0"),
    alone(FfnDown, "{model}decoder.layers.{l}.fc2", "decoder/layer_{l}/ffn/linear_1", "decoder.blocks.{l}.mlp.2"),
];

/// Everything that multiplies has a bias, but for keys, where it would change nothing: a score's shift by what is the same
/// for all positions. So have the norms.
pub const SPEECH_BIASES: &[TensorRole] = &[
    Conv1, Conv2, AttnNorm, AttnQ, AttnV, AttnOut, CrossNorm, CrossQ, CrossV, CrossOut, FfnNorm, FfnUp,
    FfnDown, OutputNorm,
];
