//! `.base`: what is written is read, what the published converter writes is read, and what lies is refused.
#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer as _;
use formats::base::{self, Base, PublicKey, SecretKey, WriteError, Writer, layer_order};
use formats::codec::{affine, dequantize_rows, repack};
use formats::gguf::{self, MetaValue};
use formats::{
    Access, Affine, Array, BlockType, Checkpoint, Map, Metadata, Naming, PlaneSlices, Result, ScaleType,
    Tensor, Value,
};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

fn parse(bytes: &[u8]) -> Result<Base> {
    base::parse(Map::from_slice(bytes), Path::new("some/model.base"))
}

fn refusal(bytes: &[u8]) -> String {
    let message = parse(bytes).err().expect("should be refused").to_string();
    assert!(message.contains("model.base"), "{message}");
    message
}

fn check_refusal(bytes: &[u8], parts: &[&str]) {
    let message = refusal(bytes);
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// What the reader promises of all that it accepts.
fn check_promises(checkpoint: &Checkpoint) {
    for tensor in &checkpoint.tensors {
        assert!(tensor.shape.iter().all(|&dim| dim > 0));
        assert!(tensor.n_cols().is_multiple_of(tensor.block.block_len()));
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
    }
}

/// Bytes that differ from place to place.
fn noise(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 7).wrapping_add(seed * 31) as u8).collect()
}

/// Name, shape, type; integers, scales, offsets.
type Made = (String, Vec<usize>, BlockType, [Vec<u8>; 3]);

/// A tensor of noise, with finite scales.
fn tensor(name: &str, shape: &[usize], block: BlockType) -> Made {
    let n_cols = shape.last().copied().unwrap_or(1);
    let n_rows: usize = shape.iter().rev().skip(1).product();
    let sizes = [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)];
    let mut parts = sizes.map(|n| noise(n * n_rows, name.len()));
    if let BlockType::Affine(affine) = block
        && affine.scale() != ScaleType::E8M0
    {
        // The upper byte of a float: a middling exponent.
        let size = affine.scale().bytes();
        for part in &mut parts[1..] {
            part.iter_mut().skip(size - 1).step_by(size).for_each(|b| *b = 0x3a);
        }
    }
    (name.to_owned(), shape.to_vec(), block, parts)
}

/// One tensor of every type that the format has.
fn all_types() -> Vec<Made> {
    let mut tensors = vec![
        tensor("norm", &[3], BlockType::F32),
        tensor("scalar", &[], BlockType::F16),
        tensor("embed_tokens", &[5, 7], BlockType::BF16),
    ];
    for bits in Affine::BITS {
        for group in Affine::GROUPS {
            for scale in [ScaleType::BF16, ScaleType::F16, ScaleType::E8M0] {
                for symmetric in [false, true] {
                    let affine = Affine::new(bits, group, scale, symmetric).unwrap();
                    let block = BlockType::Affine(affine);
                    tensors.push(tensor(&format!("layers.{bits}.{affine}"), &[2, 3, 2 * group], block));
                }
            }
        }
    }
    tensors
}

/// A file of these tensors.
fn write(mut writer: Writer, tensors: &[Made]) -> Vec<u8> {
    for (name, shape, block, _) in tensors {
        writer.tensor(name, shape, *block).unwrap();
    }
    let mut body = writer.begin(Cursor::new(Vec::new())).unwrap();
    for (_, _, _, [data, scales, biases]) in tensors {
        body.tensor_data(data, PlaneSlices { scales, biases }).unwrap();
    }
    body.finish().unwrap().into_inner()
}

/// A small file with a bit of everything.
fn small() -> Vec<u8> {
    let four = |symmetric| BlockType::Affine(Affine::new(4, 32, ScaleType::F16, symmetric).unwrap());
    let mut writer = Writer::new("llama", Naming::HuggingFace);
    writer.page(6);
    write(
        writer,
        &[
            tensor("a", &[2, 64], four(false)),
            tensor("b", &[3, 32], four(true)),
            tensor("c", &[3], BlockType::F32),
        ],
    )
}

/// The header's JSON, and where the weights begin.
fn header_of(file: &[u8]) -> (Json, usize) {
    let length = u64::from_le_bytes(file[8..16].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[16..16 + length]).unwrap(), (16 + length).next_multiple_of(64 << 10))
}

/// A file with this header and these weights.
fn assemble(header: &[u8], weights: &[u8]) -> Vec<u8> {
    let mut file = b"BASE".to_vec();
    file.extend(1u32.to_le_bytes());
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header);
    file.resize(file.len().next_multiple_of(64 << 10), 0);
    file.extend(weights);
    file
}

