//! Writes the vision tower as a GGUF file of its own, which llama.cpp reads beside the text
//! model's.

use device::Activation;
use weights::{Array, Checkpoint, Metadata, Naming, Tensor, Value};

use super::recipe::{TensorRecipe, whole};
use super::recurrent::Change;
use super::{GgufExport, QUANTIZATION_VERSION};
use crate::error::{Error, Result};
use crate::spec::ModelSpec;
use crate::vision::mmproj::{BOTH_WAYS_KEY, Pair, PairKind, TOKEN_KEY, pairs};
use crate::vision::{BothWays, CHANNELS, Sizing, SizingKind, VisionSpec};

/// Exports the tower of a checkpoint with Hugging Face names, which `spec` was read from; `None` if
/// it has no tower.
///
/// # Errors
/// llama.cpp has no name for the tower or one of its tensors, or the format cannot store a number.
pub fn to_mmproj(checkpoint: &Checkpoint, spec: &ModelSpec, name: &str) -> Result<Option<GgufExport>> {
    let Some(vision) = spec.vision.as_ref().filter(|_| checkpoint.naming == Naming::HuggingFace) else {
        return Ok(None);
    };
    let Some(names) = vision.tower.mmproj else {
        return Err(bad("tower of images", vision.tower.name, "one that GGUF has a name for"));
    };
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value: Value| {
        metadata.insert(key.to_owned(), value);
    };
    put("general.architecture", Value::Str("clip".to_owned()));
    put("general.type", Value::Str("mmproj".to_owned()));
    put("general.name", Value::Str(name.to_owned()));
    put("general.quantization_version", Value::Int(QUANTIZATION_VERSION));
    put("clip.has_vision_encoder", Value::Bool(true));
    put("clip.projector_type", Value::Str(names.kind.to_owned()));
    let usual = vision.tower.activation;
    if vision.activation != usual {
        return Err(bad("activation of the tower", format!("{:?}", vision.activation), format!("{usual:?}")));
    }
    put(if usual == Activation::Silu { "clip.use_silu" } else { "clip.use_gelu" }, Value::Bool(true));
    for (key, value) in numbers(vision)? {
        metadata.insert(format!("clip.vision.{key}"), value);
    }
    metadata.insert(TOKEN_KEY.to_owned(), Value::Int(vision.token.into()));
    if vision.tower.both_ways == BothWays::InWindowsIfSaid {
        let both_ways = vision.both_ways != BothWays::Never;
        metadata.insert(BOTH_WAYS_KEY.to_owned(), Value::Bool(both_ways));
    }
    let mut recipes = Vec::new();
    for pair in pairs(vision.tower, vision.folder_prefixes(), vision.n_layers, &vision.taps) {
        for suffix in ["weight", "bias"] {
            let hf = if pair.whole { pair.hf.clone() } else { format!("{}.{suffix}", pair.hf) };
            if pair.whole && suffix == "bias" {
                continue;
            }
            if let Some(tensor) = checkpoint.tensor(&hf) {
                recipes.extend(recipes_of(vision, &pair, suffix, tensor)?);
            }
        }
    }
    let format = checkpoint.format.clone();
    Ok(Some(GgufExport { metadata, unused_tensors: Vec::new(), notes: Vec::new(), recipes, format }))
}

fn bad(what: &str, found: impl ToString, expected: impl ToString) -> Error {
    Error::Export { what: what.to_owned(), found: found.to_string(), expected: expected.to_string() }
}

fn count(n: usize) -> Value {
    Value::Int(n as i128)
}

