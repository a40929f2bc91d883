//! The Metal device from the command line: what a machine without Apple's GPU says, and the shaders in the emulator.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod common;

#[cfg(not(target_os = "macos"))]
#[test]
fn without_apples_gpu_the_error_says_what_to_use() {
    let folder = common::fixture("models/llama");
    let folder = folder.to_str().unwrap();
    for command in [&["complete", folder, "--tokens", "1,2", "--device", "metal"][..], &["metal-selftest"]] {
        let message = common::error(command);
        assert!(message.contains("needs a Mac") && message.contains("--device cpu"), "{message}");
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_emulator_answers_as_the_cpu_and_reports() {
    let folder = common::fixture("models/llama");
    let complete = |device: &str| {
        let folder = folder.to_str().unwrap();
        let arguments = ["complete", folder, "--tokens", "36,144,5", "--greedy", "-n", "8", "--json"];
        let kv = ["--kv-type", "f32", "--device", device];
        common::json(&[&arguments[..], &kv[..]].concat())["tokens"].clone()
    };
    assert_eq!(complete("metal-emulated"), complete("cpu"));
    let report = common::ok(&["metal-selftest", "--emulated", "--every", "101", "--no-times"]);
    assert!(report.contains("Apple M4 Pro, emulated") && report.contains("agree"), "{report}");
    assert!(!report.contains("DIFFER"), "{report}");
}
