//! Rules for the memory that pools and caches may hold: pure functions of the readings of a source.
//!
//! `budget = held + free - reserve - growth - booked`. The reserve is for other processes. `growth`
//! is what running sequences will use in the next [`AHEAD`]. `booked` is what the oldest sequences
//! may still use of their committed contexts. The budget shrinks at once. It grows by at most
//! [`GROWTH`] a second, after [`CALM`] without trouble.

use std::time::{Duration, Instant};

use platform::{Bound, Pressure, Reading};

/// Time for which the growth of running sequences is kept free.
pub(super) const AHEAD: Duration = Duration::from_secs(2);

/// Time without trouble after which a budget grows.
pub(super) const CALM: Duration = Duration::from_secs(5);

/// Largest growth of a budget in a second, relative to the budget.
pub(super) const GROWTH: f64 = 0.1;

/// Time after trouble in which nothing new begins.
const PRESSED: Duration = Duration::from_secs(1);

/// Reserve that only the oldest sequence may use: an eighth of the memory, from 64 MiB to 1 GiB.
pub fn reserve(total: u64) -> u64 {
    (total / 8).clamp(64 << 20, 1 << 30)
}

/// Operator's limit on this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum MemoryCap {
    /// No limit but the free memory.
    #[default]
    Max,
    /// A number of bytes.
    Bytes(u64),
    /// A share of the memory, from 0 to 1.
    Share(f64),
}

impl MemoryCap {
    /// The cap in bytes, for a memory of `total` bytes; `None`: no cap.
    pub fn bytes(self, total: u64) -> Option<u64> {
        match self {
            MemoryCap::Max => None,
            MemoryCap::Bytes(bytes) => Some(bytes),
            MemoryCap::Share(share) => Some((total as f64 * share) as u64),
        }
    }
}

/// Reason of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The system reports nothing, so nothing is limited.
    #[default]
    Unknown,
    /// Free memory of the machine.
    Machine,
    /// Remainder of the limit of a control group or job.
    Group,
    /// Free memory of the device.
    Device,
    /// The operator's cap.
    Cap,
    /// The system reported that memory is short.
    Pressure,
    /// Memory is free again, and the budget grows slowly.
    Recovering,
}

impl Reason {
    /// Reason of a budget that equals the free memory.
    pub(crate) fn of(bound: Bound) -> Reason {
        match bound {
            Bound::Machine => Reason::Machine,
            Bound::Group => Reason::Group,
            Bound::Device => Reason::Device,
        }
    }

    /// Name in metrics and plans.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Unknown => "unknown",
            Reason::Machine => "machine",
            Reason::Group => "group",
            Reason::Device => "device",
            Reason::Cap => "cap",
            Reason::Pressure => "pressure",
            Reason::Recovering => "recovering",
        }
    }
}

/// Bytes that all pools and caches of a memory hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Touched bytes of pages.
    pub(super) resident: u64,
    /// Bytes that running sequences use up in a second.
    pub(super) growth: u64,
    /// Committed bytes that the oldest sequences have not touched yet.
    pub(super) booked: u64,
    /// Bytes of weights, activations and the like, which cannot shrink.
    pub(super) fixed: u64,
}

/// Limits set by the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Budget {
    /// Maximum number of bytes of pools and caches.
    pub(super) bytes: u64,
    /// Maximum number of bytes for a sequence that runs alone: it may use most of the reserve.
    pub(super) hard: u64,
    /// Maximum number of bytes that are committed for an oldest sequence.
    pub(super) most_booked: u64,
    /// True if nothing new should begin and chunks should be small.
    pub(super) is_pressed: bool,
    pub(super) reason: Reason,
}

/// The rules and their state.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    cap: MemoryCap,
    /// The budget; `None` before the first reading.
    budget: Option<u64>,
    updated: Option<Instant>,
    /// Time at which the budget last shrank, or the system last reported pressure.
    trouble: Option<Instant>,
    /// Time at which the system last reported pressure.
    complained: Option<Instant>,
}

impl Policy {
    pub(super) fn new(cap: MemoryCap) -> Policy {
        Policy { cap, budget: None, updated: None, trouble: None, complained: None }
    }

