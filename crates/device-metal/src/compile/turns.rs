//! The cosines and sines of the step's positions, which all heads of all layers share. The first
//! embedding of a table writes them, or a dispatch of its own before the first heads that are
//! rotated. Contracts: `kernels/turns.h`, `kernels/turns.metal`.

use super::call::Bound;
use super::draft::Draft;
use crate::arguments::ElementArguments;
use crate::gpu::MetalGpu;
use crate::layout::TURNS;
use device::{Error, Result, RowCount, WeightId};
use device_gpu::replayer::TABLES;
use device_lower::fields::HeadChain;
use device_lower::table::Location;

/// The operands of the kernel that writes the tables.
pub(super) struct NewTurns {
    pub(super) n_pairs: usize,
    /// `(n_pairs)` of [`crate::arguments::TurnPair`]
    pub(super) pairs: Location,
    /// All tables.
    pub(super) tables: Bound,
}

impl<G: MetalGpu> Draft<'_, G> {
    /// Operands of the tables, if the caller's dispatch must write them; `None`: another one does,
    /// or nothing reads them.
    pub(super) fn new_turns(&mut self) -> Option<NewTurns> {
        let c = self.compiler;
        let (turns, pairs) = c.tables.turns(TABLES, c.index)?;
        let is_first = !std::mem::replace(&mut self.has_turns, true);
        let tables = Bound::from((c.scratch_place(TURNS), turns.n_bytes()));
        (is_first && turns.n_pairs() > 0).then(|| NewTurns { n_pairs: turns.n_pairs(), pairs, tables })
    }

    /// The table of a Rope, in a step that writes it before.
    pub(super) fn turns_of(&mut self, frequencies: WeightId, scale: f32) -> Result<Bound> {
        let c = self.compiler;
        if let Some(NewTurns { n_pairs, pairs, tables }) = self.new_turns() {
            let args = ElementArguments { cols: n_pairs as u32, ..Default::default() };
            let call = self
                .step_call("turns.metal", &args)
                .bind(2, c.step_place(c.step.positions))
                .bind(3, pairs)
                .write(4, tables)
                .elements(RowCount::Tokens, n_pairs);
            self.push(call)?;
        }
        let place =
            c.tables.turns(TABLES, c.index).and_then(|(turns, _)| turns.place(c.plan, frequencies, scale));
        let (offset, bytes) = place.ok_or_else(|| Error::Failed {
            device: G::NAME,
            reason: "a Rope has no table of cosines and sines".to_owned(),
        })?;
        let start = c.scratch_place(TURNS);
        Ok(Bound::from((Location { offset: start.offset + offset as u64, ..start }, bytes)))
    }

    /// The table of heads that are rotated.
    pub(super) fn turns_of_heads(&mut self, chain: Option<HeadChain>) -> Result<Option<Bound>> {
        let rope = chain.and_then(|chain| chain.rope);
        rope.map(|rope| self.turns_of(rope.frequencies, rope.scale)).transpose()
    }
}
