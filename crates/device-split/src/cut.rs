//! A plan in two: the nodes before a layer, and the others.

use device::{
    DType, KvGroup, KvLayerId, KvLayout, Node, Op, OutputKind, Plan, RowCount, Rule, StateId, Value, ValueId,
    Weight,
};
use device_lower::fusion::fuse;

/// A plan in two parts, each fused for its device. Values have the same ids in both.
pub struct Cut {
    /// The parts.
    pub parts: [Plan; 2],
    /// Values of the first part that the second reads, `(tokens, cols)` f32: the first [`Plan::kept`] of the first part, and the columns
    /// of the second's [`Op::Input`], in this order.
    pub cols: Vec<usize>,
    /// By node of the plan that was cut: the part, and the node of it that has run when it has.
    pub ends: Vec<(usize, usize)>,
    /// By kept value of the plan: the part, and its index among the kept of that part.
    pub kept: Vec<(usize, usize)>,
    /// By part and node of it, the node of the plan that was cut.
    starts: [Vec<usize>; 2],
}

impl Cut {
    /// The node of the plan that was cut of which a part's node is made, the first of several.
    pub fn plan_node(&self, part: usize, node: usize) -> usize {
        self.starts[part].get(node).copied().unwrap_or(0)
    }
}

/// Which part has each layer of keys and values, and each recurrent layer's state, in all plans of a program.
pub struct Owners {
    kv: Vec<usize>,
    states: Vec<usize>,
}

/// The layer of keys and values that an Op uses.
fn kv_layer(op: &mut Op) -> Option<&mut KvLayerId> {
    if let Op::KvWrite { layer, .. }
    | Op::Attention { layer, .. }
    | Op::CrossAttention { layer, .. }
    | Op::CrossScores { layer, .. } = op
    {
        return Some(layer);
    }
    None
}

/// The state that an Op uses.
fn state(op: &Op) -> Option<StateId> {
    if let Op::ShortConv { state, .. } | Op::GatedDelta { state, .. } | Op::SelectiveScan { state, .. } = op {
        return Some(*state);
    }
    None
}

/// The node at which a plan is cut so that the first part has `first_layers` layers; `None`: nothing of a layer would be before it, or
/// nothing after it.
///
/// # Errors
/// Layers are not one after the other.
pub fn place(plan: &Plan, first_layers: usize) -> Result<Option<usize>, String> {
    let is_late = |node: &Node| node.layer.is_some_and(|layer| layer as usize >= first_layers);
    let is_early = |node: &Node| node.layer.is_some_and(|layer| (layer as usize) < first_layers);
    let Some(at) = plan.nodes.iter().position(is_late) else { return Ok(None) };
    if plan.nodes[at..].iter().any(is_early) {
        return Err(format!("work of the first {first_layers} layers after that of later ones"));
    }
    Ok(plan.nodes[..at].iter().any(is_early).then_some(at))
}

impl Owners {
    /// Of flat plans and where each is cut.
    ///
    /// # Errors
    /// Both parts use a layer.
    pub fn new(plans: &[Plan], places: &[usize]) -> Result<Owners, String> {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let mut of_kv: Vec<Option<usize>> = vec![None; kv.layers.len()];
        let mut of_states: Vec<Option<usize>> = vec![None; kv.states.len()];
        for (plan, at) in plans.iter().zip(places) {
            for (index, node) in plan.nodes.iter().enumerate() {
                let part = usize::from(index >= *at);
                let mut op = node.op.clone();
                let layer = kv_layer(&mut op).map(|layer| &mut of_kv[layer.0 as usize]);
                let state = state(&node.op).map(|state| &mut of_states[state.0 as usize]);
                for owner in layer.into_iter().chain(state) {
                    if owner.is_some_and(|other| other != part) {
                        return Err("keys and values of a layer that later layers share".to_owned());
                    }
                    *owner = Some(part);
                }
            }
        }
        let known = |owners: Vec<Option<usize>>| owners.into_iter().map(|owner| owner.unwrap_or(1)).collect();
        Ok(Owners { kv: known(of_kv), states: known(of_states) })
    }

    /// A part's layout: its layers, renumbered, in the same groups, of which some may be empty; and its states, those of the other part
    /// without numbers.
    pub fn layout(&self, kv: &KvLayout, part: usize) -> KvLayout {
        let mine = |id: &KvLayerId| self.kv[id.0 as usize] == part;
        let group = |group: &KvGroup| KvGroup {
            layers: group.layers.iter().filter(|id| mine(id)).map(|id| self.renumbered(*id)).collect(),
            ..group.clone()
        };
        let layers = kv.layers.iter().zip(&self.kv).filter(|(_, owner)| **owner == part);
        let states = kv.states.iter().zip(&self.states);
        KvLayout {
            layers: layers.map(|(layer, _)| *layer).collect(),
            groups: kv.groups.iter().map(group).collect(),
            states: states.map(|(len, owner)| if *owner == part { *len } else { 0 }).collect(),
        }
    }

    fn renumbered(&self, id: KvLayerId) -> KvLayerId {
        let index = id.0 as usize;
        let before = self.kv[..index].iter().filter(|owner| **owner == self.kv[index]).count();
        KvLayerId(before as u32)
    }
}

