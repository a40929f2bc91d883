//! The header of a safetensors file: a u64 length, then that many bytes of JSON, then the tensors'
//! data without gaps.
//!
//! ```json
//! {"__metadata__": {"format": "pt"},
//!  "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//! ```
//!
//! This parser replaces the `safetensors` crate. Its errors name the tensor, what was found and
//! what was expected, even for invalid JSON, wrong types or repeated names. Tests check that both
//! refuse the same files. See <https://github.com/huggingface/safetensors>.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use weights::{BlockType, Bytes, Error, LeftOut, Map, Planes, Result, Tensor};

use crate::cursor::singles;

/// The longest header in bytes, which the format limits.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor of the header. Its bytes lie within the file.
pub(super) struct HeaderTensor {
    pub name: String,
    dtype: String,
    shape: Vec<usize>,
    /// Range in the file.
    range: Range<usize>,
}

/// The use of an entry.
pub(super) enum Item {
    /// A tensor of floats.
    Float(Tensor),
    /// A tensor of U32, which may be the integers of a quantised matrix.
    Packed(Packed),
    /// A tensor that is not a weight.
    LeftOut(LeftOut),
}

/// A tensor of U32.
pub(super) struct Packed {
    pub name: String,
    pub shape: Vec<usize>,
    /// Bytes of the tensor, 4 for each number.
    pub data: Bytes,
}

impl HeaderTensor {
    /// Sorts the entry by its type. Floats, U32 and blocks stored as bytes may be weights; other
    /// integers and empty tensors are not.
    ///
    /// # Errors
    /// The tensor has floats of an unsupported type.
    pub fn into_item(self, map: &Arc<Map>, path: &Path) -> Result<Item> {
        let HeaderTensor { name, dtype, shape, range } = self;
        if range.is_empty() {
            return Ok(Item::LeftOut(LeftOut::empty(name, &shape)));
        }
        let data = Bytes::new(map.clone(), range.clone()).ok_or_else(|| {
            Error::malformed(
                path,
                format_args!("tensor {name:?}"),
                format_args!("bytes {range:?}"),
                "a range within the file",
            )
        })?;
        let (block, data) = match dtype.as_str() {
            "F32" => (BlockType::F32, data),
            "F16" => (BlockType::F16, data),
            "BF16" => (BlockType::BF16, data),
            "F64" => (BlockType::F32, singles(&data)),
            "U32" => return Ok(Item::Packed(Packed { name, shape, data })),
            // These names mark 4-bit blocks and their scales; other bytes are not weights.
            "U8" if name.ends_with("_blocks") || name.ends_with("_scales") => (BlockType::I8_ROWS, data),
            "BOOL" | "U8" | "I8" | "U16" | "I16" | "I32" | "U64" | "I64" | "C64" => {
                return Ok(Item::LeftOut(LeftOut::of_type(name, &dtype)));
            }
            other => {
                return Err(Error::unsupported(
                    path,
                    format_args!("tensor {name:?}"),
                    format_args!("dtype {other}"),
                    SUPPORTED,
                ));
            }
        };
        Ok(Item::Float(Tensor { name, shape, block, data, planes: Planes::default() }))
    }
}

/// Supported dtypes of weights.
const SUPPORTED: &str = "F32, F16, BF16, F64";

/// Bits of a value, for the dtypes that the format knows.
fn dtype_bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Parses the header. Returns the tensors in the order of their data.
pub(super) fn parse(map: &[u8], path: &Path) -> Result<Vec<HeaderTensor>> {
    let error = |at: &str, found: &dyn fmt::Display, expected: &dyn fmt::Display| {
        Error::malformed(path, at, found, expected)
    };
    let Some((length, rest)) = map.split_first_chunk::<8>() else {
        return Err(error("header length", &format_args!("{} bytes", map.len()), &"8 or more"));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(error("header length", &length, &format_args!("at most {MAX_HEADER_BYTES}")));
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(error("header length", &length, &format_args!("at most {}", rest.len())));
    };
    let ParsedHeader(tensors) = serde_json::from_slice(header)
        .map_err(|e| error("header", &e, &"a JSON object from tensor names to descriptions"))?;

    let data_start = map.len() - data.len();
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, info) in tensors {
        let at = format!("tensor {name:?}");
        let [start, end] = info.data_offsets;
        if start > end || end > data.len() {
            return Err(error(
                &at,
                &format_args!("data_offsets [{start}, {end}]"),
                &format_args!("rising offsets up to {}", data.len()),
            ));
        }
        let Some(bits) = dtype_bits(&info.dtype) else {
            return Err(Error::unsupported(path, at, format_args!("dtype {:?}", info.dtype), SUPPORTED));
        };
        let n_bits = info.shape.iter().try_fold(bits, |n, &dim| n.checked_mul(dim));
        if n_bits != (end - start).checked_mul(8) || n_bits.is_none() {
            return Err(error(
                &at,
                &format_args!("{} bytes for {} of shape {:?}", end - start, info.dtype, info.shape),
                &format_args!(
                    "{} bits",
                    n_bits.map_or("an addressable number of".to_owned(), |n| n.to_string())
                ),
            ));
        }
        let range = data_start + start..data_start + end;
        entries.push(HeaderTensor { name, dtype: info.dtype, shape: info.shape, range });
    }

    // The format requires that tensors cover the data from first to last byte, each byte once.
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    let mut covered = data_start;
    for entry in &entries {
        if entry.range.start != covered {
            return Err(error(
                &format!("tensor {:?}", entry.name),
                &format_args!("data from offset {}", entry.range.start - data_start),
                &format_args!("data from {}, the end of the tensor before", covered - data_start),
            ));
        }
        covered = entry.range.end;
    }
    if covered != map.len() {
        return Err(error(
            "data",
            &format_args!("{} bytes", data.len()),
            &format_args!("{}, where the last tensor ends", covered - data_start),
        ));
    }
    Ok(entries)
}

/// The header's tensors in JSON order.
struct ParsedHeader(Vec<(String, Info)>);

#[derive(serde::Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl<'de> Deserialize<'de> for ParsedHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<ParsedHeader, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = ParsedHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to descriptions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ParsedHeader, A::Error> {
        let mut names = HashSet::new();
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let named = |e: A::Error| A::Error::custom(format_args!("tensor {name:?}: {e}"));
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("tensor {name:?} a second time")));
            }
            if name == "__metadata__" {
                // The values are strings for people; only their type is checked.
                map.next_value::<Option<BTreeMap<String, String>>>().map_err(named)?;
            } else {
                let info = map.next_value().map_err(named)?;
                tensors.push((name, info));
            }
        }
        Ok(ParsedHeader(tensors))
    }
}
