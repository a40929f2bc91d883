//! Tests of prompts that one engine computes and another reads from a file, and of damaged files.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use device::{Device, KvType, Numerics};
use device_reference::Reference;
use ingle_engine::*;

/// Families with full attention only, with windows only, and with both.
const MODELS: [&str; 3] = ["llama", "mistral", "gemma3"];

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 150).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Compute a prompt and an answer, and save the prompt.
fn keep(engine: &mut Engine, file: &Path, prompt: &[u32]) -> usize {
    let mut cache = PromptCache::open(engine, file).unwrap();
    engine.complete(greedy(prompt, 20)).unwrap();
    cache.save(engine, prompt).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_prompt_is_found_again_by_another_engine() {
    for name in MODELS {
        for n in [1, 15, 16, 40, 75, 130] {
            let folder = folder();
            let file = folder.path().join("prompt");
            let load = options(160, 16, 1);
            let n_kept = keep(&mut engine(name, &load), &file, &prompt(n));
            // A window has freed pages before the last full page, and a page is saved only where it
            // is usable.
            assert!(n_kept == n || (name != "llama" && n_kept == n / 16 * 16), "{name}: {n_kept} of {n}");
            if n_kept == 0 {
                assert!(files(folder.path()).is_empty(), "nothing to keep");
                continue;
            }
            assert_eq!(files(folder.path()), std::slice::from_ref(&file), "nothing else is left behind");
            let mut other = engine(name, &load);
            let cache = PromptCache::open(&mut other, &file).unwrap();
            assert_eq!(cache.n_tokens(), n_kept);
            other.kv().check().unwrap();
            // An equal prompt, a longer one, and one that diverges.
            let longer = [&prompt(n)[..], &[3, 1, 4, 1, 5]].concat();
            let mut astray = prompt(n);
            astray[n / 2] = 159;
            for (prompt, n_same) in [(prompt(n), n_kept.min(n - 1)), (longer, n_kept), (astray, n / 2)] {
                let got = other.complete(greedy(&prompt, 20)).unwrap();
                assert_eq!(got.tokens, continuation(other.model(), &prompt, 20), "{name}, {n} tokens");
                let reused = got.finished.timings.reused_tokens;
                if name == "llama" {
                    assert_eq!(reused, n_same);
                } else {
                    assert!(reused >= n_same / 16 * 16 || n_same == n / 2, "{name}: {reused} of {n_same}");
                }
                other.kv().check().unwrap();
            }
        }
    }
}

#[test]
fn a_file_is_written_only_where_there_is_something_new() {
    let folder = folder();
    let file = folder.path().join("prompt");
    let mut engine = engine("llama", &options(160, 16, 1));
    assert_eq!(keep(&mut engine, &file, &prompt(60)), 60);
    let before = std::fs::read(&file).unwrap();
    // Opening a file does not create it.
    let mut cache = PromptCache::open(&mut engine, &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    for n in [60, 40] {
        engine.complete(greedy(&prompt(n), 3)).unwrap();
        assert_eq!(cache.save(&mut engine, &prompt(n)).unwrap(), 60, "what it holds is more");
    }
    assert!(!file.exists());
    std::fs::write(&file, &before).unwrap();
    let longer = prompt(90);
    engine.complete(greedy(&longer, 3)).unwrap();
    assert_eq!(cache.save(&mut engine, &longer).unwrap(), 90);
    assert!(std::fs::read(&file).unwrap().len() > before.len());
    // A failed write keeps the old file.
    let none = folder.path().join("no such folder").join("prompt");
    let mut cache = PromptCache::open(&mut engine, &none).unwrap();
    let error = cache.save(&mut engine, &longer).unwrap_err().to_string();
    assert!(error.contains("cannot be written"), "{error}");
    let error = PromptCache::open(&mut engine, folder.path()).unwrap_err().to_string();
    assert!(error.contains("no file"), "{error}");
}

#[test]
fn a_shorter_context_takes_what_fits() {
    for name in MODELS {
        let folder = folder();
        let file = folder.path().join("prompt");
        keep(&mut engine(name, &options(400, 64, 1)), &file, &prompt(300));
        let mut short = engine(name, &options(90, 16, 1));
        PromptCache::open(&mut short, &file).unwrap();
        short.kv().check().unwrap();
        let got = short.complete(greedy(&prompt(85), 4)).unwrap();
        assert_eq!(got.tokens, continuation(short.model(), &prompt(85), 4), "{name}");
        assert!(name != "llama" || got.finished.timings.reused_tokens == 80);
    }
}

#[test]
fn files_of_others_are_refused_and_stay() {
    let folder = folder();
    let file = folder.path().join("prompt");
    let load = || options(160, 16, 1);
    keep(&mut engine("llama", &load()), &file, &prompt(60));
    let before = std::fs::read(&file).unwrap();
    let refused = |device: Arc<dyn Device>, name: &str, options: LoadOptions| {
        let mut engine = Engine::new(model(name), &device, &options).unwrap();
        let error = PromptCache::open(&mut engine, &file).unwrap_err();
        assert!(matches!(error, Error::PromptCache { .. }));
        assert_eq!(std::fs::read(&file).unwrap(), before);
        assert_eq!(engine.complete(greedy(&prompt(60), 3)).unwrap().finished.timings.reused_tokens, 0);
        error.to_string()
    };
    let history = || Arc::new(History::default()) as Arc<dyn Device>;
    assert!(refused(history(), "qwen2", load()).contains("another model"));
    let error =
        refused(Arc::new(Reference::new(1)), "llama", LoadOptions { kv_type: Some(KvType::F16), ..load() });
    assert!(error.contains("device history, and this is reference"), "{error}");
    let error = refused(history(), "llama", LoadOptions { kv_type: Some(KvType::F32), ..load() });
    assert!(error.contains("KV type f16, and this is f32"), "{error}");
    let error = refused(history(), "llama", LoadOptions { numerics: Numerics::Deterministic, ..load() });
    assert!(error.contains("arithmetic fast, and this is deterministic"), "{error}");
    let error = refused(history(), "llama", LoadOptions { page_len: Some(32), ..load() });
    assert!(error.contains("16 positions"), "{error}");
}

/// Any change, truncation or addition gives an error, without a panic and without a cached row.
#[test]
fn damaged_files_are_refused() {
    for name in ["llama", "gemma3"] {
        let folder = folder();
        let file = folder.path().join("prompt");
        let load = options(96, 16, 1);
        let n_kept = keep(&mut engine(name, &load), &file, &prompt(40));
        let good = std::fs::read(&file).unwrap();
        let mut engine = engine(name, &load);
        let mut refuse = |bytes: &[u8], what: &str| {
            std::fs::write(&file, bytes).unwrap();
            let error = PromptCache::open(&mut engine, &file).unwrap_err();
            assert!(matches!(error, Error::PromptCache { .. }), "{what}: {error}");
            engine.kv().check().unwrap();
            assert_eq!((engine.kv().prefix().n_nodes(), engine.kv().usage(0).0), (0, 0), "{what}");
            error.to_string()
        };
        let step = good.len() / 300;
        for at in (0..700).chain((700..good.len()).step_by(step)).chain(good.len() - 8..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            refuse(&bad, &format!("{name}, byte {at}"));
        }
        for len in (0..700).chain((700..good.len()).step_by(step)).chain([good.len() - 1]) {
            refuse(&good[..len], &format!("{name}, {len} bytes"));
        }
        assert!(refuse(&[&good[..], &[0]].concat(), "longer").contains("damaged"));
        let mut bad = good.clone();
        let last = good.len() - 20;
        bad[last] ^= 1;
        assert!(refuse(&bad, "a page").contains("checksum"));
        assert!(refuse(b"GGUF of course not", "another format").contains("no prompt cache"));
        bad = good.clone();
        bad[8] = 9;
        assert!(refuse(&bad, "version").contains("version 9, expected 3"));
        // Counts that would exhaust the memory if they were believed.
        bad = good.clone();
        bad[12..16].fill(0xff);
        assert!(refuse(&bad, "header length").contains("at most 65536"));
        let n_header = u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&good[16..16 + n_header]).unwrap();
        for n_tokens in [0u64, 1 << 24, (1 << 24) + 1, u64::MAX] {
            let mut header = header.clone();
            header["n_tokens"] = n_tokens.into();
            let text = serde_json::to_vec(&header).unwrap();
            let length = (text.len() as u32).to_le_bytes();
            let bad = [&good[..12], &length, &text, &good[16 + n_header..]].concat();
            assert!(refuse(&bad, "tokens").contains("damaged"), "{n_tokens}");
        }
        // The good file still works in the engine that read all of these.
        std::fs::write(&file, &good).unwrap();
        assert_eq!(PromptCache::open(&mut engine, &file).unwrap().n_tokens(), n_kept);
        let got = engine.complete(greedy(&prompt(40), 5)).unwrap();
        assert_eq!(got.tokens, continuation(engine.model(), &prompt(40), 5));
        assert!(got.finished.timings.reused_tokens >= 32);
    }
}

/// Saved rows are used bit for bit: not one bit of an answer changes.
#[test]
fn real_devices_answer_the_same_to_the_bit() {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    let devices: [Arc<dyn Device>; 2] = [Arc::new(Reference::new(1)), Arc::new(cpu)];
    for (device, name) in devices.iter().flat_map(|d| FAMILIES.map(|name| (d, name))) {
        for &kv_type in device.kv_types().iter().filter(|k| **k != KvType::Q8_0) {
            let folder = folder();
            let file = folder.path().join("prompt");
            let load = LoadOptions {
                kv_type: Some(kv_type),
                numerics: Numerics::Deterministic,
                ..options(96, 24, 1)
            };
            let input = expected(name).input;
            let request = || Request {
                sampling: SamplingParams { logprobs: true, ..SamplingParams::greedy() },
                ignore_end: true,
                ..greedy(&input, 12)
            };
            let mut first = Engine::new(model(name), device, &load).unwrap();
            let mut cache = PromptCache::open(&mut first, &file).unwrap();
            let want = first.complete(request()).unwrap();
            cache.save(&mut first, &input).unwrap();
            let mut second = Engine::new(model(name), device, &load).unwrap();
            PromptCache::open(&mut second, &file).unwrap();
            let got = second.complete(request()).unwrap();
            assert!(got.finished.timings.reused_tokens >= 32, "{name}");
            assert_eq!((got.tokens, got.logprobs), (want.tokens, want.logprobs), "{name}, {kv_type:?}");
        }
    }
}

/// An engine that keeps its prefixes in a folder, and the result of opening the folder.
fn keeping(folder: &Path, max_bytes: u64) -> (Engine, Restored) {
    let mut engine = engine("llama", &options(160, 16, 2));
    let restored = engine.keep_prefixes(folder, max_bytes).unwrap();
    (engine, restored)
}

fn with_salt(prompt: &[u32], salt: u64) -> Request {
    Request { salt, ..greedy(prompt, 4) }
}

fn prefix_files(folder: &Path) -> Vec<PathBuf> {
    files(folder).iter().flat_map(|below| files(below)).collect()
}

#[test]
fn prefixes_outlive_an_engine_each_for_its_own_tenant() {
    let folder = folder();
    let (mut first, restored) = keeping(folder.path(), u64::MAX);
    assert_eq!(restored, Restored::default());
    let answered = first.complete(with_salt(&prompt(64), 7)).unwrap();
    let other: Vec<u32> = prompt(64).iter().map(|token| (token + 1) % 150).collect();
    first.complete(with_salt(&other, 0)).unwrap();
    first.complete(with_salt(&prompt(9), 0)).unwrap();
    // The short prefix is not saved, and nothing is written twice.
    assert_eq!(first.save_prefixes(&mut || true).unwrap(), 2);
    assert_eq!(first.save_prefixes(&mut || true).unwrap(), 0);
    // A longer prefix replaces the one that it begins with.
    let longer = [&prompt(64)[..], &prompt(30)].concat();
    first.complete(with_salt(&longer, 7)).unwrap();
    assert_eq!(first.save_prefixes(&mut || false).unwrap(), 0, "nobody has time");
    assert!(first.save_prefixes(&mut || true).unwrap() >= 1);
    drop(first);
    let (mut second, restored) = keeping(folder.path(), u64::MAX);
    assert!(restored.n_prefixes >= 2 && restored.notes.is_empty(), "{restored:?}");
    second.kv().check().unwrap();
    let again = second.complete(with_salt(&prompt(64), 7)).unwrap();
    assert_eq!(again.tokens, answered.tokens);
    assert_eq!(again.finished.timings.reused_tokens, 63);
    let stranger = second.complete(with_salt(&prompt(64), 8)).unwrap();
    assert_eq!(stranger.finished.timings.reused_tokens, 0);
    assert_eq!(stranger.tokens, answered.tokens);
}

#[test]
fn files_of_prefixes_that_are_damaged_go_and_the_rest_stays_within_its_bound() {
    let folder = folder();
    let (mut first, _) = keeping(folder.path(), u64::MAX);
    let prompts: Vec<Vec<u32>> =
        (0..3).map(|n| prompt(48).iter().map(|token| (token + n) % 150).collect()).collect();
    for prompt in &prompts {
        first.complete(with_salt(prompt, 0)).unwrap();
    }
    assert_eq!(first.save_prefixes(&mut || true).unwrap(), 3);
    let written = prefix_files(folder.path());
    let bytes = std::fs::metadata(&written[0]).unwrap().len();
    let mut damaged = std::fs::read(&written[0]).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&written[0], &damaged).unwrap();
    std::fs::write(written[0].with_file_name("nonsense.prefix"), b"nonsense").unwrap();
    let (second, restored) = keeping(folder.path(), u64::MAX);
    second.kv().check().unwrap();
    assert_eq!((restored.n_prefixes, restored.notes.len()), (2, 2), "{restored:?}");
    assert_eq!(prefix_files(folder.path()).len(), 2);
    // The folder stays within its bound.
    let bounded = self::folder();
    let (mut third, _) = keeping(bounded.path(), 2 * bytes + bytes / 2);
    for prompt in &prompts {
        third.complete(with_salt(prompt, 0)).unwrap();
        third.save_prefixes(&mut || true).unwrap();
    }
    assert!((1..=2).contains(&prefix_files(bounded.path()).len()));
    // Prefixes of another model are ignored.
    let mut other = engine("mistral", &options(160, 16, 2));
    assert_eq!(other.keep_prefixes(folder.path(), u64::MAX).unwrap(), Restored::default());
}
