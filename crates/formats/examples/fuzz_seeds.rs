//! Small sound files for the fuzz targets to begin with, in `fuzz/corpus`: `cargo run -p ingle-formats --example fuzz_seeds`.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use formats::base::{SecretKey, sign_file};
use formats::{base, gguf};
use serde_json::{Value as Json, json};
use weights::{Affine, BlockType, Naming, PlaneSlices, ScaleType};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn corpus(target: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Name, shape, type.
type Declared = (&'static str, &'static [usize], BlockType);

fn main() -> Result<()> {
    write_gguf()?;
    write_base()?;
    write_safetensors_and_mlx()?;
    for entry in fs::read_dir(fixtures().join("formats/ctranslate2"))? {
        let entry = entry?;
        fs::copy(entry.path().join("model.bin"), corpus("ctranslate2")?.join(entry.file_name()))?;
    }
    write_whisper_cpp()?;
    for entry in fs::read_dir(fixtures().join("audio"))? {
        let entry = entry?;
        // Half a second each; the speech is too long for a seed.
        if entry.file_name().to_string_lossy().starts_with("tones") {
            fs::copy(entry.path(), corpus("audio")?.join(entry.file_name()))?;
        }
    }
    write_wav()?;
    Ok(())
}

fn write_gguf() -> Result<()> {
    let tensors: [Declared; 3] = [
        ("token_embd.weight", &[4, 32], BlockType::Q8_0),
        ("blk.0.attn_q.weight", &[32, 32], BlockType::Q4_0),
        ("output_norm.weight", &[32], BlockType::F32),
    ];
    let mut writer = gguf::Writer::new();
    writer.metadata("general.architecture", gguf::MetaValue::Str("llama".into()))?;
    writer.metadata("llama.block_count", gguf::MetaValue::U32(1))?;
    writer.metadata("tokenizer.ggml.model", gguf::MetaValue::Str("gpt2".into()))?;
    writer.metadata("tokenizer.ggml.tokens", gguf::MetaValue::Strs(vec![b"a".into(), b"b".into()]))?;
    for (name, shape, block) in tensors {
        writer.tensor(name, shape, block)?;
    }
    let mut body = writer.begin(Vec::new())?;
    for (_, shape, block) in tensors {
        body.tensor_data(&vec![1; values(shape) / block.block_len() * block.block_bytes()])?;
    }
    Ok(fs::write(corpus("gguf")?.join("small"), body.finish()?)?)
}

fn values(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn write_base() -> Result<()> {
    let folder = corpus("base")?;
    for naming in [Naming::Base, Naming::HuggingFace, Naming::Gguf] {
        for (bits, scale, symmetric) in
            [(4, ScaleType::F16, false), (8, ScaleType::BF16, true), (3, ScaleType::E8M0, false)]
        {
            let affine = Affine::new(bits, 32, scale, symmetric).ok_or("a type")?;
            let block = BlockType::Affine(affine);
            let mut writer = base::Writer::new("llama", naming);
            writer.page(6);
            writer.field("config", json!({ "hidden_size": 32, "rope": { "theta": 1e4 }, "list": [1, 2.5] }));
            writer.field("tokenizer", json!({ "tokenizer.ggml.tokens": ["a", "b"] }));
            writer.file("chat_template.jinja", "{{ messages }}")?;
            writer.tensor("layers.0.attn.q_proj.weight", &[2, 32], block)?;
            writer.tensor("norm.weight", &[3], BlockType::F32)?;
            let mut body = writer.begin(Cursor::new(Vec::new()))?;
            let plane = |row: usize| vec![0x3c; 2 * row];
            let (scales, biases) = (plane(block.row_scale_bytes(32)), plane(block.row_bias_bytes(32)));
            let planes = PlaneSlices { scales: &scales, biases: &biases };
            body.tensor_data(&vec![0x5a; 2 * block.row_bytes(32)], planes)?;
            body.tensor_data(&[0; 12], PlaneSlices::default())?;
            let path = folder.join(format!("{naming:?}-{affine}"));
            fs::write(&path, body.finish()?.into_inner())?;
            let signed = folder.join(format!("{naming:?}-{affine}-signed"));
            sign_file(&path, &signed, &SecretKey::from_bytes(&[7; 32]), "seed")?;
        }
    }
    Ok(())
}

/// Name, dtype, shape, number of bytes.
type Part = (&'static str, &'static str, &'static [usize], usize);

fn safetensors(parts: &[Part]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, shape, n) in parts {
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + n] }),
        );
        at += n;
    }
    let header = Json::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0x3c; at]].concat()
}

