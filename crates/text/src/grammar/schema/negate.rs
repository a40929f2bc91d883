//! Negation of schemas, and the test whether two schemas exclude each other.

use serde_json::Value;

use super::node::{Bound, Contains, Id, Node, Types};
use super::parse::Parser;

/// Maximum number of references followed to decide whether two schemas exclude each other.
const MAX_STEPS: usize = 64;

impl Parser<'_> {
    /// The negation of a node: one of its parts is violated. Parts without an expressible negation
    /// are dropped, which allows too little. If no part is left, everything is allowed and `key` is
    /// reported.
    pub(super) fn negated(&mut self, id: Id, key: &'static str) -> Node {
        let node = self.nodes[id].clone();
        let place = node.place.clone();
        let plain = Node::at(&place);
        let of = |types: Types| Node::of_types(types, &place);
        let mut options: Vec<Node> = Vec::new();
        if node.types != Types::ALL {
            options.push(of(node.types.others()));
        }
        if let Some(allowed) = node.allowed {
            options.push(Node { forbidden: allowed, ..plain.clone() });
        }
        if !node.forbidden.is_empty() {
            options.push(Node { allowed: Some(node.forbidden), ..plain.clone() });
        }
        for name in node.required {
            let never = self.add(of(Types::NONE));
            options.push(Node { properties: vec![(name, never)], ..of(Types::OBJECT) });
        }
        for bound in node.bounds {
            let other = Bound { is_least: !bound.is_least, is_exclusive: !bound.is_exclusive, ..bound };
            options.push(Node { bounds: vec![other], ..of(Types::NUMBER) });
        }
        if node.min_length > 0 {
            options.push(Node { max_length: Some(node.min_length - 1), ..of(Types::STRING) });
        }
        if let Some(max) = node.max_length {
            options.push(Node { min_length: max.saturating_add(1), ..of(Types::STRING) });
        }
        for rx in node.texts {
            options.push(Node { texts: vec![rx.not()], ..of(Types::STRING) });
        }
        if node.min_items > 0 {
            options.push(Node { max_items: Some(node.min_items - 1), ..of(Types::ARRAY) });
        }
        if let Some(max) = node.max_items {
            options.push(Node { min_items: max.saturating_add(1), ..of(Types::ARRAY) });
        }
        if let Some(item) = node.items.filter(|_| node.prefix.is_empty()) {
            let other = self.negation(item, key);
            let contains = Some(Contains { item: other, other: item, min: 1, max: None });
            options.push(Node { contains, ..of(Types::ARRAY) });
        }
        if let Some(contains) =
            node.contains.as_ref().filter(|contains| contains.min == 1 && contains.max.is_none())
        {
            let items = Some(self.negation(contains.item, key));
            options.push(Node { items, ..of(Types::ARRAY) });
        }
        for (name, id) in &node.properties {
            if options.len() >= self.effort.n_ways || self.allows_all(*id) {
                continue;
            }
            let other = self.negation(*id, key);
            let properties = vec![(name.clone(), other)];
            options.push(Node { properties, required: vec![name.clone()], ..of(Types::OBJECT) });
        }
        if node.min_properties > 0 {
            options.push(Node { max_properties: Some(node.min_properties - 1), ..of(Types::OBJECT) });
        }
        if let Some(max) = node.max_properties {
            options.push(Node { min_properties: max.saturating_add(1), ..of(Types::OBJECT) });
        }
        for part in node.all {
            let other = self.negation(part, key);
            options.push(Node { all: vec![other], ..plain.clone() });
        }
        for group in node.any {
            let all = group.into_iter().map(|option| self.negation(option, key)).collect();
            options.push(Node { all, ..plain.clone() });
        }
        let is_partial = node.is_partial
            || !node.multiples.is_empty()
            || !node.prefix.is_empty()
            || node.is_unique
            || node.contains.is_some()
            || !node.patterns.is_empty()
            || node.additional.is_some()
            || node.unevaluated.is_some()
            || !node.names.is_empty();
        // The first options matter most in practice: types, constants, missing properties.
        options.truncate(self.effort.n_ways);
        match options.len() {
            0 if is_partial => {
                self.report(key, &place);
                Node { is_partial: true, ..plain }
            }
            0 => of(Types::NONE),
            1 => options.remove(0),
            _ => {
                let ids = options.into_iter().map(|option| self.add(option)).collect();
                Node { any: vec![ids], ..plain }
            }
        }
    }

    /// Returns true if a node has no restrictions.
    fn allows_all(&self, id: Id) -> bool {
        let node = &self.nodes[id];
        let blank = Node::at(&node.place);
        !node.is_partial
            && node.types == blank.types
            && node.allowed.is_none()
            && node.forbidden.is_empty()
            && node.bounds.is_empty()
            && node.multiples.is_empty()
            && node.min_length == 0
            && node.max_length.is_none()
            && node.texts.is_empty()
            && node.all.is_empty()
            && node.any.is_empty()
            && node.names.is_empty()
            && !says_of_arrays(node)
            && !says_of_objects(node)
    }

    /// Returns true if no value of one node is valid for the other.
    pub(super) fn is_apart(&self, made: Id, other: Id) -> bool {
        let mut left = MAX_STEPS;
        self.excludes(made, other, &mut left)
    }

    fn excludes(&self, made: Id, other: Id, left: &mut usize) -> bool {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let (made_parts, other_parts) = (self.parts(made), self.parts(other));
        let any_of = |parts: &[Id]| {
            let groups: Vec<Vec<Id>> = parts.iter().flat_map(|id| self.nodes[*id].any.clone()).collect();
            groups
        };
        if any_of(&made_parts)
            .iter()
            .any(|group| group.iter().all(|option| self.excludes(*option, other, left)))
        {
            return true;
        }
        if any_of(&other_parts)
            .iter()
            .any(|group| group.iter().all(|option| self.excludes(made, *option, left)))
        {
            return true;
        }
        let (one, two) = (self.values(&made_parts), self.values(&other_parts));
        if !one.0.has(two.0) {
            return true;
        }
        if let (Some(one), Some(two)) = (&one.1, &two.1)
            && !one.iter().any(|value| two.contains(value))
        {
            return true;
        }
        if one.0 != Types::OBJECT {
            return false;
        }
        // A key required by one node, which the other forbids or gives another value.
        let required = |parts: &[Id]| -> Vec<String> {
            parts.iter().flat_map(|id| self.nodes[*id].required.clone()).collect()
        };
        let of = |parts: &[Id], name: &str| -> Vec<Id> {
            parts.iter().flat_map(|id| self.nodes[*id].property(name)).collect()
        };
        let is_closed = self.is_closed(&made_parts);
        let lists = |parts: &[Id], name: &str| {
            parts.iter().any(|id| {
                let node = &self.nodes[*id];
                node.properties.iter().any(|(key, _)| key == name)
                    || node.required.iter().any(|key| key == name)
            })
        };
        let made_required = required(&made_parts);
        for name in &required(&other_parts) {
            if is_closed && !lists(&made_parts, name) && of(&made_parts, name).is_empty() {
                return true;
            }
            if made_required.contains(name)
                && self.any_excludes(&of(&made_parts, name), &of(&other_parts, name), left)
            {
                return true;
            }
        }
        made_required.iter().any(|name| {
            let allowed = of(&other_parts, name);
            !allowed.is_empty() && self.any_excludes(&of(&made_parts, name), &allowed, left)
        })
    }

    fn any_excludes(&self, made: &[Id], other: &[Id], left: &mut usize) -> bool {
        if other.iter().any(|id| self.nodes[*id].types == Types::NONE) {
            return true;
        }
        made.iter().any(|made| other.iter().any(|other| self.excludes(*made, *other, left)))
    }

    /// The node and all that it refers to.
    fn parts(&self, id: Id) -> Vec<Id> {
        let mut found = vec![id];
        let mut at = 0;
        while at < found.len() && found.len() < MAX_STEPS {
            for part in &self.nodes[found[at]].all {
                if !found.contains(part) {
                    found.push(*part);
                }
            }
            at += 1;
        }
        found
    }

    /// The types and the values that all parts allow.
    fn values(&self, parts: &[Id]) -> (Types, Option<Vec<Value>>) {
        let mut types = Types::ALL;
        let mut allowed: Option<Vec<Value>> = None;
        for id in parts {
            let node = &self.nodes[*id];
            types = types.and(node.types);
            if let Some(values) = &node.allowed {
                let so_far = allowed.unwrap_or_else(|| values.clone());
                allowed = Some(so_far.into_iter().filter(|value| values.contains(value)).collect());
            }
        }
        if let Some(allowed) = &mut allowed {
            allowed.retain(|value| types.has(Types::of(value)));
            types = allowed.iter().fold(Types::NONE, |types, value| types.or(Types::of(value)));
        }
        (types, allowed)
    }

    /// Returns true if objects of these parts have only the listed keys.
    fn is_closed(&self, parts: &[Id]) -> bool {
        let speaks = |id: &Id| self.nodes[*id].additional.is_some() || self.nodes[*id].unevaluated.is_some();
        let lists = parts.iter().any(|id| self.nodes[*id].lists);
        let has_choices = parts.iter().any(|id| !self.nodes[*id].any.is_empty());
        let is_never = |id: Option<Id>| id.is_some_and(|id| self.nodes[id].types == Types::NONE);
        (!self.is_open && lists && !has_choices && !parts.iter().any(speaks))
            || parts.iter().any(|id| is_never(self.nodes[*id].additional))
    }
}

fn says_of_arrays(node: &Node) -> bool {
    !node.prefix.is_empty()
        || node.items.is_some()
        || node.min_items > 0
        || node.max_items.is_some()
        || node.is_unique
        || node.contains.is_some()
}

fn says_of_objects(node: &Node) -> bool {
    !node.properties.is_empty()
        || !node.patterns.is_empty()
        || node.additional.is_some()
        || node.unevaluated.is_some()
        || !node.required.is_empty()
        || node.min_properties > 0
        || node.max_properties.is_some()
        || node.lists
}
