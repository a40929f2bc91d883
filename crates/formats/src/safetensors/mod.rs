//! Folders in Hugging Face's layout: config.json, and weights in one or several safetensors files.
//!
//! Weights are `model.safetensors`, or the files listed in `model.safetensors.index.json`, or the
//! only `*.safetensors` in the folder. Metadata is config.json, flattened with dots. Further files
//! are flattened under prefixes if present: generation_config.json under `generation_config.`,
//! preprocessor_config.json under `preprocessor_config.`, and the files of sentence-transformers. A
//! reranker adds the tokens of its two answers.
//!
//! If config.json says that MLX quantised the weights, `mlx.rs` reads them.

mod config;
mod header;
mod mlx;
mod reranker;
mod sentence;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use weights::{Access, Checkpoint, Error, LeftOut, Map, Metadata, Naming, Result, Tensor};

use header::Item;
use mlx::Quantization;

pub use config::flatten;
pub(crate) use config::number;
pub(crate) use config::read_json;

/// Opens the folder `dir`.
///
/// # Errors
/// Names the file, the key or tensor, what was found and what was expected.
pub fn open(dir: &Path, access: Access) -> Result<Checkpoint> {
    let mut metadata = Metadata::default();
    let config_path = dir.join("config.json");
    let config = read_json(&config_path)?;
    flatten(&config, "", &config_path, &mut metadata)?;
    let quantization = Quantization::from_config(&config, &config_path)?;
    let generation = dir.join("generation_config.json");
    if generation.is_file() {
        flatten(&read_json(&generation)?, weights::keys::GENERATION_PREFIX, &generation, &mut metadata)?;
    }
    read_preprocessor(dir, &mut metadata)?;
    let dense = sentence::read(dir, &mut metadata)?;
    reranker::read(dir, &mut metadata)?;

    let index = dir.join("model.safetensors.index.json");
    let single = dir.join("model.safetensors");
    let mut weights = Weights::default();
    if single.is_file() {
        weights.add(&single, access, "")?;
    } else if index.is_file() {
        let shards = read_index(&index)?;
        for (file, names) in &shards {
            weights.add(&dir.join(file), access, "")?;
            if let Some(name) = names.iter().find(|name| !weights.names.contains(*name)) {
                return Err(Error::malformed(
                    &index,
                    format_args!("weight_map, tensor {name:?}"),
                    format_args!("file {file:?}, which lacks it"),
                    "the file that holds it",
                ));
            }
        }
    } else {
        weights.add(&only_file(dir)?, access, "")?;
    }
    for folder in dense {
        weights.add(&dir.join(&folder).join("model.safetensors"), access, &format!("{folder}."))?;
    }
    let format = if quantization.is_some() { "MLX safetensors" } else { "safetensors" };
    let (tensors, left_out) = match quantization {
        Some(quantization) => mlx::assemble(weights.items, &quantization, dir)?,
        None => divided(weights.items),
    };
    Ok(Checkpoint {
        naming: Naming::HuggingFace,
        metadata,
        tensors,
        left_out,
        format: match weights.n_files {
            1 => format.to_owned(),
            n => format!("{format} in {n} files"),
        },
        file_bytes: weights.n_bytes,
    })
}

/// Reads the preprocessing of images and sounds: preprocessor_config.json, or the image part of
/// processor_config.json.
fn read_preprocessor(dir: &Path, metadata: &mut Metadata) -> Result<()> {
    let path = dir.join("preprocessor_config.json");
    if path.is_file() {
        return flatten(&read_json(&path)?, weights::keys::PREPROCESSOR_PREFIX, &path, metadata);
    }
    let path = dir.join("processor_config.json");
    if path.is_file()
        && let Some(images) = read_json(&path)?.get("image_processor").filter(|images| images.is_object())
    {
        return flatten(images, weights::keys::PREPROCESSOR_PREFIX, &path, metadata);
    }
    Ok(())
}

/// Opens PEFT's folder `dir`: adapter_config.json, flattened with dots, and the tensors of
/// adapter_model.safetensors.
///
/// # Errors
/// The errors of [`open`].
pub fn open_adapter(dir: &Path, access: Access) -> Result<Checkpoint> {
    let mut metadata = Metadata::default();
    let config_path = dir.join("adapter_config.json");
    flatten(&read_json(&config_path)?, "", &config_path, &mut metadata)?;
    let mut weights = Weights::default();
    weights.add(&dir.join("adapter_model.safetensors"), access, "")?;
    let (tensors, left_out) = divided(weights.items);
    Ok(Checkpoint {
        naming: Naming::HuggingFace,
        metadata,
        tensors,
        left_out,
        format: "PEFT safetensors".to_owned(),
        file_bytes: weights.n_bytes,
    })
}

