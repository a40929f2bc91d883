//! Arrays: items by position, their number, `contains`, and `uniqueItems`.

use std::collections::HashMap;

use serde_json::Value;

use super::check;
use super::compile::{Compiler, Held};
use super::node::{Contains, Id, Types};
use super::rules::RulePart;

/// Maximum number of states: items times those counted for `contains`.
const MAX_STATES: usize = 2_000;
/// Maximum number of distinct values under `uniqueItems`. Each has a bit of a parameter, and
/// llguidance counts at most 63 bits.
const MAX_UNIQUE: usize = 63;

/// The restrictions of all nodes of a set on arrays.
struct ArrayItems {
    prefix: Vec<Vec<Id>>,
    rest: Vec<Id>,
    /// True if no items are allowed after the prefix.
    is_closed: bool,
    min: usize,
    max: Option<usize>,
    contains: Option<Contains>,
}

impl Compiler {
    pub(super) fn array(&mut self, set: &[Held]) -> Result<RulePart, String> {
        let (mut min, mut max) = (0, None);
        let n_prefix = set.iter().map(|held| self.node(*held).prefix.len()).max().unwrap_or(0);
        let mut items = ArrayItems {
            prefix: vec![Vec::new(); n_prefix],
            rest: Vec::new(),
            is_closed: false,
            min: 0,
            max: None,
            contains: None,
        };
        let mut is_unique = false;
        for held in set {
            let node = self.node(*held).clone();
            min = min.max(node.min_items);
            max = [max, node.max_items].into_iter().flatten().min();
            for (n, ids) in items.prefix.iter_mut().enumerate() {
                ids.extend(node.prefix.get(n).copied().or(node.items));
            }
            items.rest.extend(node.items);
            is_unique |= node.is_unique;
            if let Some(contains) = node.contains {
                match items.contains {
                    None => items.contains = Some(contains),
                    Some(_) => self.report("contains", &node.place),
                }
            }
        }
        // A tuple has no items beyond its list, as an object has no properties beyond its own.
        items.is_closed =
            n_prefix > 0 && items.rest.is_empty() && !self.options.open_objects && min <= n_prefix;
        if items.is_closed {
            max = Some(max.map_or(n_prefix, |max: usize| max.min(n_prefix)));
        }
        if max.is_some_and(|max| max < min) {
            return Ok(RulePart::Never);
        }
        (items.min, items.max) = (min, max);
        if is_unique {
            match self.unique(&items) {
                Some(part) => return Ok(part),
                None if max.is_some_and(|max| max <= 1) => {}
                None => {
                    let place = set.iter().find(|held| self.node(**held).is_unique);
                    let place = place.map(|held| self.node(*held).place.clone()).unwrap_or_default();
                    self.report("uniqueItems", &place);
                }
            }
        }
        if let Some(contains) =
            items.contains.clone().filter(|contains| contains.min > 0 || contains.max.is_some())
        {
            if let Some(part) = self.containing(&items, &contains) {
                return Ok(part);
            }
            let place = set.iter().find(|held| self.node(**held).contains.is_some());
            let place = place.map(|held| self.node(*held).place.clone()).unwrap_or_default();
            self.report("contains", &place);
        }
        let first = self.items(&items);
        Ok(RulePart::seq([RulePart::text("["), self.style.gap(), first]))
    }

    /// Rule of all items and the closing bracket.
    fn items(&mut self, items: &ArrayItems) -> RulePart {
        let n_prefix = items.prefix.len().min(items.max.unwrap_or(usize::MAX));
        let mut rest = self.rest(items, n_prefix);
        for at in (0..n_prefix).rev() {
            let item = self.value(items.prefix[at].clone());
            let comma = if at > 0 { self.style.comma() } else { RulePart::Empty };
            let rule = self.rules.open();
            self.rules.close(rule, rest);
            let end = if at >= items.min { self.style.close(at == 0, "]") } else { RulePart::Never };
            rest = RulePart::alt([end, RulePart::seq([comma, item, RulePart::Rule(rule)])]);
        }
        rest
    }

    /// Rule of the items after the first `at`, and the closing bracket.
    fn rest(&mut self, items: &ArrayItems, at: usize) -> RulePart {
        let end = if at >= items.min { self.style.close(at == 0, "]") } else { RulePart::Never };
        if items.max.is_some_and(|max| at >= max) {
            return end;
        }
        let comma = if at > 0 { self.style.comma() } else { RulePart::Empty };
        let item = self.value(items.rest.clone());
        let again = RulePart::seq([self.style.comma(), item.clone()]);
        let min = items.min.saturating_sub(at + 1);
        let max = items.max.map(|max| max.saturating_sub(at + 1));
        let more = RulePart::repeat(again, min, max);
        RulePart::alt([end, RulePart::seq([comma, item, more, self.style.close(false, "]")])])
    }

