//! Every command, its JSON, its errors and its exit status.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{GEMMA3, SMOLLM2, error, fixture, ids, ingle, json, ok};

#[test]
fn usage_errors_exit_with_2_and_others_with_1() {
    assert_eq!(ingle(&["run"]).status.code(), Some(2));
    assert_eq!(ingle(&["bench", "x.gguf", "--no-such-flag"]).status.code(), Some(2));
    let message = error(&["run", "no-such-model", "hi"]);
    assert!(message.starts_with("error: ") && message.contains("`ingle search`"), "{message}");
    let message = error(&["inspect", "/no/such/file.gguf"]);
    assert!(message.contains("/no/such/file.gguf"), "{message}");
}

#[test]
fn every_command_has_help_with_examples() {
    let help = ok(&["--help"]);
    let commands =
        "run complete bench inspect plan tokenize logits perplexity profile pull list rm embed completions";
    for command in commands.split(' ') {
        assert!(help.contains(command), "{command} is missing in {help}");
        let own = ok(&[command, "--help"]);
        assert!(own.contains("Example"), "{command}: {own}");
    }
    assert!(ok(&["completions", "bash"]).contains("_ingle"));
}

#[test]
fn a_folder_without_tokenizer_works_by_tokens() {
    let folder = fixture("models/llama");
    let folder = folder.to_str().unwrap();
    let found =
        json(&["logits", folder, "--tokens", "36,144,5", "--top", "3", "--json", "--device", "reference"]);
    assert_eq!(ids(&found["tokens"]), [36, 144, 5]);
    assert_eq!(found["top"].as_array().unwrap().len(), 3);
    assert_eq!(found["top"][0][0].as_array().unwrap().len(), 3);
    // The first token's best logit in fixtures/models/llama/expected.json.
    let expected: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("models/llama/expected.json")).unwrap())
            .unwrap();
    let row: Vec<f64> =
        expected["logits"][0].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let best = row.iter().copied().fold(f64::MIN, f64::max);
    assert!((found["top"][0][0][1].as_f64().unwrap() - best).abs() < 1e-3);
    let message = error(&["logits", folder, "--prompt", "hi"]);
    assert!(message.contains("tokenizer"), "{message}");
    let message = error(&["complete", folder, "--tokens", "1,160"]);
    assert!(message.contains("160"), "{message}");
}

#[test]
fn inspect_shows_file_model_and_plan() {
    let path = SMOLLM2.path();
    let text = ok(&["inspect", &path, "--plan"]);
    for word in ["general.architecture", "llama", "Q4_1", "norm_gate_up", "layer 29"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
    let found = json(&["inspect", &path, "--json"]);
    assert_eq!(found["tensors"].as_array().unwrap().len(), 272);
    assert_eq!(found["metadata"]["llama.block_count"], 30);
    assert_eq!(found["parameters"], 134_515_008);
}

#[test]
fn bench_prints_llama_bench_fields() {
    let path = SMOLLM2.path();
    let sizes = ["-p", "16", "-n", "8", "-d", "0,32", "-r", "2", "-t", "2", "--json"];
    let found = json(&[&["bench", &path][..], &sizes].concat());
    let rows = found.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for field in [
            "n_prompt",
            "n_gen",
            "n_depth",
            "avg_ts",
            "stddev_ts",
            "avg_ns",
            "samples_ts",
            "model_size",
            "model_n_params",
        ] {
            assert!(!row[field].is_null(), "{field} is missing in {row}");
        }
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert!(row["share_of_peak"].as_f64().unwrap() > 0.0);
        assert_eq!(row["n_threads"], 2);
        assert_eq!(row["samples_ts"].as_array().unwrap().len(), 2);
        // The peaks are measured with hundreds of MiB, which do not count.
        let bytes = |key: &str| row["memory"][0][key].as_u64().unwrap();
        assert!(bytes("taken_bytes") < bytes("planned_bytes") + (96 << 20), "{row}");
    }
    let args = ["bench", &path, "-p", "8", "-n", "0", "-r", "1", "--no-peaks"];
    assert!(ok(&[&args[..], &["--md"]].concat()).contains(" pp8 |"));
    assert!(ok(&[&args[..], &["--csv"]].concat()).starts_with("model,size,params,device,threads,test,t/s"));
}

