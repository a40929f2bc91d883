//! Comments and Markdown prose have at most 100 columns.
//!
//! Tables and code in fences are no prose. A line that is one word, such as an address, cannot be
//! shorter.

use super::Finding;
use super::tree::{File, Language, Tree};

const COLUMNS: usize = 100;

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_fence = false;
    // Strings of several lines may look like comments.
    let strings: Vec<(usize, usize)> = file.tokens().iter().filter_map(lines_of_string).collect();
    for (line, text) in (1..).zip(file.text.lines()) {
        let Some(prose) = prose(file.language, text) else {
            in_fence &= file.language == Language::Markdown;
            continue;
        };
        if prose.starts_with("```") {
            in_fence = !in_fence;
        }
        let is_table = prose.starts_with('|');
        let is_word = prose.split_whitespace().nth(1).is_none();
        let in_string = strings.iter().any(|&(first, last)| first < line && line <= last);
        let width = text.chars().count();
        if width > COLUMNS && !in_fence && !is_table && !is_word && !in_string {
            findings.push(file.finding(line, format!("{width} columns")));
        }
    }
    findings
}

/// The first and last line of a string of several lines.
fn lines_of_string(token: &super::lexer::Token<'_>) -> Option<(usize, usize)> {
    let n = token.text.matches('\n').count();
    (token.kind == super::lexer::Kind::Text && n > 0).then_some((token.line, token.line + n))
}

/// Returns the words of a line that is a comment or prose, without its indent and marks.
fn prose(language: Language, line: &str) -> Option<&str> {
    let text = line.trim_start();
    let rest = match language {
        Language::Rust | Language::Cpp => {
            let rest = text.strip_prefix("//")?;
            rest.trim_start_matches(['/', '!'])
        }
        Language::Hash => text.strip_prefix('#')?,
        Language::Markdown => text,
    };
    Some(rest.trim())
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn long_comments_are_found_and_tables_fences_and_addresses_are_not() {
        let long = "word ".repeat(25);
        let found = |path: &str, text: String| of_file(&file(path, &text)).len();
        assert_eq!(found("a.rs", format!("fn f() {{}}\n    // {long}\n")), 1);
        assert_eq!(found("a.rs", format!("/// ```text\n/// {long}\n/// ```\n/// {long}\n")), 1);
        assert_eq!(found("a.rs", format!("/// | {long} |\n// https://{}\n", "a".repeat(100))), 0);
        assert_eq!(found("a.rs", format!("let a = \"{long}\";\nlet b = r#\"\n// {long}\n\"#;\n")), 0);
        assert_eq!(found("a.md", format!("{long}\n| {long} |\n```\n{long}\n```\n")), 1);
        assert_eq!(found("a.py", format!("# {long}\nx = 1\n")), 1);
    }
}
