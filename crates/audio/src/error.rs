//! Errors of opening, decoding and resampling a file.

use crate::{MAX_SOURCE_RATE, MIN_SOURCE_RATE};

/// Every error of this crate. `name` is the path, or the name that the caller gave.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("{name}: cannot be opened: {source}")]
    Open {
        /// The file.
        name: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Reading failed before the end of the file.
    #[error("{name}: reading failed after {seconds:.1} s of audio: {source}")]
    Read {
        /// The file.
        name: String,
        /// Seconds of audio that had been decoded.
        seconds: f64,
        /// The error of the system.
        source: std::io::Error,
    },
    /// No known container was found.
    #[error(
        "{name}: not a readable audio file ({reason}); expected WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis; convert others \
         first, for example with `ffmpeg -i IN OUT.flac`"
    )]
    NotAudio {
        /// The file.
        name: String,
        /// The reason why no container was found.
        reason: String,
    },
    /// The container has no audio track.
    #[error("{name}: a {format} file with no audio track ({n_tracks} other tracks)")]
    NoAudioTrack {
        /// The file.
        name: String,
        /// Short name of the container.
        format: String,
        /// Number of tracks.
        n_tracks: usize,
    },
    /// The track's codec is not supported.
    #[error(
        "{name}: the audio in this {format} file is {codec}, which cannot be decoded ({reason}); \
         convert it first, for example with `ffmpeg -i IN OUT.flac`"
    )]
    Codec {
        /// The file.
        name: String,
        /// Short name of the container.
        format: String,
        /// Name or number of the codec.
        codec: String,
        /// The error of the decoder.
        reason: String,
    },
    /// The header gives an implausible sampling rate.
    #[error("{name}: a sampling rate of {found} Hz; expected {MIN_SOURCE_RATE} to {MAX_SOURCE_RATE} Hz")]
    SampleRate {
        /// The file, or `resampler`.
        name: String,
        /// The rate found, in Hz.
        found: u32,
    },
    /// The file has a track, but the track is empty.
    #[error("{name}: found no audio; the track ends before its first sample")]
    Empty {
        /// The file.
        name: String,
    },
    /// Packets were found, but none of them could be decoded.
    #[error("{name}: none of {n_packets} packets could be decoded: {reason}")]
    Undecodable {
        /// The file.
        name: String,
        /// Number of packets that were tried.
        n_packets: u64,
        /// The decoder's error for the last packet.
        reason: String,
    },
    /// The header could be read, but nothing after it.
    #[error("{name}: damaged before its first sample: {reason}")]
    Damaged {
        /// The file.
        name: String,
        /// The error of the demuxer or the decoder.
        reason: String,
    },
    /// A second of sound did not come in time.
    #[error(
        "{name}: decoding the second after {seconds:.0} s of sound took longer than the limit of {most} s"
    )]
    Slow {
        /// The file.
        name: String,
        /// Seconds of audio that had been decoded.
        seconds: f64,
        /// Length of the wait, in seconds.
        most: u64,
    },
    /// The resampler rejected its parameters or its buffers.
    #[error("resampling from {from} Hz: {reason}")]
    Resample {
        /// The source's rate, in Hz.
        from: u32,
        /// The error of the resampler.
        reason: String,
    },
    /// A spectrogram with no bins, or with more bins than the transform has frequencies.
    #[error("{found} mel bins; expected 1 to {max} (Whisper models have 80 or 128)")]
    MelBins {
        /// The number requested.
        found: usize,
        /// Frequencies of the transform.
        max: usize,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
