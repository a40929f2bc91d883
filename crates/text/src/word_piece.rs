//! WordPiece (Schuster & Nakajima 2012) as in BERT. Text is cleaned and split into words, and each
//! word is spelled from the left, always with the longest token. GGUF writes U+2581 before tokens
//! that begin a word, and those that continue one bare; BERT's own files write `##`.

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

use crate::vocabulary::{SPACE_MARK, Vocabulary};
use crate::{Error, Result};

/// Longer words are unknown, as in BERT's own tokenizer.
const MAX_CHARS_PER_WORD: usize = 100;

/// The encoder of a WordPiece vocabulary.
pub(crate) struct WordPiece {
    normalizer: BertNormalizer,
    /// Token of a word that the others cannot spell.
    unknown: u32,
}

impl WordPiece {
    /// Makes an encoder, with `lowercase` and `strip_accents` as in training.
    pub(crate) fn new(unknown: u32, lowercase: bool, strip_accents: bool) -> WordPiece {
        WordPiece { normalizer: BertNormalizer::new(true, true, Some(strip_accents), lowercase), unknown }
    }

    /// Appends the tokens of a text without special tokens.
    ///
    /// # Errors
    /// The `tokenizers` library refuses the text.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let refused = |e: tokenizers::Error| Error::HuggingFace(e.to_string());
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(refused)?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(refused)?;
        let mut marked = String::new();
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            marked.clear();
            marked.push_str(SPACE_MARK);
            marked.push_str(word);
            let before = out.len();
            if word.chars().count() > MAX_CHARS_PER_WORD || !pieces(vocabulary, &marked, out) {
                out.truncate(before);
                out.push(self.unknown);
            }
        }
        Ok(())
    }
}

/// Appends the tokens of one word; returns false if tokens cannot spell it.
fn pieces(vocabulary: &Vocabulary, word: &str, out: &mut Vec<u32>) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        // A token's text may be longer than its bytes by the mark.
        let limit = rest.len().min(vocabulary.longest() + SPACE_MARK.len());
        let longest = (1..=limit).rev().find_map(|len| Some((vocabulary.id(rest.get(..len)?)?, len)));
        let Some((id, len)) = longest else { return false };
        out.push(id);
        rest = rest.get(len..).unwrap_or_default();
    }
    true
}
