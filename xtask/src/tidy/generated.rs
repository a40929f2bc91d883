//! Tables in documentation that a script prints from the sources are what it prints now.
//!
//! Tests compare docs/codecs.md and the tables of docs/server.md, and `cargo xtask cuda-kernels
//! --check` the registers of kernels. Measured pages cannot be printed without measuring again.

use super::Finding;
use super::tree::Tree;
use std::path::Path;
use std::process::Command;

/// Pages, and the scripts that print their tables in less than a second.
const PAGES: [(&str, &str); 2] =
    [("docs/cuda.md", "scripts/cuda_table.py"), ("docs/families.md", "scripts/family_cost.py")];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, script) in PAGES {
        let finding = |path: &str, text: String| Finding { path: path.into(), line: 1, text };
        let file = tree.files.iter().find(|file| file.path == Path::new(page));
        match (file, printed(script)) {
            (Some(file), Ok(tables)) => findings.extend(
                missing(&file.text, &tables)
                    .map(|row| finding(page, format!("it lacks '{row}', which `python3 {script}` prints"))),
            ),
            (None, _) => findings.push(finding(page, "it does not exist".to_owned())),
            (_, Err(reason)) => findings.push(finding(script, reason)),
        }
    }
    findings
}

/// The output of a script.
fn printed(script: &str) -> Result<String, String> {
    let output = Command::new("python3")
        .arg(script)
        .current_dir(crate::suites::root())
        .output()
        .map_err(|error| format!("python3 does not start ({error}); install Python 3"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("it failed: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
    }
}

/// The first row of each table that the page lacks or has differently. Tables are separated by
/// empty lines, and are in the page as they are printed, with an empty line or a comment after
/// them.
fn missing<'a>(page: &str, tables: &'a str) -> impl Iterator<Item = &'a str> {
    let rows: Vec<&str> = page.lines().collect();
    tables.split("\n\n").filter_map(move |table| {
        let table: Vec<&str> = table.trim().lines().collect();
        let is_whole = |at: usize| rows.get(at).is_none_or(|after| !after.starts_with('|'));
        let mut places = rows.windows(table.len().max(1)).enumerate();
        let is_there = places.any(|(at, window)| window == table && is_whole(at + table.len()));
        // The row to name is the first one that the page has nowhere.
        let row = table.iter().find(|row| !rows.contains(row)).or(table.first());
        row.copied().filter(|_| !is_there)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_differ_are_found() {
        let found = |page: &str| missing(page, "| a |\n| 1 |\n\n| b |\n").collect::<Vec<_>>().join(",");
        assert_eq!(found("x\n| a |\n| 1 |\n\ny\n| b |\n"), "");
        assert_eq!(found("| a |\n| 2 |\n\n| b |\n"), "| 1 |");
        assert_eq!(found("| a |\n| 1 |\n| 2 |\n\n| b |\n"), "| a |");
        assert_eq!(found("| a |\n| 1 |\n"), "| b |");
    }
}
