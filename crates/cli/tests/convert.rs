//! `ingle convert`, `keygen`, `sign` and `verify`: the real binary with fixtures and two models of
//! the catalog (fetched into the user's cache on first use).
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use crate::common;
use std::path::{Path, PathBuf};

use crate::common::{SMOLLM2, error, fixture, ids, ingle, json, ok, top};
use tempfile::TempDir;

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

fn llama() -> String {
    text(fixture("models/llama"))
}

/// A converted fixture in `dir`.
fn converted(dir: &TempDir, to: &str) -> String {
    let output = text(dir.path().join(format!("{}.base", to.replace(':', "_"))));
    ok(&["convert", &llama(), "-o", &output, "--to", to]);
    output
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir.path()).unwrap().map(|f| text(f.unwrap().file_name())).collect();
    names.sort();
    names
}

#[test]
fn a_folder_becomes_a_file_that_is_the_same_model() {
    let dir = dir();
    let output = text(dir.path().join("llama.base"));
    let report = json(&["convert", &llama(), "-o", &output, "--json"]);
    assert_eq!(report["copied"].as_u64(), Some(38), "{report}");
    assert_eq!((&report["encoded"], &report["moved"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["bytes"].as_u64(), Some(std::fs::metadata(&output).unwrap().len()));
    let (a, b) = (json(&["inspect", &llama(), "--json"]), json(&["inspect", &output, "--json"]));
    assert_eq!(a["description"], b["description"]);
    assert_eq!(b["format"], ".base v1");
    let tokens = "3,17,5,99,42";
    let logits = |path: &str| ok(&["logits", path, "--tokens", tokens, "--device", "reference", "--json"]);
    assert_eq!(logits(&llama()), logits(&output));
    assert_eq!(names(&dir), ["llama.base"]);
}

#[test]
fn types_and_profiles_are_written_as_asked() {
    let dir = dir();
    let report =
        json(&["convert", &llama(), "-o", &text(dir.path().join("a.base")), "--to", "q4-g32-f16", "--json"]);
    let tensors = |report: &serde_json::Value, name: &str| report["types"][name]["tensors"].as_u64();
    assert_eq!(tensors(&report, "AFFINE4_G32_F16"), Some(28), "{report}");
    let profile = dir.path().join("profile");
    std::fs::write(&profile, "*down_proj* = q8-g32\n*no.such* = q4\n").unwrap();
    let output = text(dir.path().join("b.base"));
    let out =
        ingle(&["convert", &llama(), "-o", &output, "--to", "q4", "--profile", &text(&profile), "--json"]);
    let notes = String::from_utf8(out.stderr).unwrap();
    assert!(notes.contains("line 2") && notes.contains("*no.such*"), "{notes}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(tensors(&report, "AFFINE8_G32_BF16"), Some(4), "{report}");
    // A quantised model gives the answer of its dequantised values.
    let decoded = text(dir.path().join("decoded.base"));
    ok(&["convert", &output, "-o", &decoded, "--to", "f32"]);
    let logits = |path: &str| {
        let args = ["logits", path, "--tokens", "3,17,5", "--device", "reference", "--top", "160", "--json"];
        let mut rows = top(&json(&args)["top"]);
        rows.iter_mut().for_each(|row| row.sort_by_key(|(id, ..)| *id));
        rows
    };
    for (a, b) in logits(&output).iter().flatten().zip(logits(&decoded).iter().flatten()) {
        assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-3, "{a:?} {b:?}");
    }
    let people = ok(&["convert", &llama(), "-o", &output, "--force"]);
    assert!(people.contains("BF16") && people.contains("38 tensors copied"), "{people}");
}

#[test]
fn errors_say_what_to_do() {
    let dir = dir();
    let base = converted(&dir, "q4");
    let output = text(dir.path().join("out"));
    let profile = text(dir.path().join("profile"));
    std::fs::write(&profile, "a = q4\nb\n").unwrap();
    for (args, parts) in [
        (&["convert", &base, "-o", &output, "--to", "q9"][..], &["q9", "q4"][..]),
        (&["convert", &base, "-o", &output, "--to", "gguf:q9_k"], &["q9_k", "q4_k"]),
        (&["convert", &base, "-o", &base], &["--force"]),
        (&["convert", &base, "-o", &text(dir.path()), "--force"], &["not a regular file"]),
        (&["convert", &base, "-o", &output, "--to", "q8"], &["AFFINE5", "--requantize", "embed_tokens"]),
        (&["convert", &base, "-o", &output, "--profile", &profile], &["line 2", "PATTERN = TYPE"]),
        (&["convert", &base, "-o", &output, "--profile", "/no/such"], &["/no/such"]),
        (&["convert", "/no/such", "-o", &output], &["/no/such"]),
        (&["convert", &base, "-o", "/no/such/folder/file"], &["/no/such/folder/file"]),
    ] {
        let message = error(args);
        assert!(parts.iter().all(|part| message.contains(part)), "{args:?}: {message}");
    }
    assert_eq!(names(&dir), ["profile", "q4.base"], "failures leave nothing");
    ok(&["convert", &base, "-o", &output, "--to", "q8", "--requantize"]);
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    // A limit on file sizes simulates a full disk: the system rejects the same write.
    let dir = dir();
    let output = text(dir.path().join("out.base"));
    let script = format!(
        "trap '' XFSZ; ulimit -f 100; exec {} convert {} -o {output}",
        env!("CARGO_BIN_EXE_ingle"),
        llama()
    );
    let out = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{message}");
    assert!(message.contains("out.base"), "{message}");
    assert!(names(&dir).is_empty(), "{:?}", names(&dir));
}

#[test]
fn signed_files_are_verified_and_others_refused() {
    let dir = dir();
    let file = converted(&dir, "keep");
    let key = text(dir.path().join("my.key"));
    let public = format!("{key}.pub");
    let pair = json(&["keygen", "-o", &key, "--json"]);
    let digits = pair["public_key"].as_str().unwrap();
    assert_eq!((digits.len(), pair["public"].as_str()), (64, Some(public.as_str())));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(error(&["keygen", "-o", &key]).contains("my.key"), "keys are not overwritten");

    let run = |more: &[&str]| {
        let tokens = ["logits", &file, "--tokens", "3,17", "--json"];
        ingle(&[&tokens[..], more].concat())
    };
    assert_eq!(json(&["verify", &file, "--json"])["signature"], "none");
    assert!(error(&["verify", &file, "--key", &public]).contains("signature: found none"));
    let refused = String::from_utf8(run(&["--verify-key", &public]).stderr).unwrap();
    assert!(refused.contains("found none"), "{refused}");

    let before = run(&[]).stdout;
    ok(&["sign", &file, "--key", &key, "--key-id", "me"]);
    let found = json(&["verify", &file, "--key", digits, "--json"]);
    assert_eq!((&found["signature"], &found["signed_by"]), (&"valid".into(), &"me".into()));
    assert_eq!(found["checksums"], found["tensors"]);
    assert!(ok(&["verify", &file]).contains("verify that with --key"));
    for flags in [&["--verify-key", &public][..], &["--verify-key", digits, "--check", "--weights", "copied"]]
    {
        assert_eq!(run(flags).stdout, before, "{flags:?}");
    }
    ok(&["inspect", &file, "--verify-key", &public]);

    let other = text(dir.path().join("other"));
    ok(&["keygen", "-o", &other]);
    let other = format!("{other}.pub");
    assert!(error(&["verify", &file, "--key", &other]).contains("not by the key"));
    assert!(error(&["inspect", &file, "--verify-key", &other]).contains("not by the key"));
    assert!(error(&["inspect", &llama(), "--verify-key", &public]).contains(".base files"));
    assert!(error(&["verify", &file, "--key", "/no/such"]).contains("/no/such"));

    // One bit of the last tensor is flipped.
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let message = error(&["verify", &file]);
    assert!(message.contains("tensor \"") && message.contains("damaged"), "{message}");
    let message = String::from_utf8(run(&["--check"]).stderr).unwrap();
    assert!(message.contains("damaged"), "{message}");
    assert!(error(&["verify", &file, "--key", &public]).contains("not by the key"));

    let signed = text(dir.path().join("signed.base"));
    let folder = error(&["sign", &llama(), "--key", &key, "-o", &signed]);
    assert!(folder.contains("llama"), "{folder}");
    assert!(!names(&dir).iter().any(|name| name.contains("partial") || name == "signed.base"));
}

/// Converting to `.base` and back changes no bit of a tensor and no key.
#[test]
fn a_gguf_model_goes_to_base_and_back() {
    let dir = dir();
    let source = PathBuf::from(SMOLLM2.path());
    let original = formats::open(&source, weights::Access::Map).unwrap();
    let (base, back) = (text(dir.path().join("a.base")), text(dir.path().join("b.gguf")));
    ok(&["convert", &text(&source), "-o", &base]);
    let report = json(&["convert", &base, "-o", &back, "--to", "gguf", "--json"]);
    assert_eq!(report["encoded"], 0, "{report}");
    let again = formats::open(Path::new(&back), weights::Access::Map).unwrap();
    assert_eq!(again.tensors.len(), original.tensors.len());
    for tensor in &original.tensors {
        let other = again.tensor(&tensor.name).unwrap();
        assert_eq!((&other.shape, other.block), (&tensor.shape, tensor.block), "{}", tensor.name);
        assert!(other.data[..] == tensor.data[..], "{}", tensor.name);
    }
    assert_eq!(again.metadata.len(), original.metadata.len());
    for (key, value) in original.metadata.iter() {
        let typed = |value| formats::gguf::MetaValue::from_value(value);
        assert!(again.metadata.get(key).and_then(typed) == typed(value), "{key}");
    }
    let tokens =
        |path: &str| ids(&json(&["tokenize", path, "Hello, world: 1234 \u{e9}", "--json"])["tokens"]);
    assert_eq!(tokens(&base), tokens(&text(&source)));
}

#[test]
fn a_sentence_model_keeps_its_tokenizer_and_its_pooling() {
    let dir = dir();
    let base = text(dir.path().join("minilm.base"));
    ok(&["convert", "minilm:l6", "-o", &base]);
    let embed = |path: &str| ok(&["embed", path, "A cat sits on the mat", "zebra \u{e9}t\u{e9}", "--json"]);
    assert_eq!(embed(&base), embed("minilm:l6"));
    let source = common::ok(&["pull", "minilm:l6"]);
    let small = |path: &str| ok(&["tokenize", path, "Two naive cafes", "--json"]);
    assert_eq!(small(&base), small(source.trim()));
}
