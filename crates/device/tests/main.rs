//! The tests of this crate are one binary. They stand here, not in the sources, since they use crates that are built on this one.

#![allow(clippy::unwrap_used)]

mod check;
mod cost;
mod key_bias;
mod print;
mod shared_body;
mod validate;
