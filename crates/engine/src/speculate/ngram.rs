//! Draft tokens from the text itself: those that followed the previous occurrence of the latest
//! tokens.
//!
//! "Prompt lookup decoding" (Saxena 2023): answers repeat names, quotations and code of their
//! prompt, and of themselves.

use super::{Proposer, Target};
use crate::Result;

/// Least number of tokens that must agree: two agree by chance too often for their continuation to
/// be worth a row.
const MIN_MATCH: usize = 3;

/// Longest agreement that is searched.
const MAX_MATCH: usize = 16;

/// Proposer that finds the earlier place with the longest agreement with the latest tokens, the
/// last of equals, and drafts its continuation.
///
/// It reads the tokens once, newest first (4,096 tokens: about a microsecond), and keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct NgramLookup;

impl Proposer for NgramLookup {
    fn propose(
        &mut self,
        _slot: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        _: &mut Target<'_>,
    ) -> Result<()> {
        go_on(tokens, n, draft);
        Ok(())
    }
}

/// Append at most `n` draft tokens that may follow `tokens`.
fn go_on(tokens: &[u32], n: usize, draft: &mut Vec<u32>) {
    let Some(distance) = distance_of_repeat(tokens) else { return };
    // A repetition shorter than the draft continues with the draft itself.
    for i in 0..n {
        let from = tokens.len() + i - distance;
        let guess = tokens.get(from).or_else(|| draft.get(from - tokens.len())).copied();
        draft.extend(guess);
    }
}

/// Distance from the end of `tokens` to the place with the longest agreement, the nearest of
/// equals; at least 1.
fn distance_of_repeat(tokens: &[u32]) -> Option<usize> {
    let (last, before) = tokens.split_last()?;
    let (mut longest, mut found) = (MIN_MATCH - 1, None);
    for (end, _) in before.iter().enumerate().rev().filter(|(_, token)| *token == last) {
        let agree = before[..end].iter().rev().zip(before.iter().rev()).take(MAX_MATCH - 1);
        let length = 1 + agree.take_while(|(a, b)| a == b).count();
        if length > longest {
            (longest, found) = (length, Some(before.len() - end));
            if length == MAX_MATCH {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], n: usize) -> Vec<u32> {
        let mut draft = Vec::with_capacity(n);
        go_on(tokens, n, &mut draft);
        assert!(draft.capacity() == n.max(draft.len()));
        draft
    }

    #[test]
    fn what_followed_the_longest_agreement_follows_again() {
        //                    v longest                 v nearest
        let text = [5, 1, 2, 3, 4, 70, 71, 72, 9, 2, 3, 4, 80, 81, 82, 1, 2, 3, 4];
        assert_eq!(guess(&text, 3), [70, 71, 72]);
        // Without the token before, both places agree in three tokens: the nearest wins.
        let text = [5, 1, 2, 3, 4, 70, 71, 72, 9, 2, 3, 4, 80, 81, 82, 6, 2, 3, 4];
        assert_eq!(guess(&text, 5), [80, 81, 82, 6, 2]);
        assert!(guess(&text, 0).is_empty());
    }

    #[test]
    fn a_short_repeat_goes_round() {
        assert_eq!(guess(&[9, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(guess(&[7; 5], 4), [7; 4]);
        assert_eq!(guess(&[7; 100], 4), [7; 4]);
    }

    #[test]
    fn chance_and_nothing_give_no_guess() {
        for text in [&[][..], &[1], &[1, 1], &[1, 1, 1], &[1, 2, 3, 1, 2], &[1, 2, 3, 4, 5]] {
            assert!(guess(text, 4).is_empty(), "{text:?}");
        }
    }

    /// Compares with the definition, computed slowly.
    #[test]
    fn random_texts_agree_with_the_definition() {
        let mut state = 1u32;
        for n in 0..400 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % (2 + n as u32 % 3)
            };
            let text: Vec<u32> = (0..n / 4).map(|_| next()).collect();
            let agreement = |distance: usize| {
                let pairs = (0..text.len() - distance).rev().map(|i| text[i] == text[i + distance]);
                pairs.take_while(|equal| *equal).count().min(MAX_MATCH)
            };
            let best = (1..text.len()).map(agreement).max().unwrap_or(0);
            let want = (1..text.len()).find(|&d| best >= MIN_MATCH && agreement(d) == best);
            assert_eq!(distance_of_repeat(&text), want, "{text:?}");
        }
    }
}
