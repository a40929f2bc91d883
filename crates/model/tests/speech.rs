//! An encoder and its decoder on the reference interpreter give transformers' states, logits and
//! cross-attention, from every format.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::speech::{
    N_HEADS, N_LAYERS, NAME, Speech, as_ctranslate2, as_whisper_cpp, expected, shifted, worst,
};
use crate::common::{TOLERANCE, open};
use device::{Numerics, OpKind, OutputKind, Plan};
use device_reference::Reference;
use formats::convert::{self, Options, Target};
use model::{ModelSpec, SpeechPlans, SpeechSpec};
use weights::{Access, BlockType, Checkpoint, Naming};

/// Every head of every layer.
fn all_heads() -> Vec<(usize, usize)> {
    (0..N_LAYERS).flat_map(|l| (0..N_HEADS).map(move |h| (l, h))).collect()
}

fn plans(checkpoint: &Checkpoint) -> (ModelSpec, SpeechPlans) {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let plans = spec.speech_plans(checkpoint, &all_heads()).unwrap();
    (spec, plans)
}

/// Compares states and logits, whole and in chunks, on the interpreter.
fn agrees(checkpoint: &Checkpoint, tolerance: f32) -> ModelSpec {
    let expected = expected();
    let (spec, plans) = plans(checkpoint);
    let mut run = Speech::new(&Reference::new(2), &plans, Numerics::Deterministic);
    let states = run.encode(&expected.input, &expected.encoder_positions);
    let difference = worst(&states, &expected.encoder_hidden);
    assert!(difference < tolerance, "states differ by {difference}");
    for chunk in [expected.tokens.len(), 5, 1] {
        run.rewind();
        let mut logits = Vec::new();
        for tokens in expected.tokens.chunks(chunk) {
            logits.extend(run.decode(tokens).0);
        }
        let difference = worst(&logits, &expected.logits);
        assert!(difference < tolerance, "chunks of {chunk}: logits differ by {difference}");
    }
    spec
}

fn kinds(plan: &Plan, layer: Option<u32>) -> Vec<OpKind> {
    plan.nodes.iter().filter(|n| n.layer == layer).map(|n| n.op.kind()).collect()
}

