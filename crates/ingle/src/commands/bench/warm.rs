//! Runs before those that are timed.

use std::time::{Duration, Instant};

/// Two runs that differ by less are steady.
const STEADY: f64 = 0.05;

/// Most runs that are not timed.
const MOST_RUNS: usize = 12;

/// No further run begins after this.
const MOST_TIME: Duration = Duration::from_secs(5);

/// Run a test, of the very shape that is timed later, until two runs in a row take about as long; `run` gives its seconds. The first run
/// compiles, records and commits memory, the second one may record again, and clocks rise for a while.
///
/// # Errors
/// Of `run`.
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

    /// How many runs there are if they take so long, and then always the last time.
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
