//! Typed and piped input: text on stdin, negative numbers, names that are not UTF-8, flags of other
//! programs, mistakes.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::{SMOLLM2, error, fixture, ids, ingle, json, ok};

/// Runs the binary with this text on stdin.
fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ingle"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that does not read stdin closes it.
    _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn piped_json(args: &[&str], input: &str) -> Value {
    let out = piped(args, input.as_bytes());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn piped_text_is_added_to_the_text_that_is_given() {
    let path = SMOLLM2.path();
    let n_tokens = |found: Value| found["timings"]["prompt_tokens"].as_u64().unwrap();
    let run = |prompt: &[&str], input: &str| {
        let args = ["run", &path, "--json", "-n", "1", "--greedy", "--ctx", "256"];
        n_tokens(piped_json(&[&args[..], prompt].concat(), input))
    };
    let whole = run(&["Repeat:\n\nabc def ghi"], "");
    assert_eq!(run(&["Repeat:"], "abc def ghi\n"), whole);
    assert_eq!(run(&[], "Repeat:\n\nabc def ghi\n"), whole);
    assert_eq!(run(&["-"], "Repeat:\n\nabc def ghi"), whole);
    // An empty stdin adds nothing.
    let alone = run(&["Repeat:"], "");
    assert!(alone < whole);
    assert_eq!(run(&["Repeat:"], "\n"), alone);

    let complete = ["complete", &path, "--json", "-n", "1", "--greedy", "--ctx", "256"];
    let count = |more: &[&str], input: &str| n_tokens(piped_json(&[&complete[..], more].concat(), input));
    let expected = count(&["-p", "one two three four"], "");
    assert_eq!(count(&["-p", "one two"], " three four"), expected);
    assert_eq!(count(&[], "one two three four"), expected);
    assert_eq!(count(&["-"], "one two three four"), expected);
    assert_eq!(count(&["one two"], " three four"), expected);
    // The byte order mark is not part of the text.
    assert_eq!(count(&[], "\u{FEFF}one two three four"), expected);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one two").unwrap();
    assert_eq!(count(&["--file", file.path().to_str().unwrap()], " three four"), expected);

    let tokens = |more: &[&str], input: &str| {
        ids(&piped_json(&[&["tokenize", &path, "--json"][..], more].concat(), input)["tokens"])
    };
    assert_eq!(tokens(&["one two"], " three\n"), tokens(&["one two three\n"], ""));
    assert_eq!(tokens(&[], "one two"), tokens(&["one two"], ""));
    let logits = |more: &[&str], input: &str| {
        ids(&piped_json(&[&["logits", &path, "--json", "--ctx", "64"][..], more].concat(), input)["tokens"])
    };
    assert_eq!(logits(&["-p", "one"], " two"), logits(&["-p", "one two"], ""));

    let embed = |more: &[&str], input: &str| {
        piped_json(&[&["embed", "minilm:l6", "--json"][..], more].concat(), input)["embeddings"].clone()
    };
    assert_eq!(embed(&["a cat"], "a dog\n"), embed(&["a cat", "a dog"], ""));
}

#[test]
fn an_empty_stdin_is_no_prompt() {
    let path = SMOLLM2.path();
    for (command, part) in [
        ("run", "nothing to answer"),
        ("complete", "nothing to continue"),
        ("tokenize", "no text"),
        ("logits", "no text"),
        ("embed", "no text"),
    ] {
        let message = error(&[command, &path]);
        assert!(message.contains(part), "{command}: {message}");
    }
    let message = String::from_utf8(piped(&["run", &path, "Hi"], b"\xff\xfe").stderr).unwrap();
    assert_eq!(message, "error: stdin: found a text in UTF-16 at byte 0, expected UTF-8\n");
}

#[test]
fn a_server_that_cannot_begin_says_why_once() {
    let message = error(&["serve", "./nothing.gguf", "--port", "0", "--offline"]);
    assert_eq!(message.matches("./nothing.gguf: no such file or folder").count(), 1, "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let script = format!("exec '{}' search >/dev/full", env!("CARGO_BIN_EXE_ingle"));
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{message}");
    assert!(message.starts_with("error: writing to stdout: "), "{message}");
}

#[cfg(unix)]
#[test]
fn a_closed_stdin_is_an_empty_one() {
    let script =
        format!("exec '{}' tokenize '{}' hello --json <&-", env!("CARGO_BIN_EXE_ingle"), SMOLLM2.path());
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn negative_numbers_mean_what_they_do_on_the_server() {
    let path = SMOLLM2.path();
    let complete = ["complete", &path, "-p", "Once", "--json", "--ctx", "48", "--ignore-end"];
    let with = |more: &[&str]| json(&[&complete[..], more].concat());
    let found =
        with(&["-n", "-1", "--seed", "-1", "--top-k", "-1", "--penalty-window", "-1", "--threads", "-1"]);
    assert_eq!(found["stop"], "context_full");
    assert_ne!(with(&["--seed", "-1"])["seed"], found["seed"]);
    assert_eq!(with(&["--seed=-2", "-n", "1"])["seed"], u64::MAX - 1);
    assert_eq!(
        with(&["--top-k", "0", "--seed", "3", "-n=-1"])["text"],
        with(&["--top-k", "-1", "--seed", "3"])["text"]
    );
    for (flag, value, part) in [
        ("--temperature", "-1", "temperature is -1, expected"),
        ("--top-p", "-0.5", "top_p is -0.5, expected"),
        ("--min-p", "2", "min_p is 2, expected"),
        ("--repeat-penalty", "-1", "repeat_penalty is -1, expected"),
    ] {
        // The error comes before a search for the model.
        let message = error(&["run", "no-such-model", "Hi", flag, value]);
        assert!(message.contains(part), "{message}");
    }
    for args in [&["--chunk", "-3"][..], &["-n", "many"], &["--draft-max", "-1"]] {
        let out = ingle(&[&["complete", &path][..], args].concat());
        let message = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains("expected a number of at least 0"), "{message}");
    }
}

/// A path is bytes: a model whose name is not UTF-8 works like any other.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_utf_8_are_names() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(OsStr::from_bytes(b"m\xff.gguf"));
    std::os::unix::fs::symlink(SMOLLM2.path(), &model).unwrap();
    let schema = folder.path().join(OsStr::from_bytes(b"s\xfe.json"));
    std::fs::write(&schema, r#"{"enum": ["a"]}"#).unwrap();
    let output = folder.path().join(OsStr::from_bytes(b"out\xfd.gguf"));
    let run = |args: &[&OsStr]| {
        let out = Command::new(env!("CARGO_BIN_EXE_ingle")).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = |text: &str| OsString::from(text);
    let of = |command: &str, more: &[OsString]| {
        let args = [&[text(command), model.clone().into()][..], more].concat();
        run(&args.iter().map(OsString::as_os_str).collect::<Vec<_>>())
    };
    assert!(of("inspect", &[]).contains("272 tensors"));
    assert!(of("tokenize", &[text("hello"), text("--json")]).contains("tokens"));
    assert!(of("pull", &[text("--json")]).contains("gguf"));
    let answer = of("run", &[text("Hi"), text("--ctx"), text("128"), text("--json-schema"), schema.into()]);
    assert_eq!(answer.trim(), "\"a\"");
    of("convert", &[text("-o"), output.clone().into(), text("--to"), text("gguf"), text("--json")]);
    assert!(output.is_file());
}

#[test]
fn causes_are_named_once() {
    let message = error(&["transcribe", "whisper:tiny", "no-such.wav"]);
    assert_eq!(message, "error: no-such.wav: cannot be opened: No such file or directory (os error 2)\n");
    let path = SMOLLM2.path();
    for args in [
        &["complete", &path, "--file", "no-such.txt"][..],
        &["complete", &path, "-p", "a", "--lora", "a=no-such-adapter"],
        &["perplexity", &path, "no-such.txt"],
        &["serve", &path, "--config", "no-such.toml"],
        &["run", &path, "a", "--chat-template", "no-such.jinja"],
        &["bench", &path, "--verify-key", "no-such.key"],
    ] {
        let message = error(args);
        assert_eq!(message.matches("No such file").count(), 1, "{message}");
        assert_eq!(message.matches("no-such").count(), 1, "{message}");
    }
}

#[test]
fn what_is_no_model_is_said_to_be_none() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "127.0.0.1 localhost\n").unwrap();
    let message = error(&["run", file.path().to_str().unwrap(), "Hi"]);
    assert!(message.contains("not a model file: found \"127.\""), "{message}");
    std::fs::write(file.path(), "").unwrap();
    let message = error(&["inspect", file.path().to_str().unwrap()]);
    assert!(message.contains("not a model file: found an empty file"), "{message}");
}

#[test]
fn habits_from_other_programs_work() {
    let folder = fixture("models/llama").display().to_string();
    assert_eq!(ok(&["show", &folder]), ok(&["inspect", &folder]));
    assert_eq!(ok(&["ls"]), ok(&["list"]));
    assert_eq!(ok(&["version"]), ok(&["--version"]));
    for (alias, command) in [("chat", "run"), ("create", "convert"), ("quantize", "convert")] {
        assert_eq!(ok(&[alias, "--help"]), ok(&[command, "--help"]));
    }
    for (args, part) in [
        (&["rnu"][..], "'run'"),
        (&["serv"], "'serve'"),
        (&["quantise2"], "'convert'"),
        (&["run", "x", "--device", "gpu"], "'cuda' is an NVIDIA GPU"),
        (&["run", "x", "--temprature", "1"], "'--temperature'"),
    ] {
        let out = ingle(args);
        let message = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(part) && !message.contains("tip:\n"), "{message}");
    }
}

