//! Compilation of nodes to the rules of a grammar.
//!
//! A rule is made for a set of nodes that hold together: those of `allOf`, of `$ref`, and of every
//! schema about a property. A rule is made once for each set, so that recursion ends; choices are
//! multiplied out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Instant;

use serde_json::Value;

use super::SchemaOptions;
use super::check;
use super::decimal::Decimal;
use super::effort::{Effort, Failure, MAX_TIME};
use super::node::{Id, Node, Types};
use super::number::{Numbers, numbers};
use super::parse::Nodes;
use super::rules::{RulePart, Rules};
use super::rx::{Rx, free_string};
use super::style::Style;

/// Maximum number of combinations of choices (`anyOf`, `oneOf`, `if`) in one place.
const MAX_COMBINATIONS: usize = 256;
/// Maximum number of regular expressions that one string must match together.
const MAX_TEXTS: usize = 8;
/// Maximum number of nested choices among names of properties.
const MAX_NAME_DEPTH: usize = 16;

/// A node in a set, before or after its choices are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Held {
    pub(super) id: Id,
    is_chosen: bool,
}

/// The result for a schema: a grammar, and the keys that it does not enforce.
pub(super) struct Compiled {
    pub(super) lark: String,
    pub(super) unenforced: BTreeSet<(&'static str, String)>,
}

/// Compiles the first node.
///
/// # Errors
/// No value is allowed, or the grammar is too large.
pub(super) fn compile(
    nodes: Nodes,
    style: &Style,
    options: SchemaOptions,
    effort: Effort,
    deadline: Instant,
) -> Result<Compiled, Failure> {
    let mut rules = Rules::default();
    let style = style.parts(&mut rules);
    let mut compiler = Compiler {
        nodes: nodes.nodes,
        unenforced: nodes.unenforced,
        options,
        n_combinations_left: effort.n_combinations,
        deadline,
        style,
        rules,
        terminals: HashMap::new(),
        memo: HashMap::new(),
        pending: VecDeque::new(),
    };
    let root = compiler.rules.open();
    let start = compiler.value(vec![0]);
    compiler.rules.close(root, start);
    while let Some((rule, set)) = compiler.pending.pop_front() {
        compiler.in_time()?;
        let body = compiler.body(&set)?;
        compiler.rules.close(rule, body);
        if compiler.rules.len() > effort.n_made {
            return Err(Failure::Large(format!("its grammar has over {} rules", effort.n_made)));
        }
    }
    if !compiler.rules.prune() {
        return Err(Failure::Wrong("no value is allowed by all of it".into()));
    }
    let lark = compiler.rules.lark(effort.n_rules).map_err(Failure::Large)?;
    Ok(Compiled { lark, unenforced: compiler.unenforced })
}

pub(super) struct Compiler {
    pub(super) nodes: Vec<Node>,
    unenforced: BTreeSet<(&'static str, String)>,
    pub(super) options: SchemaOptions,
    n_combinations_left: usize,
    /// Time at which compilation stops; schemas within all other limits may still take long.
    deadline: Instant,
    pub(super) style: super::style::StyleParts,
    pub(super) rules: Rules,
    terminals: HashMap<String, RulePart>,
    memo: HashMap<Vec<Held>, usize>,
    pending: VecDeque<(usize, Vec<Held>)>,
}

impl Compiler {
    /// Checks the deadline; long work calls it from time to time.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn in_time(&self) -> Result<(), String> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(format!("compiling it takes over {} s, expected less", MAX_TIME.as_secs())),
        }
    }

    pub(super) fn report(&mut self, key: &'static str, place: &str) {
        self.unenforced.insert((key, place.to_owned()));
    }

    pub(super) fn node(&self, held: Held) -> &Node {
        &self.nodes[held.id]
    }

    /// Rule of a value for which all of these nodes hold.
    pub(super) fn value(&mut self, ids: impl IntoIterator<Item = Id>) -> RulePart {
        let set = self.set(ids.into_iter().map(|id| Held { id, is_chosen: false }));
        self.value_of(set)
    }

