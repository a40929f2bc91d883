//! The commands of the README.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

/// `cargo run` in the workspace's folder needs a single binary.
#[test]
fn cargo_run_has_one_binary_to_choose_from() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let default_members = list(&metadata["workspace_default_members"]);
    let packages = list(&metadata["packages"]).into_iter().filter(|p| default_members.contains(&p["id"]));
    let targets: Vec<Value> = packages.flat_map(|package| list(&package["targets"])).collect();
    let binaries = targets.iter().filter(|target| list(&target["kind"]).contains(&Value::from("bin")));
    let names: Vec<&Value> = binaries.map(|target| &target["name"]).collect();
    assert_eq!(names, ["ingle"]);
}
