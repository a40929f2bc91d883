//! Selection of a checkpoint's tokenizer. Nothing else of the checkpoint matters: a file with a
//! vocabulary and no weights has a tokenizer, and so has an unsupported model.

use std::path::Path;

use weights::{Metadata, Naming, Value};

use crate::{Error, Result, TokenSpelling, Tokenizer};

impl Tokenizer {
    /// The tokenizer of a checkpoint: from the files of a folder, or from a file's metadata. `None`
    /// if there is none. `path` is the opened checkpoint.
    ///
    /// # Errors
    /// The vocabulary is malformed or of an unknown kind, or a file of the folder cannot be read.
    pub fn of_checkpoint(path: &Path, naming: Naming, metadata: &Metadata) -> Result<Option<Tokenizer>> {
        match naming {
            Naming::HuggingFace if path.is_dir() => Tokenizer::from_folder(path),
            // A `.base` file was made from a folder, or, by other programs, from a GGUF file.
            Naming::HuggingFace | Naming::Base if metadata.get("tokenizer.ggml.model").is_none() => {
                Tokenizer::from_base(metadata)
            }
            Naming::Gguf | Naming::HuggingFace | Naming::Base => match Tokenizer::from_gguf(metadata) {
                Ok(tokenizer) => Ok(Some(tokenizer)),
                Err(Error::NoVocabulary { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Naming::CTranslate2 => {
                // The file may also be a `.base` file made from the folder.
                let found = match path.is_dir() {
                    true => Tokenizer::from_folder(path)?,
                    false => Tokenizer::from_base(metadata)?,
                };
                found.map_or_else(|| listed(metadata), |tokenizer| Ok(Some(tokenizer)))
            }
            Naming::WhisperCpp => listed(metadata),
        }
    }
}

/// A tokenizer of the bare list of tokens in the metadata.
fn listed(metadata: &Metadata) -> Result<Option<Tokenizer>> {
    const KEY: &str = weights::keys::VOCABULARY;
    let Some(Value::Array(tokens)) = metadata.get(KEY) else { return Ok(None) };
    let spelling = TokenSpelling::of(KEY, tokens)?;
    Ok(Some(Tokenizer::from_ranked_tokens(KEY, tokens, spelling)?))
}