#[test]
fn bench_in_parallel_prints_llama_batched_bench_fields() {
    let path = SMOLLM2.path();
    let bench = ["bench", &path, "--parallel", "1,3", "-p", "16", "-n", "4", "-r", "1", "-t", "2"];
    for (shared, n_kv) in [(false, [20, 60]), (true, [20, 28])] {
        let shared_prompt: &[&str] = if shared { &["--shared-prompt"] } else { &[] };
        let found = json(&[&bench[..], &["--json"], shared_prompt].concat());
        let rows = found.as_array().unwrap();
        assert_eq!(rows.len(), 2);
        for (row, (pl, n_kv)) in rows.iter().zip([1, 3].into_iter().zip(n_kv)) {
            for (field, value) in [("pp", 16), ("tg", 4), ("pl", pl), ("n_kv", n_kv), ("n_threads", 2)] {
                assert_eq!(row[field], value, "{field} of {row}");
            }
            assert_eq!(row["is_pp_shared"], shared);
            let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"));
            let n_computed = if shared { 16 } else { 16 * pl };
            for (n, seconds, speed) in [
                (n_computed, "t_pp", "speed_pp"),
                (4 * pl, "t_tg", "speed_tg"),
                (n_computed + 4 * pl, "t", "speed"),
            ] {
                let ratio = number(seconds) * number(speed) / f64::from(n);
                assert!((ratio - 1.0).abs() < 1e-6, "{speed} of {row}");
            }
            assert!(number("peak_resident_bytes") > 1e6);
        }
    }
    let table = ok(&bench);
    let header: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    let names = "PP TG B N_KV T_PP s S_PP t/s T_TG s S_TG t/s T s S t/s";
    assert_eq!(header, names.split(' ').collect::<Vec<_>>());
    assert!(table.contains("peak memory"), "{table}");
    let arriving = json(&[&bench[..], &["--arriving", "40", "--json"]].concat());
    for row in arriving.as_array().unwrap() {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"));
        assert_eq!(number("n_arriving"), 40.0);
        assert!(number("t_arriving") > 0.0 && number("t_together") > 0.0, "{row}");
        let cost = (number("t_together") - number("t_tg")) / number("t_arriving");
        assert!((number("arriving_cost") - cost).abs() < 1e-6 * cost.abs().max(1.0), "{row}");
    }
    let table = ok(&[&bench[..], &["--arriving", "40"]].concat());
    // The widths of columns depend on the measured values.
    let header: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert!(header.ends_with(&["arriving", "alone", "s", "together", "s", "cost"]), "{table}");
    let without = ["bench", &path, "--parallel", "2", "-n", "0", "--arriving", "40"];
    assert_eq!(ingle(&without).status.code(), Some(1));
    assert_eq!(ingle(&["bench", &path, "--parallel", "2", "-d", "8"]).status.code(), Some(2));
    assert_eq!(ingle(&["bench", &path, "--parallel", "0"]).status.code(), Some(1));
}

