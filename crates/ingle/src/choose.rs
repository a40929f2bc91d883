//! `--device auto`: the first device that is here, runs the model, and passed a quick check of its arithmetic.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Device;
use device_check::Case;
use sha2::{Digest, Sha256};

/// A device that `auto` may choose.
pub struct Candidate<'a> {
    /// As `--device` names it.
    pub name: &'static str,
    /// Make it, or say why it is not here.
    pub make: &'a dyn Fn() -> anyhow::Result<Arc<dyn Device>>,
    /// Whether its arithmetic is checked before it is trusted: the bound of a case.
    pub check: Option<&'a dyn Fn(&Case) -> f32>,
}

/// What was chosen.
pub struct Choice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// For people: what it is, and why not those before it.
    pub reason: String,
    /// Those before it, by their names, and why each was not chosen.
    pub passed_over: Vec<String>,
}

/// How long a self-check may take, once it has compared the fewest cases.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// Fewest cases of a self-check: a device that compares none must not pass.
const MIN_CASES: usize = 12;

/// The first candidate that can be made, `runs` the model, and passes the self-check if it needs one. Results of self-checks are
/// kept in `cache`, if there is one.
///
/// # Errors
/// None of them, with the reasons of all.
pub fn choose(
    candidates: &[Candidate<'_>],
    runs: &dyn Fn(&dyn Device) -> anyhow::Result<()>,
    cache: Option<&Path>,
) -> anyhow::Result<Choice> {
    let mut reasons = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let tried = (candidate.make)().and_then(|device| {
            // The last one says by itself what it cannot run, with the model loaded; asking twice would cost time at every start.
            if index + 1 < candidates.len() {
                runs(device.as_ref())?;
            }
            if let Some(tolerance) = candidate.check {
                checked(device.as_ref(), tolerance, cache)?;
            }
            Ok(device)
        });
        match tried {
            Ok(device) => {
                let mut reason = format!("device {}: {}", candidate.name, device.describe());
                for other in &reasons {
                    reason.push_str(&format!(" (not {other})"));
                }
                return Ok(Choice { device, reason, passed_over: reasons });
            }
            Err(error) => {
                // Whose failure it is, is said before it.
                let why = match error.downcast_ref::<device::Error>() {
                    Some(device::Error::Failed { reason, .. }) => reason.clone(),
                    _ => crate::output::message(&error),
                };
                reasons.push(format!("{}: {why}", candidate.name));
            }
        }
    }
    anyhow::bail!("no device runs this model\n  {}", reasons.join("\n  "))
}

/// Check a device's arithmetic, or take the result of an earlier check of the same binary on the same device.
fn checked(
    device: &dyn Device,
    tolerance: &dyn Fn(&Case) -> f32,
    cache: Option<&Path>,
) -> anyhow::Result<()> {
    let report = cache.map(|cache| report_path(device, cache));
    let kept = report.as_deref().and_then(|report| std::fs::read_to_string(report).ok());
    let found = match kept.as_deref() {
        Some(PASSED) => return Ok(()),
        Some(differences) => differences.to_owned(),
        None => {
            let result = self_check(device, tolerance);
            if let (Some(cache), Some(report)) = (cache, &report) {
                // Where nothing can be kept, the next start checks again.
                let _ = std::fs::create_dir_all(cache).and_then(|()| {
                    std::fs::write(report, result.as_ref().map_or_else(String::as_str, |()| PASSED))
                });
            }
            match result {
                Ok(()) => return Ok(()),
                Err(differences) => differences,
            }
        }
    };
    match report.filter(|report| report.exists()) {
        Some(report) => {
            anyhow::bail!("its results differ from the reference's; report: {}", report.display())
        }
        None => anyhow::bail!("its results differ from the reference's: {found}"),
    }
}

const PASSED: &str = "passed\n";

/// Named by what the result depends on: the binary, the system (and with it the driver), the device.
fn report_path(device: &dyn Device, cache: &Path) -> PathBuf {
    let mut hash = Sha256::new();
    let system = ["/proc/version", "/System/Library/CoreServices/SystemVersion.plist"];
    for path in system.iter().map(PathBuf::from) {
        hash.update(std::fs::read(path).unwrap_or_default());
    }
    if let Ok(binary) = std::env::current_exe()
        && let Ok(metadata) = binary.metadata()
    {
        let changed = metadata.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        hash.update(format!("{} {} {changed:?}", binary.display(), metadata.len()));
    }
    hash.update(device.name());
    hash.update(device.describe());
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    cache.join(format!("{}-{digest}.txt", device.name()))
}

