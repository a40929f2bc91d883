//! Objects: listed properties in their order, then others if allowed.

use std::collections::HashMap;

use super::check;
use super::compile::{Compiler, Held, all_of};
use super::node::Id;
use super::rules::RulePart;
use super::rx::{CharSet, Rx, free_string};

/// Maximum number of names that `propertyNames` lists.
const MAX_NAMES: usize = 500;
/// Maximum number of overlapping patterns that are combined; with more patterns, names that match
/// two are not generated.
const MAX_OVERLAPS: usize = 3;
/// Maximum number of patterns of names in one object, since each is separated from all others.
const MAX_PATTERNS: usize = 32;
/// Maximum number of states: listed properties times those counted.
const MAX_STATES: usize = 3_000;
/// Maximum number of properties in any order, since each has a bit of a rule's parameter.
const MAX_UNORDERED: usize = 62;
/// Number of first letters by which counted properties differ.
const N_LETTERS: usize = 27;

/// A listed property.
struct Listed {
    name: String,
    value: RulePart,
    is_required: bool,
}

/// Properties that are not listed.
struct Other {
    key: RulePart,
    /// The members' names; by default any name that is not listed.
    names: Rx,
    value: RulePart,
}

/// The members of an object under construction.
struct Members {
    listed: Vec<Listed>,
    others: Vec<Other>,
    min: usize,
    max: Option<usize>,
    /// Largest count that is distinguished; higher counts are the same state.
    cap: usize,
    states: HashMap<(usize, usize), usize>,
}

impl Compiler {
    pub(super) fn object(&mut self, set: &[Held]) -> Result<RulePart, String> {
        let (mut min, mut max) = (0, None);
        for held in set {
            let node = self.node(*held);
            min = min.max(node.min_properties);
            max = [max, node.max_properties].into_iter().flatten().min();
        }
        let names = self.names(set);
        let listed: Vec<Listed> = self.listed(set, &names);
        let others = self.others(set, &listed, &names)?;
        let n_required = listed.iter().filter(|member| member.is_required).count();
        if max.is_some_and(|max| max < min.max(n_required)) {
            return Ok(RulePart::Never);
        }
        let mut cap = max.unwrap_or(min).max(1);
        if listed.len().saturating_mul(cap.min(listed.len() + 1)) > MAX_STATES && cap > 1 {
            let place = set.iter().find(|held| {
                let node = self.node(**held);
                node.min_properties > 0 || node.max_properties.is_some()
            });
            let place = place.map(|held| self.node(*held).place.clone()).unwrap_or_default();
            self.report("minProperties", &place);
            (min, max, cap) = (0, None, 1);
        }
        if min > n_required && others.iter().any(|_| min > listed.len() + N_LETTERS) {
            let place = set.first().map(|held| self.node(*held).place.clone()).unwrap_or_default();
            self.report("minProperties", &place);
        }
        if self.options.any_order
            && max.is_none()
            && min <= n_required
            && (2..=MAX_UNORDERED).contains(&listed.len())
        {
            let first = self.unordered(listed, &others);
            return Ok(RulePart::seq([RulePart::text("{"), self.style.gap(), first]));
        }
        let mut members = Members { listed, others, min, max, cap, states: HashMap::new() };
        let first = self.members(&mut members);
        Ok(RulePart::seq([RulePart::text("{"), self.style.gap(), first]))
    }

