//! Admission to slots: waiting sequences begin, and running ones are parked for lack of memory or
//! for a higher priority. Pages for the oldest sequence are committed before it goes on.

use std::cmp::Reverse;
use std::time::Duration;

use device::Program;

use super::Scheduler;
use crate::Result;
use crate::sequence::Sequence;

/// Time after which a sequence that waits for memory tries again.
const STARVED: Duration = Duration::from_millis(5);

impl Scheduler {
    /// Release the memory that the governor demands: free pages, cached prefixes, and then the
    /// pages of the youngest sequences of the lowest priority, which are parked. Returns false if
    /// steps in flight must end first.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn follow_memory(&mut self, program: &mut dyn Program) -> Result<bool> {
        self.kv.tell_governor();
        while !self.kv.shrink(program)? && self.n_running() > 1 {
            if !self.in_flight.is_empty() {
                return Ok(false);
            }
            self.park_last();
        }
        Ok(true)
    }

    /// Commit pages for everything that the oldest sequence may become, as far as possible without
    /// parking another.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn commit_for_oldest(&mut self, program: &mut dyn Program) -> Result<()> {
        let n_running = self.n_running();
        let running = self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        let Some((slot, oldest)) = running.min_by_key(|(_, s)| (Reverse(s.priority), s.id)) else {
            self.oldest = None;
            self.kv.forget_oldest();
            return Ok(());
        };
        if self.oldest != Some(oldest.id) {
            self.oldest = Some(oldest.id);
            let n_tokens = oldest.most_tokens(self.limits.n_ctx);
            self.kv.commit_for_oldest(n_tokens, program)?;
        }
        self.kv.set_alone((n_running == 1).then_some(slot));
        Ok(())
    }

    /// Returns true if nothing can go on before the machine has more memory.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Wait [`STARVED`] for memory that only other processes can release, and follow the governor's
    /// new target.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn wait_for_memory(&mut self, program: &mut dyn Program) -> Result<()> {
        std::thread::sleep(STARVED);
        self.follow_memory(program)?;
        Ok(())
    }

    /// Returns true if waiting sequences may begin: the system is not short of memory, and if
    /// sequences were parked, there is more room than then.
    fn may_admit(&mut self) -> bool {
        if self.n_running() == 0 {
            return true;
        }
        if self.is_short && self.kv.is_governed() {
            let longest = self.queue.iter().map(|s| s.tokens.len()).max().unwrap_or(0);
            // Room for the waiting sequence and the running ones to grow.
            let n_tokens = longest + self.limits.page_len * (1 + self.n_running());
            self.is_short = self.kv.room_bytes() < self.kv.bytes_for(n_tokens);
        }
        !self.is_short && !self.kv.is_pressed()
    }

    /// Admit waiting sequences to free slots, or to slots of sequences of a lower priority, which
    /// are parked.
    pub(super) fn admit(&mut self) {
        let may_admit = !self.queue.is_empty() && self.may_admit();
        while let Some(top) = self.queue.top_priority() {
            let free = self.free_slot().filter(|_| may_admit && !self.is_short || self.n_running() == 0);
            let slot = match free {
                Some(slot) => slot,
                None => match self.last_in_rank() {
                    Some((slot, priority)) if priority < top => {
                        self.park(slot);
                        slot
                    }
                    _ => return,
                },
            };
            let Some(mut sequence) = self.queue.pick() else { return };
            // From here on the steps of the sequence allocate nothing.
            sequence.tokens.reserve_exact(self.limits.n_ctx - sequence.tokens.len());
            if sequence.started.is_none() {
                self.queue.charge(sequence.tenant, sequence.tokens.len() as i64);
            }
            self.slots[slot] = Some(sequence);
        }
    }

    /// Slot and priority of the youngest running sequence of the lowest priority.
    fn last_in_rank(&self) -> Option<(usize, i32)> {
        let running = self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        let last = running.max_by_key(|(_, s)| (Reverse(s.priority), s.id));
        last.map(|(slot, s)| (slot, s.priority))
    }

    /// Park the youngest sequence of the lowest priority, because no page is free. The oldest of
    /// the highest priority is never parked while there is another, and pages are committed for all
    /// that it may become.
    pub(super) fn park_last(&mut self) {
        if let Some((slot, _)) = self.last_in_rank() {
            self.park(slot);
            self.is_short = true;
            self.n_parked += 1;
        }
    }

    /// Park a running sequence: it releases its slot and waits. Its pages stay in the prefix cache
    /// as long as possible, and missing ones are recomputed when it resumes. Its sampler and text
    /// stay.
    pub(super) fn park(&mut self, slot: usize) {
        let Some(mut sequence) = self.slots[slot].take() else { return };
        self.let_go(slot, &sequence);
        sequence.begin_anew();
        self.queue.put_back(sequence);
    }

    /// Move a slot's pages into the prefix cache, or back to the pool.
    pub(super) fn let_go(&mut self, slot: usize, sequence: &Sequence) {
        if sequence.reuse {
            // With recurrent layers, only tokens before the state are useful. An answer may end
            // within its draft tokens.
            let n = self.kv.state_position(slot).unwrap_or(sequence.n_computed);
            self.kv.remember(slot, sequence.salt, &sequence.tokens[..n], true);
        }
        self.kv.end(slot);
    }
}
