//! The KV cache's bookkeeping: which page holds which positions of which sequence.
//!
//! Bytes belong to the program; it is told to commit them, granule by granule, as pages are taken. Here are page tables (one
//! row a slot and KV group, read by the device), a pool of page numbers a group, and the prefix cache. Pages are shared
//! between sequences and the cache by reference counts; a page that is held more than once is never written: it is copied
//! when a sequence is about to ([`KvCache::reserve`]).

mod commit;
mod elastic;
mod pages;
mod prefix;
mod states;
mod tables;

pub use pages::PagePool;
pub use prefix::PrefixCache;
pub(crate) use prefix::common_len;

use std::sync::Arc;

use device::{KvGroup, KvLayout, Limits, PAGE_NONE, Program, STATE_NONE, StateUse};

use crate::governor::Account;
use crate::{Error, Result};
use states::SlotStates;
use tables::PageTables;

/// Most pages that one sequence holds in a group, while a step of `max_rows` rows is computed.
pub fn pages_of_sequence(window: Option<usize>, n_ctx: usize, max_rows: usize, page_len: usize) -> usize {
    let all = n_ctx.div_ceil(page_len);
    // The rows of a step and the `window - 1` positions before them; one page more, since they may start inside one.
    window.map_or(all, |w| (w.saturating_sub(1) + max_rows).div_ceil(page_len) + 1).min(all)
}

/// Pages of each group's pool for `n_sequences` sequences that run at once: what they can hold, and a little for the
/// prefix cache, so that it keeps something even then: one page for a copy, and in window groups the window at the end
/// of each prompt, without which nothing of the prompt could be used again (a window as long as the context never ends).
/// What an encoder writes is there once for all.
pub fn pool_sizes(
    layout: &KvLayout,
    n_ctx: usize,
    max_rows: usize,
    n_sequences: usize,
    page_len: usize,
) -> Vec<usize> {
    let of_group = |group: &KvGroup| {
        if let Some(n_positions) = group.encoder_states {
            return n_positions.div_ceil(page_len);
        }
        let kept = group.window.filter(|w| *w < n_ctx).map_or(1, |w| w.div_ceil(page_len) + 1);
        n_sequences * (pages_of_sequence(group.window, n_ctx, max_rows, page_len) + kept)
    };
    layout.groups.iter().map(of_group).collect()
}

/// Bytes that one sequence of `n_tokens` tokens holds at most, and a page of each group for a copy.
pub fn bytes_of_sequence(layout: &KvLayout, limits: &Limits, n_tokens: usize) -> u64 {
    let of_group = |(group, g): (usize, &KvGroup)| {
        let n = g.encoder_states.map_or_else(
            || pages_of_sequence(g.window, n_tokens, limits.max_rows, limits.page_len) + 1,
            |n| n.div_ceil(limits.page_len),
        );
        (n * layout.page_bytes(group, limits.kv_type, limits.page_len)) as u64
    };
    layout.groups.iter().enumerate().map(of_group).sum()
}

/// Pages, tables and the prefix cache of all slots.
#[derive(Clone, Debug)]
pub struct KvCache {
    page_len: usize,
    /// Rows of a step.
    max_rows: usize,
    /// Window of each group.
    windows: Vec<Option<usize>>,
    /// Whether an encoder writes a group's pages: every slot reads the same ones, and they are not counted.
    is_encoded: Vec<bool>,
    /// `(n_groups + 1)`, the last one of states.
    pools: Vec<PagePool>,
    /// By slot; empty without recurrent layers.
    states: Vec<SlotStates>,
    /// Bytes of a page of each group.
    page_bytes: Vec<u64>,
    /// Most bytes of pages that are held at once, by sequences and the prefix cache.
    budget: u64,
    /// What the governor of the process allows; `None`: nobody governs.
    account: Option<Arc<Account>>,
    /// Pages of each group, the first ones, that were touched since they were committed: memory that is held in truth.
    n_touched: Vec<usize>,
    /// Pages of each group, the first ones, that stay committed for the oldest sequence.
    floor: Vec<usize>,
    /// The slot of a sequence that runs alone: it may use most of the machine's reserve.
    alone: Option<usize>,
    /// The reading of the governor that it was told of last.
    told: u64,
    prefix: PrefixCache,
    tables: PageTables,
    /// The slot whose rows the device computes in the background.
    background: Option<usize>,
    /// Since then, pages of it have moved or were let go of.
    is_background_lost: bool,
    /// `(n_slots, n_groups)` entries of a table before this one are [`PAGE_NONE`] for good: out of the window.
    first_kept: Vec<usize>,
}

