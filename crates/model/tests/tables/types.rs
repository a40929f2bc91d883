//! Storage types on every device: a model of one layer whose matrices all have one type.

use std::collections::{BTreeSet, HashMap};

use device::{Device, Numerics};
use model::{FAMILIES, ModelSpec};
use weights::{Affine, BlockType, Bytes, Checkpoint, Naming, Planes, ScaleType, Tensor, codec};

use super::{cell, devices, markdown, tiny};
use crate::common::Runner;

/// The first family's tiny checkpoint, with enough columns for the largest blocks.
fn with_matrices(block: BlockType) -> Checkpoint {
    let mut checkpoint = tiny::checkpoint_of(&FAMILIES[0], Naming::HuggingFace, 256, 1).unwrap();
    for tensor in checkpoint.tensors.iter_mut().filter(|t| t.shape.len() > 1) {
        *tensor = filled(tensor, block);
    }
    checkpoint
}

/// A tensor of this type: its own values if the type has an encoder, otherwise valid blocks.
fn filled(tensor: &Tensor, block: BlockType) -> Tensor {
    let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
    let n_bytes = n_rows * block.row_bytes(n_cols);
    let noise = |n: usize| (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8);
    let data = if block.has_quantizer() {
        let mut data = vec![0; n_bytes];
        codec::quantize_row(block, &tensor.to_f32(), &mut data);
        data
    } else if block.has_planes() {
        noise(n_bytes).collect()
    } else {
        let blocks = sound_blocks(block);
        blocks.iter().copied().cycle().take(n_bytes).collect()
    };
    let plane = |row: usize, number: f32| {
        let scale = match block {
            BlockType::Affine(affine) => affine.scale(),
            _ => ScaleType::F32,
        };
        let bits = number.to_bits();
        let number = match scale {
            ScaleType::F32 => bits.to_le_bytes().to_vec(),
            ScaleType::BF16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
            ScaleType::E8M0 => vec![(bits >> 23) as u8],
            ScaleType::F16 => {
                let mut bytes = vec![0; 2];
                codec::quantize_row(BlockType::F16, &[number], &mut bytes);
                bytes
            }
        };
        (row > 0).then(|| Bytes::from_slice(&number.repeat(n_rows * row / number.len())))
    };
    // Sums over whole rows of integers are divided by their length.
    let scale = if matches!(block, BlockType::Affine(_)) { 1.0 / 128.0 } else { 4096.0 };
    let planes = Planes {
        scales: plane(block.row_scale_bytes(n_cols), scale),
        biases: plane(block.row_bias_bytes(n_cols), -1.0 / 16.0),
    };
    Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        block,
        data: Bytes::from_slice(&data),
        planes,
    }
}

/// The blocks of the codec's fixture whose values are small: `u32 n | blocks | values`.
fn sound_blocks(block: BlockType) -> Vec<u8> {
    let file = format!("../codecs/{}.bin", block.name().to_lowercase());
    let bytes = std::fs::read(crate::common::folder(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let blocks = bytes[4..].chunks_exact(block.block_bytes());
    let n = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let mut values = vec![0.0; block.block_len()];
    let mut is_small = |bytes: &[u8]| {
        codec::dequantize_row(block, bytes, &mut values);
        values.iter().all(|v| v.abs() < 8.0)
    };
    let sound: Vec<u8> = blocks.take(n).filter(|b| is_small(b)).flatten().copied().collect();
    assert!(!sound.is_empty(), "{block}");
    sound
}

/// Every type that a reader can return: a title, and its types.
fn all() -> Vec<(String, Vec<BlockType>)> {
    let single = |block: BlockType| (block.name().to_owned(), vec![block]);
    let mut all: Vec<_> = BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA).map(single).collect();
    let rows = [(BlockType::I8_ROWS, 8), (BlockType::I16_ROWS, 16)];
    all.extend(rows.map(|(block, bits)| (format!("rows of {bits}-bit integers (CTranslate2)"), vec![block])));
    for (title, scales) in [
        ("groups of 2 to 8 bits (MLX)", &[ScaleType::F32, ScaleType::F16, ScaleType::BF16][..]),
        ("groups of 2 to 8 bits (`.base`)", &[ScaleType::F16, ScaleType::BF16, ScaleType::E8M0]),
    ] {
        let mut types = Vec::new();
        for (bits, group) in Affine::BITS.iter().flat_map(|b| Affine::GROUPS.map(|g| (*b, g))) {
            for scale in scales {
                let with_offsets = Affine::new(bits, group, *scale, false).unwrap();
                let symmetric = Affine::new(bits, group, *scale, true).unwrap();
                types.push(BlockType::Affine(with_offsets));
                // MLX has no such scales.
                if scales.contains(&ScaleType::E8M0) {
                    types.push(BlockType::Affine(symmetric));
                }
            }
        }
        all.push((title.to_owned(), types));
    }
    all
}

/// The kernel family with which the CPU multiplies the type, from the kernel names in its command
/// table.
fn kernel(device: &dyn Device, checkpoint: &Checkpoint) -> &'static str {
    let plan = ModelSpec::from_checkpoint(checkpoint).unwrap().plan(checkpoint).unwrap();
    let kernels = Runner::on(device, &plan, Numerics::Fast).kernels();
    let matrices: Vec<&String> = kernels.iter().filter(|name| name.contains("linear")).collect();
    assert!(!matrices.is_empty(), "{kernels:?}");
    match matrices.iter().filter(|name| name.contains("linear_decoded")).count() {
        0 => "a kernel of its own",
        n if n == matrices.len() => "decoded row by row, much slower",
        _ => panic!("some of both: {matrices:?}"),
    }
}

/// Types that run alike share a row.
pub fn table() -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    // Two readers share many types.
    let mut known: HashMap<BlockType, Vec<String>> = HashMap::new();
    let devices = devices();
    assert_eq!(devices[0].name(), "cpu");
    for (title, types) in all() {
        let run = |block: BlockType| {
            let cells = known.entry(block).or_insert_with(|| {
                let checkpoint = with_matrices(block);
                let kernel = kernel(devices[0].as_ref(), &checkpoint).to_owned();
                vec![cell(&block.to_string(), &[checkpoint]), kernel]
            });
            cells.clone()
        };
        let runs: BTreeSet<Vec<String>> = types.into_iter().map(run).collect();
        assert_eq!(runs.len(), 1, "{title}: not all of them run alike: {runs:?}");
        let cells: Vec<String> = runs.into_iter().flatten().collect();
        match rows.iter_mut().find(|(_, other)| *other == cells) {
            Some((titles, _)) => *titles = format!("{titles} · {title}"),
            None => rows.push((title, cells)),
        }
    }
    markdown("Types that are read", &["multiplied where they lie", "by `cpu`"], rows)
}
