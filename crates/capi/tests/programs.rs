//! Programs in C and C++ that are compiled with warnings as errors, linked with the library, and
//! run on tiny models.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs, io};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A compiler, with the arguments that choose its language.
#[derive(Clone, Copy)]
struct Language {
    compiler: &'static str,
    arguments: &'static [&'static str],
}

const C11: Language = Language { compiler: "cc", arguments: &["-std=c11"] };
const CPP17: Language = Language { compiler: "c++", arguments: &["-std=c++17", "-x", "c++"] };

/// Both sanitizers, which also check the memory that the library passes and allocates.
const SANITIZERS: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"];

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> PathBuf {
    crate_folder().join("../../fixtures").join(name)
}

/// The folder in which cargo has put the library for this test.
fn library_folder() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = format!("{}ingle_c{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    assert!(folder.join(&name).exists(), "no {name} in {}", folder.display());
    folder
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    if let Err(error) = &output
        && error.kind() == io::ErrorKind::NotFound
    {
        panic!("no {name} found: install a C and C++ compiler (on Debian: apt-get install gcc g++)");
    }
    let output = output.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// A program that was compiled.
struct Program {
    _folder: TempDir,
    path: PathBuf,
}

/// Compiles a program with these warnings, which are errors, and links it.
#[track_caller]
fn compile(source: &Path, language: Language, more: &[&str]) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let library = library_folder();
    let mut command = Command::new(language.compiler);
    command.args(language.arguments).args(["-Wall", "-Wextra", "-Werror", "-pedantic"]).args(more);
    command.arg("-I").arg(crate_folder().join("include")).arg(source).args(["-x", "none", "-o"]).arg(&path);
    if !more.contains(&"-static-libgcc") {
        command.arg("-L").arg(&library).arg("-lingle_c").arg(format!("-Wl,-rpath,{}", library.display()));
    } else {
        command.arg(library.join("libingle_c.a"));
    }
    command.args(["-lpthread", "-ldl", "-lm"]);
    run(&mut command);
    Program { _folder: folder, path }
}

impl Program {
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        String::from_utf8(run(Command::new(&self.path).args(arguments)).stdout).unwrap()
    }
}

/// A copy of a model of 160 tokens, with a tokenizer of as many words, w0 to w159.
fn with_words(model: &str, files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let to = folder.path().join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(fixture("models").join(model).join(file), to).unwrap();
    }
    let vocab: serde_json::Map<String, Value> = (0..160).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "decoder": { "type": "WordPiece", "prefix": "##" },
        "model": {
            "type": "WordPiece", "unk_token": "w0", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

/// A model of vectors, and its known answer.
struct Embedder {
    folder: TempDir,
    text: String,
    /// The first two numbers of the text's vector.
    vector: [f64; 2],
}

fn embedder() -> Embedder {
    let name = "qwen3_embedding";
    let folder =
        with_words(name, &["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"]);
    let expected = fs::read_to_string(fixture("models").join(name).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let ids = expected["input_ids"].as_array().unwrap();
    let words: Vec<String> = ids.iter().map(|id| format!("w{id}")).collect();
    let number = |at: usize| expected["embedding"][at].as_f64().unwrap();
    Embedder { folder, text: words.join(" "), vector: [number(0), number(1)] }
}

/// Compiles a program of `tests/c`.
#[track_caller]
fn program(name: &str, language: Language, more: &[&str]) -> Program {
    compile(&crate_folder().join("tests/c").join(name), language, more)
}

fn scripted() -> String {
    fixture("scripted/chat.gguf").display().to_string()
}

/// Runs all programs, compiled in this way.
#[track_caller]
fn all(language: Language, more: &[&str]) {
    let scripted = scripted();
    assert_eq!(program("arguments.c", language, more).run(&[&scripted]), "done\n");
    assert_eq!(program("chat.c", language, more).run(&[&scripted]), "done\n");

    let embedder = embedder();
    let llama = with_words("llama", &["config.json", "model.safetensors"]);
    let damaged = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    fs::write(damaged.path(), &fs::read(&scripted).unwrap()[..5000]).unwrap();
    let path = |name: &str| fixture(name).display().to_string();
    let arguments = [
        scripted,
        llama.path().display().to_string(),
        path("lora/llama_qv"),
        embedder.folder.path().display().to_string(),
        embedder.text.clone(),
        embedder.vector[0].to_string(),
        embedder.vector[1].to_string(),
        path("models/qwen3_reranker"),
        path("models/whisper"),
        damaged.path().display().to_string(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert_eq!(program("models.c", language, more).run(&arguments), "done\n");
}

#[test]
fn programs_in_c_11() {
    all(C11, &[]);
}

#[test]
fn programs_in_cpp_17() {
    all(CPP17, &[]);
}

#[test]
fn programs_under_sanitizers() {
    all(C11, &SANITIZERS);
}

/// The model is fetched if needed, as by the tests of the command line.
#[test]
fn speech_is_transcribed() {
    let recording = fixture("audio/jfk.wav").display().to_string();
    let printed = program("speech.c", C11, &[]).run(&["whisper:tiny.en", &recording]);
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert!(found["text"].as_str().unwrap().starts_with("And so, my fellow Americans"), "{printed}");
    assert_eq!((&found["language"], &found["duration"]), (&json!("en"), &json!(11.0)), "{printed}");
    assert!(found["segments"][0]["words"][0]["end"].as_f64().unwrap() > 0.1, "{printed}");
}

/// The first block of C of the page.
fn hello_world() -> (TempDir, PathBuf) {
    let page = fs::read_to_string(crate_folder().join("../../docs/c.md")).unwrap();
    let (_, rest) = page.split_once("```c\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hello.c");
    fs::write(&source, block).unwrap();
    (folder, source)
}

#[test]
fn the_page_s_hello_world_is_linked_with_both_libraries() {
    let (_folder, source) = hello_world();
    for more in [&[][..], &["-static-libgcc"]] {
        let printed = compile(&source, C11, more).run(&[&scripted()]);
        assert_eq!(printed, "Hello from a scripted model: café.\n");
    }
}

#[test]
fn the_examples_chat_and_compare() {
    let examples = crate_folder().join("examples");
    let chat = compile(&examples.join("chat.c"), C11, &SANITIZERS);
    let mut child = Command::new(&chat.path)
        .arg(scripted())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all("Say \"hi\"\nAnd again\té\n".as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let hello = "Hello from a scripted model: café.";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("> {hello}\n> {hello}\n> "));

    let embedder = embedder();
    let embed = compile(&examples.join("embed.c"), C11, &SANITIZERS);
    let folder = embedder.folder.path().display().to_string();
    let printed = embed.run(&[&folder, "w1 w2", "w1 w2", "w9 w100 w7"]);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "1.0000  w1 w2");
    assert!(lines[1].ends_with("  w9 w100 w7") && !lines[1].starts_with("1.0000"), "{printed}");
}
