//! The vocabulary beside model.bin: a JSON list, or one token a line.

use std::path::Path;

use crate::safetensors::read_json;
use weights::{Access, Array, Bytes, Error, Map, Result};

/// Reads the tokens in order, if the folder has them.
pub(super) fn read(dir: &Path, access: Access) -> Result<Option<Array>> {
    for name in ["vocabulary.json", "shared_vocabulary.json"] {
        let path = dir.join(name);
        if path.is_file() {
            return from_json(&path).map(Some);
        }
    }
    for name in ["vocabulary.txt", "shared_vocabulary.txt"] {
        let path = dir.join(name);
        if path.is_file() {
            return from_lines(&path, access).map(Some);
        }
    }
    Ok(None)
}

fn from_json(path: &Path) -> Result<Array> {
    let json = read_json(path)?;
    let tokens: Option<Vec<&str>> =
        json.as_array().and_then(|list| list.iter().map(|token| token.as_str()).collect());
    let Some(tokens) = tokens else {
        return Err(Error::malformed(path, "vocabulary", "something else", "a list of strings"));
    };
    // Offsets fit into u32, because the size of a JSON file is limited.
    let (mut text, mut spans) = (String::new(), Vec::with_capacity(tokens.len()));
    for token in tokens {
        spans.push((text.len() as u32, token.len() as u32));
        text.push_str(token);
    }
    Ok(Array::Str { bytes: Bytes::from_slice(text.as_bytes()), spans })
}

/// Reads one token a line, as views of the file. A last line without a line end counts; an empty
/// one after the last line end does not.
fn from_lines(path: &Path, access: Access) -> Result<Array> {
    let map = Map::open(path, access)?;
    if u32::try_from(map.len()).is_err() {
        return Err(Error::malformed(path, "size", format_args!("{} bytes", map.len()), "less than 4 GiB"));
    }
    let mut spans = Vec::new();
    let mut start = 0;
    while start < map.len() {
        let len = map[start..].iter().position(|&b| b == b'\n').unwrap_or(map.len() - start);
        spans.push((start as u32, len as u32));
        start += len + 1;
    }
    let n_bytes = map.len();
    let bytes = Bytes::new(map, 0..n_bytes)
        .ok_or_else(|| Error::malformed(path, "size", n_bytes, "a file whose length does not change"))?;
    Ok(Array::Str { bytes, spans })
}
