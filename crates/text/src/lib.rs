//! Tokenizers, chat templates, grammars of answers, and parsers of answers.
//!
//! - [`Tokenizer`]: the tokenizer of a checkpoint, from the keys of a GGUF file, a Hugging Face
//!   folder, a `.base` file that holds either, or a bare list of tokens. [`Specials`] selects
//!   whether the text of a control token is parsed as that token. [`gguf_from_folder`] converts a
//!   Hugging Face folder to the keys of a GGUF file.
//! - [`Detokenizer`]: streaming conversion of tokens to text, never half a character.
//!   [`StopStrings`]: stop strings in such a stream. Neither allocates after it is made.
//! - [`FillInMiddle`]: the tokens around a gap, of models that fill one.
//! - [`Grammar`]: the tokens that may follow, so that a text is JSON of a schema or follows a
//!   grammar.
//! - [`ChatTemplate`]: conversion of a conversation to text, byte-equal to the rendering of
//!   transformers.
//!
//! Two tokenizer stacks serve [`Tokenizer`], depending on the file that describes the vocabulary:
//!
//! | file | stack |
//! |---|---|
//! | keys of a GGUF file, also within `.base`; a bare list of tokens | this crate |
//! | `tokenizer.json` of a Hugging Face folder, also within `.base` | the crate `tokenizers` |
//!
//! This crate implements BPE, SentencePiece, WordPiece, Unigram, RWKV and PLaMo-2. It has its own
//! stack because GGUF stores only the tokens, their scores or merges, and the name of a
//! pre-tokenizer. tokenizer.json describes its whole pipeline, which `tokenizers` runs as written.
//!
//! Vocabularies and templates come from untrusted files: whatever their content, the outcome is a
//! result or an [`Error`], in bounded time. This crate deliberately knows no devices, and no model
//! that uses the tokens.
#![deny(missing_docs)]

mod answer;
mod base;
mod bpe;
mod byte_level;
mod charsmap;
mod chat_template;
mod checkpoint;
mod detokenizer;
mod error;
mod escapes;
mod fill_in_middle;
mod gguf;
mod gguf_export;
mod grammar;
mod hugging_face;
mod merge;
mod plamo2;
mod pre_tokenizer;
mod prefixes;
mod presets;
mod ranked;
mod rwkv;
mod sentence_piece;
mod specials;
mod stop;
mod tokenizer;
mod unigram;
mod vocabulary;
mod word_piece;

pub use answer::{
    AnswerFormat, AnswerGrammar, AnswerParser, AnswerPart, Asides, CallChoice, CallGuard, HeldCalls,
    ToolPrompt,
};
pub use chat_template::{Chat, ChatTemplate};
pub use detokenizer::{Detokenizer, ShowSpecial};
pub use error::{Error, Result};
pub use fill_in_middle::{FillInMiddle, Gap};
pub use gguf_export::{GgufTokenizer, gguf_from_base, gguf_from_folder};
pub use grammar::{
    Grammar, GrammarCompiler, MAX_CHOICES, MAX_GRAMMAR, MAX_REGEX, MAX_SCHEMA_DEPTH, MAX_TRIGGER,
    MAX_TRIGGERS, Matcher, Prepared, SchemaOptions, Trigger, Triggers, check_lark, prepare_schema,
    prepare_tool,
};
pub use ranked::TokenSpelling;
pub use specials::Specials;
pub use stop::{Released, StopStrings, Stops};
pub use tokenizer::Tokenizer;
