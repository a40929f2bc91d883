//! GGUF, the file format of llama.cpp: versions 2 and 3, little-endian, split sets included.
//!
//! ```text
//! magic "GGUF" | u32 version | u64 n_tensors | u64 n_metadata
//! n_metadata times:  string key | u32 value type | value
//! n_tensors times:   string name | u32 n_dims | u64 dims[n_dims], innermost first |
//!                    u32 tensor type | u64 offset
//! padding to `general.alignment` (32 if absent)
//! tensor data, each at its offset from here, a multiple of the alignment
//! ```
//!
//! A string is a u64 length and UTF-8 bytes; an array is a u32 item type, a u64 count and the
//! items. Integers are little-endian. See
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod reader;
mod split;
mod types;
mod writer;

pub use reader::parse;
pub use split::open;
pub use types::{ValueType, tensor_type_name};
pub use writer::{Body, MetaValue, WriteError, Writer};

/// The first four bytes.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data in bytes if the file has no `general.alignment`.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The most dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;
