//! ggml files of whisper.cpp, such as `ggml-base.en.bin`, little-endian:
//!
//! ```text
//! u32 0x67676d6c
//! i32 n_vocab, n_audio_ctx, n_audio_state, n_audio_head, n_audio_layer,
//!     n_text_ctx, n_text_state, n_text_head, n_text_layer, n_mels, ftype
//! i32 n_mel | i32 n_fft | f32 filters[n_mel][n_fft]
//! i32 n_tokens, then for each:  u32 length | bytes
//! to the end of the file:       i32 n_dims | i32 name length | i32 tensor type |
//!                               i32 dims[n_dims], innermost first | name | data
//! ```
//!
//! `ftype` is 1000 times the version of the quantisation plus the type of most weights; tensor
//! types are GGUF's ids. Nothing is aligned. See `models/convert-pt-to-ggml.py` of
//! <https://github.com/ggml-org/whisper.cpp>.
//!
//! Metadata has the hyperparameters under the names above, and the list [`VOCABULARY`], whose
//! tokens are plain bytes. The list is shorter than `n_vocab`, because later tokens (languages,
//! timestamps) have no text. The filters are the tensor [`MEL_FILTERS`].

mod reader;

use std::path::Path;
use weights::{Access, Checkpoint, Map, Result};

pub use reader::parse;

/// The first four bytes, the number 0x67676d6c.
pub const MAGIC: [u8; 4] = 0x6767_6d6cu32.to_le_bytes();

/// Name of the mel filter bank among the tensors: F32 `[n_mel, n_fft]`, with `n_fft` frequencies.
pub const MEL_FILTERS: &str = "mel_filters";

/// The hyperparameters in the file's order, which are also their metadata keys.
pub const HYPERPARAMETERS: [&str; 11] = [
    "n_vocab",
    "n_audio_ctx",
    "n_audio_state",
    "n_audio_head",
    "n_audio_layer",
    "n_text_ctx",
    "n_text_state",
    "n_text_head",
    "n_text_layer",
    "n_mels",
    "ftype",
];

/// Opens a file.
///
/// # Errors
/// Names the file, the tensor or field, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    parse(Map::open(path, access)?, path)
}
