//! safetensors: folders, malformed files, and agreement with the format's own crate on valid files.
#![allow(clippy::unwrap_used)]

use crate::common::has_parts;
use std::path::Path;

use formats::safetensors::{open, parse_file};
use safetensors::tensor::{Dtype, TensorView};
use weights::{Access, Array, BlockType, Map, Naming, Result, Tensor};

fn parse(bytes: &[u8]) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    parse_file(Map::from_slice(bytes), Path::new("some/model.safetensors"), &mut tensors).map(|()| tensors)
}

fn check_refusal(bytes: &[u8], parts: &[&str]) {
    let message = parse(bytes).expect_err("should be refused").to_string();
    has_parts(&message, &[&["model.safetensors"], parts].concat());
}

/// A file written by the format's own crate.
fn written(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.to_string(), TensorView::new(*dtype, shape.to_vec(), data).unwrap())
    });
    let info = [("format".to_string(), "pt".to_string())].into();
    safetensors::serialize(views, Some(info)).unwrap()
}

fn small() -> Vec<u8> {
    written(&[
        ("linear", Dtype::BF16, &[2, 3], &[1; 12]),
        ("norm", Dtype::F32, &[3], &[2; 12]),
        ("ids", Dtype::I64, &[1, 2], &[3; 16]),
        ("scale", Dtype::F16, &[], &[4; 2]),
        ("empty", Dtype::F32, &[0, 7], &[]),
    ])
}

fn raw(header: &str, n_data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![5; n_data]].concat()
}

fn one(dtype: &str, shape: &str, offsets: &str, n_data: usize) -> Vec<u8> {
    raw(&format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#), n_data)
}

#[test]
fn a_written_file_is_read() {
    let mut tensors = parse(&small()).unwrap();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let all: Vec<_> =
        tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice(), t.block, t.data[0])).collect();
    assert_eq!(
        all,
        [
            ("linear", &[2, 3][..], BlockType::BF16, 1),
            ("norm", &[3], BlockType::F32, 2),
            ("scale", &[], BlockType::F16, 4),
        ]
    );
    for tensor in &tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
    }
}

#[test]
fn what_holds_no_weights_is_left_out_and_doubles_become_singles() {
    let kinds = [
        (Dtype::BOOL, "BOOL", 1),
        (Dtype::U8, "U8", 1),
        (Dtype::I8, "I8", 1),
        (Dtype::I16, "I16", 2),
        (Dtype::U16, "U16", 2),
        (Dtype::I32, "I32", 4),
        (Dtype::U32, "U32", 4),
        (Dtype::I64, "I64", 8),
        (Dtype::U64, "U64", 8),
    ];
    let doubles = [0.25f64, -3.0].map(f64::to_le_bytes).concat();
    let zeros = [0; 16];
    let mut tensors: Vec<(&str, Dtype, &[usize], &[u8])> =
        kinds.iter().map(|&(dtype, name, size)| (name, dtype, &[2][..], &zeros[..2 * size])).collect();
    tensors.push(("doubles", Dtype::F64, &[2], &doubles));
    tensors.push(("empty", Dtype::I64, &[3, 0], &[]));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), written(&tensors)).unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let checkpoint = open(dir.path(), Access::Map).unwrap();
    assert_eq!(checkpoint.tensors.len(), 1);
    assert_eq!(checkpoint.tensors[0].to_f32(), [0.25, -3.0]);
    assert_eq!(checkpoint.left_out.len(), kinds.len() + 1);
    for tensor in &checkpoint.left_out {
        let what = match tensor.name.as_str() {
            "empty" => "no values (shape [3, 0])".to_owned(),
            name => format!("values of type {name}"),
        };
        assert_eq!(tensor.what, what);
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small();
    for n in 0..bytes.len() {
        check_refusal(&bytes[..n], &[]);
    }
    check_refusal(&[&bytes[..], &[0]].concat(), &["data"]);
}

