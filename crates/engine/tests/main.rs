//! Tests of this crate in one binary, since each binary that links everything takes seconds to
//! build. Tests that watch their whole process are binaries of their own.

mod adapters;
mod common;
mod constraint;
mod cpu;
mod embed;
mod failures;
mod forward;
mod kv_types;
mod metal;
mod null;
mod own_layer;
mod prompt_cache;
mod recurrent;
mod reference;
mod resident;
mod run_ahead;
mod scheduler;
mod shared_prompts;
mod shortage;
mod speculate;
mod speculate_recurrent;
mod text;
mod turns;
mod vision;
mod weight_files;
