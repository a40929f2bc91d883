//! Samplers that can be ordered, and the stages that they become.

use device::Stage;

use super::params::{Mirostat, SamplingParams};

/// A sampler that [`SamplingParams::order`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerName {
    /// Repeat, presence and frequency penalties.
    Penalties,
    /// [`super::Dry`]
    Dry,
    /// [`SamplingParams::top_n_sigma`]
    TopNSigma,
    /// [`SamplingParams::top_k`]
    TopK,
    /// [`SamplingParams::typical_p`]
    Typical,
    /// [`SamplingParams::top_p`]
    TopP,
    /// [`SamplingParams::min_p`]
    MinP,
    /// [`SamplingParams::xtc_probability`]
    Xtc,
    /// [`SamplingParams::temperature`], with its range
    Temperature,
}

use SamplerName::{Dry, MinP, Penalties, Temperature, TopK, TopNSigma, TopP, Typical, Xtc};

impl SamplerName {
    /// llama.cpp's order. It applies if one of its samplers is on and no order is set.
    pub const LLAMA_CPP: [SamplerName; 9] =
        [Penalties, Dry, TopNSigma, TopK, Typical, TopP, MinP, Xtc, Temperature];

    /// Parse llama.cpp's name of a sampler, such as `top_k` or `typ_p`; `-` may replace `_`.
    pub fn named(name: &str) -> Option<SamplerName> {
        Some(match name.replace('-', "_").as_str() {
            "penalties" => Penalties,
            "dry" => Dry,
            "top_n_sigma" => TopNSigma,
            "top_k" => TopK,
            "typ_p" | "typical" | "typical_p" => Typical,
            "top_p" | "nucleus" => TopP,
            "min_p" => MinP,
            "xtc" => Xtc,
            "temp" | "temperature" => Temperature,
            _ => return None,
        })
    }

    /// llama.cpp's name of the sampler.
    pub fn name(self) -> &'static str {
        match self {
            Penalties => "penalties",
            Dry => "dry",
            TopNSigma => "top_n_sigma",
            TopK => "top_k",
            Typical => "typ_p",
            TopP => "top_p",
            MinP => "min_p",
            Xtc => "xtc",
            Temperature => "temperature",
        }
    }

    /// Parse llama.cpp's letter of a sampler, one of `edskypmxt`.
    pub fn of_letter(letter: char) -> Option<SamplerName> {
        Some(match letter {
            'e' => Penalties,
            'd' => Dry,
            's' => TopNSigma,
            'k' => TopK,
            'y' => Typical,
            'p' => TopP,
            'm' => MinP,
            'x' => Xtc,
            't' => Temperature,
            _ => return None,
        })
    }

    /// Returns true if the sampler changes logits and precedes all those that drop tokens.
    pub(super) fn is_penalty(self) -> bool {
        matches!(self, Penalties | Dry)
    }
}

impl SamplingParams {
    /// Returns true if the parameters turn the sampler on.
    pub(super) fn runs(&self, name: SamplerName) -> bool {
        self.order.as_ref().is_none_or(|order| order.contains(&name))
    }

    /// Returns true if a [`device::Chain`] chooses tokens: an order is set, or a sampler is on that
    /// the fixed order lacks.
    pub(super) fn uses_chain(&self) -> bool {
        let cuts = self.typical_p < 1.0 || self.top_n_sigma > 0.0 || self.mirostat.is_some();
        self.order.is_some()
            || self.xtc_probability > 0.0
            || self.dynatemp_range > 0.0
            || (cuts && self.temperature > 0.0)
    }

    /// The stages after the penalties. Random numbers and Mirostat's state are set for each token.
    pub(super) fn stages(&self) -> Vec<Stage> {
        if !self.uses_chain() {
            return Vec::new();
        }
        let temperature = match self.dynatemp_range {
            range if range > 0.0 => Stage::Dynamic {
                low: (self.temperature - range).max(0.0),
                high: self.temperature + range,
                exponent: self.dynatemp_exponent,
            },
            _ => Stage::Temperature(self.temperature),
        };
        match self.mirostat {
            Some(Mirostat { version: 1, .. }) => return vec![temperature, Stage::MirostatTopK { mu: 0.0 }],
            Some(_) => return vec![temperature, Stage::MostSurprise { mu: 0.0 }],
            None => {}
        }
        let order = self.order.as_deref().unwrap_or(&SamplerName::LLAMA_CPP);
        let stage = |name: &SamplerName| match name {
            Penalties | Dry => None,
            TopNSigma => Some(Stage::TopNSigma(self.top_n_sigma)),
            TopK => Some(Stage::TopK(self.top_k)),
            Typical => Some(Stage::Typical(self.typical_p)),
            TopP => Some(Stage::TopP(self.top_p)),
            MinP => Some(Stage::MinP(self.min_p)),
            Xtc => Some(Stage::Xtc {
                probability: self.xtc_probability,
                threshold: self.xtc_threshold,
                random: 0.0,
            }),
            Temperature => Some(temperature),
        };
        let changes = |stage: &Stage| match *stage {
            Stage::Temperature(t) => t != 1.0,
            Stage::TopK(n) => n > 0,
            Stage::TopP(p) | Stage::Typical(p) => p < 1.0,
            Stage::MinP(p) | Stage::TopNSigma(p) => p > 0.0,
            Stage::Xtc { probability, .. } => probability > 0.0,
            Stage::Dynamic { .. } | Stage::MirostatTopK { .. } | Stage::MostSurprise { .. } => true,
        };
        order.iter().filter_map(stage).filter(changes).collect()
    }
}
