//! The writer's output, and its errors.

use std::io::Cursor;

use formats::base::{BaseWriteError, BaseWriter};
use serde_json::json;
use weights::{Affine, Array, BlockType, Metadata, Naming, PlaneSlices, ScaleType, Value};

use super::{Made, check_promises, header_of, parse, tensor, write};

/// One tensor of every type in the format.
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

#[test]
fn every_type_is_read_as_it_was_written() {
    let tensors = all_types();
    let file = write(BaseWriter::new("llama", Naming::Gguf), &tensors);
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
    let file = write(BaseWriter::new("llama", Naming::Gguf), &all_types());
    let (header, weights) = header_of(&file);
    assert_eq!(&file[..8], b"BASE\x01\0\0\0");
    assert!(weights.is_multiple_of(64 << 10) && file[weights - 64..weights].iter().all(|&b| b == 0));
    // The header is canonical: sorted keys, no white space. This JSON library's maps keep the order
    // of the text.
    let mut sorted = header.clone();
    sorted.sort_all_objects();
    let length = u64::from_le_bytes(file[8..16].try_into().unwrap()) as usize;
    assert_eq!(&file[16..16 + length], sorted.to_string().as_bytes());
    // The published reader requires these keys.
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
                bytes: weights::Bytes::from_slice(text),
                spans: vec![(0, 1), (1, 3), (4, 0), (4, 2)],
            }),
        ),
        ("base.arch", Value::Str("left out".to_owned())),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    let mut writer = BaseWriter::new("llama", Naming::Gguf);
    writer.metadata(&metadata).unwrap();
    writer.field("config", json!({"hidden_size": 64, "rope": {"theta": 1e4}, "general.neg": 7}));
    writer.field("tokenizer", json!({"model": {"type": "BPE"}}));
    writer.field("source", json!({"format": "gguf", "sha256": "00", "filename": "x.gguf"}));
    writer.file("chat_template.jinja", "{{ messages }}").unwrap();
    assert!(matches!(writer.file("chat_template.jinja", ""), Err(BaseWriteError::Duplicate(_))));
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
    assert_eq!(m.str(weights::keys::TOKENIZER_KEY), Some(r#"{"model":{"type":"BPE"}}"#));
    assert_eq!(m.str("files.chat_template.jinja"), Some("{{ messages }}"));
    assert_eq!((m.str("base.arch"), m.str("base.source.filename")), (Some("llama"), Some("x.gguf")));

    for (value, part) in [
        (Value::Int(1 << 70), "64 bits"),
        (
            Value::Array(Array::Str { bytes: weights::Bytes::from_slice(&[0xff]), spans: vec![(0, 1)] }),
            "UTF-8",
        ),
    ] {
        let mut metadata = Metadata::default();
        metadata.insert("k".to_owned(), value);
        let error = BaseWriter::new("x", Naming::Gguf).metadata(&metadata).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("\"k\""), "{error}");
    }
}

#[test]
fn the_writer_refuses_nonsense() {
    let mut writer = BaseWriter::new("x", Naming::Gguf);
    let f32_scales = BlockType::Affine(Affine::new(4, 64, ScaleType::F32, false).unwrap());
    for block in [BlockType::Q4_K, BlockType::I8_ROWS, f32_scales] {
        assert!(matches!(writer.tensor("w", &[256], block), Err(BaseWriteError::Type { .. })), "{block}");
    }
    let affine = BlockType::Affine(Affine::new(4, 64, ScaleType::F16, false).unwrap());
    for shape in [&[0, 64][..], &[65], &[usize::MAX, 64], &[usize::MAX / 2, 3]] {
        assert!(matches!(writer.tensor("w", shape, affine), Err(BaseWriteError::Shape { .. })), "{shape:?}");
    }
    writer.tensor("w", &[2, 64], affine).unwrap();
    assert!(matches!(writer.tensor("w", &[2, 64], affine), Err(BaseWriteError::Duplicate(_))));
    let mut body = writer.begin(Cursor::new(Vec::new())).unwrap();
    let planes = PlaneSlices { scales: &[0; 4], biases: &[0; 4] };
    assert!(matches!(body.tensor_data(&[0; 63], planes), Err(BaseWriteError::Length { what: "values", .. })));
    let short = PlaneSlices { scales: &[0; 4], biases: &[0; 3] };
    assert!(matches!(body.tensor_data(&[0; 64], short), Err(BaseWriteError::Length { what: "biases", .. })));
    body.tensor_data(&[0; 64], planes).unwrap();
    assert!(matches!(body.tensor_data(&[0; 64], planes), Err(BaseWriteError::Length { .. })));
    body.finish().unwrap();
    let mut writer = BaseWriter::new("x", Naming::Gguf);
    writer.tensor("w", &[2], BlockType::F32).unwrap();
    assert!(matches!(
        writer.begin(Cursor::new(Vec::new())).unwrap().finish(),
        Err(BaseWriteError::Length { .. })
    ));
}
