//! Reads one GGUF file. The file is untrusted. Each count is compared with the remaining bytes
//! before any allocation. Each sum and product of the file's numbers is checked for overflow.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, ValueType, tensor_type_name};
use crate::cursor::{Cursor, singles};
use weights::{
    Array, BlockType, Bytes, Checkpoint, Error, LeftOut, Map, Metadata, Naming, Planes, Result, Tensor, Value,
};

/// The longest key in bytes, which the format limits.
const MAX_KEY_BYTES: usize = 65535;
/// The deepest nesting of arrays that is skipped.
const MAX_NESTING: usize = 8;

/// One file, which may be a part of a split set.
pub(super) struct Part {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<Tensor>,
    pub left_out: Vec<LeftOut>,
    pub n_bytes: usize,
}

/// Parses the bytes of one file. It may be a part of a split set; [`open`](super::open) joins the
/// parts.
///
/// `path` only names the file in errors.
///
/// # Errors
/// Bytes that break the format, or a tensor type that is neither a plain number nor in
/// [`BlockType::ALL`] or [`BlockType::GGUF_EXTRA`].
pub fn parse(map: Arc<Map>, path: &Path) -> Result<Checkpoint> {
    let part = parse_part(map, path)?;
    Ok(Checkpoint {
        naming: Naming::Gguf,
        metadata: part.metadata,
        tensors: part.tensors,
        left_out: part.left_out,
        format: format!("GGUF v{}", part.version),
        file_bytes: part.n_bytes as u64,
    })
}

pub(super) fn parse_part(map: Arc<Map>, path: &Path) -> Result<Part> {
    let mut cursor = Cursor::new(&map, path);
    let version = read_version(&mut cursor)?;
    // The smallest tensor description has an empty name, no dimensions, a type and an offset. The
    // smallest entry has a key length, a type and one byte.
    let n_tensors = cursor.count(format_args!("tensor count"), 8 + 4 + 4 + 8)?;
    let n_metadata = cursor.count(format_args!("metadata count"), 8 + 4 + 1)?;

    let mut metadata = Metadata::default();
    for i in 0..n_metadata {
        let key = read_key(&mut cursor, i)?;
        let value = read_value(&mut cursor, &key)?;
        if metadata.get(&key).is_some() {
            return Err(cursor.error(format_args!("key {key:?}"), "it a second time", "every key once"));
        }
        metadata.insert(key, value);
    }
    let alignment = read_alignment(&metadata, path)?;

    let mut infos = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n_tensors {
        let info = read_tensor_info(&mut cursor, i, alignment)?;
        if !names.insert(info.name.clone()) {
            return Err(cursor.error(
                format_args!("tensor {:?}", info.name),
                "the name a second time",
                "every name once",
            ));
        }
        infos.push(info);
    }
    let (tensors, left_out) = place_tensors(&map, cursor.at, infos, alignment, path)?;
    Ok(Part { version, metadata, tensors, left_out, n_bytes: map.len() })
}

fn read_version(cursor: &mut Cursor) -> Result<u32> {
    let magic = cursor.take(4, format_args!("magic"))?;
    if magic != MAGIC {
        return Err(cursor.error(
            format_args!("magic"),
            format_args!("\"{}\"", magic.escape_ascii()),
            "\"GGUF\" (for safetensors, give the folder with config.json)",
        ));
    }
    let version = cursor.u32(format_args!("version"))?;
    let at = format_args!("version");
    match version {
        2 | 3 => Ok(version),
        // A small number with reversed bytes is a big-endian version.
        _ if version != 0 && version & 0xffff == 0 => Err(Error::unsupported(
            cursor.file,
            at,
            format_args!("a big-endian file (version {})", version.swap_bytes()),
            "little-endian files",
        )),
        1 => Err(Error::unsupported(cursor.file, at, "version 1", "versions 2 and 3")),
        _ => Err(cursor.error(at, version, "2 or 3")),
    }
}

fn read_key(cursor: &mut Cursor, i: usize) -> Result<String> {
    let key = cursor.string_bytes(format_args!("key {i}"))?;
    if key.len() > MAX_KEY_BYTES {
        return Err(cursor.error(
            format_args!("key {i}"),
            format_args!("{} bytes", key.len()),
            format_args!("at most {MAX_KEY_BYTES}"),
        ));
    }
    Ok(String::from_utf8_lossy(key).into_owned())
}

