//! Draft tokens by the model's own layer that predicts one token more (multi-token prediction).
//!
//! The layer is a plan of the model's program. Its keys and values are one more layer of the same
//! pages, so they are shared, copied, parked and cached with the others. Its input row at a
//! position is the token there and the state of the position before. A step yields the states of
//! all its rows. States of accepted rows wait here until there are many, or a draft token is
//! wanted.
//!
//! Draft tokens decide nothing, so gaps do no harm. In a cached prompt, the layer's last position
//! was computed with the token that followed it then, or was not computed.

use device::{Span, Step, Want};

use super::{Computed, Owner, Proposer, Target};
use crate::{Error, Result};

/// The layer as a proposer.
pub(crate) struct OwnLayer {
    /// Number of columns of a state.
    hidden: usize,
    /// Maximum number of rows of a step.
    max_rows: usize,
    /// Maximum number of waiting states of a slot.
    room: usize,
    /// Waiting states of each slot.
    slots: Vec<Waiting>,
    /// `(hidden)` the last output of the layer to the head.
    state: Vec<f32>,
}

/// Consecutive states of a sequence.
struct Waiting {
    owner: Option<Owner>,
    /// Position of the first state.
    first: usize,
    /// The states, `(n, hidden)`.
    states: Vec<f32>,
    /// Number of states that were computed for a draft token.
    n_done: usize,
}

impl OwnLayer {
    /// A proposer for states of `hidden` columns, and steps of up to `max_rows` rows of up to
    /// `n_slots` sequences with up to `max_draft` draft tokens each.
    pub(crate) fn new(hidden: usize, max_rows: usize, n_slots: usize, max_draft: usize) -> OwnLayer {
        let room = (1 + max_draft).min(max_rows);
        let waiting =
            || Waiting { owner: None, first: 0, states: Vec::with_capacity(room * hidden), n_done: 0 };
        OwnLayer {
            hidden,
            max_rows,
            room,
            slots: (0..n_slots).map(|_| waiting()).collect(),
            state: vec![0.0; hidden],
        }
    }
}

/// Compute rows of the layer from position `first` on: `states` `(n, hidden)` and the token after
/// each.
fn compute(
    target: &mut Target<'_>,
    slot: usize,
    first: usize,
    tokens: &[u32],
    states: &[f32],
    guesses: bool,
) -> Result<()> {
    let n_rows = tokens.len() as u32;
    let span = Span { slot: slot as u32, first_row: 0, n_rows, first_position: first as u32 };
    let last = [n_rows.saturating_sub(1)];
    let n_outputs = usize::from(guesses);
    let wants = [Want::BEST];
    let Target { program, kv, plan } = target;
    let step = Step {
        plan: *plan,
        tokens,
        input: states,
        spans: &[span],
        page_tables: kv.tables(),
        table_changes: kv.table_changes(),
        pages_per_table: kv.pages_per_table(),
        outputs: &last[..n_outputs],
        wants: &wants[..n_outputs],
        ..Step::default()
    };
    let ran = program.run(&step);
    Ok(kv.note_submitted(ran)?)
}

impl Proposer for OwnLayer {
    fn propose(
        &mut self,
        slot: usize,
        tokens: &[u32],
        n: usize,
        draft: &mut Vec<u32>,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let Some(waiting) = self.slots.get_mut(slot) else { return Ok(()) };
        let n_states = waiting.states.len() / self.hidden;
        let end = waiting.first + n_states;
        // All tokens but the last have states.
        let Some(after) = tokens.get(waiting.first + 1..).filter(|after| after.len() == n_states) else {
            return Ok(());
        };
        if n == 0 || n_states == 0 {
            return Ok(());
        }
        compute(target, slot, waiting.first, after, &waiting.states, true)?;
        waiting.n_done = n_states;
        for position in end.. {
            let Some(guess) = target.program.chosen().first().and_then(|chosen| chosen.token) else { break };
            draft.push(guess);
            let states = target.program.kept(0);
            let last = states.len().checked_sub(self.hidden).and_then(|start| states.get(start..));
            let Some(last) = last.filter(|_| draft.len() < n) else { break };
            self.state.copy_from_slice(last);
            match target.kv.reserve(slot, position, 1, target.program) {
                // The draft so far is complete; if pages are short, the step will report it.
                Err(Error::PagesExhausted { .. }) => break,
                reserved => reserved?,
            }
            compute(target, slot, position, &[guess], &self.state, true)?;
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        false
    }

    fn reads_states(&self) -> bool {
        true
    }

    fn observe(&mut self, rows: &Computed<'_>, target: &mut Target<'_>) -> Result<()> {
        let Some(waiting) = self.slots.get_mut(rows.slot) else { return Ok(()) };
        let hidden = self.hidden;
        waiting.states.drain(..(waiting.n_done * hidden).min(waiting.states.len()));
        waiting.first += std::mem::take(&mut waiting.n_done);
        let end = waiting.first + waiting.states.len() / hidden;
        if waiting.owner != Some(rows.owner) || end < rows.first {
            waiting.states.clear();
            (waiting.owner, waiting.first) = (Some(rows.owner), rows.first);
        }
        let n_waiting = waiting.states.len() / hidden;
        // A step may begin with rows that the step before had too.
        let n_known = waiting.first + n_waiting - rows.first;
        let (first_new, new) =
            (rows.first + n_known, rows.states.get(n_known * hidden..).unwrap_or_default());
        let n_new = new.len() / hidden;
        if n_waiting + n_new <= self.room {
            waiting.states.extend_from_slice(new);
            return Ok(());
        }
        // All rows but the last are computed now, even if no draft token will be wanted.
        let first = std::mem::replace(&mut waiting.first, first_new + n_new - 1);
        let (now, last) = new.split_at((n_new - 1) * hidden);
        let computed = parts(target, rows, first, &waiting.states, self.max_rows, hidden)
            .and_then(|()| parts(target, rows, first_new, now, self.max_rows, hidden));
        waiting.states.clear();
        waiting.states.extend_from_slice(last);
        computed
    }
}

/// Compute states of a sequence from position `first` on, without a draft token, in steps that are
/// not too long.
fn parts(
    target: &mut Target<'_>,
    rows: &Computed<'_>,
    first: usize,
    states: &[f32],
    max_rows: usize,
    hidden: usize,
) -> Result<()> {
    for (part, states) in states.chunks(max_rows * hidden).enumerate() {
        let first = first + part * max_rows;
        let n = states.len() / hidden;
        let Some(tokens) = rows.tokens.get(first + 1..first + 1 + n) else { return Ok(()) };
        compute(target, rows.slot, first, tokens, states, false)?;
    }
    Ok(())
}
