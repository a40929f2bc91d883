//! Behaviours of the library on real models of the catalog, which are fetched into the user's cache
//! at their first use. The bindings' tests drive the same list.
#![allow(clippy::unwrap_used)]

mod behaviours;
mod models;