#[test]
fn bad_headers_are_named() {
    parse(&one("F32", "[2,3]", "[0,24]", 24)).unwrap();
    check_refusal(&one("F8_E4M3", "[24]", "[0,24]", 24), &["\"w\"", "F8_E4M3", "F32, F16, BF16"]);
    check_refusal(&one("F7", "[24]", "[0,24]", 24), &["\"w\"", "F7"]);
    check_refusal(&one("F32", "[2,3]", "[0,20]", 20), &["\"w\"", "20 bytes", "[2, 3]", "192 bits"]);
    check_refusal(&one("F32", "[2,3]", "[0,24]", 20), &["\"w\"", "[0, 24]", "20"]);
    check_refusal(&one("F32", "[2,3]", "[4,28]", 28), &["\"w\"", "from offset 4"]);
    check_refusal(&one("F32", "[2,3]", "[24,0]", 24), &["\"w\"", "[24, 0]"]);
    check_refusal(&one("F32", "[2,3]", "[0,24]", 32), &["32 bytes", "24"]);
    check_refusal(&one("F32", "[-2,3]", "[0,24]", 24), &["\"w\"", "-2"]);
    check_refusal(&one("F32", "[2,3]", "[0,24,48]", 24), &["w"]);
    check_refusal(&one("F32", "[2,3]", "[0,18446744073709551615]", 24), &["\"w\""]);
    check_refusal(&one("F32", "[4294967296,4294967296]", "[0,24]", 24), &["\"w\"", "addressable"]);
    check_refusal(&one("F32", "[18446744073709551616]", "[0,24]", 24), &["w"]);
    check_refusal(&one("F4", "[2305843009213693952]", "[0,24]", 24), &["\"w\""]);
    let twice = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    check_refusal(&raw(twice, 2), &["\"w\" a second time"]);
    let overlap = r#"{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
    check_refusal(&raw(overlap, 3), &["\"w\"", "from offset 1"]);
    for header in ["", "{", "[]", "null", "{}x", r#"{"w":3}"#, r#"{"w":{}}"#, r#"{"__metadata__":{"a":1}}"#] {
        check_refusal(&raw(header, 0), &["header"]);
    }
    check_refusal(&raw(&"[".repeat(100_000), 0), &["header"]);
    check_refusal(&[&9u64.to_le_bytes()[..], b"{\"\xff\":1}  "].concat(), &["header"]);
    check_refusal(&u64::MAX.to_le_bytes(), &["header length"]);
    check_refusal(&100_000_001u64.to_le_bytes(), &["header length", "100000000"]);
    assert!(parse(&raw("{}", 0)).unwrap().is_empty());
}

/// Any damaged file is read or refused, and files that the format's own crate refuses are refused.
#[test]
fn flipped_bytes_never_panic() {
    let original = small();
    let mut state = 88172645463325252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let single = (0..original.len()).flat_map(|at| [0, b'"', b'1', b'9', b'}', 0xff].map(|v| vec![(at, v)]));
    let single: Vec<_> = single.collect();
    let many = (0..5000).map(|_| {
        let n = 1 + random() % 4;
        (0..n).map(|_| (random() % original.len(), b' ' + random() as u8 % 96)).collect::<Vec<_>>()
    });
    let mut n_accepted = 0;
    for edits in single.into_iter().chain(many) {
        let mut bytes = original.clone();
        edits.iter().for_each(|&(at, value)| bytes[at] = value);
        if let Ok(tensors) = parse(&bytes) {
            n_accepted += 1;
            for tensor in tensors {
                assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
            }
            let judged = safetensors::SafeTensors::deserialize(&bytes);
            assert!(judged.is_ok(), "{:?}: {:?}", String::from_utf8_lossy(&bytes), judged.err());
        }
    }
    assert!(n_accepted > 100, "{n_accepted}: edits of data bytes must pass");
}

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

