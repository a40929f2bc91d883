//! Tiny checkpoints of any family under any naming, made from the loader's own tables. Keys get
//! small numbers. Tensors are added one by one as the loader reports them missing, until none is.
use model::names::KEYS;
use model::{
    ArchDescriptor, Error, ExpertPlace, Key, ModelSpec, RecurrentKind, RecurrentPlace, TensorRole,
    WindowPattern,
};
use weights::{Array, BlockType, Bytes, Checkpoint, Metadata, Naming, Planes, Tensor, Value};

pub const N_VOCAB: usize = 160;

/// More tensors than any of these checkpoints has.
const MAX_ROUNDS: usize = 1000;

/// A small number for a key, if the family needs one.
fn small(family: &ArchDescriptor, key: Key, hidden: usize, n_layers: usize) -> Option<Value> {
    // Some GGUF files of the first family have experts; other checkpoints stand for those.
    let experts = family.experts != ExpertPlace::Nowhere && family.name != "llama";
    let recurrent = family.recurrent.is_some();
    let has_role = |role| family.tensors.iter().any(|t| t.iter().any(|n| n.holds(role)));
    let streams = has_role(TensorRole::StreamRouter);
    let per_layer = has_role(TensorRole::PerLayerGate);
    let n = match key {
        Key::Layers => n_layers,
        Key::Hidden => hidden,
        Key::Heads => 4,
        // Bidirectional attention has a key head for each query head.
        Key::KvHeads if family.bidirectional => 4,
        Key::KvHeads => 2,
        Key::HeadDim => hidden / 4,
        Key::FullHeadDim if per_layer => hidden / 2,
        Key::Ffn => 2 * hidden,
        Key::Vocab => N_VOCAB,
        Key::Context => 128,
        Key::Experts if experts => 4,
        Key::ExpertsUsed if experts => 2 - usize::from(family.experts_weigh_input),
        Key::ExpertFfn if experts => 64,
        Key::SharedFfn if family.experts == ExpertPlace::WithShared => 64,
        Key::ConvSize if recurrent => 3,
        Key::StateHeads if recurrent => 4,
        Key::StateHeadDim if recurrent => 16,
        Key::StateInner if recurrent => 64,
        Key::StateGroups if recurrent => 2,
        Key::StateRows if recurrent => 16,
        Key::SharedExperts if family.experts == ExpertPlace::WithPlainShared => 1,
        Key::LatentRank if family.latent => 32,
        Key::LatentKeyDim if family.latent => 24,
        Key::LatentValueDim | Key::PlainKeyDim if family.latent => 16,
        Key::TurningKeyDim if family.latent => 8,
        Key::Chunk if family.chunked => 16,
        Key::PerLayerWidth if per_layer => 32,
        Key::Streams if streams => 3,
        Key::LaurelRank if streams => 8,
        Key::SharedKvLayers if streams => 1,
        Key::Sparsity if streams => {
            return Some(Value::Array(Array::Float((0..n_layers).map(|l| 0.25 * (l % 3) as f32).collect())));
        }
        // The key names the first layer with a window; mostly no layer has one. Bidirectional
        // families with full attention have none either.
        Key::Window if family.bidirectional && family.windows == WindowPattern::All => return None,
        Key::Window if family.windows != WindowPattern::FromKey => 16,
        Key::NormEps => return Some(Value::Float(1e-6)),
        Key::RopeTheta => return Some(Value::Float(1e4)),
        Key::TiedHead => return Some(Value::Bool(false)),
        _ => return None,
    };
    Some(Value::Int(n as i128))
}

/// The checkpoint, if the naming has the family: 64 columns, and enough layers for every pattern.
/// Models with an encoder have fixtures instead, because their names differ everywhere.
pub fn checkpoint(family: &'static ArchDescriptor, naming: Naming) -> Option<Checkpoint> {
    checkpoint_of(family, naming, 64, 6)
}

