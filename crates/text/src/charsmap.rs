//! SentencePiece's precompiled normalisation, which replaces pieces of text.
//!
//! The bytes are the length of a trie as a little-endian `u32`, the trie, then the replacements,
//! each ended by a zero byte. The trie is a double array in the format of darts-clone, with a `u32`
//! for each unit:
//!
//! | bits | of a unit that is a node | of a unit that is a value |
//! |---|---|---|
//! | 0-7, 31 | label, the byte that leads here (bit 31 is 0) | bit 31 is 1 |
//! | 8 | 1 if a piece ends here: the unit at this node's offset is its value | |
//! | 9 | 1 if the offset is in units of 256 | |
//! | 10-30 | offset to the children | |
//! | 0-30 | | position of the replacement |
//!
//! The child by byte `b` of a node at `n` is at `n ^ offset ^ b`.

use crate::{Error, Result};

/// A table of replacements.
pub(crate) struct CharsMap {
    units: Vec<u32>,
    /// The replacements with their zero bytes.
    replacements: String,
}

impl CharsMap {
    /// Reads a table from the bytes of a file; `key` names them in errors.
    ///
    /// # Errors
    /// A part lies outside of the bytes, or the replacements are not UTF-8 or have no end.
    pub(crate) fn new(key: &str, bytes: &[u8]) -> Result<CharsMap> {
        let malformed = |found: String, expected: &str| Error::Malformed {
            key: key.into(),
            found,
            expected: expected.into(),
        };
        let (len, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| malformed(format!("{} bytes", bytes.len()), "at least the 4 bytes of a length"))?;
        let len = u32::from_le_bytes(*len) as usize;
        let (trie, replacements) =
            rest.split_at_checked(len).filter(|_| len > 0 && len.is_multiple_of(4)).ok_or_else(|| {
                malformed(format!("a trie of {len} bytes in {}", rest.len()), "whole units of 4 bytes")
            })?;
        let units: Vec<u32> = trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements = std::str::from_utf8(replacements)
            .map_err(|error| malformed(format!("replacements that are not UTF-8 ({error})"), "UTF-8"))?;
        if !replacements.ends_with('\0') {
            return Err(malformed("a last replacement without an end".into(), "a zero byte at the end"));
        }
        for (index, unit) in units.iter().enumerate().filter(|(_, unit)| **unit >> 31 == 1) {
            let at = (unit & 0x7FFF_FFFF) as usize;
            if !replacements.is_char_boundary(at) || at == replacements.len() {
                let found = format!("unit {index} with a replacement at byte {at} of {}", replacements.len());
                return Err(malformed(found, "the beginning of a replacement"));
            }
        }
        Ok(CharsMap { units, replacements: replacements.into() })
    }

    /// The longest piece at the start of `text`: its length in bytes, and its replacement.
    pub(crate) fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize;
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (index, byte) in text.bytes().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if byte == 0 || unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 && text.is_char_boundary(index + 1) {
                let value = self.units.get(at).filter(|unit| **unit >> 31 == 1);
                let replacement =
                    value.and_then(|unit| self.replacements.get((unit & 0x7FFF_FFFF) as usize..));
                if let Some((replacement, _)) = replacement.and_then(|text| text.split_once('\0')) {
                    found = Some((index + 1, replacement));
                }
            }
        }
        found
    }
}

/// Tables for tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The table of single-byte pieces and their replacements.
    pub(crate) fn table(pieces: &[(u8, &str)]) -> Vec<u8> {
        // The root's children are at 256 ^ byte, a child's value at its own index ^ 512.
        let mut units = vec![0u32; 1024];
        units[0] = 256 << 10;
        let mut replacements = Vec::new();
        for &(byte, text) in pieces {
            let at = 256 ^ usize::from(byte);
            units[at] = u32::from(byte) | 1 << 8 | 512 << 10;
            units[at ^ 512] = 1 << 31 | replacements.len() as u32;
            replacements.extend_from_slice(text.as_bytes());
            replacements.push(0);
        }
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(replacements);
        bytes
    }

    #[test]
    fn pieces_are_replaced() {
        let map = CharsMap::new("map", &table(&[(b'a', "bc"), (b'\t', " "), (b'x', "")])).unwrap();
        assert_eq!(map.longest("ab"), Some((1, "bc")));
        assert_eq!(map.longest("\t"), Some((1, " ")));
        assert_eq!(map.longest("xa"), Some((1, "")));
        assert_eq!(map.longest("b"), None);
        assert_eq!(map.longest("\0"), None);
        assert_eq!(map.longest("é"), None);
        assert_eq!(map.longest(""), None);
    }

    #[test]
    fn broken_tables_are_refused_and_hostile_ones_end() {
        let good = table(&[(b'a', "é")]);
        let refused = |bytes: &[u8], words: &str| {
            let error = CharsMap::new("map", bytes).err().unwrap().to_string();
            assert!(error.starts_with("map: ") && error.contains(words), "{error}");
        };
        refused(&good[..3], "3 bytes");
        refused(&[0; 8], "trie of 0 bytes");
        refused(&good[..200], "trie of 4096 bytes in 196");
        refused(&good[..good.len() - 1], "without an end");
        refused(&[&good[..], b"\xFF\0"].concat(), "not UTF-8");
        let mut outside = good.clone();
        outside[4 + 4 * (256 ^ 512 ^ 97)] = 1; // Within é.
        refused(&outside, "replacement at byte 1 of 3");
        // Other units must not panic.
        let mut state = 1u32;
        for _ in 0..200 {
            let mut units = Vec::new();
            for _ in 0..512 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                units.extend_from_slice(&(state & 0x7FFF_FFFF).to_le_bytes());
            }
            let bytes = [&2048u32.to_le_bytes()[..], &units, b"a\0"].concat();
            let map = CharsMap::new("map", &bytes).unwrap();
            for text in ["a", "ab\u{7F}\u{3FF}", "\0\0\0", "漢字漢字"] {
                assert!(map.longest(text).is_none_or(|(len, _)| len <= text.len()));
            }
        }
    }
}
