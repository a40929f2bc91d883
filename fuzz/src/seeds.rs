//! Seeds of the targets, made from the fixtures of the tests.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::files::fixture;
use crate::texts::formats;

/// Longest fixture that is used as a seed, in bytes. A fuzzer is slow on long inputs.
const MAX_SEED: u64 = 128 << 10;

fn read(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| std::fs::read(fixture(name)).expect("a fixture")).collect()
}

/// Joins two files into one input.
fn joined(first: &str, second: &str) -> Vec<u8> {
    let [a, b] = [first, second].map(|name| std::fs::read(fixture(name)).expect("a fixture"));
    [a, vec![0], b].concat()
}

/// Lists the folders in a fixture folder.
fn folders(name: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(fixture(name))
        .expect("a folder of fixtures")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

/// Builds a GGUF file of encoded metadata pairs and of tensors with two F32 values each.
fn gguf_file(pairs: &[(&str, Vec<u8>)], tensors: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        out.extend(text(key));
        out.extend(value);
    }
    for (i, name) in tensors.iter().enumerate() {
        out.extend(text(name));
        out.extend([1, 0, 0, 0]);
        out.extend(2u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((32 * i as u64).to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(vec![0; 32 * tensors.len()]);
    out
}

fn gguf_text(text: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn gguf_int(n: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), n.to_le_bytes()].concat()
}

fn gguf_texts(texts: &[&str]) -> Vec<u8> {
    let mut out = [9u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
    out.extend((texts.len() as u64).to_le_bytes());
    for text in texts {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    out
}

pub(crate) fn gguf() -> Vec<Vec<u8>> {
    let llama = [
        ("general.architecture", gguf_text("llama")),
        ("llama.block_count", gguf_int(1)),
        ("llama.embedding_length", gguf_int(2)),
        ("llama.feed_forward_length", gguf_int(2)),
        ("llama.attention.head_count", gguf_int(1)),
        ("llama.context_length", gguf_int(8)),
        ("tokenizer.ggml.model", gguf_text("gpt2")),
        ("tokenizer.ggml.tokens", gguf_texts(&["a", "b", "ab", "Ġ"])),
        ("tokenizer.ggml.merges", gguf_texts(&["a b"])),
    ];
    let tensors = ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"];
    vec![gguf_file(&llama, &tensors), gguf_file(&[], &[]), gguf_file(&llama[..7], &[])]
}

pub(crate) fn safetensors() -> Vec<Vec<u8>> {
    let file = |header: Value, n: usize| {
        let header = header.to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; n]].concat()
    };
    let tensor = |kind: &str, end: usize| json!({ "dtype": kind, "shape": [2], "data_offsets": [0, end] });
    vec![
        file(json!({ "a": tensor("F32", 8), "__metadata__": { "format": "pt" } }), 8),
        file(
            json!({ "a": tensor("BF16", 4), "b": { "dtype": "F16", "shape": [0], "data_offsets": [4, 4] } }),
            4,
        ),
        file(json!({ "a": tensor("I64", 16) }), 16),
    ]
}

pub(crate) fn base() -> Vec<Vec<u8>> {
    use std::io::Cursor;
    use weights::{BlockType, Metadata, Naming, PlaneSlices};

    let mut writer = formats::base::BaseWriter::new("seed", Naming::HuggingFace);
    writer.page(6);
    writer.metadata(&Metadata::default()).expect("no metadata");
    writer.tensor("a", &[2, 2], BlockType::F32).expect("a tensor");
    let mut body = writer.begin(Cursor::new(Vec::new())).expect("a header");
    body.tensor_data(&[0; 16], PlaneSlices::default()).expect("its bytes");
    vec![body.finish().expect("a file").into_inner(), formats::base::MAGIC.to_vec()]
}

pub(crate) fn mlx() -> Vec<Vec<u8>> {
    vec![
        joined("formats/mlx/config.json", "formats/mlx/model-00001-of-00002.safetensors"),
        [br#"{"model_type":"llama","quantization":{"bits":4,"group_size":64}}"#, &[0][..], &safetensors()[0]]
            .concat(),
    ]
}

pub(crate) fn ctranslate2() -> Vec<Vec<u8>> {
    let files = folders("formats/ctranslate2").into_iter().map(|folder| folder.join("model.bin"));
    let small = files.filter(|file| file.metadata().is_ok_and(|data| data.len() <= MAX_SEED));
    let mut seeds: Vec<Vec<u8>> = small.filter_map(|file| std::fs::read(file).ok()).collect();
    // Long files are truncated: only their headers matter.
    seeds.extend(read(&["formats/ctranslate2/int8/model.bin"]).into_iter().map(|mut file| {
        file.truncate(4096);
        file
    }));
    seeds
}

pub(crate) fn whisper_cpp() -> Vec<Vec<u8>> {
    let mut file = Vec::new();
    // ggml's magic, the hyperparameters of a tiny model in whisper.cpp's order, mel filters,
    // tokens, and one tensor.
    file.extend(0x6767_6d6cu32.to_le_bytes());
    for n in [4i32, 8, 4, 1, 1, 8, 4, 1, 1, 2, 0] {
        file.extend(n.to_le_bytes());
    }
    for n in [2i32, 2] {
        file.extend(n.to_le_bytes());
    }
    file.extend([0; 16]);
    file.extend(1i32.to_le_bytes());
    file.extend(1i32.to_le_bytes());
    file.push(b'a');
    for n in [1i32, 1, 0, 2] {
        file.extend(n.to_le_bytes());
    }
    file.push(b'w');
    file.extend([0; 8]);
    vec![file]
}

pub(crate) fn lora() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = ["llama_qv", "llama_patterns"]
        .iter()
        .map(|name| {
            joined(
                &format!("lora/{name}/adapter_config.json"),
                &format!("lora/{name}/adapter_model.safetensors"),
            )
        })
        .collect();
    let pairs = [
        ("general.type", gguf_text("adapter")),
        ("general.architecture", gguf_text("llama")),
        ("adapter.type", gguf_text("lora")),
        ("adapter.lora.alpha", [6u32.to_le_bytes(), 8f32.to_le_bytes()].concat()),
    ];
    seeds.push(gguf_file(&pairs, &["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"]));
    seeds
}

pub(crate) fn mmproj() -> Vec<Vec<u8>> {
    read(&["formats/mmproj/gemma4_vl.gguf"])
}

pub(crate) fn tokenizer() -> Vec<Vec<u8>> {
    let bpe = json!({
        "version": "1.0", "added_tokens": [{ "id": 3, "content": "<s>", "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": { "H": 0, "e": 1, "He": 2 }, "merges": ["H e"] }
    });
    let unigram = json!({
        "version": "1.0", "added_tokens": [], "normalizer": { "type": "NFKC" },
        "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" },
        "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" },
        "model": { "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -1.0], ["H", -2.0]], "byte_fallback": false }
    });
    [bpe, unigram].iter().map(|json| [json.to_string().as_bytes(), b"\0Hello <s>"].concat()).collect()
}

/// Published templates, and templates that exhaust memory, stack or time unless a limit stops them.
pub(crate) fn template() -> Vec<Vec<u8>> {
    let bombs = include_str!("../seeds/template/bombs.txt");
    let mut seeds: Vec<Vec<u8>> = bombs
        .split("\n=== ")
        .skip(1)
        .filter_map(|bomb| bomb.split_once('\n'))
        .map(|(_, source)| source.trim_end().as_bytes().to_vec())
        .filter(|source| source.len() < 400)
        // A hundred thousand repetitions take seconds in a build with overflow checks.
        .filter(|source| !String::from_utf8_lossy(source).contains("00)"))
        .collect();
    for body in
        ["{% set ns.x = ns.x ~ ns.x %}", "{% set ns.y = ns.y + ns.y %}", "{% set ns.y = [ns.y, ns.y] %}"]
    {
        seeds.push([b"!loop\n", body.as_bytes()].concat());
    }
    let json = read(&["chat_templates/chat_templates.json"]).concat();
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let published = json["templates"].as_object().into_iter().flatten().map(|(_, source)| source);
    let probes = json["probes"].as_array().into_iter().flatten().map(|probe| &probe["source"]);
    seeds.extend(published.chain(probes).filter_map(|source| Some(source.as_str()?.as_bytes().to_vec())));
    seeds
}

pub(crate) fn grammar() -> Vec<Vec<u8>> {
    [
        r#"s{"type":"object","properties":{"a":{"type":"string","pattern":"^a+$","maxLength":3},"b":{"enum":[1,"x",null]}},"required":["a"]}"#,
        r##"s{"$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":2}},"$ref":"#/$defs/n"}"##,
        r#"s{"anyOf":[{"type":"integer","minimum":0},{"allOf":[{"type":"string"},{"format":"date"}]}],"not":{}}"#,
        r"r[a-z]{2,5}(x|y)*\d",
        "groot ::= \"a\" (b | [0-9]+) \"c\"?\nb ::= \"x\" b*",
        "groot ::= b\nb ::= .************** \"\" .********************* b**",
        "lstart: \"a\" b | /[0-9]+/\nb: \"x\"",
        "cyes\nno\nnot sure",
        "t\\{\"name\": (\\d)",
    ]
    .iter()
    .map(|seed| seed.as_bytes().to_vec())
    .collect()
}

pub(crate) fn answer() -> Vec<Vec<u8>> {
    let texts = [
        "Let me see. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "<think>why\n</think>\n\n<tool_call>\n<function=read_file>\n<parameter=path>\na/b\n</parameter>\n</function>\n</tool_call>",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}]",
        "[TOOL_CALLS]f[ARGS]{\"x\": 1}",
        "[TOOL_CALLS]f[ARGS]{\"",
        "{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>",
        "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_call_start|>[f(x=1), read_file(path='a', n=2)]<|tool_call_end|>",
        "no call { at [ all < here",
    ];
    let mut seeds = Vec::new();
    for format in 0..formats().len() as u8 {
        for (i, text) in texts.iter().enumerate() {
            seeds.push([&[format, i as u8], text.as_bytes()].concat());
        }
    }
    seeds
}

pub(crate) fn audio() -> Vec<Vec<u8>> {
    let names =
        ["audio/tones.flac", "audio/tones.m4a", "audio/tones.mp3", "audio/tones.ogg", "audio/tones.opus"];
    // The first frames contain every structure that a decoder parses.
    let cut = |mut file: Vec<u8>| {
        file.truncate(16 << 10);
        file
    };
    read(&names)
        .into_iter()
        .map(cut)
        .chain(wav().into_iter().map(|data| [b"RIFF\xff\xff\xff\xffWAVE", &data[..]].concat()))
        .collect()
}

/// Chunks that follow the `WAVE` tag.
pub(crate) fn wav() -> Vec<Vec<u8>> {
    let format = |tag: u16, channels: u16, bits: u16| {
        let mut out = b"fmt \x10\0\0\0".to_vec();
        out.extend(tag.to_le_bytes());
        out.extend(channels.to_le_bytes());
        out.extend(16_000u32.to_le_bytes());
        out.extend((16_000 * u32::from(channels) * u32::from(bits) / 8).to_le_bytes());
        out.extend((channels * bits / 8).to_le_bytes());
        out.extend(bits.to_le_bytes());
        out
    };
    let data = |len: u32, n: usize| [b"data", &len.to_le_bytes()[..], &vec![1; n]].concat();
    vec![
        [format(1, 1, 16), data(3200, 3200)].concat(),
        [format(3, 2, 32), data(800, 800)].concat(),
        [format(1, 2, 24), data(600, 600)].concat(),
        [format(6, 1, 8), data(100, 100)].concat(),
        // Lengths of zero, as a program leaves them that was stopped while writing.
        [format(1, 1, 16), data(u32::MAX, 320)].concat(),
        [format(1, 1, 16), data(0, 320)].concat(),
        [format(1, 1, 16), b"LIST\x04\0\0\0INFO".to_vec(), data(320, 320)].concat(),
    ]
}

pub(crate) fn image() -> Vec<Vec<u8>> {
    // Pictures of two by two pixels, in each format that is read.
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDAT\x08\xd7c\xf8\xcf\xc0\0\0\x03\x01\x01\0\x18\xdd\x8d\xb0\0\0\0\0IEND\xaeB`\x82";
    let webp = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\0\0\0\x10\x07\x10\x11\x11\x88\x88\xfe\x07\0";
    let jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xdb\0\x43\0";
    vec![png.to_vec(), webp.to_vec(), jpeg.to_vec()]
}
