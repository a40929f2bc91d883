//! Translation of GBNF to llguidance's Lark.
//!
//! llguidance runs a longest-match lexer before its parser; GBNF has no lexer. Rules without
//! recursion become one terminal: a single regular expression, in which nothing is cut. In a
//! recursive grammar, a terminal remains only if the longest match is right. That is, no text of
//! terminal A may continue, within any terminal B, with a byte that may begin the text after A.
//! Terminals that violate this are split, in the end to single characters, for which it always
//! holds.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::gbnf::{Gbnf, GbnfNode, NodeId};

/// Maximum number of nested elements, with rules.
const MAX_DEPTH: usize = 150;
/// Maximum number of characters of a terminal that is analysed; larger ones are split.
const MAX_POSITIONS: usize = 300;
/// Maximum number of rules of the Lark grammar, which `llguidance` follows by recursion.
const MAX_RULES: usize = 2_000;
/// Maximum number of pairs of characters that are compared, over the whole grammar.
const MAX_PAIRS: usize = 4_000_000;

/// First bytes of characters: bit `b % 64` of word `b / 64`.
type Bytes = [u64; 4];

/// Translates a grammar to Lark.
///
/// # Errors
/// It is too deep, or a rule has no text at all.
pub(super) fn to_lark(mut gbnf: Gbnf) -> Result<String, String> {
    check_ends(&gbnf)?;
    let regular = regular_rules(&gbnf)?;
    let mut grammar = Translator { is_regular: Vec::new(), split: HashSet::new(), regular, gbnf: &mut gbnf };
    grammar.prepare();
    let n_tries = grammar.gbnf.nodes.len() + 1;
    let mut pairs_left = MAX_PAIRS;
    for _ in 0..n_tries {
        let reached = grammar.reached();
        let n_rules = reached.iter().filter(|id| !grammar.is_terminal(**id)).count();
        if n_rules > MAX_RULES {
            return Err(format!("its recursive part has {n_rules} elements, expected at most {MAX_RULES}"));
        }
        let conflicts = grammar.conflicts(&reached, &mut pairs_left);
        if conflicts.is_empty() {
            return Ok(grammar.emit(&reached));
        }
        grammar.split.extend(conflicts);
    }
    Err("no set of terminals was found for it".into())
}

/// Checks that each rule has a text. A rule that only leads back to itself would be a dead end for
/// an answer.
fn check_ends(gbnf: &Gbnf) -> Result<(), String> {
    let mut ends = vec![false; gbnf.nodes.len()];
    loop {
        let mut changed = false;
        for id in 0..gbnf.nodes.len() {
            let now = match &gbnf.nodes[id] {
                GbnfNode::Class(_) => true,
                GbnfNode::Sequence(parts) => parts.iter().all(|part| ends[*part]),
                GbnfNode::Choice(options) => options.iter().any(|option| ends[*option]),
                GbnfNode::Repeat(_, 0, _) => true,
                GbnfNode::Repeat(node, _, _) => ends[*node],
                GbnfNode::Rule(rule) => ends[gbnf.rules[*rule]],
            };
            changed |= now != ends[id];
            ends[id] = now;
        }
        if !changed {
            break;
        }
    }
    match gbnf.rules.iter().position(|body| !ends[*body]) {
        Some(rule) => {
            Err(format!("the rule {:?} never ends: every path through it returns to it", gbnf.names[rule]))
        }
        None => Ok(()),
    }
}

/// True for each rule without recursion.
fn regular_rules(gbnf: &Gbnf) -> Result<Vec<bool>, String> {
    // Nodes follow their parts, except through rules, so one pass in order sees the parts first.
    let mut depth_of_rule: Vec<Option<usize>> = vec![None; gbnf.rules.len()];
    loop {
        let mut depth: Vec<Option<usize>> = Vec::with_capacity(gbnf.nodes.len());
        for node in &gbnf.nodes {
            let of = |parts: &[NodeId]| {
                parts.iter().try_fold(0, |deepest: usize, part| depth[*part].map(|d| deepest.max(d + 1)))
            };
            let here = match node {
                GbnfNode::Class(_) => Some(0),
                GbnfNode::Sequence(parts) | GbnfNode::Choice(parts) => of(parts),
                GbnfNode::Repeat(part, _, _) => of(&[*part]),
                GbnfNode::Rule(rule) => depth_of_rule[*rule].map(|d| d + 1),
            };
            if here.is_some_and(|depth| depth > MAX_DEPTH) {
                return Err(format!("more than {MAX_DEPTH} nested elements"));
            }
            depth.push(here);
        }
        let now: Vec<_> = gbnf.rules.iter().map(|body| depth[*body]).collect();
        if now == depth_of_rule {
            return Ok(now.iter().map(Option::is_some).collect());
        }
        depth_of_rule = now;
    }
}

