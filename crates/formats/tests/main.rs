//! The tests of this crate are one binary, for each that links everything takes seconds to build.

mod base;
mod codecs;
mod common;
mod convert;
mod ctranslate2;
mod gguf;
mod mlx;
mod safetensors;
mod whisper_cpp;
