//! The kernels of the CPU and of Metal stand at the same paths: comparing two listings shows what is missing.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

/// Paths under a device's `kernels/`, without what follows the first dot.
fn stems(device: &str, extensions: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(device).join("src/kernels");
    let mut found = BTreeSet::new();
    for folder in ["", "linear"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            if extensions.contains(&extension) {
                let stem = path.file_stem().unwrap().to_str().unwrap();
                found.insert(if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") });
            }
        }
    }
    found
}

/// How one device does what another does in another way, or does not need to do.
const CPU_ONLY: &[&str] = &[
    // One file for the types of each instruction set, and what they read.
    "linear/activation",
    "linear/affine_avx2",
    "linear/affine_avx512",
    "linear/affine_neon",
    "linear/avx2",
    "linear/avx512",
    "linear/float_avx2",
    "linear/float_avx512",
    "linear/float_neon",
    "linear/gemm_avx2",
    "linear/gemm_avx512",
    "linear/gemm_words_avx2",
    "linear/interleaved",
    "linear/interleaved_avx2",
    "linear/interleaved_avx512",
    "linear/interleaved_i8mm",
    "linear/interleaved_neon",
    "linear/neon",
    "linear/portable",
    "linear/scalar",
    "linear/weight_rows",
    // What runs types without a kernel of their own; on Metal every type has one.
    "linear/decoded",
    // Schedules and parts of kernels.
    "activation_rows",
    "attention_product",
    "attention_tile",
    "elementwise",
    "projection",
    // On Metal `embed`, bound to positions.
    "embed_positions",
    // Modules and tests.
    "mod",
    "linear/mod",
    "linear/tests",
];

#[test]
fn every_kernel_of_the_cpu_has_one_at_the_same_path() {
    let cpu = stems("device-cpu", &["rs"]);
    let metal = stems("device-metal", &["metal", "h"]);
    assert!(cpu.len() > 50 && metal.len() > 50, "{} and {} files", cpu.len(), metal.len());
    let missing: Vec<_> =
        cpu.iter().filter(|s| !metal.contains(*s) && !CPU_ONLY.contains(&s.as_str())).collect();
    assert!(missing.is_empty(), "no Metal kernels for {missing:?}");
    let stale: Vec<_> = CPU_ONLY.iter().filter(|s| !cpu.contains(**s) || metal.contains(**s)).collect();
    assert!(stale.is_empty(), "not of the CPU alone: {stale:?}");
}

#[test]
fn every_file_is_embedded() {
    use ingle_device_metal::kernels::{FILES, HEADERS};
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels");
    for folder in ["", "attention", "linear"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let listed = |list: &[(&str, &str)]| list.iter().any(|(path, _)| *path == name);
            match path.extension().and_then(|e| e.to_str()) {
                Some("metal") => assert!(listed(FILES), "{name} is not among the files"),
                Some("h") => assert!(listed(HEADERS), "{name} is not among the headers"),
                _ => {}
            }
        }
    }
}

#[test]
fn every_type_has_kernels() {
    for block in device::testing::block_types() {
        assert!(ingle_device_metal::kernels::linear_file(block).is_some(), "{block}");
    }
}
