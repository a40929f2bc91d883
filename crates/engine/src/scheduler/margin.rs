//! By how much less time is planned for than is allowed, so that nearly everything ends in time.
//!
//! Times vary around what is expected. The factor rises with each that is longer than it allows for, and falls a little with each
//! that is not, so that it tends to the quantile `1 - LATE` of the times over those expected (Robbins and Monro, "A Stochastic
//! Approximation Method", 1951).

/// The share of times that may be too long.
const LATE: f64 = 0.01;

/// How far one of them moves the factor.
const GAIN: f64 = 0.02;

/// The factor of a machine of which nothing is known yet.
const FIRST: f64 = 1.1;

/// The largest, whatever disturbs the machine.
const MOST: f64 = 1.5;

/// The factor: 1 and more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin(f64);

impl Margin {
    /// Before anything was too long.
    pub(super) fn new() -> Margin {
        Margin(FIRST)
    }

    /// Nearly nothing takes longer than so many times what is expected.
    pub(super) fn factor(self) -> f64 {
        self.0
    }

    /// Something took longer than allowed for, or not.
    pub(super) fn note(&mut self, is_late: bool) {
        match is_late {
            true => self.0 = (self.0 + GAIN * (1.0 - LATE)).min(MOST),
            false => self.note_in_time(1.0),
        }
    }

    /// `n` times it did not.
    pub(super) fn note_in_time(&mut self, n: f64) {
        self.0 = (self.0 - n * GAIN * LATE).max(1.0);
    }
}
