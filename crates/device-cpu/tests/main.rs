//! The tests of this crate are one binary, since each binary takes seconds to link. Tests that
//! observe their whole process are separate binaries.

mod attention;
mod ops;
mod program;
