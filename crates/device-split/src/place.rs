//! Placement of the nodes of a plan on devices, and their order.

use std::ops::Range;

use device::{Node, Op, Plan, ValueId};

use crate::Share;
use crate::owners::{kv_layer, state};

/// Placement of the nodes of a flat plan.
pub struct Placement {
    /// Nodes in the order of computation. It is the order of the plan, except for nodes between the
    /// products of experts on the first device.
    pub order: Vec<usize>,
    /// Device of each node of the plan.
    pub devices: Vec<usize>,
}

impl Placement {
    /// Places the nodes of a flat plan.
    ///
    /// # Errors
    /// Layers are not in order, or attention is between the products of a layer's experts.
    pub fn new(plan: &Plan, share: &Share) -> Result<Placement, String> {
        let first_layers = share.first_layers;
        let is_early = |node: &Node| node.layer.is_some_and(|layer| (layer as usize) < first_layers);
        let is_late = |node: &Node| node.layer.is_some_and(|layer| layer as usize >= first_layers);
        let n = plan.nodes.len();
        let at = plan.nodes.iter().position(is_late).unwrap_or(n);
        if plan.nodes[at..].iter().any(is_early) {
            return Err(format!("an op of the first {first_layers} layers after an op of later layers"));
        }
        // Nodes before the first layer are on the device of that layer.
        let at = if plan.nodes[..at].iter().any(is_early) { at } else { 0 };
        let mut place =
            Placement { order: (0..n).collect(), devices: (0..n).map(|i| usize::from(i >= at)).collect() };
        for route in at..n {
            let Node { op: Op::Route { .. }, layer: Some(layer), .. } = &plan.nodes[route] else { continue };
            if (*layer as usize) < share.expert_layers {
                let experts = experts_of(plan, route);
                place.gather(plan, &experts)?;
                experts.into_iter().for_each(|node| place.devices[node] = 0);
            }
        }
        Ok(place)
    }

    /// Runs of positions in [`Self::order`] on one device, each with its device.
    pub fn runs(&self) -> Vec<(usize, Range<usize>)> {
        let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
        for (at, node) in self.order.iter().enumerate() {
            match runs.last_mut() {
                Some((device, run)) if *device == self.devices[*node] => run.end = at + 1,
                Some(_) | None => runs.push((self.devices[*node], at..at + 1)),
            }
        }
        runs
    }

    /// Makes some nodes adjacent: nodes between them that need their results move after them, the
    /// others before.
    fn gather(&mut self, plan: &Plan, nodes: &[usize]) -> Result<(), String> {
        let is_mine = |node: &usize| nodes.binary_search(node).is_ok();
        let (Some(first), Some(last)) =
            (self.order.iter().position(is_mine), self.order.iter().rposition(is_mine))
        else {
            return Ok(());
        };
        let mut found: Vec<bool> = vec![false; plan.values.len()];
        let [mut before, mut mine, mut after] = [const { Vec::new() }; 3];
        for node in &self.order[first..=last] {
            let op = &plan.nodes[*node].op;
            let needs = op.reads().iter().any(|id| found[id.0 as usize]);
            if is_mine(node) || needs {
                op.writes().iter().for_each(|id| found[id.0 as usize] = true);
            }
            if is_mine(node) {
                mine.push(*node);
                continue;
            }
            if kv_layer(&mut op.clone()).is_some() || state(op).is_some() {
                return Err("attention between the products of a layer's experts".to_owned());
            }
            if needs { after.push(*node) } else { before.push(*node) }
        }
        let moved = before.into_iter().chain(mine).chain(after);
        self.order.splice(first..=last, moved.collect::<Vec<_>>());
        Ok(())
    }
}

/// Nodes, ascending, that depend on a router's choice: the Route itself, all readers of its ids and
/// weights, and nodes between these.
fn experts_of(plan: &Plan, route: usize) -> Vec<usize> {
    let chosen = plan.nodes[route].op.writes();
    let is_end = |node: &Node| node.op.reads().iter().any(|id| chosen.contains(id));
    let last = plan.nodes.iter().rposition(is_end).unwrap_or(route);
    let mut from_router: Vec<bool> = vec![false; plan.values.len()];
    let mut depends = Vec::new();
    for (index, node) in plan.nodes[route..=last].iter().enumerate() {
        let is_mine = index == 0 || node.op.reads().iter().any(|id| from_router[id.0 as usize]);
        if is_mine {
            node.op.writes().iter().for_each(|id| from_router[id.0 as usize] = true);
        }
        depends.push(is_mine);
    }
    let mut needed: Vec<bool> = vec![false; plan.values.len()];
    let is_needed = |needed: &[bool], id: &ValueId| needed[id.0 as usize];
    let mut nodes = Vec::new();
    for index in (route..=last).rev() {
        let node = &plan.nodes[index];
        let leads =
            index == route || is_end(node) || node.op.writes().iter().any(|id| is_needed(&needed, id));
        if leads && depends[index - route] {
            node.op.reads().iter().for_each(|id| needed[id.0 as usize] = true);
            nodes.push(index);
        }
    }
    nodes.reverse();
    nodes
}
