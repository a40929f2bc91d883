//! Limits of the work for exact enforcement of a schema.

use std::time::Duration;

/// Longest compilation of a schema. The largest in use take some milliseconds.
pub(super) const MAX_TIME: Duration = Duration::from_secs(10);

/// Limits of the work for one schema, and of its grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    /// Maximum number of branches of a `oneOf` that are separated from one branch.
    pub(super) n_overlaps: usize,
    /// Maximum number of ways of violating a negated schema.
    pub(super) n_ways: usize,
    /// Maximum number of combinations of schemas.
    pub(super) n_combinations: usize,
    /// Maximum number of rules made, before rules that are used once are inlined.
    pub(super) n_made: usize,
    /// Maximum number of rules written.
    pub(super) n_rules: usize,
}

impl Effort {
    /// The first attempt.
    pub(super) const FULL: Effort =
        Effort { n_overlaps: 4, n_ways: 12, n_combinations: 2_000, n_made: 6_000, n_rules: 2_000 };
    /// The second attempt, for a schema whose grammar would be too large. `llguidance` follows
    /// rules by recursion, which limits their number.
    pub(super) const LESS: Effort =
        Effort { n_overlaps: 0, n_ways: 4, n_combinations: 20_000, n_made: 40_000, n_rules: 4_500 };
}

/// Reason why a schema has no grammar.
#[derive(Debug)]
pub(super) enum Failure {
    /// The grammar is too large; a less exact one may not be.
    Large(String),
    /// The schema is invalid, or allows no value.
    Wrong(String),
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Wrong(what)
    }
}
