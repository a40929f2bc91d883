//! `.base` version 1, BaseRT's container, which Ingle converts to as well.
//!
//! ```text
//! "BASE" | u32 1 | u64 length of the header | header, JSON | zeros to a multiple of 64 KiB
//! weights: each tensor at its offset from here, aligned to a page
//! after the last tensor, from a multiple of 8: extension slots, or nothing
//! ```
//!
//! The specification is `base-convert/FORMAT.md` and `CANONICAL_QUANT_SPEC.md` of
//! <https://github.com/basecompute/baseRT>. Where it leaves room, this is what the published converter writes, and so what
//! is read and written here:
//!
//! - A quantised tensor's `length` covers its integers, scales and offsets, and `scale_offset` and `bias_offset` count
//!   from the tensor's own start. A file in the letter of FORMAT.md, where `length` covers the integers only and the other
//!   two count from the start of the weights, is read too; the length tells them apart.
//! - `checksum_xxh64` is of those `length` bytes.
//! - Scales without `scale_dtype` are f16, as all were before there was that field.
//! - Before the slots stands their number, a u32.
//!
//! | dtype | is read as |
//! |---|---|
//! | `base_q2` … `base_q8` (`base4`, `base8` of old) with bf16, f16 or e8m0 scales | [`BlockType::Affine`](weights::BlockType) |
//! | `bf16`, `f16`, `f32` | the same |
//! | `mxfp4`, `nvfp4`, e4m3 scales, tiled layouts, transposed tensors | refused by name |
//!
//! # What Ingle adds
//!
//! Optional header fields, which other readers ignore: `ingle.naming`, the convention of the names where it is not
//! BaseRT's; `ingle.files`, the texts of small files that belong to the model; `metadata`, the checkpoint's keys with
//! dots; and `pad`, which keeps the header's length what it was before the checksums were known.

mod canonical;
mod header;
mod reader;
mod sign;
mod writer;

use std::path::Path;
use weights::{Access, Checkpoint, Map, Result};

pub use reader::{Base, Slot, parse};
pub use sign::{PublicKey, SecretKey, sign_file};
pub use writer::{Body, WriteError, Writer, layer_order};

/// The first four bytes.
pub const MAGIC: [u8; 4] = *b"BASE";

/// The version of the format.
pub const VERSION: u32 = 1;

/// What the weights' start is a multiple of: the largest page of any device.
pub const WEIGHTS_ALIGNMENT: usize = 64 << 10;

/// The longest header that is read, in bytes: what safetensors allows, and several of the largest vocabularies.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes before the header.
const PREFIX_BYTES: usize = 16;

/// The key that stands before what the header says of the file itself: `base.arch`, `base.quant_scheme`.
pub const HEADER_PREFIX: &str = "base.";

/// Open a file. Nothing but its header is read: see [`Base::verify_checksums`] and [`Base::verify_signature`].
///
/// # Errors
/// Names the file, the tensor or key, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    Ok(read(path, access)?.into_checkpoint())
}

/// As [`open`], keeping what a [`Checkpoint`] has no place for.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path, access: Access) -> Result<Base> {
    parse(Map::open(path, access)?, path)
}

/// Where the weights begin after a header of so many bytes.
fn weights_start(header_bytes: usize) -> Option<usize> {
    header_bytes.checked_add(PREFIX_BYTES)?.checked_next_multiple_of(WEIGHTS_ALIGNMENT)
}
