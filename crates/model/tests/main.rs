//! The tests of this crate are one binary, for each that links everything takes seconds to build.

mod base;
mod base_rt;
mod common;
mod config_styles;
mod cpu;
mod cuda;
mod damaged;
mod encoder;
mod encoders;
mod fixtures;
mod gguf;
mod gguf_experts;
mod gguf_export;
mod hostile;
mod lora;
mod metal;
mod mlx;
mod next_tokens;
mod no_family_names;
mod parallel;
mod plan;
mod rope;
mod speech;
mod speech_cpu;
mod speech_tokens;
mod tables;
