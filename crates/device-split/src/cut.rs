//! A plan cut into segments: runs of nodes that one device computes, each a plan of its own.
//!
//! Values keep their ids. What a segment reads of earlier ones are rows of f32 that go through the host: each is kept by the plan of the
//! segment that writes it, lies in a slot of the host's memory until its last reader has run, and is one of the columns of the
//! reader's [`Op::Input`]. That has a row for each token, so that values with a row for each output are first spread over the rows of
//! their tokens, and then selected again. What depends on nothing but the step ([`Op::Ordinals`], [`Op::Adapters`]) is computed by each
//! segment that needs it.

use device::{DType, Limits, Node, Op, OutputKind, Plan, RowCount, Rule, Value, ValueId, Weight};
use device_lower::fusion::fuse;

use crate::owners::{Owners, kv_layer, state};
use crate::place::Placement;

/// A segment's plan, and how a step goes through it.
pub struct Segment {
    /// The device.
    pub device: usize,
    /// Which of the device's plans it is.
    pub plan: usize,
    /// What its Input takes, in the order of its columns. Where this is empty, its Input, if it has one, is the step's.
    pub given: Vec<Given>,
    /// By kept value of its plan, the slot to which it goes.
    pub slots: Vec<usize>,
    /// What it takes of a step.
    pub takes: Takes,
    /// By node of its plan, the node of the plan that was cut of which it is made, the first of several.
    nodes: Vec<usize>,
}

impl Segment {
    /// The node of the plan that was cut.
    pub fn plan_node(&self, node: usize) -> usize {
        self.nodes.get(node).copied().unwrap_or(0)
    }
}

/// A value that a segment takes from a slot.
pub struct Given {
    /// The slot.
    pub slot: usize,
    /// Its columns.
    pub cols: usize,
    /// It has a row for each output, not for each token.
    pub of_outputs: bool,
}

/// What a segment takes of a step, which must be empty otherwise.
pub struct Takes {
    /// Values have rows for outputs.
    pub outputs: bool,
    /// There are recurrent layers.
    pub states: bool,
    /// There are adapters.
    pub adapters: bool,
    /// The plan that was cut has an Input, and it is here.
    pub input: bool,
}

/// The segments of a plan.
pub struct Cut {
    /// In the order in which they are computed.
    pub segments: Vec<Segment>,
    /// By slot, most numbers that it has.
    pub slots: Vec<usize>,
    /// Most numbers that are put together for an Input.
    pub input: usize,
    /// By node of the plan that was cut: the segment, and the node of it, that has run when all nodes up to that one have.
    pub ends: Vec<(usize, usize)>,
    /// By kept value of the plan, its slot.
    pub kept: Vec<usize>,
    /// Values of the plan that was cut; those beyond are the segments' own.
    pub n_values: usize,
}

/// What goes from segment to segment.
struct Flow {
    /// By segment, what it reads of earlier ones.
    given: Vec<Vec<ValueId>>,
    /// By segment, what later ones read of it, then what else of it the caller keeps.
    keeps: Vec<Vec<ValueId>>,
    /// By segment, nodes of earlier ones that it computes again.
    again: Vec<Vec<usize>>,
    /// By value, the last segment that reads it; `usize::MAX`: the caller.
    last: Vec<usize>,
}

