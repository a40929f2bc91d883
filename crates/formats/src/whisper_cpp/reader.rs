//! Reads a ggml file of whisper.cpp. The file is untrusted.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{HYPERPARAMETERS, MAGIC, MEL_FILTERS};
use crate::cursor::Cursor;
use crate::gguf::{MAX_DIMS, tensor_type_name};
use weights::keys::VOCABULARY;
use weights::{Array, BlockType, Checkpoint, Error, Map, Metadata, Naming, Planes, Result, Tensor, Value};

/// Factor of the quantisation's version in `ftype`, which is version times factor plus type.
const VERSION_FACTOR: i32 = 1000;

/// Version of ggml's block layouts since 2023.
const QUANTIZATION_VERSION: i32 = 2;

/// Parses the bytes of a file; `path` only names it in errors.
///
/// # Errors
/// Bytes that break the format, or an unsupported tensor type.
pub fn parse(map: Arc<Map>, path: &Path) -> Result<Checkpoint> {
    let mut cursor = Cursor::new(&map, path);
    let magic = cursor.take(4, format_args!("magic"))?;
    if magic != MAGIC {
        return Err(cursor.error(
            format_args!("magic"),
            format_args!("\"{}\"", magic.escape_ascii()),
            format_args!("\"{}\"", MAGIC.escape_ascii()),
        ));
    }
    let mut metadata = Metadata::default();
    let mut ftype = 0;
    for key in HYPERPARAMETERS {
        ftype = cursor.natural(format_args!("{key}"))?;
        metadata.insert(key.to_owned(), Value::Int(ftype.into()));
    }
    let mut tensors = vec![read_filters(&mut cursor)?];
    metadata.insert(VOCABULARY.to_owned(), Value::Array(read_vocabulary(&mut cursor)?));

    let mut names = HashSet::from([MEL_FILTERS.to_owned()]);
    while cursor.remaining() > 0 {
        let tensor = read_tensor(&mut cursor, tensors.len(), ftype)?;
        if !names.insert(tensor.name.clone()) {
            return Err(cursor.error(
                format_args!("tensor {:?}", tensor.name),
                "the name a second time",
                "every name once",
            ));
        }
        tensors.push(tensor);
    }
    Ok(Checkpoint {
        naming: Naming::WhisperCpp,
        metadata,
        tensors,
        left_out: Vec::new(),
        format: "whisper.cpp ggml".to_owned(),
        file_bytes: map.len() as u64,
    })
}

fn read_filters(cursor: &mut Cursor) -> Result<Tensor> {
    let at = format_args!("mel filters");
    let shape = vec![cursor.dimension(at)?, cursor.dimension(at)?];
    tensor(cursor, MEL_FILTERS.to_owned(), shape, BlockType::F32)
}

/// Reads the tokens as views of the file.
fn read_vocabulary(cursor: &mut Cursor) -> Result<Array> {
    let at = format_args!("number of tokens");
    let n = cursor.u32(at)?;
    let n = cursor.room_for(n.into(), 4, at)?;
    let start = cursor.at;
    let mut spans = Vec::with_capacity(n);
    for i in 0..n {
        let at = format_args!("token {i}");
        let len = cursor.u32(at)?;
        let offset = cursor.at - start;
        let n_bytes = cursor.room_for(len.into(), 1, at)?;
        cursor.take(n_bytes, at)?;
        match u32::try_from(offset) {
            Ok(offset) => spans.push((offset, len)),
            Err(_) => return Err(cursor.error(at, "tokens of 4 GiB or more", "less")),
        }
    }
    let bytes = cursor.bytes(start..cursor.at, format_args!("tokens"))?;
    Ok(Array::Str { bytes, spans })
}

fn read_tensor(cursor: &mut Cursor, i: usize, ftype: i32) -> Result<Tensor> {
    let at = format_args!("tensor {i}");
    let n_dims = cursor.u32(at)?;
    if n_dims > MAX_DIMS {
        return Err(cursor.error(
            at,
            format_args!("{n_dims} dimensions"),
            format_args!("at most {MAX_DIMS}"),
        ));
    }
    let name_len = cursor.u32(at)?;
    let id = cursor.u32(at)?;
    let mut shape = Vec::with_capacity(MAX_DIMS as usize);
    for _ in 0..n_dims {
        shape.push(cursor.dimension(at)?);
    }
    shape.reverse();
    let name_len = cursor.room_for(name_len.into(), 1, at)?;
    let name = cursor.take(name_len, at)?;
    let name = cursor.text(name, at)?.to_owned();

    let at = format_args!("tensor {name:?}");
    let block = BlockType::from_gguf_id(id).ok_or_else(|| match tensor_type_name(id) {
        Some(known) => Error::unsupported(cursor.file, at, format_args!("type {known}"), "types of weights"),
        None => cursor.error(at, format_args!("type id {id}"), "the id of a tensor type"),
    })?;
    let version = ftype / VERSION_FACTOR;
    if block.block_len() > 1 && version != QUANTIZATION_VERSION {
        return Err(Error::unsupported(
            cursor.file,
            at,
            format_args!("type {block} of quantisation version {version}"),
            format_args!("version {QUANTIZATION_VERSION}"),
        ));
    }
    tensor(cursor, name, shape, block)
}

/// The tensor whose data begins at the cursor.
fn tensor(cursor: &mut Cursor, name: String, shape: Vec<usize>, block: BlockType) -> Result<Tensor> {
    let at = format_args!("tensor {name:?}");
    let n_bytes = cursor.tensor_bytes(&shape, block, at)?;
    let start = cursor.at;
    cursor.take(n_bytes, at)?;
    let data = cursor.bytes(start..cursor.at, at)?;
    Ok(Tensor { name, shape, block, data, planes: Planes::default() })
}

impl Cursor<'_> {
    /// Reads an i32 that is not negative.
    fn natural(&mut self, at: fmt::Arguments) -> Result<i32> {
        let n = i32::from_le_bytes(self.array(at)?);
        if n < 0 { Err(self.error(at, n, "0 or more")) } else { Ok(n) }
    }

    /// Reads an i32 of at least 1.
    fn dimension(&mut self, at: fmt::Arguments) -> Result<usize> {
        match self.natural(at)? {
            0 => Err(self.error(at, "a dimension of 0", "1 or more")),
            n => Ok(n as usize),
        }
    }
}
