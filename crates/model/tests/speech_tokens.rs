//! Special tokens and alignment heads from every file that may contain them, and refused speech
//! models.
#![allow(clippy::unwrap_used)]

use crate::common::open;
use crate::common::speech::{NAME, as_ctranslate2, as_whisper_cpp};
use model::{ModelSpec, SpeechSpec, SpeechTokens};
use weights::{Array, BlockType, Bytes, Checkpoint, Metadata, Planes, Value};

fn int(value: i128) -> Value {
    Value::Int(value)
}

fn list(values: &[i64]) -> Value {
    Value::Array(Array::Int(values.to_vec()))
}

/// The checkpoint with keys replaced, added, or (`None`) removed.
fn with(mut checkpoint: Checkpoint, entries: &[(&str, Option<Value>)]) -> Checkpoint {
    let mut metadata = Metadata::default();
    for (k, v) in checkpoint.metadata.iter().filter(|(k, _)| entries.iter().all(|(key, _)| key != k)) {
        metadata.insert(k.to_owned(), v.clone());
    }
    for (key, value) in entries {
        if let Some(value) = value {
            metadata.insert((*key).to_owned(), value.clone());
        }
    }
    checkpoint.metadata = metadata;
    checkpoint
}

/// The speech settings, for another vocabulary size if one is passed.
fn speech(checkpoint: &Checkpoint, n_vocab: Option<usize>) -> model::Result<SpeechSpec> {
    let mut spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    spec.n_vocab = n_vocab.unwrap_or(spec.n_vocab);
    SpeechSpec::from_checkpoint(checkpoint, &spec).map(Option::unwrap)
}

