//! DRY ("don't repeat yourself", text-generation-webui issue 5637). A token that would continue a
//! repetition of earlier text loses `multiplier * base^(length - allowed_length)`, where `length`
//! is that of the repeated text before it. A repetition does not extend over a breaker, and a
//! breaker itself loses nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};

use text::{Specials, Stops, Tokenizer};

use super::params::Dry;

/// Largest penalty: more has the same effect, and this one stays finite.
const MOST: f32 = 1e30;

/// Most breakers.
pub const MAX_DRY_BREAKERS: usize = 64;
/// Maximum number of bytes of a breaker.
pub const MAX_DRY_BREAKER: usize = 64;

/// Texts over which no repetition extends. A breaker that is part of a token's text is matched in
/// single tokens only. Clones share the result of [`Self::prepare`].
#[derive(Clone)]
pub struct DryBreakers(Arc<Prepared>);

struct Prepared {
    texts: Vec<String>,
    found: OnceLock<Breakers>,
}

impl DryBreakers {
    /// The texts.
    pub fn texts(&self) -> &[String] {
        &self.0.texts
    }

    /// Find the breakers in a vocabulary, unless that is done. It reads the whole vocabulary, so
    /// servers call it before they add a request; otherwise the engine does. Clones serve one
    /// vocabulary, the first.
    pub fn prepare(&self, tokenizer: &Tokenizer) {
        self.found(Some(tokenizer));
    }

    fn found(&self, tokenizer: Option<&Tokenizer>) -> &Breakers {
        let find = || tokenizer.map(|tokenizer| Breakers::new(&self.0.texts, tokenizer));
        self.0.found.get_or_init(|| find().unwrap_or_default())
    }
}

impl From<Vec<String>> for DryBreakers {
    fn from(texts: Vec<String>) -> DryBreakers {
        DryBreakers(Arc::new(Prepared { texts, found: OnceLock::new() }))
    }
}

impl Default for DryBreakers {
    fn default() -> DryBreakers {
        DryBreakers::from(["\n", ":", "\"", "*"].map(str::to_owned).to_vec())
    }
}

impl PartialEq for DryBreakers {
    fn eq(&self, other: &DryBreakers) -> bool {
        self.texts() == other.texts()
    }
}

impl fmt::Debug for DryBreakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts().fmt(f)
    }
}

/// DRY with its breakers as tokens.
#[derive(Clone, Debug)]
pub(crate) struct DryPenalty {
    dry: Dry,
}

#[derive(Debug, Default)]
struct Breakers {
    /// One bit for each token of the vocabulary: 1 if its text contains a breaker.
    tokens: Vec<u64>,
    /// Token sequences of the breakers that are in no token's text.
    sequences: Vec<Vec<u32>>,
    /// One bit for each token of the vocabulary: 1 if one of `sequences` ends with it.
    last: Vec<u64>,
}

impl Breakers {
    fn new(texts: &[String], tokenizer: &Tokenizer) -> Breakers {
        let bits = vec![0; tokenizer.n_tokens().div_ceil(64)];
        let mut breakers = Breakers { last: bits.clone(), tokens: bits, sequences: Vec::new() };
        // Breakers too large for an automaton are too large for any token.
        let Ok(stops) = Stops::new(texts) else { return breakers };
        let mut is_in_a_token = vec![false; texts.len()];
        for id in 0..tokenizer.n_tokens() {
            stops.within(tokenizer.token_bytes(id as u32), &mut |index| {
                is_in_a_token[index] = true;
                breakers.tokens[id / 64] |= 1 << (id % 64);
            });
        }
        for (text, _) in texts.iter().zip(is_in_a_token).filter(|(text, is_in)| !text.is_empty() && !is_in) {
            if let Ok(sequence) = tokenizer.encode(text, Specials::Literal)
                && let Some(last) = sequence.last()
            {
                breakers.last[*last as usize / 64] |= 1 << (last % 64);
                breakers.sequences.push(sequence);
            }
        }
        breakers
    }

    fn is_one(&self, token: u32) -> bool {
        has_bit(&self.tokens, token)
    }

