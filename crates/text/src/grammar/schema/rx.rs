//! Regular languages of characters, for a `pattern`, a `format`, a length or a range of numbers.
//!
//! They have two spellings: plain for numbers, and that of JSON strings, in which some characters
//! are escaped. The spellings of a character are the same everywhere. An intersection of quoted
//! languages is therefore the quoted intersection.

use std::fmt::Write;

use llguidance::derivre::{RegexAst, RegexBuilder};

/// Sorted ranges of code points, both ends included, which neither touch nor overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    /// Makes a set of ranges in any order.
    pub(super) fn of(ranges: impl IntoIterator<Item = (u32, u32)>) -> CharSet {
        let mut sorted: Vec<(u32, u32)> = ranges.into_iter().filter(|(low, high)| low <= high).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (low, high) in sorted {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                Some(_) | None => merged.push((low, high)),
            }
        }
        CharSet(merged)
    }

    pub(super) fn one(c: char) -> CharSet {
        CharSet(vec![(c as u32, c as u32)])
    }

    /// The set of all characters.
    pub(super) fn all() -> CharSet {
        CharSet(vec![(0, 0xd7ff), (0xe000, 0x10ffff)])
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set of all other characters.
    pub(super) fn negated(&self) -> CharSet {
        let mut rest = Vec::new();
        for (low, high) in CharSet::all().ranges() {
            let mut from = low;
            for (start, end) in self.ranges().filter(|(start, end)| *end >= low && *start <= high) {
                if start > from {
                    rest.push((from, start - 1));
                }
                from = end + 1;
            }
            if from <= high {
                rest.push((from, high));
            }
        }
        CharSet(rest)
    }

    pub(super) fn without(&self, other: &CharSet) -> CharSet {
        // De Morgan: the complement of the union of this set's complement and `other`.
        CharSet::of(self.negated().ranges().chain(other.ranges())).negated()
    }

    pub(super) fn contains(&self, c: char) -> bool {
        self.ranges().any(|(low, high)| (low..=high).contains(&(c as u32)))
    }

    /// The set with both cases of its ASCII letters.
    pub(super) fn of_both_cases(&self) -> CharSet {
        let flipped = |from: char, to: char| {
            self.ranges().filter_map(move |(low, high)| {
                let (low, high) = (low.max(from as u32), high.min(from as u32 + 25));
                (low <= high).then(|| (low - from as u32 + to as u32, high - from as u32 + to as u32))
            })
        };
        CharSet::of(self.ranges().chain(flipped('a', 'A')).chain(flipped('A', 'a')))
    }

    /// Writes the set as a class of a regular expression.
    fn write(&self, out: &mut String) {
        out.push('[');
        for (low, high) in self.ranges() {
            let _ = write!(out, "\\x{{{low:x}}}");
            if high > low {
                let _ = write!(out, "-\\x{{{high:x}}}");
            }
        }
        out.push(']');
    }
}

/// A regular language.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rx {
    /// No text.
    Never,
    /// Only the empty text.
    Empty,
    Set(CharSet),
    Cat(Vec<Rx>),
    Alt(Vec<Rx>),
    Repeat(Box<Rx>, u32, Option<u32>),
    And(Vec<Rx>),
    Not(Box<Rx>),
}

impl Rx {
    /// All texts.
    pub(super) fn anything() -> Rx {
        Rx::Repeat(Box::new(Rx::Set(CharSet::all())), 0, None)
    }

    /// All texts of this length in characters.
    pub(super) fn of_length(min: u32, max: Option<u32>) -> Rx {
        Rx::Repeat(Box::new(Rx::Set(CharSet::all())), min, max)
    }

    pub(super) fn literal(text: &str) -> Rx {
        Rx::cat(text.chars().map(|c| Rx::Set(CharSet::one(c))))
    }

