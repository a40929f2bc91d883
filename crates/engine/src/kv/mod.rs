//! Bookkeeping of the KV cache: the page of each position of each sequence.
//!
//! The program owns the bytes, and commits them granule by granule as pages are taken. This module
//! has page tables, pools and the prefix cache. A page table has one row for each slot and KV
//! group, which the device reads. Each group has a pool of page numbers. Reference counts let
//! sequences and the cache share pages. A page that is held more than once is never written: it is
//! copied before a sequence writes to it ([`KvCache::reserve`]).

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

/// Maximum number of pages that one sequence holds in a group while a step of `max_rows` rows is
/// computed.
pub fn pages_of_sequence(window: Option<usize>, n_ctx: usize, max_rows: usize, page_len: usize) -> usize {
    let all = n_ctx.div_ceil(page_len);
    // A window needs the rows of a step and the `window - 1` positions before them, and one page
    // more, since they may start inside one.
    window.map_or(all, |w| (w.saturating_sub(1) + max_rows).div_ceil(page_len) + 1).min(all)
}

/// Pages of each group's pool for `n_sequences` sequences that run at once.
///
/// That is the most that they can hold, and a little for the prefix cache. The cache needs one page
/// for a copy, and in window groups the window at the end of each prompt. Without that window no
/// part of the prompt could be reused. (A window as long as the context never ends.) Pages that an
/// encoder writes exist once for all sequences.
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

/// Maximum number of bytes of KV pages of one sequence of `n_tokens` tokens, with a page of each
/// group for a copy.
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

/// Pages, page tables and the prefix cache of all slots.
#[derive(Clone, Debug)]
pub struct KvCache {
    page_len: usize,
    /// Maximum number of rows of a step.
    max_rows: usize,
    /// Window of each group.
    windows: Vec<Option<usize>>,
    /// True for each group whose pages an encoder writes: every slot reads the same ones, and they
    /// are not counted.
    is_encoded: Vec<bool>,
    /// `(n_groups + 1)` pools, the last one for states.
    pools: Vec<PagePool>,
    /// States of each slot; empty without recurrent layers.
    states: Vec<SlotStates>,
    /// Bytes of a page of each group.
    page_bytes: Vec<u64>,
    /// Maximum number of bytes of pages held at once by sequences and the prefix cache.
    budget: u64,
    /// Account at the governor of the process; `None`: there is no governor.
    account: Option<Arc<Account>>,
    /// Number of pages of each group that were touched since they were committed. They are the
    /// first ones, and use memory.
    n_touched: Vec<usize>,
    /// Number of pages of each group that stay committed for the oldest sequence. They are the
    /// first ones.
    floor: Vec<usize>,
    /// Slot of a sequence that runs alone: it may use most of the machine's reserve.
    alone: Option<usize>,
    /// The last reading of the governor to which this cache has reported.
    told: u64,
    prefix: PrefixCache,
    tables: PageTables,
    /// Slot whose rows the device computes in the background.
    background: Option<usize>,
    /// True if pages of that slot have moved or were freed since.
    is_background_lost: bool,
    /// `(n_slots, n_groups)` first entry of each table that may still be used; earlier ones are
    /// [`PAGE_NONE`] for good, out of the window.
    first_kept: Vec<usize>,
}

impl KvCache {
    /// An empty cache for `limits.max_spans` slots, with `limits.n_pages` free pages.
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

    /// All page tables, `(n_slots, n_groups, pages_per_table)`, for [`device::Step::page_tables`].
    pub fn tables(&self) -> &[u32] {
        self.tables.entries()
    }

    /// Page tables of a slot, `(n_groups, pages_per_table)`.
    pub(crate) fn tables_of(&self, slot: usize) -> &[u32] {
        let n = self.n_groups() * self.pages_per_table();
        &self.tables()[slot * n..(slot + 1) * n]
    }

    /// Note that reserved rows of a slot are computed in the background from now on.
    pub(crate) fn begin_background(&mut self, slot: usize) {
        (self.background, self.is_background_lost) = (Some(slot), false);
    }

    /// Note that no rows are computed in the background.
    pub(crate) fn end_background(&mut self) {
        (self.background, self.is_background_lost) = (None, false);
    }

    /// Returns true if pages of the background rows have moved or were freed: then they must not be
    /// computed further.
    pub(crate) fn is_background_lost(&self) -> bool {
        self.is_background_lost
    }

    /// Number of entries of one table.
    pub fn pages_per_table(&self) -> usize {
        self.tables.pages_per_table()
    }

    /// Indices of changed entries, for [`device::Step::table_changes`].
    pub fn table_changes(&self) -> Option<&[u32]> {
        self.tables.changes()
    }

    /// Note the result of submitting a step: the device has seen the tables, or it failed and may
    /// not have.
    pub fn note_submitted<T, E>(
        &mut self,
        submitted: std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.tables.note_seen(submitted.is_ok());
        submitted
    }

    /// Number of pages of a group that are held, and of all its pages.
    pub fn usage(&self, group: usize) -> (usize, usize) {
        let pool = &self.pools[group];
        (pool.n_pages() - pool.n_free(), pool.n_pages())
    }

    /// Set the maximum bytes of pages. Pages beyond it are freed when new pages are allocated.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// Maximum number of bytes of pages held at once.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of all pages held by sequences and the prefix cache.
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

