//! Options of a transcription, with the defaults of openai-whisper and faster-whisper.

use crate::{Error, Result};

/// Output language of a transcription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// The text is in the spoken language.
    #[default]
    Transcribe,
    /// The text is in English.
    Translate,
}

/// Options of a transcription.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscribeOptions {
    /// The language's code, such as `en`; `None` detects it in the first window.
    pub language: Option<String>,
    /// Output language.
    pub task: Task,
    /// Beams of the search at temperature 0, at most the beams of the transcriber.
    pub beam_size: usize,
    /// Independent samples at temperatures above 0, at most the beams of the transcriber. The best
    /// sample is used.
    pub best_of: usize,
    /// The search ends when this many times `beam_size` hypotheses have ended.
    pub patience: f32,
    /// A hypothesis' log-probability is divided by its length to this power.
    pub length_penalty: f32,
    /// Temperatures in the order in which they are tried, until a result is good enough.
    pub temperatures: Vec<f32>,
    /// A result whose text compresses by more than this factor is repetitive and not good enough;
    /// `None` accepts any text.
    pub compression_ratio_threshold: Option<f32>,
    /// A result whose tokens have a lower mean log-probability is not good enough; `None` accepts
    /// any result.
    pub log_prob_threshold: Option<f32>,
    /// A window counts as silent if the model's probability of silence is higher and the result is
    /// below [`Self::log_prob_threshold`]; `None`: no window is silent.
    pub no_speech_threshold: Option<f32>,
    /// Prompt the model with the text so far, so that names and style continue. An error may
    /// continue, too.
    pub condition_on_previous_text: bool,
    /// After a window with a higher temperature, the next prompt has no text.
    pub prompt_reset_on_temperature: f32,
    /// Text before the speech, for names and spelling.
    pub initial_prompt: Option<String>,
    /// Let the model generate marks of time; without them, a window becomes one segment.
    pub timestamps: bool,
    /// Latest start of the first word in a window, in seconds.
    pub max_initial_timestamp: f32,
    /// Find the time of each word.
    pub word_timestamps: bool,
    /// Suppress a space or the end token at the start.
    pub suppress_blank: bool,
    /// Suppress text that is not speech: brackets, notes, names of speakers.
    pub suppress_non_speech: bool,
    /// Punctuation that belongs to the word after it.
    pub prepend_punctuations: String,
    /// Punctuation that belongs to the word before it.
    pub append_punctuations: String,
    /// Seed of the random numbers at temperatures above 0.
    pub seed: u64,
}

impl Default for TranscribeOptions {
    fn default() -> TranscribeOptions {
        TranscribeOptions {
            language: None,
            task: Task::Transcribe,
            beam_size: 5,
            best_of: 5,
            patience: 1.0,
            length_penalty: 1.0,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: Some(2.4),
            log_prob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            prompt_reset_on_temperature: 0.5,
            initial_prompt: None,
            timestamps: true,
            max_initial_timestamp: 1.0,
            word_timestamps: false,
            suppress_blank: true,
            suppress_non_speech: true,
            prepend_punctuations: "\"'“¿([{-".into(),
            append_punctuations: "\"'.。,，!！?？:：”)]}、".into(),
            seed: 0,
        }
    }
}

impl TranscribeOptions {
    /// Checks the values; `n_beams` is the number of beams of the transcriber.
    ///
    /// # Errors
    /// [`Error::Option`] for the first value outside its limits.
    pub fn check(&self, n_beams: usize) -> Result<()> {
        let wrong = |name, value: String, expected: String| Err(Error::Option { name, value, expected });
        for (name, value) in [("beam size", self.beam_size), ("best-of", self.best_of)] {
            if !(1..=n_beams).contains(&value) {
                return wrong(name, value.to_string(), format!("a number from 1 to {n_beams}"));
            }
        }
        if self.temperatures.is_empty() {
            return wrong("temperatures", "an empty list".into(), "at least one".into());
        }
        let limits = [
            ("patience", self.patience, 0.1, 100.0),
            ("length penalty", self.length_penalty, 0.0, 10.0),
            ("maximal initial timestamp", self.max_initial_timestamp, 0.0, 60.0),
        ];
        let temperatures = self.temperatures.iter().map(|t| ("temperature", *t, 0.0, 10.0));
        for (name, value, low, high) in limits.into_iter().chain(temperatures) {
            if !(low..=high).contains(&value) {
                return wrong(name, value.to_string(), format!("a number from {low} to {high}"));
            }
        }
        let thresholds = [
            ("compression ratio threshold", self.compression_ratio_threshold),
            ("log-probability threshold", self.log_prob_threshold),
            ("no-speech threshold", self.no_speech_threshold),
            ("prompt reset temperature", Some(self.prompt_reset_on_temperature)),
        ];
        match thresholds.into_iter().find(|(_, value)| value.is_some_and(f32::is_nan)) {
            Some((name, _)) => wrong(name, "NaN".into(), "a number".into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_limits_are_named() {
        let good = TranscribeOptions::default();
        assert!(good.check(5).is_ok());
        for (bad, part) in [
            (
                TranscribeOptions { beam_size: 6, ..good.clone() },
                "beam size is 6, expected a number from 1 to 5",
            ),
            (TranscribeOptions { best_of: 0, ..good.clone() }, "best-of is 0"),
            (TranscribeOptions { temperatures: vec![], ..good.clone() }, "temperatures"),
            (TranscribeOptions { temperatures: vec![0.0, -1.0], ..good.clone() }, "temperature is -1"),
            (TranscribeOptions { patience: f32::NAN, ..good.clone() }, "patience is NaN"),
            (TranscribeOptions { no_speech_threshold: Some(f32::NAN), ..good.clone() }, "no-speech"),
        ] {
            let message = bad.check(5).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