#[test]
fn answers_follow_grammars_and_samplers() {
    let path = SMOLLM2.path();
    let answer = |command: &str, more: &[&str]| {
        let args = ["-n", "60", "--ctx", "256", "--temperature", "1.3", "--seed", "5", "--json"];
        json(&[&[command, &path][..], &args, more].concat())["text"].as_str().unwrap().to_owned()
    };
    let prompt = ["--prompt", "The year is"];
    let complete = |more: &[&str]| answer("complete", &[&prompt[..], more].concat());
    let schema = r#"{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false}"#;
    let found: serde_json::Value = serde_json::from_str(&complete(&["--json-schema", schema])).unwrap();
    assert!(found["a"].is_boolean() && found.as_object().unwrap().len() == 1);
    let file = std::env::temp_dir().join(format!("ingle-{}.gbnf", std::process::id()));
    std::fs::write(&file, "root ::= year \".\"\nyear ::= [12] [0-9]{3}").unwrap();
    for command in ["complete", "run"] {
        let prompt = if command == "run" { &["When?"][..] } else { &prompt };
        let year = answer(command, &[prompt, &["--grammar", file.to_str().unwrap()]].concat());
        assert!(year.len() == 5 && year.ends_with('.') && year[..4].parse::<u32>().is_ok(), "{year}");
    }
    std::fs::remove_file(&file).unwrap();
    assert!(["x", "yy"].contains(&&*complete(&["--regex", "x|yy"])));
    assert_eq!(complete(&["--lark", "start: \"abc\""]), "abc");
    for (flag, given, part) in [
        ("--grammar", "no/such/file", "neither a file nor GBNF"),
        ("--grammar", "root ::= missing", "missing"),
        ("--json-schema", "{", "JSON Schema"),
        ("--samplers", "top_q", "top_q"),
    ] {
        let found = ingle(&["complete", &path, "--prompt", "a", flag, given]);
        let message = String::from_utf8(found.stderr).unwrap();
        assert!(!found.status.success() && message.contains(part), "{flag} {given}: {message}");
    }
    // Samplers of llama.cpp choose other tokens than plain sampling, and the same tokens for the
    // same seed.
    let plain = complete(&[]);
    for flags in [
        &["--mirostat", "2"][..],
        &["--samplers", "top_k;temperature", "--top-k", "2"],
        &["--typical-p", "0.2"],
    ] {
        let found = complete(flags);
        assert_eq!(found, complete(flags));
        assert_ne!(found, plain, "{flags:?}");
    }
    let repeats = ["--prompt", "a b c d e f g a b c d e f g a b c d", "--greedy", "-n", "1", "--ctx", "256"];
    let with = |more: &[&str]| ok(&[&["complete", &path][..], &repeats, more].concat());
    assert_eq!(with(&[]).trim(), "e");
    assert_ne!(with(&["--dry-multiplier", "50"]).trim(), "e");
}

#[test]
fn complete_prints_json_and_obeys_its_flags() {
    let path = SMOLLM2.path();
    let complete = |more: &[&str]| json(&[&["complete", &path, "--json", "--ctx", "256"][..], more].concat());
    let found = complete(&["--prompt", "The capital of France is", "--greedy", "-n", "8"]);
    assert!(found["text"].as_str().unwrap().contains("Paris"), "{found}");
    assert_eq!(found["stop"], "max_tokens");
    assert_eq!(found["timings"]["generated_tokens"], 8);
    // A bias of minus infinity forbids the first token; a stop string ends before itself.
    let first = ids(&found["tokens"])[0];
    let bias = format!("{first}=-inf");
    let other =
        complete(&["--prompt", "The capital of France is", "--greedy", "-n", "1", "--logit-bias", &bias]);
    assert_ne!(ids(&other["tokens"])[0], first);
    let stopped =
        complete(&["--prompt", "The capital of France is", "--greedy", "-n", "40", "--stop", "Paris"]);
    assert_eq!(stopped["stop"], "stop");
    assert!(!stopped["text"].as_str().unwrap().contains("Paris"));
    // Equal seeds give equal answers, and other seeds give others.
    let sampled = |seed: &str| {
        complete(&["--prompt", "Once", "-n", "24", "--temperature", "1.2", "--seed", seed])["text"].clone()
    };
    assert_eq!(sampled("7"), sampled("7"));
    assert_ne!(sampled("7"), sampled("8"));
    // An extreme penalty keeps the model from repeating itself.
    let args = ["--prompt", "no no no no no no no no", "--greedy", "-n", "4"];
    let plain = complete(&args);
    let penalised = complete(&[&args[..], &["--repeat-penalty", "5", "--presence-penalty", "20"]].concat());
    assert_ne!(plain["text"], penalised["text"]);
    // A full context ends the answer with a clear reason, or slides.
    let args = [
        "complete",
        &path,
        "--json",
        "--ctx",
        "32",
        "--prompt",
        "Once upon a time",
        "--greedy",
        "-n",
        "64",
        "--ignore-end",
    ];
    assert_eq!(json(&args)["stop"], "context_full");
    let slid = json(&[&args[..], &["--overflow", "slide", "--keep", "4"]].concat());
    assert_eq!(slid["stop"], "max_tokens");
    assert_eq!(slid["timings"]["generated_tokens"], 64);
}

/// A prompt whose answer is in the prompt.
const REPEATING: &str = "The list: red apples, green pears, blue plums, yellow lemons, purple grapes, orange melons.\n\
    Again, the list: red apples, green pears, blue plums, yellow lemons, purple grapes, orange melons.\n\
    Again, the list: red apples, green";