fn read_value_type(cursor: &mut Cursor, at: fmt::Arguments) -> Result<ValueType> {
    let id = cursor.u32(at)?;
    ValueType::from_id(id)
        .ok_or_else(|| cursor.error(at, format_args!("value type {id}"), "a type from 0 to 12"))
}

fn read_value(cursor: &mut Cursor, key: &str) -> Result<Value> {
    let at = format_args!("key {key:?}");
    Ok(match read_value_type(cursor, at)? {
        ValueType::U8 => Value::Int(u8::from_le_bytes(cursor.array(at)?).into()),
        ValueType::I8 => Value::Int(i8::from_le_bytes(cursor.array(at)?).into()),
        ValueType::U16 => Value::Int(u16::from_le_bytes(cursor.array(at)?).into()),
        ValueType::I16 => Value::Int(i16::from_le_bytes(cursor.array(at)?).into()),
        ValueType::U32 => Value::Int(u32::from_le_bytes(cursor.array(at)?).into()),
        ValueType::I32 => Value::Int(i32::from_le_bytes(cursor.array(at)?).into()),
        ValueType::U64 => Value::Int(u64::from_le_bytes(cursor.array(at)?).into()),
        ValueType::I64 => Value::Int(i64::from_le_bytes(cursor.array(at)?).into()),
        ValueType::F32 => Value::Float(f32::from_le_bytes(cursor.array(at)?).into()),
        ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array(at)?)),
        ValueType::Bool => {
            let [byte] = cursor.array(at)?;
            Value::Bool(byte != 0)
        }
        // Some tools write names of people and the like in other encodings.
        ValueType::Str => Value::Str(String::from_utf8_lossy(cursor.string_bytes(at)?).into_owned()),
        ValueType::Array => {
            let item = read_value_type(cursor, at)?;
            if item == ValueType::Array {
                skip_nested(cursor, at, 1)?;
                return Ok(Value::Null);
            }
            Value::Array(read_array(cursor, key, item)?)
        }
    })
}

/// Skips arrays within an array, which no key of a model has.
fn skip_nested(cursor: &mut Cursor, at: fmt::Arguments, depth: usize) -> Result<()> {
    if depth > MAX_NESTING {
        return Err(cursor.error(at, format_args!("arrays {depth} deep"), format_args!("{MAX_NESTING}")));
    }
    for _ in 0..cursor.count(at, ValueType::Array.min_bytes())? {
        let item = read_value_type(cursor, at)?;
        if item == ValueType::Array {
            skip_nested(cursor, at, depth + 1)?;
            continue;
        }
        let n = cursor.count(at, item.min_bytes())?;
        if item == ValueType::Str {
            for _ in 0..n {
                cursor.string_bytes(at)?;
            }
        } else {
            // No overflow: the count was checked against the file's length.
            cursor.take(n * item.min_bytes(), at)?;
        }
    }
    Ok(())
}

fn read_array(cursor: &mut Cursor, key: &str, item: ValueType) -> Result<Array> {
    let at = format_args!("array {key:?}");
    let n = cursor.count(at, item.min_bytes())?;
    if item == ValueType::Str {
        return read_string_array(cursor, key, n);
    }
    // No overflow: the count was checked against the file's length.
    let bytes = cursor.take(n * item.min_bytes(), at)?;
    Ok(match item {
        ValueType::U8 => Array::Int(bytes.iter().map(|&b| b.into()).collect()),
        ValueType::I8 => Array::Int(items(bytes, |b| i8::from_le_bytes(b).into())),
        ValueType::U16 => Array::Int(items(bytes, |b| u16::from_le_bytes(b).into())),
        ValueType::I16 => Array::Int(items(bytes, |b| i16::from_le_bytes(b).into())),
        ValueType::U32 => Array::Int(items(bytes, |b| u32::from_le_bytes(b).into())),
        ValueType::I32 => Array::Int(items(bytes, |b| i32::from_le_bytes(b).into())),
        ValueType::I64 => Array::Int(items(bytes, i64::from_le_bytes)),
        ValueType::U64 => {
            let values: Option<Vec<i64>> =
                bytes.as_chunks().0.iter().map(|&b| i64::try_from(u64::from_le_bytes(b)).ok()).collect();
            Array::Int(values.ok_or_else(|| cursor.error(at, "an integer of 2^63 or more", "smaller ones"))?)
        }
        ValueType::F32 => Array::Float(items(bytes, f32::from_le_bytes)),
        ValueType::F64 => Array::Float(items(bytes, |b| f64::from_le_bytes(b) as f32)),
        ValueType::Bool => Array::Bool(bytes.iter().map(|&b| b != 0).collect()),
        ValueType::Str | ValueType::Array => unreachable!("returned above, and by the caller"),
    })
}

