//! The Metal device on the command line: the error on a machine without Apple's GPU, and the
//! shaders in the emulator.
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
    }

    /// Runs the report; returns true if it succeeded, and its text.
    fn report(name: &str, arguments: &[&str]) -> (bool, String) {
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ingle"));
        command.env("INGLE_CACHE", env!("CARGO_TARGET_TMPDIR"));
        command.args(["metal-selftest", "--emulated", "--report", file.to_str().unwrap()]).args(arguments);
        let out = command.output().unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), written, "the file has what is printed");
        (out.status.success(), written)
    }

    /// The JSON block at the end of the report.
    fn block(report: &str) -> serde_json::Value {
        serde_json::from_str(report.lines().last().unwrap()).unwrap()
    }

    /// All stages run on the emulated GPU, with a profile from a file.
    #[test]
    fn the_whole_report_runs() {
        let profile = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("chip.toml");
        std::fs::write(&profile, "in_flight = 3\nsplit_positions = 40\n").unwrap();
        let (is_ok, text) = report(
            "report.txt",
            &["--every", "220", "--minutes", "60", "--chip-profile", profile.to_str().unwrap()],
        );
        assert!(is_ok, "{text}");
        for stage in [
            "machine",
            "compile",
            "pipelines",
            "probes",
            "cover",
            "ahead",
            "timings",
            "sweep",
            "tokens",
            "cases",
        ] {
            assert!(text.contains(&format!("\n== {stage}\n")), "no stage {stage} in {text}");
        }
        assert!(text.contains("Apple M4 Pro, emulated") && text.contains("in_flight = 3"), "{text}");
        // Times of the emulator are noise, so either end of the search is right.
        let ends = ["to paste into a file", "no profile is surely faster"];
        assert!(ends.iter().any(|end| text.contains(end)), "{text}");
        assert!(text.contains("exp(-inf) is 0"), "{text}");
        let json = block(&text);
        assert_eq!(json["defects"], serde_json::json!([]));
        for part in ["cover", "cases"] {
            assert_eq!(json[part][0]["run"], json[part][0]["agree"]);
        }
        assert!(json["cover"][0]["run"].as_u64().unwrap() > 2, "{json}");
        assert!(json["compile"].as_array().unwrap().len() > 60, "{json}");
        assert!(json["tokens_per_second"][0]["after_idleness"].as_f64().unwrap() > 0.0, "{json}");
        let short = report("short.txt", &["--compile-only", "--minutes", "0.02"]);
        assert!(short.0 && !short.1.contains("== cases"), "{}", short.1);
    }

    /// The report names a wrong kernel, one that does not compile, one that hangs and one that
    /// crashes, and continues to its end. All four are in one run, which has the case of each.
    #[test]
    fn seeded_defects_are_named() {
        macro_rules! source {
            ($file:literal) => {
                ($file, include_str!(concat!("../../device-metal/src/kernels/", $file)))
            };
        }
        let insert = |(file, source): (&'static str, &str), text: &str| {
            let end = source.rfind("    if (i <").unwrap();
            (file, format!("{}{text}\n{}", &source[..end], &source[end..]))
        };
        let (file, softcap) = source!("softcap.metal");
        let wrong = softcap.replace("= args.factor *", "= 1.01f * args.factor *");
        assert_ne!(wrong, softcap);
        let defects = [
            ((file, wrong), "softcap softcap 7", "cover: softcap"),
            (
                insert(source!("scale.metal"), "    this is no statement;"),
                "scale scale 7",
                "compile: scale.metal does not compile",
            ),
            (
                insert(source!("add.metal"), "    for (volatile uint n = 1; n != 0;) {}"),
                "add add 7",
                "cover: add 7 no output for 8 s",
            ),
            (
                insert(source!("clamped.metal"), "    __builtin_trap();"),
                "clamp clamp 7",
                "cover: clamp 7 crashes",
            ),
        ];
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut arguments = vec!["--no-times".to_owned(), "--patience".to_owned(), "8".to_owned()];
        for ((file, text), only, _) in &defects {
            let path = folder.join(format!("defect-{file}"));
            std::fs::write(&path, text).unwrap();
            let replace = format!("{file}={}", path.to_str().unwrap());
            arguments.extend(["--replace".to_owned(), replace, "--only".to_owned(), (*only).to_owned()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (is_ok, text) = report("defects.txt", &arguments);
        assert!(!is_ok, "{text}");
        let json = block(&text);
        let found: Vec<&str> =
            json["defects"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
        for (_, _, expected) in &defects {
            assert!(found.iter().any(|defect| defect.contains(expected)), "{expected}: {found:?}");
        }
        // A case whose kernel does not compile differs too; nothing else does.
        assert_eq!(found.len(), defects.len() + 1, "{found:?}");
        assert!(text.contains("\n== end, after ") && text.contains("\n== cases\n"), "{text}");
        assert!(text.contains("    unfused: ") && text.contains("expected"), "{text}");
    }

    fn tokens(answer: serde_json::Value) -> Vec<u32> {
        ids(&answer["tokens"])
    }

    /// A real model, from file to answer. The device multiplies Q4_1 by activations in f32 or f16,
    /// and the CPU by 8-bit activations, which move logits by 0.25 (RMS). If the exact margin is
    /// twice that, both choose the same token.
    #[test]
    fn a_real_model_answers_as_on_the_cpu() {
        let path = SMOLLM2.path();
        let mut n_compared = 0;
        // The second prompt is for runs with more cases.
        let n_prompts = if device_testing::cases(1) > 1 { 2 } else { 1 };
        let prompts = &["The capital of France is", "  leading spaces"][..n_prompts];
        for answer in SMOLLM2.answers() {
            if !prompts.iter().any(|prompt| answer.prompt.starts_with(prompt)) {
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
        println!("{n_compared} tokens");
        assert!(n_compared >= 5 * n_prompts, "{n_compared} tokens have the margin");
    }
}
