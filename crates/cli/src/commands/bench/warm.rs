//! Warm-up runs, which are not timed.

use std::time::{Duration, Instant};

/// Largest relative difference of two steady runs.
const STEADY: f64 = 0.05;

/// Maximum number of warm-up runs.
const MOST_RUNS: usize = 12;

/// No warm-up run starts after this time.
const MOST_TIME: Duration = Duration::from_secs(5);

/// Repeats `run`, which returns its seconds, until two runs in a row take about the same time. The
/// first run compiles kernels, records tables and commits memory, and clock rates rise for a while.
///
/// # Errors
/// Errors of `run`.
pub fn until_steady(run: &mut dyn FnMut() -> anyhow::Result<f64>) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut before = run()?;
    for _ in 1..MOST_RUNS {
        if begun.elapsed() > MOST_TIME {
            break;
        }
        let now = run()?;
        if (now - before).abs() <= STEADY * before {
            break;
        }
        before = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of runs with these times in seconds; later runs take the last of the times.
    fn runs(seconds: &[f64]) -> usize {
        let mut n = 0;
        until_steady(&mut || {
            n += 1;
            Ok(seconds[(n - 1).min(seconds.len() - 1)])
        })
        .unwrap();
        n
    }

    #[test]
    fn a_test_runs_until_it_is_steady() {
        assert_eq!(runs(&[1.0]), 2);
        assert_eq!(runs(&[9.0, 3.0, 1.0, 1.01]), 4);
        let growing: Vec<f64> = (0..100).map(|i| 2f64.powi(i)).collect();
        assert_eq!(runs(&growing), MOST_RUNS);
    }
}
