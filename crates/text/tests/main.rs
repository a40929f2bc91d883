//! The tests of this crate are one binary, because each one takes seconds to link.

mod allocations;
mod answers;
mod base;
mod chat_templates;
mod gbnf;
mod grammar;
mod hugging_face;
mod odd_vocabularies;
mod schemas;
mod searched;
mod tokenizers;
