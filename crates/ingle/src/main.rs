//! The command line of Ingle.
fn main() {}
