//! The tests of this crate are one binary, for each that links everything takes seconds to build.

mod hub;
mod stand_in;
mod wheels;