    /// Number of the last tokens that follow the last breaker.
    fn n_after(&self, tokens: &Reversed<'_>) -> usize {
        let ends_here = |i: usize| {
            let spells = |sequence: &Vec<u32>| {
                (0..sequence.len()).all(|k| tokens.get(i + k) == Some(sequence[sequence.len() - 1 - k]))
            };
            tokens.get(i).is_some_and(|token| {
                self.is_one(token) || (has_bit(&self.last, token) && self.sequences.iter().any(spells))
            })
        };
        (0..tokens.len()).find(|&i| ends_here(i)).unwrap_or(tokens.len())
    }
}

fn has_bit(words: &[u64], token: u32) -> bool {
    words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
}

/// Known tokens and then draft tokens, read backwards.
struct Reversed<'a> {
    tokens: &'a [u32],
    draft: &'a [u32],
}

impl Reversed<'_> {
    fn len(&self) -> usize {
        self.tokens.len() + self.draft.len()
    }

    fn get(&self, i: usize) -> Option<u32> {
        let n_draft = self.draft.len();
        match i < n_draft {
            true => self.draft.get(n_draft - 1 - i),
            false => (self.tokens.len() + n_draft).checked_sub(i + 1).and_then(|at| self.tokens.get(at)),
        }
        .copied()
    }
}

/// Buffers of [`DryPenalty::apply`], reused for every output.
#[derive(Debug, Default)]
pub(crate) struct DryBuffers {
    /// `(n)` for each place the number of tokens before it that equal those at the end.
    lengths: Vec<u32>,
    /// Tokens that would continue a repetition, and its length so far.
    found: Vec<(u32, u32)>,
}

impl DryBuffers {
    /// Reserve room for a window of `n` tokens.
    pub(crate) fn reserve(&mut self, n: usize) {
        self.lengths.reserve(n.saturating_sub(self.lengths.len()));
        self.found.reserve(n.saturating_sub(self.found.len()));
    }
}

impl DryPenalty {
    pub(crate) fn new(dry: &Dry, tokenizer: Option<&Tokenizer>) -> DryPenalty {
        dry.breakers.found(tokenizer);
        DryPenalty { dry: dry.clone() }
    }

    /// Number of last tokens in which repetitions are searched; 0: all.
    pub(crate) fn window(&self) -> usize {
        self.dry.window
    }

    /// Append the penalties of tokens after `tokens` and `draft`.
    pub(crate) fn apply(
        &self,
        tokens: &[u32],
        draft: &[u32],
        buffers: &mut DryBuffers,
        biases: &mut Vec<(u32, f32)>,
    ) {
        let last = |len: usize, most: usize| len - len.min(most);
        let window = if self.dry.window == 0 { usize::MAX } else { self.dry.window };
        let draft = &draft[last(draft.len(), window)..];
        let text = Reversed { tokens: &tokens[last(tokens.len(), window - draft.len())..], draft };
        let n = text.len();
        let allowed = self.dry.allowed_length;
        let breakers = self.dry.breakers.found(None);
        let longest = breakers.n_after(&text);
        if n < 2 || longest < allowed {
            return;
        }
        buffers.found.clear();
        matches(&text, &mut buffers.lengths);
        for i in 1..n {
            let length = (buffers.lengths[i] as usize).min(longest);
            // The token after the repeated part would continue the repetition.
            if length >= allowed.max(1)
                && let Some(next) = text.get(i - 1)
                && !breakers.is_one(next)
            {
                buffers.found.push((next, length as u32));
            }
        }
        // Keep the longest repetition of each token.
        buffers.found.sort_unstable_by_key(|&(token, length)| (token, std::cmp::Reverse(length)));
        buffers.found.dedup_by_key(|(token, _)| *token);
        let loss = |length: u32| {
            let exponent = (length as usize - allowed) as f32;
            (self.dry.multiplier * self.dry.base.powf(exponent)).min(MOST)
        };
        biases.extend(buffers.found.iter().map(|&(token, length)| (token, -loss(length))));
    }
}