#[test]
fn states_and_logits_agree_with_transformers() {
    let spec = agrees(&open(NAME), TOLERANCE);
    assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
    let encoder = spec.encoder.as_deref().unwrap();
    assert_eq!((encoder.n_inputs, encoder.n_ctx_train, encoder.n_layers()), (80, 50, 2));
    assert_eq!((spec.n_vocab, spec.n_ctx_train, spec.n_layers(), spec.tied_head), (160, 64, 2, true));
    let all: usize = open(NAME).tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
    assert_eq!(spec.n_parameters, all as u64);
    let text = spec.to_string();
    for part in
        ["Whisper (Hugging Face names)", "Whisper encoder", "2 rows of 80 numbers", "in both directions"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn the_greedy_continuation_agrees() {
    let expected = expected();
    let mut run = Speech::new(&Reference::new(2), &plans(&open(NAME)).1, Numerics::Deterministic);
    run.encode(&expected.input, &[]);
    let mut best = run.decode(&expected.tokens).1;
    let mut greedy = Vec::new();
    while greedy.len() < expected.greedy.len() {
        greedy.push(best);
        best = run.decode(&[best]).1;
    }
    assert_eq!(greedy, expected.greedy);
}

#[test]
fn alignment_keeps_the_scores_of_its_heads() {
    let expected = expected();
    let checkpoint = open(NAME);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    for heads in [all_heads(), vec![(1, 3), (0, 2), (1, 0)], vec![(1, 1)]] {
        let plans = spec.speech_plans(&checkpoint, &heads).unwrap();
        let layers: Vec<usize> = plans.alignment.iter().map(|(layer, _)| *layer).collect();
        assert!(layers.is_sorted() && plans.align.kept.len() == layers.len());
        let mut run = Speech::new(&Reference::new(2), &plans, Numerics::Deterministic);
        run.encode(&expected.input, &[]);
        let (logits, kept) = run.align(&expected.tokens);
        let difference = worst(&logits, &expected.logits);
        assert!(difference < TOLERANCE, "logits differ by {difference}");
        for ((layer, of_layer), kept) in plans.alignment.iter().zip(&kept) {
            for (i, head) in of_layer.iter().enumerate() {
                assert!(heads.contains(&(*layer, *head)));
                let probabilities: Vec<Vec<f32>> =
                    kept.iter().map(|row| softmax(&row[i * 50..][..50])).collect();
                let difference = worst(&probabilities, &expected.probabilities[*layer][*head]);
                assert!(difference < 1e-5, "layer {layer} head {head}: {difference}");
            }
        }
        assert_eq!(plans.alignment.iter().map(|(_, heads)| heads.len()).sum::<usize>(), heads.len());
    }
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f64> = scores.iter().map(|s| f64::from(s - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| (p / sum) as f32).collect()
}

/// A vocabulary of words from no language.
fn vocabulary() -> Vec<String> {
    (0..160).map(|i| format!("word{i}")).collect()
}

#[test]
fn folders_of_ctranslate2_give_the_same() {
    for float16 in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = as_ctranslate2(&open(NAME), folder.path(), float16, &vocabulary());
        assert_eq!(checkpoint.naming, Naming::CTranslate2);
        let spec = agrees(&checkpoint, TOLERANCE);
        assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
        // The key biases are stored as zeros: 64 numbers in six places.
        let hf = ModelSpec::from_checkpoint(&open(NAME)).unwrap();
        assert_eq!(spec.n_parameters, hf.n_parameters + 6 * 64);
        assert_eq!(spec.layers, hf.layers);
        assert_eq!(spec.encoder.unwrap().layers, hf.encoder.unwrap().layers);
    }
}

#[test]
fn files_of_whisper_cpp_give_the_same() {
    for block in [BlockType::F32, BlockType::F16] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = as_whisper_cpp(&open(NAME), folder.path(), block);
        assert_eq!(checkpoint.naming, Naming::WhisperCpp);
        let spec = agrees(&checkpoint, TOLERANCE);
        assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
        assert_eq!(spec.layers, ModelSpec::from_checkpoint(&open(NAME)).unwrap().layers);
        for by in [0, 1, 2, 4] {
            agrees(&shifted(checkpoint.clone(), by), TOLERANCE);
        }
    }
}

/// The checkpoint as a `.base` file of these types, opened again.
fn as_base(checkpoint: &Checkpoint, to: &str, output: &Path) -> Checkpoint {
    let target = Target::parse(to).unwrap();
    let options = Options { target, profile: None, requantize: false, force: true };
    let plan = convert::Plan::new(checkpoint, &options).unwrap();
    convert::run(checkpoint, &plan, "fixture", &[], output, &options, &mut |_| {}).unwrap();
    formats::open(output, Access::Map).unwrap()
}

#[test]
fn base_files_of_every_source_give_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.base");
    let sources = [
        open(NAME),
        as_ctranslate2(&open(NAME), folder.path(), false, &vocabulary()),
        as_whisper_cpp(&open(NAME), folder.path(), BlockType::F32),
        as_whisper_cpp(&open(NAME), folder.path(), BlockType::F16),
    ];
    for source in &sources {
        for to in ["keep", "f32"] {
            let base = as_base(source, to, &output);
            assert_eq!((base.naming, base.format.as_str()), (source.naming, ".base v1"));
            let spec = agrees(&base, TOLERANCE);
            assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
            let before = ModelSpec::from_checkpoint(source).unwrap();
            // CTranslate2's head is the embedding's bytes under another name; a `.base` file stores
            // them twice.
            let again = if source.naming == Naming::CTranslate2 { spec.n_vocab * spec.hidden } else { 0 };
            assert_eq!(spec.n_parameters, before.n_parameters + again as u64);
            assert_eq!(spec.layers, before.layers);
        }
    }
}

