//! The tests of this crate are one binary, because linking each binary takes seconds.

mod base;
mod codecs;
mod common;
mod convert;
mod ctranslate2;
mod gguf;
mod mlx;
mod safetensors;
mod whisper_cpp;
