//! What one engine holds of a memory, in numbers that its thread and the governor's share without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use super::Governor;
use super::policy::{Budget, Share};

const ORDER: Ordering = Ordering::Relaxed;

/// Of a memory as a whole.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Bytes of pages that were touched, of all accounts.
    pub(super) resident: AtomicU64,
    pub(super) budget: AtomicU64,
    hard: AtomicU64,
    most_booked: AtomicU64,
    is_pressed: AtomicBool,
    /// Bytes beside pools that accounts gave back when they ended, less those that new ones take, since the last reading.
    pub(super) given_back: AtomicI64,
    /// Readings so far.
    pub(super) generation: AtomicU64,
}

impl Default for Ledger {
    fn default() -> Ledger {
        let [zero, most] = [0, u64::MAX];
        Ledger {
            resident: zero.into(),
            budget: most.into(),
            hard: most.into(),
            most_booked: most.into(),
            is_pressed: false.into(),
            given_back: 0.into(),
            generation: zero.into(),
        }
    }
}

impl Ledger {
    pub(super) fn set(&self, budget: &Budget) {
        self.budget.store(budget.bytes, ORDER);
        self.hard.store(budget.hard, ORDER);
        self.most_booked.store(budget.most_booked, ORDER);
        self.is_pressed.store(budget.is_pressed, ORDER);
    }
}

/// An engine's.
#[derive(Debug)]
pub(crate) struct Account {
    governor: Arc<Governor>,
    ledger: Arc<Ledger>,
    /// Bytes beside the pool: weights, activations.
    pub(super) fixed: AtomicU64,
    /// Bytes of its pages that were touched.
    resident: AtomicU64,
    /// Of those, free pages and cached prefixes.
    reclaimable: AtomicU64,
    /// Of those, what its oldest sequence keeps.
    floor: AtomicU64,
    /// What the oldest sequence may still touch.
    pub(super) booked: AtomicU64,
    /// Bytes that its sequences take in a second.
    pub(super) growth: AtomicU64,
    /// Most bytes that it may hold; `u64::MAX`: nobody asks for anything back.
    pub(super) target: AtomicU64,
}

/// What an engine tells of its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Bytes of free pages that were touched, and of pages that only the prefix cache holds.
    pub(crate) reclaimable: u64,
    /// Bytes that its oldest sequence keeps.
    pub(crate) floor: u64,
    /// Bytes that the oldest sequence may still touch.
    pub(crate) booked: u64,
}

impl Account {
    pub(super) fn new(governor: Arc<Governor>, ledger: Arc<Ledger>, fixed: u64) -> Account {
        let zero = || AtomicU64::new(0);
        ledger.given_back.fetch_sub(fixed.cast_signed(), ORDER);
        Account {
            governor,
            ledger,
            fixed: fixed.into(),
            resident: zero(),
            reclaimable: zero(),
            floor: zero(),
            booked: zero(),
            growth: zero(),
            target: u64::MAX.into(),
        }
    }

    pub(super) fn share(&self) -> Share {
        let resident = self.resident.load(ORDER);
        let floor = self.floor.load(ORDER).min(resident);
        Share { resident, floor, reclaimable: self.reclaimable.load(ORDER).min(resident - floor) }
    }

    /// Whether so many bytes more may be touched. `is_alone`: for a sequence beside which its engine runs none. Two engines that ask at once
    /// may both be told yes: the budget is exceeded by a page then, until the next reading.
    pub(crate) fn may_take(&self, bytes: u64, is_alone: bool) -> bool {
        let most = if is_alone { &self.ledger.hard } else { &self.ledger.budget };
        let own = self.resident.load(ORDER).saturating_add(bytes);
        let all = self.ledger.resident.load(ORDER).saturating_add(bytes);
        all <= most.load(ORDER) && (is_alone || own <= self.target.load(ORDER))
    }

    /// So many bytes are taken beside the pool, from now on.
    pub(crate) fn set_fixed(&self, bytes: u64) {
        let before = self.fixed.swap(bytes, ORDER);
        self.ledger.given_back.fetch_add(before.cast_signed().wrapping_sub(bytes.cast_signed()), ORDER);
    }

    /// So many bytes more are touched.
    pub(crate) fn take(&self, bytes: u64) {
        self.resident.fetch_add(bytes, ORDER);
        self.ledger.resident.fetch_add(bytes, ORDER);
    }

    /// So many bytes are not held any more.
    pub(crate) fn give(&self, bytes: u64) {
        self.resident.fetch_sub(bytes, ORDER);
        self.ledger.resident.fetch_sub(bytes, ORDER);
    }

    /// Most bytes that it may hold.
    pub(crate) fn target(&self) -> u64 {
        self.target.load(ORDER)
    }

    /// Bytes that anybody may still touch.
    pub(crate) fn room(&self) -> u64 {
        self.ledger.budget.load(ORDER).saturating_sub(self.ledger.resident.load(ORDER))
    }

    /// Most bytes that are committed for an oldest sequence.
    pub(crate) fn most_booked(&self) -> u64 {
        self.ledger.most_booked.load(ORDER)
    }

    /// Nothing new is to begin, and chunks are to be small.
    pub(crate) fn is_pressed(&self) -> bool {
        self.ledger.is_pressed.load(ORDER)
    }

    /// Readings so far.
    pub(crate) fn generation(&self) -> u64 {
        self.ledger.generation.load(ORDER)
    }

    /// What it holds now. Where its oldest sequence keeps less than before, what it may hold is set again at once: until the next
    /// reading nobody would give back what that sequence kept.
    pub(crate) fn tell(&self, holdings: Holdings) {
        self.reclaimable.store(holdings.reclaimable, ORDER);
        let floor = self.floor.swap(holdings.floor, ORDER);
        self.booked.store(holdings.booked, ORDER);
        if holdings.floor < floor {
            self.governor.set_targets(&self.ledger);
        }
    }

    /// Its sequences take so many bytes a second.
    pub(crate) fn set_growth(&self, bytes: u64) {
        self.growth.store(bytes, ORDER);
    }

    /// Unload a model that nobody uses; whether there was one.
    pub(crate) fn unload_idle(&self) -> bool {
        let is_unloaded = self.governor.unload_idle();
        if is_unloaded {
            self.governor.observe(Instant::now());
        }
        is_unloaded
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.give(self.resident.load(ORDER));
        self.ledger.given_back.fetch_add(self.fixed.load(ORDER).cast_signed(), ORDER);
    }
}
