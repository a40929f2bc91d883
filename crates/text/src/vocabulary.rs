//! The tokens of a vocabulary: their text in the file, their bytes and kinds, and a map from text
//! to id.

use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use std::hash::BuildHasher;
use weights::{Array, Bytes};

use crate::{Error, Result, byte_level, escapes};

/// SentencePiece's mark for a space, U+2581.
pub(crate) const SPACE_MARK: &str = "\u{2581}";
const SPACE_MARK_CHAR: char = '\u{2581}';

/// The kind of a token, as in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// A special token, which is not text: `<|im_start|>`.
    Control,
    /// Text that always becomes this one token.
    UserDefined,
    /// An unused id.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl Kind {
    /// Converts GGUF's numbers. 0 is "undefined"; it and unknown numbers count as normal.
    pub(crate) fn from_gguf(n: i64) -> Kind {
        match n {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// GGUF's number of the kind.
    pub(crate) fn to_gguf(self) -> i64 {
        match self {
            Kind::Normal => 1,
            Kind::Unknown => 2,
            Kind::Control => 3,
            Kind::UserDefined => 4,
            Kind::Unused => 5,
            Kind::Byte => 6,
        }
    }

    /// Returns true if the token's text is not written when special tokens are skipped.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

/// Conversion of a normal token's text to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's byte alphabet.
    ByteLevel,
    /// SentencePiece: U+2581 is a space, a byte token is its byte.
    SpaceMark,
    /// WordPiece in BERT's own files: `##ing` continues a word, `the` begins one.
    Hashes,
    /// Words that end in a suffix such as `</w>`, which stands for a space.
    WordEnd,
    /// RWKV: bytes with backslash escapes.
    Escaped,
    /// The text itself.
    Plain,
}

/// All tokens of a vocabulary. Texts stay in the mapped file.
///
/// Published vocabularies have some texts twice. Encoding produces the first token of a text; all
/// of them decode to it.
pub(crate) struct Vocabulary {
    /// Bytes that `texts` points into.
    text_bytes: Bytes,
    /// Offset and length of each token's text, checked to be within `text_bytes`.
    texts: Vec<(u32, u32)>, // (n_tokens)
    /// Bytes of all tokens, concatenated.
    spelled: Vec<u8>,
    /// End of each token's bytes in `spelled`.
    ends: Vec<u32>, // (n_tokens)
    kinds: Vec<Kind>, // (n_tokens)
    /// Ids by the hash of their text; the first of equal texts. The seed is random, so a file
    /// cannot choose texts that collide.
    index: HashTable<u32>,
    /// For the first token of a repeated text, the first token of each other kind, in ascending
    /// order.
    others: HashMap<u32, Vec<u32>, foldhash::fast::RandomState>,
    /// Number of tokens with the text of an earlier token.
    n_repeated: usize,
    hasher: foldhash::fast::RandomState,
    /// Bytes of the longest token.
    longest: usize,
}

impl Vocabulary {
    /// Makes a vocabulary from a file's tokens and the kind of each.
    ///
    /// # Errors
    /// `tokens` is not a list of strings, is empty, or has strings outside the file.
    pub(crate) fn new(key: &str, tokens: Array, kinds: Vec<Kind>, spelling: Spelling) -> Result<Vocabulary> {
        let Array::Str { bytes: text_bytes, spans: texts } = tokens else {
            return Err(Error::Malformed {
                key: key.into(),
                found: "a list of another kind".into(),
                expected: "a list of strings".into(),
            });
        };
        if texts.is_empty() || texts.len() > u32::MAX as usize - 1 || kinds.len() != texts.len() {
            return Err(Error::Malformed {
                key: key.into(),
                found: format!("{} tokens and {} kinds", texts.len(), kinds.len()),
                expected: "at least one token, and a kind for each".into(),
            });
        }
        let mut vocabulary = Vocabulary {
            spelled: Vec::with_capacity(
                texts.iter().map(|&(_, len)| len as usize).sum::<usize>().min(text_bytes.len()),
            ),
            ends: Vec::with_capacity(texts.len()),
            index: HashTable::with_capacity(texts.len()),
            others: HashMap::default(),
            n_repeated: 0,
            hasher: foldhash::fast::RandomState::default(),
            text_bytes,
            texts,
            kinds,
            longest: 0,
        };
        vocabulary.fill(key, spelling)?;
        Ok(vocabulary)
    }

    /// Checks and decodes every text, and indexes it.
    fn fill(&mut self, key: &str, spelling: Spelling) -> Result<()> {
        let Vocabulary {
            text_bytes,
            texts,
            spelled,
            ends,
            kinds,
            index,
            others,
            n_repeated,
            hasher,
            longest,
        } = self;
        let all: &[u8] = text_bytes;
        let text = |id: u32| -> &[u8] {
            let (at, len) = texts.get(id as usize).copied().unwrap_or_default();
            all.get(at as usize..at as usize + len as usize).unwrap_or_default()
        };
        for (id, (&(at, len), &kind)) in texts.iter().zip(kinds.iter()).enumerate() {
            let id = id as u32;
            let bytes = all.get(at as usize..at as usize + len as usize).ok_or_else(|| Error::Malformed {
                key: format!("{key}[{id}]"),
                found: format!("a string at {at} of {len} bytes in {}", all.len()),
                expected: "a string within the file".into(),
            })?;
            let start = spelled.len();
            match std::str::from_utf8(bytes) {
                Ok(token) => spell(token, kind, spelling, spelled),
                // Some files write a part of a character as it is. Encoding never produces it, and
                // it decodes to these bytes.
                Err(_) => spelled.extend_from_slice(bytes),
            }
            *longest = (*longest).max(spelled.len() - start);
            ends.push(u32::try_from(spelled.len()).map_err(|_| Error::TooLong {
                what: "the vocabulary",
                len: spelled.len(),
                limit: u32::MAX as usize,
            })?);
            if bytes.is_empty() {
                continue; // An unused id is not indexed.
            }
            match index.entry(
                hasher.hash_one(bytes),
                |&other| text(other) == bytes,
                |&id| hasher.hash_one(text(id)),
            ) {
                Entry::Occupied(first) => {
                    *n_repeated += 1;
                    let first = *first.get();
                    let others = others.entry(first).or_default();
                    let is_known = |&other: &u32| kinds.get(other as usize) == Some(&kind);
                    if !std::iter::once(&first).chain(&*others).any(is_known) {
                        others.push(id);
                    }
                }
                Entry::Vacant(place) => {
                    place.insert(id);
                }
            }
        }
        Ok(())
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The kind of a token; `Unused` for an id out of range.
    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// Ids and kinds, in ascending order.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (u32, Kind)> {
        self.kinds.iter().enumerate().map(|(id, &kind)| (id as u32, kind))
    }

    /// Changes a token's kind.
    pub(crate) fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(k) = self.kinds.get_mut(id as usize) {
            *k = kind;
        }
    }

    /// A token's text in the file; empty for an id out of range.
    pub(crate) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.text_bytes(id)).unwrap_or_default()
    }

    /// Like [`Self::text`], as bytes.
    pub(crate) fn text_bytes(&self, id: u32) -> &[u8] {
        let (at, len) = self.texts.get(id as usize).copied().unwrap_or_default();
        self.text_bytes.get(at as usize..at as usize + len as usize).unwrap_or_default()
    }

    /// The bytes that a token stands for; empty for an id out of range.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.spelled.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The first token of exactly this text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.index.find(hash, |&id| self.text_bytes(id) == text.as_bytes()).copied()
    }

    /// The first token of exactly this text and of a wanted kind.
    pub(crate) fn id_of(&self, text: &str, wanted: impl Fn(Kind) -> bool) -> Option<u32> {
        let first = self.id(text)?;
        if wanted(self.kind(first)) {
            return Some(first);
        }
        self.others.get(&first)?.iter().copied().find(|&id| wanted(self.kind(id)))
    }

    /// All tokens of exactly this text, in ascending order.
    pub(crate) fn ids<'a>(&'a self, text: &'a str) -> impl Iterator<Item = u32> + 'a {
        let first = self.id(text);
        let is_repeated = first.is_some_and(|first| self.n_repeated > 0 && (first as usize) < self.len());
        let behind = first.filter(|_| is_repeated).map_or(0..0, |first| first + 1..self.len() as u32);
        first.into_iter().chain(behind.filter(move |&id| self.text_bytes(id) == text.as_bytes()))
    }

    /// Number of tokens with the text of an earlier token.
    pub(crate) fn n_repeated(&self) -> usize {
        self.n_repeated
    }
}

