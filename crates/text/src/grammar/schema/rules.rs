//! Rules of a grammar under construction, and their form in llguidance's dialect of Lark.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write;

use serde_json::Value;

/// Maximum number of nested inlined rules and parentheses; deeper parts get a rule of their own.
const MAX_INLINE: usize = 12;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RulePart {
    /// Matches no text.
    Never,
    Empty,
    /// A literal of these bytes.
    Text(String),
    /// A terminal, by its index in a list.
    Token(usize),
    /// A rule, by its index in a list.
    Rule(usize),
    /// A rule with a parameter, which is an expression of Lark.
    With(usize, &'static str, usize),
    Seq(Vec<RulePart>),
    Alt(Vec<RulePart>),
    /// A part that is allowed only if this condition of Lark holds for the rule's parameter.
    When(Box<RulePart>, String),
    Repeat(Box<RulePart>, usize, Option<usize>),
    /// Text of Lark.
    Raw(String),
}

impl RulePart {
    pub(super) fn text(text: impl Into<String>) -> RulePart {
        RulePart::Text(text.into())
    }

    pub(super) fn seq(parts: impl IntoIterator<Item = RulePart>) -> RulePart {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                RulePart::Never => return RulePart::Never,
                RulePart::Empty => {}
                RulePart::Seq(parts) => flat.extend(parts),
                RulePart::Text(_)
                | RulePart::Token(_)
                | RulePart::Rule(_)
                | RulePart::With(..)
                | RulePart::Alt(_)
                | RulePart::When(..)
                | RulePart::Repeat(..)
                | RulePart::Raw(_) => flat.push(part),
            }
        }
        match flat.len() {
            0 => RulePart::Empty,
            1 => flat.remove(0),
            _ => RulePart::Seq(flat),
        }
    }

    pub(super) fn alt(options: impl IntoIterator<Item = RulePart>) -> RulePart {
        let mut flat: Vec<RulePart> = Vec::new();
        for option in options {
            match option {
                RulePart::Never => {}
                RulePart::Alt(options) => flat.extend(options),
                RulePart::Empty
                | RulePart::Text(_)
                | RulePart::Token(_)
                | RulePart::Rule(_)
                | RulePart::With(..)
                | RulePart::Seq(_)
                | RulePart::When(..)
                | RulePart::Repeat(..)
                | RulePart::Raw(_) => flat.push(option),
            }
        }
        let mut seen = HashSet::new();
        let is_new: Vec<bool> = flat.iter().map(|option| seen.insert(option)).collect();
        let mut is_new = is_new.into_iter();
        flat.retain(|_| is_new.next().unwrap_or(false));
        match flat.len() {
            0 => RulePart::Never,
            // A condition is written with the options of a rule.
            1 if !matches!(flat[0], RulePart::When(..)) => flat.remove(0),
            _ => RulePart::Alt(flat),
        }
    }

    pub(super) fn repeat(part: RulePart, min: usize, max: Option<usize>) -> RulePart {
        match (part, max) {
            (_, Some(0)) | (RulePart::Empty, _) => RulePart::Empty,
            (RulePart::Never, _) if min == 0 => RulePart::Empty,
            (RulePart::Never, _) => RulePart::Never,
            (part, Some(1)) if min == 1 => part,
            (part, max) => RulePart::Repeat(Box::new(part), min, max),
        }
    }
}

#[derive(Default)]
pub(super) struct Rules {
    bodies: Vec<RulePart>,
    parametric: Vec<bool>,
    tokens: Vec<String>,
    token_ids: HashMap<String, usize>,
}

impl Rules {
    /// Adds a rule whose body is set later.
    pub(super) fn open(&mut self) -> usize {
        self.bodies.push(RulePart::Never);
        self.parametric.push(false);
        self.bodies.len() - 1
    }

    pub(super) fn close(&mut self, rule: usize, body: RulePart) {
        self.bodies[rule] = body;
    }

    pub(super) fn with_parameter(&mut self, rule: usize) {
        self.parametric[rule] = true;
    }

    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// Adds a terminal with this expression of Lark.
    pub(super) fn token(&mut self, body: String) -> RulePart {
        let next = self.tokens.len();
        let id = *self.token_ids.entry(body.clone()).or_insert(next);
        if id == next {
            self.tokens.push(body);
        }
        RulePart::Token(id)
    }

