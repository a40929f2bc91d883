//! Conversions between formats and back lose no bit if the types have equals.

use std::path::Path;

use formats::base::{BaseWriter, layer_order};
use formats::gguf::{self, MetaValue};
use weights::codec::{affine, dequantize_rows, repack};
use weights::{Access, Affine, BlockType, Checkpoint, Map, Naming, PlaneSlices, ScaleType, Tensor};

use super::{check_promises, noise, parse, write};

/// A `.base` file of a checkpoint, with each tensor passed through `convert`.
fn convert(checkpoint: &Checkpoint, convert: impl Fn(&Tensor) -> (BlockType, [Vec<u8>; 3])) -> Vec<u8> {
    let mut writer = BaseWriter::new("llama", checkpoint.naming);
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

/// The tensor's own type, or the affine type that stores the same integers.
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
    // The format does not store f32 scales.
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

/// A file that is quantised on the way decodes to the encoded values.
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
        write(BaseWriter::new("llama", Naming::HuggingFace), &[("w".to_owned(), vec![3, 128], block, parts)]);
    assert_eq!(parse(&file).unwrap().checkpoint().tensors[0].to_f32(), encoded);
    let worst = x.iter().zip(&encoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // The bound is half a step of 63 over a range of 100/64, and a quarter for the rounding of
    // scale and offset to bf16.
    assert!(worst < 0.75 * 100.0 / 64.0 / 63.0, "{worst}");
}