    pub(super) fn cat(parts: impl IntoIterator<Item = Rx>) -> Rx {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Rx::Never => return Rx::Never,
                Rx::Empty => {}
                Rx::Cat(parts) => flat.extend(parts),
                Rx::Set(_) | Rx::Alt(_) | Rx::Repeat(..) | Rx::And(_) | Rx::Not(_) => flat.push(part),
            }
        }
        match flat.len() {
            0 => Rx::Empty,
            1 => flat.remove(0),
            _ => Rx::Cat(flat),
        }
    }

    pub(super) fn alt(options: impl IntoIterator<Item = Rx>) -> Rx {
        let mut flat: Vec<Rx> = options.into_iter().filter(|option| *option != Rx::Never).collect();
        match flat.len() {
            0 => Rx::Never,
            1 => flat.remove(0),
            _ => Rx::Alt(flat),
        }
    }

    pub(super) fn and(parts: impl IntoIterator<Item = Rx>) -> Rx {
        let mut flat: Vec<Rx> = Vec::new();
        for part in parts {
            if part == Rx::Never {
                return Rx::Never;
            }
            if part != Rx::anything() && !flat.contains(&part) {
                flat.push(part);
            }
        }
        match flat.len() {
            0 => Rx::anything(),
            1 => flat.remove(0),
            _ => Rx::And(flat),
        }
    }

    pub(super) fn not(self) -> Rx {
        match self {
            Rx::Not(inner) => *inner,
            Rx::Never => Rx::anything(),
            Rx::Empty | Rx::Set(_) | Rx::Cat(_) | Rx::Alt(_) | Rx::Repeat(..) | Rx::And(_) => {
                Rx::Not(Box::new(self))
            }
        }
    }

    /// Returns true if the language has the empty text.
    pub(super) fn is_nullable(&self) -> bool {
        match self {
            Rx::Never | Rx::Set(_) => false,
            Rx::Empty => true,
            Rx::Cat(parts) | Rx::And(parts) => parts.iter().all(Rx::is_nullable),
            Rx::Alt(options) => options.iter().any(Rx::is_nullable),
            Rx::Repeat(inner, min, _) => *min == 0 || inner.is_nullable(),
            Rx::Not(inner) => !inner.is_nullable(),
        }
    }

    /// Returns true if there is no intersection or complement, so that one regular expression
    /// suffices.
    fn is_simple(&self) -> bool {
        match self {
            Rx::Never | Rx::Empty | Rx::Set(_) => true,
            Rx::Cat(parts) | Rx::Alt(parts) => parts.iter().all(Rx::is_simple),
            Rx::Repeat(inner, _, _) => inner.is_simple(),
            Rx::And(_) | Rx::Not(_) => false,
        }
    }

    /// Number of sets and operators.
    pub(super) fn size(&self) -> usize {
        match self {
            Rx::Never | Rx::Empty | Rx::Set(_) => 1,
            Rx::Cat(parts) | Rx::Alt(parts) | Rx::And(parts) => 1 + parts.iter().map(Rx::size).sum::<usize>(),
            Rx::Repeat(inner, _, _) | Rx::Not(inner) => 1 + inner.size(),
        }
    }

    fn ast(&self) -> RegexAst {
        if self.is_simple() {
            return match self {
                Rx::Never => RegexAst::NoMatch,
                Rx::Empty => RegexAst::EmptyString,
                Rx::Set(_) | Rx::Cat(_) | Rx::Alt(_) | Rx::Repeat(..) | Rx::And(_) | Rx::Not(_) => {
                    RegexAst::Regex(self.regex(CharSpelling::Plain))
                }
            };
        }
        let all = |parts: &[Rx]| parts.iter().map(Rx::ast).collect();
        match self {
            Rx::Never => RegexAst::NoMatch,
            Rx::Empty => RegexAst::EmptyString,
            Rx::Set(_) => RegexAst::Regex(self.regex(CharSpelling::Plain)),
            Rx::Cat(parts) => RegexAst::Concat(all(parts)),
            Rx::Alt(parts) => RegexAst::Or(all(parts)),
            Rx::And(parts) => RegexAst::And(all(parts)),
            Rx::Not(inner) => RegexAst::Not(Box::new(inner.ast())),
            Rx::Repeat(inner, min, max) => {
                RegexAst::Repeat(Box::new(inner.ast()), *min, max.unwrap_or(u32::MAX))
            }
        }
    }

    /// Returns true if the language is empty; `None` if deciding that takes too much work.
    pub(super) fn is_never(&self) -> Option<bool> {
        const FUEL: u64 = 20_000;
        if *self == Rx::Never {
            return Some(true);
        }
        let mut builder = RegexBuilder::new();
        let expression = builder.mk(&self.ast()).ok()?;
        if self.is_simple() || builder.exprset().is_positive(expression) {
            return Some(false);
        }
        Some(builder.to_regex_limited(expression, FUEL).ok()?.always_empty())
    }

    /// Returns true if the language has a text; `None` if deciding that takes too much work.
    pub(super) fn matches(&self, text: &str) -> Option<bool> {
        const MAX_LENGTH: usize = 4_000;
        let text: Vec<char> = text.chars().take(MAX_LENGTH + 1).collect();
        if text.len() > MAX_LENGTH {
            return None;
        }
        let mut starts = vec![false; text.len() + 1];
        starts[0] = true;
        Some(self.ends(&text, &starts)[text.len()])
    }

    /// Positions at which a match from any of `starts` may end.
    fn ends(&self, text: &[char], starts: &[bool]) -> Vec<bool> {
        let none = || vec![false; starts.len()];
        let each = |of: &dyn Fn(&[bool], usize) -> Vec<bool>| {
            let mut all = none();
            for at in (0..starts.len()).filter(|at| starts[*at]) {
                let mut one = none();
                one[at] = true;
                all.iter_mut().zip(of(&one, at)).for_each(|(all, end)| *all |= end);
            }
            all
        };
        match self {
            Rx::Never => none(),
            Rx::Empty => starts.to_vec(),
            Rx::Set(set) => {
                let mut ends = none();
                for (at, c) in text.iter().enumerate().filter(|(at, _)| starts[*at]) {
                    ends[at + 1] = set.contains(*c);
                }
                ends
            }
            Rx::Cat(parts) => parts.iter().fold(starts.to_vec(), |at, part| part.ends(text, &at)),
            Rx::Alt(options) => {
                let mut all = none();
                for option in options {
                    all.iter_mut().zip(option.ends(text, starts)).for_each(|(all, end)| *all |= end);
                }
                all
            }
            Rx::And(parts) => each(&|one, _| {
                let mut all = vec![true; one.len()];
                for part in parts {
                    all.iter_mut().zip(part.ends(text, one)).for_each(|(all, end)| *all &= end);
                }
                all
            }),
            Rx::Not(inner) => each(&|one, at| {
                let ends = inner.ends(text, one).into_iter().enumerate();
                ends.map(|(end, is_end)| end >= at && !is_end).collect()
            }),
            Rx::Repeat(inner, min, max) => {
                let mut at = starts.to_vec();
                for _ in 0..*min {
                    let next = inner.ends(text, &at);
                    if next == at {
                        break;
                    }
                    at = next;
                }
                let (mut all, mut new) = (at.clone(), at);
                for _ in 0..max.map_or(u32::MAX, |max| max.saturating_sub(*min)) {
                    let next = inner.ends(text, &new);
                    new = next.iter().zip(&all).map(|(next, old)| *next && !old).collect();
                    if !new.contains(&true) {
                        break;
                    }
                    all.iter_mut().zip(&new).for_each(|(all, end)| *all |= end);
                }
                all
            }
        }
    }

    /// The language as one regular expression, if [`Self::is_simple`].
    fn regex(&self, spelling: CharSpelling) -> String {
        let mut out = String::new();
        self.write_regex(spelling, &mut out);
        out
    }

    fn write_regex(&self, spelling: CharSpelling, out: &mut String) {
        match self {
            Rx::Never => out.push_str("[^\\x00-\\x{10ffff}]"),
            Rx::Empty => out.push_str("(?:)"),
            Rx::Set(set) => spelling.write(set, out),
            Rx::Cat(parts) | Rx::And(parts) => parts.iter().for_each(|part| part.write_regex(spelling, out)),
            Rx::Alt(options) => {
                out.push_str("(?:");
                for (n, option) in options.iter().enumerate() {
                    if n > 0 {
                        out.push('|');
                    }
                    option.write_regex(spelling, out);
                }
                out.push(')');
            }
            Rx::Repeat(inner, min, max) => {
                out.push_str("(?:");
                inner.write_regex(spelling, out);
                match (min, max) {
                    (0, None) => out.push_str(")*"),
                    (min, None) => {
                        let _ = write!(out, "){{{min},}}");
                    }
                    (min, Some(max)) => {
                        let _ = write!(out, "){{{min},{max}}}");
                    }
                }
            }
            Rx::Not(inner) => inner.write_regex(spelling, out),
        }
    }

    /// The language as the expression of a Lark terminal.
    pub(super) fn terminal(&self, spelling: CharSpelling) -> String {
        if self.is_simple() {
            return match *self == Rx::Empty {
                true => "\"\"".into(),
                false => format!("/{}/", self.regex(spelling)),
            };
        }
        let joined = |parts: &[Rx], separator: &str| {
            let parts: Vec<String> = parts.iter().map(|part| part.terminal(spelling)).collect();
            format!("({})", parts.join(separator))
        };
        match self {
            Rx::Never | Rx::Empty | Rx::Set(_) => format!("/{}/", self.regex(spelling)),
            Rx::Cat(parts) => joined(parts, " "),
            Rx::Alt(parts) => joined(parts, " | "),
            Rx::And(parts) => joined(parts, " & "),
            Rx::Not(inner) => format!("~({})", inner.terminal(spelling)),
            Rx::Repeat(inner, min, max) => {
                let inner = inner.terminal(spelling);
                match (min, max) {
                    (0, None) => format!("({inner})*"),
                    (_, Some(0)) => "\"\"".into(),
                    (min, None) => format!("({inner}){{{min},}}"),
                    (min, Some(max)) => format!("({inner}){{{min},{max}}}"),
                }
            }
        }
    }

    /// The language in quotes, as a Lark terminal.
    pub(super) fn quoted(&self) -> String {
        match self.terminal(CharSpelling::Json) {
            simple if self.is_simple() && *self != Rx::Empty => {
                format!("/\"{}\"/", &simple[1..simple.len() - 1])
            }
            composed => format!("\"\\\"\" ({composed}) \"\\\"\""),
        }
    }
}