    /// Removes parts that can never end. Returns true if the first rule remains.
    pub(super) fn prune(&mut self) -> bool {
        let mut ends = vec![false; self.bodies.len()];
        loop {
            let mut has_changed = false;
            // Most rules refer to later ones.
            for rule in (0..self.bodies.len()).rev() {
                if !ends[rule] && can_end(&self.bodies[rule], &ends) {
                    ends[rule] = true;
                    has_changed = true;
                }
            }
            if !has_changed {
                break;
            }
        }
        for body in &mut self.bodies {
            *body = pruned(std::mem::replace(body, RulePart::Never), &ends);
        }
        ends.first() == Some(&true)
    }

    /// Returns the grammar, whose first rule is the start.
    ///
    /// # Errors
    /// It has more than `max` rules.
    pub(super) fn lark(&self, max: usize) -> Result<String, String> {
        let mut n_uses = vec![0_usize; self.bodies.len()];
        self.bodies.iter().for_each(|body| count_uses(body, &mut n_uses));
        n_uses[0] = usize::MAX;
        let mut writer = Writer {
            rules: self,
            n_uses,
            queue: VecDeque::from([0]),
            is_written: vec![false; self.bodies.len()],
        };
        writer.is_written[0] = true;
        let mut out = String::new();
        let mut n_rules = 0;
        while let Some(rule) = writer.queue.pop_front() {
            n_rules += 1;
            if n_rules > max {
                return Err(format!("its grammar has over {max} rules"));
            }
            let name = if rule == 0 { "start".into() } else { format!("r{rule}") };
            let parameter = if self.parametric[rule] { "::_" } else { "" };
            let _ = write!(out, "{name}{parameter}: ");
            writer.options(&self.bodies[rule], 0, &mut out);
            out.push('\n');
        }
        for (id, body) in self.tokens.iter().enumerate() {
            let _ = writeln!(out, "T{id}: {body}");
        }
        Ok(out)
    }
}

fn can_end(part: &RulePart, ends: &[bool]) -> bool {
    match part {
        RulePart::Never => false,
        RulePart::Empty | RulePart::Text(_) | RulePart::Token(_) | RulePart::Raw(_) => true,
        RulePart::Rule(rule) | RulePart::With(rule, _, _) => ends[*rule],
        RulePart::Seq(parts) => parts.iter().all(|part| can_end(part, ends)),
        RulePart::Alt(options) => options.iter().any(|option| can_end(option, ends)),
        RulePart::When(part, _) => can_end(part, ends),
        RulePart::Repeat(part, min, _) => *min == 0 || can_end(part, ends),
    }
}

fn pruned(part: RulePart, ends: &[bool]) -> RulePart {
    match part {
        RulePart::Never | RulePart::Empty | RulePart::Text(_) | RulePart::Token(_) | RulePart::Raw(_) => part,
        RulePart::Rule(rule) | RulePart::With(rule, _, _) if !ends[rule] => RulePart::Never,
        RulePart::Rule(_) | RulePart::With(..) => part,
        RulePart::Seq(parts) => RulePart::seq(parts.into_iter().map(|part| pruned(part, ends))),
        RulePart::Alt(options) => RulePart::alt(options.into_iter().map(|option| pruned(option, ends))),
        // A required property without a possible value blocks the way to the end.
        RulePart::When(part, condition) => {
            let part = pruned(*part, ends);
            match part == RulePart::Never {
                true => RulePart::Never,
                false => RulePart::When(Box::new(part), condition),
            }
        }
        RulePart::Repeat(part, min, max) => RulePart::repeat(pruned(*part, ends), min, max),
    }
}

fn count_uses(part: &RulePart, n_uses: &mut [usize]) {
    match part {
        RulePart::Never | RulePart::Empty | RulePart::Text(_) | RulePart::Token(_) | RulePart::Raw(_) => {}
        RulePart::Rule(rule) | RulePart::With(rule, _, _) => n_uses[*rule] = n_uses[*rule].saturating_add(1),
        RulePart::Seq(parts) | RulePart::Alt(parts) => parts.iter().for_each(|part| count_uses(part, n_uses)),
        RulePart::When(part, _) | RulePart::Repeat(part, _, _) => count_uses(part, n_uses),
    }
}

