//! The tests of this crate are one binary, because each binary takes seconds to link.

mod choice;
mod fetched;
mod hub;
mod stand_in;
mod wheels;
