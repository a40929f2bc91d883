//! What a transcription gives: segments of text with their times, and words with theirs.

use serde::Serialize;

/// A word and when it was said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Word {
    /// Its text, with the space before it and the punctuation that belongs to it.
    pub word: String,
    /// Seconds from the start of the audio.
    pub start: f64,
    /// Seconds from the start of the audio.
    pub end: f64,
    /// Mean probability of its tokens, 0 to 1.
    pub probability: f64,
}

/// A piece of the transcript: usually a sentence or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Counted from 0.
    pub id: usize,
    /// Where its window begins, in frames of 10 ms.
    pub seek: usize,
    /// Seconds from the start of the audio.
    pub start: f64,
    /// Seconds from the start of the audio.
    pub end: f64,
    /// Its text, usually with a space before it.
    pub text: String,
    /// Its tokens, marks of time among them.
    pub tokens: Vec<u32>,
    /// The temperature at which its window was decided.
    pub temperature: f32,
    /// Mean log-probability of its window's tokens.
    pub avg_logprob: f32,
    /// How many times smaller zlib makes the window's text.
    pub compression_ratio: f32,
    /// The probability that the model gives its window to hold no speech.
    pub no_speech_prob: f32,
    /// Its words, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
}

/// A hundredth of a second is as fine as times are.
pub(crate) fn round_time(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
