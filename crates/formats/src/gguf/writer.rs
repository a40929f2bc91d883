//! Writes GGUF version 3.
//!
//! All content is declared first, because the header has each tensor's offset. Then the tensors'
//! bytes follow in the same order:
//!
//! ```
//! use formats::gguf::{MetaValue, Writer};
//! use weights::BlockType;
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", MetaValue::Str("llama".into()))?;
//! writer.tensor("output_norm.weight", &[2], BlockType::F32)?;
//! let mut body = writer.begin(Vec::new())?;
//! body.tensor_data(&[0; 8])?;
//! let file: Vec<u8> = body.finish()?;
//! # assert_eq!(file.len() % 32, 0);
//! # Ok::<(), formats::gguf::WriteError>(())
//! ```

use std::collections::HashSet;
use std::io::Write;

use super::{DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, ValueType};
use weights::{Array, BlockType, Value};

/// Errors of the content to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Two keys or tensors have the same name.
    #[error("{0:?} is declared twice")]
    Duplicate(String),
    /// The alignment is not a power of two of at least 8.
    #[error("alignment {0} is not a power of two of at least 8")]
    Alignment(u32),
    /// The type cannot store the shape.
    #[error(
        "tensor {name:?}: found shape {shape:?}, expected 1 to {MAX_DIMS} dimensions above 0 and rows of whole blocks of {block}"
    )]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor, outermost dimension first.
        shape: Vec<usize>,
        /// Type of the tensor.
        block: BlockType,
    },
    /// The format has no such type.
    #[error("tensor {name:?}: GGUF has no type {block}; convert it first")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Type of the tensor.
        block: BlockType,
    },
    /// A tensor got too many or too few bytes, or there is no such tensor.
    #[error("tensor {name:?}: found {found} bytes of data, expected {expected}")]
    Length {
        /// Name of the tensor; empty if all tensors have been written.
        name: String,
        /// Number of bytes passed.
        found: usize,
        /// Number of bytes for the type and shape.
        expected: usize,
    },
    /// The format cannot store a value.
    #[error("key {key:?}: {value} cannot be stored in GGUF")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// The underlying writer failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A metadata value with its width.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    I64s(Vec<i64>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    /// Strings as bytes, since tokens of existing files are not always UTF-8.
    Strs(Vec<Vec<u8>>),
}

impl MetaValue {
    /// The value with the width that files use for it: 32 bits if it fits, unsigned unless negative
    /// (in lists, signed). `None` for a null or an integer beyond 64 bits.
    pub fn from_value(value: &Value) -> Option<MetaValue> {
        Some(match value {
            Value::Int(i) => u32::try_from(*i)
                .map(MetaValue::U32)
                .or_else(|_| i32::try_from(*i).map(MetaValue::I32))
                .or_else(|_| u64::try_from(*i).map(MetaValue::U64))
                .or_else(|_| i64::try_from(*i).map(MetaValue::I64))
                .ok()?,
            Value::Float(f) if f64::from(*f as f32) == *f || f.is_nan() => MetaValue::F32(*f as f32),
            Value::Float(f) => MetaValue::F64(*f),
            Value::Bool(b) => MetaValue::Bool(*b),
            Value::Str(s) => MetaValue::Str(s.clone()),
            Value::Array(Array::Int(items)) => match items.iter().map(|&i| i32::try_from(i)).collect() {
                Ok(narrow) => MetaValue::I32s(narrow),
                Err(_) => MetaValue::I64s(items.clone()),
            },
            Value::Array(Array::Float(items)) => MetaValue::F32s(items.clone()),
            Value::Array(Array::Bool(items)) => MetaValue::Bools(items.clone()),
            Value::Array(strings @ Array::Str { spans, .. }) => MetaValue::Strs(
                (0..spans.len()).map(|i| strings.str_bytes(i).unwrap_or_default().to_vec()).collect(),
            ),
            Value::Null => return None,
        })
    }

    /// Appends the type and the value.
    fn write(&self, out: &mut Vec<u8>) {
        fn scalar(out: &mut Vec<u8>, id: ValueType, bytes: &[u8]) {
            out.extend((id as u32).to_le_bytes());
            out.extend(bytes);
        }
        fn list<T>(out: &mut Vec<u8>, id: ValueType, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
            out.extend((ValueType::Array as u32).to_le_bytes());
            out.extend((id as u32).to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| write(out, item));
        }
        match self {
            MetaValue::U8(v) => scalar(out, ValueType::U8, &v.to_le_bytes()),
            MetaValue::I8(v) => scalar(out, ValueType::I8, &v.to_le_bytes()),
            MetaValue::U16(v) => scalar(out, ValueType::U16, &v.to_le_bytes()),
            MetaValue::I16(v) => scalar(out, ValueType::I16, &v.to_le_bytes()),
            MetaValue::U32(v) => scalar(out, ValueType::U32, &v.to_le_bytes()),
            MetaValue::I32(v) => scalar(out, ValueType::I32, &v.to_le_bytes()),
            MetaValue::U64(v) => scalar(out, ValueType::U64, &v.to_le_bytes()),
            MetaValue::I64(v) => scalar(out, ValueType::I64, &v.to_le_bytes()),
            MetaValue::F32(v) => scalar(out, ValueType::F32, &v.to_le_bytes()),
            MetaValue::F64(v) => scalar(out, ValueType::F64, &v.to_le_bytes()),
            MetaValue::Bool(v) => scalar(out, ValueType::Bool, &[u8::from(*v)]),
            MetaValue::Str(v) => {
                scalar(out, ValueType::Str, &[]);
                write_string(out, v.as_bytes());
            }
            MetaValue::U32s(v) => list(out, ValueType::U32, v, |out, i| out.extend(i.to_le_bytes())),
            MetaValue::I32s(v) => list(out, ValueType::I32, v, |out, i| out.extend(i.to_le_bytes())),
            MetaValue::I64s(v) => list(out, ValueType::I64, v, |out, i| out.extend(i.to_le_bytes())),
            MetaValue::F32s(v) => list(out, ValueType::F32, v, |out, i| out.extend(i.to_le_bytes())),
            MetaValue::Bools(v) => list(out, ValueType::Bool, v, |out, i| out.push(u8::from(*i))),
            MetaValue::Strs(v) => list(out, ValueType::Str, v, |out, i| write_string(out, i)),
        }
    }
}

fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// The declared content of a file; see the module's example.
#[derive(Debug)]
pub struct Writer {
    alignment: usize,
    /// Entries, already encoded.
    metadata: Vec<u8>,
    n_metadata: u64,
    keys: HashSet<String>,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    shape: Vec<usize>,
    /// Id of the type.
    type_id: u32,
    n_bytes: usize,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// An empty file with data aligned to 32 bytes.
    pub fn new() -> Writer {
        Writer {
            alignment: DEFAULT_ALIGNMENT as usize,
            metadata: Vec::new(),
            n_metadata: 0,
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Adds a key. `general.alignment`, as a `U32`, also sets the alignment of the data.
    ///
    /// # Errors
    /// The key is present already, or the alignment is invalid.
    pub fn metadata(&mut self, key: &str, value: MetaValue) -> Result<(), WriteError> {
        if key == "general.alignment" {
            match value {
                MetaValue::U32(n) if n >= 8 && n.is_power_of_two() => self.alignment = n as usize,
                MetaValue::U32(n) => return Err(WriteError::Alignment(n)),
                other => return Err(WriteError::Value { key: key.to_owned(), value: format!("{other:?}") }),
            }
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::Duplicate(key.to_owned()));
        }
        write_string(&mut self.metadata, key.as_bytes());
        value.write(&mut self.metadata);
        self.n_metadata += 1;
        Ok(())
    }

    /// Adds a key with a neutral value, in the width of [`MetaValue::from_value`].
    ///
    /// # Errors
    /// The errors of [`Self::metadata`], and a null or an integer beyond 64 bits.
    pub fn value(&mut self, key: &str, value: &Value) -> Result<(), WriteError> {
        match MetaValue::from_value(value) {
            Some(value) => self.metadata(key, value),
            None => Err(WriteError::Value { key: key.to_owned(), value: format!("{value:?}") }),
        }
    }

    /// Declares a tensor; `shape` has the outermost dimension first.
    ///
    /// # Errors
    /// The name is present already, the shape does not fit the type, or GGUF lacks the type.
    pub fn tensor(&mut self, name: &str, shape: &[usize], block: BlockType) -> Result<(), WriteError> {
        let n_values = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim).filter(|&n| n > 0));
        let n_bytes = n_values
            .filter(|_| shape.len() <= MAX_DIMS as usize)
            .filter(|_| shape.last().copied().unwrap_or(1).is_multiple_of(block.block_len()))
            .and_then(|n| (n / block.block_len()).checked_mul(block.block_bytes()))
            .ok_or_else(|| WriteError::Shape { name: name.to_owned(), shape: shape.to_vec(), block })?;
        let Some(type_id) = block.gguf_id() else {
            return Err(WriteError::Type { name: name.to_owned(), block });
        };
        if !self.names.insert(name.to_owned()) {
            return Err(WriteError::Duplicate(name.to_owned()));
        }
        self.tensors.push(Declared { name: name.to_owned(), shape: shape.to_vec(), type_id, n_bytes });
        Ok(())
    }

    /// Writes the header. The tensors' bytes follow through the [`Body`].
    ///
    /// # Errors
    /// The underlying writer failed.
    pub fn begin<W: Write>(self, mut out: W) -> Result<Body<W>, WriteError> {
        let mut header = Vec::with_capacity(self.metadata.len() + 64 * self.tensors.len());
        header.extend(MAGIC);
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend(self.n_metadata.to_le_bytes());
        header.extend(&self.metadata);
        let mut offset = 0usize;
        for tensor in &self.tensors {
            write_string(&mut header, tensor.name.as_bytes());
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                header.extend((*dim as u64).to_le_bytes());
            }
            header.extend(tensor.type_id.to_le_bytes());
            header.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.n_bytes).next_multiple_of(self.alignment);
        }
        header.resize(header.len().next_multiple_of(self.alignment), 0);
        out.write_all(&header)?;
        Ok(Body { out, alignment: self.alignment, tensors: self.tensors.into_iter() })
    }
}

/// A file whose header is written.
#[derive(Debug)]
pub struct Body<W> {
    out: W,
    alignment: usize,
    tensors: std::vec::IntoIter<Declared>,
}

impl<W: Write> Body<W> {
    /// Writes the bytes of the next tensor, in the order of declaration, and their padding.
    ///
    /// # Errors
    /// There is no next tensor, the length is wrong, or the underlying writer failed.
    pub fn tensor_data(&mut self, data: &[u8]) -> Result<(), WriteError> {
        let (name, expected) = match self.tensors.next() {
            Some(tensor) => (tensor.name, tensor.n_bytes),
            None => (String::new(), 0),
        };
        if data.len() != expected || expected == 0 {
            return Err(WriteError::Length { name, found: data.len(), expected });
        }
        self.out.write_all(data)?;
        let padding = expected.next_multiple_of(self.alignment) - expected;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding as u64), &mut self.out)?;
        Ok(())
    }

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// A declared tensor is missing, or the underlying writer failed.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(tensor) = self.tensors.next() {
            return Err(WriteError::Length { name: tensor.name, found: 0, expected: tensor.n_bytes });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