/// Spelling of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CharSpelling {
    /// The character itself.
    Plain,
    /// The spelling within a JSON string.
    Json,
}

impl CharSpelling {
    fn write(self, set: &CharSet, out: &mut String) {
        match self {
            CharSpelling::Plain => set.write(out),
            CharSpelling::Json => {
                let escaped = CharSet::of([(0, 0x1f), (0x22, 0x22), (0x5c, 0x5c), (0x7f, 0x7f)]);
                let plain = set.without(&escaped);
                out.push_str("(?:");
                let mut options = Vec::new();
                if !plain.is_empty() {
                    let mut class = String::new();
                    plain.write(&mut class);
                    options.push(class);
                }
                for c in (0..0x20).chain([0x22, 0x5c, 0x7f]).filter_map(char::from_u32) {
                    if set.contains(c) {
                        options.extend(short_escape(c).map(|short| format!("\\\\\\x{:02x}", short as u32)));
                        options.push(long_escape(c));
                    }
                }
                out.push_str(&options.join("|"));
                out.push(')');
            }
        }
    }
}

/// The letter after the backslash.
fn short_escape(c: char) -> Option<char> {
    Some(match c {
        '"' | '\\' => c,
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        _ => return None,
    })
}

/// A regular expression of `\u00..`, with digits in either case.
fn long_escape(c: char) -> String {
    let digit = |digit: char| match digit.is_ascii_digit() {
        true => digit.to_string(),
        false => format!("[{digit}{}]", digit.to_ascii_uppercase()),
    };
    let digits: String = format!("{:02x}", c as u32).chars().map(digit).collect();
    format!("\\\\u00{digits}")
}

/// Lark terminals of any JSON string of this length; characters that need no escape may be escaped
/// too.
pub(super) fn free_string(min: u32, max: Option<u32>) -> String {
    let character = "(?:[^\"\\\\\\x00-\\x1f\\x7f]|\\\\[\"\\\\\\/bfnrt]|\\\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7]\
                     [0-9a-fA-F]{2}|[dD][89aAbB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}))";
    match (min, max) {
        (0, None) => format!("/\"{character}*\"/"),
        (min, None) => format!("/\"{character}{{{min},}}\"/"),
        (min, Some(max)) => format!("/\"{character}{{{min},{max}}}\"/"),
    }
}
