//! Memory held by one engine, in numbers that its thread and the governor's thread share without a
//! lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use super::Governor;
use super::policy::{Budget, Share};

const ORDER: Ordering = Ordering::Relaxed;

/// Totals of one memory.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Touched bytes of pages, over all accounts.
    pub(super) resident: AtomicU64,
    pub(super) budget: AtomicU64,
    hard: AtomicU64,
    most_booked: AtomicU64,
    is_pressed: AtomicBool,
    /// Bytes outside pools that ended accounts have released since the last reading, less those
    /// that new accounts use.
    pub(super) given_back: AtomicI64,
    /// Number of readings so far.
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

/// Account of one engine.
#[derive(Debug)]
pub(crate) struct Account {
    governor: Arc<Governor>,
    ledger: Arc<Ledger>,
    /// Bytes outside the pool: weights, activations.
    pub(super) fixed: AtomicU64,
    /// Touched bytes of its pages.
    resident: AtomicU64,
    /// Part of `resident` that is free pages and cached prefixes.
    reclaimable: AtomicU64,
    /// Part of `resident` that its oldest sequence keeps.
    floor: AtomicU64,
    /// Bytes that the oldest sequence may still touch.
    pub(super) booked: AtomicU64,
    /// Bytes that its sequences use up in a second.
    pub(super) growth: AtomicU64,
    /// Maximum number of bytes that the account may hold; `u64::MAX`: no limit.
    pub(super) target: AtomicU64,
}

/// Contents of an engine's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Bytes of touched free pages, and of pages that only the prefix cache holds.
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

    /// Returns true if this many more bytes may be touched. `is_alone` means that the sequence is
    /// the only one of its engine. Two engines that call at once may both get true: the budget is
    /// then exceeded by a page until the next reading.
    pub(crate) fn may_take(&self, bytes: u64, is_alone: bool) -> bool {
        let most = if is_alone { &self.ledger.hard } else { &self.ledger.budget };
        let own = self.resident.load(ORDER).saturating_add(bytes);
        let all = self.ledger.resident.load(ORDER).saturating_add(bytes);
        all <= most.load(ORDER) && (is_alone || own <= self.target.load(ORDER))
    }

    /// Set the bytes outside the pool.
    pub(crate) fn set_fixed(&self, bytes: u64) {
        let before = self.fixed.swap(bytes, ORDER);
        self.ledger.given_back.fetch_add(before.cast_signed().wrapping_sub(bytes.cast_signed()), ORDER);
    }

    /// Count bytes that are touched now.
    pub(crate) fn take(&self, bytes: u64) {
        self.resident.fetch_add(bytes, ORDER);
        self.ledger.resident.fetch_add(bytes, ORDER);
    }

    /// Count bytes that are not held any more.
    pub(crate) fn give(&self, bytes: u64) {
        self.resident.fetch_sub(bytes, ORDER);
        self.ledger.resident.fetch_sub(bytes, ORDER);
    }

    /// Maximum number of bytes that the account may hold.
    pub(crate) fn target(&self) -> u64 {
        self.target.load(ORDER)
    }

    /// Bytes that any account may still touch.
    pub(crate) fn room(&self) -> u64 {
        self.ledger.budget.load(ORDER).saturating_sub(self.ledger.resident.load(ORDER))
    }

    /// Maximum number of bytes that may be committed for an oldest sequence.
    pub(crate) fn most_booked(&self) -> u64 {
        self.ledger.most_booked.load(ORDER)
    }

    /// Returns true if no new sequence should begin and chunks should be small.
    pub(crate) fn is_pressed(&self) -> bool {
        self.ledger.is_pressed.load(ORDER)
    }

    /// Number of readings so far.
    pub(crate) fn generation(&self) -> u64 {
        self.ledger.generation.load(ORDER)
    }

    /// Publish the contents of the pool. If the oldest sequence keeps less than before, targets are
    /// set again at once: until the next reading nobody would release the difference.
    pub(crate) fn tell(&self, holdings: Holdings) {
        self.reclaimable.store(holdings.reclaimable, ORDER);
        let floor = self.floor.swap(holdings.floor, ORDER);
        self.booked.store(holdings.booked, ORDER);
        if holdings.floor < floor {
            self.governor.set_targets(&self.ledger);
        }
    }

    /// Set the number of bytes that its sequences use up in a second.
    pub(crate) fn set_growth(&self, bytes: u64) {
        self.growth.store(bytes, ORDER);
    }

    /// Unload a model that nobody uses. Returns true if there was one.
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
