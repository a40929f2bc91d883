//! Sequences that wait for a slot, and whose turn it is.
//!
//! The highest priority goes first. Within a priority tenants take turns by deficit round robin (Shreedhar and Varghese,
//! 1996): a tenant is served while its deficit is positive; when no tenant that waits has any left, each of them gets a
//! [`QUANTUM`]. Service is counted in tokens: those of a prompt when it is admitted, less what turns out to be cached, and
//! each token of the answer as it comes. Within a tenant the oldest goes first.

use std::cmp::Reverse;

use crate::sequence::Sequence;
use crate::{Error, Result};

/// Tokens that a tenant may be served in a round.
const QUANTUM: i64 = 64;

/// Who sequences belong to.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    id: u64,
    /// Tokens that it may still be served in this round; negative: it was served more.
    deficit: i64,
    /// Its sequences that wait or run.
    n_sequences: usize,
}

/// The queue.
pub(crate) struct Queue {
    waiting: Vec<Sequence>,
    /// Most sequences that may wait.
    limit: usize,
    /// Those with sequences, in the order of their turns.
    tenants: Vec<Tenant>,
    /// Whose turn it is.
    turn: usize,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Queue {
        Queue { waiting: Vec::new(), limit, tenants: Vec::new(), turn: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that began and gave their slots back.
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

    /// That one more may wait.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.waiting.len() < self.limit {
            true => Ok(()),
            false => Err(Error::QueueFull { n_waiting: self.waiting.len(), limit: self.limit }),
        }
    }

    /// A new sequence waits.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        match self.tenants.iter_mut().find(|t| t.id == sequence.tenant) {
            Some(tenant) => tenant.n_sequences += 1,
            None => self.tenants.push(Tenant { id: sequence.tenant, deficit: 0, n_sequences: 1 }),
        }
        self.waiting.push(sequence);
    }

    /// A sequence that ran waits again, whatever the limit.
    pub(crate) fn put_back(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// The highest priority that waits.
    pub(crate) fn top_priority(&self) -> Option<i32> {
        self.waiting.iter().map(|s| s.priority).max()
    }

    /// The sequence whose turn it is.
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
                // As many rounds as bring somebody a token.
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

    /// Take out the sequences that this says of; they are over.
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

    /// A tenant was served so many tokens; negative: they turned out to be cached.
    pub(crate) fn charge(&mut self, tenant: u64, n_tokens: i64) {
        if let Some(tenant) = self.tenants.iter_mut().find(|t| t.id == tenant) {
            tenant.deficit = tenant.deficit.saturating_sub(n_tokens);
        }
    }

    /// A sequence of a tenant is over. A tenant without any keeps neither debt nor claim.
    pub(crate) fn note_end(&mut self, tenant: u64) {
        let Some(index) = self.tenants.iter().position(|t| t.id == tenant) else { return };
        self.tenants[index].n_sequences -= 1;
        if self.tenants[index].n_sequences == 0 {
            self.tenants.remove(index);
            self.turn -= usize::from(self.turn > index);
        }
    }

    /// By what prompts of a step are ordered: priority, then what its tenant may still be served, then when each is due.
    pub(crate) fn rank(&self, sequence: &Sequence) -> impl Ord + use<> {
        let tenant = self.tenants.iter().find(|t| t.id == sequence.tenant);
        let deficit = tenant.map_or(0, |t| t.deficit);
        (Reverse(sequence.priority), Reverse(deficit), sequence.due, sequence.id)
    }
}
