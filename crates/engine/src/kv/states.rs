//! States of recurrent layers: which one a sequence has, and which ones its steps in flight write.
//!
//! A state is written whole by one step and never changed, so sequences and the prefix cache share it by counting, and a step
//! that failed is run again from the one before.

use std::collections::VecDeque;

use device::{STATE_NONE, StateUse};

use super::pages::PagePool;

/// The states of the sequence in a slot.
#[derive(Clone, Debug)]
pub(super) struct SlotStates {
    /// Before `position`; [`STATE_NONE`] at 0.
    current: u32,
    position: usize,
    /// What steps in flight write, in order.
    in_flight: VecDeque<u32>,
    /// What the next step will write, if that is known already.
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

    /// An empty slot begins behind `position` tokens, with a state that somebody else holds, too.
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

    /// What the next step reads and writes.
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

    /// What the oldest step wrote is not wanted: the sequence stands where it stood.
    pub(super) fn note_undone(&mut self, pool: &mut PagePool) {
        if let Some(state) = self.in_flight.pop_front() {
            release(state, pool);
        }
    }

    /// Of what steps in flight write only the last is of use, for the step after them.
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
