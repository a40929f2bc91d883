//! A `match` on our own enum has no arm for all other variants, so that the compiler names every
//! place that a new variant concerns.
//!
//! Enums whose variants depend on the target are left out: no list of them compiles everywhere. So
//! are enums that another crate declares `#[non_exhaustive]`, for which the compiler demands the
//! arm, and tests: what they do not expect is an error in each of them.

use super::Finding;
use super::lexer::{Kind, Token, after_closing};
use super::tree::{File, Language, Tree};
use std::collections::BTreeSet;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let (enums, open, crates) = (our_enums(tree), open_enums(tree), our_crates(tree));
    let files = tree.in_language(Language::Rust).filter(|file| !file.is_test());
    files.flat_map(|file| of_file(file, &crates, &enums, &open)).collect()
}

/// The names of enums whose variants are the same on every target, as far as no other type of the
/// standard library has the name.
fn our_enums(tree: &Tree) -> BTreeSet<&str> {
    let (mut ours, mut by_target) = (BTreeSet::new(), BTreeSet::new());
    for file in tree.in_language(Language::Rust) {
        let code = file.code();
        for at in 0..code.len().saturating_sub(2) {
            if !code[at].is_word("enum") || code[at + 1].kind != Kind::Word {
                continue;
            }
            let body = &code[at..after_closing(&code, open_brace(&code, at))];
            let has_cfg = body.windows(2).any(|pair| pair[0].is("[") && pair[1].is_word("cfg"));
            if has_cfg {
                by_target.insert(code[at + 1].text)
            } else {
                ours.insert(code[at + 1].text)
            };
        }
    }
    ours.retain(|name| !by_target.contains(name) && !["Error", "ErrorKind", "Result"].contains(name));
    ours
}

/// Our enums that are `#[non_exhaustive]`: crates, by the names that import them, and enums.
fn open_enums(tree: &Tree) -> BTreeSet<(String, &str)> {
    let mut open = BTreeSet::new();
    for file in tree.in_language(Language::Rust) {
        let Some(folder) = file.of_crate().and_then(|folder| folder.file_name()?.to_str()) else { continue };
        let code = file.code();
        for at in 0..code.len().saturating_sub(1) {
            let mut before = code[..at].iter().rev().take_while(|t| !t.is(";") && !t.is("{") && !t.is("}"));
            if code[at].is_word("enum") && before.any(|token| token.is_word("non_exhaustive")) {
                open.insert((folder.replace('-', "_"), code[at + 1].text));
            }
        }
    }
    open
}

/// The names by which our code imports our crates.
fn our_crates(tree: &Tree) -> BTreeSet<String> {
    let of_tree = tree.files.iter().filter_map(|file| file.of_crate()?.file_name()?.to_str());
    let within = ["crate", "self", "super"].map(str::to_owned);
    of_tree.map(|name| name.replace('-', "_")).chain(within).collect()
}

/// The names that a file imports from crates that are not ours, and enums that ours leave open.
fn imported_from_others<'a>(
    code: &[Token<'a>],
    crates: &BTreeSet<String>,
    open: &BTreeSet<(String, &str)>,
) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for at in 0..code.len() {
        let Some(root) = code.get(at + 1).filter(|_| code[at].is_word("use")) else { continue };
        let path = code[at + 1..].iter().take_while(|token| !token.is(";"));
        let words = path.filter(|token| token.kind == Kind::Word).map(|token| token.text);
        let is_ours = crates.contains(root.text);
        names.extend(words.filter(|name| !is_ours || open.contains(&(root.text.to_owned(), *name))));
    }
    names
}