fn refused(error: impl std::fmt::Display, parts: &[&str]) {
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// The ids in the order of the fields.
fn ids(t: &SpeechTokens) -> [u32; 9] {
    [
        t.eot,
        t.sot,
        t.translate,
        t.transcribe,
        t.sot_lm,
        t.sot_prev,
        t.no_speech,
        t.no_timestamps,
        t.timestamp_begin,
    ]
}

/// The fixture without the tokens of its config.json, whose ids no real model has.
fn bare() -> Checkpoint {
    with(open(NAME), &[("eos_token_id", None), ("decoder_start_token_id", None)])
}

#[test]
fn the_size_of_the_vocabulary_tells_the_tokens() {
    // openai-whisper's tokenizer has these ids.
    let english = speech(&bare(), Some(51864)).unwrap().tokens;
    assert_eq!(ids(&english), [50256, 50257, 50357, 50358, 50359, 50360, 50361, 50362, 50363]);
    assert!(!english.multilingual && english.languages.is_empty());
    assert_eq!((english.suppress.len(), english.suppress_begin), (90, vec![220, 50256]));
    let many = speech(&bare(), Some(51865)).unwrap().tokens;
    assert_eq!(ids(&many), [50257, 50258, 50358, 50359, 50360, 50361, 50362, 50363, 50364]);
    assert_eq!(
        (many.language("en"), many.language("su"), many.languages.len()),
        (Some(50259), Some(50357), 99)
    );
    assert_eq!((many.language("yue"), many.language("xx")), (None, None));
    assert_eq!((many.suppress.len(), many.suppress_begin), (88, vec![220, 50257]));
    assert!(many.suppress.contains(&50362) && !many.suppress.contains(&50363));
    let newest = speech(&bare(), Some(51866)).unwrap().tokens;
    assert_eq!(ids(&newest), [50257, 50258, 50359, 50360, 50361, 50362, 50363, 50364, 50365]);
    assert_eq!((newest.language("su"), newest.language("yue")), (Some(50357), Some(50358)));
    for n_vocab in [160, 51863, 51867, 60000] {
        refused(
            speech(&bare(), Some(n_vocab)).unwrap_err(),
            &["no_timestamps_token_id", "notimestamps", "51864, 51865"],
        );
    }
}

#[test]
fn generation_config_says_them() {
    let said = with(
        bare(),
        &[
            ("eos_token_id", Some(int(1))),
            ("generation_config.eos_token_id", Some(list(&[2, 1]))),
            ("generation_config.decoder_start_token_id", Some(int(3))),
            ("generation_config.is_multilingual", Some(Value::Bool(true))),
            ("generation_config.lang_to_id.<|de|>", Some(int(101))),
            ("generation_config.lang_to_id.<|en|>", Some(int(100))),
            ("generation_config.task_to_id.translate", Some(int(110))),
            ("generation_config.task_to_id.transcribe", Some(int(111))),
            ("generation_config.no_timestamps_token_id", Some(int(115))),
            ("generation_config.suppress_tokens", Some(list(&[9, 4, 9]))),
            ("begin_suppress_tokens", Some(list(&[6]))),
            ("generation_config.alignment_heads.0", Some(list(&[1, 2]))),
            ("generation_config.alignment_heads.1", Some(list(&[0, 3]))),
        ],
    );
    let spec = speech(&said, None).unwrap();
    assert_eq!((spec.n_mels, spec.n_frames, spec.n_audio_ctx, spec.n_text_ctx), (80, 100, 50, 64));
    assert_eq!(spec.alignment_heads, [(0, 3), (1, 2)]);
    assert_eq!(ids(&spec.tokens), [2, 3, 110, 111, 112, 113, 114, 115, 116]);
    assert_eq!(spec.tokens.languages, [("en".to_owned(), 100), ("de".to_owned(), 101)]);
    assert_eq!((spec.tokens.suppress.clone(), spec.tokens.suppress_begin.clone()), (vec![4, 9], vec![6]));

    for (key, value, parts) in [
        ("generation_config.no_timestamps_token_id", int(160), &["no_timestamps_token_id", "160"][..]),
        ("generation_config.no_timestamps_token_id", int(159), &["notimestamps 159", "timestamps after"]),
        ("generation_config.no_timestamps_token_id", int(-1), &["no_timestamps_token_id", "-1", "below 160"]),
        ("generation_config.no_timestamps_token_id", int(4), &["notimestamps 4"]),
        ("generation_config.decoder_start_token_id", int(0), &["startoftranscript 0"]),
        (
            "generation_config.decoder_start_token_id",
            Value::Str("3".into()),
            &["decoder_start_token_id", "\"3\""],
        ),
        ("generation_config.lang_to_id.en", int(100), &["lang_to_id.en", "<|en|>"]),
        ("generation_config.lang_to_id.<|fr|>", int(1 << 40), &["lang_to_id.<|fr|>", "below 160"]),
        ("generation_config.is_multilingual", int(1), &["is_multilingual", "true or false"]),
        ("generation_config.suppress_tokens", list(&[4, 160]), &["suppress_tokens", "160"]),
        ("generation_config.suppress_tokens", int(4), &["suppress_tokens", "a list of tokens"]),
        ("generation_config.alignment_heads.0", list(&[-1, 0]), &["alignment_heads.0", "[-1, 0]"]),
        ("generation_config.alignment_heads.0", list(&[1]), &["alignment_heads.0", "[1]"]),
    ] {
        refused(speech(&with(said.clone(), &[(key, Some(value))]), None).unwrap_err(), parts);
    }
    let silent = with(
        said,
        &[("generation_config.lang_to_id.<|de|>", None), ("generation_config.lang_to_id.<|en|>", None)],
    );
    refused(speech(&silent, None).unwrap_err(), &["lang_to_id"]);
}

#[test]
fn without_a_list_all_heads_of_the_later_layers_align() {
    let later = [(1, 0), (1, 1), (1, 2), (1, 3)];
    assert_eq!(speech(&bare(), Some(51865)).unwrap().alignment_heads, later);
    // A list with a missing layer or head belongs to another model.
    for other in [[2, 0], [0, 4]] {
        let pairs = [("alignment_heads.0", Some(list(&[0, 3]))), ("alignment_heads.1", Some(list(&other)))];
        let listed = with(bare(), &pairs);
        assert_eq!(speech(&listed, Some(51865)).unwrap().alignment_heads, later, "{other:?}");
    }
}

#[test]
fn the_vocabulary_of_ctranslate2_says_them() {
    let special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|haw|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nocaptions|>",
        "<|notimestamps|>",
        "<|0.00|>",
    ];
    let words = (0..149).map(|i| format!("word{i}"));
    let vocabulary: Vec<String> = words.chain(special.map(str::to_owned)).collect();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = as_ctranslate2(&open(NAME), folder.path(), true, &vocabulary);
    let spec = speech(&checkpoint, None).unwrap();
    assert_eq!(ids(&spec.tokens), [149, 150, 153, 154, 155, 156, 157, 158, 159]);
    assert_eq!(spec.tokens.languages, [("en".to_owned(), 151), ("haw".to_owned(), 152)]);
    assert!(spec.tokens.multilingual);
    assert_eq!(spec.alignment_heads, [(0, 2), (1, 3)]);
    assert_eq!((spec.tokens.suppress, spec.tokens.suppress_begin), (vec![2, 7], vec![5]));
}

