//! A search over the fields of a profile, one after the other.
//!
//! A candidate and the incumbent run in turns, ABAB, since clocks and temperature drift. Models are
//! built once, and candidates use their weights where they are. Caches are filled up to the largest
//! position.

use super::{Decoder, Effort, models, unslowed};
use crate::gpu::MetalGpu;
use crate::{MetalDevice, Profile};
use device::{Plan, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Factor by which each run of a candidate must exceed each run of the incumbent.
const MARGIN: f64 = 1.01;

/// The measure by which a field is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// Tokens per second of one sequence.
    Token,
    /// Rows per second of a small batch.
    Batch,
    /// Rows per second of a prompt, chunk after chunk.
    Prompt,
    /// Rows per second of a recurrent layer.
    Scan,
}

impl Judge {
    const ALL: [Judge; 4] = [Judge::Token, Judge::Batch, Judge::Prompt, Judge::Scan];

    /// Name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Judge::Token => "tokens one by one",
            Judge::Batch => "small batches",
            Judge::Prompt => "prompts",
            Judge::Scan => "a recurrent layer",
        }
    }
}

/// A field of a profile, the measure that judges it, and the profiles to try.
type Field = (&'static str, Judge, fn(&Profile) -> Vec<Profile>);

/// A profile with one field changed.
fn with<T: Copy>(profile: &Profile, values: &[T], set: fn(&mut Profile, T)) -> Vec<Profile> {
    let change = |value: &T| {
        let mut profile = profile.clone();
        set(&mut profile, *value);
        profile
    };
    values.iter().map(change).collect()
}

/// The fields that are searched, one after the other.
const FIELDS: [Field; 15] = [
    ("gemv_simdgroups", Judge::Token, |p| {
        let n = p.gemv_simdgroups;
        with(p, &[n / 2, n * 2, n * 4], |p, n| p.gemv_simdgroups = n.max(1))
    }),
    ("gemv_threadgroup", Judge::Token, |p| with(p, &[1, 2, 4, 8], |p, n| p.gemv_threadgroup = n)),
    ("weight_rows", Judge::Token, |p| with(p, &[4, 8], |p, n| p.weight_rows = n)),
    ("attention_simdgroups", Judge::Token, |p| with(p, &[2, 4, 8], |p, n| p.attention_simdgroups = n)),
    ("merged_simdgroups", Judge::Token, |p| with(p, &[4, 8, 16], |p, n| p.merged_simdgroups = n)),
    ("split_positions", Judge::Token, |p| with(p, &[256, 512, 1024, 2048], |p, n| p.split_positions = n)),
    ("key_lanes", Judge::Token, |p| with(p, &[4, 8, 16], |p, n| p.key_lanes = n as u32)),
    ("split_threadgroups", Judge::Token, |p| {
        let n = p.split_threadgroups;
        with(p, &[n / 2, n * 2, n * 4], |p, n| p.split_threadgroups = n.max(1))
    }),
    ("in_flight", Judge::Token, |p| with(p, &[1, 2, 4, 8], |p, n| p.in_flight = n)),
    ("rules", Judge::Token, |p| {
        let without = |skipped: usize| {
            let rules = p.rules.iter().enumerate().filter(|(index, _)| *index != skipped);
            // A search makes a handful of lists, which stay.
            let rules: Vec<_> = rules.map(|(_, rule)| *rule).collect();
            Profile { rules: Vec::leak(rules), ..p.clone() }
        };
        (0..p.rules.len()).map(without).collect()
    }),
    ("product_rows", Judge::Batch, |p| with(p, &[2, 4, 8], |p, n| p.product_rows = n)),
    ("tile_rows", Judge::Prompt, |p| with(p, &[32, 64], |p, n| p.tile_rows = n)),
    ("prompt_chunk", Judge::Prompt, |p| with(p, &[256, 512, 1024, 2048], |p, n| p.prompt_chunk = n)),
    ("norm_threads", Judge::Prompt, |p| with(p, &[128, 256, 512], |p, n| p.norm_threads = n)),
    ("scan_rows", Judge::Scan, |p| with(p, &[12, usize::MAX], |p, n| p.scan_rows = n)),
];

/// A candidate that was tried, or the last comparison.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The field that differs.
    pub field: &'static str,
    /// The measure that decides.
    pub judge: Judge,
    /// The candidate.
    pub profile: Profile,
    /// Rates of the incumbent's runs, in rows a second: means over models and positions.
    pub incumbent: Vec<f64>,
    /// Rates of the candidate's runs. Each follows the run of the incumbent with its index. Empty
    /// if the candidate does not run.
    pub candidate: Vec<f64>,
    /// True if the candidate became the incumbent.
    pub is_accepted: bool,
    /// Why the candidate did not run.
    pub error: Option<String>,
}

