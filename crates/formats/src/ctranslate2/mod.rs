//! CTranslate2 folders, such as faster-whisper's models: model.bin, config.json and a vocabulary.
//!
//! model.bin, binary version 6, is little-endian:
//!
//! ```text
//! u32 6 | string specification, "WhisperSpec" | u32 its revision
//! u32 n_variables, then for each:  string name | u8 rank | u32 dims[rank] | u8 type |
//!                                  u32 n_bytes | data
//! u32 n_aliases, then for each:    string alias | string name of a variable
//! ```
//!
//! A string is a u16 length, that many bytes less one, and a NUL. Types are 0 f32, 1 i8, 2 i16, 3
//! i32, 4 f16, 5 bf16. Variables without dimensions are settings, such as `decoder/num_heads`.
//! Integer weights `X` have scales in `X_scale`: one a row for 8 bits, one for the whole tensor for
//! 16 bits. See <https://github.com/OpenNMT/CTranslate2>.
//!
//! Metadata is config.json, flattened, and preprocessor_config.json under `preprocessor_config.`,
//! if present. The settings have their variables' names. Further keys are `ctranslate2.spec`,
//! `ctranslate2.revision` and the list `vocabulary`.

mod reader;
mod vocabulary;

use std::path::Path;

use crate::safetensors::{flatten, read_json};
use weights::{Access, Checkpoint, Map, Metadata, Naming, Result, Value};

pub use reader::{Model, parse};

/// The file with the weights.
pub const MODEL_FILE: &str = "model.bin";

/// The binary version that is supported. Other versions have another layout.
pub const BINARY_VERSION: u32 = 6;

/// True if the file begins like CTranslate2's, with a small number.
pub fn is_model(path: &Path) -> bool {
    path.is_file() && matches!(crate::first_bytes(path), Ok([1..=255, 0, 0, 0]))
}

/// Opens the folder `dir`.
///
/// # Errors
/// Names the file, the variable or key, what was found and what was expected.
pub fn open(dir: &Path, access: Access) -> Result<Checkpoint> {
    let mut metadata = Metadata::default();
    for (file, prefix) in [("config.json", ""), ("preprocessor_config.json", "preprocessor_config.")] {
        let path = dir.join(file);
        if path.is_file() {
            flatten(&read_json(&path)?, prefix, &path, &mut metadata)?;
        }
    }
    let path = dir.join(MODEL_FILE);
    let map = Map::open(&path, access)?;
    let file_bytes = map.len() as u64;
    let model = parse(map, &path)?;
    metadata.insert("ctranslate2.spec".to_owned(), Value::Str(model.spec));
    metadata.insert("ctranslate2.revision".to_owned(), Value::Int(model.revision.into()));
    for (name, value) in model.settings {
        // Names of variables contain a slash, so they differ from all keys of config.json in use.
        metadata.insert(name, value);
    }
    if let Some(tokens) = vocabulary::read(dir, access)? {
        metadata.insert(weights::keys::VOCABULARY.to_owned(), Value::Array(tokens));
    }
    Ok(Checkpoint {
        naming: Naming::CTranslate2,
        metadata,
        tensors: model.tensors,
        left_out: Vec::new(),
        format: format!("CTranslate2 v{BINARY_VERSION}"),
        file_bytes,
    })
}
