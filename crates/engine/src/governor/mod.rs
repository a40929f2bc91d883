//! The governor of memory: one per process, over the pools and caches of all models.
//!
//! A thread reads a [`MemorySource`] ten times a second, and at once if the system reports
//! pressure, and sets a budget ([`policy`]). Each engine has an [`Account`]: it checks the account
//! before it touches a new page, and between two steps it releases what it holds beyond its target.
//! Neither takes a lock, except after the oldest sequence has ended.
//!
//! Actions on a shortage have a fixed order. They are: release free pages that are still committed;
//! evict cold leaves of the prefix cache; unload unused models; admit nothing and shrink chunks;
//! park the youngest sequence of the lowest priority, down to the oldest. No step ends a sequence.

mod account;
mod policy;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use device::Device;
use platform::{MemorySource, Reading};

use self::account::Ledger;
pub(crate) use self::account::{Account, Holdings};
use self::policy::{Held, Policy, Share};
pub use self::policy::{MemoryCap, Reason, reserve};

/// Time between two readings without pressure.
const TICK: Duration = Duration::from_millis(100);

/// Unloads one model that nobody uses, and waits until its memory is free. Returns true if there
/// was one.
pub type UnloadIdle = dyn Fn() -> bool + Send + Sync;

/// The governor. [`crate::LoadOptions::governor`] passes it to engines.
pub struct Governor {
    cap: MemoryCap,
    /// The system's memory first, then the memories of devices that have their own.
    domains: Mutex<Vec<Arc<Domain>>>,
    unload_idle: Mutex<Option<Arc<UnloadIdle>>>,
}

impl std::fmt::Debug for Governor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Governor").field("cap", &self.cap).finish_non_exhaustive()
    }
}

/// One memory, and the accounts that use it.
struct Domain {
    /// Name of the device; empty for the system's memory.
    name: &'static str,
    source: Mutex<Box<dyn MemorySource>>,
    state: Mutex<DomainState>,
    ledger: Arc<Ledger>,
}

struct DomainState {
    policy: Policy,
    accounts: Vec<Weak<Account>>,
    reading: Reading,
    held: Held,
    reason: Reason,
    /// Shares of the accounts, at the last reading.
    shares: Vec<Share>,
    /// A buffer for targets.
    targets: Vec<u64>,
}

/// Memory that is held, and the budget.
#[derive(Clone, Debug)]
pub struct MemoryStatus {
    /// Device whose memory it is; empty for the system's.
    pub device: &'static str,
    /// The last reading.
    pub reading: Reading,
    /// Maximum number of bytes that pools and caches may hold.
    pub budget: u64,
    /// Bytes that pools and caches hold.
    pub held: u64,
    /// Bytes of weights, activations and the like, over all models.
    pub fixed: u64,
    /// Bytes left to other processes.
    pub reserve: u64,
    /// Bytes that running sequences use up in a second.
    pub growth: u64,
    /// Committed bytes that the oldest sequences have not touched yet.
    pub booked: u64,
    /// Part of `held` that the oldest sequences keep, whatever the budget.
    pub floor: u64,
    /// Reason of the budget.
    pub reason: Reason,
}

impl Governor {
    /// A governor that reads this machine's memory on a thread of its own, until it is dropped.
    ///
    /// # Errors
    /// [`crate::Error::Thread`].
    pub fn start(cap: MemoryCap) -> crate::Result<Arc<Governor>> {
        let governor = Governor::of(platform::system_source(), cap);
        governor.observe(Instant::now());
        let weak = Arc::downgrade(&governor);
        let run = move || {
            let mut last = Instant::now();
            while let Some(domain) = weak.upgrade().and_then(|governor| governor.domains().first().cloned()) {
                let complained = lock(&domain.source).wait(TICK);
                // Pressure without end is still read only ten times a second.
                if complained && last.elapsed() < TICK {
                    thread::sleep(TICK / 10);
                }
                let Some(governor) = weak.upgrade() else { return };
                last = Instant::now();
                governor.observe(last);
            }
        };
        let spawned = thread::Builder::new().name("memory".to_owned()).spawn(run);
        spawned.map_err(|error| crate::Error::Thread { what: "memory", reason: error.to_string() })?;
        Ok(governor)
    }

    /// A governor that reads only when [`Self::observe`] is called.
    pub fn of(source: Box<dyn MemorySource>, cap: MemoryCap) -> Arc<Governor> {
        let domains = Mutex::new(vec![Arc::new(Domain::new("", source, cap))]);
        Arc::new(Governor { cap, domains, unload_idle: Mutex::new(None) })
    }

    /// Set the function that unloads models that nobody uses.
    pub fn set_unload_idle(&self, unload: Arc<UnloadIdle>) {
        *lock(&self.unload_idle) = Some(unload);
    }

    /// Unload a model that nobody uses. Returns true if there was one.
    pub(crate) fn unload_idle(&self) -> bool {
        let unload = lock(&self.unload_idle).clone();
        unload.is_some_and(|unload| unload())
    }