/// Cut a plan, which is `flat` where every node is a primitive.
///
/// # Errors
/// What crosses the cut is no rows of f32, one for each token.
pub fn cut(plan: &Plan, flat: &Plan, at: usize, owners: &Owners, rules: [&[Rule]; 2]) -> Result<Cut, String> {
    let written: Vec<ValueId> = flat.nodes[..at].iter().flat_map(|node| node.op.writes()).collect();
    let mut crossing: Vec<ValueId> = Vec::new();
    let results = [flat.output, flat.argmax];
    for id in flat.nodes[at..].iter().flat_map(|node| node.op.reads()).chain(results) {
        if written.contains(&id) && !crossing.contains(&id) {
            crossing.push(id);
        }
    }
    for id in &crossing {
        let value = flat.value(*id);
        if value.rows.per_token() != Some(1) || value.dtype != DType::F32 {
            return Err(format!(
                "{} between two layers, ({}, {}) {:?}",
                value.name, value.rows, value.cols, value.dtype
            ));
        }
    }
    let Some(first) = crossing.first().copied() else { return Err("layers that share nothing".to_owned()) };
    let cols: Vec<usize> = crossing.iter().map(|id| flat.value(*id).cols).collect();

    // The first part ends with choosing from a column of what it gives, since a plan ends so; no step asks for it.
    let mut before = part(flat, 0, &flat.nodes[..at], owners);
    let mut kept = crossing.clone();
    kept.extend(flat.kept.iter().copied().filter(|id| written.contains(id) && !crossing.contains(id)));
    let column = push(&mut before, RowCount::Tokens, DType::F32, 1);
    let chosen_from = push(&mut before, RowCount::Outputs, DType::F32, 1);
    let argmax = push(&mut before, RowCount::Outputs, DType::U32, 1);
    for op in [
        Op::Columns { x: first, first: 0, group: cols[0], out: column },
        Op::SelectRows { x: column, out: chosen_from },
        Op::Argmax { x: chosen_from, out: argmax },
    ] {
        before.nodes.push(Node { op, layer: None });
    }
    (before.output, before.argmax, before.output_kind) = (chosen_from, argmax, OutputKind::Hidden);
    before.kept = kept;

    let mut after = part(flat, 1, &flat.nodes[at..], owners);
    after.kept = flat.kept.iter().copied().filter(|id| !written.contains(id)).collect();
    let mut given = Vec::new();
    if crossing.len() == 1 {
        given.push(Op::Input { out: first });
    } else {
        let group = cols.iter().sum();
        let all = push(&mut after, RowCount::Tokens, DType::F32, group);
        given.push(Op::Input { out: all });
        let mut first = 0;
        for (id, cols) in crossing.iter().zip(&cols) {
            given.push(Op::Columns { x: all, first, group, out: *id });
            first += cols;
        }
    }
    let n_given = given.len();
    after.nodes.splice(0..0, given.into_iter().map(|op| Node { op, layer: None }));

    let of_kept = |id: &ValueId| match before.kept.iter().position(|kept| kept == id) {
        Some(index) => (0, index),
        None => (1, after.kept.iter().position(|kept| kept == id).unwrap_or(usize::MAX)),
    };
    let kept = flat.kept.iter().map(of_kept).collect();
    let parts = [fuse(&before, rules[0]), fuse(&after, rules[1])];
    // By primitive of a part, its node.
    let nodes = parts.each_ref().map(|part| {
        let of = |(index, node): (usize, &Node)| vec![index; node.op.primitives().len()];
        part.nodes.iter().enumerate().flat_map(of).collect::<Vec<usize>>()
    });
    // By node of the plan, the index of its last primitive.
    let mut n = 0;
    let lasts: Vec<usize> = plan
        .nodes
        .iter()
        .map(|node| {
            n += node.op.primitives().len();
            n - 1
        })
        .collect();
    let end = |last: &usize| match *last < at {
        true => (0, nodes[0][*last]),
        false => (1, nodes[1][*last - at + n_given]),
    };
    let ends: Vec<(usize, usize)> = lasts.iter().map(end).collect();
    let starts = [0, 1].map(|part| {
        let of = |node: usize| ends.iter().position(|end| *end >= (part, node)).unwrap_or(ends.len() - 1);
        (0..parts[part].nodes.len()).map(of).collect()
    });
    Ok(Cut { parts, cols, ends, kept, starts })
}

/// Some nodes of a plan as a plan, without what the others need.
fn part(flat: &Plan, part: usize, nodes: &[Node], owners: &Owners) -> Plan {
    let mut plan = Plan { nodes: nodes.to_vec(), kv: owners.layout(&flat.kv, part), ..flat.clone() };
    for layer in plan.nodes.iter_mut().filter_map(|node| kv_layer(&mut node.op)) {
        *layer = owners.renumbered(*layer);
    }
    let mut used = vec![false; plan.weights.len()];
    nodes.iter().flat_map(|node| node.op.weights()).for_each(|id| used[id.0 as usize] = true);
    for (weight, _) in plan.weights.iter_mut().zip(&used).filter(|(_, used)| !**used) {
        *weight = Weight::vector(weight.name.clone(), &[]);
    }
    plan
}

fn push(plan: &mut Plan, rows: RowCount, dtype: DType, cols: usize) -> ValueId {
    let id = ValueId(plan.values.len() as u32);
    plan.values.push(Value { name: format!("between devices {}", id.0), rows, cols, dtype });
    id
}
