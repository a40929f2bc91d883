//! Owner device of each layer of keys and values, and of each recurrent layer's state.

use device::{KvGroup, KvLayerId, KvLayout, Op, Plan, StateId};

use crate::place::Placement;

/// Owners for all plans of a program.
pub struct Owners {
    kv: Vec<usize>,
    states: Vec<usize>,
}

/// The layer of keys and values that an Op uses.
pub fn kv_layer(op: &mut Op) -> Option<&mut KvLayerId> {
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
pub fn state(op: &Op) -> Option<StateId> {
    if let Op::ShortConv { state, .. } | Op::GatedDelta { state, .. } | Op::SelectiveScan { state, .. } = op {
        return Some(*state);
    }
    None
}

impl Owners {
    /// Owners for flat plans and the places of their nodes.
    ///
    /// # Errors
    /// Both devices use a layer.
    pub fn new(plans: &[Plan], places: &[Placement]) -> Result<Owners, String> {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let mut of_kv: Vec<Option<usize>> = vec![None; kv.layers.len()];
        let mut of_states: Vec<Option<usize>> = vec![None; kv.states.len()];
        for (plan, place) in plans.iter().zip(places) {
            for (node, device) in plan.nodes.iter().zip(&place.devices) {
                let mut op = node.op.clone();
                let layer = kv_layer(&mut op).map(|layer| &mut of_kv[layer.0 as usize]);
                let state = state(&node.op).map(|state| &mut of_states[state.0 as usize]);
                for owner in layer.into_iter().chain(state) {
                    if owner.is_some_and(|other| other != *device) {
                        return Err("keys and values that layers of both devices share".to_owned());
                    }
                    *owner = Some(*device);
                }
            }
        }
        let known = |owners: Vec<Option<usize>>| owners.into_iter().map(|owner| owner.unwrap_or(1)).collect();
        Ok(Owners { kv: known(of_kv), states: known(of_states) })
    }

    /// KV layout of a device. Its layers are renumbered, in the same groups, some of which may be
    /// empty. States of the other device have length 0.
    pub fn layout(&self, kv: &KvLayout, device: usize) -> KvLayout {
        let mine = |id: &KvLayerId| self.kv[id.0 as usize] == device;
        let group = |group: &KvGroup| KvGroup {
            layers: group.layers.iter().filter(|id| mine(id)).map(|id| self.renumbered(*id)).collect(),
            ..group.clone()
        };
        let layers = kv.layers.iter().zip(&self.kv).filter(|(_, owner)| **owner == device);
        let states = kv.states.iter().zip(&self.states);
        KvLayout {
            layers: layers.map(|(layer, _)| *layer).collect(),
            groups: kv.groups.iter().map(group).collect(),
            states: states.map(|(len, owner)| if *owner == device { *len } else { 0 }).collect(),
        }
    }

    /// Number of a layer among the layers of its device.
    pub fn renumbered(&self, id: KvLayerId) -> KvLayerId {
        let index = id.0 as usize;
        let before = self.kv[..index].iter().filter(|owner| **owner == self.kv[index]).count();
        KvLayerId(before as u32)
    }
}
