//! Readers and writers of weight files. A format module turns a file into a [`Checkpoint`]: neutral
//! metadata, and named tensors that are views of the mapped file.
//!
//! This crate knows no model families and no devices.
#![deny(missing_docs)]

mod cursor;

pub mod base;
pub mod convert;
pub mod ctranslate2;
pub mod gguf;
pub mod safetensors;
pub mod whisper_cpp;

use std::ffi::OsString;
use std::path::Path;

use weights::{Access, Checkpoint, Error, Result};

/// Opens a model: a file (GGUF, `.base`, or ggml of whisper.cpp), or a folder with safetensors or
/// CTranslate2's model.bin. Any part opens a split GGUF. Folders need a config.json, and may be
/// MLX's quantised ones.
///
/// The format of a file is recognised by its first bytes, not by its name.
///
/// # Errors
/// Names the file, the tensor or key, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    if path.is_dir() {
        let model = path.join(ctranslate2::MODEL_FILE);
        return match ctranslate2::is_model(&model) {
            true => ctranslate2::open(path, access),
            false if !path.join("config.json").exists() => Err(no_model_in(path)),
            false => safetensors::open(path, access),
        };
    }
    match first_bytes(path)? {
        base::MAGIC => base::open(path, access),
        whisper_cpp::MAGIC => whisper_cpp::open(path, access),
        gguf::MAGIC => gguf::open(path, access),
        other => Err(not_a_model(path, other)),
    }
}

/// The error for a folder without config.json, which may contain models that are files.
fn no_model_in(folder: &Path) -> Error {
    let is_model = |name: &OsString| {
        Path::new(name).extension().is_some_and(|end| ["gguf", "base"].iter().any(|known| end == *known))
    };
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let found = match names.filter(is_model).min() {
        Some(name) => format!("a folder without config.json, in which {name:?} may be the model"),
        None => "a folder without config.json".to_owned(),
    };
    Error::malformed(
        folder,
        "not a model",
        found,
        "a folder with config.json and safetensors, or the path of a file",
    )
}

/// The error for a file that begins like no known format.
fn not_a_model(path: &Path, begins: [u8; 4]) -> Error {
    let is_empty = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
    let found = match is_empty {
        true => "an empty file".to_owned(),
        false => format!("\"{}\" at its beginning", begins.escape_ascii()),
    };
    let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    let expected = match is_safetensors {
        true => "the folder with this file and config.json",
        false => {
            "a GGUF or .base file, a ggml file of whisper.cpp, or a folder with config.json and safetensors"
        }
    };
    Error::malformed(path, "not a model file", found, expected)
}

/// Opens an adapter: PEFT's folder with adapter_config.json and adapter_model.safetensors, either
/// of the two files, or a GGUF file.
///
/// # Errors
/// The errors of [`open`].
pub fn open_adapter(path: &Path, access: Access) -> Result<Checkpoint> {
    let is_of_folder = |name: &str| path.extension().is_some_and(|extension| extension == name);
    if path.is_dir() {
        return safetensors::open_adapter(path, access);
    }
    match path.parent() {
        Some(folder) if is_of_folder("safetensors") || is_of_folder("json") => {
            safetensors::open_adapter(folder, access)
        }
        _ => gguf::open(path, access),
    }
}

/// Checks of a file before it is used. Only `.base` files have signatures and checksums.
#[derive(Clone, Debug, Default)]
pub struct Verify {
    /// Key that must have signed the file.
    pub key: Option<base::PublicKey>,
    /// True to check the checksum of every tensor.
    pub checksums: bool,
}

/// Like [`open`], after the file was verified. The verified bytes are those that the checkpoint
/// views; with [`Access::Read`] nobody can change them afterwards.
///
/// # Errors
/// The errors of [`open`], or a file that cannot be verified, is not signed by the key, or is
/// damaged.
pub fn open_verified(path: &Path, access: Access, verify: &Verify) -> Result<Checkpoint> {
    if verify.key.is_none() && !verify.checksums {
        return open(path, access);
    }
    if path.is_dir() || first_bytes(path)? != base::MAGIC {
        let found = "a format without signatures and checksums";
        return Err(Error::unsupported(path, "verification", found, ".base files"));
    }
    let file = base::read(path, access)?;
    if let Some(key) = &verify.key {
        file.verify_signature(key)?;
    }
    if verify.checksums {
        file.verify_checksums()?;
    }
    Ok(file.into_checkpoint())
}

/// The first four bytes of a file; zeros replace missing ones.
fn first_bytes(path: &Path) -> Result<[u8; 4]> {
    use std::io::Read;
    let io = |source| Error::Io { file: path.to_owned(), source };
    let is_file = std::fs::metadata(path).map_err(io)?.is_file();
    if !is_file {
        // Opening a pipe may block for ever.
        return Err(Error::malformed(path, "not a model file", "a pipe or a device", "a file, or a folder"));
    }
    let mut bytes = Vec::with_capacity(4);
    std::fs::File::open(path).map_err(io)?.take(4).read_to_end(&mut bytes).map_err(io)?;
    bytes.resize(4, 0);
    Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
}
