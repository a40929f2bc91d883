//! Queue of sequences that wait for a slot, and the order of their turns.
//!
//! The highest priority goes first. Within a priority tenants take turns by deficit round robin
//! (Shreedhar and Varghese, 1996): a tenant is served while its deficit is positive. When no
//! waiting tenant has any left, each of them gets a [`QUANTUM`]. Service is counted in tokens:
//! those of a prompt when it is admitted, less the cached ones, and each token of the answer.
//! Within a tenant the oldest goes first.

use std::cmp::Reverse;

use crate::sequence::Sequence;
use crate::{Error, Result};

/// Tokens for each tenant in a round.
const QUANTUM: i64 = 64;

/// Owner of sequences.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    id: u64,
    /// Tokens left to the tenant in this round; negative if more were served.
    deficit: i64,
    /// Number of its sequences that wait or run.
    n_sequences: usize,
}

/// Waiting sequences, and the tenants of all sequences.
pub(crate) struct Queue {
    waiting: Vec<Sequence>,
    /// Maximum number of sequences that may wait.
    limit: usize,
    /// Tenants with sequences, in the order of their turns.
    tenants: Vec<Tenant>,
    /// Index of the tenant whose turn it is.
    turn: usize,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Queue {
        Queue { waiting: Vec::new(), limit, tenants: Vec::new(), turn: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of parked sequences: they had a slot before.
    pub(crate) fn n_parked(&self) -> usize {
        self.waiting.iter().filter(|sequence| sequence.started.is_some()).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.waiting.iter_mut()
    }

    /// Check that one more sequence may wait.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.waiting.len() < self.limit {
            true => Ok(()),
            false => Err(Error::QueueFull { n_waiting: self.waiting.len(), limit: self.limit }),
        }
    }

    /// Queue a new sequence.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        match self.tenants.iter_mut().find(|t| t.id == sequence.tenant) {
            Some(tenant) => tenant.n_sequences += 1,
            None => self.tenants.push(Tenant { id: sequence.tenant, deficit: 0, n_sequences: 1 }),
        }
        self.waiting.push(sequence);
    }

    /// Queue a parked sequence, whatever the limit.
    pub(crate) fn put_back(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// Highest priority of a waiting sequence.
    pub(crate) fn top_priority(&self) -> Option<i32> {
        self.waiting.iter().map(|s| s.priority).max()
    }

    /// Remove and return the sequence whose turn it is.
    pub(crate) fn pick(&mut self) -> Option<Sequence> {
        let top = self.top_priority()?;
        let waits = |queue: &Queue, tenant: &Tenant| {
            queue.waiting.iter().any(|s| s.priority == top && s.tenant == tenant.id)
        };
        let of_round = |queue: &Queue| {
            let turns = (queue.turn..queue.tenants.len()).chain(0..queue.turn.min(queue.tenants.len()));
            turns.into_iter().find(|&t| queue.tenants[t].deficit > 0 && waits(queue, &queue.tenants[t]))
        };
        let turn = match of_round(self) {
            Some(turn) => turn,
            None => {
                let waiting: Vec<usize> =
                    (0..self.tenants.len()).filter(|&t| waits(self, &self.tenants[t])).collect();
                // Number of rounds after which some tenant has a token left.
                let most = waiting.iter().map(|&t| self.tenants[t].deficit).max()?;
                let n_rounds = (1 - most).max(1).unsigned_abs().div_ceil(QUANTUM.unsigned_abs());
                for t in waiting {
                    self.tenants[t].deficit += QUANTUM * n_rounds as i64;
                }
                of_round(self)?
            }
        };
        self.turn = turn;
        let tenant = self.tenants[turn].id;
        let of_tenant = self.waiting.iter().enumerate();
        let of_tenant = of_tenant.filter(|(_, s)| s.priority == top && s.tenant == tenant);
        let (index, _) = of_tenant.min_by_key(|(_, s)| s.id)?;
        Some(self.waiting.remove(index))
    }

    /// Remove the sequences for which `is_over` returns true.
    pub(crate) fn remove_where(&mut self, mut is_over: impl FnMut(&mut Sequence) -> bool) {
        let mut index = 0;
        while index < self.waiting.len() {
            if is_over(&mut self.waiting[index]) {
                let sequence = self.waiting.remove(index);
                self.note_end(sequence.tenant);
            } else {
                index += 1;
            }
        }
    }

    /// Charge a tenant for tokens; negative numbers refund cached ones.
    pub(crate) fn charge(&mut self, tenant: u64, n_tokens: i64) {
        if let Some(tenant) = self.tenants.iter_mut().find(|t| t.id == tenant) {
            tenant.deficit = tenant.deficit.saturating_sub(n_tokens);
        }
    }

    /// Note that a sequence of a tenant has ended. A tenant without sequences keeps neither debt
    /// nor claim.
    pub(crate) fn note_end(&mut self, tenant: u64) {
        let Some(index) = self.tenants.iter().position(|t| t.id == tenant) else { return };
        self.tenants[index].n_sequences -= 1;
        if self.tenants[index].n_sequences == 0 {
            self.tenants.remove(index);
            self.turn -= usize::from(self.turn > index);
        }
    }

    /// Sort key of prompts in a step: priority, then the tenant's remaining tokens, then the time
    /// at which each is due.
    pub(crate) fn rank(&self, sequence: &Sequence) -> impl Ord + use<> {
        let tenant = self.tenants.iter().find(|t| t.id == sequence.tenant);
        let deficit = tenant.map_or(0, |t| t.deficit);
        (Reverse(sequence.priority), Reverse(deficit), sequence.due, sequence.id)
    }
}
