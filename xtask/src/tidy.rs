//! `cargo xtask tidy`: the rules of STYLE.md that a machine can keep.
//!
//! Each rule is a function from the [`Tree`] to findings, in a file of its own. There is no list of
//! exceptions: a finding is mended, or the rule says in general why it is none.

mod arms;
mod functions;
mod generated;
mod kernels;
mod lexer;
mod safety;
mod subjects;
mod texts;
mod tree;
mod twins;
mod widths;

use std::path::PathBuf;
use tree::Tree;

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: PathBuf,
    /// The line, from 1.
    line: usize,
    text: String,
}

/// A rule: its name, its demand, and the function that finds violations.
type Rule = (&'static str, &'static str, fn(&Tree) -> Vec<Finding>);

const RULES: [Rule; 9] = [
    ("widths", "comments and prose have at most 100 columns", widths::check),
    ("functions", "functions have at most 100 lines, except for one match over all Ops", functions::check),
    ("arms", "a match on our own enum names every variant", arms::check),
    ("texts", "texts that users see contain no names of our types", texts::check),
    ("safety", "names in SAFETY comments exist", safety::check),
    ("subjects", "comments begin with their subject", subjects::check),
    ("twins", "a crate has one type of a name", twins::check),
    ("kernels", "every kernel is launched by the host", kernels::check),
    ("generated", "tables that a script prints are what it prints now", generated::check),
];

/// Checks the project's sources by all rules, or by those named, and prints what breaks them.
///
/// # Errors
///
/// The number of findings, an unknown name of a rule, or a file that cannot be read.
pub fn run(names: &[String]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| RULES.iter().all(|(rule, ..)| rule != name)) {
        let known = RULES.map(|(name, ..)| name).join(", ");
        return Err(format!("no rule is called '{unknown}'; expected one of {known}"));
    }
    let tree = Tree::below(&crate::suites::root())?;
    let mut n_findings = 0;
    for (name, demand, check) in RULES {
        if !names.is_empty() && !names.iter().any(|chosen| chosen == name) {
            continue;
        }
        let mut findings = check(&tree);
        findings.sort();
        if !findings.is_empty() {
            println!("{name}: {demand}");
        }
        for Finding { path, line, text } in &findings {
            println!("  {}:{line}: {text}", path.display());
        }
        n_findings += findings.len();
    }
    match n_findings {
        0 => Ok(()),
        n => Err(format!("tidy: {n} places break a rule of STYLE.md")),
    }
}
