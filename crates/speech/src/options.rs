//! What can be asked of a transcription, with the defaults that speech recognisers of this kind share.

use crate::{Error, Result};

/// What becomes of the speech.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// It is written down in its own language.
    #[default]
    Transcribe,
    /// It is written down in English.
    Translate,
}

/// How a transcription is made.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscribeOptions {
    /// The language's code, `en`; `None`: found out from the first window.
    pub language: Option<String>,
    /// What becomes of the speech.
    pub task: Task,
    /// Beams of the search at temperature 0; at most the beams that the transcriber was made for.
    pub beam_size: usize,
    /// Independent samples at temperatures above 0, of which the best is taken; at most the same.
    pub best_of: usize,
    /// The search ends when this many times `beam_size` hypotheses have ended.
    pub patience: f32,
    /// A hypothesis' log-probability is divided by its length to this power.
    pub length_penalty: f32,
    /// Tried in this order until a result is good enough.
    pub temperatures: Vec<f32>,
    /// A result whose text compresses better than this is repetitive and not good enough; `None`: any is.
    pub compression_ratio_threshold: Option<f32>,
    /// A result with a lower mean log-probability of its tokens is not good enough; `None`: any is.
    pub log_prob_threshold: Option<f32>,
    /// A window is silent if the model gives silence a higher probability and the result is below
    /// [`Self::log_prob_threshold`]; `None`: no window is.
    pub no_speech_threshold: Option<f32>,
    /// Show the model the text so far, so that names and style go on; at the risk that an error goes on too.
    pub condition_on_previous_text: bool,
    /// After a window decided at a higher temperature, the text so far is not shown.
    pub prompt_reset_on_temperature: f32,
    /// Shown to the model as if it had been said before: names, spelling.
    pub initial_prompt: Option<String>,
    /// Let the model mark times; without, a window becomes one segment.
    pub timestamps: bool,
    /// The first word is heard at this time of a window at the latest, in seconds.
    pub max_initial_timestamp: f32,
    /// Find the time of each word.
    pub word_timestamps: bool,
    /// Never begin with a space or end at once.
    pub suppress_blank: bool,
    /// Never write what is no speech: brackets, notes, speakers' names.
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
    /// Check the numbers; `n_beams` is what the transcriber was made for.
    ///
    /// # Errors
    /// [`Error::Option`] for the first that is outside its limits.
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