    /// The first position that the row at `position` attends to.
    fn first_visible(&self, group: usize, position: usize) -> usize {
        self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// Number of `tokens` that [`Self::begin`] would find. Allocates nothing, and does not count as
    /// a use.
    pub fn n_cached(&self, salt: u64, tokens: &[u32]) -> usize {
        self.prefix.n_usable(salt, tokens)
    }

    /// Give an empty slot the longest cached prefix of `tokens` that is usable and was computed
    /// under the same salt. Returns the number of tokens that need not be computed.
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

    /// Returns true if a slot still has the pages that a row at `position` attends to; a window may
    /// have freed them.
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

    /// Share the first `n_tokens` positions of slot `from` with the empty slot `to`, after
    /// [`Self::can_fork`] returned true. A page is copied when one of the two writes to it.
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

    /// Permute slots: slot `i` becomes a copy of slot `parents[i]`; the slots after them become
    /// empty.
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

    /// Free the entries of a slot's table before `page_index`, for good.
    fn keep_from(&mut self, slot: usize, group: usize, page_index: usize) {
        let index = slot * self.n_groups() + group;
        self.first_kept[index] = page_index;
    }

    /// Reserve pages for `n_rows` positions of a slot from `first_position` on, which the slot may
    /// write. A page that is shared is copied if it has earlier positions. Allocates nothing.
    ///
    /// # Errors
    /// No page is free or has memory, and none can be evicted ([`Error::PagesExhausted`]), or the
    /// device failed to copy. The slot is then unchanged.
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

    /// Returns true if the model has recurrent layers.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// States that a step of the reserved rows reads and writes; `None` without recurrent layers.
    pub fn state_use(&self, slot: usize) -> Option<StateUse> {
        self.states.get(slot).map(SlotStates::next_use)
    }

    /// Note that the reserved rows of a slot were submitted.
    pub(crate) fn note_rows_submitted(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_submitted();
        }
    }

    /// Note that the oldest step of a slot is done: the sequence is computed up to `position`.
    pub(crate) fn note_rows_done(&mut self, slot: usize, position: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_done(position, &mut self.pools[self.windows.len()]);
        }
    }

    /// Note that the oldest step of a slot is done, but some of its rows were wrong. With recurrent
    /// layers, the state from before that step is used again.
    pub(crate) fn note_rows_undone(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.note_undone(&mut self.pools[self.windows.len()]);
        }
    }

    /// Free all states that steps in flight write but the last, which alone will be used.
    pub(crate) fn keep_last_in_flight(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.keep_last_in_flight(&mut self.pools[self.windows.len()]);
        }
    }

    /// Position of a slot's state; `None` without recurrent layers.
    pub(crate) fn state_position(&self, slot: usize) -> Option<usize> {
        self.states.get(slot).map(SlotStates::position)
    }

    /// Forget the steps in flight of a slot: their rows will be computed again.
    pub(crate) fn forget_in_flight(&mut self, slot: usize) {
        if let Some(states) = self.states.get_mut(slot) {
            states.forget_in_flight(&mut self.pools[self.windows.len()]);
        }
    }

    /// Reserve one page of one group for writing, with its earlier contents if it `is_begun`.
    /// Returns its number.
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
        // Making room may have moved the page.
        let before = self.tables.page(slot, group, page_index);
        if before != PAGE_NONE {
            // Making room may also have dropped other references; this slot still holds the page.
            if is_begun && let Err(error) = program.copy_page(group, before, page) {
                self.release(group, page);
                return Err(error.into());
            }
            self.release(group, before);
        }
        self.tables.set(slot, group, page_index, page);
        Ok(page)
    }

    /// Cached tokens of `tokens` under a salt: their number, and their pages `(pages, groups)`,
    /// [`PAGE_NONE`] where a window has freed one.
    pub(crate) fn cached(&mut self, salt: u64, tokens: &[u32]) -> (usize, Vec<u32>) {
        let found = self.prefix.find(salt, tokens);
        let groups = 0..self.n_groups();
        let pages = found.path.iter().flat_map(|node| groups.clone().map(|g| self.prefix.page(*node, g)));
        (found.n_tokens, pages.collect())
    }

    /// Free pages that no row from `next_position` on attends to. All earlier positions are
    /// computed. Allocates nothing.
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

    /// Put a slot's computed `tokens` into the prefix cache under `salt`. A last page that is not
    /// full is included only if the sequence will not write to it any more (`is_final`).
    pub fn remember(&mut self, slot: usize, salt: u64, tokens: &[u32], is_final: bool) {
        let n = if is_final { tokens.len() } else { tokens.len() / self.page_len * self.page_len };
        let KvCache { prefix, pools, tables, states, .. } = self;
        let state =
            states.get(slot).filter(|states| states.position() == n).map_or(STATE_NONE, SlotStates::current);
        prefix.insert(salt, &tokens[..n], state, slot, tables, pools);
    }

    /// Free all pages of a slot.
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

    /// Evict all cached prefixes.
    pub fn clear_prefixes(&mut self) {
        self.prefix.clear(&mut self.pools);
    }

    fn release(&mut self, group: usize, page: u32) {
        self.pools[group].release(page);
    }

    /// Count every reference anew and compare.
    ///
    /// # Errors
    /// [`Error::Integrity`]: a defect of the engine; the message describes it.
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