    fn value_of(&mut self, set: Vec<Held>) -> RulePart {
        let mut key = set.clone();
        key.sort_unstable();
        if let Some(rule) = self.memo.get(&key) {
            return RulePart::Rule(*rule);
        }
        let rule = self.rules.open();
        self.memo.insert(key, rule);
        self.pending.push_back((rule, set));
        RulePart::Rule(rule)
    }

    /// The nodes and all that they refer to, without those that allow everything.
    fn set(&self, held: impl IntoIterator<Item = Held>) -> Vec<Held> {
        let mut stack: Vec<(Held, bool)> = held.into_iter().map(|held| (held, false)).collect();
        stack.reverse();
        let mut seen: Vec<Held> = Vec::new();
        let mut found = Vec::new();
        while let Some((held, is_ready)) = stack.pop() {
            if is_ready {
                found.push(held);
                continue;
            }
            if seen.contains(&held) {
                continue;
            }
            seen.push(held);
            let node = self.node(held);
            stack.push((held, true));
            // References come first: a base class before its extensions.
            stack.extend(node.all.iter().rev().map(|id| (Held { id: *id, is_chosen: false }, false)));
        }
        // A node whose choices were made replaces the one with choices.
        let chosen: Vec<Id> = found.iter().filter(|held| held.is_chosen).map(|held| held.id).collect();
        found.retain(|held| {
            // A node whose choices were made stays, so that they are not made again.
            let is_replaced = !held.is_chosen && chosen.contains(&held.id);
            !is_replaced && (self.says_something(held.id) || !self.node(*held).any.is_empty())
        });
        found
    }

    fn says_something(&self, id: Id) -> bool {
        let node = &self.nodes[id];
        let blank = Node { all: node.all.clone(), any: node.any.clone(), ..Node::at(&node.place) };
        let blank = Node { is_partial: node.is_partial, ..blank };
        *node != blank
    }

    fn body(&mut self, set: &[Held]) -> Result<RulePart, Failure> {
        if let Some(values) = self.named_values(set) {
            let values = values.iter().map(|value| self.constant(value));
            return Ok(RulePart::alt(values.collect::<Vec<_>>()));
        }
        let groups: Vec<(Vec<Id>, String)> = set
            .iter()
            .filter(|held| !held.is_chosen)
            .flat_map(|held| {
                let node = self.node(*held);
                node.any.iter().map(|group| (group.clone(), node.place.clone()))
            })
            .collect();
        if groups.is_empty() {
            return Ok(self.plain(set)?);
        }
        let chosen: Vec<Held> = set.iter().map(|held| Held { is_chosen: true, ..*held }).collect();
        let mut combinations = vec![chosen];
        for (group, place) in groups {
            let mut next: Vec<Vec<Held>> = Vec::new();
            for combination in &combinations {
                for option in &group {
                    self.in_time()?;
                    self.n_combinations_left = self
                        .n_combinations_left
                        .checked_sub(1)
                        .ok_or_else(|| Failure::Large("its choices have too many combinations".into()))?;
                    let with = combination.iter().copied().chain([Held { id: *option, is_chosen: false }]);
                    let set = self.set(with);
                    if !next.contains(&set) && !self.clashes(&set) {
                        next.push(set);
                    }
                }
            }
            // A single choice may have any number of options.
            if combinations.len() > 1 && next.len() > MAX_COMBINATIONS {
                self.report("anyOf", &place);
                continue;
            }
            combinations = next;
        }
        let options: Vec<RulePart> = combinations.into_iter().map(|set| self.value_of(set)).collect();
        Ok(RulePart::alt(options))
    }

    /// Values that the schema lists and all of its parts allow.
    fn named_values(&self, set: &[Held]) -> Option<Vec<Value>> {
        let first = set.iter().find_map(|held| self.node(*held).allowed.as_ref())?;
        let mut values: Vec<Value> = Vec::new();
        let mut seen = HashSet::new();
        let mut checker = check::Checker::new(&self.nodes);
        for value in first {
            if seen.insert(value.to_string()) && set.iter().all(|held| checker.admits(held.id, value)) {
                values.push(value.clone());
            }
        }
        Some(values)
    }

