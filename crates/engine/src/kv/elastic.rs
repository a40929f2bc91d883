//! How the pages of an engine follow the memory of the machine.
//!
//! Memory is held in truth where a page was touched, and from there on until its granule is decommitted. So the books of the
//! governor count touched pages, and are asked before a page is touched for the first time. Pages are taken lowest first, so the
//! touched ones are the first of a pool, and so are the committed ones, of which there may be more: the whole context of the oldest
//! sequence.

use std::sync::Arc;

use device::Program;

use super::{KvCache, pages_of_sequence};
use crate::Result;
use crate::governor::{Account, Holdings};

impl KvCache {
    /// From now on, ask a governor.
    pub(crate) fn set_account(&mut self, account: Arc<Account>) {
        self.account = Some(account);
    }

    /// The program takes so many bytes beside its pages, from now on.
    pub(crate) fn set_fixed_bytes(&self, bytes: u64) {
        if let Some(account) = &self.account {
            account.set_fixed(bytes);
        }
    }

    /// Bytes of pages that were touched and not given back.
    pub fn resident_bytes(&self) -> u64 {
        self.n_touched.iter().zip(&self.page_bytes).map(|(n, bytes)| *n as u64 * bytes).sum()
    }

    /// Whether the system is short of memory: nothing new begins, and chunks are small.
    pub(crate) fn is_pressed(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_pressed())
    }

    /// Whether a governor rules, so that room may come without a sequence that ends.
    pub(crate) fn is_governed(&self) -> bool {
        self.account.is_some()
    }

    /// Most bytes of pages that may be held now: by the budget that was set, and by the governor.
    pub fn allowed_bytes(&self) -> u64 {
        let governed = self.account.as_ref().map(|a| self.resident_bytes().saturating_add(a.room()));
        self.budget.min(governed.unwrap_or(u64::MAX))
    }

    /// Whether a page may be touched; what is touched already may.
    pub(super) fn may_touch(&self, group: usize, page: u32, is_alone: bool) -> bool {
        let Some(account) = &self.account else { return true };
        (page as usize) < self.n_touched[group] || account.may_take(self.page_bytes[group], is_alone)
    }

    /// A page is about to be touched.
    pub(super) fn note_touched(&mut self, group: usize, page: u32) {
        let n = (page as usize + 1).saturating_sub(self.n_touched[group]);
        self.n_touched[group] += n;
        if let Some(account) = self.account.as_ref().filter(|_| n > 0) {
            account.take(n as u64 * self.page_bytes[group]);
        }
    }

    /// The granule that begins with page `start`, the last of a group, has no memory any more.
    pub(super) fn note_decommitted(&mut self, group: usize, start: usize) {
        let n = self.n_touched[group].saturating_sub(start);
        self.n_touched[group] -= n;
        if let Some(account) = self.account.as_ref().filter(|_| n > 0) {
            account.give(n as u64 * self.page_bytes[group]);
        }
    }

    /// Unload a model that nobody uses; whether there was one.
    pub(super) fn unload_idle(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.unload_idle())
    }

    /// The oldest sequence becomes `n_tokens` long at most: commit all pages that it needs, as far as half of what
    /// can be had reaches, so that it finishes whatever others take. They stay committed until somebody else is the oldest. False:
    /// the device refused some; what it gave stays.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn commit_for_oldest(&mut self, n_tokens: usize, program: &mut dyn Program) -> Result<bool> {
        self.told = u64::MAX;
        let bytes = self.bytes_for(n_tokens);
        let most = self.account.as_ref().map_or(u64::MAX, |account| account.most_booked());
        let part = if bytes > most { most as f64 / bytes as f64 } else { 1.0 };
        for group in 0..self.n_groups() {
            self.floor[group] = (self.pages_for(group, n_tokens) as f64 * part) as usize;
        }
        for group in 0..self.n_groups() {
            while program.committed().n_committed(group) < self.floor[group] {
                let first = program.committed().n_committed(group) as u32;
                let granule = program.committed().granule_of(group, first);
                match program.commit(group, granule) {
                    Ok(()) => continue,
                    Err(device::Error::Shortage { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                let mut groups = 0..self.n_groups();
                if !self.give_back(program)?
                    && !groups.any(|group| self.prefix.evict(group, &mut self.pools))
                    && !self.unload_idle()
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The sequence in this slot runs alone (`None`: others run beside it): nobody is left to be parked, so it may use most of the
    /// machine's reserve.
    pub(crate) fn set_alone(&mut self, slot: Option<usize>) {
        self.alone = slot;
    }

    /// Nothing runs: nothing stays committed for anybody.
    pub(crate) fn forget_oldest(&mut self) {
        self.told = u64::MAX;
        self.floor.fill(0);
    }

    /// Pages of a group that a sequence of `n_tokens` holds at most, and one for a copy.
    fn pages_for(&self, group: usize, n_tokens: usize) -> usize {
        if self.is_encoded[group] {
            return 0;
        }
        let n = pages_of_sequence(self.windows[group], n_tokens, self.max_rows, self.page_len) + 1;
        n.min(self.pools[group].n_pages())
    }

    /// Bytes of a sequence of `n_tokens`.
    pub(crate) fn bytes_for(&self, n_tokens: usize) -> u64 {
        (0..self.n_groups())
            .map(|group| self.pages_for(group, n_tokens) as u64 * self.page_bytes[group])
            .sum()
    }

    /// Bytes that a token more takes, where nothing falls out of a window.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        let groups = self.windows.iter().zip(&self.page_bytes).filter(|(window, _)| window.is_none());
        groups.map(|(_, bytes)| bytes / self.page_len as u64).sum()
    }

    /// Sequences that run take so many bytes a second.
    pub(crate) fn set_growth(&self, bytes: f64) {
        if let Some(account) = &self.account {
            account.set_growth(bytes as u64);
        }
    }

    /// Bytes of free pages that were touched, and of pages that only the prefix cache holds.
    fn reclaimable_bytes(&self) -> u64 {
        let of_group = |group: usize| {
            let pool = &self.pools[group];
            let n_held = pool.n_pages() - pool.n_free();
            let n_running = n_held - self.prefix.n_alone(group, pool);
            let kept = n_running.max(self.floor[group]);
            self.n_touched[group].saturating_sub(kept) as u64 * self.page_bytes[group]
        };
        (0..self.n_groups()).filter(|group| !self.is_encoded[*group]).map(of_group).sum()
    }

    /// Bytes that sequences may take which are not in slots: what nobody holds of the budgets, and what prefixes hold.
    pub(crate) fn room_bytes(&self) -> u64 {
        let held = self.resident_bytes() - self.reclaimable_bytes();
        self.allowed_bytes().saturating_sub(held)
    }

    /// Bytes of touched pages that stay committed for the oldest sequence.
    pub(crate) fn floor_bytes(&self) -> u64 {
        let n_kept = self.floor.iter().zip(&self.n_touched).map(|(floor, n_touched)| floor.min(n_touched));
        n_kept.zip(&self.page_bytes).map(|(n, bytes)| *n as u64 * bytes).sum()
    }

    /// Tell the governor what is held, once for each of its readings.
    pub(crate) fn tell_governor(&mut self) {
        let Some(account) = self.account.clone() else { return };
        if std::mem::replace(&mut self.told, account.generation()) == account.generation() {
            return;
        }
        let pages = |of_group: &dyn Fn(usize) -> usize| {
            (0..self.n_groups()).map(|group| of_group(group) as u64 * self.page_bytes[group]).sum()
        };
        account.tell(Holdings {
            reclaimable: self.reclaimable_bytes(),
            floor: self.floor_bytes(),
            booked: pages(&|group| self.floor[group].saturating_sub(self.n_touched[group])),
        });
    }

    /// Give back what the governor asks for, as far as free pages and cached prefixes reach; whether they did.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn shrink(&mut self, program: &mut dyn Program) -> Result<bool> {
        let target = self.account.as_ref().map_or(u64::MAX, |account| account.target());
        while self.resident_bytes() > target {
            if self.give_back_until(target.max(1), program)? {
                continue;
            }
            // As many prefixes as make a granule free, or all that is asked for.
            let wanted = self.resident_bytes() - target;
            let held = self.held_bytes();
            while held - self.held_bytes() < wanted
                && (0..self.n_groups()).any(|group| self.prefix.evict(group, &mut self.pools))
            {}
            if self.held_bytes() == held {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