/// Appends the bytes that a token stands for.
fn spell(text: &str, kind: Kind, spelling: Spelling, out: &mut Vec<u8>) {
    match (kind, spelling) {
        // Special and user-defined tokens stand for their text in every alphabet.
        (Kind::Control | Kind::Unknown | Kind::UserDefined, _) => out.extend_from_slice(text.as_bytes()),
        (Kind::Byte, _) => match byte_of(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        },
        (_, Spelling::Plain) => out.extend_from_slice(text.as_bytes()),
        (_, Spelling::ByteLevel) => byte_level::decode_into(text, out),
        (_, Spelling::Escaped) => escapes::unescape_into(text, out),
        (_, Spelling::SpaceMark) => {
            // A search for one character is far quicker than for a text.
            let mut parts = text.split(SPACE_MARK_CHAR);
            out.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
            for part in parts {
                out.push(b' ');
                out.extend_from_slice(part.as_bytes());
            }
        }
        (_, Spelling::Hashes) => match text.strip_prefix("##") {
            Some(rest) => out.extend_from_slice(rest.as_bytes()),
            None => {
                out.push(b' ');
                out.extend_from_slice(text.as_bytes());
            }
        },
        (_, Spelling::WordEnd) => match text.strip_suffix("</w>") {
            Some(word) => {
                out.extend_from_slice(word.as_bytes());
                out.push(b' ');
            }
            None => out.extend_from_slice(text.as_bytes()),
        },
    }
}

