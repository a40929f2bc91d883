//! whisper.cpp's ggml files, written here in its converter's layout.
#![allow(clippy::unwrap_used)]

use crate::common::has_parts;
use formats::whisper_cpp;
use std::path::Path;
use weights::{Access, BlockType, Checkpoint, Map, Naming, Result};

/// A file in parts, to make malformed ones.
#[derive(Clone)]
struct Raw {
    hyperparameters: [i32; 11],
    filters: (i32, i32, Vec<f32>),
    tokens: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

fn ints(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Adds a tensor; dimensions are innermost first, as in the file.
fn tensor(name: &str, dims: &[i32], id: i32, data: &[u8]) -> Vec<u8> {
    let header = ints(&[dims.len() as i32, name.len() as i32, id]);
    [header, ints(dims), name.as_bytes().to_vec(), data.to_vec()].concat()
}

impl Raw {
    /// The hyperparameters of the tiny model, with quantised weights of version 2.
    fn new() -> Raw {
        Raw {
            hyperparameters: [51865, 1500, 384, 6, 4, 448, 384, 6, 4, 80, 2008],
            filters: (2, 3, vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
            tokens: vec![b"!".to_vec(), b" the".to_vec(), vec![], vec![0xff, 0xfe]],
            tensors: vec![
                tensor("encoder.conv1.bias", &[1, 3], 0, &[0; 12]),
                tensor("encoder.conv1.weight", &[3, 2, 4], 1, &[0x3c; 48]),
                tensor("decoder.token_embedding.weight", &[64, 2], 8, &[1; 4 * 34]),
            ],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = 0x6767_6d6cu32.to_le_bytes().to_vec();
        out.extend(ints(&self.hyperparameters));
        out.extend(ints(&[self.filters.0, self.filters.1]));
        self.filters.2.iter().for_each(|v| out.extend(v.to_le_bytes()));
        out.extend(ints(&[self.tokens.len() as i32]));
        for token in &self.tokens {
            out.extend(ints(&[token.len() as i32]));
            out.extend(token);
        }
        out.extend(self.tensors.concat());
        out
    }
}

fn parse(bytes: &[u8]) -> Result<Checkpoint> {
    whisper_cpp::parse(Map::from_slice(bytes), Path::new("ggml-tiny.bin"))
}

fn refuse(raw: &Raw, parts: &[&str]) {
    let message = parse(&raw.bytes()).expect_err("should be refused").to_string();
    has_parts(&message, &[parts, &["ggml-tiny.bin"]].concat());
}

#[test]
fn everything_has_its_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), Raw::new().bytes()).unwrap();
    let checkpoint = formats::open(file.path(), Access::Map).unwrap();
    assert_eq!(checkpoint.naming, Naming::WhisperCpp);
    let m = &checkpoint.metadata;
    assert_eq!(m.usize("n_vocab"), Some(51865));
    assert_eq!(m.usize("n_text_layer"), Some(4));
    assert_eq!(m.usize("n_mels"), Some(80));
    let tokens = m.array(weights::keys::VOCABULARY).unwrap();
    let tokens: Vec<_> = (0..tokens.len()).map(|i| tokens.str_bytes(i).unwrap()).collect();
    assert_eq!(tokens, [&b"!"[..], b" the", b"", &[0xff, 0xfe]]);

    let listed: Vec<_> =
        checkpoint.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice(), t.block)).collect();
    assert_eq!(
        listed,
        [
            (whisper_cpp::MEL_FILTERS, &[2, 3][..], BlockType::F32),
            ("encoder.conv1.bias", &[3, 1], BlockType::F32),
            ("encoder.conv1.weight", &[4, 2, 3], BlockType::F16),
            ("decoder.token_embedding.weight", &[2, 64], BlockType::Q8_0),
        ]
    );
    assert_eq!(checkpoint.tensors[0].to_f32(), Raw::new().filters.2);
    assert_eq!(checkpoint.tensors[2].to_f32()[0], 1.058_593_8);
    assert_eq!(checkpoint.tensors[3].data.len(), 4 * 34);
}

#[test]
fn bytes_that_lie_get_errors_with_the_name() {
    assert!(parse(b"GGUF").unwrap_err().to_string().contains("lmgg"));
    let with = |edit: &dyn Fn(&mut Raw)| {
        let mut raw = Raw::new();
        edit(&mut raw);
        raw
    };
    let with_tensor = |bytes: Vec<u8>| with(&|raw| raw.tensors = vec![bytes.clone()]);
    refuse(&with(&|raw| raw.hyperparameters[4] = -1), &["n_audio_layer", "-1"]);
    refuse(&with(&|raw| raw.filters.0 = 0), &["mel filters", "0"]);
    refuse(&with(&|raw| raw.filters.0 = i32::MAX), &["mel_filters", "bytes to the end"]);
    refuse(&with_tensor(tensor("w", &[1; 5], 0, &[0; 4])), &["5 dimensions"]);
    refuse(&with_tensor(tensor("w", &[0], 0, &[])), &["dimension of 0"]);
    refuse(&with_tensor(tensor("w", &[-2], 0, &[])), &["-2"]);
    refuse(&with_tensor(tensor("w", &[2], 99, &[0; 8])), &["\"w\"", "type id 99"]);
    refuse(&with_tensor(tensor("w", &[2], 26, &[0; 8])), &["\"w\"", "I32"]);
    refuse(&with_tensor(tensor("w", &[33], 8, &[0; 34])), &["\"w\"", "33", "32"]);
    refuse(&with_tensor(tensor("w", &[i32::MAX; 4], 0, &[])), &["\"w\"", "address space"]);
    refuse(&with_tensor(tensor("w", &[4], 0, &[0; 15])), &["\"w\"", "15 bytes"]);
    refuse(&with(&|raw| raw.hyperparameters[10] = 8), &["Q8_0", "version 0"]);
    let twice = tensor("w", &[1], 0, &[0; 4]);
    refuse(&with(&|raw| raw.tensors = vec![twice.clone(), twice.clone()]), &["\"w\"", "second time"]);
}

#[test]
fn damaged_bytes_never_panic() {
    let original = Raw::new().bytes();
    let mut n_accepted = 0;
    for at in 0..original.len() {
        // A file may end after any tensor, and nowhere else.
        _ = parse(&original[..at]);
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = original.clone();
            bytes[at] = value;
            if let Ok(checkpoint) = parse(&bytes) {
                n_accepted += 1;
                for tensor in checkpoint.tensors {
                    assert_eq!(tensor.to_f32().len(), tensor.shape.iter().product::<usize>());
                }
            }
        }
    }
    assert!(n_accepted > 100, "edits of data bytes must pass");
}
