//! The Metal device from the command line: what a machine without Apple's GPU says, and the shaders in the emulator.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

#[cfg(not(target_os = "macos"))]
#[test]
fn without_apples_gpu_the_error_says_what_to_use() {
    let folder = crate::common::fixture("models/llama");
    let folder = folder.to_str().unwrap();
    for command in [&["complete", folder, "--tokens", "1,2", "--device", "metal"][..], &["metal-selftest"]] {
        let message = crate::common::error(command);
        assert!(message.contains("needs a Mac") && message.contains("--device cpu"), "{message}");
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod emulated {
    use crate::common::{SMOLLM2, emulated, fixture, ids, json};

    #[test]
    fn answers_as_the_cpu_and_reports() {
        let folder = fixture("models/llama");
        let arguments = ["complete", folder.to_str().unwrap(), "--tokens", "36,144,5", "--greedy", "-n", "8"];
        let arguments =
            |device| [&arguments[..], &["--json", "--kv-type", "f32", "--device", device]].concat();
        let found = serde_json::from_str(&emulated(&arguments("metal-emulated"))).map(tokens).unwrap();
        assert_eq!(found, tokens(json(&arguments("cpu"))));
        let report = emulated(&["metal-selftest", "--emulated", "--every", "101", "--no-times"]);
        assert!(report.contains("Apple M4 Pro, emulated") && report.contains("agree"), "{report}");
        assert!(!report.contains("DIFFER"), "{report}");
    }

    fn tokens(answer: serde_json::Value) -> Vec<u32> {
        ids(&answer["tokens"])
    }

    /// A real model, from its file to its answer: the device multiplies Q4_1 by activations in f32 or in halves, the CPU by
    /// activations of 8 bits, whose logits are off by 0.25 (RMS). Where the exact margin is twice that, both choose the same.
    #[test]
    fn a_real_model_answers_as_on_the_cpu() {
        let path = SMOLLM2.path();
        let mut n_compared = 0;
        for answer in SMOLLM2.answers() {
            if !["The capital of France is", "  leading spaces"].iter().any(|p| answer.prompt.starts_with(p))
            {
                continue;
            }
            let arguments =
                ["complete", &path, "--prompt", &answer.prompt, "--greedy", "-n", "8", "--ctx", "64"];
            let arguments = |device| [&arguments[..], &["--json", "--device", device]].concat();
            let found = serde_json::from_str(&emulated(&arguments("metal-emulated"))).map(tokens).unwrap();
            let cpu = tokens(json(&arguments("cpu")));
            assert_eq!((found.len(), cpu.len()), (8, 8), "{:?}", answer.prompt);
            let certain = answer.gap[..8].iter().take_while(|gap| **gap >= 0.5).count();
            assert_eq!(found[..certain], cpu[..certain], "{:?}", answer.prompt);
            n_compared += certain;
        }
        assert_eq!(n_compared, 13, "the margins of two prompts");
    }
}