    fn domains(&self) -> MutexGuard<'_, Vec<Arc<Domain>>> {
        lock(&self.domains)
    }

    /// Read all memories, and set their budgets and targets.
    pub fn observe(&self, now: Instant) {
        let domains = self.domains().clone();
        for domain in domains {
            while domain.observe(now) > 0 && self.unload_idle() {}
            domain.set_targets();
            domain.ledger.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Set the targets of a memory's accounts again, from the last reading.
    fn set_targets(&self, ledger: &Arc<Ledger>) {
        let domain = self.domains().iter().find(|domain| Arc::ptr_eq(&domain.ledger, ledger)).cloned();
        if let Some(domain) = domain {
            domain.set_targets();
        }
    }

    /// Bytes of the system's memory that the cap allows this process; `None`: no cap.
    pub fn cap_bytes(&self) -> Option<u64> {
        self.cap.bytes(lock(&self.domains()[0].state).reading.total)
    }

    /// Bytes of weights, activations, pools and caches of all models on a device.
    pub fn taken(&self, device: &dyn Device) -> u64 {
        let held = lock(&self.domain_of(device).state).held;
        held.fixed + held.resident
    }

    /// An account for a program on a device with `fixed` bytes outside its pool.
    pub(crate) fn account(self: &Arc<Self>, device: &dyn Device, fixed: u64) -> Arc<Account> {
        let domain = self.domain_of(device);
        let account = Arc::new(Account::new(self.clone(), domain.ledger.clone(), fixed));
        let mut state = lock(&domain.state);
        state.accounts.retain(|account| account.strong_count() > 0);
        state.accounts.push(Arc::downgrade(&account));
        drop(state);
        account
    }

    fn domain_of(&self, device: &dyn Device) -> Arc<Domain> {
        let mut domains = self.domains();
        if let Some(source) = device.memory_source() {
            if let Some(domain) = domains.iter().find(|domain| domain.name == device.name()) {
                return domain.clone();
            }
            let domain = Arc::new(Domain::new(device.name(), source, MemoryCap::Max));
            domain.observe(Instant::now());
            domains.push(domain.clone());
            return domain;
        }
        domains[0].clone()
    }

    /// Status of each memory.
    pub fn status(&self) -> Vec<MemoryStatus> {
        self.domains().iter().map(|domain| domain.status()).collect()
    }

    /// Status of the memory that a device's programs use.
    pub(crate) fn status_of(&self, device: &dyn Device) -> MemoryStatus {
        self.domain_of(device).status()
    }
}

impl Domain {
    fn new(name: &'static str, source: Box<dyn MemorySource>, cap: MemoryCap) -> Domain {
        let state = DomainState {
            policy: Policy::new(cap),
            accounts: Vec::new(),
            reading: Reading::default(),
            held: Held::default(),
            reason: Reason::Unknown,
            shares: Vec::new(),
            targets: Vec::new(),
        };
        Domain { name, source: Mutex::new(source), state: Mutex::new(state), ledger: Arc::default() }
    }

    fn status(&self) -> MemoryStatus {
        let state = lock(&self.state);
        MemoryStatus {
            device: self.name,
            reading: state.reading,
            budget: self.ledger.budget.load(Ordering::Relaxed),
            held: self.ledger.resident.load(Ordering::Relaxed),
            fixed: state.held.fixed,
            reserve: reserve(state.reading.total),
            growth: state.held.growth,
            booked: state.held.booked,
            floor: state.shares.iter().map(|share| share.floor).sum(),
            reason: state.reason,
        }
    }

    /// Read the memory and set its budget. Returns the bytes held beyond the budget that are
    /// neither free pages nor cached prefixes.
    fn observe(&self, now: Instant) -> u64 {
        let reading = lock(&self.source).read();
        let mut state = lock(&self.state);
        let DomainState { policy, accounts, shares, .. } = &mut *state;
        accounts.retain(|account| account.strong_count() > 0);
        shares.clear();
        let mut held = Held { resident: self.ledger.resident.load(Ordering::Relaxed), ..Held::default() };
        for account in accounts.iter().filter_map(Weak::upgrade) {
            shares.push(account.share());
            held.growth += account.growth.load(Ordering::Relaxed);
            held.booked += account.booked.load(Ordering::Relaxed);
            held.fixed += account.fixed.load(Ordering::Relaxed);
        }
        let given_back = self.ledger.given_back.swap(0, Ordering::Relaxed);
        let budget = policy.update(now, &reading, held, given_back);
        let excess = held.resident.saturating_sub(budget.bytes);
        // If not even the oldest sequences may use more, idle models are unloaded.
        let is_dire = reading.total > 0 && budget.hard == 0;
        let uncovered = policy::uncovered(excess, shares).max(u64::from(is_dire));
        (state.reading, state.held, state.reason) = (reading, held, budget.reason);
        drop(state);
        self.ledger.set(&budget);
        uncovered
    }

    /// Set the target of each account.
    fn set_targets(&self) {
        let mut state = lock(&self.state);
        let DomainState { accounts, shares, targets, .. } = &mut *state;
        let accounts: Vec<_> = accounts.iter().filter_map(Weak::upgrade).collect();
        shares.clear();
        shares.extend(accounts.iter().map(|account| account.share()));
        let resident: u64 = shares.iter().map(|share| share.resident).sum();
        let excess = resident.saturating_sub(self.ledger.budget.load(Ordering::Relaxed));
        policy::targets(excess, shares, targets);
        for (account, target) in accounts.iter().zip(targets) {
            account.target.store(*target, Ordering::Relaxed);
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
