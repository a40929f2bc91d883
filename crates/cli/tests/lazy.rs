//! `ingle inspect` reads headers and no weights: kilobytes of a file of more than 16 GiB.
//!
//! The files are real headers before a hole: sparse files whose tensors have no blocks on disk. A
//! reader that hashed, copied or decoded them would still map pages of zeros, which the tests
//! measure. Linux's /proc reports the binary's memory at a moment when its work is done but it
//! still runs. Its output is longer than the pipe's buffer, so it waits.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use formats::gguf::{MetaValue, Writer};
use serde_json::{Value as Json, json};
use weights::BlockType;

const HIDDEN: usize = 4096;
const FFN: usize = 6144;
const KV: usize = 1024;
const VOCAB: usize = 32_000;
/// With this number of layers the listing is longer than a pipe holds, 64 KiB.
const N_LAYERS: usize = 80;
const PIPE_BYTES: usize = 64 << 10;

/// Name and shape of a tensor.
type Declared = (String, Vec<usize>);

/// The tensors of a model of 80 layers, with names of Hugging Face or GGUF.
fn tensors(gguf: bool) -> Vec<Declared> {
    let pick = |hf: &str, ggml: &str| if gguf { ggml.to_owned() } else { hf.to_owned() };
    let mut all = vec![(pick("model.embed_tokens.weight", "token_embd.weight"), vec![VOCAB, HIDDEN])];
    for layer in 0..N_LAYERS {
        for (hf, ggml, shape) in [
            ("input_layernorm", "attn_norm", vec![HIDDEN]),
            ("self_attn.q_proj", "attn_q", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", "attn_k", vec![KV, HIDDEN]),
            ("self_attn.v_proj", "attn_v", vec![KV, HIDDEN]),
            ("self_attn.o_proj", "attn_output", vec![HIDDEN, HIDDEN]),
            ("post_attention_layernorm", "ffn_norm", vec![HIDDEN]),
            ("mlp.gate_proj", "ffn_gate", vec![FFN, HIDDEN]),
            ("mlp.up_proj", "ffn_up", vec![FFN, HIDDEN]),
            ("mlp.down_proj", "ffn_down", vec![HIDDEN, FFN]),
        ] {
            let name = pick(&format!("model.layers.{layer}.{hf}"), &format!("blk.{layer}.{ggml}"));
            all.push((format!("{name}.weight"), shape));
        }
    }
    all.push((pick("model.norm.weight", "output_norm.weight"), vec![HIDDEN]));
    all.push((pick("lm_head.weight", "output.weight"), vec![VOCAB, HIDDEN]));
    all
}

fn n_bytes(shape: &[usize], bytes: usize) -> usize {
    shape.iter().product::<usize>() * bytes
}

fn config() -> Json {
    json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 500_000.0, "tie_word_embeddings": false,
    })
}

/// Writes a header and a hole, `len` bytes in all. Returns the bytes of the header.
fn sparse(path: &Path, header: &[u8], len: usize) -> usize {
    let mut file = File::create(path).unwrap();
    file.write_all(header).unwrap();
    file.set_len(len as u64)
        .unwrap_or_else(|e| panic!("{}: no room for a file of {len} bytes: {e}", path.display()));
    let on_disk = file.metadata().unwrap().blocks() * 512;
    assert!(len > 16 << 30, "{len}");
    assert!(
        on_disk < 64 << 20,
        "{}: this file system refuses sparse files ({on_disk} bytes on disk for {} written): set TMPDIR to one that has them",
        path.display(),
        header.len()
    );
    header.len()
}

fn gguf(path: &Path) -> usize {
    let mut writer = Writer::new();
    let mut put = |key: &str, value: MetaValue| writer.metadata(key, value).unwrap();
    put("general.architecture", MetaValue::Str("llama".into()));
    for (key, value) in [
        ("block_count", N_LAYERS),
        ("context_length", 8192),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FFN),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
    ] {
        put(&format!("llama.{key}"), MetaValue::U32(value as u32));
    }
    put("llama.attention.layer_norm_rms_epsilon", MetaValue::F32(1e-5));
    put("tokenizer.ggml.model", MetaValue::Str("gpt2".into()));
    let tokens = (0..VOCAB).map(|i| format!("token{i}").into_bytes()).collect();
    put("tokenizer.ggml.tokens", MetaValue::Strs(tokens));
    let mut len = 0;
    for (name, shape) in tensors(true) {
        // Vectors are F32 in GGUF files.
        let block = if shape.len() == 1 { BlockType::F32 } else { BlockType::F16 };
        writer.tensor(&name, &shape, block).unwrap();
        len += n_bytes(&shape, block.block_bytes());
    }
    let mut header = Vec::new();
    writer.begin(&mut header).unwrap();
    sparse(path, &header, header.len() + len)
}