#[test]
fn every_type_is_read_as_it_was_written() {
    let tensors = all_types();
    let file = write(Writer::new("llama", Naming::Gguf), &tensors);
    let base = parse(&file).unwrap();
    let checkpoint = base.checkpoint();
    check_promises(checkpoint);
    assert_eq!(checkpoint.naming, Naming::Gguf);
    assert_eq!(checkpoint.tensors.len(), tensors.len());
    for (tensor, (name, shape, block, [data, scales, biases])) in checkpoint.tensors.iter().zip(&tensors) {
        assert_eq!((&tensor.name, &tensor.shape, tensor.block), (name, shape, *block));
        assert_eq!(&tensor.data[..], data, "{name}");
        assert_eq!(tensor.planes.scales.as_deref().unwrap_or_default(), scales, "{name}");
        assert_eq!(tensor.planes.biases.as_deref().unwrap_or_default(), biases, "{name}");
    }
    assert_eq!(base.verify_checksums().unwrap(), tensors.len());
    assert!(base.slots().is_empty() && base.signed_by().is_none());
}

#[test]
fn the_file_is_laid_out_as_the_format_says() {
    let file = write(Writer::new("llama", Naming::Gguf), &all_types());
    let (header, weights) = header_of(&file);
    assert_eq!(&file[..8], b"BASE\x01\0\0\0");
    assert!(weights.is_multiple_of(64 << 10) && file[weights - 64..weights].iter().all(|&b| b == 0));
    // Canonical: sorted keys, no white space. (This JSON library's own maps keep the order of the text.)
    let mut sorted = header.clone();
    sorted.sort_all_objects();
    let length = u64::from_le_bytes(file[8..16].try_into().unwrap()) as usize;
    assert_eq!(&file[16..16 + length], sorted.to_string().as_bytes());
    // What the published reader cannot do without.
    for key in [
        "schema",
        "arch",
        "quant_scheme",
        "min_hw",
        "created",
        "baserT_version",
        "source",
        "tokenizer",
        "config",
        "tensors",
    ] {
        assert!(header.get(key).is_some(), "{key}");
    }
    assert_eq!(header["quant_scheme"], "base_q8", "most bytes");
    for entry in header["tensors"].as_array().unwrap() {
        let number = |key: &str| entry[key].as_u64().unwrap() as usize;
        assert!((weights + number("offset")).is_multiple_of(16 << 10), "a page: {entry}");
        assert!(weights + number("offset") + number("length") <= file.len());
        if entry.get("scale_offset").is_some() {
            assert!(number("scale_offset").is_multiple_of(64), "{entry}");
            assert!(number("scale_offset") + number("scale_length") <= number("length"), "{entry}");
        }
    }
}

