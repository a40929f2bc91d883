//! Text to tokens and back, and conversations to text.
//!
//! - [`Tokenizer`]: the one that a checkpoint brings, from the keys of a GGUF file, from a Hugging Face folder, from a
//!   `.base` file that holds either, or from a bare list of tokens; [`Specials`] says whether the text of a control token is that token. [`gguf_from_folder`] makes
//!   the keys of a GGUF file from a Hugging Face folder.
//! - [`Detokenizer`]: tokens to text as they come, never half a character. [`StopStrings`]: stop strings in such a
//!   stream. Neither allocates after it is made.
//! - [`FillInMiddle`]: the tokens around a gap, of models that fill one.
//! - [`Grammar`]: which tokens may follow, so that a text is JSON of a schema or follows a grammar.
//! - [`ChatTemplate`]: a conversation to the text the model was trained on, byte-equal to what transformers renders.
//!
//! Vocabularies and templates come from files that strangers made: whatever is in them, the answer is a result or an
//! [`Error`], in bounded time. What is absent here on purpose: devices, and what a model does with its tokens.
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
