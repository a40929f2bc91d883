//! Writes a `.base` file in one pass.
//!
//! All content is declared first; then the tensors' bytes follow in the same order. The header
//! precedes the tensors but has their checksums, so its length is reserved first and it is written
//! last.
//!
//! ```
//! use formats::base::BaseWriter;
//! use weights::{BlockType, Naming, PlaneSlices};
//! let mut writer = BaseWriter::new("llama", Naming::HuggingFace);
//! writer.tensor("model.norm.weight", &[2], BlockType::F32)?;
//! let mut body = writer.begin(std::io::Cursor::new(Vec::new()))?;
//! body.tensor_data(&[0; 8], PlaneSlices::default())?;
//! let file: Vec<u8> = body.finish()?.into_inner();
//! assert_eq!(&file[..4], b"BASE");
//! # Ok::<(), formats::base::BaseWriteError>(())
//! ```

use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};

use serde_json::{Map as Object, Value as Json, json};
use xxhash_rust::xxh64::Xxh64;

use super::{PREFIX_BYTES, canonical, sign, weights_start};
use crate::safetensors::number;
use weights::keys::{FILES_PREFIX, TOKENIZER_KEY};
use weights::{Array, BlockType, Metadata, Naming, PlaneSlices, ScaleType, Value};

/// Alignment of scales and offsets within a tensor's bytes: a cache line.
const PLANE_ALIGNMENT: usize = 64;

/// Errors of the content to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseWriteError {
    /// Two keys or tensors have the same name.
    #[error("{0:?} is declared twice")]
    Duplicate(String),
    /// The format cannot store the type.
    #[error(
        "tensor {name:?}: .base has no type {block}; it has F32, F16, BF16, and affine types with BF16, F16 or E8M0 scales"
    )]
    Type {
        /// Name of the tensor.
        name: String,
        /// Type of the tensor.
        block: BlockType,
    },
    /// The type cannot store the shape.
    #[error(
        "tensor {name:?}: found shape {shape:?}, expected dimensions above 0 and rows of whole blocks of {block}"
    )]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor, outermost dimension first.
        shape: Vec<usize>,
        /// Type of the tensor.
        block: BlockType,
    },
    /// A tensor got too many or too few bytes, or there is no such tensor.
    #[error("tensor {name:?}: found {found} bytes of {what}, expected {expected}")]
    Length {
        /// Name of the tensor; empty if all tensors have been written.
        name: String,
        /// Part of the tensor: `values`, `scales` or `biases`.
        what: &'static str,
        /// Number of bytes passed.
        found: usize,
        /// Number of bytes for the type and shape.
        expected: usize,
    },
    /// JSON cannot store a value: an integer beyond 64 bits, or a string that is not UTF-8.
    #[error("key {key:?}: {what} cannot be stored in a .base header")]
    Value {
        /// The key.
        key: String,
        /// Description of the value.
        what: &'static str,
    },
    /// The underlying writer failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The declared content of a file; see the module's example.
#[derive(Debug)]
pub struct BaseWriter {
    header: Object<String, Json>,
    metadata: Object<String, Json>,
    files: Object<String, Json>,
    naming: Naming,
    /// Alignment of each tensor's start, in bytes.
    alignment: usize,
    tensors: Vec<DeclaredTensor>,
    names: HashSet<String>,
}

#[derive(Debug)]
struct DeclaredTensor {
    name: String,
    shape: Vec<usize>,
    block: BlockType,
    n_bytes: usize,
    n_scale_bytes: usize,
    n_bias_bytes: usize,
}

impl DeclaredTensor {
    /// Ends of the scales, of the offsets and of the whole tensor, from the tensor's start.
    fn layout(&self) -> (usize, usize, usize) {
        if self.n_scale_bytes == 0 {
            return (self.n_bytes, self.n_bytes, self.n_bytes);
        }
        let scales = self.n_bytes.next_multiple_of(PLANE_ALIGNMENT);
        if self.n_bias_bytes == 0 {
            return (scales, scales + self.n_scale_bytes, scales + self.n_scale_bytes);
        }
        let biases = (scales + self.n_scale_bytes).next_multiple_of(PLANE_ALIGNMENT);
        (scales, biases, biases + self.n_bias_bytes)
    }
}