    /// Rule of members in any order, and the closing brace.
    fn unordered(&mut self, mut listed: Vec<Listed>, others: &[Other]) -> RulePart {
        // Required members have the lowest bits, so that one comparison tells whether all are
        // present.
        listed.sort_by_key(|member| !member.is_required);
        let n_required = listed.iter().filter(|member| member.is_required).count();
        let (first, then) = (self.rules.open(), self.rules.open());
        self.rules.with_parameter(first);
        self.rules.with_parameter(then);
        let end = self.style.close(false, "}");
        let end = match n_required {
            0 => end,
            n => RulePart::When(Box::new(end), format!("is_ones([0:{n}])")),
        };
        // A comma and the member after it are one option: no comma may occur that nothing can
        // follow, whichever members turn out to have no value.
        let (mut firsts, mut thens) = (Vec::new(), vec![end]);
        for (n, member) in listed.into_iter().enumerate() {
            let name = RulePart::text(serde_json::Value::from(member.name).to_string());
            let rule = self.rules.open();
            self.rules.close(rule, RulePart::seq([name, self.style.colon(), member.value]));
            let next = RulePart::seq([RulePart::Rule(rule), RulePart::With(then, "set_bit({})", n)]);
            let again = RulePart::seq([self.style.comma(), next.clone()]);
            firsts.push(next);
            thens.push(RulePart::When(Box::new(again), format!("bit_clear({n})")));
        }
        for other in others {
            let rule = self.rules.open();
            let body = [other.key.clone(), self.style.colon(), other.value.clone()];
            self.rules.close(rule, RulePart::seq(body));
            let next = RulePart::seq([RulePart::Rule(rule), RulePart::With(then, "_", 0)]);
            thens.push(RulePart::seq([self.style.comma(), next.clone()]));
            firsts.push(next);
        }
        self.rules.close(first, RulePart::alt(firsts));
        self.rules.close(then, RulePart::alt(thens));
        let empty = if n_required == 0 { self.style.close(true, "}") } else { RulePart::Never };
        RulePart::alt([empty, RulePart::With(first, "0x0", 0)])
    }

    /// Nodes of `propertyNames`.
    fn names(&mut self, set: &[Held]) -> Vec<Id> {
        set.iter().flat_map(|held| self.node(*held).names.clone()).collect()
    }

    /// Returns true if names that no schema lists are forbidden.
    fn is_closed(&self, set: &[Held]) -> bool {
        let speaks = |held: &Held| {
            let node = self.node(*held);
            node.additional.is_some() || node.unevaluated.is_some()
        };
        !self.options.open_objects && set.iter().any(|held| self.node(*held).lists) && !set.iter().any(speaks)
    }

    fn listed(&mut self, set: &[Held], names: &[Id]) -> Vec<Listed> {
        let is_closed = self.is_closed(set);
        let mut keys: Vec<(String, bool)> = Vec::new();
        let mut add = |name: &str, is_required: bool| match keys.iter_mut().find(|(key, _)| key == name) {
            Some((_, required)) => *required |= is_required,
            None => keys.push((name.to_owned(), is_required)),
        };
        // A condition concerns properties without listing them.
        for lists in [true, false] {
            for node in set.iter().map(|held| self.node(*held)).filter(|node| node.lists == lists) {
                if lists || !is_closed {
                    node.properties.iter().for_each(|(name, _)| add(name, false));
                }
            }
        }
        for held in set {
            self.node(*held).required.iter().for_each(|name| add(name, true));
        }
        // Listed names occur at most once.
        for name in self.listed_names(names) {
            add(&name, false);
        }
        let mut listed = Vec::with_capacity(keys.len());
        for (name, is_required) in keys {
            let key = serde_json::Value::from(name.as_str());
            let is_name = names.iter().all(|id| check::admits(&self.nodes, *id, &key));
            let ids: Vec<Id> = set.iter().flat_map(|held| self.node(*held).property(&name)).collect();
            let value = if is_name { self.value(ids) } else { RulePart::Never };
            listed.push(Listed { name, value, is_required });
        }
        listed
    }

