//! Segments of a plan: runs of nodes that one device computes, each a plan of its own.
//!
//! Values keep their ids. A segment reads values of earlier segments as rows of f32 through the
//! host. The plan of the writing segment keeps each such value. It is stored in a slot of host
//! memory until its last reader has run, and is a group of columns of the reader's [`Op::Input`].
//! The Input has a row for each token. So values with a row for each output are first spread over
//! the rows of their tokens, and then selected again. Each segment computes values that depend on
//! the step alone ([`Op::Ordinals`], [`Op::Adapters`]) itself.

use device::{DType, FusedKind, Limits, Node, Op, OutputKind, Plan, RowCount, Value, ValueId, Weight};
use device_lower::fusion::fuse;

use crate::owners::{Owners, kv_layer, state};
use crate::place::Placement;

/// Plan of a segment, and its inputs and outputs in a step.
pub struct Segment {
    /// The device.
    pub device: usize,
    /// Index among the device's plans.
    pub plan: usize,
    /// Values of its Input, in the order of columns. If empty, its Input, if any, is the step's.
    pub given: Vec<Given>,
    /// Slot of each kept value of its plan.
    pub slots: Vec<usize>,
    /// Parts of a step that it reads.
    pub takes: Takes,
    /// For each node of its plan, the node of the original plan from which it was made, the first
    /// if there are several.
    nodes: Vec<usize>,
}

impl Segment {
    /// The node of the original plan for a node of this plan.
    pub fn plan_node(&self, node: usize) -> usize {
        self.nodes.get(node).copied().unwrap_or(0)
    }
}

/// A value that a segment reads from a slot.
pub struct Given {
    /// The slot.
    pub slot: usize,
    /// Its columns.
    pub cols: usize,
    /// True if it has a row for each output instead of each token.
    pub of_outputs: bool,
}

/// Parts of a step that a segment reads; other parts must be empty.
pub struct Takes {
    /// True if values have rows for outputs.
    pub outputs: bool,
    /// True if there are recurrent layers.
    pub states: bool,
    /// True if there are adapters.
    pub adapters: bool,
    /// True if the segment has the Input of the original plan.
    pub input: bool,
}

/// Segments of a plan.
pub struct Cut {
    /// The segments, in the order of computation.
    pub segments: Vec<Segment>,
    /// Largest number of f32 in each slot.
    pub slots: Vec<usize>,
    /// Largest number of f32 that are gathered for an Input.
    pub input: usize,
    /// For each node of the original plan, the segment, and its node, that completes all nodes up
    /// to that one.
    pub ends: Vec<(usize, usize)>,
    /// Slot of each kept value of the plan.
    pub kept: Vec<usize>,
    /// Number of values of the original plan; later ids belong to single segments.
    pub n_values: usize,
}

/// Values that pass from segment to segment.
struct Flow {
    /// Values that each segment reads from earlier ones.
    given: Vec<Vec<ValueId>>,
    /// Values of each segment that later segments read, then other values that the caller keeps.
    keeps: Vec<Vec<ValueId>>,
    /// Nodes of earlier segments that each segment computes again.
    again: Vec<Vec<usize>>,
    /// The last segment that reads each value; `usize::MAX` for the caller.
    last: Vec<usize>,
}

impl Flow {
    /// Flow between `runs`, which come from [`Placement::runs`].
    ///
    /// # Errors
    /// A value that passes between the devices is not a row of f32 for each token or output.
    fn new(flat: &Plan, place: &Placement, runs: &[(usize, std::ops::Range<usize>)]) -> Result<Flow, String> {
        let none = || vec![Vec::new(); runs.len()];
        let mut flow = Flow {
            given: none(),
            keeps: none(),
            again: vec![Vec::new(); runs.len()],
            last: vec![0; flat.values.len()],
        };
        // Segment and node that write each value.
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
                return Err(format!(
                    "{name} ({rows}, {cols}) {dtype:?}, which would pass between the devices"
                ));
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

    /// Records that a segment reads these values.
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

    /// Slot of each value that has one, and largest length of each slot. Slots are reused once
    /// their readers have run.
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

/// Largest length of a value.
fn len(value: &Value, limits: &Limits) -> usize {
    value.rows.count(limits.max_rows, limits.max_outputs) * value.cols
}

/// Cuts a plan into segments. `flat` is the plan with primitives only. The segments' plans, fused
/// by their devices' rules, are added to the plans of each device.
///
/// # Errors
/// A value that passes between the devices is not a row of f32 for each token or output.
pub fn cut(
    (plan, flat): (&Plan, &Plan),
    place: &Placement,
    owners: &Owners,
    rules: [&[FusedKind]; 2],
    limits: &Limits,
    plans: &mut [Vec<Plan>; 2],
) -> Result<Cut, String> {
    let runs = place.runs();
    let flow = Flow::new(flat, place, &runs)?;
    let (slot_of, slots) = flow.slots(flat, limits);
    // Node of the plan for each primitive.
    let of = |(index, node): (usize, &Node)| vec![index; node.op.primitives().len()];
    let plan_nodes: Vec<usize> = plan.nodes.iter().enumerate().flat_map(of).collect();
    let mut places = vec![(0, 0); flat.nodes.len()];
    let mut segments = Vec::with_capacity(runs.len());
    let mut input = 0;
    for (index, (device, run)) in runs.iter().enumerate() {
        let nodes = &place.order[run.clone()];
        let part = Part::new(flat, nodes, &flow, index, index + 1 == runs.len())?;
        let fused = fuse(&part.plan(flat, owners, *device), rules[*device]);
        // First primitive of each node of the segment.
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
    // Nodes that come earlier in the plan may run later.
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

/// Returns true if the Input is a single slot without changes.
pub fn is_direct(given: &[Given]) -> bool {
    matches!(given, [] | [Given { of_outputs: false, .. }])
}

/// A segment before it becomes a plan.
struct Part {
    values: Vec<Value>,
    /// Nodes that read the values of other segments.
    begin: Vec<Node>,
    /// The segment's own nodes.
    nodes: Vec<Node>,
    /// Nodes that end the plan, with a choice.
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
            return Err(
                "a segment that reads both the step's input and values of the other device".to_owned()
            );
        }
        if !is_last {
            part.end(flat);
        }
        Ok(part)
    }

    /// Adds the nodes that read these values.
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
        self.begin.extend(ops.into_iter().map(|op| Node { op, layer: None, place: None }));
    }

    /// Adds an Argmax, with which every plan must end. It reads a column of the first kept value,
    /// and no step wants its result.
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
        self.end.extend(ops.into_iter().map(|op| Node { op, layer: None, place: None }));
    }

    fn push(&mut self, rows: RowCount, dtype: DType, cols: usize) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name: format!("between devices {}", id.0), rows, cols, dtype });
        id
    }

    /// The plan, without values and weights that only other segments need.
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