impl KvCache {
    /// Free pages as the limits say, for `limits.max_spans` slots.
    pub fn new(layout: &KvLayout, limits: &Limits) -> KvCache {
        let groups = &layout.groups;
        let n_groups = groups.len();
        let longest = groups.iter().filter_map(|g| g.encoder_states).max().unwrap_or(0).max(limits.n_ctx);
        let pages_per_table = longest.div_ceil(limits.page_len);
        let mut tables = PageTables::new(limits.max_spans, n_groups, pages_per_table);
        for slot in 0..limits.max_spans {
            for (group, of_group) in groups.iter().enumerate() {
                let n_encoded = of_group.encoder_states.map_or(0, |n| n.div_ceil(limits.page_len));
                tables.fill(slot, group, 0..n_encoded, |page_index| page_index as u32);
            }
        }
        KvCache {
            page_len: limits.page_len,
            max_rows: limits.max_rows,
            windows: groups.iter().map(|g| g.window).collect(),
            is_encoded: groups.iter().map(|g| g.encoder_states.is_some()).collect(),
            pools: limits.n_pages.iter().chain([&limits.n_states]).map(|&n| PagePool::new(n)).collect(),
            states: match layout.states.is_empty() {
                true => Vec::new(),
                false => vec![SlotStates::default(); limits.max_spans],
            },
            page_bytes: (0..n_groups)
                .map(|g| layout.page_bytes(g, limits.kv_type, limits.page_len) as u64)
                .collect(),
            budget: u64::MAX,
            account: None,
            n_touched: vec![0; n_groups],
            floor: vec![0; n_groups],
            alone: None,
            told: u64::MAX,
            prefix: PrefixCache::new(layout, limits.page_len),
            tables,
            background: None,
            is_background_lost: false,
            first_kept: vec![0; limits.max_spans * n_groups],
        }
    }

    /// `(n_slots, n_groups, pages_per_table)`, as [`device::Step::page_tables`] wants them.
    pub fn tables(&self) -> &[u32] {
        self.tables.entries()
    }

    /// `(n_groups, pages_per_table)` of a slot.
    pub(crate) fn tables_of(&self, slot: usize) -> &[u32] {
        let n = self.n_groups() * self.pages_per_table();
        &self.tables()[slot * n..(slot + 1) * n]
    }

    /// Reserved rows of a slot are computed in the background from now on.
    pub(crate) fn begin_background(&mut self, slot: usize) {
        (self.background, self.is_background_lost) = (Some(slot), false);
    }

    /// None are any more.
    pub(crate) fn end_background(&mut self) {
        (self.background, self.is_background_lost) = (None, false);
    }

    /// Whether pages of these rows have moved or were let go of: they must not be computed further.
    pub(crate) fn is_background_lost(&self) -> bool {
        self.is_background_lost
    }

    /// Entries of one table.
    pub fn pages_per_table(&self) -> usize {
        self.tables.pages_per_table()
    }

    /// What of the tables changed, as [`device::Step::table_changes`] wants it.
    pub fn table_changes(&self) -> Option<&[u32]> {
        self.tables.changes()
    }

    /// What came of submitting a step with these tables: the device has seen them as they are, or nobody knows.
    pub fn note_submitted<T, E>(
        &mut self,
        submitted: std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.tables.note_seen(submitted.is_ok());
        submitted
    }

    /// `(pages held, pages in all)` of a group.
    pub fn usage(&self, group: usize) -> (usize, usize) {
        let pool = &self.pools[group];
        (pool.n_pages() - pool.n_free(), pool.n_pages())
    }

