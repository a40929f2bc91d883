//! Results of a transcription: segments of text with times, and words with times.

use serde::Serialize;

/// A word and its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Word {
    /// The text, with the space before it and its punctuation.
    pub word: String,
    /// Start in seconds from the start of the audio.
    pub start: f64,
    /// End in seconds from the start of the audio.
    pub end: f64,
    /// Mean probability of its tokens, from 0 to 1.
    pub probability: f64,
}

/// A part of the transcript, usually a sentence or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Index of the segment, from 0.
    pub id: usize,
    /// Start of its window, in frames of 10 ms.
    pub seek: usize,
    /// Start in seconds from the start of the audio.
    pub start: f64,
    /// End in seconds from the start of the audio.
    pub end: f64,
    /// The text, usually with a space before it.
    pub text: String,
    /// The tokens, including marks of time.
    pub tokens: Vec<u32>,
    /// The temperature of its window's result.
    pub temperature: f32,
    /// Mean log-probability of its window's tokens.
    pub avg_logprob: f32,
    /// Factor by which zlib compresses the window's text.
    pub compression_ratio: f32,
    /// The model's probability that its window has no speech.
    pub no_speech_prob: f32,
    /// The words, if word times were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
}

/// Rounds a time to a hundredth of a second, the resolution of times.
pub(crate) fn round_time(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
