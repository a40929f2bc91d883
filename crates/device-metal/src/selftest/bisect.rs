//! A case that differs, run in other ways: the first that agrees says where to look.

use super::{SHORTEST_SPLIT, may_split, tolerance};
use crate::gpu::MetalGpu;
use crate::{MetalDevice, Profile};
use device::{Device, Result};
use device_check::{Case, compare, compare_chunks};

/// A difference from the default device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Without rules of fusion.
    Unfused,
    /// Without dispatches that run at the same time.
    Serial,
    /// Without sequences that are split over threadgroups.
    Unsplit,
}

impl Variant {
    /// All variants, in the order in which they are tried.
    pub const ALL: [Variant; 3] = [Variant::Unfused, Variant::Serial, Variant::Unsplit];

    /// Name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Unfused => "unfused",
            Variant::Serial => "serial",
            Variant::Unsplit => "unsplit",
        }
    }
}

/// A GPU for a variant; the same kind of GPU for those that do not concern it.
pub type MakeGpu<'a, G> = dyn Fn(Variant) -> Result<G> + 'a;

/// Compares a case with the interpreter: unfused and fused, whole and row by row. One with
/// attention runs again with sequences that are split over threadgroups after a few positions, as
/// long ones are.
///
/// # Errors
/// How it differs: where, what was found, what was expected.
pub fn check_case<G: MetalGpu>(device: &MetalDevice<G>, case: &Case) -> std::result::Result<(), String> {
    let bound = tolerance(case);
    compare(device, case, bound)?;
    compare_chunks(device, case, bound)?;
    if may_split(case) {
        compare(&device.splitting(SHORTEST_SPLIT), case, bound)
            .map_err(|failure| format!("split: {failure}"))?;
    }
    Ok(())
}

/// Each variant, then each row by itself, and whether the case agrees so; up to the first that
/// does.
pub fn bisect<G: MetalGpu>(
    case: &Case,
    profile: &Profile,
    make: &MakeGpu<'_, G>,
) -> Vec<(&'static str, std::result::Result<(), String>)> {
    let mut tried = vec![];
    for variant in Variant::ALL {
        let result = make(variant).map_err(|error| error.to_string()).and_then(|gpu| {
            let mut profile = profile.clone();
            match variant {
                Variant::Unfused => profile.rules = &[],
                Variant::Unsplit => profile.split_positions = usize::MAX,
                Variant::Serial => {}
            }
            let device = MetalDevice::with_profile(gpu, profile);
            compare(&device, case, tolerance(case))
        });
        let agrees = result.is_ok();
        tried.push((variant.name(), result));
        if agrees {
            return tried;
        }
    }
    tried.push(("one row at a time", one_row(case, profile, make)));
    tried
}

/// The case's first row alone.
fn one_row<G: MetalGpu>(
    case: &Case,
    profile: &Profile,
    make: &MakeGpu<'_, G>,
) -> std::result::Result<(), String> {
    let gpu = make(Variant::Serial).map_err(|error| error.to_string())?;
    let device = MetalDevice::with_profile(gpu, profile.clone());
    let mut case = case.clone();
    case.steps.retain(|step| step.tokens.len() == 1);
    match case.steps.is_empty() {
        true => Err("no step of it has one row".to_owned()),
        false => compare(&device as &dyn Device, &case, tolerance(&case)),
    }
}