/// An event of the search.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A candidate is compiled and runs next. If it hangs, this was the last event.
    Begins(&'a Trial),
    /// A candidate was tried.
    Ended(&'a Trial),
}

/// Returns true if the last comparisons confirm the winner: one judge finds it faster, and none
/// finds it slower.
pub fn is_confirmed(compared: &[Trial]) -> bool {
    compared.iter().any(|trial| trial.is_accepted)
        && !compared.iter().any(|trial| wins(&trial.candidate, &trial.incumbent))
}

/// Returns true if every run of the candidate is faster than every run of the incumbent.
fn wins(incumbent: &[f64], candidate: &[f64]) -> bool {
    let fastest = incumbent.iter().copied().fold(0.0, f64::max);
    !candidate.is_empty() && candidate.iter().all(|rate| *rate > fastest * MARGIN)
}

/// The models that all candidates share.
struct Models {
    dense: Vec<Plan>,
    scan: Plan,
}

/// The programs of a profile that a judge runs.
struct Runner<'a, G: MetalGpu> {
    gpu: Arc<G>,
    judge: Judge,
    effort: &'a Effort,
    decoders: Vec<Decoder<G>>,
}

impl<'a, G: MetalGpu> Runner<'a, G> {
    fn new(
        gpu: &Arc<G>,
        profile: &Profile,
        judge: Judge,
        models: &Models,
        effort: &'a Effort,
    ) -> Result<Runner<'a, G>> {
        let device = MetalDevice::sharing(gpu.clone(), profile.clone());
        let plans = match judge {
            Judge::Token | Judge::Batch | Judge::Prompt => models.dense.as_slice(),
            Judge::Scan => std::slice::from_ref(&models.scan),
        };
        let decoders = plans.iter().map(|plan| Decoder::new(&device, plan, effort)).collect::<Result<_>>()?;
        let mut runner = Runner { gpu: gpu.clone(), judge, effort, decoders };
        // Compiles the kernels of its steps.
        runner.rate(1)?;
        Ok(runner)
    }

    /// The geometric mean of the rates of `n` steps of each model.
    fn rate(&mut self, n: usize) -> Result<f64> {
        let Effort { rows: [few, many], positions, .. } = *self.effort;
        let mut logarithms = vec![];
        for decoder in &mut self.decoders {
            match self.judge {
                Judge::Token => {
                    for position in positions {
                        logarithms.push(decoder.tokens_per_second(n, position, Duration::ZERO)?.ln());
                    }
                }
                Judge::Batch => logarithms.push(decoder.rows_per_second(few, positions[0], n)?.ln()),
                Judge::Prompt => logarithms.push(decoder.prompt_rows_per_second(n)?.ln()),
                Judge::Scan => logarithms.push(decoder.rows_per_second(many, 0, n)?.ln()),
            }
        }
        Ok((logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64).exp())
    }

    /// Number of steps that make a run of a quarter of the time for a candidate. A candidate that
    /// wins its first two pairs runs for longer.
    fn n_steps(&mut self) -> Result<usize> {
        let begun = Instant::now();
        self.rate(1)?;
        let wanted = self.effort.candidate_seconds / 4.0;
        Ok((wanted / begun.elapsed().as_secs_f64().max(1e-6)).clamp(1.0, self.effort.n_tokens as f64)
            as usize)
    }
}

/// Runs incumbent and candidate in turns, up to the first pair in which the candidate is not
/// faster. A pair that heat slowed down runs again. Returns the rates of both.
fn duel<G: MetalGpu>(
    incumbent: &mut Runner<'_, G>,
    candidate: &mut Runner<'_, G>,
    n_steps: usize,
    to_the_end: bool,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut first, mut second) = (vec![], vec![]);
    let gpu = incumbent.gpu.clone();
    for _ in 0..incumbent.effort.n_pairs {
        let mut pair = || Ok((incumbent.rate(n_steps)?, candidate.rate(n_steps)?));
        let ((before, after), _) = unslowed(gpu.as_ref(), &mut pair)?;
        first.push(before);
        second.push(after);
        if !to_the_end && !wins(&first, &second) {
            break;
        }
    }
    Ok((first, second))
}