struct Writer<'a> {
    rules: &'a Rules,
    n_uses: Vec<usize>,
    queue: VecDeque<usize>,
    is_written: Vec<bool>,
}

impl<'a> Writer<'a> {
    /// Writes the options of a rule, or those between parentheses.
    fn options(&mut self, part: &RulePart, depth: usize, out: &mut String) {
        let RulePart::Alt(options) = part else { return self.option(part, depth, out) };
        for (n, option) in options.iter().enumerate() {
            if n > 0 {
                out.push_str(" | ");
            }
            self.option(option, depth, out);
        }
    }

    fn option(&mut self, part: &RulePart, depth: usize, out: &mut String) {
        match part {
            RulePart::When(part, condition) => {
                self.option(part, depth, out);
                let _ = write!(out, " %if {condition}");
            }
            RulePart::Seq(parts) => {
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        out.push(' ');
                    }
                    match self.inlined(part, depth) {
                        // A sequence that is used once needs no parentheses.
                        Some(body) if matches!(body, RulePart::Seq(_)) => self.option(body, depth + 1, out),
                        Some(body) => self.atom(body, depth + 1, out),
                        None => self.atom(part, depth, out),
                    }
                }
            }
            RulePart::Never
            | RulePart::Empty
            | RulePart::Text(_)
            | RulePart::Token(_)
            | RulePart::Rule(_)
            | RulePart::With(..)
            | RulePart::Alt(_)
            | RulePart::Repeat(..)
            | RulePart::Raw(_) => match self.inlined(part, depth) {
                Some(body) if matches!(body, RulePart::Alt(_)) => self.atom(body, depth + 1, out),
                Some(body) => self.option(body, depth + 1, out),
                None => self.atom(part, depth, out),
            },
        }
    }

    /// The body of a rule that is written in place of its name; `None` for other parts.
    fn inlined(&self, part: &RulePart, depth: usize) -> Option<&'a RulePart> {
        let RulePart::Rule(rule) = part else { return None };
        self.is_inline(*rule, depth).then(|| &self.rules.bodies[*rule])
    }

    fn is_inline(&self, rule: usize, depth: usize) -> bool {
        let body = &self.rules.bodies[rule];
        let is_small = matches!(
            body,
            RulePart::Text(_) | RulePart::Token(_) | RulePart::Raw(_) | RulePart::Empty | RulePart::Never
        );
        is_small || (self.n_uses[rule] == 1 && depth < MAX_INLINE && !self.rules.parametric[rule])
    }

    fn atom(&mut self, part: &RulePart, depth: usize, out: &mut String) {
        match part {
            // Only a grammar without any text still has this after pruning.
            RulePart::Never => out.push_str("/[^\\x00-\\x{10ffff}]/"),
            RulePart::Empty => out.push_str("\"\""),
            RulePart::Text(text) => out.push_str(&literal(text)),
            RulePart::Token(token) => {
                let _ = write!(out, "T{token}");
            }
            RulePart::Raw(text) => out.push_str(text),
            RulePart::Rule(rule) if self.is_inline(*rule, depth) => {
                let body = &self.rules.bodies[*rule];
                self.atom(body, depth + 1, out);
            }
            RulePart::Rule(rule) => {
                self.want(*rule);
                let _ = write!(out, "r{rule}");
            }
            RulePart::With(rule, expression, argument) => {
                self.want(*rule);
                let _ = write!(out, "r{rule}::{}", expression.replace("{}", &argument.to_string()));
            }
            RulePart::Seq(_) | RulePart::Alt(_) | RulePart::When(..) => {
                out.push('(');
                self.options(part, depth + 1, out);
                out.push(')');
            }
            RulePart::Repeat(part, min, max) => {
                out.push('(');
                self.options(part, depth + 1, out);
                let _ = match (min, max) {
                    (0, Some(1)) => write!(out, ")?"),
                    (0, None) => write!(out, ")*"),
                    (min, None) => write!(out, "){{{min},}}"),
                    (min, Some(max)) => write!(out, "){{{min},{max}}}"),
                };
            }
        }
    }

    fn want(&mut self, rule: usize) {
        if !std::mem::replace(&mut self.is_written[rule], true) {
            self.queue.push_back(rule);
        }
    }
}

/// A quoted text. Lark requires an escape for DEL, which JSON does not.
fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
