//! The real binary, and the two language models of the catalog (fetched into the user's cache on
//! first use).
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// A model of the catalog, and its file of exact answers.
pub struct RealModel {
    pub name: &'static str,
    pub answers: &'static str,
    /// RMS of llama.cpp's top-5 logits against the exact answers (fixtures/README.md).
    pub llama_cpp_rms: f64,
    /// The result of `ingle perplexity NAME fixtures/text/alice.txt --ctx 1024 --device reference`,
    /// which takes minutes. The interpreter itself is compared with the exact answers.
    pub exact_perplexity: f64,
}

pub const SMOLLM2: RealModel = RealModel {
    name: "smollm2:135m",
    answers: "SmolLM2-135M-Instruct.Q4_1.jsonl",
    llama_cpp_rms: 0.249,
    exact_perplexity: 21.733_969,
};
pub const GEMMA3: RealModel = RealModel {
    name: "gemma3:270m-base",
    answers: "gemma-3-270m-Q4_K_M.jsonl",
    llama_cpp_rms: 0.359,
    exact_perplexity: 20.195_777,
};

/// A line of the exact answers.
pub struct Answer {
    pub prompt: String,
    pub tokens: Vec<u32>,
    /// The best five `(id, logit, logprob)` at each position.
    pub top: Vec<Vec<(u32, f64, f64)>>,
    pub greedy: Vec<u32>,
    pub gap: Vec<f64>,
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Parses `[[[id, logit, logprob], …], …]`.
pub fn top(value: &Value) -> Vec<Vec<(u32, f64, f64)>> {
    let triple = |t: &Value| (t[0].as_u64().unwrap() as u32, t[1].as_f64().unwrap(), t[2].as_f64().unwrap());
    value.as_array().unwrap().iter().map(|p| p.as_array().unwrap().iter().map(triple).collect()).collect()
}

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

impl RealModel {
    pub fn answers(&self) -> Vec<Answer> {
        let file = fixture("real_models").join(self.answers);
        let text = std::fs::read_to_string(file).unwrap();
        let answers: Vec<Answer> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|v| Answer {
                prompt: v["prompt"].as_str().unwrap().to_owned(),
                tokens: ids(&v["tokens"]),
                top: top(&v["top"]),
                greedy: ids(&v["greedy"]),
                gap: v["gap"].as_array().unwrap().iter().map(|g| g.as_f64().unwrap()).collect(),
            })
            .collect();
        assert_eq!(answers.len(), 12);
        answers
    }

    /// The path of the file, which the first call fetches.
    pub fn path(&self) -> String {
        static PATHS: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];
        let slot = &PATHS[usize::from(self.name == GEMMA3.name)];
        slot.get_or_init(|| ok(&["pull", self.name]).trim().to_owned()).clone()
    }
}

/// Runs the binary.
pub fn ingle(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ingle")).args(args).output().unwrap()
}

/// Stdout of a command that must succeed.
#[track_caller]
pub fn ok(args: &[&str]) -> String {
    printed(args, ingle(args))
}

/// Stdout of a command with `--device metal-emulated` that must succeed. All crates' tests share
/// compiled shaders.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[track_caller]
pub fn emulated(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ingle"));
    printed(args, command.args(args).env("INGLE_CACHE", env!("CARGO_TARGET_TMPDIR")).output().unwrap())
}

#[track_caller]
fn printed(args: &[&str], out: Output) -> String {
    assert!(out.status.success(), "ingle {args:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The JSON on stdout of a command.
#[track_caller]
pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// The error of a command that must fail with status 1.
#[track_caller]
pub fn error(args: &[&str]) -> String {
    let out = ingle(args);
    assert_eq!(out.status.code(), Some(1), "ingle {args:?}: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stderr).unwrap()
}
