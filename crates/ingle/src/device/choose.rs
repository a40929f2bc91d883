//! The device of the kind `Auto`: the first that is present, runs the model, and passes a quick
//! check of its arithmetic.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Device;
use device_check::Case;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// A device that `auto` may choose.
pub struct Candidate<'a> {
    /// The name for users.
    pub name: &'static str,
    /// Creates the device, or returns the reason why it is absent.
    pub make: &'a dyn Fn() -> Result<Arc<dyn Device>>,
    /// The tolerance of each test case; `None` if the arithmetic need not be checked.
    pub check: Option<&'a dyn Fn(&Case) -> f32>,
}

/// The chosen device.
pub struct Choice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The device, and the reasons against those before it, for people.
    pub reason: String,
    /// The candidates before it: names, and reasons against each.
    pub passed_over: Vec<String>,
}

/// Time after which a self-check ends, once it has compared [`MIN_CASES`] cases.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// Fewest cases of a self-check. A device that supports none must not pass.
const MIN_CASES: usize = 12;

/// Chooses the first candidate that can be created, passes `runs`, and passes the self-check if it
/// has one. Results of self-checks are cached in the folder `cache`.
///
/// # Errors
/// No candidate remains; the error has all reasons.
pub fn choose(
    candidates: &[Candidate<'_>],
    runs: &dyn Fn(&dyn Device) -> Result<()>,
    cache: Option<&Path>,
) -> Result<Choice> {
    let mut reasons = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let tried = (candidate.make)().and_then(|device| {
            // The last candidate reports what it cannot run when the model is loaded, and a second
            // check would slow down every start.
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
                // The name of the device is already in front.
                let why = match &error {
                    Error::Device(device::Error::Failed { reason, .. }) => reason.clone(),
                    other => other.to_string(),
                };
                reasons.push(format!("{}: {why}", candidate.name));
            }
        }
    }
    Err(Error::NoDevice { reasons })
}

/// Checks a device's arithmetic, or reads the result of an earlier check of the same binary and
/// device.
fn checked(device: &dyn Device, tolerance: &dyn Fn(&Case) -> f32, cache: Option<&Path>) -> Result<()> {
    let report = cache.map(|cache| report_path(device, cache));
    let kept = report.as_deref().and_then(|report| std::fs::read_to_string(report).ok());
    let found = match kept.as_deref() {
        Some(PASSED) => return Ok(()),
        Some(differences) => differences.to_owned(),
        None => {
            let result = self_check(device, tolerance);
            if let (Some(cache), Some(report)) = (cache, &report) {
                // If the result cannot be written, the next start checks again.
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
    let found = match report.filter(|report| report.exists()) {
        Some(report) => format!("; report: {}", report.display()),
        None => format!(": {found}"),
    };
    Err(Error::WrongResults { found })
}

const PASSED: &str = "passed\n";

/// The path of a cached result. Its name is a hash of the binary, the system (and so the driver)
/// and the device.
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

/// Compares ops and a layer with the reference interpreter: small cases, spread evenly over all
/// cases, until the time is up.
///
/// # Errors
/// The cases that differ, and their differences.
fn self_check(device: &dyn Device, tolerance: &dyn Fn(&Case) -> f32) -> std::result::Result<(), String> {
    let cases = device_check::check_op_cases();
    let begun = Instant::now();
    let (mut failures, mut n_compared) = (Vec::new(), 0);
    // A stride that is coprime to the number of cases visits all cases, each far from the last.
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

/// Tolerance of devices that compute in f32, or round factors to f16.
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
        make: &'a dyn Fn() -> Result<Arc<dyn Device>>,
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

        // The null device computes nothing, so its results are wrong.
        let wrong_first = [here("gpu", &wrong, true), here("cpu", &reference, false)];
        for _ in 0..2 {
            let choice = choose(&wrong_first, &anything, Some(cache.path())).unwrap();
            assert_eq!(choice.device.name(), "reference");
            let report =
                choice.reason.split("report: ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
            assert!(std::fs::read_to_string(report).unwrap().contains("not fused"), "{report}");
        }
        // Without the check this device would be chosen. A correct device passes, and the result is
        // cached.
        let choice = choose(&[here("cpu", &wrong, false)], &anything, None).unwrap();
        assert_eq!(choice.device.name(), "null");
        for _ in 0..2 {
            let choice = choose(&[here("gpu", &reference, true)], &anything, Some(cache.path())).unwrap();
            assert_eq!(choice.device.name(), "reference");
        }
        let refuses = |device: &dyn Device| {
            if device.name() != "null" {
                return Ok(());
            }
            let (what, hint) = ("this model".to_owned(), "use device cpu".to_owned());
            Err(Error::Device(device::Error::Unsupported { device: "null", what, hint }))
        };
        let choice = choose(
            &[here("gpu", &wrong, true), here("cpu", &reference, false)],
            &refuses,
            Some(cache.path()),
        );
        let reason = choice.unwrap().reason;
        assert!(
            reason.contains("(not gpu: device null: this model is not supported; use device cpu)"),
            "{reason}"
        );
        let error = choose(&[here("gpu", &absent, true)], &anything, Some(cache.path())).err().unwrap();
        assert!(error.to_string().contains("gpu: there is none here"), "{error}");
    }
}