impl Flow {
    /// `runs` are those of [`Placement::runs`].
    ///
    /// # Errors
    /// What goes from one device to the other is no row of f32 for each token or output.
    fn new(flat: &Plan, place: &Placement, runs: &[(usize, std::ops::Range<usize>)]) -> Result<Flow, String> {
        let none = || vec![Vec::new(); runs.len()];
        let mut flow = Flow {
            given: none(),
            keeps: none(),
            again: vec![Vec::new(); runs.len()],
            last: vec![0; flat.values.len()],
        };
        // By value, the segment and the node that write it.
        let mut writers: Vec<Option<(usize, usize)>> = vec![None; flat.values.len()];
        for (segment, (_, run)) in runs.iter().enumerate() {
            for node in &place.order[run.clone()] {
                let op = &flat.nodes[*node].op;
                flow.read(flat, &writers, segment, &op.reads());
                op.writes().iter().for_each(|id| writers[id.0 as usize] = Some((segment, *node)));
            }
        }
        flow.read(flat, &writers, runs.len().saturating_sub(1), &[flat.output, flat.argmax]);
        for id in flow.given.iter().flatten() {
            let Value { name, rows, cols, dtype } = flat.value(*id);
            let has_rows = *rows == RowCount::Tokens || *rows == RowCount::Outputs;
            if !has_rows || *dtype != DType::F32 {
                return Err(format!("{name} between two devices, ({rows}, {cols}) {dtype:?}"));
            }
            let Some((segment, _)) = writers[id.0 as usize] else { continue };
            if !flow.keeps[segment].contains(id) {
                flow.keeps[segment].push(*id);
            }
        }
        for (segment, keeps) in flow.keeps.iter().enumerate() {
            if keeps.is_empty() && segment + 1 < runs.len() {
                return Err("layers that share nothing".to_owned());
            }
        }
        for id in &flat.kept {
            flow.last[id.0 as usize] = usize::MAX;
            let Some((segment, _)) = writers[id.0 as usize] else { continue };
            if !flow.keeps[segment].contains(id) {
                flow.keeps[segment].push(*id);
            }
        }
        Ok(flow)
    }

    /// A segment reads these values.
    fn read(&mut self, flat: &Plan, writers: &[Option<(usize, usize)>], segment: usize, ids: &[ValueId]) {
        for id in ids {
            let Some((_, node)) = writers[id.0 as usize].filter(|(writer, _)| *writer != segment) else {
                continue;
            };
            if matches!(flat.nodes[node].op, Op::Ordinals { .. } | Op::Adapters { .. }) {
                if !self.again[segment].contains(&node) {
                    self.again[segment].push(node);
                }
            } else if !self.given[segment].contains(id) {
                self.given[segment].push(*id);
                self.last[id.0 as usize] = segment;
            }
        }
    }

    /// By value, its slot (of those that have one); and by slot, its numbers at most. Values whose readers have run leave theirs to others.
    fn slots(&self, flat: &Plan, limits: &Limits) -> (Vec<usize>, Vec<usize>) {
        let (mut of, mut slots) = (vec![usize::MAX; flat.values.len()], Vec::new());
        let mut free: Vec<usize> = Vec::new();
        for (segment, (given, keeps)) in self.given.iter().zip(&self.keeps).enumerate() {
            let done = given.iter().filter(|id| self.last[id.0 as usize] == segment);
            free.extend(done.map(|id| of[id.0 as usize]));
            for id in keeps {
                let slot = free.pop().unwrap_or_else(|| {
                    slots.push(0);
                    slots.len() - 1
                });
                of[id.0 as usize] = slot;
                slots[slot] = slots[slot].max(len(flat.value(*id), limits));
            }
        }
        (of, slots)
    }
}

/// Most numbers of a value.
fn len(value: &Value, limits: &Limits) -> usize {
    value.rows.count(limits.max_rows, limits.max_outputs) * value.cols
}

