//! Kernels of the CPU and of Metal have the same paths, so two listings show the missing files of
//! each. This file lists kernels of one device only, with the reason.
#![allow(clippy::unwrap_used)]

use ingle_device_metal::kernels;
use std::collections::BTreeSet;
use std::path::Path;

/// Paths of files under a device's `kernels/`, without what follows the first dot.
fn stems(device: &str, extensions: &[&str]) -> BTreeSet<String> {
    fn walk(folder: &Path, prefix: &str, extensions: &[&str], found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let part =
                |part: Option<&std::ffi::OsStr>| part.and_then(|s| s.to_str()).unwrap_or_default().to_owned();
            let stem = format!("{prefix}{}", part(path.file_stem()));
            if path.is_dir() {
                walk(&path, &format!("{stem}/"), extensions, found);
            } else if extensions.contains(&part(path.extension()).as_str()) {
                found.insert(stem);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(device).join("src/kernels");
    let mut found = BTreeSet::new();
    walk(&root, "", extensions, &mut found);
    found
}

/// CPU files for work that Metal does in another way, or does not need to do.
const CPU_ONLY: &[&str] = &[
    // On Metal `gated_delta` and `selective_scan`.
    "recurrence",
    // The types of each instruction set have one file, and so do their readers.
    "linear/activation",
    "linear/affine_avx2",
    "linear/affine_avx512",
    "linear/affine_neon",
    "linear/avx2",
    "linear/avx512",
    "linear/bf16_avx512",
    // Choice of a kernel by instruction set and shape.
    "linear/choose_affine",
    "linear/choose_blocks",
    "linear/choose_float",
    "linear/float_avx2",
    "linear/float_avx512",
    "linear/float_neon",
    "linear/gemm_avx2",
    "linear/gemm_words_avx2",
    "linear/interleaved",
    "linear/interleaved_amx",
    "linear/interleaved_avx2",
    "linear/interleaved_avx512",
    "linear/interleaved_i8mm",
    "linear/interleaved_neon",
    // Blocks of rows as tiles, at load; Metal uses weights in place.
    "linear/make_tile",
    "linear/neon",
    "linear/order",
    "linear/panel_avx2",
    "linear/portable",
    "linear/scalar",
    "linear/tile_avx512",
    "linear/weight_rows",
    // Runs types without a kernel of their own; on Metal every type has one.
    "linear/decoded",
    // Schedules and parts of kernels.
    "activation_rows",
    "attention/attend",
    "attention/chunk",
    "attention/floats",
    "attention/integer_layout",
    "attention/integer_products",
    "attention/integer_weights",
    "attention/integers",
    "attention/loops",
    "attention/numbers",
    "attention/pages",
    "attention/product",
    "attention/schedule",
    "attention/softmax",
    "attention/stored",
    "attention/tile",
    "attention/variants",
    "elementwise",
    "projection",
    // On Metal `embed`, bound to positions.
    "embed_positions",
    // Modules and tests.
    "mod",
    "linear/mod",
    "linear/tests",
    "linear/tests/activation",
    "linear/tests/memory",
];

/// Metal files for work that the CPU does in another way, or does not need to do.
const METAL_ONLY: &[&str] = &[
    // The CPU's `join`: on Metal that is a unit of a projection and a sum.
    "join_heads",
    // The CPU's `recurrence`.
    "gated_delta",
    "selective_scan",
    // Headers that kernels share: on the CPU these are Rust modules outside of `kernels/`.
    "activation",
    "arguments",
    "constants",
    "instantiate",
    "key_bias",
    "kv_store",
    "reduce",
    "rotate",
    "scan",
    "scan_chunks",
    "step",
    "turns",
    "linear/arguments",
    "linear/block",
    "linear/constants",
    "linear/gemm",
    "linear/gemv",
    "linear/grid",
    "linear/joined",
    "linear/kernels",
    "linear/merged",
    "linear/neighbours",
    "linear/parameters",
    "linear/target",
    "linear/tensor",
    // Norms of a branch and of the sum that it becomes, in one: the CPU runs them one after the
    // other. The parts of `attention`: on the CPU `attention/product` and `attention/tile`.
    "attention/arguments",
    "attention/decode",
    "attention/merge",
    "attention/parts",
    "attention/prefill",
    "attention/scores",
    "attention/vectors",
    // Widths of `linear/affine`, and a pair of types in one dispatch.
    "linear/affine_2",
    "linear/affine_3",
    "linear/affine_4",
    "linear/affine_5",
    "linear/affine_6",
    "linear/affine_8",
    "linear/mixed",
    // Types that the CPU decodes row by row (`linear/decoded`), or through `linear/affine`.
    "linear/i16_rows",
    "linear/i8_rows",
    "linear/iq1_m",
    "linear/iq1_s",
    "linear/iq2_s",
    "linear/iq2_xs",
    "linear/iq2_xxs",
    "linear/iq3_s",
    "linear/iq3_xxs",
    "linear/nvfp4",
    "linear/q1_0",
    "linear/tq1_0",
    "linear/tq2_0",
    // The CPU's sampler is the engine's, and `peaks.rs` measures the CPU's rates.
    "sampling/arguments",
    "sampling/masks",
    "sampling/penalties",
    "sampling/rank",
    "sampling/sample",
    "peaks",
    "probes",
    // The tensor units of Metal 4.
    "attention/tensor",
    "tensor_probe",
    "tensor_units",
];

/// Checks that the files of `first` that `second` lacks are those of `alone`.
fn check(first: &BTreeSet<String>, second: &BTreeSet<String>, alone: &[&str]) {
    let missing: Vec<_> = first.difference(second).filter(|s| !alone.contains(&s.as_str())).collect();
    assert!(missing.is_empty(), "only one device has {missing:?}");
    let stale: Vec<_> = alone.iter().filter(|s| !first.contains(**s) || second.contains(**s)).collect();
    assert!(stale.is_empty(), "not of one device alone: {stale:?}");
}

#[test]
fn kernels_of_cpu_and_metal_stand_at_the_same_paths() {
    let cpu = stems("device-cpu", &["rs"]);
    let metal = stems("device-metal", &["metal", "h"]);
    assert!(cpu.intersection(&metal).count() > 40, "{} and {} files", cpu.len(), metal.len());
    check(&cpu, &metal, CPU_ONLY);
    check(&metal, &cpu, METAL_ONLY);
}

#[test]
fn every_type_has_kernels() {
    for block in device_testing::block_types() {
        assert!(kernels::linear_file(block).is_some(), "{block}");
    }
}

/// Global types and values begin with a capital letter, and Metal's own with a small one. So a name
/// that a later Metal adds is not ambiguous here.
#[test]
fn global_types_and_values_begin_with_a_capital() {
    let mut n = 0;
    for (path, text) in kernels::HEADERS.iter().chain(kernels::FILES) {
        for line in text.lines() {
            // The name follows the kind, or ends an alias.
            let rest = match line.split_once('>') {
                Some((start, rest)) if start.starts_with("template") => rest.trim_start(),
                Some(_) | None => line,
            };
            let words: Vec<&str> = rest.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let name = match words.as_slice() {
                ["struct" | "enum" | "union" | "using", name, ..] => *name,
                ["constant", _, name, ..] => *name,
                ["typedef", ..] => words.iter().rev().find(|word| !word.is_empty()).copied().unwrap_or(""),
                _ => continue,
            };
            if name.is_empty() || name == "namespace" {
                continue;
            }
            n += 1;
            assert!(name.starts_with(char::is_uppercase), "{path}: {name} in {line}");
        }
    }
    assert!(n > 100, "{n} names");
}