/// The byte of a token written `<0x0A>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let two_digits = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    two_digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// A list of strings in owned memory, for vocabularies that are not in a mapped file.
pub(crate) fn string_array<'a>(strings: impl Iterator<Item = &'a str>) -> Result<Array> {
    let mut bytes = Vec::new();
    let mut spans = Vec::new();
    for s in strings {
        let at = u32::try_from(bytes.len() + s.len()).map_err(|_| Error::TooLong {
            what: "the vocabulary",
            len: bytes.len() + s.len(),
            limit: u32::MAX as usize,
        })?;
        spans.push((at - s.len() as u32, s.len() as u32));
        bytes.extend_from_slice(s.as_bytes());
    }
    Ok(Array::Str { bytes: Bytes::from_slice(&bytes), spans })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str], kinds: &[Kind], spelling: Spelling) -> Result<Vocabulary> {
        Vocabulary::new("tokens", string_array(tokens.iter().copied()).unwrap(), kinds.to_vec(), spelling)
    }

    #[test]
    fn texts_bytes_and_ids_agree() {
        use Kind::*;
        let v = vocabulary(
            &["<s>", "▁the▁", "<0x0A>", "", "▁▁"],
            &[Control, Normal, Byte, Unused, UserDefined],
            Spelling::SpaceMark,
        )
        .unwrap();
        let bytes: Vec<&[u8]> = (0..6).map(|id| v.bytes(id)).collect();
        assert_eq!(bytes, [&b"<s>"[..], b" the ", b"\n", b"", "▁▁".as_bytes(), b""]);
        assert_eq!((v.id("▁the▁"), v.id(""), v.id("the")), (Some(1), None, None));
        assert_eq!((v.len(), v.longest(), v.text(2), v.text(9)), (5, 6, "<0x0A>", ""));
    }

    #[test]
    fn the_first_of_equal_tokens_is_found_and_each_has_its_text() {
        use Kind::*;
        let v = vocabulary(
            &["a", "▁b", "a", "▁b", "a", "c", "a"],
            &[Normal, Control, Control, Normal, Control, Normal, Unused],
            Spelling::SpaceMark,
        )
        .unwrap();
        assert_eq!((v.id("a"), v.id("▁b"), v.id("c"), v.n_repeated()), (Some(0), Some(1), Some(5), 4));
        assert_eq!(v.id_of("a", |kind| kind == Control), Some(2));
        assert_eq!(v.id_of("▁b", |kind| kind != Control), Some(3));
        assert_eq!(v.id_of("c", |kind| kind == Control), None);
        assert_eq!(v.ids("a").collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(v.ids("x").count(), 0);
        let bytes: Vec<&[u8]> = (0..7).map(|id| v.bytes(id)).collect();
        assert_eq!(bytes, [&b"a"[..], "▁b".as_bytes(), b"a", b" b", b"a", b"c", b"a"]);
    }

    #[test]
    fn invalid_utf8_is_kept() {
        let tokens = Array::Str { bytes: Bytes::from_slice(b"a\xF0\x9F"), spans: vec![(0, 1), (1, 2)] };
        let v = Vocabulary::new("tokens", tokens, vec![Kind::Normal; 2], Spelling::ByteLevel).unwrap();
        assert_eq!((v.bytes(1), v.text(1), v.longest()), (&b"\xF0\x9F"[..], "", 2));
    }

    #[test]
    fn errors_name_the_value() {
        assert!(vocabulary(&[], &[], Spelling::Plain).is_err());
        assert!(vocabulary(&["a"], &[], Spelling::Plain).is_err());
        let outside = Array::Str { bytes: Bytes::from_slice(b"a"), spans: vec![(0, u32::MAX)] };
        assert!(Vocabulary::new("tokens", outside, vec![Kind::Normal], Spelling::Plain).is_err());
        let numbers = Vocabulary::new("tokens", Array::Int(vec![1]), vec![Kind::Normal], Spelling::Plain);
        assert!(numbers.is_err());
    }

    #[test]
    fn byte_tokens_are_two_hex_digits() {
        assert_eq!((byte_of("<0x0A>"), byte_of("<0xff>")), (Some(10), Some(255)));
        assert_eq!((byte_of("<0x0>"), byte_of("<0x+1>"), byte_of("0x0A")), (None, None, None));
    }
}
