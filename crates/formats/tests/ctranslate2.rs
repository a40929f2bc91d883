//! CTranslate2 folders: the package's own output, and malformed files.
#![allow(clippy::unwrap_used)]

use crate::common::has_parts;
use std::path::{Path, PathBuf};

use formats::ctranslate2::{self, Model};
use weights::{Access, Array, BlockType, Map, Naming, Result, Value};

fn folder(quantization: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/ctranslate2").join(quantization)
}

/// Name, shape and values of every weight, written by `make_ctranslate2.py`.
fn expected(quantization: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(folder(quantization).join("expected.bin")).unwrap();
    let mut rest = bytes.as_slice();
    let mut take = |n: usize| rest.split_off(..n).unwrap().to_vec();
    let u32s =
        |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>();
    let mut weights = Vec::new();
    let mut left = bytes.len();
    while left > 0 {
        let length = u16::from_le_bytes(take(2).try_into().unwrap()) as usize;
        let name = String::from_utf8(take(length)).unwrap();
        let rank = take(1)[0] as usize;
        let shape: Vec<usize> = u32s(take(4 * rank)).into_iter().map(|dim| dim as usize).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f32> = u32s(take(4 * n)).into_iter().map(f32::from_bits).collect();
        left -= 2 + length + 1 + 4 * rank + 4 * n;
        weights.push((name, shape, values));
    }
    weights
}

#[test]
fn weights_are_what_the_package_stored() {
    for (quantization, weight_type, other_type) in [
        ("float32", BlockType::F32, BlockType::F32),
        ("float16", BlockType::F16, BlockType::F16),
        ("int8", BlockType::I8_ROWS, BlockType::F32),
        ("int8_float16", BlockType::I8_ROWS, BlockType::F16),
        ("int16", BlockType::I16_ROWS, BlockType::F32),
    ] {
        let checkpoint = formats::open(&folder(quantization), Access::Map).unwrap();
        assert_eq!(checkpoint.naming, Naming::CTranslate2);
        assert_eq!(checkpoint.format, "CTranslate2 v6");
        let expected = expected(quantization);
        assert_eq!(checkpoint.tensors.len(), expected.len() + 1, "one alias");
        for (name, shape, values) in &expected {
            let tensor = checkpoint.tensor(name).unwrap();
            let what = format!("{quantization}, {name}");
            assert_eq!(tensor.shape, *shape, "{what}");
            assert_eq!(
                tensor.block,
                if name.ends_with("weight") { weight_type } else { other_type },
                "{what}"
            );
            assert!(tensor.data.is_mapped(), "{what}");
            assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{what}");
            for (i, (got, want)) in tensor.to_f32().iter().zip(values).enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "{what}, value {i}");
            }
        }
        let (tied, own) = ("projection/weight", "embeddings/weight");
        assert_eq!(checkpoint.tensor(tied).unwrap().to_f32(), checkpoint.tensor(own).unwrap().to_f32());
    }
}

#[test]
fn settings_and_the_vocabulary_are_metadata() {
    for quantization in ["int8", "float16"] {
        let m = formats::open(&folder(quantization), Access::Read).unwrap().metadata;
        assert_eq!(m.usize("layer_0/num_heads"), Some(6));
        assert_eq!(m.usize("layer_0/pre_norm"), Some(1));
        assert!(matches!(m.array("alignment_heads"), Some(Array::Int(v)) if *v == [1, 2, 3, 5]));
        assert!(matches!(m.array("alignment_heads.1"), Some(Array::Int(v)) if *v == [2, 5]), "config.json");
        assert!(matches!(m.array("lang_ids"), Some(Array::Int(v)) if *v == [50259, 50260]));
        assert_eq!(m.str("ctranslate2.spec"), Some("WhisperSpec"));
        assert_eq!(m.usize("ctranslate2.revision"), Some(3));
        let tokens = m.array(weights::keys::VOCABULARY).unwrap();
        let tokens: Vec<_> = (0..tokens.len()).map(|i| tokens.str_bytes(i).unwrap()).collect();
        assert_eq!(tokens, [&b"!"[..], "Ġthe".as_bytes(), b"", b"<|en|>"]);
    }
}

/// Parts of a file, assembled by hand.
#[derive(Default)]
struct Raw {
    variables: Vec<Vec<u8>>,
    aliases: Vec<Vec<u8>>,
    tail: Vec<u8>,
}

fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u16 + 1).to_le_bytes(), s.as_bytes(), &[0]].concat()
}