#[test]
fn quantised_files_are_what_their_blocks_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let quantised = as_whisper_cpp(&open(NAME), folder.path(), BlockType::Q8_0);
    let (_, plans) = plans(&quantised);
    assert!(plans.decoder.weights.iter().any(|w| w.block == BlockType::Q8_0));
    // These are the same values, decoded beforehand.
    let mut decoded = quantised.clone();
    for tensor in &mut decoded.tensors {
        let bytes: Vec<u8> = tensor.to_f32().into_iter().flat_map(f32::to_le_bytes).collect();
        tensor.data = weights::Bytes::from_slice(&bytes);
        tensor.block = BlockType::F32;
    }
    let expected = expected();
    let answer = |checkpoint: &Checkpoint| {
        let plans = self::plans(checkpoint).1;
        let mut run = Speech::new(&Reference::new(2), &plans, Numerics::Deterministic);
        run.encode(&expected.input, &[]);
        run.decode(&expected.tokens).0
    };
    let difference = worst(&answer(&quantised), &answer(&decoded));
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn three_plans_over_one_cache() {
    use OpKind::*;
    let (_, plans) = plans(&open(NAME));
    assert_eq!(plans.encoder.kv, plans.decoder.kv);
    assert_eq!(plans.encoder.kv, plans.align.kv);
    let groups: Vec<_> = plans.encoder.kv.groups.iter().map(|g| (g.encoder_states, g.layers.len())).collect();
    assert_eq!(groups, [(None, 2), (Some(50), 2)]);
    assert_eq!(
        [plans.encoder.output_kind, plans.decoder.output_kind, plans.align.output_kind],
        [OutputKind::Hidden, OutputKind::Logits, OutputKind::Logits]
    );
    let front = [Input, Unfold, Linear, Activate, Unfold, Linear, Activate, EmbedPositions, Add];
    assert_eq!(kinds(&plans.encoder, None)[..front.len()], front);
    // A layer of the encoder, and the tensors of the decoder's layer with the same number.
    let layer = [
        LayerNorm,
        Linear,
        Linear,
        Linear,
        SelfAttention,
        Linear,
        Add, //
        LayerNorm,
        Linear,
        Activate,
        Linear,
        Add, //
        Linear,
        Linear,
        KvWrite,
    ];
    assert_eq!(kinds(&plans.encoder, Some(1)), layer);
    let layer = [
        LayerNorm,
        Linear,
        Linear,
        Linear,
        KvWrite,
        Attention,
        Linear,
        Add, //
        LayerNorm,
        Linear,
        CrossAttention,
        Linear,
        Add, //
        LayerNorm,
        Linear,
        Activate,
        Linear,
        Add,
    ];
    assert_eq!(kinds(&plans.decoder, Some(0)), layer);
    assert_eq!(kinds(&plans.align, None), kinds(&plans.decoder, None));
    assert!(plans.decoder.kept.is_empty() && plans.encoder.kept.is_empty());
    for plan in [&plans.encoder, &plans.decoder, &plans.align] {
        for weight in plan.weights.iter().filter(|w| w.shape.len() == 2) {
            assert!(weight.data.is_mapped(), "{} was copied", weight.name);
        }
    }
}

#[test]
fn a_model_of_text_has_no_plans_for_speech() {
    let checkpoint = open("llama");
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    assert!(spec.encoder.is_none());
    assert_eq!(SpeechSpec::from_checkpoint(&checkpoint, &spec).unwrap(), None);
    let error = spec.speech_plans(&checkpoint, &[]).unwrap_err().to_string();
    assert!(error.contains("LLaMA has no encoder"), "{error}");
}
