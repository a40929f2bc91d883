//! How often the guesses about one sequence were right of late.

/// How much one token moves the rate.
const WEIGHT: f64 = 1.0 / 8.0;

/// Tokens between two probes.
const PROBE_INTERVAL: u32 = 32;

/// A sequence's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    /// Share of guessed tokens that were right, those behind a wrong one not counted: an exponential mean.
    rate: f64,
    /// What was guessed of the next token and is not in the step.
    unverified: Option<u32>,
    /// Tokens since a guess was in a step.
    n_since: u32,
    /// Guesses in steps, and how many of them were right.
    pub(crate) n_drafted: usize,
    pub(crate) n_accepted: usize,
}

impl Acceptance {
    /// Nothing is known: even odds.
    pub(crate) fn new() -> Acceptance {
        Acceptance { rate: 0.5, unverified: None, n_since: 0, n_drafted: 0, n_accepted: 0 }
    }

    /// Tokens that `n` guesses are expected to add to a step: the first is right with the probability `rate`, each other
    /// if those before it were.
    pub(crate) fn gain(&self, n: usize) -> f64 {
        let (mut gain, mut all_right) = (0.0, 1.0);
        for _ in 0..n {
            all_right *= self.rate;
            gain += all_right;
        }
        gain
    }

    /// Rows that the next step is expected to compute again where `n` guesses behind `n_certain` rows are in a step that only
    /// counts as a whole.
    pub(crate) fn n_again(&self, n: usize, n_certain: usize) -> f64 {
        let (mut rows, mut all_right) = (0.0, 1.0);
        for n_right in 0..n {
            rows += all_right * (1.0 - self.rate) * (n_certain + n_right) as f64;
            all_right *= self.rate;
        }
        rows
    }

    /// Whether more guesses are right than wrong.
    pub(crate) fn is_likely(&self) -> bool {
        self.rate > 0.5
    }

    /// Compare this with the next token.
    pub(crate) fn set_unverified(&mut self, guess: Option<u32>) {
        self.unverified = guess;
    }

    /// Whether the step before had guesses too.
    pub(crate) fn is_steady(&self) -> bool {
        self.n_drafted > 0 && self.n_since == 0
    }

    /// Whether it is time to look how good guesses are; counts a token.
    pub(crate) fn is_probe_due(&mut self) -> bool {
        self.n_since += 1;
        self.n_since > PROBE_INTERVAL
    }

    /// Of `n_drafted` guesses in a step, the first `n_accepted` were right; `first` is the first token of the step.
    /// With no guesses there may be one to compare `first` with.
    pub(crate) fn observe(&mut self, n_drafted: usize, n_accepted: usize, first: u32) {
        if n_drafted > 0 {
            self.n_since = 0;
        }
        let (right, wrong) = match self.unverified.take() {
            Some(guess) if n_drafted == 0 => (usize::from(guess == first), usize::from(guess != first)),
            _ => (n_accepted, usize::from(n_accepted < n_drafted)),
        };
        for _ in 0..right {
            self.rate += (1.0 - self.rate) * WEIGHT;
        }
        if wrong > 0 {
            self.rate -= self.rate * WEIGHT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_happens() {
        let mut a = Acceptance::new();
        assert_eq!(a.gain(0), 0.0);
        assert_eq!(a.gain(3), 0.5 + 0.25 + 0.125);
        assert_eq!(a.n_again(0, 1), 0.0);
        assert_eq!(a.n_again(3, 2), 0.5 * 2.0 + 0.25 * 3.0 + 0.125 * 4.0);
        for _ in 0..5 {
            a.observe(4, 4, 0);
        }
        assert!(a.gain(4) > 3.5 && a.is_likely());
        for _ in 0..30 {
            a.observe(4, 0, 0);
        }
        assert!(a.gain(4) < 0.1);
        // A guess that is compared only counts as much.
        for _ in 0..30 {
            a.set_unverified(Some(7));
            a.observe(0, 0, 7);
        }
        assert!(a.is_likely());
        for _ in 0..30 {
            a.set_unverified(Some(7));
            a.observe(0, 0, 8);
        }
        assert!(!a.is_likely());
        // No guess says nothing.
        let before = a.rate;
        a.observe(0, 0, 7);
        assert_eq!(a.rate, before);
    }

    #[test]
    fn probes_are_rare() {
        let mut a = Acceptance::new();
        let mut due = 0;
        for _ in 0..330 {
            if a.is_probe_due() {
                due += 1;
                a.observe(4, 0, 0);
            }
        }
        assert_eq!(due, 10);
    }
}
