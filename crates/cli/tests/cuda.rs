//! The CUDA device on the command line, with an emulated GPU: answers, and messages about faults of
//! the GPU.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use device_testing::EmulatedGpu;

use crate::common::{fixture, ids, json as answer_of};
use crate::serve::Server;
use serde_json::json;

const SETTING: &str = "INGLE_EMULATED_";

/// Generates eight tokens of a small model, with settings of the emulator (names without
/// [`SETTING`]) and further arguments.
fn complete(settings: &[(&str, &str)], more: &[&str]) -> Output {
    let gpu = EmulatedGpu::build(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = gpu.command(env!("CARGO_BIN_EXE_ingle"));
    let folder = fixture("models/qwen3");
    command.args(["complete", folder.to_str().unwrap(), "--tokens", "36,144,5", "--greedy", "-n", "8"]);
    command.args(["--ctx", "128", "--json", "--device", "cuda"]).args(more);
    command.envs(settings.iter().map(|(name, value)| (format!("{SETTING}{name}"), value)));
    command.stdin(Stdio::null()).output().unwrap()
}

/// The tokens of the answer, and stderr.
#[track_caller]
fn answer(out: &Output) -> (Vec<u32>, String) {
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    (ids(&found["tokens"]), said)
}

/// Stderr of a command that must fail with an error, without a panic.
#[track_caller]
fn refused(settings: &[(&str, &str)], more: &[&str]) -> String {
    let out = complete(settings, more);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{}{text}", String::from_utf8_lossy(&out.stdout));
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn it_answers_as_the_interpreter() {
    let folder = fixture("models/qwen3");
    let arguments = ["complete", folder.to_str().unwrap(), "--tokens", "36,144,5", "--greedy", "-n", "8"];
    let expected =
        ids(&answer_of(&[&arguments[..], &["--json", "--device", "reference"]].concat())["tokens"]);
    for architecture in ["90", "75"] {
        assert_eq!(answer(&complete(&[("ARCHITECTURE", architecture)], &[])).0, expected, "{architecture}");
    }
    // The CPU runs the layers that do not fit on the GPU.
    let (found, said) = answer(&complete(&[("MEMORY", "1")], &[]));
    assert_eq!(found, expected);
    assert!(said.contains("the CPU runs layers 0 to 3") && said.contains("1.0 MiB are free"), "{said}");
}

#[test]
fn what_the_gpu_lacks_is_said() {
    let text = refused(&[("DRIVER", "11080")], &[]);
    assert!(text.contains("CUDA 11.8, expected 12.0 or newer"), "{text}");
    let text = refused(&[("ARCHITECTURE", "70")], &[]);
    assert!(text.contains("compute capability 7.0, expected 7.5 or newer"), "{text}");
    let text = refused(&[("MEMORY", "30")], &["--gpu-layers", "4"]);
    assert!(text.contains("no setting makes it fit: free"), "{text}");
}

/// The GPU is lost while the model is loaded, in the first step, and later.
#[test]
fn a_lost_gpu_is_an_error() {
    for n in ["0", "5", "40", "100"] {
        let text = refused(&[("LOST_AFTER", n)], &[]);
        assert!(text.contains("the GPU is lost or unavailable"), "after {n} launches: {text}");
    }
}

/// Every request fails, and after three of them `/health` answers 503.
#[test]
fn a_server_whose_gpu_is_lost_is_not_healthy() {
    let gpu = EmulatedGpu::build(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut ingle = gpu.command(env!("CARGO_BIN_EXE_ingle"));
    ingle.env(format!("{SETTING}LOST_AFTER"), "300");
    // A text model with a vocabulary. In its own folder it is a reranker.
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("models/qwen3_reranker").join(name), folder.path().join(name)).unwrap();
    }
    let more = ["--device", "cuda", "--ctx", "128", "--no-warmup"];
    let server = Server::run(ingle, folder.path().to_str().unwrap(), &more);
    let request = json!({ "prompt": "a", "max_tokens": 100, "temperature": 0 });
    let mut n_failed = 0;
    for _ in 0..20 {
        assert_eq!(server.get("/health").0, 200, "after {n_failed} failed steps");
        let (status, answer) = server.post("/v1/completions", &request);
        if status != 200 {
            assert!(
                status == 500 && answer.to_string().contains("the GPU is lost or unavailable"),
                "{answer}"
            );
            n_failed += 1;
        }
        if n_failed == 3 {
            break;
        }
    }
    let (status, said) = server.get("/health");
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("the last 3 steps") && server.metric("ingle_steps_failing") == 3.0, "{said}");
}

/// A kernel that does not end is abandoned, so that the process can end.
#[test]
#[ignore = "takes two minutes: the watchdog's patience"]
fn a_kernel_that_hangs_is_given_up() {
    let begun = Instant::now();
    let text = refused(&[("HANGS_AFTER", "60")], &[]);
    assert!(text.contains("a kernel has run for 120 s and does not end"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(180));
}