    /// Names that `propertyNames` enumerates.
    fn listed_names(&self, names: &[Id]) -> Vec<String> {
        let allowed = names.iter().find_map(|id| self.nodes[*id].allowed.as_ref());
        let names = allowed.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned));
        names.take(MAX_NAMES).collect()
    }

    fn others(&mut self, set: &[Held], listed: &[Listed], names: &[Id]) -> Result<Vec<Other>, String> {
        if names.iter().any(|id| self.nodes[*id].allowed.is_some()) {
            return Ok(Vec::new());
        }
        let name = match self.texts_of(names, 0) {
            Some(rx) => rx,
            None => {
                let place = names.first().map(|id| self.nodes[*id].place.clone()).unwrap_or_default();
                self.report("propertyNames", &place);
                Rx::anything()
            }
        };
        let patterns: Vec<(usize, Rx)> = set
            .iter()
            .enumerate()
            .flat_map(|(n, held)| self.node(*held).patterns.iter().map(move |(rx, _)| (n, rx.clone())))
            .collect();
        if patterns.len() > MAX_PATTERNS {
            let place = set.iter().find(|held| !self.node(**held).patterns.is_empty());
            let place = place.map(|held| self.node(*held).place.as_str()).unwrap_or_default();
            return Err(format!(
                "patternProperties at {place} has {} patterns, expected at most {MAX_PATTERNS} for one object",
                patterns.len()
            ));
        }
        let taken = Rx::alt(listed.iter().map(|member| Rx::literal(&member.name)));
        let is_closed = self.is_closed(set);
        let mut others = Vec::new();
        for chosen in choices(patterns.len()) {
            self.in_time()?;
            let is_additional = chosen.is_empty();
            if is_additional && is_closed {
                continue;
            }
            let mut parts = vec![name.clone()];
            for (n, (_, rx)) in patterns.iter().enumerate() {
                parts.push(if chosen.contains(&n) { rx.clone() } else { rx.clone().not() });
            }
            if taken != Rx::Never {
                parts.push(taken.clone().not());
            }
            let ids = self.ids_of_others(set, &patterns, &chosen);
            let value = self.value(ids);
            let is_free = parts.iter().all(|rx| *rx == Rx::anything());
            let names = all_of(if parts.iter().all(|rx| matches!(rx, Rx::Not(_))) {
                parts.into_iter().chain([Rx::anything()]).collect()
            } else {
                parts
            });
            let key = if is_free { self.rules.token(free_string(0, None)) } else { self.quoted(&names) };
            if key != RulePart::Never {
                others.push(Other { key, names, value });
            }
        }
        Ok(others)
    }

    /// Nodes of a property that matches the given patterns and no others.
    fn ids_of_others(&self, set: &[Held], patterns: &[(usize, Rx)], chosen: &[usize]) -> Vec<Id> {
        let mut ids = Vec::new();
        let has_additional = set.iter().any(|held| self.node(*held).additional.is_some());
        for (n, held) in set.iter().enumerate() {
            let node = self.node(*held);
            let matching = chosen.iter().filter(|at| patterns[**at].0 == n);
            let matching: Vec<Id> = matching
                .flat_map(|at| {
                    node.patterns.iter().filter(|(rx, _)| *rx == patterns[*at].1).map(|(_, id)| *id)
                })
                .collect();
            match matching.is_empty() {
                true => ids.extend(node.additional),
                false => ids.extend(matching),
            }
            if chosen.is_empty() && !has_additional {
                ids.extend(node.unevaluated);
            }
        }
        ids
    }

    /// Rule of members and the closing brace. A state is the number of listed properties passed and
    /// of members so far.
    fn members(&mut self, members: &mut Members) -> RulePart {
        let first = self.state(members, 0, 0);
        let mut open = vec![(0, 0)];
        while let Some((at, n)) = open.pop() {
            let rule = self.state(members, at, n);
            if at == members.listed.len() {
                let body = self.last_members(members, n);
                self.rules.close(rule, body);
                continue;
            }
            let mut options = Vec::new();
            let n_required = members.listed[at + 1..].iter().filter(|member| member.is_required).count();
            let is_required = members.listed[at].is_required;
            if members.max.is_none_or(|max| n + 1 + n_required <= max) {
                let next = (at + 1, (n + 1).min(members.cap));
                if !members.states.contains_key(&next) {
                    open.push(next);
                }
                let name = serde_json::Value::from(members.listed[at].name.as_str()).to_string();
                let value = members.listed[at].value.clone();
                let comma = if n > 0 { self.style.comma() } else { RulePart::Empty };
                let rest = RulePart::Rule(self.state(members, next.0, next.1));
                options.push(RulePart::seq([comma, RulePart::text(name), self.style.colon(), value, rest]));
            }
            if !is_required {
                let next = (at + 1, n);
                if !members.states.contains_key(&next) {
                    open.push(next);
                }
                options.push(RulePart::Rule(self.state(members, next.0, next.1)));
            }
            self.rules.close(rule, RulePart::alt(options));
        }
        RulePart::Rule(first)
    }

    fn state(&mut self, members: &mut Members, at: usize, n: usize) -> usize {
        *members.states.entry((at, n)).or_insert_with(|| self.rules.open())
    }

    /// Rule of unlisted members, after `n` listed ones.
    fn last_members(&mut self, members: &Members, n: usize) -> RulePart {
        let (style_end, style_empty) = (self.style.close(false, "}"), self.style.close(true, "}"));
        let end = if n == 0 { style_empty } else { style_end.clone() };
        let n_missing = members.min.saturating_sub(n);
        let n_left = members.max.map(|max| max.saturating_sub(n));
        let mut options = Vec::new();
        if n_missing == 0 {
            options.push(end);
        }
        if !members.others.is_empty() && n_left != Some(0) {
            let comma = self.style.comma();
            let others: Vec<RulePart> = members
                .others
                .iter()
                .map(|other| RulePart::seq([other.key.clone(), self.style.colon(), other.value.clone()]))
                .collect();
            let other = RulePart::Rule(self.rules.open());
            if let RulePart::Rule(rule) = other {
                self.rules.close(rule, RulePart::alt(others));
            }
            let first = if n > 0 { comma.clone() } else { RulePart::Empty };
            let more = |from: usize, min: usize| {
                let again = RulePart::seq([comma.clone(), other.clone()]);
                RulePart::repeat(again, min, n_left.map(|left| left.saturating_sub(from)))
            };
            if (2..=N_LETTERS).contains(&n_missing) {
                let tail = RulePart::seq([more(n_missing, 0), style_end]);
                let counted = self.counted(members, n_missing, tail);
                options.push(RulePart::seq([first, counted]));
            } else {
                options.push(RulePart::seq([
                    first,
                    other.clone(),
                    more(1, n_missing.saturating_sub(1)),
                    style_end,
                ]));
            }
        }
        RulePart::alt(options)
    }

    /// Rule of a number of unlisted members whose names begin with different letters, since a
    /// repeated name counts once.
    fn counted(&mut self, members: &Members, n_wanted: usize, tail: RulePart) -> RulePart {
        let (one, then) = (self.rules.open(), self.rules.open());
        self.rules.with_parameter(one);
        self.rules.with_parameter(then);
        let mut options = Vec::new();
        for letter in 0..N_LETTERS {
            let begins = first_letter(letter);
            for other in &members.others {
                let key = self.quoted(&all_of(vec![begins.clone(), other.names.clone()]));
                let next = RulePart::With(then, "set_bit({})", letter);
                let member = RulePart::seq([key, self.style.colon(), other.value.clone(), next]);
                options.push(match member == RulePart::Never {
                    true => RulePart::Never,
                    false => RulePart::When(Box::new(member), format!("bit_clear({letter})")),
                });
            }
        }
        self.rules.close(one, RulePart::alt(options));
        let again = RulePart::seq([self.style.comma(), RulePart::With(one, "_", 0)]);
        let end = self.rules.open();
        self.rules.close(end, tail);
        self.rules.close(
            then,
            RulePart::alt([
                RulePart::When(Box::new(again), format!("bit_count_lt(_, {n_wanted})")),
                RulePart::When(Box::new(RulePart::Rule(end)), format!("bit_count_ge(_, {n_wanted})")),
            ]),
        );
        RulePart::With(one, "0x0", 0)
    }
}

/// Sets of patterns that a name may match, each by indices in a list; the empty set is last.
fn choices(n_patterns: usize) -> Vec<Vec<usize>> {
    if n_patterns > MAX_OVERLAPS {
        return (0..n_patterns).map(|n| vec![n]).chain([Vec::new()]).collect();
    }
    let of = |bits: usize| (0..n_patterns).filter(move |n| bits >> n & 1 == 1).collect();
    (0..1_usize << n_patterns).rev().map(of).collect()
}

/// Names with this first letter of the alphabet, in either case; the last set has all others.
fn first_letter(n: usize) -> Rx {
    let letters = CharSet::of([(0x41, 0x5a), (0x61, 0x7a)]);
    match u32::try_from(n).ok().filter(|n| *n < 26) {
        Some(n) => {
            Rx::cat([Rx::Set(CharSet::of([(0x41 + n, 0x41 + n), (0x61 + n, 0x61 + n)])), Rx::anything()])
        }
        None => Rx::cat([Rx::Set(letters.negated()), Rx::anything()]),
    }
}
