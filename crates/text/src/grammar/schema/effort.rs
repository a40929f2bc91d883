//! How much is done to follow a schema exactly.

use std::time::Duration;

/// The longest that a schema may take. The largest of those in use take some milliseconds.
pub(super) const MAX_TIME: Duration = Duration::from_secs(10);

/// Bounds of the work for one schema, and of its grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    /// Branches of a `oneOf` that one of them is held apart from.
    pub(super) n_overlaps: usize,
    /// Ways in which a schema that must not hold may be broken.
    pub(super) n_ways: usize,
    /// Combinations of schemas that are looked at.
    pub(super) n_combinations: usize,
    /// Rules that are made, before those that are used once go into the others.
    pub(super) n_made: usize,
    /// Rules that are written.
    pub(super) n_rules: usize,
}

impl Effort {
    /// What is tried first.
    pub(super) const FULL: Effort =
        Effort { n_overlaps: 4, n_ways: 12, n_combinations: 2_000, n_made: 6_000, n_rules: 2_000 };
    /// For a schema whose grammar would be too large otherwise. `llguidance` follows rules by recursion, which bounds them.
    pub(super) const LESS: Effort =
        Effort { n_overlaps: 0, n_ways: 4, n_combinations: 20_000, n_made: 40_000, n_rules: 4_500 };
}

/// Why a schema has no grammar.
#[derive(Debug)]
pub(super) enum Failure {
    /// Its grammar is too large; a less exact one may not be.
    Large(String),
    /// It is wrong, or allows nothing.
    Wrong(String),
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Wrong(what)
    }
}