/// A few Ops and a layer compared with the reference interpreter: cases spread evenly over all that there are, each of them
/// small, until the time is up.
///
/// # Errors
/// Those that differ, and by how much.
fn self_check(device: &dyn Device, tolerance: &dyn Fn(&Case) -> f32) -> Result<(), String> {
    let cases = device_check::check_op_cases();
    let begun = Instant::now();
    let (mut failures, mut n_compared) = (Vec::new(), 0);
    // A stride without a common factor with the number of cases visits all of them, each far from the one before.
    let n = cases.len();
    let stride = (n / 3..n).find(|stride| gcd(*stride, n) == 1).unwrap_or(1);
    for index in (0..n).map(|i| i * stride % n) {
        if n_compared >= MIN_CASES && begun.elapsed() > CHECK_TIME {
            break;
        }
        let case = &cases[index];
        if !case.runs_on(device) {
            continue;
        }
        n_compared += 1;
        failures.extend(device_check::compare(device, case, tolerance(case)).err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// The bound of devices that compute in f32, or round what they multiply to halves.
pub fn tolerance(case: &Case) -> f32 {
    30.0 * case.tolerance
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_reference::Reference;
    use device_testing::null::NullDevice;

    fn here<'a>(
        name: &'static str,
        make: &'a dyn Fn() -> anyhow::Result<Arc<dyn Device>>,
        checked: bool,
    ) -> Candidate<'a> {
        Candidate { name, make, check: checked.then_some(&tolerance as &dyn Fn(&Case) -> f32) }
    }

    #[test]
    fn the_first_that_is_here_runs_the_model_and_calculates_right() {
        let cache = tempfile::tempdir().unwrap();
        let reference = || Ok(Arc::new(Reference::new(1)) as Arc<dyn Device>);
        let wrong = || Ok(Arc::new(NullDevice::default()) as Arc<dyn Device>);
        let absent = || {
            let reason = "there is none here".to_owned();
            Err(device::Error::Failed { device: "gpu", reason }.into())
        };
        let anything = |_: &dyn Device| Ok(());

        let choice = choose(
            &[here("gpu", &absent, true), here("cpu", &reference, false)],
            &anything,
            Some(cache.path()),
        );
        let choice = choice.unwrap();
        assert_eq!(choice.device.name(), "reference");
        assert!(choice.reason.contains("(not gpu: there is none here)"), "{}", choice.reason);

        // The null device computes nothing: its results are wrong, and the report says how.
        let wrong_first = [here("gpu", &wrong, true), here("cpu", &reference, false)];
        for _ in 0..2 {
            let choice = choose(&wrong_first, &anything, Some(cache.path())).unwrap();
            assert_eq!(choice.device.name(), "reference");
            let report =
                choice.reason.split("report: ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
            assert!(std::fs::read_to_string(report).unwrap().contains("not fused"), "{report}");
        }
        // Unchecked, it would be taken; and a device that is right passes its check, which is remembered.
        let choice = choose(&[here("cpu", &wrong, false)], &anything, None).unwrap();
        assert_eq!(choice.device.name(), "null");
        for _ in 0..2 {
            let choice = choose(&[here("gpu", &reference, true)], &anything, Some(cache.path())).unwrap();
            assert_eq!(choice.device.name(), "reference");
        }
        let refuses = |device: &dyn Device| {
            anyhow::ensure!(device.name() != "null", "no kernel for this model");
            Ok(())
        };
        let choice = choose(
            &[here("gpu", &wrong, true), here("cpu", &reference, false)],
            &refuses,
            Some(cache.path()),
        );
        let reason = choice.unwrap().reason;
        assert!(reason.contains("(not gpu: no kernel for this model)"), "{reason}");
        let error = choose(&[here("gpu", &absent, true)], &anything, Some(cache.path())).err().unwrap();
        assert!(error.to_string().contains("gpu: there is none here"), "{error}");
    }
}
