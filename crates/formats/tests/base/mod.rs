//! `.base` files: the reader accepts what this writer and the published converter write, and
//! refuses malformed files. This file has shared helpers.
#![allow(clippy::unwrap_used)]

mod converted;
mod hostile;
mod published;
mod signed;
mod written;

use crate::common::{check_tensors, has_parts};
use std::io::Cursor;
use std::path::Path;

use formats::base::{self, Base, BaseWriter};
use serde_json::{Value as Json, json};
use weights::{Affine, BlockType, Checkpoint, Map, Naming, PlaneSlices, Result, ScaleType};

fn parse(bytes: &[u8]) -> Result<Base> {
    base::parse(Map::from_slice(bytes), Path::new("some/model.base"))
}

fn refusal(bytes: &[u8]) -> String {
    let message = parse(bytes).err().expect("should be refused").to_string();
    assert!(message.contains("model.base"), "{message}");
    message
}

fn check_refusal(bytes: &[u8], parts: &[&str]) {
    has_parts(&refusal(bytes), parts);
}

/// Checks the reader's guarantees for every accepted file.
fn check_promises(checkpoint: &Checkpoint) {
    check_tensors(checkpoint);
    for tensor in &checkpoint.tensors {
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
    }
}

/// Pseudorandom bytes.
fn noise(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 7).wrapping_add(seed * 31) as u8).collect()
}

/// Name, shape and type; then integers, scales and offsets.
type Made = (String, Vec<usize>, BlockType, [Vec<u8>; 3]);

/// A tensor of pseudorandom integers and finite scales.
fn tensor(name: &str, shape: &[usize], block: BlockType) -> Made {
    let n_cols = shape.last().copied().unwrap_or(1);
    let n_rows: usize = shape.iter().rev().skip(1).product();
    let sizes = [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)];
    let mut parts = sizes.map(|n| noise(n * n_rows, name.len()));
    if let BlockType::Affine(affine) = block
        && affine.scale() != ScaleType::E8M0
    {
        // The upper byte of a float: a moderate exponent.
        let size = affine.scale().bytes();
        for part in &mut parts[1..] {
            part.iter_mut().skip(size - 1).step_by(size).for_each(|b| *b = 0x3a);
        }
    }
    (name.to_owned(), shape.to_vec(), block, parts)
}

/// A file with these tensors.
fn write(mut writer: BaseWriter, tensors: &[Made]) -> Vec<u8> {
    for (name, shape, block, _) in tensors {
        writer.tensor(name, shape, *block).unwrap();
    }
    let mut body = writer.begin(Cursor::new(Vec::new())).unwrap();
    for (_, _, _, [data, scales, biases]) in tensors {
        body.tensor_data(data, PlaneSlices { scales, biases }).unwrap();
    }
    body.finish().unwrap().into_inner()
}

/// A small file with every kind of content.
fn small() -> Vec<u8> {
    let four = |symmetric| BlockType::Affine(Affine::new(4, 32, ScaleType::F16, symmetric).unwrap());
    let mut writer = BaseWriter::new("llama", Naming::HuggingFace);
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

/// The header's JSON, and the start of the weights.
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

/// A header in the form of the published converter. Fields are in the order of its structures,
/// parts of a tensor in sequence. Offsets of scales count from the tensor's start.
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