#[test]
fn guesses_change_speed_and_not_the_answer() {
    let path = SMOLLM2.path();
    let args = ["complete", &path, "--prompt", REPEATING, "--greedy", "-n", "24", "--ctx", "256", "--json"];
    let complete = |more: &[&str]| json(&[&args[..], more].concat());
    let drafted = |found: &serde_json::Value| found["timings"]["drafted_tokens"].as_u64().unwrap();
    let accepted = |found: &serde_json::Value| found["timings"]["accepted_tokens"].as_u64().unwrap();
    // With fixed orders of sums, speculation changes nothing.
    let plain = complete(&["--deterministic", "--speculate", "off"]);
    assert_eq!(drafted(&plain), 0);
    let ngram = complete(&["--deterministic", "--speculate", "ngram", "--draft-max", "5"]);
    assert_eq!(ngram["tokens"], plain["tokens"]);
    assert!(accepted(&ngram) >= 10 && drafted(&ngram) <= 5 * 23, "{ngram}");
    let own = complete(&["--deterministic", "--draft-model", &path, "--speculate", "draft"]);
    assert_eq!(own["tokens"], plain["tokens"]);
    assert!(accepted(&own) == drafted(&own) && drafted(&own) >= 18, "the same model is always right: {own}");
    // Repeatable answers have no draft tokens unless a flag wants them.
    assert_eq!(drafted(&complete(&[])), 0);
    assert!(drafted(&complete(&["--speculate", "ngram"])) > 0);
    let plan = |more: &[&str]| {
        json(&[&["plan", &path, "--ctx", "256", "--json"][..], more].concat())["committed"].as_u64().unwrap()
    };
    assert!(plan(&["--draft-max", "16"]) > plan(&["--speculate", "off"]));
    let wrong = |more: &[&str]| error(&[&args[..], more].concat());
    assert!(wrong(&["--speculate", "draft"]).contains("--draft-model"));
    assert!(wrong(&["--speculate", "ngram", "--draft-model", &path]).contains("auto or draft"));
    assert!(wrong(&["--speculate", "ngram", "--draft-max", "0"]).contains("draft length is 0"));
    let other = fixture("models/llama");
    assert!(wrong(&["--draft-model", other.to_str().unwrap()]).contains("same vocabulary"));
}

#[test]
fn a_models_own_layer_guesses() {
    let folder = fixture("models/glm4_moe_mtp");
    let path = folder.to_str().unwrap();
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |name: &str| expected[name].as_array().unwrap().clone();
    let prompt: Vec<String> = ids("input_ids").iter().map(ToString::to_string).collect();
    let prompt = prompt.join(",");
    let args = ["complete", path, "--tokens", &prompt, "--greedy", "-n", "30", "--deterministic", "--json"];
    let complete = |more: &[&str]| json(&[&args[..], more].concat());
    for more in [&["--mtp", "--speculate", "draft", "--draft-max", "1", "--chunk", "16"][..], &["--mtp"], &[]]
    {
        let found = complete(more);
        assert_eq!(found["tokens"].as_array().unwrap()[..], ids("answer")[..30], "{more:?}");
        let count = |name: &str| found["timings"][name].as_u64().unwrap();
        match more.len() {
            6.. => assert_eq!((count("drafted_tokens"), count("accepted_tokens")), (14, 14)),
            1 => {}
            _ => assert_eq!(count("drafted_tokens"), 0),
        }
    }
    let plan = |more: &[&str]| {
        json(&[&["plan", path, "--ctx", "256", "--json"][..], more].concat())["reserved"].as_u64().unwrap()
    };
    // The layer for prediction adds a third layer to the cache of two.
    assert_eq!(2 * plan(&["--mtp"]), 3 * plan(&[]));
    let wrong = |more: &[&str]| error(&[&args[..], more].concat());
    assert!(wrong(&["--mtp", "--speculate", "ngram"]).contains("--mtp goes with --speculate auto or draft"));
    let without = fixture("models/llama");
    let args = ["complete", without.to_str().unwrap(), "--tokens", "1,2", "--mtp"];
    assert!(error(&args).contains("no layer that predicts one token more"));
}