impl BaseWriter {
    /// A file for a model of architecture `arch`, with names of the convention `naming`.
    pub fn new(arch: &str, naming: Naming) -> BaseWriter {
        let header = json!({
            "schema": 1,
            "arch": arch,
            "quant_scheme": "bf16",
            "min_hw": "any",
            "created": "1970-01-01T00:00:00Z",
            "baserT_version": concat!("ingle ", env!("CARGO_PKG_VERSION")),
            "source": { "format": "", "sha256": "", "filename": "" },
            "tokenizer": {},
            "config": {},
            // The packing equals that of `cpu_avx2`; other readers expect this name.
            "target_backend": "metal",
        });
        BaseWriter {
            header: header.as_object().cloned().unwrap_or_default(),
            metadata: Object::new(),
            files: Object::new(),
            naming,
            alignment: 1 << 14,
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Sets a field of the header: `created`, `source`, `quant_profile`, `config` (config.json as
    /// an object) or `tokenizer` (tokenizer.json as an object). The writer overwrites the fields
    /// that it sets itself.
    pub fn field(&mut self, key: &str, value: Json) {
        self.header.insert(key.to_owned(), value);
    }

    /// Adds all keys of a checkpoint's metadata, except those that reading a `.base` file added.
    ///
    /// # Errors
    /// A key is present already, or JSON cannot store its value.
    pub fn metadata(&mut self, metadata: &Metadata) -> Result<(), BaseWriteError> {
        for (key, value) in metadata.iter() {
            let given = [super::HEADER_PREFIX, FILES_PREFIX].iter().any(|p| key.starts_with(p));
            // In GGUF files this may be an ordinary key.
            if given || (key == TOKENIZER_KEY && self.naming != Naming::Gguf) {
                continue;
            }
            let json = to_json(value).map_err(|what| BaseWriteError::Value { key: key.to_owned(), what })?;
            add(&mut self.metadata, key, json)?;
        }
        Ok(())
    }

    /// Adds the text of a small file that belongs to the model: `chat_template.jinja`,
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// The name is present already.
    pub fn file(&mut self, name: &str, text: &str) -> Result<(), BaseWriteError> {
        add(&mut self.files, name, Json::String(text.to_owned()))
    }

    /// Aligns tensors to pages of `1 << log2` bytes: 14 (Apple; the default), 16 (NVIDIA and AMD),
    /// or down to 6 if no device needs pages.
    pub fn page(&mut self, log2: u8) {
        self.alignment = 1 << log2.clamp(6, 16);
    }

    /// Declares a tensor; `shape` has the outermost dimension first. [`layer_order`] gives the
    /// order of declarations.
    ///
    /// # Errors
    /// The name is present already, the format lacks the type, or the shape does not fit it.
    pub fn tensor(&mut self, name: &str, shape: &[usize], block: BlockType) -> Result<(), BaseWriteError> {
        if dtype(block).is_none() {
            return Err(BaseWriteError::Type { name: name.to_owned(), block });
        }
        let n_cols = shape.last().copied().unwrap_or(1);
        let n_values = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim).filter(|&n| n > 0));
        let n_bytes = n_values
            .filter(|_| n_cols.is_multiple_of(block.block_len()))
            .and_then(|n| (n / block.block_len()).checked_mul(block.block_bytes()))
            // The bound leaves room for the other parts and the alignment; no disk holds such a
            // file.
            .filter(|&n| n < usize::MAX / 4)
            .ok_or_else(|| BaseWriteError::Shape { name: name.to_owned(), shape: shape.to_vec(), block })?;
        if !self.names.insert(name.to_owned()) {
            return Err(BaseWriteError::Duplicate(name.to_owned()));
        }
        let n_rows: usize = shape.iter().rev().skip(1).product();
        self.tensors.push(DeclaredTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            block,
            n_bytes,
            n_scale_bytes: n_rows * block.row_scale_bytes(n_cols),
            n_bias_bytes: n_rows * block.row_bias_bytes(n_cols),
        });
        Ok(())
    }

