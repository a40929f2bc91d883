//! GGUF: round trips, split sets, and malformed files.
#![allow(clippy::unwrap_used)]

use crate::common::{check_tensors, has_parts};
use std::path::Path;

use formats::gguf::{self, MetaValue, Writer};
use weights::{Access, Array, BlockType, Checkpoint, Map, Result, Value};

fn parse(bytes: &[u8]) -> Result<Checkpoint> {
    gguf::parse(Map::from_slice(bytes), Path::new("some/model.gguf"))
}

/// The error's message, which names the file.
fn refusal(bytes: &[u8]) -> String {
    let message = parse(bytes).expect_err("should be refused").to_string();
    assert!(message.contains("model.gguf"), "{message}");
    message
}

fn check_refusal(bytes: &[u8], parts: &[&str]) {
    has_parts(&refusal(bytes), parts);
}

/// Checks the reader's guarantees for every accepted file.
fn check_promises(checkpoint: &Checkpoint) {
    check_tensors(checkpoint);
    for (_, value) in checkpoint.metadata.iter() {
        if let Value::Array(strings @ Array::Str { spans, .. }) = value {
            assert!((0..spans.len()).all(|i| strings.str_bytes(i).is_some()));
        }
    }
}

/// A file with a value of every kind and tensors of several types and ranks.
fn small() -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in [
        ("general.architecture", MetaValue::Str("llama".into())),
        ("a.u8", MetaValue::U8(255)),
        ("a.i8", MetaValue::I8(-128)),
        ("a.u16", MetaValue::U16(65535)),
        ("a.i16", MetaValue::I16(-5)),
        ("a.u32", MetaValue::U32(u32::MAX)),
        ("a.i32", MetaValue::I32(i32::MIN)),
        ("a.u64", MetaValue::U64(u64::MAX)),
        ("a.i64", MetaValue::I64(i64::MIN)),
        ("a.f32", MetaValue::F32(1e-5)),
        ("a.f64", MetaValue::F64(0.1)),
        ("a.yes", MetaValue::Bool(true)),
        ("a.u32s", MetaValue::U32s(vec![1, u32::MAX])),
        ("a.i32s", MetaValue::I32s(vec![-1, 2, 3])),
        ("a.i64s", MetaValue::I64s(vec![i64::MAX])),
        ("a.f32s", MetaValue::F32s(vec![0.5, -1.0])),
        ("a.bools", MetaValue::Bools(vec![true, false])),
        ("a.none", MetaValue::I32s(vec![])),
        ("tokenizer.ggml.tokens", MetaValue::Strs(vec![b"<s>".into(), b"".into(), "é".into(), vec![0xff]])),
    ] {
        writer.metadata(key, value).unwrap();
    }
    let tensors = [
        ("norm", vec![3], BlockType::F32),
        ("scalar", vec![], BlockType::F16),
        ("linear", vec![5, 64], BlockType::Q4_0),
        ("experts", vec![2, 3, 256], BlockType::Q6_K),
    ];
    for (name, shape, block) in &tensors {
        writer.tensor(name, shape, *block).unwrap();
    }
    let mut body = writer.begin(Vec::new()).unwrap();
    for (i, (_, shape, block)) in tensors.iter().enumerate() {
        let n: usize = shape.iter().product();
        let n_bytes = n / block.block_len() * block.block_bytes();
        body.tensor_data(&vec![i as u8 + 1; n_bytes]).unwrap();
    }
    body.finish().unwrap()
}

/// Parts of a header, assembled by hand to make files that the writer refuses.
#[derive(Clone)]
struct Raw {
    version: u32,
    n_tensors: Option<u64>,
    n_metadata: Option<u64>,
    metadata: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

fn string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

fn entry(key: &str, type_id: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes()), &type_id.to_le_bytes()[..], value].concat()
}

fn array(item_type: u32, n: u64, items: &[u8]) -> Vec<u8> {
    [&item_type.to_le_bytes()[..], &n.to_le_bytes(), items].concat()
}

