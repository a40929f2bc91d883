//! `--kv-budget` and `--memory`: a limit that is too small for one sequence is refused, with the
//! least limit.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use crate::common::{SMOLLM2, error, ingle, json};

#[test]
fn a_budget_bounds_keys_and_values() {
    let path = SMOLLM2.path();
    let complete =
        ["complete", &path, "--prompt", "Once upon a time", "--greedy", "-n", "6", "--ctx", "256", "--json"];
    for command in [&["plan", &path, "--ctx", "256"][..], &complete] {
        let message = error(&[command, &["--kv-budget", "64K"]].concat());
        assert!(message.contains("KV budget is 65536 bytes, expected at least"), "{message}");
    }
    let message = error(&[&complete[..], &["--kv-budget", "64K"]].concat());
    let words = message.split("at least ").nth(1).unwrap();
    let least: u64 = words.split(',').next().unwrap().parse().unwrap();
    let text = |budget: &str| json(&[&complete[..], &["--kv-budget", budget]].concat())["text"].clone();
    assert_eq!(text(&least.to_string()), text("auto"));
    assert_eq!(text("1g"), text("512M"));
    for wrong in ["", "G", "1.5", "5X", "99999999999T", "1µ"] {
        let out = ingle(&[&complete[..], &["--kv-budget", wrong]].concat());
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && message.contains("kv-budget"), "{wrong}: {message}");
    }
}

/// `--memory` limits the whole process, and the plan names the rest and its reason.
#[test]
fn a_cap_on_memory_is_heeded_and_shown() {
    let path = SMOLLM2.path();
    let plan = |flags: &[&str]| json(&[&["plan", &path, "--ctx", "256", "--json"], flags].concat());
    let free = plan(&[]);
    assert!(matches!(free["budget"]["reason"].as_str(), Some("machine" | "group")), "{free}");
    let capped = plan(&["--memory", "1GiB"]);
    assert_eq!((&capped["budget"]["reason"], capped["free"].as_u64()), (&"cap".into(), Some(1 << 30)));
    assert!(capped["budget"]["bytes"].as_u64() < Some(1 << 30));
    let complete = ["complete", &path, "--prompt", "Once", "--greedy", "-n", "3", "--ctx", "256"];
    let message = error(&[&complete[..], &["--memory", "32M"]].concat());
    assert!(message.contains("does not fit in memory") && message.contains("in all"), "{message}");
    for wrong in ["", "0%", "101%", "x", "-1"] {
        let out = ingle(&[&complete[..], &[&format!("--memory={wrong}")]].concat());
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && message.contains("--memory"), "{wrong}: {message}");
    }
}