    /// Begins the file at the writer's start. The tensors' bytes follow through the [`BaseBody`].
    ///
    /// # Errors
    /// The underlying writer failed.
    pub fn begin<W: Write + Seek>(mut self, mut out: W) -> Result<BaseBody<W>, BaseWriteError> {
        let naming = match self.naming {
            Naming::Base => "base",
            Naming::Gguf => "gguf",
            Naming::HuggingFace => "hugging_face",
            Naming::CTranslate2 => "ctranslate2",
            Naming::WhisperCpp => "whisper_cpp",
        };
        let mut ingle = json!({ "naming": naming });
        if !self.files.is_empty() {
            ingle["files"] = Json::Object(std::mem::take(&mut self.files));
        }
        self.header.insert("ingle".to_owned(), ingle);
        if !self.metadata.is_empty() {
            self.header.insert("metadata".to_owned(), Json::Object(std::mem::take(&mut self.metadata)));
        }
        let page_log2 = self.alignment.trailing_zeros();
        self.header.insert(
            "alignment".to_owned(),
            json!({ "accel_align_log2": 6, "gpu_page_log2": page_log2, "cpu_align_log2": 6 }),
        );
        self.header.insert("quant_scheme".to_owned(), Json::String(self.quant_scheme().to_owned()));
        if self.tensors.iter().any(|t| t.block.has_planes()) {
            self.header.insert("flags".to_owned(), Json::String("0x00000001".to_owned()));
        }

        let mut entries = Vec::with_capacity(self.tensors.len());
        let mut offset = 0;
        for tensor in &self.tensors {
            entries.push(entry(tensor, offset));
            offset = (offset + tensor.layout().2).next_multiple_of(self.alignment);
        }
        self.header.insert("tensors".to_owned(), Json::Array(entries));
        self.header.insert("pad".to_owned(), Json::String(String::new()));
        // The longest possible header, in which every checksum has twenty digits.
        let header_bytes = canonical::sorted(&Json::Object(self.header.clone())).len();
        let start = weights_start(header_bytes)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
        out.seek(SeekFrom::Start(start as u64))?;
        Ok(BaseBody {
            out,
            header: self.header,
            header_bytes,
            alignment: self.alignment,
            tensors: self.tensors,
            n_written: 0,
            n_padding: 0,
        })
    }

    /// The quantised type with the most bytes.
    fn quant_scheme(&self) -> &'static str {
        let mut bytes = std::collections::BTreeMap::new();
        for tensor in self.tensors.iter().filter(|t| t.block.has_planes()) {
            *bytes.entry(dtype(tensor.block).unwrap_or("bf16")).or_insert(0) += tensor.n_bytes;
        }
        bytes.into_iter().max_by_key(|(_, n)| *n).map_or("bf16", |(scheme, _)| scheme)
    }
}

fn add(object: &mut Object<String, Json>, key: &str, value: Json) -> Result<(), BaseWriteError> {
    if object.contains_key(key) {
        return Err(BaseWriteError::Duplicate(key.to_owned()));
    }
    object.insert(key.to_owned(), value);
    Ok(())
}

/// The format's name for a type.
fn dtype(block: BlockType) -> Option<&'static str> {
    if let BlockType::Affine(affine) = block {
        return (affine.scale() != ScaleType::F32).then_some(match affine.bits() {
            2 => "base_q2",
            3 => "base_q3",
            4 => "base_q4",
            5 => "base_q5",
            6 => "base_q6",
            _ => "base_q8",
        });
    }
    let floats = [(BlockType::F32, "f32"), (BlockType::F16, "f16"), (BlockType::BF16, "bf16")];
    floats.into_iter().find(|(float, _)| *float == block).map(|(_, name)| name)
}

/// A tensor's entry, with the longest possible checksum.
fn entry(tensor: &DeclaredTensor, offset: usize) -> Json {
    let (scales, biases, length) = tensor.layout();
    let mut entry = json!({
        "name": tensor.name,
        "dtype": dtype(tensor.block),
        "shape": tensor.shape,
        "offset": offset,
        "length": length,
        "checksum_xxh64": u64::MAX,
    });
    if let BlockType::Affine(affine) = tensor.block {
        entry["group_size"] = json!(affine.group());
        entry["scale_dtype"] = json!(affine.scale().name().to_lowercase());
        entry["scale_offset"] = json!(scales);
        entry["scale_length"] = json!(tensor.n_scale_bytes);
        if affine.is_symmetric() {
            entry["symmetric"] = json!(true);
        } else {
            entry["bias_offset"] = json!(biases);
            entry["bias_length"] = json!(tensor.n_bias_bytes);
        }
    }
    entry
}

fn to_json(value: &Value) -> Result<Json, &'static str> {
    const INTEGER: &str = "an integer beyond 64 bits";
    Ok(match value {
        Value::Int(i) => match (u64::try_from(*i), i64::try_from(*i)) {
            (Ok(n), _) => json!(n),
            (_, Ok(n)) => json!(n),
            _ => return Err(INTEGER),
        },
        Value::Float(f) => number(*f),
        Value::Bool(b) => json!(b),
        Value::Str(s) => json!(s),
        Value::Null => Json::Null,
        Value::Array(Array::Int(items)) => json!(items),
        Value::Array(Array::Bool(items)) => json!(items),
        Value::Array(Array::Float(items)) => Json::Array(items.iter().map(|&f| number(f.into())).collect()),
        Value::Array(strings @ Array::Str { spans, .. }) => {
            let text = |i| std::str::from_utf8(strings.str_bytes(i).unwrap_or_default());
            let items: Result<Vec<Json>, _> = (0..spans.len()).map(|i| text(i).map(|s| json!(s))).collect();
            Json::Array(items.map_err(|_| "a string that is not UTF-8")?)
        }
    })
}

