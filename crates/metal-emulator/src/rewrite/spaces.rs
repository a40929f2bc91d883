//! Definitions that differ only by address spaces.
//!
//! In run mode there is a single address space, so the first of such functions, members and class
//! specialisations stands for all of them. Those with different bodies are left to clang, as
//! errors.

use super::token::Tokens;
use std::collections::HashMap;

/// The address spaces.
const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// First tokens of the repeated definitions, and the tokens after them.
pub(super) fn repeated(t: &Tokens<'_>) -> HashMap<usize, usize> {
    let mut walk = Walk { t, first: HashMap::new(), repeated: HashMap::new() };
    walk.scope(0, t.list.len());
    walk.repeated
}

struct Walk<'t, 'a> {
    t: &'t Tokens<'a>,
    /// The text of the first definition, by its scope and its text without address spaces.
    first: HashMap<(usize, String), String>,
    repeated: HashMap<usize, usize>,
}

impl Walk<'_, '_> {
    /// Goes through the definitions in tokens `from..to` of a namespace or class.
    fn scope(&mut self, from: usize, to: usize) {
        let (mut start, mut i) = (from, from);
        while i < to {
            match self.t.word(i) {
                "(" | "[" => i = self.t.closing(i).unwrap_or(to),
                ":" if matches!(self.t.word(i.wrapping_sub(1)), "public" | "private" | "protected") => {
                    start = i + 1;
                }
                ";" => {
                    self.define(from, start, i + 1);
                    start = i + 1;
                }
                "{" => {
                    let end = self.t.closing(i).unwrap_or(to).min(to);
                    let words = || (start..i).map(|k| self.t.word(k));
                    let is_class = self.t.word(i.wrapping_sub(1)) != ")"
                        && words().any(|word| matches!(word, "struct" | "class" | "union"))
                        && !words().any(|word| word == "=");
                    if words().any(|word| word == "namespace") {
                        self.scope(i + 1, end);
                        start = end + 1;
                    } else if is_class {
                        // The semicolon ends it.
                        if !self.is_repeated(from, start, end + 1) {
                            self.scope(i + 1, end);
                        }
                    } else if self.t.word(end + 1) != ";" || self.t.word(i.wrapping_sub(1)) == ")" {
                        self.define(from, start, end + 1);
                        start = end + 1;
                    }
                    i = end;
                }
                _ => {}
            }
            i += 1;
        }
    }

    /// Notes a definition in a scope, and whether it repeats one.
    fn define(&mut self, scope: usize, start: usize, end: usize) {
        if self.is_repeated(scope, start, end) {
            self.repeated.insert(start, end);
        }
    }

    fn is_repeated(&mut self, scope: usize, start: usize, end: usize) -> bool {
        let words = || (start..end).map(|i| self.t.word(i));
        if !words().any(|word| SPACES.contains(&word)) {
            return false;
        }
        let join = |text: String, word: &str| text + word + " ";
        let whole = words().fold(String::new(), join);
        let bare = words().filter(|word| !SPACES.contains(word)).fold(String::new(), join);
        let first = self.first.entry((scope, bare)).or_insert_with(|| whole.clone());
        *first != whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        let t = Tokens::scan(source).unwrap();
        let mut found: Vec<_> = repeated(&t).into_iter().collect();
        found.sort_unstable();
        found.into_iter().map(|(from, to)| t.phrase(from, to)).collect()
    }

    #[test]
    fn functions_members_and_classes_are_repeated() {
        let source = "void f(device int * x) { *x = 1; } void f(thread int * x) { *x = 1; }\n\
                      struct A { A() thread : a(0) {} A() device : a(0) {} int a; };\n\
                      template<class T> struct P<device T *> { typedef T type; };\n\
                      template<class T> struct P<thread T *> { typedef T type; };\n";
        assert_eq!(
            texts(source),
            [
                "void f(thread int * x) { *x = 1; }",
                "A() device : a(0) {}",
                "template<class T> struct P<thread T *> { typedef T type; };"
            ]
        );
    }

    /// Other bodies, other scopes, and the very same text.
    #[test]
    fn what_differs_otherwise_is_kept() {
        let source = "void f(device int * x) { *x = 1; } void f(thread int * x) { *x = 2; }\n\
                      void g(thread int *); void g(thread int *);\n\
                      struct A { void h() thread; }; struct B { void h() device; };\n";
        assert_eq!(texts(source), [""; 0]);
    }
}
