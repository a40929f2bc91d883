//! Merging of neighbours, best first: the loop that byte-level BPE and SentencePiece BPE share.
//!
//! A word is a chain of symbols. Every pair of neighbours that may merge is in a heap. The best
//! pair is popped, its two symbols become one, and the new symbol's pairs are pushed. A pair that
//! became stale by another merge is detected when it is popped. The n symbols make at most 3n
//! pairs, so the time is O(n log n), even for a hostile text without spaces.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// No token: the symbol's text is not in the vocabulary.
pub(crate) const NO_TOKEN: u32 = u32::MAX;
/// No symbol: the end of the chain.
const NONE: u32 = u32::MAX;

/// A symbol of the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// Byte offset in the word.
    pub(crate) start: u32,
    /// Length in bytes; 0 once it was merged into its left neighbour.
    pub(crate) len: u32,
    /// The symbol's token, or [`NO_TOKEN`].
    pub(crate) id: u32,
    prev: u32,
    next: u32,
}

/// The result of merging two neighbours.
pub(crate) struct Merged {
    /// Lower ranks merge first; equal ranks merge from left to right.
    pub(crate) rank: u32,
    /// The token of both together, or [`NO_TOKEN`].
    pub(crate) id: u32,
}

/// A pair that may be merged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both symbols when the pair was pushed; another length now means that the pair is
    /// stale.
    len: u32,
    id: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        // The heap pops its greatest element, which must have the lowest rank, then the leftmost
        // position.
        (other.rank, other.left).cmp(&(self.rank, self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The chain and the heap. They are reused for every word, so that a text needs only a few
/// allocations.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Pair>,
}

impl Merger {
    /// Starts a new word.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len > 0` bytes at byte `start` of the word.
    pub(crate) fn push(&mut self, start: usize, len: usize, id: u32) {
        let at = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        let prev = at.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start: start as u32, len: len as u32, id, prev, next: NONE });
    }

    /// Merges until no pair may be merged, and passes the remaining symbols on in order. `merged`
    /// returns the result of two neighbours, if they may merge.
    pub(crate) fn merge(
        &mut self,
        merged: impl Fn(&Symbol, &Symbol) -> Option<Merged>,
    ) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, &merged);
        }
        while let Some(pair) = self.heap.pop() {
            let (Some(&left), Some(&right)) =
                (self.symbols.get(pair.left as usize), self.symbols.get(pair.right as usize))
            else {
                continue;
            };
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue; // Another merge used one of the two meanwhile.
            }
            if let Some(symbol) = self.symbols.get_mut(pair.left as usize) {
                (symbol.len, symbol.id, symbol.next) = (pair.len, pair.id, right.next);
            }
            if let Some(symbol) = self.symbols.get_mut(pair.right as usize) {
                symbol.len = 0;
            }
            if let Some(symbol) = self.symbols.get_mut(right.next as usize) {
                symbol.prev = pair.left;
            }
            self.consider(left.prev, pair.left, &merged);
            self.consider(pair.left, right.next, &merged);
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    fn consider(&mut self, left: u32, right: u32, merged: &impl Fn(&Symbol, &Symbol) -> Option<Merged>) {
        let (Some(l), Some(r)) = (self.symbols.get(left as usize), self.symbols.get(right as usize)) else {
            return;
        };
        if let Some(m) = merged(l, r) {
            self.heap.push(Pair { rank: m.rank, left, right, len: l.len + r.len, id: m.id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges by the rank of the joint text in a list, and returns the pieces.
    fn pieces<'a>(word: &'a str, ranks: &[&str]) -> Vec<&'a str> {
        let mut merger = Merger::default();
        for (at, c) in word.char_indices() {
            merger.push(at, c.len_utf8(), NO_TOKEN);
        }
        let symbols = merger.merge(|l, r| {
            let text = &word[l.start as usize..(r.start + r.len) as usize];
            let rank = ranks.iter().position(|&t| t == text)? as u32;
            Some(Merged { rank, id: rank })
        });
        symbols.map(|s| &word[s.start as usize..(s.start + s.len) as usize]).collect()
    }

    #[test]
    fn the_best_pair_goes_first_and_ties_go_left() {
        assert_eq!(pieces("abc", &["bc", "ab", "abc"]), ["abc"]);
        assert_eq!(pieces("abcd", &["bc", "ab", "cd"]), ["a", "bc", "d"]);
        assert_eq!(pieces("aaaaa", &["aa"]), ["aa", "aa", "a"]);
        assert_eq!(pieces("aaaa", &["aa", "aaa"]), ["aa", "aa"]);
        assert_eq!(pieces("", &["aa"]), [""; 0]);
        assert_eq!(pieces("ééé", &["éé", "ééé"]), ["ééé"]);
    }

    #[test]
    fn a_long_word_is_not_quadratic() {
        let word = "ab".repeat(200_000);
        // Quadratic time would be 1.6e11 steps: hours.
        assert_eq!(pieces(&word, &["ab", "abab"]).len(), 100_000);
    }
}