/// Searches over the fields of a profile. `tell` is called before and after each trial; false ends
/// the search.
/// Returns the best profile, and its comparisons with the first one by each judge.
///
/// # Errors
/// The device failed with the profile that it began with.
pub fn sweep<G: MetalGpu>(
    gpu: &Arc<G>,
    profile: &Profile,
    effort: &Effort,
    tell: &mut dyn FnMut(Progress<'_>) -> bool,
) -> Result<(Profile, Vec<Trial>)> {
    let models = Models {
        dense: effort.searched.iter().map(|shape| models::mapped(models::model(shape))).collect(),
        scan: models::mapped(models::scan(effort.scan)),
    };
    let runner = |profile: &Profile, judge: Judge| Runner::new(gpu, profile, judge, &models, effort);
    let mut best = profile.clone();
    'judges: for judge in Judge::ALL {
        let mut incumbent = runner(&best, judge)?;
        let n_steps = incumbent.n_steps()?;
        for (field, _, values) in FIELDS.into_iter().filter(|(_, by, _)| *by == judge) {
            for tried in values(&best.clone()) {
                if tried == best {
                    continue;
                }
                let mut trial = Trial {
                    field,
                    judge,
                    profile: tried,
                    incumbent: vec![],
                    candidate: vec![],
                    is_accepted: false,
                    error: None,
                };
                if !tell(Progress::Begins(&trial)) {
                    break 'judges;
                }
                let candidate = runner(&trial.profile, judge).and_then(|mut candidate| {
                    let rates = duel(&mut incumbent, &mut candidate, n_steps, false)?;
                    Ok((candidate, rates))
                });
                match candidate {
                    Ok((candidate, rates)) => {
                        (trial.incumbent, trial.candidate) = rates;
                        trial.is_accepted = wins(&trial.incumbent, &trial.candidate);
                        if trial.is_accepted {
                            (best, incumbent) = (trial.profile.clone(), candidate);
                        }
                    }
                    Err(error) => {
                        trial.error = Some(error.to_string());
                        // A GPU that is lost fails here too.
                        incumbent.rate(1)?;
                    }
                }
                if !tell(Progress::Ended(&trial)) {
                    break 'judges;
                }
            }
        }
    }
    let mut compared = vec![];
    if best != *profile {
        for judge in Judge::ALL {
            let (mut first, mut last) = (runner(profile, judge)?, runner(&best, judge)?);
            let n_steps = first.n_steps()?;
            let (incumbent, candidate) = duel(&mut first, &mut last, n_steps, true)?;
            let is_accepted = wins(&incumbent, &candidate);
            let profile = best.clone();
            let error = None;
            compared.push(Trial { field: "all", judge, profile, incumbent, candidate, is_accepted, error });
        }
    }
    Ok((best, compared))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise is not accepted: every run of the candidate must exceed every run of the incumbent by
    /// more than a percent.
    #[test]
    fn every_pair_must_agree() {
        assert!(wins(&[100.0, 101.0], &[103.0, 104.0]));
        assert!(!wins(&[100.0, 101.0], &[103.0, 101.5]));
        assert!(!wins(&[100.0, 104.0], &[103.0, 106.0]));
        assert!(!wins(&[100.0], &[100.9]));
        assert!(!wins(&[], &[]));
    }

    #[test]
    fn the_last_comparisons_decide() {
        use crate::gpu::Gpu as _;
        let profile = Profile::new(crate::gpu::null::NullGpu::new("Apple M4 Pro").facts());
        let trial = |incumbent: f64, candidate: f64| Trial {
            field: "all",
            judge: Judge::Token,
            profile: profile.clone(),
            incumbent: vec![incumbent; 2],
            candidate: vec![candidate; 2],
            is_accepted: wins(&[incumbent; 2], &[candidate; 2]),
            error: None,
        };
        assert!(is_confirmed(&[trial(100.0, 110.0), trial(100.0, 100.0)]));
        assert!(!is_confirmed(&[trial(100.0, 110.0), trial(100.0, 90.0)]));
        assert!(!is_confirmed(&[trial(100.0, 100.0)]) && !is_confirmed(&[]));
    }
}
