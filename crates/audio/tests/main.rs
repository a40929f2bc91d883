//! The tests of this crate are one binary, because each binary takes seconds to link. Tests that
//! measure their whole process are binaries of their own.

mod aiff_lengths;
mod common;
mod decode;
mod hostile;
mod mel;
mod wav_lengths;
