//! Differences between a refused file and the tables: unknown keys and tensors, and the first one
//! that the family lacks.

use std::collections::{BTreeMap, BTreeSet};

use weights::{Checkpoint, Naming};

use crate::descriptor::ArchDescriptor;
use crate::error::Error;
use crate::families::FAMILIES;
use crate::names::{
    IGNORED, KEYS, MODEL_PREFIXES, NEXT_PREFIX, ROPE_OBJECTS, TEXT_CONFIG, WINDOW_ROPE_OBJECTS,
};
use crate::spec::ModelSpec;

/// Keys of config.json that do not affect the computation.
const CARELESS: &[&str] = &[
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "model_type",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Differences between a file and a family. Names with layer or expert numbers appear once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The title of the family that the file was compared with.
    pub family: &'static str,
    /// True if the family has the file's architecture name.
    pub known: bool,
    /// Keys that are in no table.
    pub unknown_keys: Vec<String>,
    /// Tensors that are in no table of the family, with `{n}` for numbers, and their counts.
    pub unknown_tensors: Vec<String>,
    /// The first key or tensor that a known family requires and the file lacks.
    pub absent: Vec<String>,
}

impl Missing {
    /// Compares a file with the family that it names, or with the family whose tensor names fit
    /// best.
    pub fn of(checkpoint: &Checkpoint) -> Missing {
        let found = ModelSpec::from_checkpoint(checkpoint);
        let (family, known) = match &found {
            Ok(spec) => (spec.family, true),
            Err(Error::UnknownFamily { .. }) => (nearest(checkpoint), false),
            Err(_) => (crate::read::family_of(checkpoint).unwrap_or_else(|| nearest(checkpoint)), true),
        };
        let names = known_tensors(family, checkpoint.naming);
        let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
        for tensor in &checkpoint.tensors {
            let name = pattern(&tensor.name);
            let ignored = IGNORED.iter().any(|part| tensor.name.contains(part));
            if !ignored && !names.contains(&name) {
                *unknown.entry(name).or_default() += 1;
            }
        }
        let counted = |(name, n): (String, usize)| if n > 1 { format!("{name} ({n} times)") } else { name };
        Missing {
            family: family.title,
            known,
            unknown_keys: unknown_keys(checkpoint),
            unknown_tensors: unknown.into_iter().map(counted).collect(),
            absent: match found {
                Err(error) if known => vec![error.to_string()],
                _ => vec![],
            },
        }
    }
}

/// A name with `{n}` for its numbers.
fn pattern(name: &str) -> String {
    let part = |part: &str| match part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        true => part.to_owned(),
        false => "{n}".to_owned(),
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Name patterns of all tensors of a family.
fn known_tensors(family: &ArchDescriptor, naming: Naming) -> BTreeSet<String> {
    let parts = [Some(family), family.encoder];
    let rows = parts.into_iter().flatten().flat_map(|family| family.tensors.iter().copied().flatten());
    let full = |row: &crate::names::TensorName| {
        MODEL_PREFIXES
            .iter()
            .chain([&NEXT_PREFIX])
            .flat_map(|prefix| {
                ["weight", "bias"].map(|suffix| row.full_name(naming, prefix, Some(0), suffix))
            })
            .flatten()
            .map(|name| pattern(&name.replace("{e}", "0")))
            .collect::<Vec<_>>()
    };
    rows.flat_map(full).collect()
}

/// The family whose names match most of the file's tensors; of equals, the first.
fn nearest(checkpoint: &Checkpoint) -> &'static ArchDescriptor {
    let fits = |family: &ArchDescriptor| {
        let names = known_tensors(family, checkpoint.naming);
        checkpoint.tensors.iter().filter(|tensor| names.contains(&pattern(&tensor.name))).count()
    };
    let mut best = (&FAMILIES[0], 0);
    for family in FAMILIES {
        let n = fits(family);
        if n > best.1 {
            best = (family, n);
        }
    }
    best.0
}

/// Keys that are in no table. Considers the architecture's keys of GGUF files, and config.json of
/// folders.
fn unknown_keys(checkpoint: &Checkpoint) -> Vec<String> {
    let gguf = checkpoint.naming == Naming::Gguf;
    let architecture = checkpoint.metadata.str("general.architecture").unwrap_or_default().to_owned() + ".";
    let objects = || ROPE_OBJECTS.iter().chain(WINDOW_ROPE_OBJECTS);
    let is_known = |key: &str| {
        let names = KEYS.iter().flat_map(|row| if gguf { row.gguf } else { row.hf });
        let mut names = names.copied();
        names.any(|name| match name.strip_prefix("{rope}") {
            Some(rest) => objects().any(|object| key.strip_prefix(object) == Some(rest)),
            None => key == name || key.strip_suffix("_swa") == Some(name),
        }) || FAMILIES.iter().flat_map(|f| f.settings).any(|(name, _)| *name == key)
            || FAMILIES.iter().flat_map(|f| f.keys).any(|names| names.of(checkpoint.naming) == key)
            || CARELESS.contains(&key)
    };
    let name = |key: &str| match gguf {
        true => key.strip_prefix(architecture.as_str()).map(str::to_owned),
        // Keys of other files beside config.json have prefixes.
        false => {
            let key = key.strip_prefix(TEXT_CONFIG).unwrap_or(key);
            let beside = ["generation_config.", "tokenizer", "modules", "pooling.", "dense.", "sentence"];
            let other = beside.iter().chain(&["config_sentence", "vision_config.", "files."]);
            (!other.copied().any(|prefix| key.starts_with(prefix))).then(|| key.to_owned())
        }
    };
    let keys = checkpoint.metadata.iter().filter_map(|(key, _)| name(key));
    keys.filter(|key| !is_known(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn numbers_become_places() {
        assert_eq!(
            pattern("model.layers.12.mlp.experts.3.w1.weight"),
            "model.layers.{n}.mlp.experts.{n}.w1.weight"
        );
        assert_eq!(pattern("blk.0.attn_q.weight"), "blk.{n}.attn_q.weight");
    }
}
