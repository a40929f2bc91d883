//! SentencePiece BPE (Kudo & Richardson 2018) as in Llama and Gemma, without a list of merges. Two
//! neighbours merge if their joint text is a token, and the token with the best score merges first.
//! Remaining text without tokens falls back to its bytes, written `<0x0A>`.

use crate::Result;
use crate::merge::{Merged, Merger, NO_TOKEN};
use crate::unigram::score_each;
use crate::vocabulary::{Kind, SPACE_MARK, Vocabulary};

/// The encoder of a scored vocabulary.
pub(crate) struct SentencePiece {
    /// Rank of each token's score; lower is better. An order-preserving map of the float.
    ranks: Vec<u32>, // (n_tokens)
    /// Token of each byte, or the token of unknown characters.
    bytes: [u32; 256],
    /// True if a space is put before texts.
    space_prefix: bool,
}

impl SentencePiece {
    /// Makes an encoder from the scores of all tokens.
    ///
    /// # Errors
    /// A score is NaN.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<SentencePiece> {
        let scores = score_each(vocabulary, scores)?;
        let mut bytes = [unknown.unwrap_or(NO_TOKEN); 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            if let Some(token) = vocabulary.id(&format!("<0x{byte:02X}>")) {
                *id = token;
            }
        }
        Ok(SentencePiece { ranks: scores.iter().map(|&score| rank(score)).collect(), bytes, space_prefix })
    }

    /// Appends the tokens of a text without special tokens, which must not be empty.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        // Neither runs of spaces nor the ends are trimmed, so the model sees the user's text.
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + SPACE_MARK.len());
        if self.space_prefix {
            escaped.push_str(SPACE_MARK);
        }
        for (i, part) in text.split(' ').enumerate() {
            if i > 0 {
                escaped.push_str(SPACE_MARK);
            }
            escaped.push_str(part);
        }
        let escaped = escaped.as_str();

        let mut merger = Merger::default();
        for (at, c) in escaped.char_indices() {
            merger.push(at, c.len_utf8(), NO_TOKEN);
        }
        let longest = vocabulary.longest();
        let symbols = merger.merge(|left, right| {
            let (start, end) = (left.start as usize, (right.start + right.len) as usize);
            // A text token's own bytes are at most three times as long (U+2581 for a space).
            if end - start > 3 * longest {
                return None;
            }
            let id = piece(vocabulary, escaped.get(start..end)?)?;
            Some(Merged { rank: self.ranks.get(id as usize).copied()?, id })
        });
        for symbol in symbols {
            let text =
                escaped.get(symbol.start as usize..(symbol.start + symbol.len) as usize).unwrap_or_default();
            let token = Some(symbol.id).filter(|&id| id != NO_TOKEN).or_else(|| piece(vocabulary, text));
            match token {
                Some(id) => out.push(id),
                None => out.extend(
                    text.bytes()
                        .filter_map(|byte| self.bytes.get(usize::from(byte)).copied())
                        .filter(|&id| id != NO_TOKEN),
                ),
            }
        }
    }
}

/// The token of this text, unless it is a control token or a byte token, which text never becomes
/// in SentencePiece.
fn piece(vocabulary: &Vocabulary, text: &str) -> Option<u32> {
    vocabulary.id_of(text, |kind| !matches!(kind, Kind::Control | Kind::Unknown | Kind::Byte))
}

/// Maps a score to an integer that is lower for better scores. As integers, the bits of floats have
/// the floats' order once negative ones are inverted and others have their sign bit set.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // + 0.0 converts -0.0 to 0.0.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_as_scores_do() {
        let scores = [f32::INFINITY, 3.5, 1e-40, 0.0, -1e-40, -1.0, -2.0, -1e9, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
