//! All tests of this crate are one binary, since linking takes seconds.

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
