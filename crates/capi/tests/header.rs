//! `include/ingle.h` is what cbindgen makes of the declarations.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_declarations() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_folder.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let mut made = Vec::new();
    builder.with_src(crate_folder.join("src/lib.rs")).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();

    let header = crate_folder.join("include/ingle.h");
    if std::env::var_os("INGLE_WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    let found = fs::read_to_string(&header).unwrap_or_default();
    assert!(
        found == made,
        "{} is stale; write it anew with INGLE_WRITE_HEADER=1 cargo test --package ingle-capi --test header",
        header.display()
    );
}
