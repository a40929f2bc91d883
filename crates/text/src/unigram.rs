//! Unigram (Kudo 2018) as in T5 and XLM-RoBERTa through SentencePiece. Text is normalised, and of
//! all spellings the one with the highest sum of scores is used. Scores are log-probabilities.

use crate::charsmap::CharsMap;
use crate::prefixes::{By, Prefixes};
use crate::vocabulary::{Kind, SPACE_MARK, Vocabulary};
use crate::{Error, Result};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
/// Penalty of an unknown character, below the least likely token. (SentencePiece's `kUnkPenalty`.)
const UNKNOWN_PENALTY: f32 = 10.0;

/// Maximum number of bytes of a normalised text. Each needs 16 bytes of memory during the search.
const MAX_TEXT: usize = 1 << 28;

/// Normalisation of a text.
pub(crate) struct Normalization {
    pub(crate) charsmap: Option<CharsMap>,
    /// True if a space is put before the first word.
    pub(crate) space_prefix: bool,
    /// True if runs of spaces become one, and spaces at the ends are dropped.
    pub(crate) merge_spaces: bool,
}

/// The encoder of a Unigram vocabulary.
pub(crate) struct Unigram {
    prefixes: Prefixes,
    /// Score of each token; 0 for user-defined tokens, so that they win over their parts.
    scores: Vec<f32>, // (n_tokens)
    unknown: u32,
    unknown_score: f64,
    normalization: Normalization,
}

/// The best spelling of the text up to a byte.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// The last token, and the position of its start.
    token: u32,
    start: u32,
}

impl Unigram {
    /// Makes an encoder from the scores of all tokens.
    ///
    /// # Errors
    /// A score is NaN, or a token is too long.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: u32,
        normalization: Normalization,
    ) -> Result<Unigram> {
        let mut scores = score_each(vocabulary, scores)?;
        let prefixes = Prefixes::new(TOKENS, vocabulary, By::Text, |kind| match kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused => true,
            Kind::Unknown | Kind::Control | Kind::Byte => false,
        })?;
        let mut least = f32::MAX;
        for ((_, kind), score) in vocabulary.kinds().zip(&mut scores) {
            if kind == Kind::Normal {
                least = least.min(*score);
            } else if kind == Kind::UserDefined {
                *score = 0.0;
            }
        }
        let unknown_score = f64::from(least - UNKNOWN_PENALTY);
        Ok(Unigram { prefixes, scores, unknown, unknown_score, normalization })
    }

    /// Appends the tokens of a text without special tokens. Adjacent unknown characters become one
    /// unknown token.
    ///
    /// # Errors
    /// The text is longer than 256 MiB after normalisation.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let text = self.normalization.apply(text)?;
        // Sums are f64, so that a long text is spelled as its parts are.
        let none = Best { score: f64::NEG_INFINITY, token: self.unknown, start: 0 };
        let mut best = vec![none; text.len() + 1];
        if let Some(first) = best.first_mut() {
            first.score = 0.0;
        }
        for (start, c) in text.char_indices() {
            let so_far = best.get(start).map_or(f64::NEG_INFINITY, |best| best.score);
            let mut challenge = |token: u32, len: usize, score: f64| {
                if let Some(champion) = best.get_mut(start + len)
                    && (so_far + score > champion.score || champion.score == f64::NEG_INFINITY)
                {
                    *champion = Best { score: so_far + score, token, start: start as u32 };
                }
            };
            let mut single = false;
            let rest = text.as_bytes().get(start..).unwrap_or_default();
            self.prefixes.of(vocabulary, rest, &mut |token, len| {
                single |= len == c.len_utf8();
                challenge(token, len, self.scores.get(token as usize).map_or(0.0, |score| f64::from(*score)));
            });
            if !single {
                challenge(self.unknown, c.len_utf8(), self.unknown_score);
            }
        }
        let begin = out.len();
        let mut at = text.len();
        while let Some(best) = best.get(at).filter(|best| (best.start as usize) < at) {
            if best.token != self.unknown || out.get(begin..).and_then(<[u32]>::last) != Some(&self.unknown) {
                out.push(best.token);
            }
            at = best.start as usize;
        }
        out.get_mut(begin..).unwrap_or_default().reverse();
        Ok(())
    }
}

impl Normalization {
    fn apply(&self, text: &str) -> Result<String> {
        let mut out = String::with_capacity(text.len() + text.len() / 2 + SPACE_MARK.len());
        let (mut in_word, mut is_first) = (false, true);
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let mut own = [0; 4];
            let (len, replacement) = match self.charsmap.as_ref().and_then(|map| map.longest(rest)) {
                Some(found) => found,
                None => (first.len_utf8(), &*first.encode_utf8(&mut own)),
            };
            for c in replacement.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.push_str(SPACE_MARK);
                    }
                    continue;
                }
                let space = if is_first { self.space_prefix } else { self.merge_spaces };
                if !in_word && space {
                    out.push_str(SPACE_MARK);
                }
                (in_word, is_first) = (true, false);
                out.push(c);
            }
            // Checked as it grows, since a file may replace a character by any text.
            if out.len() > MAX_TEXT {
                return Err(Error::TooLong { what: "the normalised text", len: out.len(), limit: MAX_TEXT });
            }
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(out)
    }
}

/// One score for each token. If the list is too short, the rest get its lowest score.
///
/// # Errors
/// A score is NaN.
pub(crate) fn score_each(vocabulary: &Vocabulary, mut scores: Vec<f32>) -> Result<Vec<f32>> {
    if let Some(at) = scores.iter().position(|score| score.is_nan()) {
        return Err(Error::Malformed {
            key: format!("{SCORES}[{at}]"),
            found: "NaN".into(),
            expected: "a number".into(),
        });
    }
    let lowest = scores.iter().copied().reduce(f32::min).unwrap_or(0.0);
    scores.resize(vocabulary.len(), lowest);
    Ok(scores)
}
