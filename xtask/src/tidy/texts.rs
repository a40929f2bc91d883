//! Texts that users see (helps and errors) contain no name of one of our types.
//!
//! A search-and-replace over the tree once turned a word of a help into the name of a struct.

use super::Finding;
use super::lexer::{Kind, Token, after_closing};
use super::tree::{File, Language, Tree};
use std::collections::BTreeSet;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let types: BTreeSet<&str> = tree
        .names_after(&["struct", "enum", "trait", "union"])
        .into_iter()
        .filter(|name| is_of_two_words(name))
        .collect();
    tree.in_language(Language::Rust)
        .filter(|file| !file.is_test())
        .flat_map(|file| of_file(file, &types))
        .collect()
}

/// True for names like `RowCount`, which are no words of English.
fn is_of_two_words(name: &str) -> bool {
    let after_lower =
        name.chars().zip(name.chars().skip(1)).any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    name.starts_with(|c: char| c.is_uppercase()) && after_lower
}

fn of_file(file: &File, types: &BTreeSet<&str>) -> Vec<Finding> {
    let tokens = file.tokens();
    let texts = helps(&tokens).into_iter().chain(messages(&tokens));
    let findings = texts.flat_map(|token| {
        let words = token.text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named = words.filter(|word| types.contains(word));
        named
            .map(|word| file.finding(token.line, format!("{word} is the name of a type")))
            .collect::<Vec<_>>()
    });
    findings.collect()
}

/// The doc comments that clap prints: of structs and enums that derive its traits, of their fields
/// and variants.
fn helps<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut helps = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if !token.is_word("derive") {
            continue;
        }
        let end = after_closing(tokens, at + 1);
        let of_clap = ["Args", "Parser", "Subcommand", "ValueEnum"];
        if !tokens[at..end].iter().any(|t| of_clap.iter().any(|name| t.is_word(name))) {
            continue;
        }
        let Some(open) = (end..tokens.len()).find(|&at| tokens[at].is("{") || tokens[at].is(";")) else {
            continue;
        };
        // The comments of the type itself are before its attributes.
        let start =
            (0..at).rev().take_while(|&at| !tokens[at].is("}") && !tokens[at].is(";")).last().unwrap_or(at);
        let body = &tokens[start..after_closing(tokens, open).max(open)];
        helps.extend(body.iter().filter(|t| t.kind == Kind::Comment && t.text.starts_with("///")).copied());
    }
    helps
}

/// The strings of errors: in `#[error(...)]`, and in macros and functions that make errors of
/// `anyhow`.
fn messages<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut messages = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let makes_error = ["error", "bail", "anyhow", "ensure", "context", "with_context"];
        if token.kind != Kind::Word || !makes_error.contains(&token.text) {
            continue;
        }
        let open = at + 1 + usize::from(tokens.get(at + 1).is_some_and(|next| next.is("!")));
        if tokens.get(open).is_some_and(|next| next.is("(")) {
            let inside = &tokens[open..after_closing(tokens, open)];
            messages.extend(inside.iter().filter(|token| token.kind == Kind::Text).copied());
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn names_of_types_are_found_in_helps_and_errors() {
        let found = |text: &str| {
            let tree = Tree { files: vec![file("a.rs", &format!("struct RowCount;\n{text}"))] };
            check(&tree).len()
        };
        assert_eq!(
            found("/// RowCount that are.\n#[derive(clap::Args)]\nstruct A {\n /// RowCount.\n a: u8 }"),
            2
        );
        assert_eq!(found("#[derive(Debug)]\nstruct A {\n /// RowCount.\n a: u8 }"), 0);
        assert_eq!(found("fn f() { bail!(\"a RowCount, {x}\") }\n#[error(\"no RowCount\")]"), 2);
        assert_eq!(found("fn f() { print!(\"a RowCount\") }"), 0);
    }
}
