//! By how much less time is planned for than is allowed, so that nearly everything ends in time.
//!
//! Times vary around what is expected. The factor rises with each that is longer than it allows for, and falls a little with each
//! that is not, so that it tends to the quantile `1 - LATE` of the times over those expected (Robbins and Monro, "A Stochastic
//! Approximation Method", 1951).

/// The share of times that may be too long.
const LATE: f64 = 0.01;

/// How far one of them moves the factor.
const GAIN: f64 = 0.02;

/// The factor: 1 and more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin {
    factor: f64,
    most: f64,
}

impl Margin {
    /// As if nothing had been too long yet. It becomes `most` at most, whatever disturbs the machine.
    pub(super) fn new(most: f64) -> Margin {
        Margin { factor: 1.0, most }
    }

    /// Nearly nothing takes longer than so many times what is expected.
    pub(super) fn factor(self) -> f64 {
        self.factor
    }

    /// Something took longer than allowed for, or not.
    pub(super) fn note(&mut self, is_late: bool) {
        match is_late {
            true => self.factor = (self.factor + GAIN * (1.0 - LATE)).min(self.most),
            false => self.note_in_time(1.0),
        }
    }

    /// `n` times it did not.
    pub(super) fn note_in_time(&mut self, n: f64) {
        self.factor = (self.factor - n * GAIN * LATE).max(1.0);
    }
}
