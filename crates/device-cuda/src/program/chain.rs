//! Chained steps: several steps in one launch. If a one-row step reads the token that the previous
//! step chose, the same launch can compute both. It saves the time between launches, and loads the
//! weights of the next step's first layer while the head of this one is multiplied. While a launch
//! is in flight, such steps are held back until they fill a launch or one of them is waited for.

use super::CudaMachine;
use device::{Result, Step};
use device_gpu::inputs::Begun;

/// The place in its sequence of a one-row step whose kernel chooses the best token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chained {
    /// Position of its row in its sequence.
    position: u32,
    /// Ticket of the step whose first output chooses this step's token; `None`: the host wrote it.
    from: Option<u64>,
}

impl Chained {
    /// Returns true if this step continues the step `other` with this ticket.
    fn follows(&self, other: &Chained, ticket: u64) -> bool {
        self.from == Some(ticket) && self.position == other.position + 1
    }
}

impl CudaMachine {
    /// The place of a step in its sequence; `None`: the step may not share a launch.
    pub(super) fn chained(&self, step: &Step, begun: &Begun) -> Option<Chained> {
        let (plan, whole) = (&self.plans[begun.plan], &self.wholes[begun.plan]);
        let sizes = &begun.sizes;
        let ([span], [want]) = (step.spans, step.wants) else { return None };
        let chooses_best = sizes.best && !sizes.sample && !sizes.penalties && !sizes.masks;
        let is_token = sizes.whole && sizes.n_rows == 1 && step.input.is_empty() && plan.kept.is_empty();
        if !(whole.chained_steps() > 1 && is_token && chooses_best) || want.logits || begun.by_host(want) {
            return None;
        }
        let from = match step.links {
            [] => None,
            [link] if link.from.output == 0 => Some(link.from.ticket.0),
            _ => return None,
        };
        Some(Chained { position: span.first_position, from })
    }

    /// Returns true if the launch of a step may compute the next one too.
    pub(super) fn chains(&self, last: &Begun, next: &Begun) -> bool {
        let (before, after) = (self.noted(last), self.noted(next));
        let same = last.plan == next.plan && before.copies == after.copies;
        let (Some(before), Some(after)) = (before.chained, after.chained) else { return false };
        same && after.follows(&before, last.ticket) && self.wholes[last.plan].chains_at(before.position)
    }

    /// Launches the steps that were held back.
    ///
    /// # Errors
    /// The driver refused: none of the steps in flight can be trusted then.
    pub(super) fn launch_held(&mut self) -> Result<()> {
        let Some(first) = self.held.first().copied() else { return Ok(()) };
        let place = self.place(first.ticket);
        self.noted[place].more_steps = self.held.len() as u32 - 1;
        self.held.clear();
        self.context.enter()?;
        let event =
            self.with_event(|machine| machine.load_step(&first).and_then(|()| machine.launch_graph(&first)))?;
        self.running[place] = Some(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_follows_the_one_whose_token_it_goes_on_with() {
        let at = |position, from| Chained { position, from };
        let (before, ticket) = (at(7, None), 3);
        assert!(at(8, Some(3)).follows(&before, ticket));
        // None of these steps follows: the token is known, another step chose it, or the position
        // is not the next one.
        for other in [at(8, None), at(8, Some(2)), at(7, Some(3)), at(9, Some(3))] {
            assert!(!other.follows(&before, ticket), "{other:?}");
        }
    }
}