struct Translator<'a> {
    gbnf: &'a mut Gbnf,
    regular: Vec<bool>,
    /// True for nodes without recursion.
    is_regular: Vec<bool>,
    /// Regular nodes that are not terminals.
    split: HashSet<NodeId>,
}

/// A terminal's characters, with those that may follow each.
struct Automaton {
    classes: Vec<Vec<(u32, u32)>>,
    follow: Vec<BTreeSet<usize>>,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Translator<'_> {
    /// Marks the regular nodes, and merges neighbours that can be one terminal.
    fn prepare(&mut self) {
        for id in 0..self.gbnf.nodes.len() {
            let here = match &self.gbnf.nodes[id] {
                GbnfNode::Class(_) => true,
                GbnfNode::Sequence(parts) | GbnfNode::Choice(parts) => {
                    parts.iter().all(|part| self.is_regular[*part])
                }
                GbnfNode::Repeat(part, _, _) => self.is_regular[*part],
                GbnfNode::Rule(rule) => self.regular[*rule],
            };
            self.is_regular.push(here);
        }
        for id in 0..self.gbnf.nodes.len() {
            if self.is_regular[id] {
                continue;
            }
            if let GbnfNode::Sequence(parts) = self.gbnf.nodes[id].clone() {
                let mut joined: Vec<NodeId> = Vec::new();
                for run in parts.chunk_by(|a, b| self.is_regular[*a] && self.is_regular[*b]) {
                    if run.len() > 1 {
                        self.gbnf.nodes.push(GbnfNode::Sequence(run.to_vec()));
                        joined.push(self.gbnf.nodes.len() - 1);
                    } else {
                        joined.extend(run);
                    }
                }
                self.gbnf.nodes[id] = GbnfNode::Sequence(joined);
            }
        }
        self.is_regular.resize(self.gbnf.nodes.len(), true);
    }

    fn is_terminal(&self, id: NodeId) -> bool {
        let is_class = matches!(self.gbnf.nodes[id], GbnfNode::Class(_));
        is_class || self.is_regular[id] && !self.split.contains(&id)
    }

    fn parts(&self, id: NodeId) -> Vec<NodeId> {
        match &self.gbnf.nodes[id] {
            GbnfNode::Class(_) => Vec::new(),
            GbnfNode::Sequence(parts) | GbnfNode::Choice(parts) => parts.clone(),
            GbnfNode::Repeat(part, _, _) => vec![*part],
            GbnfNode::Rule(rule) => vec![self.gbnf.rules[*rule]],
        }
    }

    fn root(&self) -> NodeId {
        self.gbnf.rules[self.gbnf.root]
    }

