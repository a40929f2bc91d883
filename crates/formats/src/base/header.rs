//! The fields of the header that are read, and the meaning of tensor entries.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use weights::{Affine, BlockType, Bytes, Error, Map, Planes, Result, ScaleType, Tensor};

/// Bits of [`Entry::flags`].
const TRANSPOSED: u32 = 1;
const SSM_A_MATRIX: u32 = 1 << 3;
const LORA_DELTA: u32 = 1 << 4;

/// Layouts in which the integers of a row are one stream of bits, whatever device they are named
/// for.
const PLAIN_LAYOUTS: [&str; 4] = ["rowmajor", "metal_lane_strided", "metal_bit_spread", "cpu_rowmajor"];

/// The header.
#[derive(Deserialize)]
pub(super) struct Header<'a> {
    pub schema: u32,
    #[serde(default)]
    pub arch: String,
    #[serde(default)]
    pub quant_scheme: Option<String>,
    #[serde(default)]
    pub target_backend: Option<String>,
    #[serde(default)]
    pub quant_profile: Option<String>,
    #[serde(default)]
    pub source: Option<Json>,
    /// Kept as text unless the tokenizer is GGUF's, because a vocabulary is most of a header.
    #[serde(borrow, default)]
    pub tokenizer: Option<&'a RawValue>,
    #[serde(default)]
    pub config: Option<Json>,
    #[serde(default)]
    pub metadata: Option<Json>,
    #[serde(default)]
    pub ingle: Option<Ingle>,
    pub tensors: Vec<Entry>,
    #[serde(default)]
    pub mmproj: Option<Bundle>,
    #[serde(default)]
    pub speculator: Option<Bundle>,
    #[serde(default)]
    pub sig: Option<Signature>,
}

/// Tensors of another model in the same file: a vision tower or a draft model.
#[derive(Deserialize)]
pub(super) struct Bundle {
    #[serde(default)]
    pub arch: String,
    pub tensors: Vec<Entry>,
}

/// Fields that Ingle adds.
#[derive(Deserialize)]
pub(super) struct Ingle {
    #[serde(default)]
    pub naming: Option<String>,
    #[serde(default)]
    pub files: Option<serde_json::Map<String, Json>>,
}

/// A signature.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Signature {
    pub alg: String,
    pub key_id: String,
    pub signature: String,
}

/// A tensor of the header.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    dtype: String,
    shape: Vec<usize>,
    offset: usize,
    length: usize,
    #[serde(default)]
    scale_offset: Option<usize>,
    #[serde(default)]
    scale_length: Option<usize>,
    #[serde(default)]
    bias_offset: Option<usize>,
    #[serde(default)]
    bias_length: Option<usize>,
    #[serde(default)]
    awq_scale_length: Option<usize>,
    #[serde(default)]
    group_size: Option<usize>,
    #[serde(default)]
    scale_dtype: Option<String>,
    #[serde(default)]
    symmetric: bool,
    #[serde(default)]
    layout: Option<String>,
    #[serde(default)]
    compute_region: Option<String>,
    #[serde(default)]
    flags: Option<Json>,
    #[serde(default)]
    pub checksum_xxh64: Option<u64>,
}

/// Byte ranges of a tensor's parts, from the start of the weights.
struct Places {
    data: Range<usize>,
    scales: Option<Range<usize>>,
    biases: Option<Range<usize>>,
}

impl Entry {
    /// The bytes that `length` and the checksum cover, from the start of the weights.
    pub fn range(&self) -> Option<Range<usize>> {
        Some(self.offset..self.offset.checked_add(self.length)?)
    }

    /// The end of the tensor's last byte, scales and offsets included.
    pub fn end(&self) -> Option<usize> {
        let mut end = self.range()?.end;
        if self.is_apart() {
            for (offset, length) in
                [(self.scale_offset, self.scale_length), (self.bias_offset, self.bias_length)]
            {
                end = end.max(offset.unwrap_or(0).checked_add(length.unwrap_or(0))?);
            }
        }
        Some(end)
    }

    /// True if `length` covers the integers only. Scale and offset positions then count from the
    /// start of the weights.
    fn is_apart(&self) -> bool {
        self.n_data_bytes().is_some_and(|n| n == self.length) && self.scale_length.is_some()
    }

    fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of the values without scales and offsets.
    fn n_data_bytes(&self) -> Option<usize> {
        let bits = self.bits()?;
        let n = self.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
        n.checked_mul(bits).filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8)
    }

    /// Bits of a value.
    fn bits(&self) -> Option<usize> {
        Some(match self.dtype.as_str() {
            "base_q2" => 2,
            "base_q3" => 3,
            "base_q4" | "base4" => 4,
            "base_q5" => 5,
            "base_q6" => 6,
            "base_q8" | "base8" => 8,
            "bf16" | "f16" => 16,
            "f32" => 32,
            _ => return None,
        })
    }

    /// The block type, if it is supported.
    fn block(&self, path: &Path) -> Result<BlockType> {
        let at = format!("tensor {:?}", self.name);
        let bits = match (self.dtype.as_str(), self.bits()) {
            ("bf16", _) => return Ok(BlockType::BF16),
            ("f16", _) => return Ok(BlockType::F16),
            ("f32", _) => return Ok(BlockType::F32),
            (_, Some(bits)) => bits,
            (other, None) => {
                return Err(Error::unsupported(
                    path,
                    at,
                    format_args!("dtype {other:?}"),
                    "base_q2, base_q3, base_q4, base_q5, base_q6, base_q8, bf16, f16, f32",
                ));
            }
        };
        let scale = match self.scale_dtype.as_deref() {
            None | Some("f16") => ScaleType::F16,
            Some("bf16") => ScaleType::BF16,
            Some("e8m0") => ScaleType::E8M0,
            Some(other) => {
                let found = format!("scale_dtype {other:?}");
                return Err(Error::unsupported(path, at, found, "bf16, f16, e8m0"));
            }
        };
        // The specification's default group for each width.
        let group = self.group_size.unwrap_or(match bits {
            2 | 3 => 32,
            8 => 128,
            _ => 64,
        });
        Affine::new(bits, group, scale, self.symmetric).map(BlockType::Affine).ok_or_else(|| {
            Error::unsupported(
                path,
                at,
                format_args!("group_size {group}"),
                format_args!("{:?}", Affine::GROUPS),
            )
        })
    }

    fn flag_bits(&self) -> Option<u32> {
        match &self.flags {
            None => Some(0),
            Some(Json::String(text)) => match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            },
            Some(_) => None,
        }
    }

    /// Refuses layouts that the sizes alone would not reveal.
    fn check_kind(&self, path: &Path, block: BlockType) -> Result<()> {
        let at = format!("tensor {:?}", self.name);
        let Some(flags) = self.flag_bits() else {
            return Err(Error::malformed(
                path,
                at,
                format_args!("flags {:?}", self.flags),
                "a hexadecimal number",
            ));
        };
        let layout = self.layout.as_deref().unwrap_or("rowmajor");
        // The specification appends the width to some names.
        let plain = layout.strip_suffix(&format!("_q{}", self.bits().unwrap_or(0))).unwrap_or(layout);
        if !PLAIN_LAYOUTS.contains(&plain) {
            let found = format!("layout {layout:?}");
            return Err(Error::unsupported(path, at, found, PLAIN_LAYOUTS.join(", ")));
        }
        if flags & TRANSPOSED != 0 {
            return Err(Error::unsupported(
                path,
                at,
                "a transposed tensor",
                "tensors that are not transposed",
            ));
        }
        if flags & LORA_DELTA != 0 {
            return Err(Error::malformed(path, at, "a LoRA delta", "it in an extension slot"));
        }
        if flags & SSM_A_MATRIX != 0
            && (block != BlockType::F32 || self.compute_region.as_deref() != Some("cpu"))
        {
            let found = format!("a state-transition matrix of {block}, region {:?}", self.compute_region);
            return Err(Error::malformed(path, at, found, "f32 in the region \"cpu\""));
        }
        if self.awq_scale_length.is_some_and(|n| n > 0) {
            return Err(Error::unsupported(
                path,
                at,
                "separate AWQ scales",
                "AWQ scales folded into the weights",
            ));
        }
        Ok(())
    }

    /// The byte ranges of all parts, checked against the shape.
    fn places(&self, block: BlockType, path: &Path) -> Result<Places> {
        let at = format!("tensor {:?}", self.name);
        let n_cols = self.n_cols();
        if self.shape.contains(&0) {
            return Err(Error::malformed(
                path,
                at,
                format_args!("shape {:?}", self.shape),
                "no dimension of 0",
            ));
        }
        if !n_cols.is_multiple_of(block.block_len()) {
            return Err(Error::malformed(
                path,
                at,
                format_args!("rows of {n_cols} values"),
                format_args!("whole groups of {}", block.block_len()),
            ));
        }
        let too_large = || {
            Error::malformed(
                path,
                &at,
                format_args!("shape {:?}", self.shape),
                "an addressable number of bytes",
            )
        };
        let n_bytes = self.n_data_bytes().ok_or_else(too_large)?;
        let whole = self.range().ok_or_else(|| {
            Error::malformed(path, &at, format_args!("offset {}", self.offset), "an addressable one")
        })?;
        let expected = |found: &str, expected: String| Error::malformed(path, &at, found, expected);
        if !block.has_planes() {
            if self.length != n_bytes {
                return Err(expected(&format!("{} bytes", self.length), n_bytes.to_string()));
            }
            return Ok(Places { data: whole, scales: None, biases: None });
        }
        if self.length < n_bytes {
            return Err(expected(&format!("{} bytes", self.length), format!("{n_bytes} or more")));
        }
        let n_rows: usize = self.shape.iter().rev().skip(1).product();
        let plane = |what: &str, offset: Option<usize>, length: Option<usize>, row: usize| {
            // No overflow: scales and offsets have fewer bytes than the values, whose size was
            // checked.
            let needed = n_rows * row;
            if row == 0 {
                return match length.unwrap_or(0) {
                    0 => Ok(None),
                    n => {
                        Err(expected(&format!("{what} of {n} bytes"), "none, as it is symmetric".to_owned()))
                    }
                };
            }
            let (Some(offset), Some(length)) = (offset, length) else {
                return Err(expected(&format!("no {what}"), format!("{needed} bytes")));
            };
            if length != needed {
                return Err(expected(&format!("{what} of {length} bytes"), needed.to_string()));
            }
            let outside =
                || expected(&format!("{what} at {offset}"), "a range within the tensor's bytes".to_owned());
            if self.is_apart() {
                let end = offset.checked_add(length).ok_or_else(outside)?;
                return Ok(Some(offset..end));
            }
            let end = offset.checked_add(length).filter(|&end| offset >= n_bytes && end <= self.length);
            let end = end.ok_or_else(outside)?;
            // No overflow: every sum is at most `whole.end`.
            Ok(Some(whole.start + offset..whole.start + end))
        };
        Ok(Places {
            data: whole.start..whole.start + n_bytes,
            scales: plane("scales", self.scale_offset, self.scale_length, block.row_scale_bytes(n_cols))?,
            biases: plane("biases", self.bias_offset, self.bias_length, block.row_bias_bytes(n_cols))?,
        })
    }

    /// The tensor as a view of the file; `weights` is the start of the weights in the file.
    pub fn tensor(&self, map: &Arc<Map>, weights: usize, path: &Path) -> Result<Tensor> {
        let block = self.block(path)?;
        self.check_kind(path, block)?;
        let places = self.places(block, path)?;
        let view = |range: Range<usize>| {
            let (start, end) = (range.start.checked_add(weights), range.end.checked_add(weights));
            start.zip(end).and_then(|(start, end)| Bytes::new(map.clone(), start..end)).ok_or_else(|| {
                Error::malformed(
                    path,
                    format_args!("tensor {:?}", self.name),
                    format_args!("bytes {range:?} of the weights"),
                    format_args!("a range within their {} bytes", map.len().saturating_sub(weights)),
                )
            })
        };
        Ok(Tensor {
            name: self.name.clone(),
            shape: self.shape.clone(),
            block,
            data: view(places.data)?,
            planes: Planes {
                scales: places.scales.map(view).transpose()?,
                biases: places.biases.map(view).transpose()?,
            },
        })
    }
}