#[test]
fn metadata_and_texts_come_back() {
    let mut metadata = Metadata::default();
    let floats = vec![1.0, -0.1, f32::MIN_POSITIVE, f32::MAX];
    let text = b"!the\xc3\xa9";
    for (key, value) in [
        ("llama.block_count", Value::Int(u64::MAX.into())),
        ("general.neg", Value::Int(-5)),
        ("llama.eps", Value::Float(f64::from(1e-5f32))),
        ("llama.whole", Value::Float(2.0)),
        ("general.name", Value::Str("a \"b\" \u{1}".to_owned())),
        ("general.yes", Value::Bool(true)),
        ("general.null", Value::Null),
        ("tokenizer.ggml.scores", Value::Array(Array::Float(floats.clone()))),
        ("tokenizer.ggml.token_type", Value::Array(Array::Int(vec![1, -3]))),
        (
            "tokenizer.ggml.tokens",
            Value::Array(Array::Str {
                bytes: formats::Bytes::from_slice(text),
                spans: vec![(0, 1), (1, 3), (4, 0), (4, 2)],
            }),
        ),
        ("base.arch", Value::Str("left out".to_owned())),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    let mut writer = Writer::new("llama", Naming::Gguf);
    writer.metadata(&metadata).unwrap();
    writer.field("config", json!({"hidden_size": 64, "rope": {"theta": 1e4}, "general.neg": 7}));
    writer.field("tokenizer", json!({"model": {"type": "BPE"}}));
    writer.field("source", json!({"format": "gguf", "sha256": "00", "filename": "x.gguf"}));
    writer.file("chat_template.jinja", "{{ messages }}").unwrap();
    assert!(matches!(writer.file("chat_template.jinja", ""), Err(WriteError::Duplicate(_))));
    let base = parse(&write(writer, &[])).unwrap();
    let m = &base.checkpoint().metadata;
    assert!(matches!(m.get("llama.block_count"), Some(Value::Int(n)) if *n == u64::MAX.into()));
    assert!(matches!(m.get("general.neg"), Some(Value::Int(-5))), "its own keys go before config.json's");
    assert_eq!(m.f64("llama.eps"), Some(f64::from(1e-5f32)));
    assert!(matches!(m.get("llama.whole"), Some(Value::Float(2.0))), "a float stays one");
    assert_eq!(m.str("general.name"), Some("a \"b\" \u{1}"));
    assert!(matches!(m.get("general.null"), Some(Value::Null)));
    assert!(matches!(m.array("tokenizer.ggml.scores"), Some(Array::Float(v)) if *v == floats));
    let tokens = m.array("tokenizer.ggml.tokens").unwrap();
    let tokens: Vec<_> = (0..tokens.len()).map(|i| tokens.str_bytes(i).unwrap()).collect();
    assert_eq!(tokens, [&b"!"[..], b"the", b"", "é".as_bytes()]);
    assert_eq!(m.usize("hidden_size"), Some(64));
    assert_eq!(m.f64("rope.theta"), Some(1e4));
    assert_eq!(m.str(base::TOKENIZER_KEY), Some(r#"{"model":{"type":"BPE"}}"#));
    assert_eq!(m.str("files.chat_template.jinja"), Some("{{ messages }}"));
    assert_eq!((m.str("base.arch"), m.str("base.source.filename")), (Some("llama"), Some("x.gguf")));

    for (value, part) in [
        (Value::Float(f64::NAN), "not finite"),
        (Value::Array(Array::Float(vec![f32::INFINITY])), "not finite"),
        (Value::Int(1 << 70), "64 bits"),
        (
            Value::Array(Array::Str { bytes: formats::Bytes::from_slice(&[0xff]), spans: vec![(0, 1)] }),
            "UTF-8",
        ),
    ] {
        let mut metadata = Metadata::default();
        metadata.insert("k".to_owned(), value);
        let error = Writer::new("x", Naming::Gguf).metadata(&metadata).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("\"k\""), "{error}");
    }
}

#[test]
fn the_writer_refuses_nonsense() {
    let mut writer = Writer::new("x", Naming::Gguf);
    let f32_scales = BlockType::Affine(Affine::new(4, 64, ScaleType::F32, false).unwrap());
    for block in [BlockType::Q4_K, BlockType::I8_ROWS, f32_scales] {
        assert!(matches!(writer.tensor("w", &[256], block), Err(WriteError::Type { .. })), "{block}");
    }
    let affine = BlockType::Affine(Affine::new(4, 64, ScaleType::F16, false).unwrap());
    for shape in [&[0, 64][..], &[65], &[usize::MAX, 64], &[usize::MAX / 2, 3]] {
        assert!(matches!(writer.tensor("w", shape, affine), Err(WriteError::Shape { .. })), "{shape:?}");
    }
    writer.tensor("w", &[2, 64], affine).unwrap();
    assert!(matches!(writer.tensor("w", &[2, 64], affine), Err(WriteError::Duplicate(_))));
    let mut body = writer.begin(Cursor::new(Vec::new())).unwrap();
    let planes = PlaneSlices { scales: &[0; 4], biases: &[0; 4] };
    assert!(matches!(body.tensor_data(&[0; 63], planes), Err(WriteError::Length { what: "values", .. })));
    let short = PlaneSlices { scales: &[0; 4], biases: &[0; 3] };
    assert!(matches!(body.tensor_data(&[0; 64], short), Err(WriteError::Length { what: "biases", .. })));
    body.tensor_data(&[0; 64], planes).unwrap();
    assert!(matches!(body.tensor_data(&[0; 64], planes), Err(WriteError::Length { .. })));
    body.finish().unwrap();
    let mut writer = Writer::new("x", Naming::Gguf);
    writer.tensor("w", &[2], BlockType::F32).unwrap();
    assert!(matches!(
        writer.begin(Cursor::new(Vec::new())).unwrap().finish(),
        Err(WriteError::Length { .. })
    ));
}

/// A header as the published converter writes it: fields in the order of its structures, parts of a tensor one after
/// the other, offsets of scales from the tensor's start.
fn published(tensors: Json) -> Json {
    json!({
        "schema": 1, "arch": "qwen3", "quant_scheme": "base_q4", "min_hw": "apple_m1",
        "created": "2026-04-24T12:00:00Z", "baserT_version": "0.9.0",
        "source": {"format": "gguf", "sha256": "00", "filename": "qwen3.gguf"},
        "tokenizer": {"tokenizer_type": "gguf", "tokenizer.ggml.tokens": ["a", "b"]},
        "config": {"hidden_size": 64, "num_hidden_layers": 1}, "target_backend": "metal",
        "alignment": {"accel_align_log2": 6, "gpu_page_log2": 14, "cpu_align_log2": 6},
        "flags": "0x00000001", "layers": [{"kind": "attention_gqa"}], "tensors": tensors,
    })
}

/// `[2, 64]` of 4 bits: 64 bytes of integers, two f16 scales, two f16 offsets. Integers are 0 and 1, from the lowest
/// nibble on; the scales 1 and 2, the offsets -1 and 0.
fn payload() -> Vec<u8> {
    [&[0x10; 64][..], &[0, 0x3c, 0, 0x40], &[0, 0xbc, 0, 0]].concat()
}

fn values() -> Vec<f32> {
    let row = |scale: f32, bias: f32| (0..64).map(move |i| (i % 2) as f32 * scale + bias);
    row(1.0, -1.0).chain(row(2.0, 0.0)).collect()
}

#[test]
fn the_published_converters_files_are_read() {
    let entry = |extra: Json| {
        let mut entry = json!({
            "name": "layers.0.attn.qkv_proj.weight", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 72,
            "scale_offset": 64, "scale_length": 4, "bias_offset": 68, "bias_length": 4, "group_size": 64,
        });
        entry.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        entry
    };
    let checksum = xxhash_rust::xxh64::xxh64(&payload(), 0);
    for extra in [
        json!({"scale_dtype": "f16", "residency": "warm", "compute_region": "accelerator", "checksum_xxh64": checksum}),
        // Version 1.0: f16 scales without saying so, and the other name.
        json!({"dtype": "base4", "group_size": 64}),
        json!({"layout": "metal_lane_strided"}),
        json!({"layout": "metal_lane_strided_q4", "flags": "0x00000002", "future_field": [1]}),
        json!({"scale_dtype": null, "layout": null, "checksum_xxh64": null}),
    ] {
        let header = published(json!([entry(extra.clone())])).to_string();
        let base = parse(&assemble(header.as_bytes(), &payload())).unwrap();
        let checkpoint = base.checkpoint();
        check_promises(checkpoint);
        assert_eq!(checkpoint.naming, Naming::Base);
        assert_eq!(checkpoint.tensors[0].to_f32(), values(), "{extra}");
        assert_eq!(checkpoint.metadata.usize("hidden_size"), Some(64));
        assert_eq!(checkpoint.metadata.array("tokenizer.ggml.tokens").unwrap().len(), 2);
        assert_eq!(base.verify_checksums().unwrap(), usize::from(extra["checksum_xxh64"].is_u64()));
    }
}

/// FORMAT.md by the letter: `length` is of the integers, and all offsets count from the start of the weights.
#[test]
fn scales_in_regions_of_their_own_are_read() {
    let entries = json!([
        {"name": "a", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 64, "scale_offset": 128,
         "scale_length": 4, "bias_offset": 136, "bias_length": 4, "group_size": 64},
        {"name": "b", "dtype": "base_q4", "shape": [2, 64], "offset": 64, "length": 64, "scale_offset": 132,
         "scale_length": 4, "bias_offset": 140, "bias_length": 4, "group_size": 64},
    ]);
    let (packed, scales, biases) = (&payload()[..64], &payload()[64..68], &payload()[68..]);
    let weights = [packed, packed, scales, scales, biases, biases].concat();
    let base = parse(&assemble(published(entries).to_string().as_bytes(), &weights)).unwrap();
    check_promises(base.checkpoint());
    assert!(base.checkpoint().tensors.iter().all(|t| t.to_f32() == values()));
    // A scale past the end is one, though the integers are within.
    let cut = &weights[..weights.len() - 1];
    let entries = json!([{"name": "a", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 64,
        "scale_offset": 128, "scale_length": 4, "bias_offset": 140, "bias_length": 4, "group_size": 64}]);
    check_refusal(&assemble(published(entries).to_string().as_bytes(), cut), &["\"a\"", "within"]);
}

#[test]
fn defaults_are_the_specifications() {
    for (dtype, bits, group) in [
        ("base_q2", 2, 32),
        ("base_q3", 3, 32),
        ("base_q4", 4, 64),
        ("base_q5", 5, 64),
        ("base_q6", 6, 64),
        ("base_q8", 8, 128),
        ("base8", 8, 128),
    ] {
        let n = 128 * bits / 8;
        let n_scales = 128 / group;
        let entry = json!([{"name": "w", "dtype": dtype, "shape": [128], "offset": 0, "length": n + n_scales,
            "scale_offset": n, "scale_length": n_scales, "scale_dtype": "e8m0", "symmetric": true}]);
        let weights = [vec![0; n], vec![128; n_scales]].concat();
        let base = parse(&assemble(published(entry).to_string().as_bytes(), &weights)).unwrap();
        let tensor = &base.checkpoint().tensors[0];
        let affine = Affine::new(bits, group, ScaleType::E8M0, true).unwrap();
        assert_eq!(tensor.block, BlockType::Affine(affine));
        // The least integer times two.
        assert_eq!(tensor.to_f32(), vec![-f32::from(1u8 << (bits - 1)) * 2.0; 128], "{dtype}");
    }
}

#[test]
fn headers_that_lie_get_errors_with_the_name() {
    let file = small();
    check_refusal(b"BAS", &["magic"]);
    check_refusal(b"GGUF1234", &["magic", "GGUF"]);
    check_refusal(&[&b"BASE"[..], &2u32.to_le_bytes()].concat(), &["version", "2"]);
    check_refusal(&[&b"BASE\x01\0\0\0"[..], &u64::MAX.to_le_bytes()].concat(), &["header length"]);
    for header in ["", "{", "[]", "{}", "\u{0}", r#"{"schema":1}"#] {
        check_refusal(&assemble(header.as_bytes(), &[]), &["header"]);
    }
    check_refusal(&assemble(b"{\"schema\":1,\"arch\":\"\xff\",\"tensors\":[]}", &[]), &["header", "UTF-8"]);
    check_refusal(&assemble(br#"{"schema":2,"tensors":[]}"#, &[]), &["schema", "2"]);
    check_refusal(&assemble(&[b'['; 100_000], &[]), &["header"]);

    let (header, weights) = header_of(&file);
    let with = |edit: &dyn Fn(&mut Json)| {
        let mut header = header.clone();
        edit(&mut header);
        assemble(header.to_string().as_bytes(), &file[weights..])
    };
    let with_entry = |i: usize, key: &str, value: Json| with(&|h| h["tensors"][i][key] = value.clone());
    assert!(parse(&with(&|_| ())).is_ok());
    for (i, key, value, parts) in [
        (0, "dtype", json!("mxfp4"), ["\"a\"", "mxfp4"]),
        (0, "dtype", json!("base_q7"), ["\"a\"", "base_q7"]),
        (0, "scale_dtype", json!("e4m3"), ["\"a\"", "e4m3"]),
        (0, "group_size", json!(48), ["\"a\"", "48"]),
        (0, "group_size", json!(128), ["\"a\"", "groups of 128"]),
        (0, "group_size", json!(64), ["\"a\"", "scales of 8 bytes"]),
        (0, "layout", json!("tile_8x8_mlx"), ["\"a\"", "tile_8x8_mlx"]),
        (0, "layout", json!("metal_lane_strided_q8"), ["\"a\"", "_q8"]),
        (0, "flags", json!("0x00000001"), ["\"a\"", "transposed"]),
        (0, "flags", json!("0x10"), ["\"a\"", "LoRA"]),
        (0, "flags", json!("x"), ["\"a\"", "flags"]),
        (2, "flags", json!("0x08"), ["\"c\"", "state-transition"]),
        (0, "awq_scale_length", json!(64), ["\"a\"", "AWQ"]),
        (0, "shape", json!([2, 65]), ["\"a\"", "65"]),
        (0, "shape", json!([0, 64]), ["\"a\"", "dimension of 0"]),
        (0, "shape", json!([u64::MAX, 64]), ["\"a\"", "addressable"]),
        (0, "shape", json!([3, 64]), ["\"a\"", "scales"]),
        (0, "shape", json!([2000, 64]), ["\"a\"", "64000 or more"]),
        (0, "offset", json!(u64::MAX), ["\"a\"", "offset"]),
        (0, "offset", json!(1u64 << 40), ["\"a\"", "within"]),
        (0, "length", json!(1u64 << 40), ["\"a\"", "past the end"]),
        (0, "length", json!(65), ["\"a\"", "scales at"]),
        (0, "scale_offset", json!(63), ["\"a\"", "scales at 63"]),
        (0, "scale_offset", json!(u64::MAX), ["\"a\"", "scales at"]),
        (0, "bias_length", json!(9), ["\"a\"", "biases of 9"]),
        (0, "bias_offset", json!(null), ["\"a\"", "no biases"]),
        (0, "symmetric", json!(true), ["\"a\"", "symmetric"]),
        (1, "symmetric", json!(false), ["\"b\"", "no biases"]),
        (2, "length", json!(11), ["\"c\"", "11 bytes"]),
        (1, "name", json!("a"), ["\"a\"", "second time"]),
        (1, "offset", json!(64), ["\"b\"", "past tensor \"a\""]),
    ] {
        let bytes = with_entry(i, key, value.clone());
        let message = refusal(&bytes);
        for part in parts {
            assert!(message.contains(part), "{key} {value}: {part:?} is not in: {message}");
        }
    }
    // An alias is the same bytes under another name.
    let alias = with(&|h| {
        let mut alias = h["tensors"][0].clone();
        alias["name"] = json!("tied");
        h["tensors"].as_array_mut().unwrap().push(alias);
    });
    let alias = parse(&alias).unwrap();
    assert_eq!(alias.checkpoint().tensors[3].data[..], alias.checkpoint().tensors[0].data[..]);
    check_refusal(&with(&|h| h["ingle"]["naming"] = json!("x")), &["ingle.naming", "\"x\""]);
    check_refusal(&with(&|h| h["ingle"]["files"] = json!({"f": 1})), &["ingle.files.f"]);
    check_refusal(&with(&|h| h["config"] = json!(3)), &["object"]);
}

#[test]
fn damaged_bytes_never_panic_and_are_found() {
    let original = small();
    let (_, weights) = header_of(&original);
    let mut n_accepted = 0;
    let header = (0..2200).chain([weights - 1]);
    for at in header.filter(|&at| at < weights) {
        for value in [0, b'"', b'0', b'9', b'}', b',', 0xff] {
            let mut bytes = original.clone();
            bytes[at] = value;
            if let Ok(base) = parse(&bytes) {
                n_accepted += 1;
                check_promises(base.checkpoint());
                base.checkpoint().tensors.iter().for_each(|t| _ = t.to_f32());
                _ = base.verify_checksums();
            }
        }
    }
    assert!(n_accepted > 100, "{n_accepted}: edits of names must pass");
    for n in (0..weights).step_by(997).chain(weights..original.len()) {
        assert!(parse(&original[..n]).is_err(), "{n} bytes");
    }
    // Every byte of every tensor is under a checksum.
    for tensor in &parse(&original).unwrap().checkpoint().tensors {
        let entries = header_of(&original).0["tensors"].clone();
        let entry =
            entries.as_array().unwrap().iter().find(|e| e["name"] == tensor.name.as_str()).unwrap().clone();
        let (offset, length) = (entry["offset"].as_u64().unwrap(), entry["length"].as_u64().unwrap());
        for at in [0, length / 2, length - 1] {
            let mut bytes = original.clone();
            bytes[weights + (offset + at) as usize] ^= 0x40;
            let message = parse(&bytes).unwrap().verify_checksums().unwrap_err().to_string();
            assert!(message.contains(&tensor.name) && message.contains("xxh64"), "{message}");
        }
    }
}

#[test]
fn slots_are_listed_and_passed_over() {
    let mut file = small();
    file.resize(file.len().next_multiple_of(8), 0);
    let slot = |kind: u16, flags: u16, payload: &[u8]| {
        let hash = xxhash_rust::xxh64::xxh64(payload, 0);
        let header =
            [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &(payload.len() as u64).to_le_bytes()].concat();
        let padding = vec![0; payload.len().next_multiple_of(8) - payload.len()];
        [&header[..], &hash.to_le_bytes(), payload, &padding].concat()
    };
    let with = |slots: &[Vec<u8>]| [&file[..], &(slots.len() as u32).to_le_bytes(), &slots.concat()].concat();
    let bytes = with(&[slot(5, 0, &[7; 11]), slot(0x9999, 0, &[8; 8])]);
    let base = parse(&bytes).unwrap();
    let listed: Vec<_> = base.slots().iter().map(|slot| (slot.kind, slot.payload.len())).collect();
    assert_eq!(listed, [(5, 11), (0x9999, 8)]);
    assert_eq!(base.verify_checksums().unwrap(), 5);
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let message = parse(&damaged).unwrap().verify_checksums().unwrap_err().to_string();
    assert!(message.contains("slot 1"), "{message}");
    check_refusal(&with(&[slot(2, 1, &[1])]), &["slot 0", "kind 2"]);
    check_refusal(&[&file[..], &9u32.to_le_bytes()].concat(), &["number of slots"]);
    check_refusal(&bytes[..bytes.len() - 1], &["slot 1"]);
}

fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (plain, signed) = (dir.path().join("plain.base"), dir.path().join("signed.base"));
    std::fs::write(&plain, small()).unwrap();
    (dir, plain, signed)
}

#[test]
fn a_signature_covers_header_and_weights() {
    let (dir, plain, signed) = folder();
    let key = SecretKey::generate().unwrap();
    assert_ne!(key.to_bytes(), SecretKey::generate().unwrap().to_bytes());
    assert!(!format!("{key:?}").contains(&STANDARD.encode(key.to_bytes())));
    base::sign_file(&plain, &signed, &key, "release \"1\"").unwrap();
    let read = base::read(&signed, Access::Map).unwrap();
    assert_eq!(read.signed_by(), Some("release \"1\""));
    assert_eq!(read.verify_signature(&key.public()).unwrap(), "release \"1\"");
    assert_eq!(read.verify_checksums().unwrap(), 3);
    let before = base::open(&plain, Access::Map).unwrap();
    for (a, b) in before.tensors.iter().zip(&read.checkpoint().tensors) {
        assert_eq!((&a.name, &a.data[..]), (&b.name, &b.data[..]));
    }

    let other = SecretKey::generate().unwrap().public();
    let refused = |base: &Base, key: &PublicKey, part: &str| {
        let message = base.verify_signature(key).unwrap_err().to_string();
        assert!(message.contains("signature") && message.contains(part), "{message}");
    };
    refused(&read, &other, "not by the key");
    refused(&base::read(&plain, Access::Map).unwrap(), &key.public(), "none");

    // One bit of a weight; one letter of a name; the signature of another file.
    let bytes = std::fs::read(&signed).unwrap();
    let (header, weights) = header_of(&bytes);
    let mut changed = bytes.clone();
    changed[weights] ^= 1;
    refused(&parse(&changed).unwrap(), &key.public(), "not by the key");
    let mut renamed = header.clone();
    renamed["arch"] = json!("mamba");
    refused(
        &parse(&assemble(renamed.to_string().as_bytes(), &bytes[weights..])).unwrap(),
        &key.public(),
        "not by",
    );
    for signature in ["", "!", "AAAA", &STANDARD.encode([0; 64])] {
        let mut broken = header.clone();
        broken["sig"]["signature"] = json!(signature);
        refused(
            &parse(&assemble(broken.to_string().as_bytes(), &bytes[weights..])).unwrap(),
            &key.public(),
            "not by",
        );
    }
    let mut algorithm = header;
    algorithm["sig"]["alg"] = json!("none");
    refused(
        &parse(&assemble(algorithm.to_string().as_bytes(), &bytes[weights..])).unwrap(),
        &key.public(),
        "none",
    );

    // Signing again replaces the signature; signing in place is refused.
    let again = dir.path().join("again.base");
    let second = SecretKey::from_bytes(&[7; 32]);
    base::sign_file(&signed, &again, &second, "2").unwrap();
    assert_eq!(base::read(&again, Access::Map).unwrap().verify_signature(&second.public()).unwrap(), "2");
    assert!(base::sign_file(&signed, &signed, &key, "1").unwrap_err().to_string().contains("input itself"));
    assert_eq!(std::fs::read(&signed).unwrap(), bytes);
}

/// The published signer keeps the header's order of keys.
#[test]
fn a_signature_of_the_published_signer_is_valid() {
    let mut header =
        published(json!([{"name": "w", "dtype": "f32", "shape": [2], "offset": 0, "length": 8}]));
    let weights = noise(8, 3);
    let key = ed25519_dalek::SigningKey::from_bytes(&[9; 32]);
    let message = [header.to_string().as_bytes(), &Sha256::digest(&weights)[..]].concat();
    let signature = STANDARD.encode(key.sign(&message).to_bytes());
    header["sig"] = json!({"alg": "ed25519", "key_id": "k", "signature": signature});
    let base = parse(&assemble(header.to_string().as_bytes(), &weights)).unwrap();
    let public = SecretKey::from_bytes(&[9; 32]).public();
    assert_eq!(base.verify_signature(&public).unwrap(), "k");
}

#[test]
fn keys_are_files_of_32_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let key = SecretKey::from_bytes(&[3; 32]);
    std::fs::write(&path, key.to_bytes()).unwrap();
    assert_eq!(SecretKey::read(&path).unwrap().public(), key.public());
    std::fs::write(&path, key.public().to_bytes()).unwrap();
    assert_eq!(PublicKey::read(&path).unwrap(), key.public());
    std::fs::write(&path, [0; 31]).unwrap();
    assert!(PublicKey::read(&path).unwrap_err().to_string().contains("31 bytes"));
    // A y that no point of the curve has.
    let mut no_point = [0; 32];
    no_point[0] = 2;
    std::fs::write(&path, no_point).unwrap();
    assert!(PublicKey::read(&path).unwrap_err().to_string().contains("no key"));
    assert!(SecretKey::read(&dir.path().join("absent")).is_err());
}

/// A `.base` file of a checkpoint, each tensor through `convert`.
fn convert(checkpoint: &Checkpoint, convert: impl Fn(&Tensor) -> (BlockType, [Vec<u8>; 3])) -> Vec<u8> {
    let mut writer = Writer::new("llama", checkpoint.naming);
    writer.metadata(&checkpoint.metadata).unwrap();
    let mut order: Vec<&Tensor> = checkpoint.tensors.iter().collect();
    order.sort_by_key(|t| layer_order(&t.name));
    let converted: Vec<_> = order
        .into_iter()
        .map(|t| {
            let (block, parts) = convert(t);
            (t.name.clone(), t.shape.clone(), block, parts)
        })
        .collect();
    write(writer, &converted)
}

/// As it is, or moved into the affine twin.
fn unchanged(tensor: &Tensor) -> (BlockType, [Vec<u8>; 3]) {
    let Some(affine) = repack::affine_twin(tensor.block) else {
        let planes = tensor.planes.as_slices();
        return (tensor.block, [tensor.data.to_vec(), planes.scales.to_vec(), planes.biases.to_vec()]);
    };
    let block = BlockType::Affine(affine);
    let n_cols = tensor.n_cols();
    let sizes = [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)];
    let mut parts = sizes.map(|n| vec![0; n * tensor.n_rows()]);
    let [data, scales, biases] = &mut parts;
    repack::to_affine(tensor.block, &tensor.data, data, scales, biases).unwrap();
    (block, parts)
}

#[test]
fn gguf_to_base_to_gguf_keeps_every_bit() {
    let types = [
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
    ];
    let gguf_bytes = |tensors: &[(String, Vec<usize>, BlockType, Vec<u8>)]| {
        let mut writer = gguf::Writer::new();
        writer.metadata("general.architecture", MetaValue::Str("llama".into())).unwrap();
        writer.metadata("llama.rope.freq_base", MetaValue::F32(10000.0)).unwrap();
        writer.metadata("tokenizer.ggml.tokens", MetaValue::Strs(vec![b"a".into(), "é".into()])).unwrap();
        tensors.iter().for_each(|(name, shape, block, _)| writer.tensor(name, shape, *block).unwrap());
        let mut body = writer.begin(Vec::new()).unwrap();
        tensors.iter().for_each(|t| body.tensor_data(&t.3).unwrap());
        body.finish().unwrap()
    };
    let source: Vec<_> = types
        .into_iter()
        .enumerate()
        .map(|(i, block)| (format!("blk.{i}.w"), vec![3, 64], block, noise(3 * block.row_bytes(64), i)))
        .collect();
    let original = gguf_bytes(&source);
    let checkpoint = gguf::parse(Map::from_slice(&original), Path::new("x.gguf")).unwrap();
    let base = parse(&convert(&checkpoint, unchanged)).unwrap();
    check_promises(base.checkpoint());

    let back: Vec<_> = base
        .checkpoint()
        .tensors
        .iter()
        .map(|t| {
            let BlockType::Affine(affine) = t.block else {
                return (t.name.clone(), t.shape.clone(), t.block, t.data.to_vec());
            };
            let block = repack::block_twin(affine).unwrap();
            let planes = t.planes.as_slices();
            let mut data = vec![0; t.n_rows() * block.row_bytes(t.n_cols())];
            repack::from_affine(affine, &t.data, planes.scales, planes.biases, &mut data).unwrap();
            (t.name.clone(), t.shape.clone(), block, data)
        })
        .collect();
    assert_eq!(gguf_bytes(&back), original);
    for (key, value) in checkpoint.metadata.iter() {
        let other = base.checkpoint().metadata.get(key).and_then(MetaValue::from_value);
        assert_eq!(other, MetaValue::from_value(value), "{key}");
    }
}

#[test]
fn mlx_to_base_keeps_every_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/mlx");
    let mlx = formats::open(&folder, Access::Map).unwrap();
    // The format has no f32 scales.
    let storable = |t: &&Tensor| !matches!(t.block, BlockType::Affine(a) if a.scale() == ScaleType::F32);
    let tensors: Vec<Tensor> = mlx.tensors.iter().filter(storable).cloned().collect();
    let mlx = Checkpoint { tensors, ..mlx };
    assert!(mlx.tensors.len() > 10);
    let base = parse(&convert(&mlx, unchanged)).unwrap();
    assert_eq!(base.checkpoint().naming, Naming::HuggingFace);
    assert_eq!(base.checkpoint().metadata.usize("hidden_size"), Some(64));
    for tensor in &mlx.tensors {
        let other = base.checkpoint().tensor(&tensor.name).unwrap();
        assert_eq!((&other.shape, other.block), (&tensor.shape, tensor.block));
        assert_eq!(other.data[..], tensor.data[..], "{}", tensor.name);
        assert_eq!(other.planes.as_slices().scales, tensor.planes.as_slices().scales, "{}", tensor.name);
        assert_eq!(other.planes.as_slices().biases, tensor.planes.as_slices().biases, "{}", tensor.name);
    }
}

/// Quantising on the way: what is read decodes to what was encoded.
#[test]
fn a_quantised_conversion_is_read_as_it_was_encoded() {
    let affine = Affine::new(6, 64, ScaleType::BF16, false).unwrap();
    let block = BlockType::Affine(affine);
    let x: Vec<f32> = (0..3 * 128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    let mut parts =
        [block.row_bytes(128), block.row_scale_bytes(128), block.row_bias_bytes(128)].map(|n| vec![0; 3 * n]);
    let [data, scales, biases] = &mut parts;
    affine::quantize(affine, &x, data, scales, biases);
    let mut encoded = vec![0.0; x.len()];
    dequantize_rows(block, 128, data, PlaneSlices { scales, biases }, &mut encoded);
    let file =
        write(Writer::new("llama", Naming::HuggingFace), &[("w".to_owned(), vec![3, 128], block, parts)]);
    assert_eq!(parse(&file).unwrap().checkpoint().tensors[0].to_f32(), encoded);
    let worst = x.iter().zip(&encoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Half a step of 63 over a range of 100/64, and a quarter for what bf16 does to scale and offset.
    assert!(worst < 0.75 * 100.0 / 64.0 / 63.0, "{worst}");
}
