//! The kinds of layers: attention, recurrence, both, or neither.

use crate::descriptor::{ArchDescriptor, RecurrentKind, RecurrentPlace};
use crate::names::TensorRole;
use crate::tensors::Tensors;

/// The ways in which a layer mixes the positions of a sequence.
pub(crate) struct Mixers {
    pub attends: bool,
    pub recurs: bool,
}

impl Mixers {
    /// The mixers of layer `l`, read from its tensors if the family leaves them open.
    pub fn of(family: &ArchDescriptor, tensors: &Tensors<'_>, l: usize) -> Mixers {
        let has = |role| tensors.has_in(role, l);
        // The output projections of attention and recurrence may share a name; only a recurrence
        // has a decay.
        let tells = match family.recurrent.map(|r| r.kind) {
            Some(RecurrentKind::ShortConv) | None => TensorRole::RecurrentOut,
            Some(RecurrentKind::GatedDelta | RecurrentKind::SelectiveScan) => TensorRole::Rate,
        };
        let (attends, recurs) = match family.recurrent.map(|r| r.place) {
            None => (true, false),
            Some(RecurrentPlace::Everywhere) => (false, true),
            Some(RecurrentPlace::BesideAttention) => (true, true),
            Some(RecurrentPlace::InsteadOfAttention) => {
                let recurs = has(tells);
                (!recurs, recurs)
            }
            Some(RecurrentPlace::OneMixer) => (has(TensorRole::AttnOut), has(TensorRole::RecurrentOut)),
        };
        Mixers { attends, recurs }
    }
}
