//! A tokenizer.json of any bytes, and a text of any bytes through what it describes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The text stands behind the last zero byte.
    let (json, text) = match data.iter().rposition(|b| *b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"Hello <s> w\xc3\xb6rld"[..]),
    };
    if let Ok(tokenizer) = text::Tokenizer::from_json(json, None) {
        let text = String::from_utf8_lossy(text);
        if let Ok(tokens) = tokenizer.encode_with_bos(&text, text::Specials::Parse) {
            let whole = tokenizer.decode(&tokens, false);
            let mut stream = text::Detokenizer::new(&tokenizer, false);
            let mut pieces = String::new();
            for token in tokens {
                pieces.push_str(stream.push(&tokenizer, token));
            }
            pieces.push_str(stream.finish());
            // A stream goes on where a text stopped, so it keeps the space that a first word brings.
            assert!(pieces == whole || pieces.strip_prefix(' ') == Some(&whole), "{pieces:?} {whole:?}");
        }
    }
});