    /// Returns true if types, values and required properties show that no value is allowed.
    fn clashes(&self, set: &[Held]) -> bool {
        if self.is_nothing(set) {
            return true;
        }
        let types = set.iter().fold(Types::ALL, |types, held| types.and(self.node(*held).types));
        if types != Types::OBJECT {
            return false;
        }
        let required: BTreeSet<&str> =
            set.iter().flat_map(|held| self.node(*held).required.iter().map(String::as_str)).collect();
        required.into_iter().any(|name| {
            let ids = set.iter().flat_map(|held| self.node(*held).property(name));
            let set = self.set(ids.map(|id| Held { id, is_chosen: false }));
            self.is_nothing(&set)
        })
    }

    fn is_nothing(&self, set: &[Held]) -> bool {
        let types = set.iter().fold(Types::ALL, |types, held| types.and(self.node(*held).types));
        types == Types::NONE || self.named_values(set).is_some_and(|values| values.is_empty())
    }

    /// Rule of a set without choices.
    fn plain(&mut self, set: &[Held]) -> Result<RulePart, String> {
        let types = set.iter().fold(Types::ALL, |types, held| types.and(self.node(*held).types));
        let forbidden: Vec<Value> = set.iter().flat_map(|held| self.node(*held).forbidden.clone()).collect();
        let mut options = Vec::new();
        for (kind, value) in [
            (Types::NULL, Value::Null),
            (Types::BOOLEAN, Value::Bool(true)),
            (Types::BOOLEAN, Value::Bool(false)),
        ] {
            if types.has(kind) && !forbidden.contains(&value) {
                options.push(RulePart::text(value.to_string()));
            }
        }
        if types.has(Types::NUMBER) {
            options.push(self.number(set, types.and(Types::NUMBER), &forbidden));
        }
        if types.has(Types::STRING) {
            options.push(self.string(set, &forbidden)?);
        }
        if let Some(other) = forbidden.iter().find(|value| types.has(Types::of(value)) && !is_scalar(value)) {
            let place = set.iter().find(|held| self.node(**held).forbidden.contains(other));
            let place = place.map(|held| self.node(*held).place.clone()).unwrap_or_default();
            self.report("not", &place);
        }
        if types.has(Types::ARRAY) {
            options.push(self.array(set)?);
        }
        if types.has(Types::OBJECT) {
            options.push(self.object(set)?);
        }
        Ok(RulePart::alt(options))
    }

    fn number(&mut self, set: &[Held], types: Types, forbidden: &[Value]) -> RulePart {
        let bounds: Vec<_> = set.iter().flat_map(|held| self.node(*held).bounds.clone()).collect();
        let multiples: Vec<Decimal> =
            set.iter().flat_map(|held| self.node(*held).multiples.clone()).collect();
        let forbidden: Vec<Decimal> =
            forbidden.iter().filter_map(Value::as_number).filter_map(Decimal::of).collect();
        let has_none = bounds.iter().any(|least| {
            least.is_least
                && bounds.iter().any(|most| {
                    let has_end = least.is_exclusive || most.is_exclusive;
                    !most.is_least && (least.at > most.at || (least.at == most.at && has_end))
                })
        });
        if has_none {
            return RulePart::Never;
        }
        match numbers(types, &bounds, &multiples, &forbidden) {
            Numbers::Digits(rx) => self.digits(&rx),
            Numbers::Counted(schema) => RulePart::Raw(format!("%json {schema}")),
            Numbers::NotMultiples(rx) => {
                let place = set.iter().find(|held| !self.node(**held).multiples.is_empty());
                let place = place.map(|held| self.node(*held).place.clone()).unwrap_or_default();
                self.report("multipleOf", &place);
                self.digits(&rx)
            }
        }
    }

    fn digits(&mut self, rx: &Rx) -> RulePart {
        self.terminal(rx, rx.terminal(super::rx::CharSpelling::Plain))
    }