/// A file whose header is reserved.
#[derive(Debug)]
pub struct BaseBody<W> {
    out: W,
    header: Object<String, Json>,
    /// Bytes of the reserved header.
    header_bytes: usize,
    alignment: usize,
    tensors: Vec<DeclaredTensor>,
    /// Number of tensors written.
    n_written: usize,
    /// Bytes of padding before the next tensor.
    n_padding: usize,
}

impl<W: Write + Seek> BaseBody<W> {
    /// Writes the next tensor, in the order of declaration.
    ///
    /// # Errors
    /// There is no next tensor, a part has another length, or the underlying writer failed.
    pub fn tensor_data(&mut self, data: &[u8], planes: PlaneSlices) -> Result<(), BaseWriteError> {
        let Some(tensor) = self.tensors.get(self.n_written) else {
            return Err(BaseWriteError::Length {
                name: String::new(),
                what: "values",
                found: data.len(),
                expected: 0,
            });
        };
        for (what, found, expected) in [
            ("values", data.len(), tensor.n_bytes),
            ("scales", planes.scales.len(), tensor.n_scale_bytes),
            ("biases", planes.biases.len(), tensor.n_bias_bytes),
        ] {
            if found != expected {
                return Err(BaseWriteError::Length { name: tensor.name.clone(), what, found, expected });
            }
        }
        let (scales, biases, length) = tensor.layout();
        zeros(&mut self.out, self.n_padding)?;
        let mut hash = Xxh64::new(0);
        let mut at = 0;
        for (start, bytes) in [(0, data), (scales, planes.scales), (biases, planes.biases)] {
            if bytes.is_empty() {
                continue;
            }
            let padding = [0; PLANE_ALIGNMENT];
            for part in [&padding[..start - at], bytes] {
                hash.update(part);
                self.out.write_all(part)?;
            }
            at = start + bytes.len();
        }
        self.n_padding = length.next_multiple_of(self.alignment) - length;
        if let Some(entry) = self.header.get_mut("tensors").and_then(|list| list.get_mut(self.n_written)) {
            entry["checksum_xxh64"] = json!(hash.digest());
        }
        self.n_written += 1;
        Ok(())
    }

    /// Writes the header, flushes, and returns the writer.
    ///
    /// # Errors
    /// A declared tensor is missing, or the underlying writer failed.
    pub fn finish(mut self) -> Result<W, BaseWriteError> {
        if let Some(tensor) = self.tensors.get(self.n_written) {
            return Err(BaseWriteError::Length {
                name: tensor.name.clone(),
                what: "values",
                found: 0,
                expected: tensor.n_bytes,
            });
        }
        let end = self.out.stream_position()?;
        let mut header = Json::Object(self.header);
        let shorter = self.header_bytes - canonical::sorted(&header).len();
        header["pad"] = Json::String("0".repeat(shorter));
        self.out.seek(SeekFrom::Start(0))?;
        sign::write_head(&mut self.out, &canonical::sorted(&header))?;
        debug_assert_eq!(
            weights_start(self.header_bytes),
            self.out.stream_position().ok().map(|n| n as usize)
        );
        self.out.seek(SeekFrom::Start(end.max((PREFIX_BYTES + self.header_bytes) as u64)))?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn zeros(out: &mut impl Write, n: usize) -> std::io::Result<()> {
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), n as u64), out).map(|_| ())
}

/// Sort key for tensors in the order in which a forward pass reads them: embeddings, then layers by
/// number, then tensors without a layer. A stable sort keeps the order within a layer.
pub fn layer_order(name: &str) -> (u8, u64) {
    let layer = name.split(['.', '/', '_']).find_map(|part| part.parse::<u64>().ok());
    match layer {
        Some(layer) => (1, layer),
        None if name.contains("embd") || name.contains("embed") => (0, 0),
        None => (2, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_go_in_the_order_of_their_use() {
        let mut names = [
            "lm_head.weight",
            "model.layers.10.mlp.up_proj.weight",
            "model.layers.2.self_attn.q_proj.weight",
            "model.layers.2.self_attn.k_proj.weight",
            "model.norm.weight",
            "model.embed_tokens.weight",
        ];
        names.sort_by_key(|name| layer_order(name));
        assert_eq!(
            names.map(|name| name.rsplit('.').nth(1).unwrap_or_default()),
            ["embed_tokens", "q_proj", "k_proj", "up_proj", "lm_head", "norm"]
        );
        assert_eq!(layer_order("blk.7.attn_q.weight"), (1, 7));
        assert_eq!(layer_order("decoder/layer_3/ffn/linear_0/weight"), (1, 3));
        assert_eq!(layer_order("token_embd.weight"), (0, 0));
    }
}