/// Cut a plan, which is `flat` where every node is a primitive. The segments' plans, fused by their devices' rules, are added to those
/// of each device.
///
/// # Errors
/// What goes from one device to the other is no row of f32 for each token or output.
pub fn cut(
    (plan, flat): (&Plan, &Plan),
    place: &Placement,
    owners: &Owners,
    rules: [&[Rule]; 2],
    limits: &Limits,
    plans: &mut [Vec<Plan>; 2],
) -> Result<Cut, String> {
    let runs = place.runs();
    let flow = Flow::new(flat, place, &runs)?;
    let (slot_of, slots) = flow.slots(flat, limits);
    // By primitive, the node of the plan.
    let of = |(index, node): (usize, &Node)| vec![index; node.op.primitives().len()];
    let plan_nodes: Vec<usize> = plan.nodes.iter().enumerate().flat_map(of).collect();
    let mut places = vec![(0, 0); flat.nodes.len()];
    let mut segments = Vec::with_capacity(runs.len());
    let mut input = 0;
    for (index, (device, run)) in runs.iter().enumerate() {
        let nodes = &place.order[run.clone()];
        let part = Part::new(flat, nodes, &flow, index, index + 1 == runs.len())?;
        let fused = fuse(&part.plan(flat, owners, *device), rules[*device]);
        // By node of the segment, its first primitive's.
        let (mut first, mut at) = (Vec::with_capacity(fused.nodes.len()), 0);
        for (node, n) in fused.nodes.iter().enumerate() {
            let end = at + n.op.primitives().len();
            let mine = part.begin.len()..part.begin.len() + nodes.len();
            for of_run in (at..end).filter(|at| mine.contains(at)) {
                places[nodes[of_run - mine.start]] = (index, node);
            }
            first.push(plan_nodes[nodes[at.clamp(mine.start, mine.end - 1) - mine.start]]);
            at = end;
        }
        let given: Vec<Given> = flow.given[index]
            .iter()
            .map(|id| Given {
                slot: slot_of[id.0 as usize],
                cols: flat.value(*id).cols,
                of_outputs: flat.value(*id).rows == RowCount::Outputs,
            })
            .collect();
        if !is_direct(&given) {
            input = input.max(limits.max_rows * given.iter().map(|given| given.cols).sum::<usize>());
        }
        segments.push(Segment {
            device: *device,
            plan: plans[*device].len(),
            given,
            slots: flow.keeps[index].iter().map(|id| slot_of[id.0 as usize]).collect(),
            takes: part.takes,
            nodes: first,
        });
        plans[*device].push(fused);
    }
    // What stands earlier in the plan may be computed later.
    let mut ends = vec![(0, 0); plan.nodes.len()];
    for (place, node) in places.iter().zip(&plan_nodes) {
        ends[*node] = ends[*node].max(*place);
    }
    for node in 1..ends.len() {
        ends[node] = ends[node].max(ends[node - 1]);
    }
    let kept = flat.kept.iter().map(|id| slot_of[id.0 as usize]).collect();
    Ok(Cut { segments, slots, input, ends, kept, n_values: plan.values.len() })
}

/// Whether a slot is an Input as it is.
pub fn is_direct(given: &[Given]) -> bool {
    matches!(given, [] | [Given { of_outputs: false, .. }])
}

/// A segment on its way to a plan.
struct Part {
    values: Vec<Value>,
    /// What takes the values of other segments.
    begin: Vec<Node>,
    /// The segment's own nodes.
    nodes: Vec<Node>,
    /// What makes it a plan, which ends with a choice.
    end: Vec<Node>,
    output: ValueId,
    argmax: ValueId,
    output_kind: OutputKind,
    kept: Vec<ValueId>,
    takes: Takes,
}

impl Part {
    fn new(flat: &Plan, nodes: &[usize], flow: &Flow, segment: usize, is_last: bool) -> Result<Part, String> {
        let own = |node: &usize| flat.nodes[*node].clone();
        let mut part = Part {
            values: flat.values.clone(),
            begin: Vec::new(),
            nodes: nodes.iter().map(own).collect(),
            end: Vec::new(),
            output: flat.output,
            argmax: flat.argmax,
            output_kind: flat.output_kind,
            kept: flow.keeps[segment].clone(),
            takes: Takes { outputs: is_last, states: false, adapters: false, input: false },
        };
        part.begin(flat, &flow.given[segment]);
        part.begin.extend(flow.again[segment].iter().map(own));
        for op in part.begin.iter().chain(&part.nodes).map(|node| &node.op) {
            let of_outputs = |id: &ValueId| part.values[id.0 as usize].rows == RowCount::Outputs;
            part.takes.outputs |= op.writes().iter().any(of_outputs);
            part.takes.states |= state(op).is_some();
            part.takes.adapters |= matches!(op, Op::Adapters { .. });
        }
        part.takes.input = part.nodes.iter().any(|node| matches!(node.op, Op::Input { .. }));
        if part.takes.input && !flow.given[segment].is_empty() {
            return Err("an input of the step beside what another device gives".to_owned());
        }
        if !is_last {
            part.end(flat);
        }
        Ok(part)
    }