#[test]
fn files_of_whisper_cpp_say_none() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = as_whisper_cpp(&open(NAME), folder.path(), BlockType::F16);
    assert_eq!(speech(&checkpoint, Some(51866)).unwrap().tokens.language("yue"), Some(50358));
    refused(speech(&checkpoint, None).unwrap_err(), &["notimestamps"]);
}

#[test]
fn absurd_numbers_of_speech_models() {
    for (key, value, parts) in [
        ("encoder_layers", int(0), &["encoder_layers", "found 0"][..]),
        (
            "encoder_layers",
            int(3),
            &["model.encoder.layers.2.self_attn_layer_norm.weight", "missing", "layer 2"],
        ),
        ("decoder_layers", int(3), &["model.decoder.layers.2.encoder_attn.k_proj.weight", "missing"]),
        ("d_model", int(68), &["[64, 80, 3]", "[68, 80, 3]"]),
        ("num_mel_bins", int(128), &["model.encoder.conv1.weight", "[64, 80, 3]", "[64, 128, 3]"]),
        ("num_mel_bins", int(0), &["num_mel_bins", "found 0"]),
        ("encoder_attention_heads", int(5), &["encoder_attention_heads", "divisor"]),
        ("decoder_ffn_dim", int(161), &["model.decoder.layers.0.fc1.weight", "[161, 64]"]),
        ("max_source_positions", int(51), &["model.encoder.embed_positions.weight", "[51, 64]"]),
        ("max_source_positions", int(1 << 60), &["max_source_positions"]),
        ("max_target_positions", int(65), &["model.decoder.embed_positions.weight", "[65, 64]"]),
        ("vocab_size", int(161), &["model.decoder.embed_tokens.weight", "[161, 64]"]),
        ("activation_function", Value::Str("swiglu".into()), &["activation_function", "swiglu"]),
        ("scale_embedding", Value::Bool(true), &["scale_embedding", "true", "expected 0"]),
        ("tie_word_embeddings", Value::Bool(false), &["proj_out.weight", "missing"]),
    ] {
        let error = ModelSpec::from_checkpoint(&with(open(NAME), &[(key, Some(value))])).unwrap_err();
        refused(error, parts);
    }
    for key in
        ["encoder_layers", "d_model", "num_mel_bins", "max_source_positions", "decoder_attention_heads"]
    {
        refused(ModelSpec::from_checkpoint(&with(open(NAME), &[(key, None)])).unwrap_err(), &[key]);
    }
}

