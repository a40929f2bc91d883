//! Search for special tokens in text: the leftmost first, and the longest of those at one position.

use crate::vocabulary::{Kind, Vocabulary};

/// Treatment of control tokens' texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The text `<|im_start|>` becomes the token: for prompts of a trusted template.
    Parse,
    /// The text `<|im_start|>` is twelve characters: for untrusted text.
    Literal,
}

/// Lengths of special tokens by their first byte.
pub(crate) struct SpecialIndex {
    /// Lengths in bytes of the special tokens that begin with a byte, longest first, without
    /// repeats.
    lengths: Vec<Vec<u32>>, // (256)
    /// Tokens that absorb the spaces before them, in ascending order.
    strips_left: Vec<u32>,
    /// Tokens that absorb the spaces after them, in ascending order.
    strips_right: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// Text to be encoded, never empty.
    Text(&'a str),
    /// A special token.
    Token(u32),
}

impl SpecialIndex {
    /// Indexes all control, user-defined and unknown tokens.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        mut strips_left: Vec<u32>,
        mut strips_right: Vec<u32>,
    ) -> SpecialIndex {
        strips_left.sort_unstable();
        strips_right.sort_unstable();
        let mut lengths = vec![Vec::new(); 256];
        for (id, _) in vocabulary.kinds().filter(|&(_, kind)| is_marked(kind)) {
            let text = vocabulary.text(id).as_bytes();
            if let Some(of_byte) = text.first().and_then(|&byte| lengths.get_mut(usize::from(byte))) {
                let len = text.len() as u32;
                if let Err(at) = of_byte.binary_search_by(|other: &u32| len.cmp(other)) {
                    of_byte.insert(at, len);
                }
            }
        }
        SpecialIndex { lengths, strips_left, strips_right }
    }

    /// Splits a text at its special tokens. User-defined tokens are tokens in either mode.
    pub(crate) fn split<'a>(
        &self,
        vocabulary: &Vocabulary,
        text: &'a str,
        specials: Specials,
        part: &mut dyn FnMut(Part<'a>),
    ) {
        let (mut from, mut at) = (0, 0);
        while let Some(&byte) = text.as_bytes().get(at) {
            let found = self.lengths.get(usize::from(byte)).into_iter().flatten().find_map(|&len| {
                let end = at + len as usize;
                let wanted =
                    |kind| is_marked(kind) && (specials == Specials::Parse || kind == Kind::UserDefined);
                Some((vocabulary.id_of(text.get(at..end)?, wanted)?, end))
            });
            let Some((id, mut end)) = found else {
                at += 1;
                continue;
            };
            let mut before = text.get(from..at).unwrap_or_default();
            if self.strips_left.binary_search(&id).is_ok() {
                before = before.trim_end_matches(is_c_space);
            }
            if !before.is_empty() {
                part(Part::Text(before));
            }
            part(Part::Token(id));
            if self.strips_right.binary_search(&id).is_ok() {
                let rest = text.get(end..).unwrap_or_default();
                end = text.len() - rest.trim_start_matches(is_c_space).len();
            }
            (from, at) = (end, end);
        }
        if let Some(rest) = text.get(from..).filter(|rest| !rest.is_empty()) {
            part(Part::Text(rest));
        }
    }
}

/// Returns true for white space by C's `isspace`.
fn is_c_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{0B}'
}

fn is_marked(kind: Kind) -> bool {
    matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Spelling, string_array};

    #[test]
    fn the_leftmost_longest_wins_and_control_tokens_are_optional() {
        use Kind::*;
        let tokens = ["<a>", "<a><b>", "\n", "\n\n", "x", "é>"];
        let kinds = vec![Control, Control, UserDefined, UserDefined, Normal, Control];
        let array = string_array(tokens.into_iter()).unwrap();
        let vocabulary = Vocabulary::new("tokens", array, kinds, Spelling::Plain).unwrap();
        let index = SpecialIndex::new(&vocabulary, vec![0], vec![5]);
        let split = |text: &str, specials| {
            let mut out = String::new();
            index.split(&vocabulary, text, specials, &mut |part| match part {
                Part::Text(t) => out += &format!("[{t}]"),
                Part::Token(id) => out += &id.to_string(),
            });
            out
        };
        assert_eq!(split("x<a><b>x<a>\n\n\né> \ny", Specials::Parse), "[x]1[x]0325[y]");
        assert_eq!(split("<a>\nx", Specials::Literal), "[<a>]2[x]");
        assert_eq!(split("x \u{0B}\t<a>", Specials::Parse), "[x]0");
        assert_eq!(split(" <a>", Specials::Parse), "0");
        assert_eq!(split("<aé", Specials::Parse), "[<aé]");
        assert_eq!(split("", Specials::Parse), "");
    }
}
