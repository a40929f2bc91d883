//! The C API of Ingle. `include/ingle.h` is made of these declarations by cbindgen, and opens with
//! the rules on stability, errors, threads and ownership (`cbindgen.toml`).
//!
//! Each exported function has one body within `guard`, which turns errors and panics into a
//! status. Pointers become references and slices at the start of the body, after checks for null
//! and alignment; the rest is safe code over the crate `ingle`.
//!
//! The header's rules are the safety rules of every function: a pointer is null, or points to a
//! live handle of this library, to a text that ends with a zero byte, or to as many values as the
//! number beside it says.
#![allow(unsafe_code)] // Pointers of C.
#![allow(clippy::missing_safety_doc)] // The header states the rules once, for all functions.
#![deny(missing_docs)]

// The header has the declarations in this order.
mod status;

mod options;

mod event;

mod model;

mod answer;

mod string;

mod boundary;
mod messages;
mod wait;

use std::ffi::{CStr, c_char};

pub use answer::{
    IngleAnswer, IngleEventCallback, ingle_answer_cancel, ingle_answer_free, ingle_answer_json,
    ingle_answer_next, ingle_answer_next_timeout, ingle_answer_read, ingle_chat, ingle_complete,
    ingle_complete_tokens,
};
pub use event::*;
pub(crate) use model::null_of as null;
pub use model::{
    INGLE_CAN_CHAT, INGLE_CAN_COMPLETE, INGLE_CAN_EMBED, INGLE_CAN_SEE, INGLE_CAN_TOKENIZE,
    INGLE_CAN_TRANSCRIBE, IngleModel, IngleModelInfo, ingle_detokenize, ingle_embed, ingle_load,
    ingle_model_free, ingle_model_get_info, ingle_rerank, ingle_tokenize, ingle_transcribe,
};
pub use options::*;
pub use status::*;
pub use string::ingle_string_free;

/// Version of the binary interface, against which a program was compiled. It grows when programs
/// must be compiled anew.
pub const INGLE_ABI_VERSION: u32 = 1;

/// Bit of ingle_capabilities: this build runs models on NVIDIA's GPUs.
pub const INGLE_HAS_CUDA: u64 = 1;
/// Bit of ingle_capabilities: this build runs models on the GPU of a Mac.
pub const INGLE_HAS_METAL: u64 = 2;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn ingle_version() -> *const c_char {
    VERSION.as_ptr()
}

/// INGLE_ABI_VERSION of the library, to compare with that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn ingle_abi_version() -> u32 {
    INGLE_ABI_VERSION
}

/// Bits INGLE_HAS_…: devices that this build knows. The machine may still lack them.
#[unsafe(no_mangle)]
pub extern "C" fn ingle_capabilities() -> u64 {
    let cuda = if cfg!(any(target_os = "linux", target_os = "windows")) { INGLE_HAS_CUDA } else { 0 };
    let metal = if cfg!(target_os = "macos") { INGLE_HAS_METAL } else { 0 };
    cuda | metal
}

/// Message of this thread's last error, in English; empty if there was none. The text is valid
/// until the thread's next error. A success does not clear it.
#[unsafe(no_mangle)]
pub extern "C" fn ingle_last_error() -> *const c_char {
    boundary::last_error()
}