    /// Rule of items from a few values, each at most once; `None` if there are too many values.
    fn unique(&mut self, items: &ArrayItems) -> Option<RulePart> {
        if !items.prefix.is_empty() || items.contains.is_some() {
            return None;
        }
        let values = self.few_values(&items.rest)?;
        let max = items.max.unwrap_or(values.len()).min(values.len());
        if items.min > max {
            return Some(RulePart::Never);
        }
        let (one, then) = (self.rules.open(), self.rules.open());
        self.rules.with_parameter(one);
        self.rules.with_parameter(then);
        let mut options = Vec::new();
        for (n, value) in values.iter().enumerate() {
            let item = RulePart::seq([self.constant(value), RulePart::With(then, "set_bit({})", n)]);
            options.push(RulePart::When(Box::new(item), format!("bit_clear({n})")));
        }
        self.rules.close(one, RulePart::alt(options));
        let again = RulePart::seq([self.style.comma(), RulePart::With(one, "_", 0)]);
        let end = self.style.close(false, "]");
        self.rules.close(
            then,
            RulePart::alt([
                RulePart::When(Box::new(again), format!("bit_count_lt(_, {max})")),
                RulePart::When(Box::new(end), format!("bit_count_ge(_, {})", items.min)),
            ]),
        );
        let empty = if items.min == 0 { self.style.close(true, "]") } else { RulePart::Never };
        let some = if max > 0 { RulePart::With(one, "0x0", 0) } else { RulePart::Never };
        Some(RulePart::seq([RulePart::text("["), self.style.gap(), RulePart::alt([empty, some])]))
    }

    /// All values that these nodes allow, if they are few.
    fn few_values(&self, ids: &[Id]) -> Option<Vec<Value>> {
        let mut candidates: Vec<Value> = Vec::new();
        let mut types = Types::ALL;
        let mut open = ids.to_vec();
        let mut seen = Vec::new();
        let mut named: Option<Vec<Value>> = None;
        while let Some(id) = open.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            let node = &self.nodes[id];
            types = types.and(node.types);
            named = named.or_else(|| node.allowed.clone());
            open.extend(node.all.iter().copied());
        }
        match named {
            Some(values) => candidates.extend(values),
            None if types.and(Types::NULL.or(Types::BOOLEAN)) == types => {
                candidates.extend([Value::Null, Value::Bool(true), Value::Bool(false)]);
            }
            // Integers between two bounds, and choices among names.
            None => {
                candidates.extend(self.few_of_choices(&seen).or_else(|| self.few_integers(&seen, types))?)
            }
        }
        let mut values: Vec<Value> = Vec::new();
        for value in candidates {
            let is_new = !values.iter().any(|other| check::is_same(other, &value));
            if is_new && ids.iter().all(|id| check::admits(&self.nodes, *id, &value)) {
                values.push(value);
            }
        }
        (values.len() <= MAX_UNIQUE).then_some(values)
    }

    fn few_of_choices(&self, ids: &[Id]) -> Option<Vec<Value>> {
        let group = ids.iter().find_map(|id| self.nodes[*id].any.first())?;
        let mut values = Vec::new();
        for option in group {
            values.extend(self.nodes[*option].allowed.clone()?);
        }
        Some(values)
    }

    fn few_integers(&self, ids: &[Id], types: Types) -> Option<Vec<Value>> {
        let bounds = || ids.iter().flat_map(|id| &self.nodes[*id].bounds);
        let at = |bound: &super::node::Bound| i64::try_from(bound.at.scaled(bound.at.fraction.len())?).ok();
        let whole = |is_least| {
            bounds().filter(move |bound| bound.is_least == is_least && bound.at.is_integer()).filter_map(at)
        };
        let (least, most) = (whole(true).max()?, whole(false).min()?);
        let is_few = types == Types::INTEGER && most.checked_sub(least)? < MAX_UNIQUE as i64;
        is_few.then(|| (least..=most).map(Value::from).collect())
    }

    /// Rule of items of which some match; `None` if it needs too many states.
    fn containing(&mut self, items: &ArrayItems, contains: &Contains) -> Option<RulePart> {
        let cap = items.max.unwrap_or_else(|| items.min.max(items.prefix.len() + 1));
        let found_cap = contains.max.unwrap_or(contains.min);
        if cap.saturating_add(1).saturating_mul(found_cap + 1) > MAX_STATES {
            return None;
        }
        let mut states: HashMap<(usize, usize), usize> = HashMap::new();
        let first = self.rules.open();
        states.insert((0, 0), first);
        let mut open = vec![(0, 0)];
        while let Some((at, n_found)) = open.pop() {
            let rule = states[&(at, n_found)];
            let mut options = Vec::new();
            if n_found >= contains.min && at >= items.min {
                options.push(self.style.close(at == 0, "]"));
            }
            if items.max.is_none_or(|max| at < max) {
                let comma = if at > 0 { self.style.comma() } else { RulePart::Empty };
                let ids = items.prefix.get(at).unwrap_or(&items.rest).clone();
                let next_at = (at + 1).min(cap);
                let mut step = |compiler: &mut Compiler, more: Option<Id>, next: (usize, usize)| {
                    let item = compiler.value(ids.iter().copied().chain(more));
                    let next = *states.entry(next).or_insert_with(|| {
                        open.push(next);
                        compiler.rules.open()
                    });
                    options.push(RulePart::seq([comma.clone(), item, RulePart::Rule(next)]));
                };
                match contains.max {
                    Some(max) => {
                        if n_found < max {
                            step(self, Some(contains.item), (next_at, n_found + 1));
                        }
                        step(self, Some(contains.other), (next_at, n_found));
                    }
                    None if n_found < contains.min => {
                        step(self, Some(contains.item), (next_at, n_found + 1));
                        step(self, None, (next_at, n_found));
                    }
                    None => step(self, None, (next_at, n_found)),
                }
            }
            self.rules.close(rule, RulePart::alt(options));
        }
        Some(RulePart::seq([RulePart::text("["), self.style.gap(), RulePart::Rule(first)]))
    }
}
