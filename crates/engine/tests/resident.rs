//! Test that released memory leaves the process: another process checks it by the system's count.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use crate::common::{greedy, model, options};
use device::{Device, KvType};
use device_cpu::{CpuDevice, Options};
use ingle_engine::*;
use platform::{Reading, Script};

const TOTAL: u64 = 16 << 30;
/// Environment variable that makes the process the child.
const CHILD: &str = "INGLE_TEST_HOLDS_MEMORY";
/// Bytes that the child keeps after it was told to release.
const LEFT: u64 = 8 << 20;

/// Anonymous resident memory of a process.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Fill the prefix cache, and release most of it on a line from standard input.
fn child() {
    let script = Script::new(TOTAL, TOTAL);
    let governor = Governor::of(Box::new(script.clone()), MemoryCap::Max);
    governor.observe(Instant::now());
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap());
    let load =
        LoadOptions { kv_type: Some(KvType::F32), governor: Some(governor.clone()), ..options(512, 128, 32) };
    let mut engine = Engine::new(model("qwen3"), &device, &load).unwrap();
    for first in 0..32 {
        let prompt: Vec<u32> = (0..480).map(|i| (first + i * (first + 3)) % 150).collect();
        engine.add(greedy(&prompt, 2)).unwrap();
    }
    while engine.step(&mut |_| {}).unwrap() {}
    let held = governor.status()[0].held;
    println!("holds {held}");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let free = reserve(TOTAL).saturating_sub(held - LEFT);
    script.set(Reading { total: TOTAL, free, ..Reading::default() });
    governor.observe(Instant::now());
    engine.follow_memory().unwrap();
    println!("holds {}", governor.status()[0].held);
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

#[test]
fn what_is_given_back_leaves_the_process() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resident::what_is_given_back_leaves_the_process", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    // Test harnesses print lines of their own first.
    let mut holds = || -> u64 {
        let line = lines.find_map(|line| line.unwrap().split_once("holds ").map(|(_, n)| n.to_owned()));
        line.unwrap().parse().unwrap()
    };
    let held = holds();
    let before = resident(process.id());
    let mut told = process.stdin.take().unwrap();
    told.write_all(b"\n").unwrap();
    let left = holds();
    let after = resident(process.id());
    told.write_all(b"\n").unwrap();
    assert!(process.wait().unwrap().success());
    let given = held - left;
    println!("held {held}, then {left}; resident {before}, then {after}");
    assert!(held > 24 << 20 && left <= LEFT, "held {held}, then {left}");
    assert!(
        before - after > given / 10 * 9,
        "{given} bytes were given back, resident memory fell from {before} to {after}"
    );
}
