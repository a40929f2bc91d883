//! Backslash escapes in the files of RWKV, whose tokens are byte strings.

/// Appends the bytes of an escaped token: `\t`, `\n`, `\r`, `\xHH`, or any other character as
/// itself.
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