/// Adds a tensor; dimensions are innermost first, as in the file.
fn tensor(name: &str, dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    fn new() -> Raw {
        Raw { version: 3, n_tensors: None, n_metadata: None, metadata: vec![], tensors: vec![], data: 0 }
    }

    fn metadata(mut self, key: &str, type_id: u32, value: &[u8]) -> Raw {
        self.metadata.push(entry(key, type_id, value));
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Raw {
        self.tensors.push(tensor(name, dims, type_id, offset));
        self
    }

    fn data(mut self, n: usize) -> Raw {
        self.data = n;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_metadata.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        out.extend(self.metadata.concat());
        out.extend(self.tensors.concat());
        if self.data > 0 {
            out.resize(out.len().next_multiple_of(32) + self.data, 7);
        }
        out
    }
}

#[test]
fn everything_written_is_read() {
    let checkpoint = parse(&small()).unwrap();
    check_promises(&checkpoint);
    let m = &checkpoint.metadata;
    assert_eq!(checkpoint.format, "GGUF v3");
    assert_eq!(checkpoint.file_bytes, small().len() as u64);
    assert_eq!(m.str("general.architecture"), Some("llama"));
    let int = |key: &str| match m.get(key) {
        Some(Value::Int(i)) => *i,
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(["a.u8", "a.i8", "a.u16", "a.i16"].map(int), [255, -128, 65535, -5]);
    assert_eq!(["a.u32", "a.i32"].map(int), [u32::MAX.into(), i32::MIN.into()]);
    assert_eq!(["a.u64", "a.i64"].map(int), [u64::MAX.into(), i64::MIN.into()]);
    assert_eq!(m.f64("a.f32"), Some(1e-5f32.into()));
    assert_eq!(m.f64("a.f64"), Some(0.1));
    assert_eq!(m.bool("a.yes"), Some(true));
    assert!(matches!(m.array("a.u32s"), Some(Array::Int(v)) if *v == [1, u32::MAX.into()]));
    assert!(matches!(m.array("a.i32s"), Some(Array::Int(v)) if *v == [-1, 2, 3]));
    assert!(matches!(m.array("a.i64s"), Some(Array::Int(v)) if *v == [i64::MAX]));
    assert!(matches!(m.array("a.f32s"), Some(Array::Float(v)) if *v == [0.5, -1.0]));
    assert!(matches!(m.array("a.bools"), Some(Array::Bool(v)) if *v == [true, false]));
    assert!(m.array("a.none").unwrap().is_empty());
    let tokens = m.array("tokenizer.ggml.tokens").unwrap();
    let tokens: Vec<&[u8]> = (0..tokens.len()).map(|i| tokens.str_bytes(i).unwrap()).collect();
    assert_eq!(tokens, [&b"<s>"[..], b"", "é".as_bytes(), &[0xff]]);

    let shapes: Vec<_> = checkpoint.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    assert_eq!(
        shapes,
        [("norm", &[3][..]), ("scalar", &[]), ("linear", &[5, 64]), ("experts", &[2, 3, 256])]
    );
    for (i, tensor) in checkpoint.tensors.iter().enumerate() {
        assert!(tensor.data.iter().all(|&b| b == i as u8 + 1), "{}", tensor.name);
    }
}

/// Reading and writing again keeps the content: the second file reads like the first.
#[test]
fn a_file_survives_rewriting() {
    let first = parse(&small()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in first.metadata.iter() {
        writer.value(key, value).unwrap();
    }
    for tensor in &first.tensors {
        writer.tensor(&tensor.name, &tensor.shape, tensor.block).unwrap();
    }
    let mut body = writer.begin(Vec::new()).unwrap();
    for tensor in &first.tensors {
        body.tensor_data(&tensor.data).unwrap();
    }
    let second = parse(&body.finish().unwrap()).unwrap();
    assert_eq!(first.metadata.len(), second.metadata.len());
    for ((key, a), (key_b, b)) in first.metadata.iter().zip(second.metadata.iter()) {
        let text = |v: &Value| match v {
            Value::Array(array @ Array::Str { .. }) => {
                format!("{:?}", (0..array.len()).map(|i| array.str_bytes(i)).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        };
        assert_eq!((key, text(a)), (key_b, text(b)));
    }
    for (a, b) in first.tensors.iter().zip(&second.tensors) {
        assert_eq!((&a.name, &a.shape, a.block, &*a.data), (&b.name, &b.shape, b.block, &*b.data));
    }
}

#[test]
fn the_alignment_is_obeyed() {
    for alignment in [8u32, 256] {
        let mut writer = Writer::new();
        writer.metadata("general.alignment", MetaValue::U32(alignment)).unwrap();
        for name in ["a", "b"] {
            writer.tensor(name, &[3], BlockType::F32).unwrap();
        }
        let mut body = writer.begin(Vec::new()).unwrap();
        body.tensor_data(&[1; 12]).unwrap();
        body.tensor_data(&[2; 12]).unwrap();
        let bytes = body.finish().unwrap();
        assert!(bytes.len().is_multiple_of(alignment as usize));
        let checkpoint = parse(&bytes).unwrap();
        assert_eq!(*checkpoint.tensors[1].data, [2; 12]);
    }
    for bad in [0u32, 1, 4, 24, 33] {
        let raw = Raw::new().metadata("general.alignment", 4, &bad.to_le_bytes());
        match bad.is_power_of_two() {
            // Types that are read but not written.
            true => {
                assert!(parse(&raw.tensor("w", &[4], 0, 0).tensor("v", &[1], 0, 16).data(20).bytes()).is_ok())
            }
            false => {
                check_refusal(&raw.bytes(), &["general.alignment", &bad.to_string(), "power of two"]);
            }
        }
        assert!(Writer::new().metadata("general.alignment", MetaValue::U32(bad)).is_err());
    }
    check_refusal(
        &Raw::new().metadata("general.alignment", 6, &8f32.to_le_bytes()).bytes(),
        &["general.alignment"],
    );
}

#[test]
fn version_2_reads_and_others_say_why_not() {
    let mut raw = Raw::new().tensor("w", &[4], 0, 0).data(16);
    raw.version = 2;
    assert_eq!(parse(&raw.bytes()).unwrap().format, "GGUF v2");
    for (version, part) in [(1, "version 1"), (4, "4"), (0, "0"), (3u32.swap_bytes(), "big-endian")] {
        raw.version = version;
        check_refusal(&raw.bytes(), &["version", part]);
    }
    check_refusal(b"GGML\x03\0\0\0", &["magic", "GGML", "GGUF"]);
    check_refusal(b"", &["magic"]);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small();
    // The last bytes are padding, which a file may lack.
    let last_data = bytes.iter().rposition(|&b| b == 4).unwrap() + 1;
    for n in 0..last_data {
        refusal(&bytes[..n]);
    }
    parse(&bytes[..last_data]).unwrap();
}

#[test]
fn counts_and_lengths_are_held_against_the_file() {
    let base = Raw::new().metadata("k", 4, &[0; 4]).tensor("w", &[4], 0, 0).data(16);
    for n in [3, u32::MAX as u64, 1 << 40, u64::MAX / 24, u64::MAX] {
        check_refusal(&Raw { n_tensors: Some(n), ..base.clone() }.bytes(), &[]);
        check_refusal(&Raw { n_metadata: Some(n), ..base.clone() }.bytes(), &[]);
        let with = |type_id: u32, value: &[u8]| Raw::new().metadata("the.key", type_id, value).bytes();
        for item in [0, 4, 8, 12] {
            check_refusal(&with(9, &array(item, n, &[0; 2])), &["the.key", &n.to_string()]);
        }
        check_refusal(&with(8, &n.to_le_bytes()), &["the.key", &n.to_string()]);
        check_refusal(&with(9, &array(8, 1, &n.to_le_bytes())), &["the.key", "string 0"]);
    }
}

#[test]
fn bad_metadata_is_named() {
    let with = |type_id: u32, value: &[u8]| Raw::new().metadata("the.key", type_id, value).bytes();
    check_refusal(&with(13, &[0; 8]), &["the.key", "value type 13"]);
    let deep = (0..9).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    check_refusal(&with(9, &deep), &["the.key", "arrays 9 deep"]);
    check_refusal(&with(9, &array(9, 2, &array(4, 1, &[1, 0, 0, 0]))), &["the.key"]);
    check_refusal(&with(9, &array(99, 0, &[])), &["the.key", "value type 99"]);
    check_refusal(&with(9, &array(10, 1, &u64::MAX.to_le_bytes())), &["the.key", "2^63"]);
    let twice = Raw::new().metadata("the.key", 0, &[1]).metadata("the.key", 0, &[1]);
    check_refusal(&twice.bytes(), &["the.key", "second time"]);
    let long = "k".repeat(65536);
    check_refusal(&Raw::new().metadata(&long, 0, &[1]).bytes(), &["key 0", "65536", "65535"]);
}

#[test]
fn what_no_model_needs_may_be_odd() {
    let words = array(8, 2, &[string(b"x"), string(b"yz")].concat());
    let nested = array(9, 3, &[array(4, 1, &[1, 0, 0, 0]), words, array(9, 1, &array(7, 1, &[1]))].concat());
    let mut raw = Raw::new()
        .metadata("nested", 9, &nested)
        .metadata("true", 7, &[2])
        .metadata("latin", 8, &string(b"Ren\xe9"))
        .metadata("truths", 9, &array(7, 3, &[0, 1, 9]))
        .metadata("none", 9, &array(9, 0, &[]));
    raw.metadata.push([string(b"k\xc3"), vec![0, 0, 0, 0, 1]].concat());
    let m = parse(&raw.bytes()).unwrap().metadata;
    assert!(matches!(m.get("nested"), Some(Value::Null)) && matches!(m.get("none"), Some(Value::Null)));
    assert_eq!(
        (m.bool("true"), m.str("latin"), m.usize("k\u{FFFD}")),
        (Some(true), Some("Ren\u{FFFD}"), Some(1))
    );
    assert!(matches!(m.array("truths"), Some(Array::Bool(v)) if *v == [false, true, true]));
}

#[test]
fn tensors_that_are_no_weights_are_left_out_and_doubles_become_singles() {
    let raw = Raw::new()
        .tensor("none", &[0], 0, 0)
        .tensor("w", &[4], 0, 0)
        .tensor("blocks", &[32, 0], 2, 32)
        .tensor("ids", &[3, 2], 27, 32)
        .tensor("bytes", &[], 24, 96)
        .tensor("doubles", &[2], 28, 128)
        .tensor("last", &[7, 0, 0], 1, 160);
    let mut bytes = raw.data(144).bytes();
    let end = bytes.len();
    bytes[end - 16..end - 8].copy_from_slice(&0.5f64.to_le_bytes());
    bytes[end - 8..].copy_from_slice(&(-1e300f64).to_le_bytes());
    let checkpoint = parse(&bytes).unwrap();
    let names: Vec<&str> = checkpoint.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["w", "doubles"]);
    assert_eq!(checkpoint.tensors[1].to_f32(), [0.5, f32::NEG_INFINITY]);
    let left_out: Vec<String> =
        checkpoint.left_out.iter().map(|t| format!("{}: {}", t.name, t.what)).collect();
    assert_eq!(
        left_out,
        [
            "none: no values (shape [0])",
            "blocks: no values (shape [0, 32])",
            "ids: values of type I64",
            "bytes: values of type I8",
            "last: no values (shape [0, 0, 7])"
        ]
    );
    // Integer tensors need space in the file like weights.
    let outside = Raw::new().tensor("ids", &[9], 27, 0).data(64).bytes();
    check_refusal(&outside, &["\"ids\"", "72 bytes"]);
    check_refusal(&Raw::new().tensor("ids", &[1 << 62], 27, 0).data(64).bytes(), &["\"ids\""]);
}

#[test]
fn bad_tensors_are_named() {
    let with = |dims: &[u64], type_id, offset| Raw::new().tensor("w", dims, type_id, offset).data(64).bytes();
    parse(&with(&[16], 0, 0)).unwrap();
    check_refusal(&with(&[1, 1, 1, 1, 1], 0, 0), &["\"w\"", "5 dimensions"]);
    check_refusal(&with(&[17], 0, 0), &["\"w\"", "68 bytes"]);
    check_refusal(&with(&[48], 2, 0), &["\"w\"", "rows of 48", "32", "Q4_0"]);
    check_refusal(&with(&[16], 0, 8), &["\"w\"", "offset 8", "alignment 32"]);
    check_refusal(&with(&[16], 0, 32), &["\"w\"", "64 bytes at offset 32"]);
    check_refusal(&with(&[16], 0, 0u64.wrapping_sub(32)), &["\"w\"", "offset"]);
    check_refusal(&with(&[16], 0, (1 << 63) - 32), &["\"w\"", "offset"]);
    for dims in [&[u64::MAX][..], &[1 << 32, 1 << 32], &[1 << 62, 4], &[32, u64::MAX / 16], &[1 << 62]] {
        check_refusal(&with(dims, 0, 0), &["\"w\""]);
        check_refusal(&with(dims, 2, 0), &["\"w\""]);
    }
    for (id, name) in [(15, "Q8_K"), (31, "Q4_0_4_4"), (9, "Q8_1")] {
        check_refusal(&with(&[256], id, 0), &["\"w\"", name, "not supported", "Q4_K"]);
    }
    check_refusal(&with(&[256], 999, 0), &["\"w\"", "type id 999"]);

    let two = |name: &str, offset| Raw::new().tensor("w", &[16], 0, 0).tensor(name, &[8], 0, offset).data(96);
    parse(&two("v", 64).bytes()).unwrap();
    check_refusal(&two("w", 64).bytes(), &["\"w\"", "second time"]);
    check_refusal(&two("v", 32).bytes(), &["\"v\"", "offset 32", "\"w\""]);
    check_refusal(&two("v", 0).bytes(), &["offset 0", "\"w\"", "\"v\""]);
    // Tensors may have any order in the file.
    let swapped = Raw::new().tensor("w", &[8], 0, 64).tensor("v", &[16], 0, 0).data(96);
    assert_eq!(parse(&swapped.bytes()).unwrap().tensors[0].name, "w");
}

/// Any damaged file is read or refused.
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
    let mut n_accepted = 0;
    // First every single byte with five values, then several bytes at once.
    let single = (0..original.len()).flat_map(|at| [0, 1, 9, 0x7f, 0xff].map(|value| vec![(at, value)]));
    let single: Vec<_> = single.collect();
    let many = (0..5000).map(|_| {
        let n = 1 + random() % 6;
        (0..n).map(|_| (random() % original.len(), random() as u8)).collect::<Vec<_>>()
    });
    for edits in single.into_iter().chain(many) {
        let mut bytes = original.clone();
        edits.iter().for_each(|&(at, value)| bytes[at] = value);
        if let Ok(checkpoint) = parse(&bytes) {
            check_promises(&checkpoint);
            n_accepted += 1;
        }
    }
    assert!(n_accepted > 1000, "{n_accepted}: edits of data bytes must pass");
}

#[test]
fn the_writer_refuses_nonsense() {
    let mut writer = Writer::new();
    writer.metadata("k", MetaValue::U8(1)).unwrap();
    assert!(writer.metadata("k", MetaValue::U8(1)).is_err());
    assert!(writer.value("null", &Value::Null).is_err());
    assert!(writer.value("huge", &Value::Int(1 << 70)).is_err());
    assert!(writer.tensor("w", &[33], BlockType::Q8_0).is_err());
    assert!(writer.tensor("w", &[0], BlockType::F32).is_err());
    assert!(writer.tensor("w", &[1; 5], BlockType::F32).is_err());
    assert!(writer.tensor("w", &[usize::MAX, 2], BlockType::F32).is_err());
    writer.tensor("w", &[2], BlockType::F32).unwrap();
    assert!(writer.tensor("w", &[2], BlockType::F32).is_err());
    let mut body = writer.begin(Vec::new()).unwrap();
    assert!(body.tensor_data(&[0; 7]).is_err());
    assert!(body.tensor_data(&[]).is_err());

    let mut writer = Writer::new();
    writer.tensor("forgotten", &[2], BlockType::F32).unwrap();
    let error = writer.begin(Vec::new()).unwrap().finish().unwrap_err().to_string();
    assert!(error.contains("forgotten"), "{error}");
}

/// One file of a set, with a tensor for each of `tensors`.
fn shard(no: u16, count: u16, total: i32, tensors: &[&str]) -> Vec<u8> {
    let mut writer = Writer::new();
    if no == 0 {
        writer.metadata("general.architecture", MetaValue::Str("llama".into())).unwrap();
    }
    writer.metadata("split.no", MetaValue::U16(no)).unwrap();
    writer.metadata("split.count", MetaValue::U16(count)).unwrap();
    writer.metadata("split.tensors.count", MetaValue::I32(total)).unwrap();
    for name in tensors {
        writer.tensor(name, &[2], BlockType::F32).unwrap();
    }
    let mut body = writer.begin(Vec::new()).unwrap();
    tensors.iter().for_each(|_| body.tensor_data(&[no as u8; 8]).unwrap());
    body.finish().unwrap()
}

#[test]
fn a_split_set_is_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("m-{i:05}-of-00003.gguf"));
    let write = |i: usize, bytes: Vec<u8>| std::fs::write(path(i), bytes).unwrap();
    write(1, shard(0, 3, 4, &["a", "b"]));
    write(2, shard(1, 3, 4, &["c"]));
    write(3, shard(2, 3, 4, &["d"]));
    // Any file of the set opens the whole set.
    for (i, access) in [(1, Access::Map), (3, Access::Read)] {
        let checkpoint = gguf::open(&path(i), access).unwrap();
        let names: Vec<&str> = checkpoint.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(*checkpoint.tensor("d").unwrap().data, [2; 8]);
        assert_eq!(checkpoint.metadata.str("general.architecture"), Some("llama"));
        assert_eq!(checkpoint.format, "GGUF v3 in 3 files");
        assert_eq!(checkpoint.tensors[0].data.is_mapped(), access == Access::Map);
        let n_bytes: u64 = (1..=3).map(|i| std::fs::metadata(path(i)).unwrap().len()).sum();
        assert_eq!(checkpoint.file_bytes, n_bytes);
    }
    let open = || gguf::open(&path(1), Access::Map).unwrap_err().to_string();
    write(3, shard(2, 3, 4, &["a"]));
    assert!(open().contains("second time") && open().contains("00003-of"), "{}", open());
    write(3, shard(1, 3, 4, &["d"]));
    assert!(open().contains("split.no"), "{}", open());
    write(3, shard(2, 4, 4, &["d"]));
    assert!(open().contains("split.count"), "{}", open());
    write(3, shard(2, 3, 4, &[]));
    assert!(open().contains("split.tensors.count"), "{}", open());
    std::fs::remove_file(path(3)).unwrap();
    assert!(open().contains("m-00003-of-00003.gguf"), "{}", open());

    let odd = dir.path().join("é.gguf");
    std::fs::write(&odd, shard(0, 3, 4, &[])).unwrap();
    let error = gguf::open(&odd, Access::Map).unwrap_err().to_string();
    assert!(error.contains("-00001-of-00003.gguf"), "{error}");
    // A count of 0 or 1 marks a whole file, whatever its name.
    for count in [0, 1] {
        std::fs::write(&odd, shard(0, count, 1, &["a"])).unwrap();
        assert_eq!(formats::open(&odd, Access::Map).unwrap().tensors.len(), 1);
    }
}
