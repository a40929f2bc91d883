//! Regular expressions of ECMAScript, from the keyword `pattern`, as regular languages of whole
//! texts.
//!
//! A lookahead becomes an intersection with the rest of the text, and an anchor a condition on the
//! text before or after it, so neither remains. References to groups, lookbehind and word
//! boundaries are not supported.

use super::rx::{CharSet, Rx};

/// Maximum number of nested groups.
const MAX_DEPTH: usize = 100;
/// Maximum number of parts of the language, since a lookahead copies the part after it.
const MAX_SIZE: usize = 20_000;
/// Maximum number of repetitions of a part.
const MAX_REPEAT: u32 = 100_000;

/// Reason why an expression has no language.
#[derive(Debug, PartialEq)]
pub(super) enum PatternError {
    /// The expression is valid and has unsupported features.
    Unsupported(String),
    /// The text is not an expression.
    Malformed(String),
}

impl From<&str> for PatternError {
    fn from(what: &str) -> PatternError {
        PatternError::Malformed(what.to_owned())
    }
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, PatternError> {
    Err(PatternError::Unsupported(what.into()))
}

fn malformed<T>(what: impl Into<String>) -> Result<T, PatternError> {
    Err(PatternError::Malformed(what.into()))
}

/// An expression as written.
#[derive(Clone, Debug)]
enum PatternNode {
    Empty,
    Set(CharSet),
    Cat(Vec<PatternNode>),
    Alt(Vec<PatternNode>),
    Repeat(Box<PatternNode>, u32, Option<u32>),
    Start,
    End,
    Ahead(Box<PatternNode>, bool),
}

/// Facts about the text before a position.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    Something,
    Unknown,
}

/// The texts in which the expression matches anywhere.
///
/// # Errors
/// The expression is invalid or has unsupported features.
pub(super) fn search(pattern: &str) -> Result<Rx, PatternError> {
    let mut parser = PatternParser { chars: pattern.chars().collect(), at: 0, depth: 0, both_cases: false };
    let node = parser.alternatives()?;
    if parser.at < parser.chars.len() {
        return malformed(format!("an unexpected {:?} at character {}", parser.chars[parser.at], parser.at));
    }
    let rest = Rx::anything();
    let rx = match node.has_start() {
        false => Rx::cat([Rx::anything(), node.followed_by(rest, Before::Something)?]),
        true => {
            let some = Rx::of_length(1, None);
            let later = node.followed_by(rest.clone(), Before::Something)?;
            Rx::alt([node.followed_by(rest, Before::Nothing)?, Rx::cat([some, later])])
        }
    };
    match rx.size() {
        size if size > MAX_SIZE => unsupported(format!("it has {size} parts, expected at most {MAX_SIZE}")),
        _ => Ok(rx),
    }
}

/// The texts that the whole expression matches; for expressions of this crate.
pub(super) fn whole(pattern: &str) -> Rx {
    search(&format!("^(?:{pattern})$")).unwrap_or(Rx::Never)
}

impl PatternNode {
    fn has_start(&self) -> bool {
        match self {
            PatternNode::Start => true,
            PatternNode::Empty | PatternNode::Set(_) | PatternNode::End => false,
            PatternNode::Cat(parts) | PatternNode::Alt(parts) => parts.iter().any(PatternNode::has_start),
            PatternNode::Repeat(inner, _, _) | PatternNode::Ahead(inner, _) => inner.has_start(),
        }
    }

    /// The language, if it has no anchors and no lookahead.
    fn plain(&self) -> Option<Rx> {
        Some(match self {
            PatternNode::Empty => Rx::Empty,
            PatternNode::Set(set) if set.is_empty() => Rx::Never,
            PatternNode::Set(set) => Rx::Set(set.clone()),
            PatternNode::Cat(parts) => {
                Rx::cat(parts.iter().map(PatternNode::plain).collect::<Option<Vec<_>>>()?)
            }
            PatternNode::Alt(parts) => {
                Rx::alt(parts.iter().map(PatternNode::plain).collect::<Option<Vec<_>>>()?)
            }
            PatternNode::Repeat(_, _, Some(0)) => Rx::Empty,
            PatternNode::Repeat(inner, min, max) => Rx::Repeat(Box::new(inner.plain()?), *min, *max),
            PatternNode::Start | PatternNode::End | PatternNode::Ahead(..) => return None,
        })
    }

