//! A byte-level BPE tokenizer from its list of tokens alone, for files without merges.
//!
//! Such vocabularies are in the order of training: first the bytes, then the result of each merge.
//! So a token's id is the rank of the merge that makes it. The two parts of that merge are what
//! earlier merges make of the token's own text; tiktoken encodes by the same rule. The merges are
//! computed once here, and the encoder is the same as for files that list them.

use weights::Array;

use crate::bpe::BytePairs;
use crate::byte_level;
use crate::merge::{Merged, Merger};
use crate::presets::Preset;
use crate::tokenizer::{Declared, Encoder};
use crate::vocabulary::{Kind, Spelling, Vocabulary, string_array};
use crate::{Error, Result, Tokenizer};

/// Spelling of tokens in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSpelling {
    /// Tokens are in GPT-2's byte alphabet: `Ġthe`.
    ByteAlphabet,
    /// Tokens are bytes, which need not be UTF-8.
    Bytes,
}

impl Tokenizer {
    /// Makes a tokenizer from a list of tokens in the order of training, with GPT-2's splitting.
    /// Tokens such as `<|endoftext|>` are control tokens, which the list may omit. `key` names the
    /// list in errors.
    ///
    /// # Errors
    /// `tokens` is not a list of strings, or is empty.
    pub fn from_ranked_tokens(key: &str, tokens: &Array, spelling: TokenSpelling) -> Result<Tokenizer> {
        if !matches!(tokens, Array::Str { .. }) {
            return Err(not_strings(key));
        }
        let is_mark = |bytes: &[u8]| bytes.len() > 4 && bytes.starts_with(b"<|") && bytes.ends_with(b"|>");
        let kinds = (0..tokens.len())
            .map(|id| match tokens.str_bytes(id).is_some_and(is_mark) {
                true => Kind::Control,
                false => Kind::Normal,
            })
            .collect();
        let tokens = match spelling {
            TokenSpelling::ByteAlphabet => tokens.clone(),
            TokenSpelling::Bytes => {
                let spelled: Vec<String> = (0..tokens.len())
                    .map(|id| tokens.str_bytes(id).unwrap_or_default())
                    .map(|bytes| if is_mark(bytes) { lossy(bytes) } else { in_alphabet(bytes) })
                    .collect();
                string_array(spelled.iter().map(String::as_str))?
            }
        };
        let vocabulary = Vocabulary::new(key, tokens, kinds, Spelling::ByteLevel)?;
        let merges = merges(&vocabulary)?;
        let encoder = Encoder::BytePairs(BytePairs::new(&vocabulary, &merges, Preset::named("gpt-2")?)?);
        Ok(Tokenizer::new(vocabulary, encoder, Declared::default()))
    }
}