#[test]
fn a_prompt_is_kept_on_disk_between_runs() {
    let path = SMOLLM2.path();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    let file = file.to_str().unwrap();
    let args = [
        "complete",
        &path,
        "--prompt",
        REPEATING,
        "--greedy",
        "-n",
        "8",
        "--json",
        "--deterministic",
        "--prompt-cache",
        file,
    ];
    let complete = |more: &[&str]| json(&[&args[..], more].concat());
    let reused = |found: &serde_json::Value| found["timings"]["reused_tokens"].as_u64().unwrap();
    // A read-only cache file is not created.
    let first = complete(&["--prompt-cache-ro"]);
    assert!(reused(&first) == 0 && !std::path::Path::new(file).exists());
    assert_eq!(reused(&complete(&[])), 0);
    let kept = std::fs::read(file).unwrap();
    let again = complete(&[]);
    assert_eq!(again["tokens"], first["tokens"]);
    assert_eq!(reused(&again), again["timings"]["prompt_tokens"].as_u64().unwrap() - 1);
    // A cache file of another model or other settings stops the command, and is unchanged.
    assert!(error(&[&args[..], &["--kv-type", "i8"]].concat()).contains("KV type i16, and this is i8"));
    let gemma = GEMMA3.path();
    let other = ["complete", &gemma, "--prompt", "x", "--prompt-cache", file];
    assert!(error(&other).contains("another model"));
    assert_eq!(std::fs::read(file).unwrap(), kept);
    std::fs::write(file, &kept[..kept.len() / 2]).unwrap();
    assert!(error(&args).contains("damaged"));
    assert_eq!(ingle(&["complete", &path, "--prompt", "x", "--prompt-cache-ro"]).status.code(), Some(2));
}

#[test]
fn deterministic_answers_do_not_depend_on_chunks() {
    let path = SMOLLM2.path();
    let prompt =
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of";
    let logits = |more: &[&str]| {
        ok(&[
            &["logits", &path, "--prompt", prompt, "--top", "3", "--json", "--deterministic", "--ctx", "128"]
                [..],
            more,
        ]
        .concat())
    };
    let whole = logits(&[]);
    assert_eq!(whole, logits(&["--chunk", "7"]));
    assert_eq!(whole, logits(&["--prefill", "per-token"]));
    assert_eq!(whole, logits(&["--threads", "1"]));
}

#[test]
fn validate_prefill_runs_both_ways() {
    for model in [SMOLLM2, GEMMA3] {
        let out = ingle(&[
            "complete",
            &model.path(),
            "--prompt",
            "The quick brown fox jumps over the lazy dog.",
            "-n",
            "1",
            "--validate-prefill",
        ]);
        assert!(out.status.success());
        let message = String::from_utf8(out.stderr).unwrap();
        assert!(message.contains("prefill check passed"), "{message}");
    }
}

#[test]
fn plan_itemises_and_refuses_what_cannot_fit() {
    let path = SMOLLM2.path();
    let report = json(&["plan", &path, "--ctx", "4096", "--json"]);
    // 30 layers, 3 KV heads of 64 values, keys and values, 2 bytes each. One page is added for a
    // copied prefix.
    let kv = 4096 * 30 * 3 * 64 * 2 * 2;
    let reserved = report["reserved"].as_u64().unwrap();
    assert!((kv..kv + kv / 10).contains(&reserved), "{report}");
    let total: u64 = report["items"].as_array().unwrap().iter().map(|i| i["bytes"].as_u64().unwrap()).sum();
    assert_eq!(total, report["total"].as_u64().unwrap());
    let message = error(&["complete", &path, "--prompt", "hi", "--ctx", "16000000"]);
    assert!(message.contains("does not fit") && message.contains("context"), "{message}");
}

#[test]
fn profile_tables_and_traces() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let path = SMOLLM2.path();
    let args = ["profile", &path, "-p", "16", "-n", "4", "--trace", trace.to_str().unwrap()];
    let text = ok(&args);
    assert!(text.contains("prefill") && text.contains("decode") && text.contains("linear"), "{text}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
    assert!(ok(&["profile", &path, "-p", "16", "-n", "4", "--by", "layer"]).contains("layer  29"));
    assert!(ok(&["profile", &path, "-p", "16", "-n", "4", "--by", "op"]).contains("norm_gate_up"));
    let text = ok(&["profile", &path, "-p", "16", "-n", "4", "--parallel", "3"]);
    assert!(text.contains("decode: 4 steps, 12 rows"), "{text}");
}

