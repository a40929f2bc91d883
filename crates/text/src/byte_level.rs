//! GPT-2's byte alphabet, which writes each byte as one printable character. Bytes that print in
//! Latin-1 are that character; the 68 others are the characters from U+0100 on, in order. (Radford
//! et al. 2019, `bytes_to_unicode`.)

/// One past the highest character of the alphabet: U+0100 and the 68 bytes that do not print.
const END: usize = 0x100 + 68;

/// Returns true if a byte is written as its own character.
const fn prints(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Byte to character.
pub(crate) const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut byte = 0usize;
    let mut next = 0x100u32;
    while byte < 256 {
        chars[byte] = if prints(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    chars
};

/// Character to byte; -1 for characters outside of the alphabet.
const BYTES: [i16; END] = {
    let mut bytes = [-1i16; END];
    let mut byte = 0usize;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = byte as i16;
        byte += 1;
    }
    bytes
};

/// The byte that a character stands for; `None` outside of the alphabet.
pub(crate) fn byte(c: char) -> Option<u8> {
    BYTES.get(c as usize).and_then(|&b| u8::try_from(b).ok())
}

/// Appends the bytes of a token's text. A character outside of the alphabet, as in `[PAD1]` with an
/// ideograph, stands for its own UTF-8 bytes.
pub(crate) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match byte(c) {
            Some(b) => out.push(b),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_and_known_at_its_corners() {
        for b in 0..=255u8 {
            assert_eq!(byte(CHARS[b as usize]), Some(b));
        }
        assert_eq!(
            (CHARS[b' ' as usize], CHARS[b'\n' as usize], CHARS[0x7F], CHARS[0xAD]),
            ('Ġ', 'Ċ', 'ġ', 'Ń')
        );
        assert_eq!((byte(' '), byte('\u{144}'), byte('😀')), (None, None, None));
        let mut out = Vec::new();
        decode_into("ĠnaÃ¯ve漢", &mut out);
        assert_eq!(out, " naïve漢".as_bytes());
    }
}
