//! Checkpoints with random damage to a shape, type, length, name or number give an error, or a
//! model with valid plans. Fuzz targets seldom reach this code, because it needs a complete model.
#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::open;
use crate::common::speech;
use device_testing::Rng;
use model::{EmbeddingSpec, ModelSpec, SpeechSpec, from_base};
use weights::{Array, BlockType, Checkpoint, Metadata, Planes, Value};

/// Damaged copies of each source.
const ROUNDS: u64 = 300;

/// Builds everything that is made of a checkpoint before a device compiles it. Returns true if it
/// is a model.
fn built(checkpoint: &Checkpoint) -> bool {
    let Ok(renamed) = from_base(checkpoint) else { return false };
    let checkpoint = renamed.as_ref().unwrap_or(checkpoint);
    let Ok(spec) = ModelSpec::from_checkpoint(checkpoint) else { return false };
    assert!(!spec.to_string().is_empty());
    let plan = spec.plan(checkpoint).expect("a plan, where there is a spec");
    plan.check().expect("a plan that holds");
    if let Ok(Some(embedding)) = EmbeddingSpec::from_checkpoint(checkpoint, &spec) {
        let plan = spec.embedding_plan(checkpoint, &embedding, spec.n_ctx_train).expect("an embedding");
        plan.check().expect("a plan that holds");
    }
    if let Ok(Some(speech)) = SpeechSpec::from_checkpoint(checkpoint, &spec) {
        let plans = spec.speech_plans(checkpoint, &speech.alignment_heads).expect("plans for speech");
        plans.into_vec().iter().for_each(|plan| plan.check().expect("a plan that holds"));
    }
    true
}

/// Applies one damage, and describes it.
fn damage(checkpoint: &mut Checkpoint, rng: &mut Rng) -> String {
    let sizes = [0, 1, 2, 3, 31, 32, 33, 63, 65, 1 << 20, 1 << 40, usize::MAX / 2, usize::MAX];
    if rng.below(3) == 0 {
        let entries: Vec<(String, Value)> =
            checkpoint.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
        let at = rng.below(entries.len());
        let value = match rng.below(8) {
            0 => None,
            1 => Some(Value::Int(-1)),
            2 => Some(Value::Int(i128::MAX)),
            3 => Some(Value::Float([f64::NAN, -1.0, 1e300, 0.5][rng.below(4)])),
            4 => Some(Value::Bool(true)),
            5 => Some(Value::Array(Array::Int(vec![3; rng.below(5)]))),
            _ => Some(Value::Int(sizes[rng.below(sizes.len())] as i128)),
        };
        let what = format!("{} is {value:?}", entries[at].0);
        let mut metadata = Metadata::default();
        for (i, (key, old)) in entries.into_iter().enumerate() {
            if let Some(value) = if i == at { value.clone() } else { Some(old) } {
                metadata.insert(key, value);
            }
        }
        checkpoint.metadata = metadata;
        return what;
    }
    let n_tensors = checkpoint.tensors.len();
    let (at, other) = (rng.below(n_tensors), rng.below(n_tensors));
    let name_of_other = checkpoint.tensors[other].name.clone();
    let tensor = &mut checkpoint.tensors[at];
    let name = tensor.name.clone();
    let what = match rng.below(8) {
        0 => {
            tensor.shape.reverse();
            "turned over"
        }
        1 => {
            tensor.shape.pop();
            "with a dimension less"
        }
        2 => {
            tensor.shape.push(1);
            "with a dimension more"
        }
        3 => {
            if let Some(dim) = tensor.shape.first_mut() {
                // The product may not overflow, because readers refuse such shapes.
                *dim = sizes[rng.below(10)];
            }
            "of another length"
        }
        4 => {
            let types =
                [BlockType::F32, BlockType::F16, BlockType::Q4_0, BlockType::I8_ROWS, BlockType::Q6_K];
            tensor.block = types[rng.below(types.len())];
            "of another type"
        }
        5 => {
            tensor.data = tensor.data.slice(0..rng.below(tensor.data.len() + 1)).unwrap();
            "cut short"
        }
        6 => {
            tensor.planes = Planes { scales: Some(tensor.data.clone()), biases: None };
            "with scales"
        }
        _ => {
            tensor.name = name_of_other;
            "under another's name"
        }
    };
    format!("{name} {what}, {:?}", checkpoint.tensors[at].shape)
}

fn damaged(what: &str, source: &Checkpoint) {
    assert!(built(source), "{what} as it is");
    let mut n_built = 0;
    for seed in 0..ROUNDS {
        let mut rng = Rng::new(seed);
        let mut checkpoint = source.clone();
        let n = 1 + rng.below(3);
        let damages: Vec<String> = (0..n).map(|_| damage(&mut checkpoint, &mut rng)).collect();
        match catch_unwind(AssertUnwindSafe(|| built(&checkpoint))) {
            Ok(built) => n_built += usize::from(built),
            Err(_) => panic!("{what}, seed {seed}: a panic with {damages:?}"),
        }
    }
    // Some damages have no effect: keys that are not read, shapes of unused tensors.
    println!("{what}: {n_built} of {ROUNDS} are models nevertheless");
    assert!(n_built < ROUNDS as usize / 2, "{what}: {n_built}");
}

#[test]
fn models_of_text() {
    for name in ["llama", "gemma3", "phi3", "qwen2_moe", "gemma4_e2b", "bert"] {
        damaged(name, &open(name));
    }
}

#[test]
fn models_of_speech() {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<String> = (0..160).map(|i| format!("word{i}")).collect();
    damaged("whisper", &open(speech::NAME));
    let file = speech::as_ctranslate2(&open(speech::NAME), folder.path(), true, &words);
    damaged("whisper of CTranslate2", &file);
    let file = speech::as_whisper_cpp(&open(speech::NAME), folder.path(), BlockType::F16);
    damaged("whisper of whisper.cpp", &file);
}