const CONFIG: (&str, &[u8]) = ("config.json", br#"{"model_type": "llama", "rope": {"theta": 10000.0}}"#);

fn refused(files: &[(&str, &[u8])], parts: &[&str]) {
    let message = open(folder(files).path(), Access::Map).unwrap_err().to_string();
    has_parts(&message, parts);
}

#[test]
fn a_folder_is_a_checkpoint() {
    let weights = small();
    let generation = br#"{"eos_token_id": [1, 106], "do_sample": true}"#;
    for name in ["model.safetensors", "other.safetensors"] {
        let hidden: (&str, &[u8]) = (".model.safetensors", b"junk");
        let dir = folder(&[CONFIG, ("generation_config.json", generation), (name, &weights), hidden]);
        for access in [Access::Map, Access::Read] {
            let checkpoint = formats::open(dir.path(), access).unwrap();
            assert_eq!(checkpoint.naming, Naming::HuggingFace);
            assert_eq!(checkpoint.tensors.len(), 3);
            assert_eq!(checkpoint.format, "safetensors");
            assert_eq!(checkpoint.file_bytes, weights.len() as u64);
            assert_eq!(checkpoint.metadata.f64("rope.theta"), Some(1e4));
            let eos = checkpoint.metadata.array("generation_config.eos_token_id");
            assert!(matches!(eos, Some(Array::Int(ids)) if *ids == [1, 106]));
            assert_eq!(checkpoint.tensors[0].data.is_mapped(), access == Access::Map);
        }
    }
}

#[test]
fn an_index_names_the_files() {
    let a = written(&[("a", Dtype::F32, &[2], &[1; 8]), ("ids", Dtype::I64, &[1], &[0; 8])]);
    let b = written(&[("b", Dtype::F16, &[2], &[2; 4])]);
    let index =
        |map: &str| format!(r#"{{"metadata": {{"total_size": 20}}, "weight_map": {map}}}"#).into_bytes();
    let good = index(r#"{"a": "x-1.safetensors", "ids": "x-1.safetensors", "b": "x-2.safetensors"}"#);
    const INDEX: &str = "model.safetensors.index.json";
    let x1 = ("x-1.safetensors", &a[..]);
    let x2 = ("x-2.safetensors", &b[..]);
    let checkpoint = open(folder(&[CONFIG, (INDEX, &good), x1, x2]).path(), Access::Map).unwrap();
    assert_eq!(checkpoint.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(checkpoint.format, "safetensors in 2 files");

    refused(&[CONFIG, (INDEX, &good), x1], &["x-2.safetensors"]);
    refused(&[CONFIG, (INDEX, &good), x1, ("x-2.safetensors", &a)], &["x-2.safetensors", "second time"]);
    let missing = index(r#"{"a": "x-1.safetensors", "b": "x-1.safetensors"}"#);
    refused(&[CONFIG, (INDEX, &missing), x1], &["\"b\"", "x-1.safetensors", "lacks"]);
    for bad in [r#""../x-1.safetensors""#, r#""/x-1.safetensors""#, r#"".x.safetensors""#, "7", "null"] {
        refused(
            &[CONFIG, (INDEX, &index(&format!(r#"{{"a": {bad}}}"#))), x1],
            &["index.json", "\"a\"", "same folder"],
        );
    }
    for bad in ["[]", "{}", "3"] {
        refused(&[CONFIG, (INDEX, &index(bad)), x1], &["index.json", "weight_map"]);
    }
    refused(&[CONFIG, (INDEX, b"{"), x1], &["index.json"]);
}

#[test]
fn a_wrong_folder_says_what_is_missing() {
    let weights = small();
    let model: (&str, &[u8]) = ("model.safetensors", &weights);
    refused(&[model], &["config.json"]);
    let files = folder(&[("m.gguf", b"GGUF"), ("a.txt", b"")]);
    let message = formats::open(files.path(), Access::Map).unwrap_err().to_string();
    has_parts(&message, &["without config.json", "\"m.gguf\" may be the model"]);
    refused(&[CONFIG], &["0 .safetensors files", "model.safetensors"]);
    refused(&[CONFIG, ("a.safetensors", &weights), ("b.safetensors", &weights)], &["2 .safetensors files"]);
    refused(&[("config.json", b"[1]"), model], &["config.json", "an object"]);
    refused(&[("config.json", b""), model], &["config.json"]);
    refused(&[("config.json", &b"{\"a\":".repeat(100_000)), model], &["config.json", "recursion"]);
    refused(&[CONFIG, ("model.safetensors", b"")], &["model.safetensors", "header length"]);
}

#[cfg(unix)]
#[test]
fn a_device_is_no_model_and_is_not_opened() {
    let error = formats::open(std::path::Path::new("/dev/zero"), weights::Access::Map).unwrap_err();
    assert!(error.to_string().contains("a pipe or a device"), "{error}");
}
