//! `cargo xtask defects`: seeds defects one by one, and reports those that the tests do not find.
//!
//! The list is `xtask/defects.txt`. A change that makes the tests faster shows with it that they
//! still find what they found before. It works in the checked-out tree, and restores each file.

use crate::suites::{cargo, compilation, root};
use std::fs;
use std::process::Stdio;

const LIST: &str = include_str!("../defects.txt");

/// A wrong change of one line.
#[derive(Debug)]
struct Defect<'a> {
    name: &'a str,
    path: &'a str,
    right: &'a str,
    wrong: &'a str,
    /// Arguments of the `cargo test` that fails.
    tests: Vec<&'a str>,
}

/// Seeds all defects, or those whose names contain one of `words`.
///
/// # Errors
///
/// Defects that no test found, and a list that does not fit the sources.
pub fn run(words: &[String]) -> Result<(), String> {
    let all = defects(LIST)?;
    let is_chosen = |defect: &&Defect<'_>| {
        words.is_empty() || words.iter().any(|word| defect.name.contains(word.as_str()))
    };
    let mut missed = Vec::new();
    for defect in all.iter().filter(is_chosen) {
        let is_found = is_found(defect)?;
        println!("{}: {}", if is_found { "found " } else { "MISSED" }, defect.name);
        if !is_found {
            missed.push(defect.name);
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("no test finds these defects:\n  {}", missed.join("\n  "))),
    }
}

/// Seeds one defect, runs its tests, and restores the file. A defect that does not compile is an
/// error: it proves nothing about the tests.
fn is_found(defect: &Defect<'_>) -> Result<bool, String> {
    let path = root().join(defect.path);
    let failed = |error: std::io::Error| format!("{}: {error}", defect.path);
    let right = fs::read_to_string(&path).map_err(failed)?;
    fs::write(&path, seeded(defect, &right)?).map_err(failed)?;
    let test = |arguments: &[&str]| {
        let mut command = cargo(&[&["test", "--quiet"], &defect.tests[..], arguments].concat());
        command.envs(compilation().iter().copied()).current_dir(root());
        crate::suites::forget_xtask(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().map(|status| status.success())
    };
    let compiles = test(&["--no-run"]);
    let passes = test(&[]);
    fs::write(&path, right).map_err(failed)?;
    match (compiles.map_err(failed)?, passes.map_err(failed)?) {
        (false, _) => Err(format!("{}: it does not compile", defect.name)),
        (true, passes) => Ok(!passes),
    }
}

/// The text of a file with the defect.
fn seeded(defect: &Defect<'_>, text: &str) -> Result<String, String> {
    match text.matches(defect.right).count() {
        1 => Ok(text.replacen(defect.right, defect.wrong, 1)),
        n => {
            Err(format!("{}: its right text occurs {n} times in {}, expected once", defect.name, defect.path))
        }
    }
}

/// The defects of a list.
fn defects(list: &str) -> Result<Vec<Defect<'_>>, String> {
    let entries =
        list.split("\n\n").map(str::trim).filter(|entry| !entry.is_empty() && !entry.starts_with('#'));
    entries
        .map(|entry| {
            let lines: Vec<&str> = entry.lines().collect();
            let [name, path, right, wrong, tests] = lines[..] else {
                return Err(format!("'{}' has {} lines, expected 5", lines[0], lines.len()));
            };
            let (Some(right), Some(wrong)) = (right.strip_prefix("- "), wrong.strip_prefix("+ ")) else {
                return Err(format!("{name}: expected lines that begin with '- ' and '+ '"));
            };
            Ok(Defect { name, path, right, wrong, tests: tests.split(' ').collect() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defect_fits_its_file() {
        let all = defects(LIST).unwrap();
        assert_eq!(all.len(), 30);
        for defect in all {
            let text = fs::read_to_string(root().join(defect.path)).unwrap();
            assert_ne!(seeded(&defect, &text).unwrap(), text, "{}", defect.name);
        }
    }

    #[test]
    fn a_list_that_does_not_fit_is_an_error() {
        assert!(defects("a\nb\n- c\n+ d").unwrap_err().contains("4 lines"));
        assert!(defects("a\nb\nc\n+ d\n-p e").unwrap_err().contains("'- '"));
        let list = defects("a\nb\n- c\n+ d\n-p e").unwrap();
        assert!(seeded(&list[0], "c c").unwrap_err().contains("2 times"));
    }
}
