//! Keys of the samplers that llama.cpp has beyond those of OpenAI.

use engine::{Dry, DryBreakers, Mirostat, SamplerName, SamplingParams};
use serde::Deserialize;
use serde_json::Value;

use runner::{RequestError, Result};

/// Samplers under llama.cpp's names. A value that llama.cpp treats as off is off.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LlamaSamplers {
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    mirostat: Option<i64>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<i64>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    samplers: Option<Value>,
}

impl LlamaSamplers {
    pub(super) fn apply(&self, sampling: &mut SamplingParams) -> Result<()> {
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.typical_p, self.typical_p);
        set(&mut sampling.top_n_sigma, self.top_n_sigma.map(|n| n.max(0.0)));
        set(&mut sampling.xtc_probability, self.xtc_probability);
        set(&mut sampling.xtc_threshold, self.xtc_threshold);
        set(&mut sampling.dynatemp_range, self.dynatemp_range);
        set(&mut sampling.dynatemp_exponent, self.dynatemp_exponent);
        if let Some(version) = self.mirostat.filter(|version| *version != 0) {
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            let (tau, eta) = (self.mirostat_tau.unwrap_or(5.0), self.mirostat_eta.unwrap_or(0.1));
            sampling.mirostat = Some(Mirostat { version, tau, eta });
        }
        // A window of 0 turns DRY off; -1 is the whole context, which is 0 in the engine.
        if let Some(multiplier) =
            self.dry_multiplier.filter(|m| *m != 0.0 && self.dry_penalty_last_n != Some(0))
        {
            let default = Dry::default();
            sampling.dry = Some(Dry {
                multiplier,
                base: self.dry_base.unwrap_or(default.base),
                allowed_length: self
                    .dry_allowed_length
                    .map_or(default.allowed_length, |n| usize::try_from(n).unwrap_or(0)),
                window: self.dry_penalty_last_n.map_or(0, |n| usize::try_from(n).unwrap_or(0)),
                breakers: self.dry_sequence_breakers.clone().map_or(default.breakers, DryBreakers::from),
            });
        }
        sampling.order = self.samplers.as_ref().map(order).transpose()?.flatten();
        Ok(())
    }
}

/// Reads names of samplers, or their letters; `null` for the default order.
fn order(samplers: &Value) -> Result<Option<Vec<SamplerName>>> {
    let unknown = |found: String| {
        let expected = "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and temperature";
        RequestError::invalid("samplers", format!("`samplers` has {found}, expected names among {expected}"))
    };
    let named = |name: &Value| {
        let found = name.as_str().and_then(SamplerName::named);
        found.ok_or_else(|| unknown(name.to_string()))
    };
    match samplers {
        Value::Null => Ok(None),
        Value::Array(names) => names.iter().map(named).collect::<Result<_>>().map(Some),
        Value::String(letters) => {
            let lettered =
                |letter| SamplerName::of_letter(letter).ok_or_else(|| unknown(format!("{letter:?}")));
            letters.chars().map(lettered).collect::<Result<_>>().map(Some)
        }
        other => Err(unknown(other.to_string())),
    }
}
