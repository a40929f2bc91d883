//! Allocation of pages and states, with memory committed and decommitted for them.

use device::Program;

use super::KvCache;
use crate::{Error, Result};

impl KvCache {
    /// Take a page, if the budget has room for it and the device has memory, or if evicting cached
    /// prefixes makes room.
    pub(super) fn take(&mut self, group: usize, is_alone: bool, program: &mut dyn Program) -> Result<u32> {
        loop {
            let page = self.pools[group].lowest_free();
            let page =
                page.filter(|_| self.held_bytes().saturating_add(self.page_bytes[group]) <= self.budget);
            match page {
                Some(page)
                    if self.may_touch(group, page, is_alone)
                        && self.ensure_committed(group, page, program)? =>
                {
                    self.note_touched(group, page);
                    return self.pools[group].take().ok_or_else(|| self.exhausted(group));
                }
                // Refused by the device: other groups may have memory that they do not need.
                Some(_) if self.give_back(program)? => continue,
                Some(_) | None => {}
            }
            let n_groups = self.n_groups();
            // Prefixes of this group are evicted first: only they help if its pool is empty.
            let mut groups = (group..n_groups).chain(0..group);
            let is_evicted = groups.any(|group| self.prefix.evict(group, &mut self.pools));
            // If the pool or the budget is exhausted, unloading another model would not help.
            let is_refused = page.is_some();
            if !(is_evicted || is_refused && self.unload_idle()) {
                return Err(self.exhausted(group));
            }
        }
    }

    /// Take a state, if need be one that only the prefix cache holds.
    pub(super) fn take_state(&mut self) -> Result<u32> {
        let states = self.n_groups();
        loop {
            if let Some(state) = self.pools[states].take() {
                return Ok(state);
            }
            if !self.prefix.evict(states, &mut self.pools) {
                return Err(self.exhausted(states));
            }
        }
    }

    fn exhausted(&self, group: usize) -> Error {
        Error::PagesExhausted { group, n_pages: self.pools[group].n_pages() }
    }

    /// Commit memory for the lowest free page of a group. Returns false on a shortage.
    ///
    /// Pages are taken lowest first and decommitted from the end. So the committed pages are the
    /// first of the pool, and all of them are held if the lowest free page is not among them.
    fn ensure_committed(&mut self, group: usize, page: u32, program: &mut dyn Program) -> Result<bool> {
        if program.committed().contains(group, page) {
            return Ok(true);
        }
        let granule = program.committed().granule_of(group, page);
        // Groups that once had more committed pages would add to those of this one.
        if self.committed_bytes(program) + self.granule_bytes(granule.len(), group)
            > self.most_committed(program)
        {
            self.give_back(program)?;
        }
        match program.commit(group, granule) {
            Ok(()) => Ok(true),
            Err(device::Error::Shortage { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn granule_bytes(&self, n_pages: usize, group: usize) -> u64 {
        n_pages as u64 * self.page_bytes[group]
    }

    /// Bytes of all committed pages.
    pub fn committed_bytes(&self, program: &dyn Program) -> u64 {
        let groups = 0..self.n_groups();
        groups.map(|group| self.granule_bytes(program.committed().n_committed(group), group)).sum()
    }

    /// The budget, and one granule of each group that is not full.
    fn most_committed(&self, program: &dyn Program) -> u64 {
        let groups = 0..self.n_groups();
        let granules = groups.map(|group| self.granule_bytes(program.committed().granule(group), group));
        granules.fold(self.budget, u64::saturating_add)
    }

    /// Decommit free pages: granules at the end of each pool. If such a granule still holds pages
    /// and others have room for them, they move there. Returns true if anything was decommitted.
    ///
    /// For a shortage, and for an engine that has been idle for a while. Allocates nothing.
    ///
    /// # Errors
    /// The device failed.
    pub fn give_back(&mut self, program: &mut dyn Program) -> Result<bool> {
        self.give_back_until(0, program)
    }

    /// Like [`Self::give_back`], but only until at most `bytes` bytes are resident.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn give_back_until(&mut self, bytes: u64, program: &mut dyn Program) -> Result<bool> {
        let mut is_any = false;
        for group in 0..self.n_groups() {
            if self.is_encoded[group] {
                continue;
            }
            while let Some(last) = program.committed().n_committed(group).checked_sub(1)
                && (bytes == 0 || self.resident_bytes() > bytes)
            {
                let granule = program.committed().granule_of(group, last as u32);
                if (granule.start as usize) < self.floor[group] {
                    break;
                }
                let pool = &self.pools[group];
                let n_free = granule.start as usize - pool.n_held(0..granule.start);
                if pool.n_held(granule.clone()) > n_free {
                    break;
                }
                for page in granule.clone() {
                    self.move_down(group, page, program)?;
                }
                if self.is_background_lost {
                    program.abandon_background();
                }
                let start = granule.start as usize;
                program.decommit(group, granule)?;
                self.note_decommitted(group, start);
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Move a page, if it is held, to the lowest free place, and update all tables that name it.
    fn move_down(&mut self, group: usize, page: u32, program: &mut dyn Program) -> Result<()> {
        if self.pools[group].references(page) == 0 {
            return Ok(());
        }
        let Some(to) = self.pools[group].lowest_free() else { return Ok(()) };
        program.copy_page(group, page, to)?;
        self.pools[group].move_down(page);
        self.prefix.move_page(group, page, to);
        for slot in 0..self.tables.n_slots() {
            for page_index in 0..self.pages_per_table() {
                if self.tables.page(slot, group, page_index) == page {
                    self.is_background_lost |= self.background == Some(slot);
                    self.tables.set(slot, group, page_index, to);
                }
            }
        }
        Ok(())
    }
}
