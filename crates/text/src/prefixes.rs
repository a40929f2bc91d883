//! Search for the tokens at the start of a text, for vocabularies without merges.

use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, Result};

/// Maximum number of bytes of a token. A search takes as many steps as its longest match has bytes,
/// and a file must not control the time. The longest tokens in use have about 130.
const MAX_TOKEN: usize = 4096;

/// Comparison of tokens with text.
#[derive(Clone, Copy)]
pub(crate) enum By {
    /// The tokens' text in the file, in which U+2581 is a space.
    Text,
    /// The bytes of the tokens.
    Bytes,
}

/// Ids of tokens, sorted by their spelling.
pub(crate) struct Prefixes {
    ids: Vec<u32>, // (number of tokens of the selected kinds)
    by: By,
}

impl Prefixes {
    /// Indexes all tokens of the selected kinds that are not empty. Of equal tokens the first is
    /// used; of tokens with different texts and equal bytes, the highest id.
    ///
    /// # Errors
    /// A token is longer than 4,096 bytes.
    pub(crate) fn new(
        key: &str,
        vocabulary: &Vocabulary,
        by: By,
        takes_part: fn(Kind) -> bool,
    ) -> Result<Prefixes> {
        let spelled = |id: u32| spelled(vocabulary, by, id);
        let is_first = |id: u32| {
            let text = vocabulary.text(id);
            vocabulary.n_repeated() == 0 || text.is_empty() || vocabulary.id_of(text, takes_part) == Some(id)
        };
        let mut ids: Vec<u32> = vocabulary
            .kinds()
            .filter(|&(id, kind)| takes_part(kind) && !spelled(id).is_empty() && is_first(id))
            .map(|(id, _)| id)
            .collect();
        if let Some(&id) = ids.iter().find(|&&id| spelled(id).len() > MAX_TOKEN) {
            return Err(Error::Malformed {
                key: format!("{key}[{id}]"),
                found: format!("a token of {} bytes", spelled(id).len()),
                expected: format!("at most {MAX_TOKEN}"),
            });
        }
        ids.sort_unstable_by(|&a, &b| spelled(a).cmp(spelled(b)).then(b.cmp(&a)));
        ids.dedup_by(|later, first| spelled(*later) == spelled(*first));
        Ok(Prefixes { ids, by })
    }

    /// Passes on each token at the start of `text`, shortest first, with its length in bytes.
    pub(crate) fn of(&self, vocabulary: &Vocabulary, text: &[u8], found: &mut dyn FnMut(u32, usize)) {
        // Tokens that match the text so far: a range of `ids`, narrowed byte by byte.
        let mut range = self.ids.as_slice();
        for (at, byte) in text.iter().enumerate() {
            let next = |id: &u32| spelled(vocabulary, self.by, *id).get(at).copied();
            let start = range.partition_point(|id| next(id) < Some(*byte));
            let rest = range.get(start..).unwrap_or_default();
            let end = rest.partition_point(|id| next(id) == Some(*byte));
            range = rest.get(..end).unwrap_or_default();
            let Some(&first) = range.first() else { return };
            // The shortest token comes first, and only one has this length.
            if spelled(vocabulary, self.by, first).len() == at + 1 {
                found(first, at + 1);
            }
        }
    }
}

fn spelled(vocabulary: &Vocabulary, by: By, id: u32) -> &[u8] {
    match by {
        By::Text => vocabulary.text_bytes(id),
        By::Bytes => vocabulary.bytes(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Spelling, string_array};

    fn vocabulary(tokens: &[&str], kinds: Vec<Kind>) -> Vocabulary {
        let tokens = string_array(tokens.iter().copied()).unwrap();
        Vocabulary::new("tokens", tokens, kinds, Spelling::Plain).unwrap()
    }

    #[test]
    fn all_tokens_that_begin_a_text_are_found_shortest_first() {
        let tokens = ["b", "ab", "a", "abcd", "abce", "", "é", "ac"];
        let mut kinds = vec![Kind::Normal; tokens.len()];
        kinds[7] = Kind::Control;
        let vocabulary = vocabulary(&tokens, kinds);
        let prefixes = Prefixes::new("tokens", &vocabulary, By::Text, |kind| kind != Kind::Control).unwrap();
        let of = |text: &str| {
            let mut out = Vec::new();
            prefixes.of(&vocabulary, text.as_bytes(), &mut |id, len| out.push((id, len)));
            out
        };
        assert_eq!(of("abcex"), [(2, 1), (1, 2), (4, 4)]);
        assert_eq!(of("ac"), [(2, 1)]);
        assert_eq!(of("éa"), [(6, 2)]);
        assert_eq!(of(""), []);
        assert_eq!(of("x"), []);
    }

    #[test]
    fn the_first_of_equal_selected_tokens_is_found() {
        let mut kinds = vec![Kind::Normal; 5];
        kinds[0] = Kind::Control;
        let vocabulary = vocabulary(&["ab", "a", "ab", "a", "ab"], kinds);
        let prefixes = Prefixes::new("tokens", &vocabulary, By::Bytes, |kind| kind != Kind::Control).unwrap();
        let mut out = Vec::new();
        prefixes.of(&vocabulary, b"abc", &mut |id, len| out.push((id, len)));
        assert_eq!(out, [(1, 1), (2, 2)]);
    }

    #[test]
    fn a_token_that_would_take_forever_is_refused() {
        let long = "a".repeat(5000);
        let vocabulary = vocabulary(&["a", &long], vec![Kind::Normal; 2]);
        let error = Prefixes::new("tokens", &vocabulary, By::Text, |_| true).err().unwrap().to_string();
        assert!(error.contains("tokens[1]") && error.contains("5000"), "{error}");
    }
}