fn not_strings(key: &str) -> Error {
    Error::Malformed {
        key: key.into(),
        found: "a list of another kind".into(),
        expected: "a list of strings".into(),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes in GPT-2's alphabet.
fn in_alphabet(bytes: &[u8]) -> String {
    bytes.iter().filter_map(|&byte| byte_level::CHARS.get(usize::from(byte))).collect()
}

/// `left right` for each token that a merge of earlier tokens makes, in the order of the tokens. A
/// token of more than two parts cannot result from a merge, and stays unused.
pub(crate) fn merges(vocabulary: &Vocabulary) -> Result<Array> {
    let mut merges = Vec::with_capacity(vocabulary.len());
    let mut merger = Merger::default();
    for (id, kind) in vocabulary.kinds() {
        let text = vocabulary.text(id);
        if kind != Kind::Normal || text.chars().nth(1).is_none() {
            continue;
        }
        merger.clear();
        for (at, c) in text.char_indices() {
            merger.push(at, c.len_utf8(), 0); // Only texts matter here, not ids.
        }
        let merged = merger.merge(|left, right| {
            let (from, to) = (left.start as usize, (right.start + right.len) as usize);
            let rank = vocabulary.id(text.get(from..to)?)?;
            (rank < id).then_some(Merged { rank, id: 0 })
        });
        let mut parts = merged.map(|symbol| (symbol.start as usize, (symbol.start + symbol.len) as usize));
        if let (Some((_, middle)), Some(_), None) = (parts.next(), parts.next(), parts.next())
            && let (Some(left), Some(right)) = (text.get(..middle), text.get(middle..))
            && vocabulary.id(left).is_some()
            && vocabulary.id(right).is_some()
        {
            merges.push(format!("{left} {right}"));
        }
    }
    string_array(merges.iter().map(String::as_str))
}

impl TokenSpelling {
    /// Detects the spelling of a list: in the byte alphabet, tokens have no unprintable bytes.
    ///
    /// # Errors
    /// `tokens` is not a list of strings.
    pub fn of(key: &str, tokens: &Array) -> Result<TokenSpelling> {
        if !matches!(tokens, Array::Str { .. }) {
            return Err(not_strings(key));
        }
        let mut all = (0..tokens.len()).filter_map(|id| tokens.str_bytes(id));
        let is_raw = |bytes: &[u8]| bytes.contains(&b' ') || std::str::from_utf8(bytes).is_err();
        Ok(if all.any(is_raw) { TokenSpelling::Bytes } else { TokenSpelling::ByteAlphabet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Specials;

    /// 256 bytes in GPT-2's order (printable, then others), then merges in the order of training.
    fn tokens() -> Vec<Vec<u8>> {
        let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let bytes = (0..=255u8).filter(|b| prints(*b)).chain((0..=255u8).filter(|b| !prints(*b)));
        let learned = ["in", " t", "he", " the", "ing", "th", "thing", " thing", "é", "<|endoftext|>"];
        bytes.map(|b| vec![b]).chain(learned.iter().map(|t| t.as_bytes().to_vec())).collect()
    }

    fn list(tokens: &[Vec<u8>]) -> Array {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for token in tokens {
            spans.push((bytes.len() as u32, token.len() as u32));
            bytes.extend_from_slice(token);
        }
        Array::Str { bytes: weights::Bytes::from_slice(&bytes), spans }
    }

    #[test]
    fn both_spellings_encode_and_decode_alike() {
        let raw = tokens();
        let alphabet: Vec<Vec<u8>> = raw
            .iter()
            .map(|t| if t.starts_with(b"<|") { t.clone() } else { in_alphabet(t).into_bytes() })
            .collect();
        for (list, spelling) in
            [(list(&raw), TokenSpelling::Bytes), (list(&alphabet), TokenSpelling::ByteAlphabet)]
        {
            assert_eq!(TokenSpelling::of("tokens", &list).unwrap(), spelling);
            let tokenizer = Tokenizer::from_ranked_tokens("tokens", &list, spelling).unwrap();
            let ids = tokenizer.encode("the thing", Specials::Literal).unwrap();
            // "the" is t + he, since " the" and he were trained before "th". " thing" is " t" + h +
            // ing.
            let texts: Vec<&[u8]> = ids.iter().map(|id| tokenizer.token_bytes(*id)).collect();
            assert_eq!(texts, [&b"t"[..], b"he", b" t", b"h", b"ing"]);
            let accent = tokenizer.encode("é", Specials::Literal).unwrap();
            assert_eq!(accent, [264]);
            assert_eq!(tokenizer.decode(&[264, 259, 265], true), "é the");
            assert!(tokenizer.is_special(265));
        }
    }

    #[test]
    fn the_first_of_equal_tokens_is_used() {
        let mut tokens = tokens();
        tokens.push(b"in".to_vec());
        let tokenizer =
            Tokenizer::from_ranked_tokens("tokens", &list(&tokens), TokenSpelling::Bytes).unwrap();
        assert_eq!(tokenizer.encode("in", Specials::Literal).unwrap(), [256]);
        assert_eq!(tokenizer.decode(&[256, 266], true), "inin");
    }

    #[test]
    fn broken_lists_are_refused() {
        let numbers = Array::Int(vec![1]);
        assert!(TokenSpelling::of("tokens", &numbers).is_err());
        assert!(Tokenizer::from_ranked_tokens("tokens", &numbers, TokenSpelling::Bytes).is_err());
    }
}