/// Like [`checkpoint`], with another hidden size.
pub fn checkpoint_of(
    family: &'static ArchDescriptor,
    naming: Naming,
    hidden: usize,
    n_layers: usize,
) -> Option<Checkpoint> {
    let selector = *family.selectors(naming).first().filter(|_| family.encoder.is_none())?;
    let mut metadata = Metadata::default();
    let named = if naming == Naming::Gguf { "general.architecture" } else { "model_type" };
    metadata.insert(named.to_owned(), Value::Str(selector.to_owned()));
    for row in KEYS {
        let Some(value) = small(family, row.key, hidden, n_layers) else { continue };
        // GGUF names do not depend on the family.
        let own = family.keys.iter().find(|names| names.key == row.key && naming != Naming::Gguf);
        let own = own.map(|names| names.hf).filter(|name| !name.is_empty());
        let names = match (naming, &own) {
            (Naming::Gguf, _) => row.gguf,
            (_, Some(own)) => std::slice::from_ref(own),
            (_, None) => row.hf,
        };
        // Names with a placeholder are in nested objects; these keys also have a plain name.
        let Some(name) = own.or(names.iter().copied().find(|name| !name.contains('{'))) else { continue };
        let prefix = if naming == Naming::Gguf { format!("{selector}.") } else { String::new() };
        metadata.insert(format!("{prefix}{name}"), value);
    }
    let (tensors, left_out) = Default::default();
    let mut checkpoint =
        Checkpoint { naming, metadata, tensors, left_out, format: "tiny".to_owned(), file_bytes: 0 };
    mixers(family, naming, n_layers, &mut checkpoint.tensors);
    for _ in 0..MAX_ROUNDS {
        match ModelSpec::from_checkpoint(&checkpoint) {
            Ok(_) => return Some(checkpoint),
            Err(Error::MissingTensor { name, shape, .. }) => {
                // The first of several alternatives is used.
                let name = name.split(" or ").next().unwrap();
                // Without a key for the vocabulary, the embedding's rows tell its size.
                let shape = if shape.is_empty() { vec![N_VOCAB, hidden] } else { shape };
                match shape.split_first() {
                    Some((&n, one)) if name.contains("{e}") => (0..n).for_each(|e| {
                        checkpoint.tensors.push(random(&name.replace("{e}", &e.to_string()), one, naming))
                    }),
                    _ => checkpoint.tensors.push(random(name, &shape, naming)),
                }
            }
            // A stacked tensor is first made with the rows of one role, and then reported as too
            // short.
            Err(Error::BadTensor { name, expected, .. }) if shape_in(&expected).is_some() => {
                let tensor = checkpoint.tensors.iter_mut().find(|t| t.name == name).unwrap();
                let shape = shape_in(&expected).unwrap();
                assert_ne!(shape, tensor.shape, "{}: {name}", family.name);
                *tensor = random(&name, &shape, naming);
            }
            Err(error) => panic!("{} under {naming:?} names: {error}", family.name),
        }
    }
    panic!("{} under {naming:?} names: no end of tensors", family.name)
}

/// Adds a tensor of each kind of layer, if tensors tell the kinds. Their shapes are corrected
/// later.
fn mixers(family: &ArchDescriptor, naming: Naming, n_layers: usize, tensors: &mut Vec<Tensor>) {
    let kinds = match family.recurrent.map(|r| r.place) {
        Some(RecurrentPlace::InsteadOfAttention) => {
            let short = family.recurrent.is_some_and(|r| r.kind == RecurrentKind::ShortConv);
            vec![Some(if short { TensorRole::RecurrentOut } else { TensorRole::Rate }), None]
        }
        Some(RecurrentPlace::OneMixer) => {
            vec![Some(TensorRole::RecurrentOut), Some(TensorRole::AttnOut), None]
        }
        Some(RecurrentPlace::BesideAttention | RecurrentPlace::Everywhere) | None => return,
    };
    for l in 0..n_layers {
        let Some(role) = kinds[l % kinds.len()] else { continue };
        let row = family.tensors.iter().copied().flatten().find(|row| row.holds(role)).unwrap();
        let name = if naming == Naming::Gguf { row.gguf } else { row.hf };
        let name = name.replace("{layer}", "model.layers.{l}.").replace("{l}", &l.to_string());
        let name = name.strip_suffix('$').map_or_else(|| format!("{name}.weight"), str::to_owned);
        tensors.push(random(&name, &[1, 1], naming));
    }
}

/// The numbers between the first brackets.
fn shape_in(text: &str) -> Option<Vec<usize>> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']')?.0.split(", ").map(|n| n.parse().ok()).collect()
}

/// Small numbers, different for each name: vectors in F32 in GGUF files, all else in BF16.
fn random(name: &str, shape: &[usize], naming: Naming) -> Tensor {
    let n: usize = shape.iter().product();
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut rng = device_testing::Rng::new(seed);
    // GGUF files store decay rates directly, so they are negative.
    let mean = if name.contains("ssm_a") && !name.contains("alpha") { -1.0 } else { 1.0 };
    let values =
        (0..n).map(|_| if shape.len() == 1 { mean + 0.1 * rng.normal() } else { 0.1 * rng.normal() });
    let (block, data): (_, Vec<u8>) = if naming == Naming::Gguf && shape.len() == 1 {
        (BlockType::F32, values.flat_map(f32::to_le_bytes).collect())
    } else {
        (BlockType::BF16, values.flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect())
    };
    Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        block,
        data: Bytes::from_slice(&data),
        planes: Planes::default(),
    }
}
