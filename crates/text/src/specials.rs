//! Finding special tokens in text: the leftmost first, and of those that begin at one place the longest.

use crate::vocabulary::{Kind, Vocabulary};

/// Whether the text of a control token becomes that token or stays plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// `<|im_start|>` becomes the token: for prompts made by a template that is trusted.
    Parse,
    /// `<|im_start|>` is twelve characters: for text that a stranger wrote.
    Literal,
}

/// Where a special token may begin, and how long it may then be.
pub(crate) struct SpecialIndex {
    /// Lengths in bytes of the special tokens that begin with a byte, longest first, each once.
    lengths: Vec<Vec<u32>>, // (256)
    /// Tokens that swallow the spaces before them, ascending.
    strips_left: Vec<u32>,
    /// Tokens that swallow the spaces after them, ascending.
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
    /// Of all control, user-defined and unknown tokens.
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

    /// Split a text at its special tokens. User-defined tokens are tokens in either mode.
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

/// A space as C's `isspace` knows them.
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
    fn the_leftmost_longest_is_taken_and_control_tokens_only_if_asked() {
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