/// Parses the bytes of one safetensors file and appends its float tensors, in the order of their
/// data. Doubles become F32. Tensors of integers or booleans (position ids) and empty tensors are
/// checked and left out.
///
/// `path` only names the file in errors.
///
/// # Errors
/// Bytes that break the format, or floats of other types.
pub fn parse_file(map: Arc<Map>, path: &Path, tensors: &mut Vec<Tensor>) -> Result<()> {
    for entry in header::parse(&map, path)? {
        if let Item::Float(tensor) = entry.into_item(&map, path)? {
            tensors.push(tensor);
        }
    }
    Ok(())
}

/// Splits tensors into floats and those that are not weights.
fn divided(items: Vec<Item>) -> (Vec<Tensor>, Vec<LeftOut>) {
    let (mut tensors, mut left_out) = (Vec::with_capacity(items.len()), Vec::new());
    for item in items {
        match item {
            Item::Float(tensor) => tensors.push(tensor),
            Item::Packed(packed) => left_out.push(LeftOut::of_type(packed.name, "U32")),
            Item::LeftOut(tensor) => left_out.push(tensor),
        }
    }
    (tensors, left_out)
}

/// The content of the files read so far.
#[derive(Default)]
struct Weights {
    items: Vec<Item>,
    /// Names of all tensors, those left out included.
    names: HashSet<String>,
    n_files: usize,
    n_bytes: u64,
}

impl Weights {
    /// Adds a file's tensors, with `prefix` before their names.
    fn add(&mut self, path: &Path, access: Access, prefix: &str) -> Result<()> {
        let map = Map::open(path, access)?;
        for mut entry in header::parse(&map, path)? {
            entry.name.insert_str(0, prefix);
            if !self.names.insert(entry.name.clone()) {
                return Err(Error::malformed(
                    path,
                    format_args!("tensor {:?}", entry.name),
                    "the name a second time in the set",
                    "every name once",
                ));
            }
            self.items.push(entry.into_item(&map, path)?);
        }
        self.n_files += 1;
        self.n_bytes += map.len() as u64;
        Ok(())
    }
}

/// The index's files, each with the tensors listed for it.
fn read_index(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let json = read_json(path)?;
    let Some(map) = json.get("weight_map").and_then(|map| map.as_object()).filter(|map| !map.is_empty())
    else {
        return Err(Error::malformed(
            path,
            "weight_map",
            "nothing usable",
            "an object from tensor names to file names",
        ));
    };
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in map {
        let Some(file) = file.as_str().filter(|file| is_plain_file_name(file)) else {
            return Err(Error::malformed(
                path,
                format_args!("weight_map, tensor {name:?}"),
                file,
                "the name of a .safetensors file in the same folder",
            ));
        };
        shards.entry(file.to_owned()).or_default().insert(name.clone());
    }
    Ok(shards)
}

/// True if `name` is a visible safetensors file in the folder itself, and not a path on any system.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
        && name.ends_with(".safetensors")
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':', '\0'])
}

/// The folder's only safetensors file.
fn only_file(dir: &Path) -> Result<PathBuf> {
    let io = |source| Error::Io { file: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let plain = path.file_name().and_then(|name| name.to_str()).is_some_and(is_plain_file_name);
        if plain && path.is_file() {
            found.push(path);
        }
    }
    match found.as_slice() {
        [only] => Ok(only.clone()),
        files => Err(Error::malformed(
            dir,
            "weights",
            format_args!("{} .safetensors files", files.len()),
            "model.safetensors, model.safetensors.index.json with its files, or a single .safetensors file",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain_file_name;

    #[test]
    fn only_plain_names_are_files_of_the_folder() {
        assert!(is_plain_file_name("model-00001-of-00002.safetensors"));
        for bad in [
            "../model.safetensors",
            "/etc/model.safetensors",
            "a/b.safetensors",
            "./b.safetensors",
            "b.safetensors/",
            "a\\b.safetensors",
            "C:b.safetensors",
            ".hidden.safetensors",
            ".safetensors",
            "..",
            "",
            "model.bin",
            "a\0.safetensors",
        ] {
            assert!(!is_plain_file_name(bad), "{bad:?}");
        }
    }
}
