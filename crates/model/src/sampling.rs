//! Sampling parameters that a model's makers recommend: `general.sampling.…` of a GGUF file,
//! generation_config.json of a Hugging Face folder.

use weights::keys::GENERATION_PREFIX;
use weights::{Checkpoint, Metadata, Naming, Value};

/// Recommended sampling parameters; `None` if the checkpoint has none, or one outside its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingAdvice {
    /// Divisor of the logits; at least 0.
    pub temperature: Option<f32>,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Cumulative probability of the most likely tokens kept, 0 to 1.
    pub top_p: Option<f32>,
    /// Smallest probability of a token kept, relative to the most likely one; 0 to 1.
    pub min_p: Option<f32>,
    /// Repetition penalty: divides positive logits of recent tokens and multiplies negative ones;
    /// above 0.
    pub repeat_penalty: Option<f32>,
    /// Number of recent tokens that the repetition penalty covers; 0: the whole text.
    pub penalty_window: Option<usize>,
}

/// Key names for a naming: temperature, top-k, top-p, min-p, repetition penalty.
const GGUF: [&str; 5] = ["temp", "top_k", "top_p", "min_p", "penalty_repeat"];
const HUGGING_FACE: [&str; 5] = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];

/// Prefix of GGUF keys.
const PREFIX: &str = "general.sampling.";
/// Key of llama.cpp's penalty window in tokens: -1 is the whole context, 0 turns the penalty off.
const WINDOW: &str = "general.sampling.penalty_last_n";

impl SamplingAdvice {
    /// Reads a checkpoint's recommendations.
    pub fn of(checkpoint: &Checkpoint) -> SamplingAdvice {
        let metadata = &checkpoint.metadata;
        match checkpoint.naming {
            Naming::HuggingFace | Naming::Base => SamplingAdvice::of_generation_config(metadata),
            Naming::Gguf => {
                let advice = SamplingAdvice::read(metadata, PREFIX, GGUF);
                match metadata.f64(WINDOW) {
                    Some(0.0) => SamplingAdvice { repeat_penalty: Some(1.0), ..advice },
                    Some(n) => SamplingAdvice { penalty_window: Some(n.max(0.0) as usize), ..advice },
                    None => advice,
                }
            }
            Naming::CTranslate2 | Naming::WhisperCpp => SamplingAdvice::default(),
        }
    }

    /// Reads the keys of generation_config.json.
    pub(crate) fn of_generation_config(metadata: &Metadata) -> SamplingAdvice {
        // The parameters apply to sampling only, and this file recommends greedy decoding.
        if metadata.bool(&format!("{GENERATION_PREFIX}do_sample")) == Some(false) {
            return SamplingAdvice::default();
        }
        let advice = SamplingAdvice::read(metadata, GENERATION_PREFIX, HUGGING_FACE);
        // In transformers the penalty covers the whole text.
        SamplingAdvice { penalty_window: advice.repeat_penalty.map(|_| 0), ..advice }
    }

    fn read(metadata: &Metadata, prefix: &str, names: [&str; 5]) -> SamplingAdvice {
        let [temperature, top_k, top_p, min_p, repeat_penalty] =
            names.map(|name| metadata.f64(&format!("{prefix}{name}")).filter(|n| n.is_finite()));
        let within = |n: Option<f64>, least: f64, most: f64| {
            n.filter(|n| (least..=most).contains(n)).map(|n| n as f32)
        };
        SamplingAdvice {
            temperature: within(temperature, 0.0, 100.0),
            // llama.cpp writes 0 for all tokens, others -1.
            top_k: top_k.map(|n| n.max(0.0) as usize),
            top_p: within(top_p, 0.0, 1.0),
            min_p: within(min_p, 0.0, 1.0),
            repeat_penalty: within(repeat_penalty, 0.01, 100.0),
            penalty_window: None,
        }
    }

    /// Adds the keys of a GGUF file.
    pub(crate) fn write(&self, metadata: &mut Metadata) {
        let real = |n: f32| Value::Float(f64::from(n));
        let count = |n: usize| Value::Int(n as i128);
        let window = |n: usize| if n == 0 { Value::Int(-1) } else { count(n) };
        let keys = [
            (PREFIX, "temp", self.temperature.map(real)),
            (PREFIX, "top_k", self.top_k.map(count)),
            (PREFIX, "top_p", self.top_p.map(real)),
            (PREFIX, "min_p", self.min_p.map(real)),
            (PREFIX, "penalty_repeat", self.repeat_penalty.map(real)),
            (WINDOW, "", self.penalty_window.map(window)),
        ];
        for (prefix, name, value) in keys {
            if let Some(value) = value {
                metadata.insert(format!("{prefix}{name}"), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(naming: Naming, keys: &[(&str, Value)]) -> SamplingAdvice {
        let mut metadata = Metadata::default();
        for (key, value) in keys {
            metadata.insert((*key).to_owned(), value.clone());
        }
        let checkpoint = Checkpoint {
            naming,
            metadata,
            tensors: Vec::new(),
            left_out: Vec::new(),
            format: String::new(),
            file_bytes: 0,
        };
        SamplingAdvice::of(&checkpoint)
    }

    #[test]
    fn both_kinds_of_files_say_it_and_one_becomes_the_other() {
        let found = advice(
            Naming::HuggingFace,
            &[
                ("generation_config.do_sample", Value::Bool(true)),
                ("generation_config.temperature", Value::Float(0.7)),
                ("generation_config.top_k", Value::Int(20)),
                ("generation_config.top_p", Value::Float(0.8)),
                ("generation_config.min_p", Value::Null),
                ("generation_config.repetition_penalty", Value::Float(1.05)),
            ],
        );
        let expected = SamplingAdvice {
            temperature: Some(0.7),
            top_k: Some(20),
            top_p: Some(0.8),
            min_p: None,
            repeat_penalty: Some(1.05),
            penalty_window: Some(0),
        };
        assert_eq!(found, expected);
        let mut written = Metadata::default();
        found.write(&mut written);
        let written: Vec<(&str, Value)> = written.iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(written.len(), 5);
        assert_eq!(advice(Naming::Gguf, &written), expected);
    }

    #[test]
    fn what_is_outside_its_limits_or_not_meant_is_not_there() {
        let none = SamplingAdvice::default();
        let greedy = ("generation_config.do_sample", Value::Bool(false));
        let temperature = ("generation_config.temperature", Value::Float(0.7));
        assert_eq!(advice(Naming::HuggingFace, &[greedy, temperature]), none);
        let wrong = [
            ("general.sampling.temp", Value::Float(f64::NAN)),
            ("general.sampling.top_p", Value::Float(-1.0)),
            ("general.sampling.min_p", Value::Str("x".to_owned())),
            ("general.sampling.penalty_repeat", Value::Float(0.0)),
        ];
        assert_eq!(advice(Naming::Gguf, &wrong), none);
        let off = advice(Naming::Gguf, &[("general.sampling.penalty_last_n", Value::Int(0))]);
        assert_eq!((off.repeat_penalty, off.penalty_window), (Some(1.0), None));
    }
}