#[test]
fn run_reads_a_pipe_and_survives_a_reader_that_hangs_up() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(["run", &SMOLLM2.path(), "--greedy", "-n", "32", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"What is the capital of France?").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    // The template's system message, the question, and the start of an answer.
    assert_eq!(found["timings"]["prompt_tokens"], 37, "{found}");
    assert!(!found["text"].as_str().unwrap().is_empty(), "{found}");

    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(["complete", &SMOLLM2.path(), "--prompt", "Once upon a time", "-n", "200", "--ignore-end"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn list_and_rm_keep_to_the_cache_that_they_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let own = ["--cache", cache, "--hf-cache", cache];
    assert!(ok(&[&["list"][..], &own].concat()).contains("no models yet"));
    assert!(ok(&[&["search", "gemma"][..], &own].concat()).contains("gemma3:270m-base"));
    let found = ok(&[&["search", "qwen", "0.6b"][..], &own].concat());
    assert!(found.contains("hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M (unverified)"), "{found}");
    let message = error(&[&["rm", "smollm2:135m"][..], &own].concat());
    assert!(message.contains("smollm2:135m"), "{message}");
    let message = error(&[&["pull", "smollm2:135m", "--offline"][..], &own].concat());
    assert!(message.contains("smollm2:135m"), "{message}");
}

/// The default KV type is printed, with its effect on biased keys, and the plan has an item for it.
#[test]
fn the_default_kv_type_is_named() {
    let path = fixture("models/qwen2_key_biases").display().to_string();
    let out = ingle(&["plan", &path, "--device", "cpu"]);
    let (plan, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(
        said.contains("KV type i16: the default of cpu (keys of 2 of 2 layers without their biases)"),
        "{said}"
    );
    assert!(plan.contains("biases of keys"), "{plan}");
    let out = ingle(&["plan", &path, "--device", "cpu", "--kv-type", "f16"]);
    let (plan, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(!said.contains("KV type") && !plan.contains("biases of keys"), "{said} {plan}");
}

/// Three ranks that share every layer give the answer of one device. Three must divide the number
/// of heads.
#[test]
fn every_layer_of_a_model_is_shared_by_several_devices() {
    let path = SMOLLM2.path();
    let complete = |flags: &[&str]| {
        let args =
            ["complete", &path, "--prompt", "The capital of France is", "--greedy", "-n", "5", "--json"];
        json(&[&args[..], &["--device", "reference", "--ctx", "64"], flags].concat())["tokens"].clone()
    };
    assert_eq!(complete(&["--gpus", "0,1,2"]), complete(&[]));
    let plan = ok(&["plan", &path, "--device", "reference", "--gpus", "0,1,2", "--ctx", "64"]);
    assert!(plan.contains("rank 0: KV pages") && plan.contains("rank 2: KV pages"), "{plan}");
    let refused = |flags: &[&str]| error(&[&["plan", &path][..], flags].concat());
    let message = refused(&["--device", "reference", "--gpus", "0,1"]);
    assert!(message.contains("3 KV heads on 2 devices"), "{message}");
    assert!(refused(&["--device", "cpu", "--gpus", "0,1"]).contains("--gpus needs --device cuda"));
    assert!(refused(&["--device", "reference", "--gpus", "0,0"]).contains("GPU 0 a second time"));
    let out = ingle(&["plan", &path, "--gpus", "0,1", "--gpu-layers", "2"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("cannot be used with"));
}

/// A model split by layers between a device and the CPU gives the CPU's answer; the plan lists
/// both.
#[test]
fn layers_of_a_model_are_shared_by_two_devices() {
    let path = SMOLLM2.path();
    let shared = ["--device", "reference", "--gpu-layers", "2", "--ctx", "64", "--kv-type", "f16"];
    let plan = ok(&[&["plan", &path][..], &shared].concat());
    assert!(plan.contains("cpu: KV pages") && plan.contains("reference: KV pages"), "{plan}");
    let complete = |flags: &[&str]| {
        let args =
            ["complete", &path, "--prompt", "The capital of France is", "--greedy", "-n", "5", "--json"];
        json(&[&args[..], flags].concat())["tokens"].clone()
    };
    let alone = complete(&["--device", "cpu", "--ctx", "64", "--kv-type", "f16"]);
    assert_eq!(complete(&shared), alone);
    let message = error(&["plan", &path, "--device", "cpu", "--gpu-layers", "2"]);
    assert!(message.contains("--gpu-layers"), "{message}");
}

/// A mixture with any of its experts on the CPU and the rest on another device gives the answer of
/// one device; the plan lists both.
#[test]
fn experts_of_a_model_are_on_the_cpu() {
    let folder = fixture("models/qwen3_moe");
    let folder = folder.to_str().unwrap();
    let common = ["--device", "reference", "--ctx", "64", "--kv-type", "f16"];
    let logits = |flags: &[&str]| -> Vec<f64> {
        let args = ["logits", folder, "--tokens", "36,144,5,7,99,3", "--top", "20", "--json"];
        let found = json(&[&args[..], &common, flags].concat());
        let rows = found["top"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        rows.map(|pair| pair[1].as_f64().unwrap()).collect()
    };
    let alone = logits(&[]);
    for flags in [
        &["--cpu-moe-layers", "99"][..],
        &["--n-cpu-moe", "2", "--chunk", "2"],
        &["--cpu-moe-layers", "3", "--gpu-layers", "3"],
    ] {
        let shared = logits(flags);
        assert_eq!(shared.len(), alone.len());
        let worst = shared.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst > 0.0 && worst < 1e-3, "{flags:?}: {worst}");
    }
    let complete = |flags: &[&str]| {
        let args = ["complete", folder, "--tokens", "36,144,5", "--greedy", "-n", "8", "--json"];
        json(&[&args[..], &common, flags].concat())["tokens"].clone()
    };
    let guessed = ["--cpu-moe-layers", "4", "--speculate", "ngram"];
    assert_eq!(complete(&guessed), complete(&[]));

    let plan = |flags: &[&str]| ok(&[&["plan", folder][..], &common, flags].concat());
    let text = plan(&["--cpu-moe-layers", "3"]);
    assert!(text.contains("on cpu the experts of layers 0 to 2, everything else on reference"), "{text}");
    assert!(text.contains("cpu: weights") && text.contains("reference: weights"), "{text}");
    assert!(text.contains("reference: KV pages") && !text.contains("cpu: KV pages"), "{text}");
    let text = plan(&["--cpu-moe-layers", "3", "--gpu-layers", "3"]);
    assert!(text.contains("on cpu layer 0 and the experts of layers 1 to 2"), "{text}");
    assert!(!plan(&["--cpu-moe-layers", "0"]).contains("on cpu"));

    let message = error(&["plan", folder, "--device", "cpu", "--cpu-moe-layers", "2"]);
    assert!(message.contains("--cpu-moe-layers") && message.contains("--device"), "{message}");
    let dense = fixture("models/llama");
    let message = error(&["plan", dense.to_str().unwrap(), "--device", "reference", "--cpu-moe-layers", "2"]);
    assert!(message.contains("found a model without experts"), "{message}");
    // Adapters on both sides of the split.
    let lora = format!("a={}", fixture("lora/mixtral_attention").display());
    let adapted = |flags: &[&str]| -> Vec<f64> {
        let folder = fixture("models/mixtral");
        let args = ["logits", folder.to_str().unwrap(), "--tokens", "36,144,5", "--top", "9", "--json"];
        let found = json(&[&args[..], &common, flags].concat());
        let rows = found["top"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        rows.map(|pair| pair[1].as_f64().unwrap()).collect()
    };
    let differ = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let alone = adapted(&["--lora", &lora]);
    assert!(differ(&alone, &adapted(&[])) > 0.1);
    assert!(differ(&alone, &adapted(&["--lora", &lora, "--n-cpu-moe", "9"])) < 1e-3);
    assert!(differ(&alone, &adapted(&["--lora", &lora, "--gpu-layers", "1"])) < 1e-3);

    let batches = ["--parallel", "1,2", "-p", "4", "-n", "2", "-r", "1", "--json", "--n-cpu-moe", "9"];
    let rows = ok(&[&["bench", folder, "--device", "reference"][..], &batches].concat());
    assert!(rows.contains("the experts of layers 0 to 3: "), "{rows}");
}