#[test]
fn tensors_of_speech_models_that_do_not_fit() {
    let without = |mut checkpoint: Checkpoint, name: &str| {
        let before = checkpoint.tensors.len();
        checkpoint.tensors.retain(|t| t.name != name);
        assert_eq!(checkpoint.tensors.len(), before - 1, "{name}");
        ModelSpec::from_checkpoint(&checkpoint).unwrap_err()
    };
    for name in [
        "model.encoder.conv2.weight",
        "model.encoder.conv1.bias",
        "model.encoder.layers.1.self_attn.q_proj.bias",
        "model.decoder.layers.1.encoder_attn.v_proj.bias",
        "model.decoder.layers.0.encoder_attn_layer_norm.bias",
        "model.decoder.embed_positions.weight",
        "model.encoder.layer_norm.weight",
    ] {
        refused(without(open(NAME), name), &[name, "missing"]);
    }
    let words: Vec<String> = (0..160).map(|i| format!("word{i}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let ctranslate2 = as_ctranslate2(&open(NAME), folder.path(), true, &words);
    for name in [
        "decoder/embeddings/weight",
        "encoder/position_encodings/encodings",
        "encoder/layer_0/self_attention/layer_norm/gamma",
        "decoder/layer_1/attention/linear_1/bias",
        "encoder/conv1/weight",
        "encoder/layer_0/ffn/linear_0/weight",
    ] {
        refused(without(ctranslate2.clone(), name), &[name, "missing", "CTranslate2"]);
    }
    let reshaped = |name: &str, shape: &[usize]| {
        let mut checkpoint = ctranslate2.clone();
        checkpoint.tensors.iter_mut().find(|t| t.name == name).unwrap().shape = shape.to_vec();
        ModelSpec::from_checkpoint(&checkpoint).unwrap_err()
    };
    let stacked = "decoder/layer_0/attention/linear_1/weight";
    refused(reshaped(stacked, &[64, 128]), &[stacked, "[64, 128]", "[128, 64]"]);
    refused(reshaped("encoder/conv2/weight", &[64, 192]), &["encoder/conv2/weight", "[64, 64, 3]"]);
    refused(reshaped("encoder/conv1/weight", &[15360]), &["encoder/conv1/weight", "columns of the input"]);
    refused(
        reshaped("decoder/position_encodings/encodings", &[4096]),
        &["position_encodings", "hidden size"],
    );

    for (key, value, parts) in [
        ("decoder/num_heads", None, &["decoder/num_heads"][..]),
        ("encoder/num_heads", Some(int(7)), &["encoder/num_heads", "7", "divisor"]),
        ("decoder/activation", Some(int(2)), &["decoder/activation", "found 2", "expected 3"]),
        ("decoder/alibi", Some(int(1)), &["decoder/alibi"]),
        ("decoder/pre_norm", Some(int(0)), &["decoder/pre_norm"]),
        ("ctranslate2.spec", Some(Value::Str("TransformerSpec".into())), &["TransformerSpec", "WhisperSpec"]),
        (
            "decoder/layer_0/self_attention/queries_scale",
            Some(Value::Float(0.125)),
            &["decoder/layer_0/self_attention/queries_scale", "0.125"],
        ),
    ] {
        let error = ModelSpec::from_checkpoint(&with(ctranslate2.clone(), &[(key, value)])).unwrap_err();
        refused(error, parts);
    }
    let folder = tempfile::tempdir().unwrap();
    let whisper_cpp = as_whisper_cpp(&open(NAME), folder.path(), BlockType::F16);
    refused(
        without(whisper_cpp.clone(), "encoder.blocks.1.attn.query.bias"),
        &["encoder.blocks.1.attn.query.bias", "missing", "OpenAI"],
    );
    for (key, value, parts) in [
        ("n_audio_state", 128, &["n_audio_state", "128", "64"][..]),
        ("n_text_layer", 3, &["decoder.blocks.2.", "missing"]),
        ("n_vocab", 51865, &["decoder.token_embedding.weight", "[160, 64]", "[51865, 64]"]),
    ] {
        let error =
            ModelSpec::from_checkpoint(&with(whisper_cpp.clone(), &[(key, Some(int(value)))])).unwrap_err();
        refused(error, parts);
    }
}

#[test]
fn a_convolution_of_integers_is_decoded_at_load() {
    let mut checkpoint = open(NAME);
    let tensor = checkpoint.tensors.iter_mut().find(|t| t.name == "model.encoder.conv1.weight").unwrap();
    let quants: Vec<u8> = (0..64 * 80 * 3).map(|i| (i % 251) as u8).collect();
    let scales: Vec<u8> = (0..64 * 80).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect();
    tensor.block = BlockType::I8_ROWS;
    tensor.data = Bytes::from_slice(&quants);
    tensor.planes = Planes { scales: Some(Bytes::from_slice(&scales)), biases: None };
    let values = tensor.to_f32();
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let plans = spec.speech_plans(&checkpoint, &[]).unwrap();
    let weight = plans.encoder.weights.iter().find(|w| w.name == "model.encoder.conv1.weight").unwrap();
    assert_eq!((weight.block, &weight.shape[..]), (BlockType::F32, &[64, 240][..]));
    let found: Vec<f32> = weight.data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(found, values);

    let tensor = checkpoint.tensors.iter_mut().find(|t| t.name == "model.encoder.conv1.weight").unwrap();
    tensor.planes = Planes { scales: Some(Bytes::from_slice(&scales[4..])), biases: None };
    refused(ModelSpec::from_checkpoint(&checkpoint).unwrap_err(), &["model.encoder.conv1.weight", "scales"]);
}

#[test]
fn heads_that_are_not_there() {
    let checkpoint = open(NAME);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    for heads in [&[(2, 0)][..], &[(0, 4)], &[(1, 1), (0, 0), (1, 1)]] {
        let error = spec.speech_plans(&checkpoint, heads).unwrap_err();
        refused(error, &["alignment heads", "2 layers"]);
    }
}
