//! The tests of this crate are one binary, for each that links everything takes seconds to build.

mod allocations;
mod base;
mod chat_templates;
mod hugging_face;
mod tokenizers;