    /// The budget at `now`. `given_back` is the bytes outside pools and caches that this process
    /// has released since the last call, less those that it has allocated, by unloading and loading
    /// models. That is no trouble, and released bytes may be used at once.
    pub(super) fn update(&mut self, now: Instant, reading: &Reading, held: Held, given_back: i64) -> Budget {
        let cap = self.cap.bytes(reading.total).map(|cap| cap.saturating_sub(held.fixed));
        if reading.total == 0 {
            let bytes = cap.unwrap_or(u64::MAX);
            let reason = if cap.is_some() { Reason::Cap } else { Reason::Unknown };
            return Budget { bytes, hard: bytes, most_booked: bytes, is_pressed: false, reason };
        }
        let reserve = reserve(reading.total);
        let all = held.resident.saturating_add(reading.free);
        let growth = (held.growth as f64 * AHEAD.as_secs_f64()) as u64;
        let mut wanted = all.saturating_sub(reserve).saturating_sub(growth).saturating_sub(held.booked);
        let mut reason = Reason::of(reading.bound);
        if let Some(cap) = cap.filter(|cap| *cap < wanted) {
            (wanted, reason) = (cap, Reason::Cap);
        }
        let complained = match reading.pressure {
            Pressure::None => wanted,
            Pressure::Some => held.resident,
            Pressure::Critical => held.resident - held.resident / 8,
        };
        if reading.pressure > Pressure::None {
            (self.trouble, self.complained) = (Some(now), Some(now));
            if complained < wanted {
                (wanted, reason) = (complained, Reason::Pressure);
            }
        }
        let bytes = match self.budget {
            None => wanted,
            Some(before) => {
                let before = before.saturating_add_signed(given_back);
                // Small movements are noise.
                if wanted < before - before / 64 {
                    self.trouble = Some(now);
                }
                let grown = match self.trouble {
                    None => wanted,
                    Some(trouble) => self.grown(now, trouble, before, wanted),
                };
                if grown < wanted {
                    reason = Reason::Recovering;
                }
                grown.min(wanted)
            }
        };
        (self.budget, self.updated) = (Some(bytes), Some(now));
        let is_recent =
            |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < PRESSED);
        // A process that allocates while much is free is no trouble.
        let is_tight = held.resident.saturating_add(growth) > bytes - bytes / 8;
        Budget {
            bytes,
            hard: all.saturating_sub(reserve / 4).min(cap.unwrap_or(u64::MAX)).max(bytes),
            most_booked: all.saturating_sub(reserve) / 2,
            is_pressed: is_recent(self.complained)
                || is_tight && is_recent(self.trouble)
                || held.resident > bytes,
            reason,
        }
    }

    /// Largest budget that the growth since the last update allows.
    fn grown(&self, now: Instant, trouble: Instant, before: u64, wanted: u64) -> u64 {
        let since = now.saturating_duration_since(trouble);
        let Some(calm) = since.checked_sub(CALM) else { return before };
        let updated = self.updated.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        // A tenth of an empty budget would be nothing.
        let base = before.max(wanted / 8);
        base.saturating_add((base as f64 * GROWTH * updated.min(calm).as_secs_f64()) as u64)
    }
}

/// Bytes that one pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) resident: u64,
    /// Part of `resident` that is free pages and cached prefixes.
    pub(super) reclaimable: u64,
    /// Part of `resident` that its oldest sequence keeps.
    pub(super) floor: u64,
}

/// Part of `excess` that free pages and cached prefixes do not cover.
pub(super) fn uncovered(excess: u64, shares: &[Share]) -> u64 {
    excess.saturating_sub(shares.iter().map(|share| share.reclaimable).sum())
}

