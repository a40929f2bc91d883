//! `.base` version 1, BaseRT's container, which Ingle also writes.
//!
//! Ingle converts to it because one file then holds all: page-aligned weights with checksums, the
//! tokenizer, the chat template and a signature.
//!
//! ```text
//! "BASE" | u32 1 | u64 length of the header | header, JSON | zeros to a multiple of 64 KiB
//! weights: each tensor at its offset from here, aligned to a page
//! after the last tensor, from a multiple of 8: extension slots, or nothing
//! ```
//!
//! The specification is `base-convert/FORMAT.md` and `CANONICAL_QUANT_SPEC.md` of
//! <https://github.com/basecompute/baseRT>. Where it is ambiguous, this module follows the
//! published converter:
//!
//! - The `length` of a quantised tensor covers its integers, scales and offsets, and `scale_offset`
//!   and `bias_offset` count from the tensor's start. Files that follow FORMAT.md literally are
//!   read too: their `length` covers the integers only, and the other two count from the start of
//!   the weights. The length tells them apart.
//! - `checksum_xxh64` covers those `length` bytes.
//! - Scales without `scale_dtype` are f16, as in files from before that field.
//! - The number of slots, a u32, precedes them.
//!
//! | dtype | read as |
//! |---|---|
//! | `base_q2` … `base_q8` (or `base4`, `base8`), bf16, f16 or e8m0 scales | `BlockType::Affine` |
//! | `bf16`, `f16`, `f32` | the same type |
//! | `mxfp4`, `nvfp4`, e4m3 scales, tiled layouts, transposed tensors | refused by name |
//!
//! # Fields that Ingle adds
//!
//! Other readers ignore these optional header fields. `ingle.naming` is the convention of the
//! names, if it is not BaseRT's. `ingle.files` has the texts of small files that belong to the
//! model. `metadata` has the checkpoint's keys with dots. `pad` keeps the header's length unchanged
//! once the checksums are known.

mod canonical;
mod header;
mod reader;
mod sign;
mod writer;

use std::path::Path;
use weights::{Access, Checkpoint, Map, Result};

pub use reader::{Base, Slot, parse};
pub use sign::{PublicKey, SecretKey, sign_file};
pub use writer::{BaseBody, BaseWriteError, BaseWriter, layer_order};

/// The first four bytes.
pub const MAGIC: [u8; 4] = *b"BASE";

/// The version of the format.
pub const VERSION: u32 = 1;

/// Alignment of the start of the weights, in bytes: the largest page of any device.
pub const WEIGHTS_ALIGNMENT: usize = 64 << 10;

/// The longest header that is read, in bytes. It is safetensors' limit, and fits several of the
/// largest vocabularies.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes before the header.
const PREFIX_BYTES: usize = 16;

/// Prefix of metadata keys from the header itself: `base.arch`, `base.quant_scheme`.
pub const HEADER_PREFIX: &str = "base.";

/// Opens a file. Reads only its header: see [`Base::verify_checksums`] and
/// [`Base::verify_signature`].
///
/// # Errors
/// Names the file, the tensor or key, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    Ok(read(path, access)?.into_checkpoint())
}

/// Like [`open`], with the parts that a [`Checkpoint`] does not hold.
///
/// # Errors
/// The errors of [`open`].
pub fn read(path: &Path, access: Access) -> Result<Base> {
    parse(Map::open(path, access)?, path)
}

/// The start of the weights after a header of `header_bytes` bytes; `None` on overflow.
fn weights_start(header_bytes: usize) -> Option<usize> {
    header_bytes.checked_add(PREFIX_BYTES)?.checked_next_multiple_of(WEIGHTS_ALIGNMENT)
}
