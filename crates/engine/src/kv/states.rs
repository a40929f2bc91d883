//! States of recurrent layers: the current one of each sequence, and those that its steps in flight
//! write.
//!
//! A step writes a state as a whole, and it never changes afterwards. So sequences and the prefix
//! cache share states by reference counts, and a step that failed is run again from the state
//! before it.

use std::collections::VecDeque;

use device::{STATE_NONE, StateUse};

use super::pages::PagePool;

/// The states of the sequence in a slot.
#[derive(Clone, Debug)]
pub(super) struct SlotStates {
    /// State before `position`; [`STATE_NONE`] at 0.
    current: u32,
    position: usize,
    /// States that steps in flight write, in order.
    in_flight: VecDeque<u32>,
    /// State that the next step will write, if it is reserved.
    next: u32,
}

impl Default for SlotStates {
    fn default() -> SlotStates {
        SlotStates {
            current: STATE_NONE,
            position: 0,
            in_flight: VecDeque::with_capacity(16),
            next: STATE_NONE,
        }
    }
}

impl SlotStates {
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Begin an empty slot after `position` tokens, with a state that is shared.
    pub(super) fn begin(&mut self, state: u32, position: usize, pool: &mut PagePool) {
        self.end(pool);
        if state != STATE_NONE {
            pool.share(state);
        }
        (self.current, self.position) = (state, position);
    }

    pub(super) fn needs_next(&self) -> bool {
        self.next == STATE_NONE
    }

    pub(super) fn set_next(&mut self, state: u32) {
        self.next = state;
    }

    /// States that the next step reads and writes.
    pub(super) fn next_use(&self) -> StateUse {
        StateUse { from: self.in_flight.back().copied().unwrap_or(self.current), to: self.next }
    }

    pub(super) fn note_submitted(&mut self) {
        self.in_flight.push_back(std::mem::replace(&mut self.next, STATE_NONE));
    }

    pub(super) fn note_done(&mut self, position: usize, pool: &mut PagePool) {
        if let Some(state) = self.in_flight.pop_front() {
            release(std::mem::replace(&mut self.current, state), pool);
            self.position = position;
        }
    }

    /// Discard the state that the oldest step wrote: the sequence keeps the one before.
    pub(super) fn note_undone(&mut self, pool: &mut PagePool) {
        if let Some(state) = self.in_flight.pop_front() {
            release(state, pool);
        }
    }

    /// Free all states that steps in flight write but the last, which the step after them reads.
    pub(super) fn keep_last_in_flight(&mut self, pool: &mut PagePool) {
        let n_older = self.in_flight.len().saturating_sub(1);
        self.in_flight.drain(..n_older).for_each(|state| release(state, pool));
    }

    pub(super) fn forget_in_flight(&mut self, pool: &mut PagePool) {
        self.in_flight.drain(..).for_each(|state| release(state, pool));
    }

    pub(super) fn end(&mut self, pool: &mut PagePool) {
        self.forget_in_flight(pool);
        release(std::mem::replace(&mut self.current, STATE_NONE), pool);
        release(std::mem::replace(&mut self.next, STATE_NONE), pool);
        self.position = 0;
    }

    /// Add one to `counted[state]` for every state held.
    pub(super) fn count_references(&self, counted: &mut [u32]) {
        let held = self.in_flight.iter().chain([&self.current, &self.next]);
        held.filter(|state| **state != STATE_NONE).for_each(|state| counted[*state as usize] += 1);
    }
}

fn release(state: u32, pool: &mut PagePool) {
    if state != STATE_NONE {
        pool.release(state);
    }
}
