//! PLaMo-2's tokenizer: a Unigram search without normalisation, from the end of the text to its
//! start. Text that no token spells becomes byte tokens. Scores are rounded to 1/10,000; of
//! spellings with equal sums, the one with the longest first token wins.

use crate::prefixes::{By, Prefixes};
use crate::unigram::score_each;
use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, Result};

const TOKENS: &str = "tokenizer.ggml.tokens";
/// Unit of the fixed-point scores.
const UNIT: f32 = 1e4;
/// Highest score of tokens that are never used.
const NEVER: i64 = -20_000_000;
/// Score of a character that is spelled in bytes.
const IN_BYTES: i64 = -10_000_000;

/// The encoder of a PLaMo-2 vocabulary.
pub(crate) struct Plamo2 {
    prefixes: Prefixes,
    scores: Vec<i64>, // (n_tokens)
    bytes: [u32; 256],
}

/// The best spelling of the text from a byte to its end.
#[derive(Clone, Copy)]
struct BestSuffix {
    score: i64,
    /// The first token and its length in bytes; `None` if the first character is spelled in bytes.
    token: Option<u32>,
    len: u32,
}

impl Plamo2 {
    /// Makes an encoder from the scores of all tokens.
    ///
    /// # Errors
    /// A score is NaN, a token is too long, or a byte has no token.
    pub(crate) fn new(vocabulary: &Vocabulary, scores: Vec<f32>) -> Result<Plamo2> {
        let scores = score_each(vocabulary, scores)?;
        let mut bytes = [0; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            let text = format!("<0x{byte:02X}>");
            *id = vocabulary.id(&text).filter(|&id| vocabulary.kind(id) == Kind::Byte).ok_or_else(|| {
                Error::Malformed {
                    key: TOKENS.into(),
                    found: format!("no byte token {text}"),
                    expected: "a byte token for each byte".into(),
                }
            })?;
        }
        let prefixes = Prefixes::new(TOKENS, vocabulary, By::Text, |kind| match kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused => true,
            Kind::Unknown | Kind::Control | Kind::Byte => false,
        })?;
        let fixed = |score: &f32| if score.is_finite() { (score * UNIT).round() as i64 } else { NEVER };
        Ok(Plamo2 { prefixes, scores: scores.iter().map(fixed).collect(), bytes })
    }

    /// Appends the tokens of a text without special tokens. A leading byte order mark is dropped.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        let mut best = vec![BestSuffix { score: 0, token: None, len: 0 }; text.len() + 1];
        for (start, c) in text.char_indices().rev() {
            let after = |len: usize| best.get(start + len).map_or(0, |best| best.score);
            let len = c.len_utf8();
            let mut champion =
                BestSuffix { score: after(len).saturating_add(IN_BYTES), token: None, len: len as u32 };
            let rest = text.as_bytes().get(start..).unwrap_or_default();
            self.prefixes.of(vocabulary, rest, &mut |token, len| {
                let score = self.scores.get(token as usize).copied().unwrap_or(NEVER);
                let sum = after(len).saturating_add(score);
                // Matches come shortest first, so the longest of equal ones wins.
                if score > NEVER && sum >= champion.score {
                    champion = BestSuffix { score: sum, token: Some(token), len: len as u32 };
                }
            });
            if let Some(place) = best.get_mut(start) {
                *place = champion;
            }
        }
        let mut at = 0;
        while let Some(first) = best.get(at).filter(|best| best.len > 0) {
            let end = at + first.len as usize;
            match first.token {
                Some(token) => out.push(token),
                None => {
                    let bytes = text.as_bytes().get(at..end).unwrap_or_default();
                    out.extend(bytes.iter().filter_map(|byte| self.bytes.get(usize::from(*byte))));
                }
            }
            at = end;
        }
    }
}
