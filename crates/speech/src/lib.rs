//! Speech to text: an encoder computes states of windows of sound, and a decoder generates their
//! words.
//!
//! ```text
//! features ─► window ─► encoder ─► states ─┬► search: beams or samples ─► tokens ─► segments
//!    ▲                                     └► alignment ─► times of words      │
//!    └──────────────── the next window begins at the last mark of time ◄───────┘
//! ```
//!
//! [`Transcriber`] is the entry point. [`Features`] is the source of sound, and [`AudioFeatures`]
//! reads files. [`TranscriptWriter`] writes transcripts. The rules, their constants and their order
//! are those of openai-whisper and, for the search, of faster-whisper, so that the words are the
//! same.
//!
//! # Invariants
//!
//! - Memory does not grow with the length of the sound: features before the window are dropped, and
//!   segments are passed to the caller.
//! - A page that two beams share is never written.
//! - A transcript is a function of model, sound, options and device; random numbers at temperatures
//!   above 0 have a seed.
//! - The engine does not depend on this crate, and this crate depends on no single device and no
//!   file format.
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
