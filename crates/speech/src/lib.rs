//! Speech into text: windows of sound through an encoder, and their words out of a decoder.
//!
//! ```text
//! features ─► window ─► encoder ─► states ─┬► search: beams, or samples ─► tokens ─► segments ─► the caller
//!    ▲                                     └► alignment ─► times of words      │
//!    └──────────────── the next window begins at the last mark of time ◄───────┘
//! ```
//!
//! [`Transcriber`] does it; [`Features`] is where sound comes from, [`AudioFeatures`] files; [`TranscriptWriter`] writes
//! transcripts down. The rules, their numbers and their order are those of openai-whisper and, for the search,
//! faster-whisper, so that the same words come out.
//!
//! # Invariants
//!
//! - Memory does not grow with the length of the sound: features before the window are dropped, segments are given to the caller.
//! - A page that two beams share is never written.
//! - A transcript is a function of model, sound, options and device; numbers drawn at temperatures above 0 have a seed.
//! - The engine does not depend on this crate, and this crate on no single device and no file format.
#![deny(missing_docs)]

mod alignment;
mod compression;
mod error;
mod format;
mod language;
mod math;
mod options;
mod rules;
mod runner;
mod search;
mod source;
mod transcriber;
mod transcript;
mod window;
mod word_times;
mod words;

pub use error::{Error, Result};
pub use format::{Format, TranscriptWriter};
pub use language::{language_code, language_name};
pub use options::{Task, TranscribeOptions};
pub use runner::SpeechTimings;
pub use source::{AudioFeatures, Features};
pub use transcriber::{Summary, Transcriber, TranscriberOptions};
pub use transcript::{Segment, Word};