    /// Facts about the text after this node.
    fn then(&self, before: Before) -> Before {
        match self {
            PatternNode::Start | PatternNode::End | PatternNode::Ahead(..) | PatternNode::Empty => before,
            PatternNode::Set(_) => Before::Something,
            PatternNode::Cat(parts) => parts.iter().fold(before, |before, part| part.then(before)),
            PatternNode::Alt(parts) => {
                let mut all = parts.iter().map(|part| part.then(before));
                let first = all.next().unwrap_or(before);
                if all.all(|other| other == first) { first } else { Before::Unknown }
            }
            PatternNode::Repeat(inner, min, _) => match inner.then(before) {
                after if after == before || *min > 0 => after,
                Before::Nothing | Before::Something | Before::Unknown => Before::Unknown,
            },
        }
    }

    /// The texts of this node followed by those of `rest`.
    fn followed_by(&self, rest: Rx, before: Before) -> Result<Rx, PatternError> {
        if let Some(plain) = self.plain() {
            return Ok(Rx::cat([plain, rest]));
        }
        Ok(match self {
            PatternNode::Empty | PatternNode::Set(_) => rest,
            PatternNode::Cat(parts) => {
                let mut known = vec![before];
                for part in parts {
                    known.push(part.then(known[known.len() - 1]));
                }
                let mut rest = rest;
                for (part, before) in parts.iter().zip(known).rev() {
                    rest = part.followed_by(rest, before)?;
                    if rest.size() > MAX_SIZE {
                        return unsupported(format!("it has over {MAX_SIZE} parts"));
                    }
                }
                rest
            }
            PatternNode::Alt(options) => {
                let all = options.iter().map(|option| option.followed_by(rest.clone(), before));
                Rx::alt(all.collect::<Result<Vec<_>, _>>()?)
            }
            PatternNode::Repeat(inner, 0, Some(1)) => {
                Rx::alt([inner.followed_by(rest.clone(), before)?, rest])
            }
            PatternNode::Repeat(inner, 1, Some(1)) => inner.followed_by(rest, before)?,
            PatternNode::Repeat(..) => return unsupported("an anchor or a lookahead that is repeated"),
            PatternNode::Start => match before {
                Before::Nothing => rest,
                Before::Something => Rx::Never,
                Before::Unknown => return unsupported("a ^ after a part that may be empty"),
            },
            PatternNode::End if rest.is_nullable() => Rx::Empty,
            PatternNode::End => Rx::Never,
            PatternNode::Ahead(inner, is_negative) => {
                let ahead = inner.followed_by(Rx::anything(), before)?;
                Rx::and([rest, if *is_negative { ahead.not() } else { ahead }])
            }
        })
    }
}

struct PatternParser {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    both_cases: bool,
}