/// The Z-function (Gusfield 1997): for each place the number of tokens from there on that equal
/// those at the beginning.
fn matches(text: &Reversed<'_>, lengths: &mut Vec<u32>) {
    let n = text.len();
    lengths.clear();
    lengths.resize(n, 0);
    let (mut start, mut end) = (0, 0);
    for i in 1..n {
        let mut length = if i < end { (lengths[i - start] as usize).min(end - i) } else { 0 };
        while i + length < n && text.get(length) == text.get(i + length) {
            length += 1;
        }
        lengths[i] = length as u32;
        if i + length > end {
            (start, end) = (i, i + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(dry: &Dry, breakers: Breakers, tokens: &[u32], draft: &[u32]) -> Vec<(u32, f32)> {
        let shared = DryBreakers::from(Vec::new());
        assert!(shared.0.found.set(breakers).is_ok());
        let penalty = DryPenalty { dry: Dry { breakers: shared, ..dry.clone() } };
        let (mut buffers, mut biases) = (DryBuffers::default(), vec![]);
        penalty.apply(tokens, draft, &mut buffers, &mut biases);
        biases
    }

    /// The definition, computed slowly: every earlier place, as far back as the tokens are the
    /// same.
    fn slowly(dry: &Dry, breakers: &Breakers, text: &[u32]) -> Vec<(u32, f32)> {
        let text = if dry.window == 0 { text } else { &text[text.len().saturating_sub(dry.window)..] };
        let mut longest = std::collections::BTreeMap::new();
        for at in 1..text.len() {
            let same = |k: &usize| {
                let (a, b) = (text[at - 1 - k], text[text.len() - 1 - k]);
                a == b && !breakers.is_one(a)
            };
            let length = (0..at).take_while(same).count();
            if length >= dry.allowed_length.max(1) && !breakers.is_one(text[at]) {
                let best = longest.entry(text[at]).or_insert(0);
                *best = length.max(*best);
            }
        }
        let loss = |length: usize| dry.multiplier * dry.base.powi((length - dry.allowed_length) as i32);
        longest.into_iter().map(|(token, length)| (token, -loss(length))).collect()
    }

    #[test]
    fn what_would_repeat_loses_more_the_longer_it_is() {
        let dry = Dry { multiplier: 2.0, base: 3.0, allowed_length: 2, ..Dry::default() };
        // "1 2 3 4 … 1 2 3" would continue with 4: three tokens repeat, one more than allowed.
        let text = [1, 2, 3, 4, 9, 1, 2, 3];
        assert_eq!(losses(&dry, Breakers::default(), &text, &[]), [(4, -6.0)]);
        assert_eq!(losses(&dry, Breakers::default(), &text[..6], &text[6..]), [(4, -6.0)]);
        // With a breaker before the 3, only the 3 repeats, which is allowed.
        let breaks = |token: u32| Breakers { tokens: vec![1 << token], ..Breakers::default() };
        assert_eq!(losses(&dry, breaks(2), &text, &[]), []);
        // The next token is a breaker.
        assert_eq!(losses(&dry, breaks(4), &text, &[]), []);
        let spelled = Breakers { sequences: vec![vec![1, 2]], last: vec![1 << 2], ..Breakers::default() };
        assert_eq!(losses(&dry, spelled, &text, &[]), []);
    }

    #[test]
    fn it_is_as_the_definition_says() {
        let mut rng = super::super::Rng::new(5);
        for _ in 0..2000 {
            let mut below = |n: u64| rng.next_u64() % n;
            let text: Vec<u32> = (0..below(60)).map(|_| below(4) as u32).collect();
            let dry = Dry {
                multiplier: 1.0,
                base: 1.5,
                allowed_length: below(4) as usize,
                window: below(3) as usize * 15,
                ..Dry::default()
            };
            let breakers = || Breakers { tokens: vec![1 << 3], ..Breakers::default() };
            let n_draft = below(4).min(text.len() as u64) as usize;
            let (known, draft) = text.split_at(text.len() - n_draft);
            let found = losses(&dry, breakers(), known, draft);
            let expected = slowly(&dry, &breakers(), &text);
            assert_eq!(found.len(), expected.len(), "{text:?} {dry:?}: {found:?}, expected {expected:?}");
            for (a, b) in found.iter().zip(&expected) {
                assert!(a.0 == b.0 && (a.1 - b.1).abs() <= 1e-4 * b.1.abs(), "{a:?}, expected {b:?}");
            }
        }
    }
}
