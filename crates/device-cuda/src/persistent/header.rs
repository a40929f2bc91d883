//! Constants of `kernels/persistent/arguments.h`, which `build/persistent.rs` translates. Their
//! names lack the prefix `PERSISTENT_`; the header says what each one is.
#![allow(dead_code, unused_parens)]

include!(concat!(env!("OUT_DIR"), "/persistent.rs"));
