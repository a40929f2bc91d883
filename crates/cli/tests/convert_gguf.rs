//! `ingle convert --to gguf` from models with Hugging Face's names: the real binary with fixtures
//! and the catalog's sentence model (fetched into the user's cache on first use).
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use crate::common;
use std::path::Path;

use crate::common::{error, fixture, ids, ingle, json, ok, top};
use serde_json::{Value, json};
use tempfile::TempDir;
use weights::{Access, BlockType, Checkpoint};

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

fn model(name: &str) -> String {
    text(fixture("models").join(name))
}

fn open(path: &str) -> Checkpoint {
    formats::open(Path::new(path), Access::Map).unwrap()
}

/// Converts a fixture to GGUF; returns the path and stderr.
fn converted(dir: &TempDir, source: &str, to: &str) -> (String, String) {
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let output = text(dir.path().join(format!("{name}_{}.gguf", to.replace(':', "_"))));
    let out = ingle(&["convert", source, "-o", &output, "--to", to]);
    let notes = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{source}: {notes}");
    (output, notes)
}

/// All logits of a few tokens, by position and token.
fn logits(path: &str, device: &str) -> Vec<f64> {
    let tokens = (0..24).map(|i| (i * 37 % 150 + 3).to_string()).collect::<Vec<_>>().join(",");
    let args = ["logits", path, "--tokens", &tokens, "--device", device, "--top", "160", "--json"];
    let mut rows = top(&json(&args)["top"]);
    rows.iter_mut().for_each(|row| row.sort_by_key(|(id, ..)| *id));
    rows.into_iter().flatten().map(|(_, logit, _)| logit).collect()
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// RMS of the difference, relative to the RMS of `b`.
fn relative(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    (square(&mut a.iter().zip(b).map(|(a, b)| a - b)) / square(&mut b.iter().copied())).sqrt()
}

/// Tolerance of f32 arithmetic in another order: RoPE divisors are rounded to f32, and factors are
/// combined.
const TOLERANCE: f64 = 1e-3;

#[test]
fn every_family_that_gguf_can_say_answers_the_same() {
    let dir = dir();
    for name in [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3",
        "smollm3",
        "phi3",
        "granite",
        "olmo2",
        "qwen3_moe",
        "gemma4_e2b",
        "gemma4_moe",
        "gemma3n_beyond",
    ] {
        let (output, notes) = converted(&dir, &model(name), "gguf");
        assert!(notes.contains("no tokenizer.json"), "{name}: {notes}");
        let worst = worst(&logits(&output, "reference"), &logits(&model(name), "reference"));
        assert!(worst < TOLERANCE, "{name}: {worst}");
        let keys = open(&output).metadata;
        assert_eq!((keys.str("general.name"), keys.usize("general.file_type")), (Some(name), Some(32)));
    }
}

#[test]
fn a_base_file_under_hugging_face_names_becomes_the_same_gguf_file() {
    let dir = dir();
    let base = text(dir.path().join("qwen3.base"));
    ok(&["convert", &model("qwen3"), "-o", &base]);
    let (from_base, _) = converted(&dir, &base, "gguf");
    let (from_folder, _) = converted(&dir, &model("qwen3"), "gguf:bf16");
    assert_eq!(std::fs::read(from_base).unwrap(), std::fs::read(from_folder).unwrap());
}

#[test]
fn quantised_files_load_and_run() {
    let dir = dir();
    for (to, block, file_type) in [
        ("gguf:f32", BlockType::F32, 0),
        ("gguf:q8_0", BlockType::Q8_0, 7),
        ("gguf:q4_1", BlockType::Q4_1, 3),
        // Rows of 64 values are not whole blocks of 256.
        ("gguf:q4_k", BlockType::Q5_0, 15),
    ] {
        let (output, _) = converted(&dir, &model("llama"), to);
        let file = open(&output);
        assert_eq!(file.tensor("blk.0.ffn_up.weight").unwrap().block, block);
        assert_eq!(file.metadata.usize("general.file_type"), Some(file_type), "{to}");
        // The model of the dequantised values. The CPU also rounds activations, so logits of random
        // weights differ as much as the device's own tests allow.
        let (decoded, _) = converted(&dir, &output, "gguf:f32");
        let expected = logits(&decoded, "reference");
        for (device, bound) in [("reference", 1e-4), ("cpu", 0.15)] {
            let off = relative(&logits(&output, device), &expected);
            assert!(off < bound, "{to} on {device}: {off}");
        }
        // Measured: 0.06.
        if block == BlockType::Q8_0 {
            let off = relative(&expected, &logits(&model("llama"), "reference"));
            assert!(off < 0.1, "{off}");
        }
    }
}

/// A tokenizer like GPT-2's, with special tokens and a few words.
fn tokenizer() -> Value {
    let mut vocab = json!({"<|end|>": 0, "<s>": 1});
    for c in ('!'..='~').chain(['Ġ', 'Ã', '©']) {
        vocab[c.to_string()] = json!(vocab.as_object().unwrap().len());
    }
    for word in ["he", "ll", "Ġhe", "llo"] {
        vocab[word] = json!(vocab.as_object().unwrap().len());
    }
    let mark = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [mark(0, "<|end|>"), mark(1, "<s>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": ["h e", "l l", "Ġ he", "ll o"]}
    })
}