#[test]
fn without_a_server_ps_and_stop_say_how_to_start_one() {
    // No server listens at port 1.
    for args in [&["ps"][..], &["stop", "smollm2:135m"]] {
        let message = error(&[args, &["--server", "127.0.0.1:1"]].concat());
        assert!(
            message.contains("no server runs at http://127.0.0.1:1; start one with `ingle serve"),
            "{message}"
        );
    }
}

#[test]
fn the_flags_that_matter_are_first_in_help() {
    let help = ok(&["run", "--help"]);
    let options = help.split("\nOptions:\n").nth(1).unwrap();
    let options = &options[..options.find("\nFetching").unwrap()];
    for flag in
        ["--system", "--image", "--max-tokens", "--temperature", "--seed", "--ctx", "--device", "--json"]
    {
        assert!(options.contains(flag), "{flag} is missing in {options}");
    }
    assert!(!options.contains("--pip-arg"), "{options}");
    assert!(options.find("--temperature") < options.find("--mirostat"), "{options}");
    assert!(help.find("\n  <MODEL>\n") < help.find("\n  [PROMPT]\n"), "{help}");
    assert!(ok(&["complete", "--help"]).contains("gemma3:270m-base"));
}

/// Help must not have names of types: such a name is a mistake of a rename.
#[test]
fn help_has_no_names_of_types() {
    let crates = fixture("../crates");
    let mut names = std::collections::BTreeSet::new();
    let mut folders = vec![crates];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let code = std::fs::read_to_string(&entry).unwrap();
                let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
                let named = words.windows(2).filter(|pair| ["struct", "enum", "trait"].contains(&pair[0]));
                names.extend(named.map(|pair| pair[1].to_owned()));
            }
        }
    }
    // Names of two words or more.
    let is_compound = |name: &&String| {
        let inner = name.get(1..).unwrap_or_default();
        name.starts_with(|c: char| c.is_uppercase())
            && inner.contains(char::is_uppercase)
            && inner.contains(char::is_lowercase)
    };
    let names: Vec<&String> = names.iter().filter(is_compound).collect();
    assert!(names.len() > 300 && names.iter().any(|name| *name == "RowCount"));
    let help = ok(&["--help"]);
    let commands = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut n_commands = 0;
    for command in commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
        if command.is_empty() || command == "help" {
            continue;
        }
        n_commands += 1;
        let help = ok(&[command, "--help"]);
        let words: Vec<&str> = help.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let leaked: Vec<_> = names.iter().filter(|name| words.contains(&name.as_str())).collect();
        assert!(leaked.is_empty(), "{command}: {leaked:?}");
    }
    assert!(n_commands > 25, "{n_commands}");
}
