//! Every file of tests is part of a binary. Cargo does not find tests in a crate that lists its
//! test binaries, as these crates do. A file outside such a binary would never run.
#![allow(clippy::unwrap_used)]

use std::fs::{read_dir, read_to_string};
use std::path::Path;

#[test]
fn no_file_of_tests_is_left_out() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut n_files = 0;
    for folder in read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let manifest = read_to_string(folder.join("Cargo.toml")).unwrap();
        if !manifest.contains("autotests = false") {
            continue;
        }
        let main = read_to_string(folder.join("tests/main.rs")).unwrap();
        for file in read_dir(folder.join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
            let is_source = file.extension().is_some_and(|extension| extension == "rs");
            if !is_source && !file.join("mod.rs").exists() {
                continue;
            }
            let name = file.file_stem().unwrap().to_str().unwrap();
            let is_module = main.lines().any(|line| line == format!("mod {name};"));
            let is_binary = manifest.contains(&format!("path = \"tests/{name}.rs\""));
            assert!(is_module || is_binary, "{} is in no binary", file.display());
            n_files += 1;
        }
    }
    assert!(n_files > 50, "{n_files}");
}