    /// From now on, hold at most so many bytes of pages. What is held beyond that goes as pages are taken.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// Most bytes of pages that are held at once.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of all pages that are held, by sequences and the prefix cache.
    pub fn held_bytes(&self) -> u64 {
        let held = |(pool, bytes): (&PagePool, &u64)| (pool.n_pages() - pool.n_free()) as u64 * bytes;
        self.pools.iter().zip(&self.page_bytes).map(held).sum()
    }

    /// The prefix cache.
    pub fn prefix(&self) -> &PrefixCache {
        &self.prefix
    }

    fn n_groups(&self) -> usize {
        self.windows.len()
    }

    /// The first position that the row at `position` looks at.
    fn first_visible(&self, group: usize, position: usize) -> usize {
        self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// How many of `tokens` [`Self::begin`] would find. Allocates nothing, and nothing counts as used.
    pub fn n_cached(&self, salt: u64, tokens: &[u32]) -> usize {
        self.prefix.n_usable(salt, tokens)
    }

    /// Give an empty slot the longest usable prefix of `tokens` that was computed under the same salt and is cached. Returns
    /// how many tokens need not be computed.
    pub fn begin(&mut self, slot: usize, salt: u64, tokens: &[u32]) -> usize {
        let found = self.prefix.find(salt, tokens);
        for group in 0..self.n_groups() {
            let first = self.first_visible(group, found.n_tokens) / self.page_len;
            self.keep_from(slot, group, first);
            for (page_index, &node) in found.path.iter().enumerate().skip(first) {
                let page = self.prefix.page(node, group);
                self.share(slot, group, page_index, page);
            }
        }
        if let Some(states) = self.states.get_mut(slot) {
            let state = found.path.last().map_or(STATE_NONE, |node| self.prefix.state(*node));
            states.begin(state, found.n_tokens, &mut self.pools[self.windows.len()]);
        }
        found.n_tokens
    }

    /// Whether a slot still has what a row at `position` looks at, of which it may have let go on its way further.
    pub fn can_fork(&self, slot: usize, position: usize) -> bool {
        let mut groups = (0..self.n_groups()).filter(|&group| !self.is_encoded[group]);
        let has_state = self.states.get(slot).is_none_or(|states| states.position() == position);
        has_state
            && groups.all(|group| {
                let first = self.first_visible(group, position) / self.page_len;
                let pages = &self.tables.table(slot, group)[first..position.div_ceil(self.page_len)];
                pages.iter().all(|page| *page != PAGE_NONE)
            })
    }

    /// Give the empty slot `to` the first `n_tokens` positions of `from`, where [`Self::can_fork`] says that they are there.
    /// Pages are shared until one of the two writes to one.
    pub fn fork(&mut self, from: usize, to: usize, n_tokens: usize) {
        for group in 0..self.n_groups() {
            if self.is_encoded[group] {
                continue;
            }
            let first = self.first_visible(group, n_tokens) / self.page_len;
            self.keep_from(to, group, first);
            for page_index in first..n_tokens.div_ceil(self.page_len) {
                let page = self.tables.page(from, group, page_index);
                self.share(to, group, page_index, page);
            }
        }
        if let Some(state) = self.states.get(from).map(SlotStates::current) {
            self.states[to].begin(state, n_tokens, &mut self.pools[self.windows.len()]);
        }
    }

    /// Slot `i` becomes what slot `parents[i]` was; the slots after them become empty.
    pub fn rearrange(&mut self, parents: &[usize]) {
        let (before, first_kept) = (self.tables.clone(), self.first_kept.clone());
        let n_pages = before.pages_per_table();
        for slot in 0..before.n_slots() {
            for group in (0..self.windows.len()).filter(|&group| !self.is_encoded[group]) {
                let kept = slot * self.windows.len() + group;
                match parents.get(slot) {
                    Some(&parent) => {
                        let from = before.table(parent, group);
                        let pool = &mut self.pools[group];
                        from.iter().filter(|page| **page != PAGE_NONE).for_each(|page| pool.share(*page));
                        self.tables.fill(slot, group, 0..n_pages, |page_index| from[page_index]);
                        self.first_kept[kept] = first_kept[parent * self.windows.len() + group];
                    }
                    None => {
                        self.tables.fill(slot, group, 0..n_pages, |_| PAGE_NONE);
                        self.first_kept[kept] = 0;
                    }
                }
            }
        }
        for (group, table) in before.tables().filter(|(group, _)| !self.is_encoded[*group]) {
            for &page in table.iter().filter(|page| **page != PAGE_NONE) {
                self.pools[group].release(page);
            }
        }
    }

    fn share(&mut self, slot: usize, group: usize, page_index: usize, page: u32) {
        if page != PAGE_NONE {
            self.pools[group].share(page);
        }
        self.tables.set(slot, group, page_index, page);
    }

    /// Entries of a slot's table before this one are [`PAGE_NONE`] for good.
    fn keep_from(&mut self, slot: usize, group: usize, page_index: usize) {
        let index = slot * self.n_groups() + group;
        self.first_kept[index] = page_index;
    }

    /// Give a slot the pages of `n_rows` positions from `first_position` on, its own to write: one that somebody else holds
    /// too is copied, as far as it was begun. Allocates nothing.
    ///
    /// # Errors
    /// No page is free or has memory, and none can be evicted ([`Error::PagesExhausted`]), or the device failed to copy. What the slot had
    /// is as it was.
    pub fn reserve(
        &mut self,
        slot: usize,
        first_position: usize,
        n_rows: usize,
        program: &mut dyn Program,
    ) -> Result<()> {
        let pages = first_position / self.page_len..(first_position + n_rows).div_ceil(self.page_len);
        for group in 0..self.n_groups() {
            if self.is_encoded[group] {
                continue;
            }
            for page_index in pages.clone() {
                let is_begun = page_index * self.page_len < first_position;
                self.reserve_page(slot, group, page_index, is_begun, program)?;
            }
        }
        if self.states.get(slot).is_some_and(SlotStates::needs_next) {
            let state = self.take_state()?;
            self.states[slot].set_next(state);
        }
        Ok(())
    }

    /// Whether layers are recurrent.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// The states that a step of the reserved rows uses; `None` without recurrent layers.
    pub fn state_use(&self, slot: usize) -> Option<StateUse> {
        self.states.get(slot).map(SlotStates::next_use)
    }

    /// The reserved rows of a slot were submitted.
    pub(crate) fn note_rows_submitted(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_submitted();
        }
    }

