//! Which tokenizer a checkpoint brings. Nothing else of the checkpoint matters: a file with a vocabulary and no weights
//! will do, and so will a model of a family that nothing here can run.

use std::path::Path;

use weights::{Metadata, Naming, Value};

use crate::{Error, Result, TokenSpelling, Tokenizer};

impl Tokenizer {
    /// The tokenizer that belongs to the weights: of a folder, the files in it; of a file, what its metadata holds.
    /// `None` if there is none. `path` is where the checkpoint was opened.
    ///
    /// # Errors
    /// The vocabulary is malformed or of an unknown kind, or a file of the folder cannot be read.
    pub fn of_checkpoint(path: &Path, naming: Naming, metadata: &Metadata) -> Result<Option<Tokenizer>> {
        match naming {
            Naming::HuggingFace if path.is_dir() => Tokenizer::from_folder(path),
            // A `.base` file, which was made from a folder, or by others from a GGUF file.
            Naming::HuggingFace | Naming::Base if metadata.get("tokenizer.ggml.model").is_none() => {
                Tokenizer::from_base(metadata)
            }
            Naming::Gguf | Naming::HuggingFace | Naming::Base => match Tokenizer::from_gguf(metadata) {
                Ok(tokenizer) => Ok(Some(tokenizer)),
                Err(Error::NoVocabulary { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Naming::CTranslate2 => {
                // Or a `.base` file that was made from the folder.
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

/// From the bare list of tokens in the metadata.
fn listed(metadata: &Metadata) -> Result<Option<Tokenizer>> {
    const KEY: &str = weights::keys::VOCABULARY;
    let Some(Value::Array(tokens)) = metadata.get(KEY) else { return Ok(None) };
    let spelling = TokenSpelling::of(KEY, tokens)?;
    Ok(Some(Tokenizer::from_ranked_tokens(KEY, tokens, spelling)?))
}
