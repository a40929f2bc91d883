//! Repetitiveness of a text: the factor by which zlib compresses it.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Bytes of the text divided by its bytes after zlib (level 6); 0 for an empty text. Speech is
/// below 2, and a phrase that repeats without end is far above.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(text.len()), Compression::new(6));
    // Writing to a vector does not fail.
    match encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()) {
        Ok(compressed) => text.len() as f32 / compressed.len().max(1) as f32,
        Err(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_shows() {
        let speech = "And so, my fellow Americans, ask not what your country can do for you, ask what you can do for \
                      your country.";
        let ratio = compression_ratio(speech);
        // zlib itself compresses these 108 bytes to 80.
        assert!((1.30..1.40).contains(&ratio), "{ratio}");
        assert!(compression_ratio(&"Thank you. ".repeat(20)) > 2.4);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
