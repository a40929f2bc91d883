//! The tests of this crate are one binary. They are here and not in the sources because they use
//! crates that depend on this one.

#![allow(clippy::unwrap_used)]

mod check;
mod cost;
mod key_bias;
mod print;
mod shared_body;
mod validate;
