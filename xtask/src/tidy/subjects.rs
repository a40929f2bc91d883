//! A comment begins with its subject: not with a clause that lacks its noun.

use super::Finding;
use super::lexer::Kind;
use super::tree::{File, Language, Tree};

/// The words that a comment does not begin with.
const HEADLESS: [&str; 10] =
    ["What ", "Whether ", "Of ", "How ", "Where ", "The same ", "Which ", "By ", "Those ", "Whose "];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let with_comments = |language| tree.in_language(language).flat_map(of_file);
    with_comments(Language::Rust).chain(with_comments(Language::Cpp)).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut last_line = None;
    for token in file.tokens() {
        if token.kind != Kind::Comment {
            continue;
        }
        let text = token.text.trim_start_matches(['/', '!', '*']).trim_start();
        let continues = last_line == Some(token.line - 1);
        last_line = Some(token.line + token.text.matches('\n').count());
        let is_question = text.trim_end().ends_with('?');
        if let Some(start) = HEADLESS.iter().find(|start| text.starts_with(*start))
            && !continues
            && !is_question
        {
            findings.push(file.finding(token.line, format!("begins with \"{}\"", start.trim_end())));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn headless_comments_are_found_where_they_begin() {
        let found = |text: &str| of_file(&file("a.rs", text)).len();
        assert_eq!(found("/// Of each row.\nx: u8,\n// Whether it is.\n"), 2);
        assert_eq!(found("/// Rows of each\n/// Of them all.\n"), 0);
        assert_eq!(found("let a = \"// Of\"; // Why not?\n"), 0);
    }
}