fn write_safetensors_and_mlx() -> Result<()> {
    let plain: [Part; 2] = [("a", "F32", &[2, 3], 24), ("model.norm.weight", "BF16", &[4], 8)];
    fs::write(corpus("safetensors")?.join("small"), safetensors(&plain))?;
    let packed: [Part; 7] = [
        ("a.weight", "U32", &[2, 8], 64),
        ("a.scales", "BF16", &[2, 1], 4),
        ("a.biases", "BF16", &[2, 1], 4),
        ("b.weight", "U32", &[3, 2, 8], 192),
        ("b.scales", "F16", &[3, 2, 1], 12),
        ("b.biases", "F16", &[3, 2, 1], 12),
        ("norm.weight", "F32", &[4], 16),
    ];
    let per_module = json!({ "quantization": {
        "group_size": 64, "bits": 4, "mode": "affine", "b": { "group_size": 32, "bits": 8 }, "norm": false } });
    for (name, config) in [
        ("uniform", json!({ "model_type": "llama", "quantization": { "group_size": 64, "bits": 4 } })),
        ("modules", per_module),
        ("plain", json!({ "model_type": "llama", "hidden_size": 64 })),
    ] {
        let bytes = [config.to_string().as_bytes(), &[0], &safetensors(&packed)].concat();
        fs::write(corpus("mlx")?.join(name), bytes)?;
    }
    Ok(())
}

fn write_whisper_cpp() -> Result<()> {
    let ints = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = formats::whisper_cpp::MAGIC.to_vec();
    file.extend(ints(&[51865, 1500, 384, 6, 4, 448, 384, 6, 4, 80, 2008]));
    file.extend([ints(&[2, 3]), vec![0; 24]].concat());
    file.extend([ints(&[2, 1]), b"!".to_vec(), ints(&[4]), b" the".to_vec()].concat());
    for (name, dims, id, n) in
        [("conv.bias", &[1, 3][..], 0, 12), ("conv.weight", &[3, 2, 4], 1, 48), ("token", &[64, 2], 8, 136)]
    {
        file.extend(ints(&[dims.len() as i32, name.len() as i32, id]));
        file.extend([ints(dims), name.as_bytes().to_vec(), vec![1; n]].concat());
    }
    Ok(fs::write(corpus("whisper_cpp")?.join("small"), file)?)
}

/// The container that the fixtures make in memory.
fn write_wav() -> Result<()> {
    for (n_channels, bits) in [(1u16, 16u16), (2, 24), (1, 8)] {
        let frame = n_channels * bits / 8;
        let n_data = u32::from(frame) * 800;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + n_data).to_le_bytes());
        file.extend(b"WAVEfmt \x10\0\0\0\x01\0");
        file.extend(n_channels.to_le_bytes());
        file.extend(16_000u32.to_le_bytes());
        file.extend((16_000 * u32::from(frame)).to_le_bytes());
        file.extend(frame.to_le_bytes());
        file.extend(bits.to_le_bytes());
        file.extend(b"data");
        file.extend(n_data.to_le_bytes());
        file.extend((0..n_data).map(|i| ((i * 37) >> 3) as u8));
        fs::write(corpus("audio")?.join(format!("{n_channels}x{bits}.wav")), file)?;
    }
    Ok(())
}
