//! Runs libFuzzer over the target that `FUZZ_TARGET` names. `cargo xtask fuzz` builds and runs it.
#![no_main]

use std::sync::OnceLock;

use ingle_fuzz::{TARGETS, Target};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|target| target.name == name).expect("FUZZ_TARGET names a target")
    });
    (target.run)(data);
});
