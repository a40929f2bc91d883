//! MLX's quantised folders: every width and group size against MLX, and malformed configs.
#![allow(clippy::unwrap_used)]

use crate::common::has_parts;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::{Dtype, TensorView, serialize};
use weights::{Access, BlockType, Checkpoint, Naming, Result, ScaleType};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats")
}

/// The values that MLX decodes, by name.
fn expected() -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let path = fixtures().join("mlx_expected.safetensors");
    let map = weights::Map::open(&path, Access::Read).unwrap();
    let mut tensors = Vec::new();
    formats::safetensors::parse_file(map, &path, &mut tensors).unwrap();
    tensors.into_iter().map(|t| (t.name.clone(), t.shape.clone(), t.to_f32())).collect()
}

fn same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.to_bits(), want.to_bits(), "{what}, value {i}: {got:e}, expected {want:e}");
    }
}

#[test]
fn every_width_decodes_as_mlx_does_to_the_bit() {
    let checkpoint = formats::open(&fixtures().join("mlx"), Access::Map).unwrap();
    assert_eq!(checkpoint.format, "MLX safetensors in 2 files");
    assert_eq!(checkpoint.naming, Naming::HuggingFace);
    assert_eq!(checkpoint.metadata.usize("quantization.model.layers.0.b3g32.bits"), Some(3));
    let expected = expected();
    assert_eq!(checkpoint.tensors.len(), expected.len());
    let mut types = std::collections::HashSet::new();
    for (name, shape, values) in &expected {
        let tensor = checkpoint.tensor(name).unwrap();
        assert_eq!(tensor.shape, *shape, "{name}");
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes(), "{name}");
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{name}");
        assert!(tensor.data.is_mapped(), "{name}: the packed bytes are not copied");
        same(&tensor.to_f32(), values, name);
        if let BlockType::Affine(affine) = tensor.block {
            assert!(tensor.planes.scales.as_ref().unwrap().is_mapped(), "{name}");
            types.insert((affine.bits(), affine.group(), affine.scale()));
        }
    }
    assert_eq!(types.len(), 18, "each width with each group size");
    for scale in [ScaleType::BF16, ScaleType::F16, ScaleType::F32] {
        assert!(types.iter().any(|t| t.2 == scale), "{scale}");
    }
}

/// Rows of a matrix, and of a stack, are views with their own scales.
#[test]
fn parts_of_a_tensor_have_their_part_of_the_scales() {
    let checkpoint = formats::open(&fixtures().join("mlx"), Access::Map).unwrap();
    for name in ["model.layers.0.b3g64.weight", "model.layers.0.experts.weight"] {
        let tensor = checkpoint.tensor(name).unwrap();
        let whole = tensor.to_f32();
        let n_cols = tensor.n_cols();
        for row in 0..tensor.n_rows() {
            let (data, planes) = tensor.rows(row..row + 1).unwrap();
            let mut values = vec![0.0; n_cols];
            weights::codec::dequantize_rows(tensor.block, n_cols, &data, planes.as_slices(), &mut values);
            same(&values, &whole[row * n_cols..][..n_cols], name);
        }
        assert!(tensor.rows(0..tensor.n_rows() + 1).is_none());
    }
}

type Part<'a> = (&'a str, Dtype, &'a [usize], usize);

/// A folder with this config and one file of these tensors, whose last field is a number of bytes.
fn folder(config: &str, parts: &[Part]) -> tempfile::TempDir {
    let bytes = vec![0x3c; 1 << 12];
    let views = parts
        .iter()
        .map(|&(name, dtype, shape, n)| (name, TensorView::new(dtype, shape.to_vec(), &bytes[..n]).unwrap()));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    dir
}

fn open(config: &str, parts: &[Part]) -> Result<Checkpoint> {
    formats::open(folder(config, parts).path(), Access::Read)
}

const CONFIG: &str = r#"{"quantization": {"group_size": 64, "bits": 4}}"#;

/// A valid matrix `[2, 128]` of 4 bits.
const PARTS: [Part; 3] = [
    ("a.weight", Dtype::U32, &[2, 16], 128),
    ("a.scales", Dtype::BF16, &[2, 2], 8),
    ("a.biases", Dtype::BF16, &[2, 2], 8),
];

#[test]
fn a_file_that_lies_gets_an_error_with_the_name() {
    assert_eq!(open(CONFIG, &PARTS).unwrap().tensors[0].shape, [2, 128]);
    let refuse = |config: &str, parts: &[Part], expected: &[&str]| {
        let message = open(config, parts).expect_err("should be refused").to_string();
        has_parts(&message, expected);
    };
    let [weight, scales, biases] = PARTS;
    refuse(CONFIG, &[weight, biases], &["a.weight", "a.scales"]);
    refuse(CONFIG, &[weight, scales], &["a.weight", "a.biases"]);
    refuse(CONFIG, &[weight, scales, ("a.biases", Dtype::F16, &[2, 2], 8)], &["a.biases", "F16", "BF16"]);
    refuse(
        CONFIG,
        &[weight, ("a.scales", Dtype::BF16, &[2, 4], 16), biases],
        &["a.scales", "[2, 4]", "[2, 2]"],
    );
    refuse(CONFIG, &[weight, scales, ("a.biases", Dtype::BF16, &[4], 8)], &["a.biases", "[4]"]);
    refuse(
        CONFIG,
        &[("a.weight", Dtype::U32, &[2, 17], 136), scales, biases],
        &["rows of 17 u32", "groups of 64"],
    );
    refuse(CONFIG, &[weight, ("a.scales", Dtype::U8, &[2, 2], 4), biases], &["a.weight", "no float tensor"]);
    let unquantised = r#"{"quantization": {"group_size": 64, "bits": 4, "a": false}}"#;
    refuse(unquantised, &PARTS, &["a.weight", "false"]);
    let other_bits = r#"{"quantization": {"group_size": 64, "bits": 4, "a": {"bits": 8, "group_size": 64}}}"#;
    refuse(other_bits, &PARTS, &["a.scales", "[2, 1]", "8 bits"]);
    refuse(r#"{"quantization": {"bits": 4, "mode": "mxfp4"}}"#, &PARTS, &["mode", "mxfp4"]);
    // Without the object these are tensors of integers and floats.
    assert_eq!(open("{}", &PARTS).unwrap().tensors.len(), 2);
    // Other integers are left out.
    assert!(open(CONFIG, &[("ids", Dtype::U32, &[3], 12)]).unwrap().tensors.is_empty());
}