fn safetensors(dir: &Path) -> usize {
    std::fs::write(dir.join("config.json"), config().to_string()).unwrap();
    let mut entries = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in tensors(false) {
        let end = at + n_bytes(&shape, 2);
        entries.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let json = Json::Object(entries).to_string();
    let header = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    sparse(&dir.join("model.safetensors"), &header, header.len() + at)
}

fn base(path: &Path) -> usize {
    let mut at = 0;
    let entries: Vec<Json> = tensors(false)
        .into_iter()
        .map(|(name, shape)| {
            let length = n_bytes(&shape, 2);
            let entry = json!({
                "name": name, "dtype": "bf16", "shape": shape, "offset": at, "length": length, "checksum_xxh64": 1,
            });
            at = (at + length).next_multiple_of(16 << 10);
            entry
        })
        .collect();
    let json = json!({
        "schema": 1, "arch": "llama", "config": config(), "ingle": { "naming": "hugging_face" }, "tensors": entries,
    });
    let json = json.to_string();
    let mut header = b"BASE\x01\0\0\0".to_vec();
    header.extend((json.len() as u64).to_le_bytes());
    header.extend(json.as_bytes());
    header.resize(header.len().next_multiple_of(64 << 10), 0);
    sparse(path, &header, header.len() + at)
}

/// Memory and file accesses of a process, in bytes.
#[derive(Debug)]
struct Touched {
    /// Resident pages of the mapped file. Each would have been read from the disk.
    mapped: u64,
    /// Bytes that `read` and similar calls returned, of all files together (`rchar`).
    read: u64,
    /// Peak resident memory, including code and the mapped pages (`VmHWM`).
    peak: u64,
}

/// Sum of the numbers before ` kB` in the lines that begin with `key`, in bytes.
fn kilobytes<'a>(lines: impl Iterator<Item = &'a str>, key: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
    lines.filter_map(number).map(|n| n << 10).sum()
}

/// Runs `ingle inspect --json`, and measures it while it waits for a reader.
fn inspect(model: &Path, weights: &Path, more: &[&str]) -> (Touched, Json) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(["inspect", model.to_str().unwrap(), "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut output = vec![0];
    stdout.read_exact(&mut output).unwrap();
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let (smaps, status, io) = (of("smaps"), of("status"), of("io"));
    stdout.read_to_end(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        output.len() > PIPE_BYTES + 1,
        "{} bytes: it may have ended before it was looked at",
        output.len()
    );

    // The first line of a mapping ends with its file; `Rss:` is in a later line.
    let mut ours = false;
    let of_the_file = smaps.lines().filter(|line| {
        let is_head = line.split(' ').next().is_some_and(|range| range.contains('-'));
        if is_head {
            ours = line.ends_with(weights.to_str().unwrap());
        }
        ours && !is_head
    });
    let touched = Touched {
        mapped: kilobytes(of_the_file, "Rss:"),
        read: io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap(),
        peak: kilobytes(status.lines(), "VmHWM:"),
    };
    (touched, serde_json::from_slice(&output).unwrap())
}

/// Cached pages that a page fault maps around the requested page.
const FAULT_AROUND: u64 = 64 << 10;

fn check(model: &Path, weights: &Path, n_header: usize) {
    let (touched, json) = inspect(model, weights, &[]);
    println!("{}: header of {n_header} bytes: {touched:?}", json["format"]);
    assert_eq!(json["tensors"].as_array().unwrap().len(), 9 * N_LAYERS + 3);
    assert_eq!(json["family"], "LLaMA", "{}", json["error"]);
    assert!(json["bytes"].as_u64().unwrap() > 16 << 30);
    // The header, and the pages around its last fault.
    let of_the_map = n_header as u64 + 2 * FAULT_AROUND;
    assert!(touched.mapped > 0, "no mapping of the file was found");
    assert!(touched.mapped <= of_the_map, "{} bytes of the file, expected {of_the_map}", touched.mapped);
    // config.json, the loader's libraries, and files of the system about the machine.
    assert!(touched.read < 1 << 20, "{} bytes read", touched.read);
    // The header is parsed and printed. The binary itself has some megabytes.
    assert!(touched.peak < 64 << 20, "{} bytes at the most", touched.peak);
}

#[test]
fn a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let n_header = gguf(&path);
    check(&path, &path, n_header);
}

#[test]
fn a_safetensors_folder() {
    let dir = tempfile::tempdir().unwrap();
    let n_header = safetensors(dir.path());
    check(dir.path(), &dir.path().join("model.safetensors"), n_header);
}

#[test]
fn a_base_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.base");
    let n_header = base(&path);
    check(&path, &path, n_header);
}

/// Printing the forward pass needs names and shapes. The only values read are vectors that are
/// computed in f32 but stored in another type.
#[test]
fn a_plan_reads_no_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let n_header = safetensors(dir.path());
    let (touched, json) = inspect(dir.path(), &dir.path().join("model.safetensors"), &["--plan"]);
    println!("with --plan: {touched:?}");
    assert!(json["plan"].as_array().unwrap().len() > 10 * N_LAYERS);
    // Each norm is in one or two ranges of a page fault.
    let norms = (2 * N_LAYERS as u64 + 1) * 2 * FAULT_AROUND;
    assert!(touched.mapped <= n_header as u64 + norms, "{} bytes of the file", touched.mapped);
}