    fn string(&mut self, set: &[Held], forbidden: &[Value]) -> Result<RulePart, String> {
        let (mut min, mut max) = (0, None);
        let mut texts: Vec<Rx> = Vec::new();
        for held in set {
            let node = self.node(*held);
            min = min.max(node.min_length);
            max = [max, node.max_length].into_iter().flatten().min();
            texts.extend(node.texts.iter().cloned());
        }
        if max.is_some_and(|max| max < min) {
            return Ok(RulePart::Never);
        }
        if texts.len() > MAX_TEXTS {
            return Err(format!(
                "one string has {} patterns and formats at once, expected at most {MAX_TEXTS}",
                texts.len()
            ));
        }
        texts.extend(forbidden.iter().filter_map(Value::as_str).map(|text| Rx::literal(text).not()));
        if texts.is_empty() {
            return Ok(self.rules.token(free_string(min, max)));
        }
        if min > 0 || max.is_some() {
            texts.push(Rx::of_length(min, max));
        }
        // Take complements from the set of all texts.
        if texts.iter().all(|rx| matches!(rx, Rx::Not(_))) {
            texts.push(Rx::of_length(0, None));
        }
        Ok(self.quoted(&all_of(texts)))
    }

    /// A JSON string of these texts.
    pub(super) fn quoted(&mut self, rx: &Rx) -> RulePart {
        self.terminal(rx, rx.quoted())
    }

    /// A terminal. Emptiness is computed once, since it does not depend on the spelling.
    fn terminal(&mut self, rx: &Rx, spelling: String) -> RulePart {
        if let Some(part) = self.terminals.get(&spelling) {
            return part.clone();
        }
        let part = match rx.is_never() {
            Some(true) => RulePart::Never,
            Some(false) | None => self.rules.token(spelling.clone()),
        };
        self.terminals.insert(spelling, part.clone());
        part
    }

    /// The strings that all of these nodes allow; `None` if that cannot be expressed.
    pub(super) fn texts_of(&self, ids: &[Id], depth: usize) -> Option<Rx> {
        if depth > MAX_NAME_DEPTH {
            return None;
        }
        let mut parts = Vec::new();
        for id in ids {
            let node = &self.nodes[*id];
            if !node.types.has(Types::STRING) {
                return Some(Rx::Never);
            }
            if let Some(allowed) = &node.allowed {
                parts.push(Rx::alt(allowed.iter().filter_map(Value::as_str).map(Rx::literal)));
            }
            parts.extend(node.texts.iter().cloned());
            parts.extend(node.forbidden.iter().filter_map(Value::as_str).map(|text| Rx::literal(text).not()));
            if node.min_length > 0 || node.max_length.is_some() {
                parts.push(Rx::of_length(node.min_length, node.max_length));
            }
            if !node.all.is_empty() {
                parts.push(self.texts_of(&node.all, depth + 1)?);
            }
            for group in &node.any {
                let options: Option<Vec<Rx>> =
                    group.iter().map(|option| self.texts_of(&[*option], depth + 1)).collect();
                parts.push(Rx::alt(options?));
            }
        }
        (parts.len() <= MAX_TEXTS).then(|| Rx::and(parts))
    }

    /// Rule of exactly this value.
    pub(super) fn constant(&mut self, value: &Value) -> RulePart {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                RulePart::text(value.to_string())
            }
            Value::Array(items) if items.is_empty() => self.style.empty("[", "]"),
            Value::Object(object) if object.is_empty() => self.style.empty("{", "}"),
            Value::Array(items) => {
                let mut parts = vec![RulePart::text("["), self.style.gap()];
                for (n, item) in items.iter().enumerate() {
                    parts.extend((n > 0).then(|| self.style.comma()));
                    parts.push(self.constant(item));
                }
                parts.extend([self.style.gap(), RulePart::text("]")]);
                RulePart::seq(parts)
            }
            Value::Object(object) => {
                let mut parts = vec![RulePart::text("{"), self.style.gap()];
                for (n, (name, value)) in object.iter().enumerate() {
                    parts.extend((n > 0).then(|| self.style.comma()));
                    parts.push(RulePart::text(Value::from(name.as_str()).to_string()));
                    parts.push(self.style.colon());
                    parts.push(self.constant(value));
                }
                parts.extend([self.style.gap(), RulePart::text("}")]);
                RulePart::seq(parts)
            }
        }
    }
}

/// An intersection with its complements last, since they are taken from the others.
pub(super) fn all_of(texts: Vec<Rx>) -> Rx {
    let (complements, mut parts): (Vec<Rx>, Vec<Rx>) =
        texts.into_iter().partition(|rx| matches!(rx, Rx::Not(_)));
    parts.extend(complements);
    match parts.len() {
        1 => parts.remove(0),
        _ => Rx::And(parts),
    }
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}