    /// Nodes reached from the root without entering a terminal.
    fn reached(&self) -> BTreeSet<NodeId> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![self.root()]);
        while let Some(id) = open.pop() {
            if seen.insert(id) && !self.is_terminal(id) {
                open.extend(self.parts(id));
            }
        }
        seen
    }

    /// Terminals that must be split.
    fn conflicts(&self, reached: &BTreeSet<NodeId>, pairs_left: &mut usize) -> HashSet<NodeId> {
        if self.is_terminal(self.root()) {
            return HashSet::new();
        }
        let follows = self.follows(reached);
        let mut conflicts = HashSet::new();
        let mut terminals = Vec::new();
        for id in reached.iter().copied().filter(|id| self.is_terminal(*id)) {
            let mut automaton = Automaton { classes: vec![], follow: vec![], first: vec![], last: vec![] };
            match self.build(id, &mut automaton) {
                Some((_, first, last)) => {
                    (automaton.first, automaton.last) = (first, last);
                    terminals.push((id, automaton));
                }
                None => drop(conflicts.insert(id)),
            }
        }
        let is_long = |id: &NodeId| !matches!(self.gbnf.nodes[*id], GbnfNode::Class(_));
        for (a, of_a) in &terminals {
            for (b, of_b) in terminals.iter().filter(|(b, _)| is_long(b)) {
                if conflicts.contains(b) {
                    continue;
                }
                if cuts(of_a, of_b, &follows[a], pairs_left) {
                    conflicts.insert(*b);
                    if is_long(a) {
                        conflicts.insert(*a);
                    }
                }
            }
        }
        conflicts
    }

    /// For each reached node, the first bytes of the text that may follow it.
    fn follows(&self, reached: &BTreeSet<NodeId>) -> BTreeMap<NodeId, Bytes> {
        // All nodes, since terminals need those inside them too.
        let n = self.gbnf.nodes.len();
        let (mut first, mut is_empty) = (vec![[0; 4]; n], vec![false; n]);
        loop {
            let mut changed = false;
            for id in 0..n {
                let (mut bytes, mut empty) = (first[id], is_empty[id]);
                match &self.gbnf.nodes[id] {
                    GbnfNode::Class(ranges) => bytes = first_bytes(ranges),
                    GbnfNode::Sequence(parts) => {
                        for part in parts {
                            add(&mut bytes, &first[*part]);
                            if !is_empty[*part] {
                                break;
                            }
                        }
                        empty = parts.iter().all(|part| is_empty[*part]);
                    }
                    GbnfNode::Choice(options) => {
                        options.iter().for_each(|option| add(&mut bytes, &first[*option]));
                        empty = options.iter().any(|option| is_empty[*option]);
                    }
                    GbnfNode::Repeat(part, min, _) => {
                        add(&mut bytes, &first[*part]);
                        empty = *min == 0 || is_empty[*part];
                    }
                    GbnfNode::Rule(rule) => {
                        let body = self.gbnf.rules[*rule];
                        add(&mut bytes, &first[body]);
                        empty = is_empty[body];
                    }
                }
                changed |= bytes != first[id] || empty != is_empty[id];
                (first[id], is_empty[id]) = (bytes, empty);
            }
            if !changed {
                break;
            }
        }
        let mut follows: BTreeMap<NodeId, Bytes> = reached.iter().map(|id| (*id, [0; 4])).collect();
        loop {
            let before = follows.clone();
            for id in reached.iter().copied().filter(|id| !self.is_terminal(*id)) {
                let mut after = follows[&id];
                let parts = self.parts(id);
                if matches!(self.gbnf.nodes[id], GbnfNode::Repeat(..)) {
                    add(&mut after, &first[parts[0]]);
                }
                let in_sequence = matches!(self.gbnf.nodes[id], GbnfNode::Sequence(_));
                for part in parts.iter().rev() {
                    if let Some(follow) = follows.get_mut(part) {
                        add(follow, &after);
                    }
                    if in_sequence {
                        if !is_empty[*part] {
                            after = [0; 4];
                        }
                        add(&mut after, &first[*part]);
                    }
                }
            }
            if before == follows {
                return follows;
            }
        }
    }

    /// Adds a terminal's characters. Returns whether it can be empty, with its first and last
    /// characters. A bounded repetition is treated as unbounded, which only finds more conflicts.
    /// `None` if there are too many.
    fn build(&self, id: NodeId, to: &mut Automaton) -> Option<(bool, Vec<usize>, Vec<usize>)> {
        match &self.gbnf.nodes[id] {
            GbnfNode::Class(ranges) => {
                let here = to.classes.len();
                if here == MAX_POSITIONS {
                    return None;
                }
                to.classes.push(ranges.clone());
                to.follow.push(BTreeSet::new());
                Some((false, vec![here], vec![here]))
            }
            GbnfNode::Sequence(parts) => {
                let (mut empty, mut first, mut last) = (true, Vec::new(), Vec::new());
                for part in parts {
                    let (part_empty, part_first, part_last) = self.build(*part, to)?;
                    last.iter().for_each(|at: &usize| to.follow[*at].extend(&part_first));
                    if empty {
                        first.extend(&part_first);
                    }
                    if !part_empty {
                        last.clear();
                    }
                    last.extend(part_last);
                    empty &= part_empty;
                }
                Some((empty, first, last))
            }
            GbnfNode::Choice(options) => {
                let (mut empty, mut first, mut last) = (false, Vec::new(), Vec::new());
                for option in options {
                    let (option_empty, option_first, option_last) = self.build(*option, to)?;
                    empty |= option_empty;
                    first.extend(option_first);
                    last.extend(option_last);
                }
                Some((empty, first, last))
            }
            GbnfNode::Repeat(part, min, _) => {
                let (empty, first, last) = self.build(*part, to)?;
                last.iter().for_each(|at| to.follow[*at].extend(&first));
                Some((empty || *min == 0, first, last))
            }
            GbnfNode::Rule(rule) => self.build(self.gbnf.rules[*rule], to),
        }
    }

    fn emit(&self, reached: &BTreeSet<NodeId>) -> String {
        let mut lark = String::new();
        let mut in_terminals = HashSet::new();
        let mut open = Vec::new();
        let rule_name = |id: NodeId| match self.is_terminal(id) {
            true => format!("T{id}"),
            false => format!("r{id}"),
        };
        lark.push_str(&format!("start: {}\n", rule_name(self.root())));
        for &id in reached {
            if self.is_terminal(id) {
                open.push(id);
            } else {
                lark.push_str(&format!("r{id}: {}\n", self.body(id, &rule_name)));
            }
        }
        while let Some(id) = open.pop() {
            if in_terminals.insert(id) {
                lark.push_str(&format!("T{id}: {}\n", self.body(id, &|id| format!("T{id}"))));
                open.extend(self.parts(id));
            }
        }
        lark
    }

    fn body(&self, id: NodeId, name: &dyn Fn(NodeId) -> String) -> String {
        let names = |parts: &[NodeId], between: &str| {
            let names: Vec<String> = parts.iter().map(|part| name(*part)).collect();
            names.join(between)
        };
        match &self.gbnf.nodes[id] {
            GbnfNode::Class(ranges) => {
                let of = |(first, last): &(u32, u32)| format!("\\x{{{first:X}}}-\\x{{{last:X}}}");
                let ranges: Vec<String> = ranges.iter().map(of).collect();
                format!("/[{}]/", ranges.concat())
            }
            GbnfNode::Sequence(parts) if parts.is_empty() => "\"\"".into(),
            GbnfNode::Sequence(parts) => names(parts, " "),
            GbnfNode::Choice(options) => names(options, " | "),
            GbnfNode::Repeat(_, _, Some(0)) => "\"\"".into(),
            GbnfNode::Repeat(part, 0, Some(1)) => format!("{}?", name(*part)),
            GbnfNode::Repeat(part, 0, None) => format!("{}*", name(*part)),
            GbnfNode::Repeat(part, 1, None) => format!("{}+", name(*part)),
            GbnfNode::Repeat(part, min, None) => format!("{}{{{min},}}", name(*part)),
            GbnfNode::Repeat(part, min, Some(max)) => format!("{}{{{min},{max}}}", name(*part)),
            GbnfNode::Rule(rule) => name(self.gbnf.rules[*rule]),
        }
    }
}

