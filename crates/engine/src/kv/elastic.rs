//! Pages of an engine that follow the memory of the machine.
//!
//! A page uses memory from its first touch until its granule is decommitted. So the governor's
//! account counts touched pages, and is checked before a page is first touched. Pages are taken
//! lowest first, so the touched ones are the first of a pool. The committed ones are the first too,
//! and may be more: the whole context of the oldest sequence.

use std::sync::Arc;

use device::Program;

use super::{KvCache, pages_of_sequence};
use crate::Result;
use crate::governor::{Account, Holdings};

impl KvCache {
    /// Set the account of the governor.
    pub(crate) fn set_account(&mut self, account: Arc<Account>) {
        self.account = Some(account);
    }

    /// Set the bytes that the program uses outside its pages.
    pub(crate) fn set_fixed_bytes(&self, bytes: u64) {
        if let Some(account) = &self.account {
            account.set_fixed(bytes);
        }
    }

    /// Bytes of pages that were touched and not decommitted.
    pub fn resident_bytes(&self) -> u64 {
        self.n_touched.iter().zip(&self.page_bytes).map(|(n, bytes)| *n as u64 * bytes).sum()
    }

    /// Returns true if the system is short of memory: nothing new should begin, and chunks should
    /// be small.
    pub(crate) fn is_pressed(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_pressed())
    }

    /// Returns true if there is a governor, so that room may appear although no sequence ends.
    pub(crate) fn is_governed(&self) -> bool {
        self.account.is_some()
    }

    /// Maximum number of bytes of pages that may be held now, by the budget and by the governor.
    pub fn allowed_bytes(&self) -> u64 {
        let governed = self.account.as_ref().map(|a| self.resident_bytes().saturating_add(a.room()));
        self.budget.min(governed.unwrap_or(u64::MAX))
    }

    /// Returns true if a page may be touched, or has been.
    pub(super) fn may_touch(&self, group: usize, page: u32, is_alone: bool) -> bool {
        let Some(account) = &self.account else { return true };
        (page as usize) < self.n_touched[group] || account.may_take(self.page_bytes[group], is_alone)
    }

    /// Count a page that is about to be touched.
    pub(super) fn note_touched(&mut self, group: usize, page: u32) {
        let n = (page as usize + 1).saturating_sub(self.n_touched[group]);
        self.n_touched[group] += n;
        if let Some(account) = self.account.as_ref().filter(|_| n > 0) {
            account.take(n as u64 * self.page_bytes[group]);
        }
    }

    /// Note that the granule that begins with page `start`, the last committed one of a group, was
    /// decommitted.
    pub(super) fn note_decommitted(&mut self, group: usize, start: usize) {
        let n = self.n_touched[group].saturating_sub(start);
        self.n_touched[group] -= n;
        if let Some(account) = self.account.as_ref().filter(|_| n > 0) {
            account.give(n as u64 * self.page_bytes[group]);
        }
    }

    /// Unload a model that nobody uses. Returns true if there was one.
    pub(super) fn unload_idle(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.unload_idle())
    }

    /// Commit all pages for the oldest sequence, which has at most `n_tokens` tokens, so that it
    /// finishes whatever others use. At most half of the available memory is committed. The pages
    /// stay committed until another sequence is the oldest. Returns false if the device refused
    /// some; the others stay.
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

    /// Set the slot of a sequence that runs alone (`None`: there are several). It may use most of
    /// the machine's reserve, since nobody else can be parked.
    pub(crate) fn set_alone(&mut self, slot: Option<usize>) {
        self.alone = slot;
    }

    /// End the commitment for an oldest sequence, because nothing runs.
    pub(crate) fn forget_oldest(&mut self) {
        self.told = u64::MAX;
        self.floor.fill(0);
    }

    /// Maximum number of pages of a group that a sequence of `n_tokens` tokens holds, and one for a
    /// copy.
    fn pages_for(&self, group: usize, n_tokens: usize) -> usize {
        if self.is_encoded[group] {
            return 0;
        }
        let n = pages_of_sequence(self.windows[group], n_tokens, self.max_rows, self.page_len) + 1;
        n.min(self.pools[group].n_pages())
    }

    /// Bytes of pages for a sequence of `n_tokens` tokens.
    pub(crate) fn bytes_for(&self, n_tokens: usize) -> u64 {
        (0..self.n_groups())
            .map(|group| self.pages_for(group, n_tokens) as u64 * self.page_bytes[group])
            .sum()
    }

    /// Bytes for each further token, if nothing falls out of a window.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        let groups = self.windows.iter().zip(&self.page_bytes).filter(|(window, _)| window.is_none());
        groups.map(|(_, bytes)| bytes / self.page_len as u64).sum()
    }

    /// Set the number of bytes that running sequences use up in a second.
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

    /// Bytes that waiting sequences may use: what the budgets leave, and what cached prefixes hold.
    pub(crate) fn room_bytes(&self) -> u64 {
        let held = self.resident_bytes() - self.reclaimable_bytes();
        self.allowed_bytes().saturating_sub(held)
    }

    /// Bytes of touched pages that stay committed for the oldest sequence.
    pub(crate) fn floor_bytes(&self) -> u64 {
        let n_kept = self.floor.iter().zip(&self.n_touched).map(|(floor, n_touched)| floor.min(n_touched));
        n_kept.zip(&self.page_bytes).map(|(n, bytes)| *n as u64 * bytes).sum()
    }

    /// Report what is held to the governor, once for each of its readings.
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

    /// Release what the governor's target demands, as far as free pages and cached prefixes
    /// suffice. Returns true if they did.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn shrink(&mut self, program: &mut dyn Program) -> Result<bool> {
        let target = self.account.as_ref().map_or(u64::MAX, |account| account.target());
        while self.resident_bytes() > target {
            if self.give_back_until(target.max(1), program)? {
                continue;
            }
            // Evict enough prefixes to free a granule, or all that the target demands.
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