/// The first brace from `at` on.
fn open_brace(code: &[Token<'_>], at: usize) -> usize {
    (at..code.len()).find(|&at| code[at].is("{")).unwrap_or(code.len())
}

fn of_file(
    file: &File,
    crates: &BTreeSet<String>,
    enums: &BTreeSet<&str>,
    open: &BTreeSet<(String, &str)>,
) -> Vec<Finding> {
    let code = file.code();
    let tests = code.windows(2).position(|pair| pair[0].is_word("mod") && pair[1].is_word("tests"));
    let foreign = imported_from_others(&code, crates, open);
    let enums: BTreeSet<&str> = enums.difference(&foreign).copied().collect();
    let mut findings = Vec::new();
    for at in 0..tests.unwrap_or(code.len()) {
        if !code[at].is_word("match") || code.get(at + 1).is_none_or(|next| next.is("!") || next.is(":")) {
            continue;
        }
        let mut open = at + 1;
        while open < code.len() && !code[open].is("{") {
            let is_bracket = code[open].is("(") || code[open].is("[");
            open = if is_bracket { after_closing(&code, open) } else { open + 1 };
        }
        let patterns = patterns(&code, open);
        let ours = patterns.iter().find_map(|pattern| enum_of(pattern, &enums));
        let catch_all = patterns.iter().find(|pattern| is_catch_all(pattern));
        if let (Some(name), Some(pattern)) = (ours, catch_all) {
            findings.push(
                file.finding(pattern[0].line, format!("`{}` stands for variants of {name}", pattern[0].text)),
            );
        }
    }
    findings
}

/// The patterns of the arms between the brace at `open` and the one that closes it.
fn patterns<'c, 'a>(code: &'c [Token<'a>], open: usize) -> Vec<&'c [Token<'a>]> {
    let (mut patterns, mut at, end) = (Vec::new(), open + 1, after_closing(code, open).saturating_sub(1));
    while at < end {
        let first = at;
        while at < end && !(code[at].is("=") && code.get(at + 1).is_some_and(|next| next.is(">"))) {
            let is_bracket = ["(", "[", "{"].iter().any(|bracket| code[at].is(bracket));
            at = if is_bracket { after_closing(code, at) } else { at + 1 };
        }
        patterns.push(&code[first..at.min(end)]);
        at += 2;
        if code.get(at).is_some_and(|token| token.is("{")) {
            at = after_closing(code, at);
            // A method or an operator after a block belongs to the arm.
            if code.get(at).is_none_or(|token| !token.is(".") && !token.is("?")) {
                at += usize::from(code.get(at).is_some_and(|token| token.is(",")));
                continue;
            }
        }
        while at < end && !code[at].is(",") {
            let is_bracket = ["(", "[", "{"].iter().any(|bracket| code[at].is(bracket));
            at = if is_bracket { after_closing(code, at) } else { at + 1 };
        }
        at += 1;
    }
    patterns.retain(|pattern| !pattern.is_empty());
    patterns
}

/// Our enum whose variant the pattern begins with.
fn enum_of<'a>(pattern: &[Token<'a>], enums: &BTreeSet<&str>) -> Option<&'a str> {
    let start = pattern.iter().position(|token| !token.is("&") && !token.is("|"))?;
    let path: Vec<&Token<'a>> =
        pattern[start..].iter().take_while(|token| token.kind == Kind::Word || token.is(":")).collect();
    let words: Vec<&'a str> = path.iter().filter(|token| token.kind == Kind::Word).map(|t| t.text).collect();
    let [.., name, variant] = words[..] else { return None };
    let is_variant =
        variant.starts_with(|c: char| c.is_uppercase()) && variant.chars().any(char::is_lowercase);
    (is_variant && enums.contains(name)).then_some(name)
}

/// True if a pattern matches everything: `_`, or a name of a variable.
fn is_catch_all(pattern: &[Token<'_>]) -> bool {
    let [only] = pattern else { return false };
    let is_literal = only.text == "true" || only.text == "false";
    only.kind == Kind::Word && only.text.starts_with(|c: char| c.is_lowercase() || c == '_') && !is_literal
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn catch_all_arms_are_found_on_our_enums_only() {
        let found = |arms: &str| {
            let text = format!("enum Ours {{ A, B, Cc }} fn f() {{ match g(|| {{}}).x {{ {arms} }} }}");
            let tree = Tree { files: vec![file("a.rs", &text)] };
            check(&tree).len()
        };
        assert_eq!(found("Ours::Aa => 1, _ => 2"), 1);
        assert_eq!(found("Ours::Aa(x) | Ours::Bb => { 1 } other => h(other),"), 1);
        assert_eq!(found("&Ours::Aa if x => match y { Some(1) => 2, _ => 3 }, Ours::Bb => 2"), 0);
        assert_eq!(found("Theirs::Aa => 1, _ => 2"), 0);
        assert_eq!(found("Some(Ours::Aa) => 1, _ => 2"), 0);
        assert_eq!(found("Ours::Aa => 1, _ if x => 2, Ours::Bb => 3"), 0);
        assert_eq!(found("Ours::Aa => { use other::Ours; 1 }, _ => 2"), 0);
    }

    #[test]
    fn open_enums_need_the_arm_in_other_crates() {
        let found = |path: &str, import: &str| {
            let ours = "#[non_exhaustive]\n/// Open.\npub enum Open { A } pub enum Ours { A }";
            let text = format!("use {import}; fn f() {{ match x {{ Open::Aa => 1, _ => 2 }} }}");
            let user = format!("{text} fn g() {{ match x {{ Ours::Aa => 1, _ => 2 }} }}");
            let files = vec![file("crates/one/src/a.rs", ours), file(path, &user)];
            check(&Tree { files }).len()
        };
        assert_eq!(found("crates/two/src/b.rs", "one::{Open, Ours}"), 1);
        assert_eq!(found("crates/one/src/b.rs", "crate::{Open, Ours}"), 2);
    }
}
