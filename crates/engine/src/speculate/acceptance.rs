//! Acceptance rate of a sequence's draft tokens.

/// Weight of one token in the rate.
const WEIGHT: f64 = 1.0 / 8.0;

/// Tokens between two probes.
const PROBE_INTERVAL: u32 = 32;

/// Acceptance record of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    /// Exponential mean of the share of draft tokens that were right; those after a wrong one are
    /// not counted.
    rate: f64,
    /// Draft token for the next token that is only compared, not in the step.
    unverified: Option<u32>,
    /// Tokens since the last step with draft tokens.
    n_since: u32,
    /// Number of draft tokens in steps, and of those accepted.
    pub(crate) n_drafted: usize,
    pub(crate) n_accepted: usize,
}

impl Acceptance {
    /// A record without observations, at even odds.
    pub(crate) fn new() -> Acceptance {
        Acceptance { rate: 0.5, unverified: None, n_since: 0, n_drafted: 0, n_accepted: 0 }
    }

    /// Expected number of tokens that `n` draft tokens add to a step: each is right with the
    /// probability `rate` if those before it were.
    pub(crate) fn gain(&self, n: usize) -> f64 {
        let (mut gain, mut all_right) = (0.0, 1.0);
        for _ in 0..n {
            all_right *= self.rate;
            gain += all_right;
        }
        gain
    }

    /// Expected number of rows that the next step recomputes, with `n` draft tokens after
    /// `n_certain` rows, if a wrong one undoes the whole step.
    pub(crate) fn n_again(&self, n: usize, n_certain: usize) -> f64 {
        let (mut rows, mut all_right) = (0.0, 1.0);
        for n_right in 0..n {
            rows += all_right * (1.0 - self.rate) * (n_certain + n_right) as f64;
            all_right *= self.rate;
        }
        rows
    }

    /// Returns true if more draft tokens are right than wrong.
    pub(crate) fn is_likely(&self) -> bool {
        self.rate > 0.5
    }

    /// Set a draft token that is only compared with the next token.
    pub(crate) fn set_unverified(&mut self, guess: Option<u32>) {
        self.unverified = guess;
    }

    /// Returns true if the step before had draft tokens too.
    pub(crate) fn is_steady(&self) -> bool {
        self.n_drafted > 0 && self.n_since == 0
    }

    /// Count a token. Returns true if it is time to probe the acceptance rate.
    pub(crate) fn is_probe_due(&mut self) -> bool {
        self.n_since += 1;
        self.n_since > PROBE_INTERVAL
    }

    /// Record that the first `n_accepted` of `n_drafted` draft tokens were right. `first` is the
    /// first token of the step. Without draft tokens in the step it is compared with the unverified
    /// one, if there is one.
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
        // A token that is only compared counts equally.
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
        // Without a draft token nothing is learnt.
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
