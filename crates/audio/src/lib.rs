//! Audio for speech models: decodes a file to 16 kHz mono samples and computes their log-mel
//! spectrogram.
//!
//! ```no_run
//! # fn main() -> audio::Result<()> {
//! let mut stream = audio::AudioStream::open("talk.mp3")?;
//! let mut mel = audio::MelStream::new(audio::MelSpectrogram::new(80)?);
//! for block in &mut stream {
//!     mel.push(&block?); // a second of samples
//! }
//! mel.finish();
//! let window = mel.window(0, audio::WINDOW_FRAMES, audio::Tail::Zero); // (80, 3000)
//! if let Some(damage) = stream.damage() {
//!     eprintln!("{damage}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Everything streams: an hour of audio passes through a few hundred kilobytes of buffers, and the
//! caller keeps what it needs. WAV, AIFF, MP3, FLAC, OGG Vorbis, and AAC and ALAC in MP4 are read,
//! at any sampling rate and channel count. Opus is not: the decoder library has none.
//!
//! Absent on purpose: models, devices, playback, encoding.
#![deny(missing_docs)]

mod ahead;
mod container;
mod decode;
mod error;
mod mel;
mod mel_stream;
mod resample;
mod stream;
mod unseekable;

pub use ahead::{Ahead, Blocks};
pub use decode::{Damage, SourceInfo};
pub use error::{Error, Result};
pub use mel::{HOP_LENGTH, MelSpectrogram, N_FFT, WINDOW_FRAMES, WINDOW_SAMPLES};
pub use mel_stream::{MelStream, Tail};
pub use resample::Resampler;
pub use stream::{Audio, AudioStream, BLOCK_SAMPLES, decode, decode_bytes, decode_reader};

/// The sampling rate of all output, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;

/// The lowest sampling rate accepted, in Hz. Below it no speech is left, so the header must be
/// wrong.
pub const MIN_SOURCE_RATE: u32 = 1_000;

/// The highest sampling rate accepted, in Hz: the fastest that converters record.
pub const MAX_SOURCE_RATE: u32 = 768_000;
