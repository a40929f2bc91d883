//! Names that are types, and where.

use super::token::Tokens;
use std::collections::HashMap;
use std::ops::Range;

/// Types that a source declares: classes everywhere, type parameters in their templates. Elsewhere,
/// the name of a parameter may be that of a variable.
pub(super) struct Types<'a> {
    places: HashMap<&'a str, Vec<Range<usize>>>,
}

impl<'a> Types<'a> {
    pub fn of(t: &Tokens<'a>) -> Self {
        let mut places: HashMap<&str, Vec<Range<usize>>> = HashMap::new();
        let mut i = 0;
        while i < t.list.len() {
            match t.word(i) {
                "template" if t.word(i + 1) == "<" => {
                    let close = t.closing(i + 1).unwrap_or(t.list.len());
                    let end = end_of_declaration(t, close);
                    for k in i + 2..close {
                        // A nested type of a template's type is not a name by itself.
                        if matches!(t.word(k), "typename" | "class") && t.word(k + 2) != "::" {
                            places.entry(t.word(k + 1)).or_default().push(k..end);
                        }
                    }
                    i = close;
                }
                "struct" | "class" => places.entry(t.word(i + 1)).or_default().push(0..t.list.len()),
                _ => {}
            }
            i += 1;
        }
        Types { places }
    }

    /// Returns true if `word` is a type at token `i`.
    pub fn is_type(&self, word: &str, i: usize) -> bool {
        self.places.get(word).is_some_and(|places| places.iter().any(|place| place.contains(&i)))
    }
}

/// The end of the declaration whose template parameters end at `from`: its semicolon, or the end of
/// its body.
fn end_of_declaration(t: &Tokens<'_>, from: usize) -> usize {
    let mut i = from + 1;
    while i < t.list.len() {
        match t.word(i) {
            "(" | "[" => i = t.closing(i).unwrap_or(t.list.len()),
            "{" => return t.closing(i).unwrap_or(t.list.len()),
            ";" => return i,
            _ => {}
        }
        i += 1;
    }
    i
}