    /// Take these values.
    fn begin(&mut self, flat: &Plan, given: &[ValueId]) {
        let mut ops = Vec::new();
        let group = given.iter().map(|id| flat.value(*id).cols).sum();
        let all = match given {
            [] => return,
            [only] if flat.value(*only).rows == RowCount::Tokens => *only,
            _ => self.push(RowCount::Tokens, DType::F32, group),
        };
        ops.push(Op::Input { out: all });
        let mut first = 0;
        for id in given.iter().filter(|id| **id != all) {
            let Value { rows, cols, .. } = *flat.value(*id);
            let of_tokens = match rows == RowCount::Outputs {
                false => *id,
                true if given.len() == 1 => all,
                true => self.push(RowCount::Tokens, DType::F32, cols),
            };
            if of_tokens != all {
                ops.push(Op::Columns { x: all, first, group, out: of_tokens });
            }
            if of_tokens != *id {
                ops.push(Op::SelectRows { x: of_tokens, out: *id });
            }
            first += cols;
        }
        self.begin.extend(ops.into_iter().map(|op| Node { op, layer: None }));
    }

    /// Every plan ends by choosing a token. This one would choose from a column of the first value that it keeps, but no step asks for it.
    fn end(&mut self, flat: &Plan) {
        let Some(first) = self.kept.first().copied() else { return };
        let Value { rows, cols: group, .. } = *flat.value(first);
        let column = self.push(rows, DType::F32, 1);
        let mut ops = vec![Op::Columns { x: first, first: 0, group, out: column }];
        self.output = column;
        if rows != RowCount::Outputs {
            self.output = self.push(RowCount::Outputs, DType::F32, 1);
            ops.push(Op::SelectRows { x: column, out: self.output });
        }
        self.argmax = self.push(RowCount::Outputs, DType::U32, 1);
        ops.push(Op::Argmax { x: self.output, out: self.argmax });
        self.output_kind = OutputKind::Hidden;
        self.end.extend(ops.into_iter().map(|op| Node { op, layer: None }));
    }

    fn push(&mut self, rows: RowCount, dtype: DType, cols: usize) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name: format!("between devices {}", id.0), rows, cols, dtype });
        id
    }

    /// The plan, without what only other segments need.
    fn plan(&self, flat: &Plan, owners: &Owners, device: usize) -> Plan {
        let nodes = self.begin.iter().chain(&self.nodes).chain(&self.end);
        let mut nodes: Vec<Node> = nodes.cloned().collect();
        for layer in nodes.iter_mut().filter_map(|node| kv_layer(&mut node.op)) {
            *layer = owners.renumbered(*layer);
        }
        let (mut has_value, mut has_weight) =
            (vec![false; self.values.len()], vec![false; flat.weights.len()]);
        for op in nodes.iter().map(|node| &node.op) {
            op.writes().iter().for_each(|id| has_value[id.0 as usize] = true);
            op.weights().iter().for_each(|id| has_weight[id.0 as usize] = true);
        }
        let weight = |(weight, has): (&Weight, &bool)| match has {
            true => weight.clone(),
            false => Weight::vector(String::new(), &[]),
        };
        let value = |(value, has): (&Value, &bool)| match has {
            true => value.clone(),
            false => Value { name: String::new(), cols: 0, ..*value },
        };
        Plan {
            values: self.values.iter().zip(&has_value).map(value).collect(),
            weights: flat.weights.iter().zip(&has_weight).map(weight).collect(),
            nodes,
            kv: owners.layout(&flat.kv, device),
            output: self.output,
            argmax: self.argmax,
            output_kind: self.output_kind,
            kept: self.kept.clone(),
        }
    }
}
