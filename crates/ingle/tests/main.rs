//! The tests of this crate are one binary, for each that links everything takes seconds to build.

mod codecs_table;
mod commands;
mod common;
mod convert;
mod convert_gguf;
mod embed;
mod images;
mod kv_budget;
mod lazy;
mod metal;
mod readme;
mod real_models;
mod rerank;
mod serve;
mod serve_audio;
mod serve_client;
mod serve_compatibility;
mod serve_gate;
mod serve_llama;
mod serve_more;
mod serve_ollama;
mod serve_responses;
mod serve_tools;
mod test_files;
mod tokenize;
mod transcribe;