#[test]
fn the_tokenizer_goes_along_from_folders_and_base_files() {
    let dir = dir();
    let folder = dir.path().join("with-words");
    std::fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("models/llama").join(file), folder.join(file)).unwrap();
    }
    let config = json!({"bos_token": "<s>", "eos_token": "<|end|>", "add_bos_token": true,
                        "chat_template": "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"});
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    let folder = text(folder);
    let base = text(dir.path().join("with-words.base"));
    ok(&["convert", &folder, "-o", &base]);

    let ids = |path: &str, said: &str| ids(&json(&["tokenize", path, said, "--json"])["tokens"]);
    for (source, to) in [(&folder, "gguf"), (&base, "gguf:f32")] {
        let (output, notes) = converted(&dir, source, to);
        assert!(notes.contains("NFC") && !notes.contains("no tokenizer"), "{notes}");
        for said in ["hello hello", "he said: \u{e9}<|end|>!", "  1234 ll"] {
            assert_eq!(ids(&output, said), ids(&folder, said), "{said:?}");
        }
        let keys = open(&output).metadata;
        assert_eq!(keys.str("tokenizer.chat_template"), config["chat_template"].as_str());
        assert_eq!(keys.str("general.name"), Some("with-words"));
        let complete = |path: &str| ok(&["complete", path, "-p", "hello", "-n", "5", "--greedy"]);
        assert_eq!(complete(&output), complete(&folder));
    }

    let mut unknown = tokenizer();
    unknown["pre_tokenizer"] = json!({"type": "Whitespace"});
    std::fs::write(Path::new(&folder).join("tokenizer.json"), unknown.to_string()).unwrap();
    let output = text(dir.path().join("no.gguf"));
    let message = error(&["convert", &folder, "-o", &output, "--to", "gguf"]);
    assert!(message.contains("tokenizer") && message.contains("Whitespace"), "{message}");
    assert!(!Path::new(&output).exists());
}

#[test]
fn a_sentence_model_embeds_the_same() {
    let dir = dir();
    let (source, to) = (ok(&["pull", "minilm:l6"]).trim().to_owned(), "gguf");
    let (output, notes) = converted(&dir, &source, to);
    assert!(notes.contains("256 tokens") && !notes.contains("no tokenizer"), "{notes}");
    let said = ["A cat sits on the mat", "zebra \u{e9}t\u{e9}, na\u{ef}ve", "unaffable"];
    let embed = |path: &str| {
        let args = [&["embed", path, "--device", "reference", "--json", "--"][..], &said].concat();
        let rows = json(&args)["embeddings"].clone();
        let numbers = |row: &Value| row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        rows.as_array().unwrap().iter().map(numbers).collect::<Vec<Vec<f64>>>().concat()
    };
    let worst = worst(&embed(&output), &embed(&source));
    assert!(worst < 1e-5, "{worst}");
    for said in said {
        let ids = |path: &str| json(&["tokenize", path, said, "--json"])["tokens"].clone();
        assert_eq!(ids(&output), ids(&source));
    }
}

#[test]
fn what_gguf_cannot_say_is_refused_and_leaves_nothing() {
    let dir = dir();
    let output = text(dir.path().join("out.gguf"));
    for (name, parts) in [
        // One dense layer among layers with experts.
        ("qwen2_moe", &["layer 1, experts"][..]),
        ("whisper", &["GGUF"]),
    ] {
        let message = error(&["convert", &model(name), "-o", &output, "--to", "gguf"]);
        assert!(parts.iter().all(|part| message.contains(part)), "{name}: {message}");
    }
    // GGUF has no block type with groups of 64 and BF16 scales.
    let base = text(dir.path().join("llama.base"));
    ok(&["convert", &model("llama"), "-o", &base, "--to", "q4"]);
    let message = error(&["convert", &base, "-o", &output, "--to", "gguf"]);
    assert!(message.contains("BF16") && message.contains("--requantize"), "{message}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only llama.base");
    ok(&["convert", &base, "-o", &output, "--to", "gguf:f32"]);
    assert!(relative(&logits(&output, "reference"), &logits(&base, "reference")) < 1e-5);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing_behind() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let dir = dir();
    let source = common::SMOLLM2.path();
    let output = text(dir.path().join("out.base"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(["convert", &source, "-o", &output, "--to", "q4", "--requantize"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while std::fs::read_dir(dir.path()).unwrap().next().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was written");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