fn items<T, const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&b| read(b)).collect()
}

/// Reads a list of strings as views of the map. They are not checked for UTF-8. A vocabulary may
/// have 262,144 strings, and a run uses few of them. Tokens of some files are not UTF-8.
fn read_string_array(cursor: &mut Cursor, key: &str, n: usize) -> Result<Array> {
    let start = cursor.at;
    let mut spans = Vec::with_capacity(n);
    for i in 0..n {
        let at = format_args!("array {key:?}, string {i}");
        let len = cursor.string_bytes(at)?.len();
        let offset = cursor.at - len - start;
        match (u32::try_from(offset), u32::try_from(len)) {
            (Ok(offset), Ok(len)) => spans.push((offset, len)),
            _ => return Err(cursor.error(at, "strings of 4 GiB or more", "less")),
        }
    }
    let bytes = cursor.bytes(start..cursor.at, format_args!("array {key:?}"))?;
    Ok(Array::Str { bytes, spans })
}

fn read_alignment(metadata: &Metadata, path: &Path) -> Result<usize> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT as usize),
        Some(Value::Int(n)) if *n >= 1 && *n <= 1 << 31 && n.count_ones() == 1 => Ok(*n as usize),
        Some(other) => {
            let expected = "a power of two";
            let found = if let Value::Int(n) = other { n.to_string() } else { "another type".to_owned() };
            Err(Error::malformed(path, format_args!("key {KEY:?}"), found, expected))
        }
    }
}

/// Storage of a tensor's values.
enum Stored {
    /// Values of a weight type.
    Block(BlockType),
    /// Doubles, which are converted to F32.
    F64,
    /// Integers with a type name and bytes a value, which are not weights.
    Integers(&'static str, usize),
}

impl Stored {
    fn from_gguf_id(id: u32) -> Option<Stored> {
        Some(match id {
            24 => Stored::Integers("I8", 1),
            25 => Stored::Integers("I16", 2),
            26 => Stored::Integers("I32", 4),
            27 => Stored::Integers("I64", 8),
            28 => Stored::F64,
            _ => Stored::Block(BlockType::from_gguf_id(id)?),
        })
    }
}

/// A tensor's description; all of it is checked except its place.
struct TensorInfo {
    name: String,
    shape: Vec<usize>,
    stored: Stored,
    /// Offset from the start of the tensor data.
    offset: usize,
    n_bytes: usize,
}

fn read_tensor_info(cursor: &mut Cursor, i: usize, alignment: usize) -> Result<TensorInfo> {
    let name = cursor.string(format_args!("name of tensor {i}"))?.to_owned();
    let n_dims = cursor.u32(format_args!("tensor {name:?}, number of dimensions"))?;
    if n_dims > MAX_DIMS {
        return Err(cursor.error(
            format_args!("tensor {name:?}"),
            format_args!("{n_dims} dimensions"),
            format_args!("at most {MAX_DIMS}"),
        ));
    }
    let mut shape = Vec::with_capacity(MAX_DIMS as usize);
    for d in 0..n_dims {
        let at = format_args!("tensor {name:?}, dimension {d}");
        let dim = cursor.u64(at)?;
        shape.push(usize::try_from(dim).map_err(|_| cursor.error(at, dim, "an addressable number"))?);
    }
    shape.reverse();

    let at = format_args!("tensor {name:?}");
    let id = cursor.u32(at)?;
    let stored = Stored::from_gguf_id(id).ok_or_else(|| match tensor_type_name(id) {
        Some(known) => Error::unsupported(cursor.file, at, format_args!("type {known}"), supported_types()),
        None => cursor.error(at, format_args!("type id {id}"), "the id of a tensor type"),
    })?;
    let n_bytes = match stored {
        _ if shape.contains(&0) => 0,
        Stored::Block(block) => cursor.tensor_bytes(&shape, block, at)?,
        // A type without blocks stands for the doubles: two F32 have as many bytes.
        Stored::F64 => cursor.tensor_bytes(&[&shape[..], &[2]].concat(), BlockType::F32, at)?,
        Stored::Integers(_, size) => {
            cursor.tensor_bytes(&[&shape[..], &[size]].concat(), BlockType::F32, at)? / 4
        }
    };

    let offset = cursor.u64(at)?;
    let usable = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(alignment));
    let offset = usable.ok_or_else(|| {
        cursor.error(
            at,
            format_args!("offset {offset}"),
            format_args!("a multiple of the alignment {alignment}"),
        )
    })?;
    Ok(TensorInfo { name, shape, stored, offset, n_bytes })
}