/// The numbers of a tower, under `clip.vision.`.
fn numbers(vision: &VisionSpec) -> Result<Vec<(&'static str, Value)>> {
    let real = |value: f32| Value::Float(f64::from(value));
    let floats = |values: [f32; 3]| Value::Array(Array::Float(values.to_vec()));
    // Readers normalise colours for this tower themselves, so that part is removed here.
    let (mut mean, mut std) = (vision.recipe.mean, vision.recipe.std);
    if vision.tower.centres {
        std.iter_mut().for_each(|std| *std *= 2.0);
        mean.iter_mut().zip(&std).for_each(|(mean, std)| *mean -= 0.5 * std);
    }
    let mut all = vec![
        ("projection_dim", count(vision.out)),
        ("embedding_length", count(vision.hidden)),
        ("feed_forward_length", count(vision.ffn)),
        ("block_count", count(vision.n_layers)),
        ("attention.head_count", count(vision.n_heads)),
        ("attention.layer_norm_epsilon", real(vision.norm_eps)),
        ("patch_size", count(vision.patch)),
        // A tower without a fixed size gets 40 patches a side, since llama.cpp plans its memory by
        // this size.
        ("image_size", count(vision.side.unwrap_or(40 * vision.patch))),
        ("image_mean", floats(mean)),
        ("image_std", floats(std)),
    ];
    match vision.tower.sizing {
        SizingKind::Square | SizingKind::Tiles | SizingKind::Rows => {
            all.push(("projector.scale_factor", count(vision.merge)))
        }
        SizingKind::Pixels => all.push(("spatial_merge_size", count(vision.merge))),
    }
    match vision.recipe.sizing {
        Sizing::Exact(..) => {}
        Sizing::Pixels { least, most, .. } => {
            all.extend([("image_min_pixels", count(least)), ("image_max_pixels", count(most))]);
        }
        Sizing::Tiles { longest, .. } => all.push(("preproc_image_size", count(longest))),
        Sizing::Rows { unit, most } => all.push(("image_max_pixels", count(most * unit * unit))),
    }
    if let Some(window) = vision.window {
        let every = vision.full_layers.first().map_or(0, |first| first + 1);
        let regular: Vec<usize> =
            (0..vision.n_layers).filter(|l| every > 0 && (l + 1).is_multiple_of(every)).collect();
        if regular != vision.full_layers {
            let found = format!("{:?}", vision.full_layers);
            return Err(bad("layers that see the whole image", found, format!("every one of {every}")));
        }
        all.push(("n_wa_pattern", count(every)));
        all.push(("window_size", count(window * vision.merge * vision.patch)));
    }
    if !vision.tower.tap_projector.is_empty() {
        let flags = (0..vision.n_layers).map(|l| vision.taps.contains(&l)).collect();
        all.push(("is_deepstack_layers", Value::Array(Array::Bool(flags))));
    }
    Ok(all)
}

/// The tensors that a tensor of the source becomes.
fn recipes_of(vision: &VisionSpec, pair: &Pair, suffix: &str, tensor: &Tensor) -> Result<Vec<TensorRecipe>> {
    let plain = |name: String, shape: Vec<usize>, pieces| TensorRecipe {
        name,
        shape,
        pieces,
        order: None,
        plain: Some(0.0),
        transposed: false,
        change: Change::None,
    };
    let name =
        if pair.kind == PairKind::Bare { pair.gguf.clone() } else { format!("{}.{suffix}", pair.gguf) };
    let all = whole(tensor);
    Ok(match pair.kind {
        // The format stores colours before pixels.
        PairKind::Patch if suffix == "weight" && tensor.shape.len() == 2 && vision.frames == 1 => {
            let VisionSpec { hidden, patch, .. } = *vision;
            let n_pixels = patch * patch;
            let order = (0..CHANNELS).flat_map(|c| (0..n_pixels).map(move |at| at * CHANNELS + c)).collect();
            let change = Change::Columns { len: 1, order };
            vec![TensorRecipe { change, ..plain(name, vec![hidden, CHANNELS, patch, patch], vec![all]) }]
        }
        PairKind::Patch if suffix == "weight" => {
            let VisionSpec { hidden, frames, patch, .. } = *vision;
            let of_frames = tensor.shape == [hidden, CHANNELS, frames, patch, patch];
            if !of_frames && (frames != 1 || tensor.shape != [hidden, CHANNELS, patch, patch]) {
                let expected = format!("shape {:?}", [hidden, CHANNELS, frames, patch, patch]);
                return Err(bad(&tensor.name, format!("shape {:?}", tensor.shape), expected));
            }
            let of_frame = |frame: usize| {
                let first = move |channel: usize| (channel * frames + frame) * patch;
                let piece = |channel: usize| (tensor.clone(), first(channel)..first(channel) + patch);
                let name = if frame == 0 { name.clone() } else { format!("{name}.{frame}") };
                plain(name, vec![hidden, CHANNELS, patch, patch], (0..hidden * CHANNELS).map(piece).collect())
            };
            (0..frames).map(of_frame).collect()
        }
        PairKind::Bare => vec![plain(name, vec![tensor.n_rows() * tensor.n_cols()], vec![all])],
        PairKind::WholeNorm => {
            vec![TensorRecipe { plain: Some(1.0), ..plain(name, tensor.shape.clone(), vec![all]) }]
        }
        PairKind::Third(third) => {
            let n = all.1.len() / 3;
            let mut shape = tensor.shape.clone();
            shape[0] = n;
            let made = plain(name, shape, vec![(tensor.clone(), third * n..(third + 1) * n)]);
            vec![TensorRecipe { plain: (suffix == "bias").then_some(0.0), ..made }]
        }
        // llama.cpp requires F32 for values that it adds or rotates.
        PairKind::Same | PairKind::Patch => {
            let keeps =
                suffix == "weight" && tensor.shape.len() > 1 && !pair.whole && pair.gguf != "v.position_embd";
            vec![TensorRecipe {
                plain: (!keeps).then_some(0.0),
                ..plain(name, tensor.shape.clone(), vec![all])
            }]
        }
    })
}
