//! `--kv-budget`: what is too small for one sequence is refused with what is needed, and that much is enough.
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
    for wrong in ["", "G", "1.5G", "5X", "99999999999T", "1µ"] {
        let out = ingle(&[&complete[..], &["--kv-budget", wrong]].concat());
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && message.contains("kv-budget"), "{wrong}: {message}");
    }
}