    /// The oldest step of a slot is done: its sequence stands before `position` now.
    pub(crate) fn note_rows_done(&mut self, slot: usize, position: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_done(position, &mut self.pools[self.windows.len()]);
        }
    }

    /// The oldest step of a slot is done, and what it had of the sequence is not all right: where layers are recurrent, the
    /// sequence stands where it stood before that step.
    pub(crate) fn note_rows_undone(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_undone(&mut self.pools[self.windows.len()]);
        }
    }

    /// Of the states that steps in flight write, none but the last will be asked for.
    pub(crate) fn keep_last_in_flight(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.keep_last_in_flight(&mut self.pools[self.windows.len()]);
        }
    }

    /// Where the state of a slot stands; `None` without recurrent layers.
    pub(crate) fn state_position(&self, slot: usize) -> Option<usize> {
        self.states.get(slot).map(SlotStates::position)
    }

    /// Nothing of a slot is in flight any more, and what was is to be computed again.
    pub(crate) fn forget_in_flight(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.forget_in_flight(&mut self.pools[self.windows.len()]);
        }
    }

    /// Give a slot one page of one group to write, with what it holds there already if it `is_begun`; its number.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(crate) fn reserve_page(
        &mut self,
        slot: usize,
        group: usize,
        page_index: usize,
        is_begun: bool,
        program: &mut dyn Program,
    ) -> Result<u32> {
        let before = self.tables.page(slot, group, page_index);
        if before != PAGE_NONE && self.pools[group].references(before) == 1 {
            return Ok(before);
        }
        let page = self.take(group, self.alone == Some(slot), program)?;
        // Making room may have moved it.
        let before = self.tables.page(slot, group, page_index);
        if before != PAGE_NONE {
            // And may have let go of what was shared; this slot still holds it.
            if is_begun && let Err(error) = program.copy_page(group, before, page) {
                self.release(group, page);
                return Err(error.into());
            }
            self.release(group, before);
        }
        self.tables.set(slot, group, page_index, page);
        Ok(page)
    }

    /// What the prefix cache has of `tokens` under a salt: how many of them, and `(pages, groups)` where they are, [`PAGE_NONE`] where
    /// a window has let go.
    pub(crate) fn cached(&mut self, salt: u64, tokens: &[u32]) -> (usize, Vec<u32>) {
        let found = self.prefix.find(salt, tokens);
        let groups = 0..self.n_groups();
        let pages = found.path.iter().flat_map(|node| groups.clone().map(|g| self.prefix.page(*node, g)));
        (found.n_tokens, pages.collect())
    }

    /// The slot's positions before `next_position` are computed: let go of pages that no later row looks at. Allocates
    /// nothing.
    pub fn advance(&mut self, slot: usize, next_position: usize) {
        for group in 0..self.n_groups() {
            let end = self.first_visible(group, next_position) / self.page_len;
            let kept = slot * self.n_groups() + group;
            for page_index in self.first_kept[kept]..end {
                let page = self.tables.set(slot, group, page_index, PAGE_NONE);
                if page != PAGE_NONE {
                    self.release(group, page);
                }
            }
            self.first_kept[kept] = self.first_kept[kept].max(end);
        }
    }

    /// Put a slot's computed `tokens` into the prefix cache, to be found under `salt`. A last page that is not full goes in only
    /// if the sequence will not write to it any more (`is_final`).
    pub fn remember(&mut self, slot: usize, salt: u64, tokens: &[u32], is_final: bool) {
        let n = if is_final { tokens.len() } else { tokens.len() / self.page_len * self.page_len };
        let KvCache { prefix, pools, tables, states, .. } = self;
        let state =
            states.get(slot).filter(|states| states.position() == n).map_or(STATE_NONE, SlotStates::current);
        prefix.insert(salt, &tokens[..n], state, slot, tables, pools);
    }

    /// Let go of all pages of a slot.
    pub fn end(&mut self, slot: usize) {
        self.is_background_lost |= self.background == Some(slot);
        for group in 0..self.n_groups() {
            if self.is_encoded[group] {
                continue;
            }
            for page_index in 0..self.pages_per_table() {
                let page = self.tables.set(slot, group, page_index, PAGE_NONE);
                if page != PAGE_NONE {
                    self.release(group, page);
                }
            }
            self.keep_from(slot, group, 0);
        }
        if let Some(states) = self.states.get_mut(slot) {
            states.end(&mut self.pools[self.windows.len()]);
        }
    }

    /// Forget all cached prefixes.
    pub fn clear_prefixes(&mut self) {
        self.prefix.clear(&mut self.pools);
    }

    fn release(&mut self, group: usize, page: u32) {
        self.pools[group].release(page);
    }

    /// Count every reference anew and compare.
    ///
    /// # Errors
    /// [`Error::Integrity`]: a defect of the engine, in words.
    pub fn check(&self) -> Result<()> {
        let broken = |what| Error::Integrity { what };
        self.prefix.check().map_err(broken)?;
        let mut counted: Vec<Vec<u32>> = self.pools.iter().map(|p| vec![0; p.n_pages()]).collect();
        self.prefix.count_references(&mut counted);
        for (group, table) in self.tables.tables().filter(|(group, _)| !self.is_encoded[*group]) {
            for &page in table.iter().filter(|page| **page != PAGE_NONE) {
                counted[group][page as usize] += 1;
            }
        }
        for states in &self.states {
            states.count_references(&mut counted[self.windows.len()]);
        }
        for (group, (pool, counted)) in self.pools.iter().zip(&counted).enumerate() {
            pool.check(counted).map_err(|what| broken(format!("KV group {group}: {what}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