fn supported_types() -> String {
    let types = BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA);
    types.map(BlockType::name).collect::<Vec<_>>().join(", ")
}

/// Turns descriptions into views of the map, and tensors without weights into notes. `header_end`
/// is the end of the last description.
fn place_tensors(
    map: &Arc<Map>,
    header_end: usize,
    infos: Vec<TensorInfo>,
    alignment: usize,
    path: &Path,
) -> Result<(Vec<Tensor>, Vec<LeftOut>)> {
    // No overflow: the header lies within a file in memory, and the alignment is at most 2^31.
    let data_start = header_end.next_multiple_of(alignment);

    let mut by_offset: Vec<&TensorInfo> = infos.iter().collect();
    by_offset.sort_by_key(|info| (info.offset, info.n_bytes));
    for (a, b) in by_offset.iter().zip(by_offset.iter().skip(1)) {
        if a.offset.checked_add(a.n_bytes).is_none_or(|end| end > b.offset) {
            return Err(Error::malformed(
                path,
                format_args!("tensor {:?}", b.name),
                format_args!("offset {}", b.offset),
                format_args!("an offset after tensor {:?}, {} bytes at {}", a.name, a.n_bytes, a.offset),
            ));
        }
    }

    let (mut tensors, mut left_out) = (Vec::with_capacity(infos.len()), Vec::new());
    for info in infos {
        if info.n_bytes == 0 {
            left_out.push(LeftOut::empty(info.name, &info.shape));
            continue;
        }
        let range = data_start.checked_add(info.offset).and_then(|a| Some(a..a.checked_add(info.n_bytes)?));
        let data = range.and_then(|range| Bytes::new(map.clone(), range)).ok_or_else(|| {
            Error::malformed(
                path,
                format_args!("tensor {:?}", info.name),
                format_args!("{} bytes at offset {} of the tensor data", info.n_bytes, info.offset),
                format_args!("a range within its {} bytes", map.len().saturating_sub(data_start)),
            )
        })?;
        let (block, data) = match info.stored {
            Stored::Block(block) => (block, data),
            Stored::F64 => (BlockType::F32, singles(&data)),
            Stored::Integers(value_type, _) => {
                left_out.push(LeftOut::of_type(info.name, value_type));
                continue;
            }
        };
        tensors.push(Tensor { name: info.name, shape: info.shape, block, data, planes: Planes::default() });
    }
    Ok((tensors, left_out))
}

impl<'a> Cursor<'a> {
    /// Reads a u64 number of items, and checks that the rest of the file has room for them at
    /// `min_bytes` bytes each.
    #[inline]
    fn count(&mut self, at: fmt::Arguments, min_bytes: usize) -> Result<usize> {
        let n = self.u64(at)?;
        self.room_for(n, min_bytes, at)
    }

    fn string_bytes(&mut self, at: fmt::Arguments) -> Result<&'a [u8]> {
        let len = self.count(at, 1)?;
        self.take(len, at)
    }

    fn string(&mut self, at: fmt::Arguments) -> Result<&'a str> {
        let bytes = self.string_bytes(at)?;
        self.text(bytes, at)
    }
}