impl PatternParser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_there = text.chars().enumerate().all(|(n, c)| self.chars.get(self.at + n) == Some(&c));
        if is_there {
            self.at += text.chars().count();
        }
        is_there
    }

    fn alternatives(&mut self) -> Result<PatternNode, PatternError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return unsupported(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let mut options = vec![self.sequence()?];
        while self.takes("|") {
            options.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if options.len() == 1 { options.remove(0) } else { PatternNode::Alt(options) })
    }

    fn sequence(&mut self) -> Result<PatternNode, PatternError> {
        let mut parts = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let part = self.atom()?;
            parts.push(self.quantified(part)?);
        }
        Ok(match parts.len() {
            0 => PatternNode::Empty,
            1 => parts.remove(0),
            _ => PatternNode::Cat(parts),
        })
    }

    fn quantified(&mut self, part: PatternNode) -> Result<PatternNode, PatternError> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.counts() {
                Some((min, max, end)) => {
                    self.at = end - 1;
                    (min, max)
                }
                // A brace that begins no count is a literal.
                None => return Ok(part),
            },
            Some(_) | None => return Ok(part),
        };
        self.at += 1;
        if !self.takes("?") && self.peek() == Some('+') {
            return unsupported("a possessive quantifier");
        }
        if let Some(max) = max.filter(|max| *max < min) {
            return malformed(format!("a repetition of {min} to {max}"));
        }
        if min > MAX_REPEAT || max.is_some_and(|max| max > MAX_REPEAT) {
            return unsupported(format!("a repetition of over {MAX_REPEAT}"));
        }
        Ok(PatternNode::Repeat(Box::new(part), min, max))
    }

    /// `{a}`, `{a,}` or `{a,b}`, and its length.
    fn counts(&self) -> Option<(u32, Option<u32>, usize)> {
        let length = self.chars[self.at..].iter().position(|c| *c == '}')?;
        let body: String = self.chars[self.at + 1..self.at + length].iter().collect();
        let end = self.at + length + 1;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| text.parse().unwrap_or(u32::MAX))
        };
        match body.split_once(',') {
            None => number(&body).map(|n| (n, Some(n), end)),
            Some((min, "")) => number(min).map(|n| (n, None, end)),
            Some((min, max)) => Some((number(min)?, Some(number(max)?), end)),
        }
    }

    /// Returns true if the brace just read begins a count.
    fn is_count(&mut self) -> bool {
        self.at -= 1;
        let is_count = self.counts().is_some();
        self.at += 1;
        is_count
    }

    fn set(&self, set: CharSet) -> PatternNode {
        PatternNode::Set(if self.both_cases { set.of_both_cases() } else { set })
    }

    fn atom(&mut self) -> Result<PatternNode, PatternError> {
        let Some(c) = self.peek() else { return Ok(PatternNode::Empty) };
        self.at += 1;
        Ok(match c {
            '^' => PatternNode::Start,
            '$' => PatternNode::End,
            '.' => self.set(CharSet::of([(0x0a, 0x0a), (0x0d, 0x0d), (0x2028, 0x2029)]).negated()),
            '(' => return self.group(),
            '[' => return self.class(),
            '*' | '+' | '?' => return malformed(format!("a {c:?} with nothing before it")),
            '{' if self.is_count() => return malformed("a count with nothing before it"),
            '\\' => match self.peek() {
                Some('b' | 'B') => return unsupported("a word boundary"),
                Some('A') => {
                    self.at += 1;
                    PatternNode::Start
                }
                Some('Z' | 'z') => {
                    self.at += 1;
                    PatternNode::End
                }
                Some(c @ ('1'..='9' | 'k')) => return unsupported(format!("\\{c}, a reference to a group")),
                Some(_) | None => {
                    let set = self.escape()?;
                    self.set(set)
                }
            },
            c => self.set(CharSet::one(c)),
        })
    }

    fn group(&mut self) -> Result<PatternNode, PatternError> {
        let outer = self.both_cases;
        let mut ahead = None;
        if self.takes("?") {
            if self.takes("=") {
                ahead = Some(false);
            } else if self.takes("!") {
                ahead = Some(true);
            } else if self.takes("<=") || self.takes("<!") {
                return unsupported("lookbehind");
            } else if self.takes("P<") || self.takes("<") {
                let Some(length) = self.chars[self.at..].iter().position(|c| *c == '>') else {
                    return malformed("a name of a group without its end");
                };
                self.at += length + 1;
            } else if !self.takes(":") {
                let mut is_on = true;
                while let Some(c) = self.peek().filter(|c| !matches!(c, ':' | ')')) {
                    match c {
                        '-' => is_on = false,
                        'i' => self.both_cases = is_on,
                        'u' => {}
                        c => return unsupported(format!("the flag {c:?}")),
                    }
                    self.at += 1;
                }
                // Flags for the rest of this group.
                if self.takes(")") {
                    return Ok(PatternNode::Empty);
                }
                self.takes(":");
            }
        }
        let inner = self.alternatives()?;
        if !self.takes(")") {
            return malformed("a group without its end");
        }
        self.both_cases = outer;
        Ok(match ahead {
            Some(is_negative) => PatternNode::Ahead(Box::new(inner), is_negative),
            None => inner,
        })
    }

    fn class(&mut self) -> Result<PatternNode, PatternError> {
        let is_negative = self.takes("^");
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        loop {
            let low = match self.peek() {
                None => return malformed("a class without its end"),
                Some(']') => break,
                Some(_) => self.member()?,
            };
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            if !is_range {
                ranges.extend(low.ranges());
                continue;
            }
            self.at += 1;
            let high = self.member()?;
            match (single(&low), single(&high)) {
                (Some(low), Some(high)) if low <= high => ranges.push((low, high)),
                (Some(_), Some(_)) => {
                    return malformed("a range of characters whose end is before its start");
                }
                // In `[\w-.]` the hyphen is a literal.
                _ => ranges.extend(low.ranges().chain(high.ranges()).chain([(0x2d, 0x2d)])),
            }
        }
        self.at += 1;
        let set = CharSet::of(ranges);
        let set = if self.both_cases { set.of_both_cases() } else { set };
        Ok(PatternNode::Set(if is_negative { set.negated() } else { set }))
    }

    fn member(&mut self) -> Result<CharSet, PatternError> {
        match self.peek() {
            Some('\\') => {
                self.at += 1;
                match self.peek() {
                    Some('b') => {
                        self.at += 1;
                        Ok(CharSet::one('\u{8}'))
                    }
                    Some(_) | None => self.escape(),
                }
            }
            Some(c) => {
                self.at += 1;
                Ok(CharSet::one(c))
            }
            None => malformed("a class without its end"),
        }
    }

    /// Parses an escape after the backslash.
    fn escape(&mut self) -> Result<CharSet, PatternError> {
        let Some(c) = self.peek() else { return malformed("a backslash at the end") };
        self.at += 1;
        let digits = CharSet::of([(0x30, 0x39)]);
        let word = CharSet::of([(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)]);
        let space = CharSet::of([
            (0x09, 0x0d),
            (0x20, 0x20),
            (0xa0, 0xa0),
            (0x1680, 0x1680),
            (0x2000, 0x200a),
            (0x2028, 0x2029),
            (0x202f, 0x202f),
            (0x205f, 0x205f),
            (0x3000, 0x3000),
            (0xfeff, 0xfeff),
        ]);
        Ok(match c {
            'd' => digits,
            'D' => digits.negated(),
            'w' => word,
            'W' => word.negated(),
            's' => space,
            'S' => space.negated(),
            'n' => CharSet::one('\n'),
            'r' => CharSet::one('\r'),
            't' => CharSet::one('\t'),
            'f' => CharSet::one('\u{c}'),
            'v' => CharSet::one('\u{b}'),
            '0' => CharSet::one('\0'),
            'x' => CharSet::one(self.code(2)?),
            'u' if self.peek() == Some('{') => {
                self.at += 1;
                let length = self.chars[self.at..].iter().position(|c| *c == '}');
                let length = length.ok_or("a \\u{ without its end")?;
                let c = self.code(length)?;
                self.at += 1;
                CharSet::one(c)
            }
            'u' => CharSet::one(self.code(4)?),
            'p' | 'P' => self.property(c == 'P')?,
            'c' => {
                let letter =
                    self.peek().filter(char::is_ascii_alphabetic).ok_or("a \\c without its letter")?;
                self.at += 1;
                CharSet::one(char::from(letter as u8 & 0x1f))
            }
            c if c.is_ascii_alphanumeric() => return malformed(format!("the escape \\{c}")),
            c => CharSet::one(c),
        })
    }

    fn code(&mut self, n_digits: usize) -> Result<char, PatternError> {
        let digits: String = self.chars.iter().skip(self.at).take(n_digits).collect();
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.chars().count() == n_digits);
        self.at += n_digits;
        code.and_then(char::from_u32)
            .ok_or_else(|| PatternError::Malformed(format!("the code {digits:?} of a character")))
    }

    /// Parses a class of Unicode after `\p`.
    fn property(&mut self, is_negative: bool) -> Result<CharSet, PatternError> {
        let length = match self.peek() {
            Some('{') => {
                self.chars[self.at..].iter().position(|c| *c == '}').ok_or("a \\p{ without its end")? + 1
            }
            Some(_) => 1,
            None => return malformed("a \\p without its name"),
        };
        let name: String = self.chars[self.at..self.at + length].iter().collect();
        self.at += length;
        let hir = regex_syntax::parse(&format!("\\p{name}"))
            .map_err(|_| PatternError::Unsupported(format!("the class \\p{name}")))?;
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = hir.kind() else {
            return unsupported(format!("the class \\p{name}"));
        };
        let set = CharSet::of(class.iter().map(|range| (range.start() as u32, range.end() as u32)));
        Ok(if is_negative { set.negated() } else { set })
    }
}

/// The only character of a set.
fn single(set: &CharSet) -> Option<u32> {
    let mut ranges = set.ranges();
    match (ranges.next(), ranges.next()) {
        (Some((low, high)), None) if low == high => Some(low),
        (Some(_) | None, _) => None,
    }
}
