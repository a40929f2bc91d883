//! Names that each function of a source uses, and the function constants that a kernel needs
//! through them.

use super::token::{Kind, Tokens};
use std::collections::{HashMap, HashSet};

/// Words in the definition of each name at namespace scope.
pub(super) struct Uses<'a> {
    words: HashMap<&'a str, HashSet<&'a str>>,
}

impl<'a> Uses<'a> {
    /// Splits a source into definitions at namespace scope. Names are matched by text: overloads
    /// and members of the same name count as one, so the result may contain more than a kernel
    /// needs, never less.
    pub fn of(t: &Tokens<'a>) -> Self {
        let mut uses = Uses { words: HashMap::new() };
        let mut start = 0;
        let mut i = 0;
        while i < t.list.len() {
            match t.word(i) {
                "(" | "[" => i = t.closing(i).unwrap_or(i),
                "{" if (start..i).any(|k| t.word(k) == "namespace") => start = i + 1,
                "{" => {
                    let end = t.closing(i).unwrap_or(t.list.len() - 1);
                    // A braced initialiser or a class ends at its semicolon; the body of a function
                    // ends here.
                    if t.word(end + 1) != ";" || t.word(i.wrapping_sub(1)) == ")" {
                        uses.define(t, start, end + 1);
                        start = end + 1;
                    }
                    i = end;
                }
                ";" => {
                    uses.define(t, start, i);
                    start = i + 1;
                }
                "}" => start = i + 1,
                _ => {}
            }
            i += 1;
        }
        uses
    }

    fn define(&mut self, t: &Tokens<'a>, from: usize, to: usize) {
        let mut name = None;
        let mut i = from;
        while i < to {
            match t.word(i) {
                "template" if t.word(i + 1) == "<" => i = t.closing(i + 1).unwrap_or(to),
                "alignas" | "__attribute__" | "decltype" if t.word(i + 1) == "(" => {
                    i = t.closing(i + 1).unwrap_or(to)
                }
                "struct" | "class" | "enum" | "union" => {
                    name = Some(i + 1);
                    break;
                }
                // An attribute, or array dimensions.
                "[" => {
                    if t.word(i + 1) != "[" && i > from {
                        name = name.or(Some(i - 1));
                    }
                    i = t.closing(i).unwrap_or(to);
                }
                "(" | "=" | "{" => {
                    name = name.or(i.checked_sub(1));
                    break;
                }
                _ => {}
            }
            i += 1;
        }
        let Some(name) = name else { return };
        let set = self.words.entry(t.word(name)).or_default();
        set.extend((from..to).filter(|&i| t.list[i].kind == Kind::Word).map(|i| t.word(i)));
    }

    /// All words reachable from `names`, including `names`.
    pub fn reached<'b>(&'b self, names: impl Iterator<Item = &'b str>) -> HashSet<&'b str> {
        let mut todo: Vec<&str> = names.collect();
        let mut seen: HashSet<&str> = todo.iter().copied().collect();
        while let Some(next) = todo.pop() {
            for word in self.words.get(next).into_iter().flatten() {
                if seen.insert(word) {
                    todo.push(word);
                }
            }
        }
        seen
    }
}