/// Returns true if a text of `a` may continue within `b` by a byte of `after`, or if there are too
/// many pairs to compare.
fn cuts(a: &Automaton, b: &Automaton, after: &Bytes, pairs_left: &mut usize) -> bool {
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    let pair = |p: &[usize], q: &mut dyn Iterator<Item = usize>, open: &mut Vec<(usize, usize)>| {
        q.for_each(|q| open.extend(p.iter().map(|p| (*p, q))));
    };
    pair(&a.first, &mut b.first.iter().copied(), &mut open);
    while let Some((p, q)) = open.pop() {
        if !overlap(&a.classes[p], &b.classes[q]) || !seen.insert((p, q)) {
            continue;
        }
        if *pairs_left == 0 {
            return true;
        }
        *pairs_left -= 1;
        let goes_on = |next: &usize| meet(&first_bytes(&b.classes[*next]), after);
        if a.last.contains(&p) && b.follow[q].iter().any(goes_on) {
            return true;
        }
        let next: Vec<usize> = a.follow[p].iter().copied().collect();
        pair(&next, &mut b.follow[q].iter().copied(), &mut open);
    }
    false
}

fn overlap(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    a.iter().any(|(first, last)| b.iter().any(|(begin, end)| first <= end && begin <= last))
}

fn meet(a: &Bytes, b: &Bytes) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

fn add(to: &mut Bytes, more: &Bytes) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to |= more);
}

/// First UTF-8 bytes of these characters, which are ascending as the characters are.
fn first_bytes(ranges: &[(u32, u32)]) -> Bytes {
    let first_byte = |code: u32| match code {
        0..0x80 => code,
        0x80..0x800 => 0xc0 | (code >> 6),
        0x800..0x1_0000 => 0xe0 | (code >> 12),
        _ => 0xf0 | (code >> 18),
    };
    let mut bytes = [0; 4];
    for (first, last) in ranges {
        for byte in first_byte(*first)..=first_byte(*last) {
            bytes[byte as usize / 64] |= 1 << (byte % 64);
        }
    }
    bytes
}