fn variable(name: &str, shape: &[u32], id: u8, data: &[u8]) -> Vec<u8> {
    let mut out = string(name);
    out.push(shape.len() as u8);
    shape.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.push(id);
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

impl Raw {
    fn variable(mut self, name: &str, shape: &[u32], id: u8, data: &[u8]) -> Raw {
        self.variables.push(variable(name, shape, id, data));
        self
    }

    fn alias(mut self, alias: &str, target: &str) -> Raw {
        self.aliases.push([string(alias), string(target)].concat());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = 6u32.to_le_bytes().to_vec();
        out.extend(string("TestSpec"));
        out.extend(1u32.to_le_bytes());
        out.extend((self.variables.len() as u32).to_le_bytes());
        out.extend(self.variables.concat());
        out.extend((self.aliases.len() as u32).to_le_bytes());
        out.extend(self.aliases.concat());
        out.extend(&self.tail);
        out
    }
}

fn parse(bytes: &[u8]) -> Result<Model> {
    ctranslate2::parse(Map::from_slice(bytes), Path::new("some/model.bin"))
}

fn refuse(bytes: &[u8], parts: &[&str]) {
    let message = parse(bytes).expect_err("should be refused").to_string();
    has_parts(&message, &[parts, &["model.bin"]].concat());
}

#[test]
fn odd_variables_have_their_meaning() {
    let model = parse(
        &Raw::default()
            .variable("a/weight", &[2, 3], 5, &[0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0])
            .variable("b/weight", &[2], 1, &[1, 0xff])
            // One scale tensor has another float type, and one has a single scale.
            .variable("c/weight", &[2, 2], 1, &[4, 0xfc, 2, 0])
            .variable("c/weight_scale", &[2], 4, &[0, 0x40, 0, 0x44])
            .variable("d/weight", &[0, 4], 0, &[])
            .variable("e", &[], 0, &1.5f32.to_le_bytes())
            .variable("f", &[2], 3, &[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff])
            .alias("g", "e")
            .alias("h/weight", "c/weight")
            .alias("h/weight_scale", "c/weight_scale")
            .bytes(),
    )
    .unwrap();
    let names: Vec<_> = model.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a/weight", "h/weight", "c/weight"]);
    assert_eq!(model.tensors[0].block, BlockType::BF16);
    assert_eq!(model.tensors[0].to_f32(), [1.0, 0.0, 0.0, 0.0, 0.0, -2.0]);
    assert_eq!(model.tensors[1].to_f32(), [2.0, -2.0, 0.5, 0.0]);
    let settings: Vec<_> = model.settings.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(settings, ["b/weight", "g", "e", "f"]);
    assert!(matches!(model.settings[2].1, Value::Float(1.5)));
    assert!(matches!(&model.settings[3].1, Value::Array(Array::Int(v)) if *v == [1, -2]));
}

#[test]
fn bytes_that_lie_get_errors_with_the_name() {
    let raw = Raw::default;
    refuse(&7u32.to_le_bytes(), &["binary version", "7"]);
    refuse(b"\x06\0\0", &["binary version"]);
    refuse(&raw().variable("w", &[2, 2], 9, &[0; 4]).bytes(), &["\"w\"", "type 9"]);
    refuse(&raw().variable("w", &[2, 2], 0, &[0; 15]).bytes(), &["\"w\"", "15 bytes", "16"]);
    refuse(&raw().variable("w", &[u32::MAX; 5], 0, &[]).bytes(), &["\"w\"", "addressable"]);
    refuse(
        &raw().variable("w", &[1], 1, &[0]).variable("w", &[1], 1, &[0]).bytes(),
        &["\"w\"", "second time"],
    );
    refuse(&raw().variable("w", &[2, 2], 1, &[0; 4]).bytes(), &["\"w\"", "w_scale"]);
    refuse(
        &raw().variable("w", &[2, 2], 3, &[0; 16]).variable("w_scale", &[2], 0, &[0; 8]).bytes(),
        &["\"w\"", "AWQ"],
    );
    for (shape, n) in [(vec![3], 3), (vec![0], 0), (vec![2, 2], 4)] {
        let scales = vec![0; 4 * n];
        refuse(
            &raw().variable("w", &[2, 2], 1, &[0; 4]).variable("w_scale", &shape, 0, &scales).bytes(),
            &["\"w_scale\"", "[2, 2]"],
        );
    }
    refuse(
        &raw().variable("w", &[2, 2], 1, &[0; 4]).variable("w_scale", &[2], 2, &[0; 4]).bytes(),
        &["\"w_scale\"", "integers"],
    );
    refuse(&raw().alias("a", "b").bytes(), &["alias \"a\"", "\"b\""]);
    let one = || raw().variable("w", &[1], 0, &[0; 4]);
    refuse(&one().alias("w", "w").bytes(), &["\"w\"", "second time"]);
    refuse(&one().alias("a", "w").alias("a", "w").bytes(), &["\"a\"", "second time"]);
    // Thousands of short aliases would copy a long list thousands of times.
    let list = raw().variable("list", &[2], 1, &[1, 2]).alias("a", "list");
    refuse(&list.bytes(), &["alias \"a\"", "\"list\"", "aliases of weights"]);
    refuse(&Raw { tail: vec![0; 3], ..one() }.bytes(), &["3 more bytes"]);
    // One name lacks its NUL, and one has no bytes at all.
    let mut bytes = one().bytes();
    bytes[6 + 8] = b'x';
    refuse(&bytes, &["specification", "NUL"]);
    bytes[4..6].fill(0);
    refuse(&bytes, &["specification", "NUL"]);
}

/// Every prefix is refused. With any single byte changed the file is read or refused.
#[test]
fn damaged_bytes_never_panic() {
    for quantization in ["int8", "int16", "float16"] {
        let original = std::fs::read(folder(quantization).join("model.bin")).unwrap();
        for n in 0..original.len() {
            assert!(parse(&original[..n]).is_err(), "{quantization}, {n} bytes");
        }
        let mut n_accepted = 0;
        for at in 0..original.len() {
            for value in [0, 1, 5, 0x7f, 0x80, 0xff, original[at].wrapping_add(1)] {
                let mut bytes = original.clone();
                bytes[at] = value;
                if let Ok(model) = parse(&bytes) {
                    n_accepted += 1;
                    for tensor in model.tensors {
                        assert_eq!(tensor.to_f32().len(), tensor.shape.iter().product::<usize>());
                    }
                }
            }
        }
        assert!(n_accepted > 100, "edits of data bytes must pass");
    }
}
