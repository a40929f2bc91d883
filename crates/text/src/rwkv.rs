//! The tokenizer of RWKV's "World" models: always the longest token. Files write tokens as byte strings with
//! backslash escapes, `\n` or `\xe2`.

use crate::Result;
use crate::prefixes::{By, Prefixes};
use crate::vocabulary::{Kind, Vocabulary};

/// The encoding side of an RWKV vocabulary.
pub(crate) struct Rwkv {
    prefixes: Prefixes,
    /// What a byte becomes that no token begins with; left out if there is none.
    unknown: Option<u32>,
}

impl Rwkv {
    /// # Errors
    /// A token is too long.
    pub(crate) fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<Rwkv> {
        let prefixes = Prefixes::new("tokenizer.ggml.tokens", vocabulary, By::Bytes, |kind| match kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused | Kind::Byte => true,
            Kind::Unknown | Kind::Control => false,
        })?;
        Ok(Rwkv { prefixes, unknown })
    }

    /// Append the tokens of a text without specials in it.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let mut longest = None;
            self.prefixes.of(vocabulary, rest, &mut |id, len| longest = Some((id, len)));
            out.extend(longest.map(|(id, _)| id).or(self.unknown));
            rest = rest.get(longest.map_or(1, |(_, len)| len)..).unwrap_or_default();
        }
    }
}

/// Append the bytes of a token as the file escapes them: `\t`, `\n`, `\r`, `\xHH`, and any other character for itself.
pub(crate) fn unescape_into(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((before, escaped)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let hex = escaped.strip_prefix('x').and_then(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok());
        let mut chars = escaped.chars();
        rest = match (hex, chars.next()) {
            (Some(byte), _) => {
                out.push(byte);
                escaped.get(3..).unwrap_or_default()
            }
            (None, Some(c)) => {
                let c = match c {
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    other => other,
                };
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                chars.as_str()
            }
            (None, None) => "",
        };
    }
    out.extend_from_slice(rest.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        let bytes = |text: &str| {
            let mut out = Vec::new();
            unescape_into(text, &mut out);
            out
        };
        assert_eq!(bytes(r"a\n\t\r\\\'é\xe2\x0aZ"), b"a\n\t\r\\'\xC3\xA9\xE2\nZ");
        assert_eq!(
            (bytes(r"\"), bytes(r"\x"), bytes(r"\xg1"), bytes(r"\x1é")),
            (b"".to_vec(), b"x".to_vec(), b"xg1".to_vec(), "x1é".as_bytes().to_vec())
        );
    }
}