/// Targets of the pools, so that all together hold `excess` less. Free pages and cached prefixes go
/// first, in proportion; then what running sequences hold beyond the floors, likewise in
/// proportion.
pub(super) fn targets(excess: u64, shares: &[Share], targets: &mut Vec<u64>) {
    targets.clear();
    if excess == 0 {
        targets.extend(shares.iter().map(|_| u64::MAX));
        return;
    }
    let part = |whole: u64, of: u64, all: u64| {
        (u128::from(whole) * u128::from(of)).div_ceil(u128::from(all.max(1))).min(u128::from(of)) as u64
    };
    let free: u64 = shares.iter().map(|share| share.reclaimable).sum();
    let rest = excess.saturating_sub(free);
    let held = |share: &Share| share.resident.saturating_sub(share.reclaimable + share.floor);
    let all_held: u64 = shares.iter().map(held).sum();
    targets.extend(shares.iter().map(|share| {
        let less = part(excess.min(free), share.reclaimable, free) + part(rest, held(share), all_held);
        share.resident.saturating_sub(less).max(share.floor.min(share.resident))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn free(free: u64) -> Reading {
        Reading { total: 1 << 30, free, ..Reading::default() }
    }

    #[test]
    fn a_budget_shrinks_at_once_and_grows_slowly() {
        let mut policy = Policy::new(MemoryCap::Max);
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let held = Held { resident: 200 * MIB, ..Held::default() };
        let first = policy.update(at(0.0), &free(500 * MIB), held, 0);
        assert_eq!((first.bytes, first.reason), ((200 + 500 - 128) * MIB, Reason::Machine));
        assert_eq!(first.hard, (200 + 500 - 32) * MIB);
        assert!(!first.is_pressed);
        // Another process takes 400 MiB.
        let second = policy.update(at(0.1), &free(100 * MIB), held, 0);
        assert_eq!((second.bytes, second.is_pressed), ((200 + 100 - 128) * MIB, true));
        // The process ends. The budget stays for five seconds, and then grows by a tenth a second.
        let mut before = second.bytes;
        for tick in 2..=51 {
            let budget = policy.update(at(f64::from(tick) * 0.1), &free(500 * MIB), held, 0);
            assert_eq!((budget.bytes, budget.reason), (before, Reason::Recovering), "tick {tick}");
        }
        for tick in 52..400 {
            let budget = policy.update(at(f64::from(tick) * 0.1), &free(500 * MIB), held, 0);
            assert!(budget.bytes as f64 <= before as f64 * 1.0101, "tick {tick}");
            before = budget.bytes;
        }
        assert_eq!(before, first.bytes);
    }

    #[test]
    fn noise_does_not_keep_a_budget_down() {
        let mut policy = Policy::new(MemoryCap::Max);
        let begun = Instant::now();
        policy.update(begun, &free(200 * MIB), Held::default(), 0);
        policy.update(begun, &free(150 * MIB), Held::default(), 0);
        let mut budget = 0;
        for tick in 0..300u32 {
            let noise = u64::from(tick % 7) * MIB;
            let now = begun + Duration::from_millis(u64::from(tick) * 100);
            budget = policy.update(now, &free(900 * MIB + noise), Held::default(), 0).bytes;
        }
        assert!(budget > 700 * MIB, "{budget}");
    }

    #[test]
    fn growth_and_the_oldest_are_kept_free() {
        let mut policy = Policy::new(MemoryCap::Max);
        let held = Held { resident: 100 * MIB, growth: 20 * MIB, booked: 50 * MIB, fixed: 1 << 30 };
        let budget = policy.update(Instant::now(), &free(400 * MIB), held, 0);
        assert_eq!(budget.bytes, (100 + 400 - 128 - 40 - 50) * MIB);
        assert_eq!(budget.most_booked, (100 + 400 - 128) / 2 * MIB);
    }

    #[test]
    fn a_cap_is_for_all_that_the_process_takes() {
        let held = Held { fixed: 300 * MIB, ..Held::default() };
        let budget = |cap, free_bytes| Policy::new(cap).update(Instant::now(), &free(free_bytes), held, 0);
        let capped = budget(MemoryCap::Bytes(500 * MIB), 900 * MIB);
        assert_eq!((capped.bytes, capped.hard, capped.reason), (200 * MIB, 200 * MIB, Reason::Cap));
        assert_eq!(budget(MemoryCap::Share(0.5), 900 * MIB).bytes, 212 * MIB);
        assert_eq!(budget(MemoryCap::Bytes(500 * MIB), 200 * MIB).reason, Reason::Machine);
        let unknown = Policy::new(MemoryCap::Max).update(Instant::now(), &Reading::default(), held, 0);
        assert_eq!((unknown.bytes, unknown.reason), (u64::MAX, Reason::Unknown));
    }

    #[test]
    fn what_the_system_says_counts_beside_what_is_free() {
        let mut policy = Policy::new(MemoryCap::Max);
        let held = Held { resident: 80 * MIB, ..Held::default() };
        policy.update(Instant::now(), &free(900 * MIB), held, 0);
        let complains = |pressure| Reading { pressure, ..free(900 * MIB) };
        let some = policy.update(Instant::now(), &complains(Pressure::Some), held, 0);
        assert_eq!((some.bytes, some.reason, some.is_pressed), (80 * MIB, Reason::Pressure, true));
        assert_eq!(policy.update(Instant::now(), &complains(Pressure::Critical), held, 0).bytes, 70 * MIB);
    }

    #[test]
    fn what_was_given_back_may_be_used_at_once() {
        let mut policy = Policy::new(MemoryCap::Max);
        let now = Instant::now();
        policy.update(now, &free(500 * MIB), Held::default(), 0);
        policy.update(now, &free(200 * MIB), Held::default(), 0);
        let budget = policy.update(now, &free(600 * MIB), Held::default(), 100 * MIB as i64);
        assert_eq!(budget.bytes, 172 * MIB);
    }

    #[test]
    fn loading_a_model_is_no_trouble_and_neither_is_a_hog_where_plenty_is_left() {
        let mut policy = Policy::new(MemoryCap::Max);
        let now = Instant::now();
        policy.update(now, &free(900 * MIB), Held::default(), 0);
        policy.update(now, &free(600 * MIB), Held::default(), -(300 * MIB as i64));
        let calm = policy.update(now, &free(700 * MIB), Held::default(), 0);
        assert_eq!((calm.bytes, calm.is_pressed), (572 * MIB, false));
        let held = Held { resident: 10 * MIB, ..Held::default() };
        let hog = policy.update(now, &free(500 * MIB), held, 0);
        assert_eq!((hog.bytes, hog.is_pressed), (382 * MIB, false));
    }

    #[test]
    fn caches_go_before_sequences_and_floors_stay() {
        let mut out = Vec::new();
        let shares = [
            Share { resident: 100, reclaimable: 30, floor: 20 },
            Share { resident: 50, reclaimable: 10, floor: 40 },
            Share::default(),
        ];
        targets(0, &shares, &mut out);
        assert_eq!(out, [u64::MAX; 3]);
        targets(20, &shares, &mut out);
        assert_eq!(out, [85, 45, 0]);
        assert_eq!((uncovered(20, &shares), uncovered(50, &shares)), (0, 10));
        targets(60, &shares, &mut out);
        assert_eq!(out, [50, 40, 0], "what runs gives 20");
        targets(1000, &shares, &mut out);
        assert_eq!(out, [20, 40, 0]);
    }
}
