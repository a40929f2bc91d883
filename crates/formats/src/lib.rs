//! Weight files. A format module knows bytes and nothing else: it turns a file into a [`Checkpoint`], which is
//! neutral [`Metadata`] plus named [`Tensor`]s, every one a view of the mapped file.
//!
//! What is absent here on purpose: model families, devices, arithmetic other than the scalar block codecs.
#![deny(missing_docs)]

mod block;
mod bytes;
mod cursor;
mod error;
mod metadata;
mod planes;

pub mod base;
pub mod codec;
pub mod convert;
pub mod ctranslate2;
pub mod gguf;
pub mod safetensors;
pub mod whisper_cpp;

pub use block::{Affine, BlockType, ScaleType};
pub use bytes::{Bytes, Map};
pub use error::{Error, Result};
pub use metadata::{Array, Metadata, Value};
pub use planes::{PlaneSlices, Planes};

use std::ops::Range;
use std::path::Path;

/// Which convention the metadata keys and tensor names of a checkpoint follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `llama.block_count`, `blk.0.attn_q.weight`.
    Gguf,
    /// `num_hidden_layers`, `model.layers.0.self_attn.q_proj.weight`. Nested JSON objects of config.json are
    /// flattened with dots: `rope_parameters.full_attention.rope_theta`.
    HuggingFace,
    /// BaseRT's own: config.json's keys, and tensors such as `layers.0.attn.qkv_proj.weight`.
    Base,
    /// `decoder/layer_0/self_attention/linear_0/weight`; metadata is config.json, flattened, and the scalar variables.
    CTranslate2,
    /// OpenAI's tensor names, `decoder.blocks.0.attn.query.weight`, and its hyperparameters, `n_audio_state`.
    WhisperCpp,
}

/// A tensor as it lies in its file: row-major, the last dimension contiguous, quantised in blocks along it.
///
/// The readers promise: no dimension is 0, the number of values and of bytes fits a `usize`, the last dimension is
/// whole blocks, and a scalar has the empty shape. The data's alignment is not promised: at least 8 in a GGUF file,
/// but a safetensors header may shift everything by a byte.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Outermost dimension first: a linear layer is `[n_out, n_in]`. (GGUF stores the reverse; it is reversed here.)
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub block: BlockType,
    /// Exactly `n_rows * row_bytes` bytes.
    pub data: Bytes,
    /// Scales and offsets, if `block` keeps them apart; they fit the shape.
    pub planes: Planes,
}

impl Tensor {
    /// Number of values in the last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn n_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of one row of `n_cols` values.
    pub fn row_bytes(&self) -> usize {
        self.block.row_bytes(self.n_cols())
    }

    /// Bytes of the values and of what stands beside them.
    pub fn n_bytes(&self) -> usize {
        self.data.len() + self.planes.n_bytes()
    }

    /// The rows `rows` of `n_cols` values each: their bytes and planes, if the tensor has that many. Nothing is copied.
    pub fn rows(&self, rows: Range<usize>) -> Option<(Bytes, Planes)> {
        let row = self.row_bytes();
        let data = self.data.slice(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?)?;
        Some((data, self.planes.rows(self.block, self.n_cols(), rows)?))
    }

    /// All values, decoded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows() * self.n_cols()];
        codec::dequantize_rows(self.block, self.n_cols(), &self.data, self.planes.as_slices(), &mut values);
        values
    }
}

/// What a weight file (or a folder of them) holds.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The convention of the names in it.
    pub naming: Naming,
    /// Keys and values of the header (GGUF) or of config.json (flattened).
    pub metadata: Metadata,
    /// In file order.
    pub tensors: Vec<Tensor>,
    /// A short description such as `GGUF v3`, for people.
    pub format: String,
    /// Bytes of all the files behind it.
    pub file_bytes: u64,
}

impl Checkpoint {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

/// How a file's bytes are brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Map the file: nothing is read until it is used. A file truncated while mapped raises SIGBUS.
    #[default]
    Map,
    /// Read it whole into memory, for files that may change under us (network shares).
    Read,
}

/// Open whatever `path` is: a GGUF file (or any of a split set), a `.base` file, a ggml file of whisper.cpp, a folder
/// with config.json and safetensors (MLX's quantised ones included), or a folder with CTranslate2's model.bin.
///
/// A file is known by its first bytes, not by its name.
///
/// # Errors
/// Names the file, the tensor or key, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    if path.is_dir() {
        let model = path.join(ctranslate2::MODEL_FILE);
        return match ctranslate2::is_model(&model) {
            true => ctranslate2::open(path, access),
            false => safetensors::open(path, access),
        };
    }
    match first_bytes(path)? {
        base::MAGIC => base::open(path, access),
        whisper_cpp::MAGIC => whisper_cpp::open(path, access),
        _ => gguf::open(path, access),
    }
}

/// What has to hold before anything of a file is used. Of the formats only `.base` has signatures and checksums.
#[derive(Clone, Debug, Default)]
pub struct Verify {
    /// The key that must have signed it.
    pub key: Option<base::PublicKey>,
    /// Hash every tensor.
    pub checksums: bool,
}

/// As [`open`], after the file was verified. What is verified are the bytes that the checkpoint views: with
/// [`Access::Read`] nobody can change them afterwards.
///
/// # Errors
/// As [`open`]; the file cannot be verified, is not signed by the key, or is damaged.
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

/// The first four bytes of a file; zeros for what it lacks.
fn first_bytes(path: &Path) -> Result<[u8; 4]> {
    use std::io::Read;
    let io = |source| Error::Io { file: path.to_owned(), source };
    let mut bytes = Vec::with_capacity(4);
    std::fs::File::open(path).map_err(io)?.take(4).read_to_end(&mut bytes).map_err(io)?;
    bytes.resize(4, 0);
    Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
}
