//! Engine and devices never name a model family, because they run Ops. The names searched for are
//! the table's.
//!
//! Names of other programs (`llama.cpp`) do not count.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::FAMILIES;

const ROOMS: [&str; 11] = [
    "engine",
    "speech",
    "device",
    "device-lower",
    "device-reference",
    "device-testing",
    "device-cpu",
    "device-gpu",
    "device-cuda",
    "device-metal",
    "platform",
];
const PROGRAMS: [&str; 10] = [
    "llama.cpp",
    "llama-bench",
    "llama-cpp",
    "llama_cpp",
    "llama2.c",
    "whisper.cpp",
    "whisper_cpp",
    "whispercpp",
    "openai-whisper",
    "faster-whisper",
];

/// Names that are ordinary English words.
const WORDS: [&str; 4] = ["command", "dots", "embedding", "seed"];

/// A word without the characters after its letters, and the word: `gemma3` and `gemma` for
/// `Gemma3_4B`.
fn stem(word: &str) -> &str {
    let end = word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len());
    &word[..end]
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn names() -> BTreeSet<String> {
    FAMILIES
        .iter()
        .flat_map(|f| std::iter::once(&f.name).chain(f.gguf).chain(f.hf))
        .map(|name| stem(name).to_ascii_lowercase())
        .filter(|name| !WORDS.contains(&name.as_str()))
        .collect()
}

/// The words of a line that name a family.
fn offences(line: &str, names: &BTreeSet<String>) -> Vec<String> {
    let mut line = line.to_ascii_lowercase();
    for program in PROGRAMS {
        line = line.replace(program, "");
    }
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|w| names.contains(stem(w))).map(str::to_owned).collect()
}

#[test]
fn engine_and_devices_name_no_family() {
    let names = names();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for room in ROOMS {
        let folder = crates.join(room).join("src");
        assert!(folder.is_dir(), "{} is not there", folder.display());
        sources(&folder, &mut files);
    }
    assert!(files.len() > 10, "found only {files:?}");
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            for word in offences(line, &names) {
                found.push(format!("{}:{}: {word}", file.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "families are named:\n{}", found.join("\n"));
}

#[test]
fn the_search_finds_what_it_looks_for() {
    let names = names();
    for line in ["// as Gemma does", "if arch == \"qwen2\"", "let LLAMA_3 = 1;", "mistral-specific"] {
        assert_eq!(offences(line, &names).len(), 1, "{line}");
    }
    for line in ["the same as llama.cpp's", "llama-bench", "a philosophy of granules"] {
        assert!(offences(line, &names).is_empty(), "{line}");
    }
}
